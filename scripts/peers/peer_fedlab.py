#!/usr/bin/env python3
# ruff: noqa: E402
"""Methods of fedlab (FedLab) and of mpifed; ``agreement.py`` describes the output."""

from __future__ import annotations

import sys
from types import ModuleType

import torch

# fedlab imports it for image data sets, which are not used here. Its wheels on PyPI require torch with CUDA.
sys.modules["torchvision"] = ModuleType("torchvision")
sys.modules["torchvision.transforms"] = sys.modules["torchvision"].transforms = ModuleType("transforms")

from common import BATCH, Path, flat, report, run_mpifed
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.contrib.algorithm.feddyn import FedDynSerialClientTrainer, FedDynServerHandler
from fedlab.contrib.algorithm.fednova import FedNovaSerialClientTrainer, FedNovaServerHandler
from fedlab.contrib.algorithm.fedprox import FedProxSerialClientTrainer
from fedlab.contrib.algorithm.scaffold import ScaffoldSerialClientTrainer, ScaffoldServerHandler
from torch.nn.utils import parameters_to_vector

from mpifed import algorithms

ETA, K = 0.3, 3
PACKAGE = "fedlab"


class Drawn:
    """The minibatches of a path as a data set of fedlab."""

    def __init__(self, path: Path):
        self.path, self.r = path, 0

    def get_dataloader(self, client: int, batch_size: int):
        samples, labels = self.path.data[client]
        return [(samples[rows], labels[rows]) for rows in self.path.minibatches[self.r][client]]


def run_fedlab(
    path: Path,
    trainer=SGDSerialClientTrainer,
    handler=SyncServerHandler,
    of_trainer: dict | None = None,
    of_handler: dict | None = None,
) -> list[torch.Tensor]:
    """Run the rounds of a path and return the point after each.

    Args:
        trainer, handler: fedlab's classes of the clients and of the server.
        of_trainer, of_handler: settings of their optimizers, in addition to epochs, batch size and step size.
    """
    clients = trainer(path.network(), len(path.data))
    clients.setup_dataset(Drawn(path))
    clients.setup_optim(1, BATCH, ETA, **(of_trainer or {}))
    server = handler(path.network(), len(path.points), len(path.minibatches[0]) / len(path.data))
    server.num_clients = len(path.data)
    if of_handler is not None:
        server.setup_optim(**of_handler)
    points = []
    for r, batches in enumerate(path.minibatches):
        clients.dataset.r = r
        clients.local_process(server.downlink_package, list(batches))
        for package in clients.uplink_package:
            server.load(package)
        points.append(flat(server.model))
    return points


def same() -> None:
    """Methods whose results are the same."""
    path = run_mpifed(algorithms.FedAvg(K=K, eta=ETA), cohort=3)
    report("FedAvg", PACKAGE, path, run_fedlab(path))
    path = run_mpifed(algorithms.FedProx(K=K, eta=ETA, mu=0.5), cohort=3)
    report("FedProx", PACKAGE, path, run_fedlab(path, FedProxSerialClientTrainer, of_trainer={"mu": 0.5}))
    for eta_g in (1.0, 0.7):
        path = run_mpifed(algorithms.SCAFFOLD(K=K, eta_l=ETA, eta_g=eta_g), cohort=3)
        found = run_fedlab(path, ScaffoldSerialClientTrainer, ScaffoldServerHandler, of_handler={"lr": eta_g})
        report(f"SCAFFOLD, eta_g = {eta_g:g}", PACKAGE, path, found)


def nova() -> None:
    steps = (2, 3, 4, 5, 6)
    path = run_mpifed(algorithms.FedNova(tau=steps, eta=ETA), cohort=3)

    def run(option: str) -> list[torch.Tensor]:
        handlers = FedNovaSerialClientTrainer, FedNovaServerHandler
        return run_fedlab(path, *handlers, of_handler={"option": option})

    report("FedNova, unequal steps, option uniform", PACKAGE, path, run("uniform"))
    report(
        "FedNova, unequal steps, option weighted_scale", PACKAGE, path, run("weighted_scale"),
        "This option, the default, multiplies weights that sum to 1 over the cohort by N / |S|. With the "
        "option `weighted_com`, which does not:",
        run("weighted_com"),
    )  # fmt: skip


class Differentiable(FedDynSerialClientTrainer):
    """FedDyn whose proximal and linear terms have gradients."""

    @property
    def model_parameters(self) -> torch.Tensor:
        return parameters_to_vector(self.model.parameters())

    def train(self, id, model_parameters, train_loader):
        points = super().train(id, model_parameters, train_loader)
        self.L[id] = self.L[id].detach()
        return [point.detach() for point in points]


class AllDisplacements(FedDynServerHandler):
    """FedDyn whose h changes by the sum of the clients' displacements."""

    def global_update(self, buffer):
        self.h = self.h + self.alpha / self.num_clients * (len(buffer) - 1) * self.model_parameters
        super().global_update(buffer)


def dyn() -> None:
    path, alpha = run_mpifed(algorithms.FedDyn(K=K, eta=ETA, alpha=0.2), cohort=3), {"alpha": 0.2}
    report(
        "FedDyn", PACKAGE, path,
        run_fedlab(path, FedDynSerialClientTrainer, FedDynServerHandler, alpha, alpha),
        "The proximal and linear terms are computed from detached parameters and have no gradients, so local "
        "steps are those of FedAvg. h changes by -α / N times (Σ y_i) - x instead of Σ (y_i - x). With "
        "gradients of both terms, and the latter sum:",
        run_fedlab(path, Differentiable, AllDisplacements, alpha, alpha),
    )  # fmt: skip


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    same()
    nova()
    dyn()
