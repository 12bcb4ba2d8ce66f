"""Games and noises that are transformed copies of ``games.Game``, and runs of them in one process.

Each transformed game answers as the original one would after renaming, scaling or turning, so that two runs
of the package can be compared with each other and no reference is needed.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import h5py
import numpy as np
import torch
from games import DX, DY, Game, configuration

from mpifed import Blocks, Minimax, hyperparameters, run
from mpifed.core.noise import Gaussian
from mpifed.core.streams import generator
from mpifed.parallel.comm import SerialComm

#: The same real numbers by different float64 operations: some hundred of them on values of about 1 leave
#: 1e-14, and the games here enlarge a difference by less than a hundred.
ROUNDING = 1e-12
#: What must differ has to differ by far more than rounding, and not by accident.
VISIBLE = 1e-3
#: Radius of a ball about 0 that binds in the runs here (the unbounded y has a norm of about 0.3).
BINDING = 0.15


def path(algorithm, problem, out, *, noise=None, **settings) -> np.ndarray:
    """The averaged iterate of every round, ``[rounds, dx + dy]``, by default with exact local gradients."""
    settings = {"rounds": 3, "batch_size": 0, "eval_every": 10**6, "watchdog": 0} | settings
    config = configuration(algorithm, problem, out, noise=noise, **settings)
    with h5py.File(run(config, SerialComm()).path) as file:
        return np.concatenate([file["iterates/x"][...], file["iterates/y"][...]], axis=1)


def distance(left: np.ndarray, right: np.ndarray) -> float:
    """The largest difference of a coordinate in any round."""
    assert left.shape == right.shape
    return float(np.abs(left - right).max())


def reflection(n: int) -> np.ndarray:
    """An orthogonal matrix that mixes all ``n`` coordinates."""
    v = np.arange(1.0, n + 1)
    return np.eye(n) - 2 * np.outer(v, v) / (v @ v)


@hyperparameters
class Timed(Gaussian):
    """A noise that is a function of the step: sample j of round r belongs to step t = (r - 1) q + j +
    ``offset``.

    Runs with different q thus see the same noise. It is 0 in round 0 and at t = 0, where FGDA averages q
    samples and Local-SGDA takes one.
    """

    q: int = 1
    offset: int = 0

    def __call__(self, stream, size):
        t = (stream.round - 1) * self.q + self.offset + np.arange(stream.count)
        angles = 0.7 * t[:, None] * (1 + stream.clients)[:, None, None] * np.arange(1, size + 1)
        return self.scale * np.sin(angles) * (stream.round > 0)


@hyperparameters
class Renamed(Gaussian):
    """Client k sees the noise of client ``order[k]``."""

    order: tuple[int, ...] = ()

    def __call__(self, stream, size):
        return super().__call__(_renamed(stream, self.order), size)


@hyperparameters
class Exchanged(Gaussian):
    """The noise of the game with the roles of x and y exchanged: (n_x, n_y) becomes (-n_y, -n_x)."""

    def __call__(self, stream, size):
        return -np.roll(super().__call__(stream, size), DY, axis=-1)


@hyperparameters
class Turned(Gaussian):
    """The noise in the coordinates of :class:`Reflected`."""

    def __call__(self, stream, size):
        noise = super().__call__(stream, size)
        return np.concatenate([noise[..., :DX] @ reflection(DX), noise[..., DX:] @ reflection(DY)], axis=-1)


def _renamed(stream, order):
    stream = copy.copy(stream)
    stream.clients = np.array(order)[stream.clients]
    return stream


@dataclass
class Rearranged(Game):
    """Client k is client ``order[k]`` of the game, and draws that client's minibatches of ``rows_a_sample``
    rows."""

    order: tuple[int, ...] = ()
    rows_a_sample: int = 2

    def __post_init__(self):
        self.clients = len(self.order)

    def prepare(self, seed, data_dir=None):
        game = Game(clients=max(self.order) + 1, ball=self.ball)
        game.prepare(seed)
        self.sets = game.sets
        self.h, self.C, self.rows = ([part[k] for k in self.order] for part in (game.h, game.C, game.rows))

    def client_data(self, k):
        return ()  # clients draw

    def draw(self, stream, size):
        sizes = np.array([len(self.rows[k]) for k in stream.clients])
        drawn = _renamed(stream, self.order).integers(sizes, self.rows_a_sample)
        data = [super(Rearranged, self).client_data(k) for k in stream.clients]
        chosen = [[column[rows] for column in columns] for columns, rows in zip(data, drawn)]
        return tuple(torch.stack(column).numpy() for column in zip(*chosen))


@dataclass
class Started(Game):
    """The game with a given starting point."""

    start: tuple[float, ...] = ()

    def initial(self, rng):
        start = torch.tensor(self.start, dtype=torch.float64)
        return {"x": start[:DX], "y": start[DX:]}


@dataclass
class Scaled(Game):
    """c f."""

    factor: float = 1.0

    def loss(self, x, y, batch):
        return self.factor * super().loss(x, y, batch)


@dataclass
class Swapped(Game):
    """min over x' = y, max over y' = x of -f."""

    def variables(self):
        blocks = super().variables()
        return Blocks(x=blocks["y"], y=blocks["x"])

    def initial(self, rng):
        point = super().initial(rng)
        return {"x": point["y"], "y": point["x"]}

    def loss(self, x, y, batch):
        return -super().loss(y, x, batch)

    def metrics(self, x, y, predictions):
        return {}


@dataclass
class Reflected(Game):
    """The game in the variables x' = Q x, y' = R y with Q and R orthogonal (and their own inverses)."""

    def prepare(self, seed, data_dir=None):
        super().prepare(seed)
        self.Q, self.R = torch.from_numpy(reflection(DX)), torch.from_numpy(reflection(DY))

    def variables(self):
        return Blocks(x={"x": (DX,)}, y={"y": (DY,)})

    def initial(self, rng):
        point = super().initial(rng)
        return {"x": self.Q @ point["x"], "y": self.R @ point["y"]}

    def loss(self, x, y, batch):
        x, y = self.Q @ x["x"], self.R @ y["y"]
        return super().loss({"u": x[:-1], "v": x[-1:]}, {"y": y}, batch)

    def metrics(self, x, y, predictions):
        return {}


@dataclass
class Affine(Minimax):
    """f_k = s_k (xᵀHx/2 + xᵀCy - yᵀGy/2) + aᵀx + bᵀy, the mean over the client's k + 1 rows (a, b).

    ``common`` sets all s_k to 1. ``pooled`` makes one client of all, whose row is the mean of the clients'
    means ("uniform") or of all rows ("samples").
    """

    clients: int = 4
    common: bool = True
    pooled: str | None = None

    def __post_init__(self):
        self.parts, self.clients = self.clients, 1 if self.pooled else self.clients

    def prepare(self, seed, data_dir=None):
        rng = generator(seed, "affine")
        self.H, self.C = (torch.from_numpy(rng.standard_normal(shape)) for shape in ((DX, DX), (DX, DY)))
        self.H = self.H @ self.H.T / DX + torch.eye(DX)
        self.G = torch.diag(torch.tensor([1.0, 2.0], dtype=torch.float64))
        self.rows = [torch.from_numpy(rng.standard_normal((k + 1, DX + DY))) for k in range(self.parts)]
        self.s = [1.0 if self.common else 0.5 + k for k in range(self.parts)]
        if self.pooled:
            means = torch.stack([rows.mean(0) for rows in self.rows])
            self.rows = [(means if self.pooled == "uniform" else torch.cat(self.rows)).mean(0)[None]]

    def variables(self):
        return Blocks(x={"x": (DX,)}, y={"y": (DY,)})

    def initial(self, rng):
        return {
            "x": torch.from_numpy(rng.standard_normal(DX)),
            "y": torch.from_numpy(rng.standard_normal(DY)),
        }

    def client_data(self, k):
        rows = self.rows[k]
        return rows[:, :DX], rows[:, DX:], torch.full((len(rows),), self.s[k], dtype=torch.float64)

    def gradients(self, x, y, batch):
        a, b, s = batch[0].mean(1), batch[1].mean(1), batch[2][:, :1]
        return s * (x @ self.H + y @ self.C.T) + a, s * (x @ self.C - y @ self.G) + b
