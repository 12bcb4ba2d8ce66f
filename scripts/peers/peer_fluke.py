#!/usr/bin/env python3
"""Methods of fluke and of mpifed; ``agreement.py`` describes the output."""

from __future__ import annotations

import torch
from common import BATCH, CLASSES, ROUNDS, Path, flat, report, run_mpifed
from fluke.algorithms import CentralizedFL
from fluke.algorithms.fedavgm import FedAVGMServer
from fluke.algorithms.feddyn import FedDyn, FedDynClient, FedDynServer
from fluke.algorithms.fedexp import FedExPServer
from fluke.algorithms.fednova import FedNovaClient, FedNovaServer
from fluke.algorithms.fedopt import FedOptServer
from fluke.algorithms.fedprox import FedProxClient
from fluke.algorithms.scaffold import SCAFFOLDClient, SCAFFOLDServer
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.server import Server
from fluke.utils.model import state_dict_zero_like
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from mpifed import algorithms

ETA, K = 0.3, 3
PACKAGE = "fluke-fl"


def all_rows(data, rows: torch.Tensor):
    """Return a loader of given minibatches ``[steps, b]``, whose length counts all rows of the client."""
    return DataLoader(TensorDataset(*data), batch_sampler=rows.tolist())


def drawn_rows(data, rows: torch.Tensor):
    """Return fluke's loader of given minibatches ``[steps, b]``, whose length counts only their rows."""
    columns = [column[rows.flatten()] for column in data]
    return FastDataLoader(*columns, num_labels=CLASSES, batch_size=BATCH)


def run_fluke(
    path: Path,
    client=Client,
    server=Server,
    *,
    algorithm=CentralizedFL,
    loader=all_rows,
    optimizer=None,
    scheduler=None,
    of_client=None,
    of_server=None,
    prepare=lambda server: None,
    before=lambda server, models: None,
    after=lambda server, start: None,
    point=lambda server: server.model,
) -> list[torch.Tensor]:
    """Run the rounds of a path and return the point after each.

    Args:
        client, server: classes of fluke.
        optimizer, of_client, of_server: further settings of the optimizer, the clients and the server.
        scheduler: settings of the step sizes.
        prepare: called with the server before the first round.
        before, after: called before the server aggregates, with the clients' models, and after it, with its
            previous point: corrections.
        point: returns the model with the method's point.
    """

    class Rounds(server):
        """The server with the cohorts and minibatches of the path."""

        points: list[torch.Tensor] = []

        def get_eligible_clients(self, eligible_perc):
            batches = path.minibatches[len(self.points)]
            for one, rows in batches.items():
                self.clients[one].train_set = loader(path.data[one], rows)
            return [self.clients[one] for one in batches]

        @torch.no_grad()
        def aggregate(self, eligible, client_models):
            start, models = flat(point(self)), list(client_models)
            before(self, models)
            super().aggregate(eligible, models)
            after(self, start)
            self.points.append(flat(point(self)))

    settings = OptimizerConfigurator({"name": "SGD", "lr": ETA} | (optimizer or {}), scheduler)
    first = torch.zeros(1, BATCH, dtype=torch.int64)  # the first loaders, before those of the first round
    clients = [
        client(
            index=one, train_set=loader(data, first), test_set=None, optimizer_cfg=settings,
            loss_fn=nn.CrossEntropyLoss(), local_epochs=1, clipping=0, **(of_client or {}),
        )
        for one, data in enumerate(path.data)
    ]  # fmt: skip
    made = Rounds(model=path.network(), test_set=None, clients=clients, **(of_server or {}))
    prepare(made)
    algorithm(len(clients), None, None, clients=clients, server=made).run(ROUNDS, 1.0)
    return made.points


def add(module: nn.Module, vector: torch.Tensor) -> None:
    """Add a vector ``[d]`` to the parameters of a network."""
    nn.utils.vector_to_parameters(flat(module) + vector, module.parameters())


def same() -> None:
    """Methods whose results are the same."""
    path = run_mpifed(algorithms.FedAvg(K=K, eta=ETA), cohort=3, weights="samples")
    report("FedAvg", PACKAGE, path, run_fluke(path, of_server={"weighted": True}))
    path = run_mpifed(algorithms.FedAvg(K=K, eta=ETA, eta_g=0.7), cohort=3)
    report("FedAvg, eta_g = 0.7", PACKAGE, path, run_fluke(path, of_server={"lr": 0.7}))
    path = run_mpifed(algorithms.FedProx(K=K, eta=ETA, mu=0.5), cohort=3, weights="samples")
    found = run_fluke(path, FedProxClient, of_client={"mu": 0.5}, of_server={"weighted": True})
    report("FedProx", PACKAGE, path, found)


class Restarted(Client):
    """A client whose momentum starts at 0 in every round."""

    def fit(self, override_local_epochs: int = 0) -> float:
        if self.optimizer is not None:
            self.optimizer.state.clear()
        return super().fit(override_local_epochs)


def epochs() -> None:
    """FedAvg with local epochs, momentum, and step sizes that fall from round to round."""
    eta = {"name": "exponential", "value": ETA / 10, "factor": 0.9, "per": "round"}
    method = algorithms.FedAvg(K={"epochs": 5}, eta=eta, local={"name": "sgd", "momentum": 0.9})
    path = run_mpifed(method, weights="samples", sampling="without_replacement")
    settings = {"optimizer": {"lr": ETA / 10, "momentum": 0.9}, "of_server": {"weighted": True}}
    settings["scheduler"] = {"name": "StepLR", "step_size": 1, "gamma": 0.9}
    report(
        "FedAvg, 5 epochs, momentum, decay per round", PACKAGE, path, run_fluke(path, **settings),
        "Clients keep their momentum from round to round. With a momentum of 0 at the start of each round:",
        run_fluke(path, Restarted, **settings),
    )  # fmt: skip


def scaffold() -> None:
    run = {"client": SCAFFOLDClient, "server": SCAFFOLDServer}
    path = run_mpifed(algorithms.SCAFFOLD(K=K, eta_l=ETA), cohort=3)
    report("SCAFFOLD", PACKAGE, path, run_fluke(path, **run, of_server={"weighted": False}))
    path, settings = run_mpifed(algorithms.SCAFFOLD(K=K, eta_l=ETA, eta_g=0.7), cohort=3), {"weighted": False}
    found = run_fluke(path, **run, of_server=settings | {"global_step": 0.7})
    report(
        "SCAFFOLD, eta_g = 0.7", PACKAGE, path, found,
        "`global_step` multiplies the clients' points. With `lr`, which multiplies displacements:",
        run_fluke(path, **run, of_server=settings | {"lr": 0.7}),
    )  # fmt: skip


def momentum() -> None:
    path = run_mpifed(algorithms.FedAvg(K=K, eta=ETA, server={"name": "momentum", "beta": 0.9}), cohort=3)
    run = {"server": FedAVGMServer, "of_server": {"momentum": 0.9, "weighted": False}}

    def start_at_0(server) -> None:
        server.momentum_vector = state_dict_zero_like(server.model.state_dict())

    report(
        "FedAvgM", PACKAGE, path, run_fluke(path, **run),
        "The first round sets the momentum to 0 and does not move the point. With a momentum of 0 before the "
        "first round:",
        run_fluke(path, **run, prepare=start_at_0),
    )  # fmt: skip


def adaptive(server: str) -> None:
    """FedAdam, FedYogi and FedAdagrad, with two server step sizes."""
    betas = {"beta_1": 0.9} if server == "adagrad" else {"beta_1": 0.9, "beta_2": 0.99}
    tau = 1e-2
    run = {"beta1": 0.9, "beta2": 0.99, "tau": tau, "mode": server, "weighted": False}

    def start_at_tau(server) -> None:
        server.v_t = {name: torch.full_like(value, tau**2) for name, value in server.v_t.items()}

    for eta_g in (1.0, 0.1):
        algorithm = algorithms.FedAvg(K=K, eta=ETA, eta_g=eta_g, server={"name": server, "tau": tau, **betas})
        path = run_mpifed(algorithm, cohort=3)

        def divide(server, models) -> None:
            start = flat(server.model)
            for model in models:
                add(model, (1 / eta_g - 1) * (flat(model) - start))

        settings = {"server": FedOptServer, "of_server": run | {"lr": eta_g}}
        if eta_g == 1:
            reason = "v starts at 0 instead of τ² or more. With v = τ² before the first round:"
        else:
            reason = (
                "v starts at 0 instead of τ² or more, and `lr` also multiplies the displacements before the "
                "moments. With v = τ² before the first round, and displacements divided by `lr`:"
            )
        name, found = f"Fed{server.capitalize()}, eta_g = {eta_g:g}", run_fluke(path, **settings)
        corrected = run_fluke(path, **settings, prepare=start_at_tau, before=divide)
        report(name, PACKAGE, path, found, reason, corrected)


def nova() -> None:
    """FedNova with equal and unequal numbers of local steps, which fluke derives from the rows."""
    steps = (2, 3, 4, 5, 6)
    sizes = tuple(BATCH * tau for tau in steps)
    run = {"client": FedNovaClient, "server": FedNovaServer, "loader": drawn_rows}

    path = run_mpifed(algorithms.FedNova(tau=3, eta=ETA), cohort=3)
    report("FedNova, equal steps", PACKAGE, path, run_fluke(path, **run))

    def add_rest(server, start) -> None:
        members = [server.clients[one] for one in path.minibatches[len(server.points)]]
        total = sum(member.n_examples for member in members)
        p, a = torch.tensor([[member.n_examples / total, member.a] for member in members]).T
        add(server.model, (1 - (p @ a) * (p / a).sum()) * start)

    run |= {"of_server": {"weighted": True}, "of_client": {"persistency": False}}
    for rho in (0.0, 0.5):
        path = run_mpifed(
            algorithms.FedNova(tau=steps, eta=ETA, rho=rho or None), sizes=sizes, cohort=3, weights="samples"
        )
        run["optimizer"] = {"momentum": rho}
        report(
            f"FedNova, unequal steps, rho = {rho:g}", PACKAGE, path, run_fluke(path, **run),
            "The weights p_i τ_eff / ‖a_i‖₁, whose sum is not 1, multiply points, not displacements. With "
            "(1 - their sum) times the previous point in addition:",
            run_fluke(path, **run, after=add_rest),
        )  # fmt: skip


def exp() -> None:
    path = run_mpifed(algorithms.FedExP(K=K, eta=ETA, epsilon=1e-4), cohort=3)

    def exact_step(server, models) -> None:
        moves = torch.stack([flat(model) - flat(server.model) for model in models])
        ratio = moves.square().sum() / (2 * len(moves) * (moves.mean(0).square().sum() + 1e-4))
        server.exact = max(1.0, float(ratio))

    def rescale(server, start) -> None:
        add(server.model, (server.exact / server.hyper_params.lr - 1) * (flat(server.model) - start))

    report(
        "FedExP", PACKAGE, path, run_fluke(path, server=FedExPServer),
        "The server's step size is rounded to float32. In float64:",
        run_fluke(path, server=FedExPServer, before=exact_step, after=rescale),
    )  # fmt: skip


def dyn() -> None:
    """FedDyn with full participation; fluke's server averages the g_i of the cohort, not of all clients."""
    alpha = 0.2

    class Corrected(FedDynClient):
        def fit(self, override_local_epochs: int = 0) -> float:
            before = self.prev_grads.clone()
            loss = super().fit(override_local_epochs)
            self.prev_grads = before - (self.prev_grads - before) / alpha
            return loss

    run = {
        "server": FedDynServer, "algorithm": FedDyn, "loader": drawn_rows, "of_client": {"alpha": alpha},
        "of_server": {"alpha": alpha}, "point": lambda server: server.cld_mdl,
    }  # fmt: skip
    path = run_mpifed(algorithms.FedDyn(K=K, eta=ETA, alpha=alpha))
    report(
        "FedDyn", PACKAGE, path, run_fluke(path, FedDynClient, **run),
        "Local gradients contain +α g_i instead of -g_i, and the server adds the mean g_i instead of -1/α "
        "times this mean. With -g_i / α in place of g_i:",
        run_fluke(path, Corrected, **run),
    )  # fmt: skip


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    same()
    epochs()
    scaffold()
    momentum()
    for server in ("adam", "yogi", "adagrad"):
        adaptive(server)
    nova()
    exp()
    dyn()
