"""Transformed copies of the problems in ``games`` and ``fields``, and runs of them in one process.

The iterates on a transformed problem follow from those on the original one, so two runs of the package can be
compared without a reference.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from fields import Chain
from games import DX, DY, Game, configuration, trace

from mpifed import Blocks, Minimax, Minimisation, hyperparameters
from mpifed.core.noise import Gaussian
from mpifed.core.problem import Composition
from mpifed.core.streams import generator

#: Tolerance for equal real numbers from different float64 operations: a few hundred operations on values of
#: about 1 leave 1e-14, and these games amplify a difference by less than a hundred.
ROUNDING = 1e-12
#: Least difference of iterates that must differ, far above rounding.
VISIBLE = 1e-3
#: Radius of a ball about 0 that binds (without it, y has a norm of about 0.3).
BINDING = 0.15
NOISE = Gaussian(scale=0.3)


def path(method, problem, *, noise=NOISE, rounds=4, **settings) -> np.ndarray:
    """Return the averaged iterate of every round, ``[rounds, d]``."""
    return trace(configuration(method, problem, "unused", rounds=rounds, noise=noise, **settings))[0]


def distance(left: np.ndarray, right: np.ndarray) -> float:
    """Return the largest difference of a coordinate in any round."""
    assert left.shape == right.shape
    return float(np.abs(left - right).max())


@hyperparameters
class Timed(Gaussian):
    """Noise that depends on the local step alone: sample j of round r belongs to step (r - 1) q + j +
    ``offset``.

    Runs with different q therefore see the same noise. It is 0 in round 0 and at step 0, where FGDA
    averages q samples and Local-SGDA takes one.
    """

    q: int = 1
    offset: int = 0

    def __call__(self, stream, size):
        t = (stream.round - 1) * self.q + self.offset + np.arange(stream.count)
        angles = 0.7 * t[:, None] * (1 + stream.clients)[:, None, None] * np.arange(1, size + 1)
        return self.scale * np.sin(angles) * (stream.round > 0)


@hyperparameters
class Renamed(Gaussian):
    """Noise of the permuted clients: client k sees the noise of client ``order[k]``."""

    order: tuple[int, ...] = ()

    def __call__(self, stream, size):
        return super().__call__(_renamed(stream, self.order), size)


@hyperparameters
class Exchanged(Gaussian):
    """Noise of :class:`Swapped`: (n_x, n_y) becomes (-n_y, -n_x)."""

    def __call__(self, stream, size):
        return -np.roll(super().__call__(stream, size), DY, axis=-1)


def _renamed(stream, order):
    stream = copy.copy(stream)
    stream.clients = np.array(order)[stream.clients]
    return stream


@dataclass
class Rearranged(Game):
    """The game in which client k has the data and minibatches, of 2 rows, of client ``order[k]``."""

    order: tuple[int, ...] = ()

    def __post_init__(self):
        self.clients = len(self.order)

    def prepare(self, seed, data_dir=None):
        game = Game(clients=max(self.order) + 1, ball=self.ball)
        game.prepare(seed)
        self.sets = game.sets
        self.h, self.C, self.rows = ([part[k] for k in self.order] for part in (game.h, game.C, game.rows))

    def client_data(self, k):
        return ()  # clients draw

    def client_size(self, k):
        return len(self.rows[k])

    def draw(self, stream, size):
        sizes = np.array([len(self.rows[k]) for k in stream.clients])
        drawn = _renamed(stream, self.order).integers(sizes, 2)
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
    """The game with the loss multiplied by ``factor``."""

    factor: float = 1.0

    def loss(self, x, y, batch):
        return self.factor * super().loss(x, y, batch)


@dataclass
class Swapped(Game):
    """The game with the roles of x and y exchanged: min over x' = y, max over y' = x of -f."""

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
class Affine(Minimax):
    """f_k = s_k (xᵀHx/2 + xᵀCy - yᵀGy/2) + aᵀx + bᵀy, the mean over the client's k + 1 rows (a, b).

    Args:
        common: set all s_k to 1, so that all clients have one Jacobian.
        pooled: use one client whose row is the mean of the clients' means ("uniform") or of all rows
            ("samples").
        at_saddle: start at the saddle point instead of a random point.
    """

    clients: int = 4
    common: bool = True
    pooled: str | None = None
    at_saddle: bool = False

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

    def saddle(self) -> torch.Tensor:
        """Return the saddle point (x, y) of the unweighted mean."""
        jacobian = torch.cat([torch.cat([self.H, self.C], 1), torch.cat([self.C.T, -self.G], 1)])
        rows = torch.stack([rows.mean(0) for rows in self.rows]).mean(0)
        return torch.linalg.solve(jacobian * float(np.mean(self.s)), -rows)

    def initial(self, rng):
        start = self.saddle() if self.at_saddle else torch.from_numpy(rng.standard_normal(DX + DY))
        return {"x": start[:DX], "y": start[DX:]}

    def client_data(self, k):
        rows = self.rows[k]
        return rows[:, :DX], rows[:, DX:], torch.full((len(rows),), self.s[k], dtype=torch.float64)

    def gradients(self, x, y, batch):
        a, b, s = batch[0].mean(1), batch[1].mean(1), batch[2][:, :1]
        return s * (x @ self.H + y @ self.C.T) + a, s * (x @ self.C - y @ self.G) + b


@dataclass
class Plain(Composition):
    """Composition with g = identity and f_k a mean of log cosh over the client's rows: a finite sum."""

    clients: int = 3
    inner_size = DX

    def prepare(self, seed, data_dir=None):
        self.rows = torch.from_numpy(generator(seed, "plain").standard_normal((self.clients, 5, DX)))

    def variables(self):
        return Blocks(x={"x": (DX,)})

    def initial(self, rng):
        return {"x": torch.from_numpy(rng.standard_normal(DX))}

    def client_data(self, k):
        return (self.rows[k],)

    def inner(self, x, batch):
        return x["x"]

    def outer(self, u, batch):
        return torch.log(torch.cosh(batch[0] @ u - 1)).mean()


@dataclass
class PlainMinimisation(Minimisation):
    """The same sum as a minimisation problem."""

    plain: Plain
    clients: int = 3

    def prepare(self, seed, data_dir=None):
        self.plain.prepare(seed)
        self.initial, self.client_data = self.plain.initial, self.plain.client_data

    def variables(self):
        return Blocks(x={"x": (DX,)})

    def loss(self, x, batch):
        return self.plain.outer(x["x"], batch)


@dataclass
class RearrangedChain(Chain):
    """The chain in which client k has the data of client ``order[k]``."""

    order: tuple[int, ...] = (0, 1, 2)

    def __post_init__(self):
        self.clients = len(self.order)

    def prepare(self, seed, data_dir=None):
        chain = Chain()
        chain.prepare(seed)
        self.rows = [chain.rows[k] for k in self.order]
