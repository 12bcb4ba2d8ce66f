#!/usr/bin/env python3
"""Strategies of flwr (Flower) and FedAvg of mpifed; ``agreement.py`` describes the output.

A strategy is a server: clients take plain SGD steps in torch, and a strategy aggregates their points.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from common import Path, local_sgd, report, run_mpifed
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi

from mpifed import algorithms

ETA, K = 0.3, 3
BETA_1, BETA_2, TAU, ETA_G = 0.9, 0.99, 1e-2, 0.1
PACKAGE = "flwr"


def run_flwr(path: Path, strategy, before: Callable[[int], None] = lambda r: None) -> list[torch.Tensor]:
    """Run the rounds of a path and return the point after each; ``before(r)`` is called before round r."""
    point, points = path.start, []
    for r, batches in enumerate(path.minibatches):
        results = [
            (None, FitRes(
                status=Status(Code.OK, ""),
                parameters=ndarrays_to_parameters([local_sgd(path, r, client, point, ETA).numpy()]),
                num_examples=path.counts[client],
                metrics={},
            ))
            for client in batches
        ]  # fmt: skip
        before(r + 1)
        parameters, _ = strategy.aggregate_fit(r + 1, results, [])
        point = torch.from_numpy(parameters_to_ndarrays(parameters)[0])
        points.append(point)
    return points


def start(path: Path):
    return ndarrays_to_parameters([path.start.numpy()])


def averages() -> None:
    """FedAvg and FedAvgM."""
    path = run_mpifed(algorithms.FedAvg(K=K, eta=ETA), cohort=3, weights="samples")
    report("FedAvg", PACKAGE, path, run_flwr(path, FedAvg()))
    for eta_g in (1.0, 0.7):
        server = algorithms.FedAvg(K=K, eta=ETA, eta_g=eta_g, server={"name": "momentum", "beta": 0.9})
        path = run_mpifed(server, cohort=3)
        strategy = FedAvgM(initial_parameters=start(path), server_learning_rate=eta_g, server_momentum=0.9)
        report(f"FedAvgM, eta_g = {eta_g:g}", PACKAGE, path, run_flwr(path, strategy))


def adaptive(server: str, strategy_class, betas: dict) -> None:
    """FedAdam, FedYogi or FedAdagrad; Adagrad has no ``beta_2``, and flwr's has no momentum."""
    settings = {"name": server, "tau": TAU} | betas
    path = run_mpifed(algorithms.FedAvg(K=K, eta=ETA, eta_g=ETA_G, server=settings), cohort=3)

    def strategy(v: float):
        made = strategy_class(initial_parameters=start(path), eta=ETA_G, tau=TAU, **betas)
        if v:
            made.v_t = [torch.full_like(path.start, v).numpy()]
        return made

    corrected, uncorrect = strategy(TAU**2), lambda r: None
    reason = "v starts at 0 instead of τ² or more. With v = τ² before the first round:"
    if server == "adam":
        reason = (
            "v starts at 0 instead of τ² or more, and `eta` is multiplied by √(1 - β₂ᵗ) / (1 - β₁ᵗ), which "
            "is not in the paper, with t = 2 in the first round. With v = τ² before the first round, and "
            "`eta` divided by this factor:"
        )

        def uncorrect(r: int) -> None:
            corrected.eta = ETA_G * (1 - BETA_1 ** (r + 1)) / (1 - BETA_2 ** (r + 1)) ** 0.5

    found = run_flwr(path, strategy(0.0))
    report(f"Fed{server.capitalize()}", PACKAGE, path, found, reason, run_flwr(path, corrected, uncorrect))


if __name__ == "__main__":
    torch.set_num_threads(1)
    averages()
    adaptive("adam", FedAdam, {"beta_1": BETA_1, "beta_2": BETA_2})
    adaptive("yogi", FedYogi, {"beta_1": BETA_1, "beta_2": BETA_2})
    adaptive("adagrad", FedAdagrad, {})
