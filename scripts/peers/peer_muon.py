#!/usr/bin/env python3
"""torch.optim.Muon and FedMuon-DA of mpifed; ``agreement.py`` runs this program and describes its output."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from unittest import mock

import torch
from values import compare, simulate

from mpifed import Blocks, Minimax, algorithms
from mpifed.core.directions import Orthogonalize

PACKAGE, ROUNDS = "torch", 6
GAMMA, BETA = 0.05, 0.2
SHAPES = {"x": (3, 5), "y": (4, 4)}
IN_FLOAT64 = "The iteration runs in bfloat16. In float64:"


def float64():
    """Return a context in which Muon's conversion to bfloat16 copies the matrix in its precision."""
    return mock.patch.object(torch.Tensor, "bfloat16", torch.Tensor.clone)


@dataclass
class Coupled(Minimax):
    """One client: scale · (sum of sin(xᵀAy) + ‖x‖² - ‖y‖²) for matrices x ``[3, 5]`` and y ``[4, 4]``."""

    scale: float
    clients: int = 1

    def variables(self) -> Blocks:
        return Blocks(x={"x": SHAPES["x"]}, y={"y": SHAPES["y"]})

    def initial(self, rng) -> dict[str, torch.Tensor]:
        return {block: torch.from_numpy(rng.standard_normal(shape)) for block, shape in SHAPES.items()}

    def client_data(self, client: int) -> tuple[torch.Tensor]:
        return (torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(1, 3, 4),)

    def loss(self, x, y, batch) -> torch.Tensor:
        A = batch[0][0]
        coupling = torch.sin(x["x"].mT @ A @ y["y"]).sum()
        return self.scale * (coupling + x["x"].square().sum() - y["y"].square().sum())


def iteration() -> None:
    """The direction of one step for single matrices: wide, tall, square, of rank 1."""
    generator = torch.Generator().manual_seed(0)
    sizes = ((4, 9), (9, 4), (6, 6), (1, 7), (7, 1))
    matrices = [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]
    matrices.append(matrices[0][:, :1] @ matrices[1][:1])  # 4 x 4, of rank 1

    def of_mpifed(scale: float) -> list[torch.Tensor]:
        direction = Orthogonalize("newton_schulz")
        return [direction(scale * one.flatten(), {"U": tuple(one.shape)}) for one in matrices]

    def of_torch(scale: float, eps: float | None = None) -> list[torch.Tensor]:
        """Return -1 times a step of length 1 from 0; the norm is increased by ``eps`` if it is given."""
        directions = []
        for one in matrices:
            point = torch.zeros_like(one, requires_grad=True)
            point.grad = scale * one
            rows, columns = one.shape
            lr = min(1.0, columns / rows) ** 0.5  # multiplied by max(1, rows / columns)^(1/2)
            more = {} if eps is None else {"eps": float(point.grad.norm()) + eps}  # the least norm
            torch.optim.Muon([point], lr=lr, weight_decay=0, momentum=0, nesterov=False, **more).step()
            directions.append(-point.detach())
        return directions

    inputs = f"{len(matrices)} matrices with norms"
    found = of_torch(1e9)
    with float64():
        exact, small, increased = of_torch(1e9), of_torch(1e-3), of_torch(1e-3, eps=1e-7)
    method = "FedMuonDA, direction by newton_schulz"
    compare(method, PACKAGE, f"{inputs} of about 1e9", of_mpifed(1e9), found, IN_FLOAT64, exact)
    compare(
        f"{method}, float64", PACKAGE, f"{inputs} of about 1e-3", of_mpifed(1e-3), small,
        "The norm is bounded below by 1e-7; mpifed adds 1e-7 as in the published pseudocode. With the norm "
        "increased by 1e-7:", increased,
    )  # fmt: skip


def rounds() -> None:
    """FedMuonDA with one client and one local step is Muon without Nesterov's momentum and weight decay."""
    method = algorithms.FedMuonDA(
        p=1, eta_x=0.1, eta_y=0.1, gamma_x=GAMMA, gamma_y=GAMMA, beta_x=BETA, beta_y=BETA,
        first_round="zero", orthogonalize="newton_schulz",
    )  # fmt: skip
    simulation, points = simulate(Coupled(scale=1e9), method, ROUNDS)  # so that ε is negligible

    def of_torch(context) -> list[torch.Tensor]:
        blocks = [part.reshape(SHAPES[b]).clone().requires_grad_() for b, part in zip("xy", split(points[0]))]
        x, y = blocks
        settings = {"lr": GAMMA, "weight_decay": 0, "momentum": 1 - BETA, "nesterov": False}
        descent, ascent = torch.optim.Muon([x], **settings), torch.optim.Muon([y], **settings)
        data, found = simulation.problem.client_data(0), []
        for _ in range(ROUNDS):
            loss = simulation.problem.loss({"x": x}, {"y": y}, data)
            x.grad, gy = torch.autograd.grad(loss, (x, y))
            y.grad = -gy
            with context():
                descent.step()
                ascent.step()
            found.append(torch.cat([x.detach().flatten(), y.detach().flatten()]))
        return found

    compare(
        "FedMuonDA, 1 client, 1 local step", PACKAGE, "matrices 3 x 5 and 4 x 4, minimax", points[1:],
        of_torch(nullcontext), IN_FLOAT64, of_torch(float64),
    )  # fmt: skip


def split(point: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the blocks x and y of a point."""
    return point[:15], point[15:]


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    iteration()
    rounds()
