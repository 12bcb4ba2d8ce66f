"""A small nonlinear minimax problem with noise, and its stochastic gradients for the references.

f_k(x, y; ξ) = ½ h_k ‖x‖² + xᵀC_k y - ½ ‖y‖² + mean over the rows (a, c) of ξ of [log cosh(aᵀx) + cᵀy + (cᵀy)
sin(aᵀx) / 4]: heterogeneous, not affine, with minibatches of rows and additive noise on the gradients. The
gradients below are analytic and the class has a loss only, so agreement also validates the differentiation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import drawn
import numpy as np
import torch

from mpifed import Blocks, Config, Minimax, Sets
from mpifed.core.noise import Gaussian
from mpifed.core.problem import DataFile
from mpifed.core.sets import Ball
from mpifed.core.streams import generator
from mpifed.parallel.comm import SerialComm
from mpifed.simulation.simulation import Simulation

DX, DY = 3, 2


@dataclass
class Game(Minimax):
    """The problem; clients have 5 + k rows, ``ball`` bounds y."""

    clients: int = 3
    ball: float | None = None

    def prepare(self, seed, data_dir=None):
        self.sets = Sets(y=Ball(self.ball)) if self.ball else Sets()
        rngs = [generator(seed, "game", client) for client in range(self.clients)]
        self.h = [torch.tensor(1 + rng.random(), dtype=torch.float64) for rng in rngs]
        self.C = [torch.from_numpy(rng.standard_normal((DX, DY))) for rng in rngs]
        self.rows = [torch.from_numpy(rng.standard_normal((5 + k, DX + DY))) for k, rng in enumerate(rngs)]

    def variables(self):
        return Blocks(x={"u": (DX - 1,), "v": (1,)}, y={"y": (DY,)})

    def initial(self, rng):
        return {
            "x": torch.from_numpy(rng.standard_normal(DX)),
            "y": torch.from_numpy(rng.standard_normal(DY)) / 3,
        }

    def client_data(self, k):
        n = len(self.rows[k])
        return self.rows[k][:, :DX], self.rows[k][:, DX:], self.h[k].expand(n), self.C[k].expand(n, DX, DY)

    def loss(self, x, y, batch):
        a, c, h, C = batch
        x, y = torch.cat([x["u"], x["v"]]), y["y"]
        ax, cy = a @ x, c @ y
        rows = torch.log(torch.cosh(ax)) + cy + cy * torch.sin(ax) / 4
        return 0.5 * h[0] * (x @ x) + x @ C[0] @ y - 0.5 * (y @ y) + rows.mean()

    def metrics(self, x, y, predictions):
        return {"norm": float(torch.cat([x["u"], x["v"], y["y"]]).norm())}


@dataclass
class Reading(Game):
    """The game, which declares the file "prices" of the data folder with a digest that is not SHA-256."""

    def prepare(self, seed, data_dir=None):
        super().prepare(seed)
        file = Path(data_dir, "prices")
        self.files = {"prices": DataFile(str(file), hashlib.md5(file.read_bytes()).hexdigest())}


def gradient_on(game: Game, k: int, x: torch.Tensor, y: torch.Tensor, rows: torch.Tensor):
    """Return the gradients of client k on some of its rows, ``[b, DX + DY]``."""
    a, c = rows[:, :DX], rows[:, DX:]
    ax, cy = a @ x, c @ y
    gx = game.h[k] * x + game.C[k] @ y + ((torch.tanh(ax) + cy * torch.cos(ax) / 4)[:, None] * a).mean(0)
    gy = game.C[k].T @ x - y + ((1 + torch.sin(ax) / 4)[:, None] * c).mean(0)
    return gx, gy


def reference_gradient(game: Game, seed: int, q: int, batch_size: int, noise: Gaussian | None):
    """Return ``grad(k, x, y, key)`` for the references, on the package's samples of the same addresses."""

    def grad(k, x, y, key):
        r, j = (0, key[1]) if isinstance(key, tuple) else ((key - 1) // q + 1, (key - 1) % q)
        rows = game.rows[k]
        if batch_size:
            rows = rows[drawn.rows(seed, k, r, q + 1, len(rows), batch_size)[j]]
        gx, gy = gradient_on(game, k, x, y, rows)
        if noise is not None:
            extra = torch.from_numpy(drawn.noise(noise, seed, k, r, q + 1, DX + DY)[j])
            gx, gy = gx + extra[:DX], gy + extra[DX:]
        return gx, gy

    return grad


def configuration(
    algorithm,
    problem,
    out,
    *,
    rounds=3,
    seed=1,
    batch_size=2,
    noise=0.3,
    cohort=None,
    weights="uniform",
    sections=None,
    **run,
):
    """Return a float64 job without a progress bar.

    Args:
        noise: a noise distribution, or the scale of a Gaussian.
        sections: other settings of the job, which replace those given here.
        run: settings of [run].
    """
    if isinstance(noise, float | int):
        noise = Gaussian(scale=noise) if noise else None
    settings = {
        "dtype": "float64",
        "progress": False,
        "out": str(out),
        "overwrite": True,
        "checkpoint_every": 0,
        **run,
    }
    given = {
        "record": ("x", "y"),
        "oracle": {"batch_size": batch_size, "noise": noise},
        "participation": {"cohort": cohort, "weights": weights},
        "run": settings,
    }
    return Config(algorithm=algorithm, problem=problem, seed=seed, rounds=rounds, **given | (sections or {}))


def started(config, rounds=0, comm=None) -> Simulation:
    """Return the simulation of a job, by default in one process, after its start and some rounds."""
    simulation = Simulation.from_settings(config, comm or SerialComm())
    simulation.start()
    for _ in range(rounds):
        simulation.step()
    return simulation


def completed(config, comm=None) -> Simulation:
    """Return the simulation of a job after its last round."""
    return started(config, config.rounds, comm)


def simulated(config, comm=None) -> Iterator[Simulation]:
    """Yield the simulation of a job before its first round and after every round."""
    simulation = started(config, comm=comm)
    yield simulation
    for _ in range(config.rounds):
        simulation.step()
        yield simulation


def trace(config, comm=None) -> tuple[np.ndarray, np.ndarray]:
    """Return the averaged point after every round, ``[rounds, d]``, and the output point ``[d]``."""
    points = []
    for simulation in simulated(config, comm):
        points.append(simulation.point().numpy().copy())
    return np.array(points[1:]), simulation.output.buffer.numpy()


def start_of(problem, seed: int):
    """Return the starting point (x_1, y_1) as two flat vectors."""
    point = problem.initial(generator(seed, "initial"))
    return point["x"], point["y"]


def sizes(game: Game) -> np.ndarray:
    """Return the number of rows per client."""
    return np.array([len(rows) for rows in game.rows])


def trace_file(out, comm, rows, columns="round,client") -> str:
    """Write a participation trace on rank 0 and return its path."""
    path = Path(out, "trace.csv")
    if comm.rank == 0:
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text("\n".join([columns, *(",".join(map(str, row)) for row in rows)]) + "\n")
    comm.barrier()
    return str(path)
