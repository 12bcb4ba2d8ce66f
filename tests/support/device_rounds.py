"""Rounds on a real or simulated GPU and on the CPU, and how often the host waits for the GPU.

``tests/gpu`` and ``scripts/bench/gpus.py`` share this module. On the simulated GPU (``simulated_gpu.py``)
results have the bits of the CPU and every wait is counted. A real one rounds differently, and torch reports
only some of the waits.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections import Counter
from dataclasses import replace

import everything
import torch
from games import configuration
from simulated_gpu import device as gpu

from mpifed.core.directions import Orthogonalize
from mpifed.parallel.comm import SerialComm
from mpifed.parallel.reproducibility import deterministic
from mpifed.simulation.simulation import Simulation

SIMULATED = "MPIFED_SIMULATED_GPU" in os.environ
#: Relative to the largest number, in float64 on a real GPU, which sums in another order and rounds once in a
#: multiplication with an addition: errors of 1e-16, of sums of up to some thousand numbers over a few rounds,
#: reach about 1e-12. A wrong operation or a wrong random number changes far more.
TOLERANCE = 1e-9
#: Problems with a simplex, whose projection sums in another order on a GPU.
SIMPLEX = {
    "AffineShift", "FairClassification", "DistributionallyRobust", "MatrixGame", "FiniteMax",
    "ClientMixture", "QuadraticMixture",
}  # fmt: skip


def covering() -> list[tuple[str, str]]:
    """Return few pairs with every method, in the order of ``everything.METHODS``, and every problem."""
    chosen: list[tuple[str, str]] = []
    for name in everything.METHODS:
        fitting = [pair for pair in everything.FITTING if pair[0] == name]
        seen = {problem for _, problem in chosen}
        chosen.append(next((pair for pair in fitting if pair[1] not in seen), fitting[0]))
    left = everything.SETTINGS.keys() - {problem for _, problem in chosen}
    return chosen + [next(pair for pair in everything.FITTING if pair[1] == name) for name in sorted(left)]


def settings(method: str, problem: str, device: str, **run):
    """Return the job of a method and a problem with their small settings."""
    built = everything.method(method)
    if isinstance(getattr(built, "direction", None), Orthogonalize):
        built = replace(built, orthogonalize="newton_schulz")  # as "auto" on a GPU
    return configuration(built, everything.problem(problem), "unused", device=device, **run)


@contextlib.contextmanager
def counted():
    """Give the numbers of waits for the GPU in this block, by place; on the simulated GPU by operation, too.

    On a real GPU they are those that ``torch.cuda.set_sync_debug_mode`` reports: copies from and to pageable
    memory, operations that read a value, and ``Stream.synchronize``.
    """
    places: Counter[str] = Counter()
    if SIMULATED or not torch.cuda.is_available():
        gpu.clear()
        yield places
        places.update(gpu.places)
        return
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", message="called a synchronizing CUDA operation")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield places
        finally:
            torch.cuda.set_sync_debug_mode(mode)
    waits = [one for one in caught if "called a synchronizing CUDA operation" in str(one.message)]
    places.update(f"{one.filename}:{one.lineno}" for one in waits)


def rounds(config, count: int = 3, comm=None):
    """Return the points after each round on the CPU, the metrics, the waits of the last round by place, and
    the simulation."""
    points = []
    with deterministic(config.run.reduction == "exact"):
        simulation = Simulation.from_settings(config, comm or SerialComm())
        with simulation:
            simulation.start()
            for _ in range(count):
                with counted() as places:
                    simulation.step()
                points.append(simulation.point())
            metrics = simulation.evaluate(simulation.output)
    return torch.stack([point.cpu() for point in points]), metrics, places, simulation


def allowed_waits(simulation) -> int:
    """Return the largest number of waits in a round of all clients in one process: one per phase, to check
    the mean and ``shared``, and with ``exact`` one per reduction, to copy the partial sums to the host."""
    phases, rounds = len(simulation.config.algorithm.phases), simulation.rounds
    reductions = phases + bool(rounds.memory.client_blocks.fields)  # an average of the clients' own blocks
    return phases + simulation.config.run.is_reproducible * reductions
