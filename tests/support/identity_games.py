"""Problems with known solutions, and runs of methods that coincide on them, in one process."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from games import DX, DY, configuration, trace

from mpifed import Blocks, Minimax, Minimisation
from mpifed.core.noise import Gaussian
from mpifed.core.problem import Composition
from mpifed.core.streams import generator

#: Tolerance for equal real numbers from different float64 operations: a few hundred operations on values of
#: about 1 leave 1e-14, and these games amplify a difference by less than a hundred.
ROUNDING = 1e-12
#: Least difference of iterates that must differ, far above rounding.
VISIBLE = 1e-3
NOISE = Gaussian(scale=0.3)


def path(method, problem, *, noise=NOISE, rounds=4, **settings) -> np.ndarray:
    """Return the averaged iterate of every round, ``[rounds, d]``."""
    config = configuration(method, problem, "unused", rounds=rounds, noise=noise, **settings)
    return trace(config)[0]


def distance(left: np.ndarray, right: np.ndarray) -> float:
    """Return the largest difference of a coordinate in any round."""
    assert left.shape == right.shape
    return float(np.abs(left - right).max())


@dataclass
class Affine(Minimax):
    """f_k = s_k (xᵀHx/2 + xᵀCy - yᵀGy/2) + aᵀx + bᵀy, the mean over the client's k + 1 rows (a, b).

    Args:
        common: set all s_k to 1, so that all clients have one Jacobian.
        at_saddle: start at the saddle point instead of a random point.
    """

    clients: int = 4
    common: bool = True
    at_saddle: bool = False

    def prepare(self, seed, data_dir=None):
        rng = generator(seed, "affine")
        self.H, self.C = (torch.from_numpy(rng.standard_normal(shape)) for shape in ((DX, DX), (DX, DY)))
        self.H = self.H @ self.H.T / DX + torch.eye(DX)
        self.G = torch.diag(torch.tensor([1.0, 2.0], dtype=torch.float64))
        self.rows = [torch.from_numpy(rng.standard_normal((k + 1, DX + DY))) for k in range(self.clients)]
        self.s = [1.0 if self.common else 0.5 + k for k in range(self.clients)]

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
