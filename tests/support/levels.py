"""A small bilevel problem that is not quadratic, and its stochastic derivatives for the references.

As in ``games``, the references get analytic values on the package's samples of the same addresses.
"""

from __future__ import annotations

from dataclasses import dataclass

import drawn
import torch

from mpifed import Bilevel, Blocks
from mpifed.core.streams import generator

DX, DY = 3, 2


@dataclass
class Levels(Bilevel):
    """Means over the rows (a, b, t): g_k = s(bᵀy - aᵀx) + ‖y‖² with s(r) = r²/2 + cos(r)/2, and f_k =
    (bᵀy - t)²/2 + cos(aᵀx) + ‖x‖²/2."""

    clients: int = 3

    def prepare(self, seed, data_dir=None):
        draws = [generator(seed, "levels", client) for client in range(self.clients)]
        self.rows = [
            torch.from_numpy(rng.standard_normal((5 + k, DX + DY + 1))) for k, rng in enumerate(draws)
        ]

    def variables(self):
        return Blocks(x={"a": (DX - 1,), "b": (1,)}, y={"y": (DY,)})

    def initial(self, rng):
        return {
            "x": torch.from_numpy(rng.standard_normal(DX)),
            "y": torch.from_numpy(rng.standard_normal(DY)),
        }

    def client_data(self, k):
        return (self.rows[k],)

    def upper(self, x, y, batch):
        a, b, t = batch[0].split((DX, DY, 1), dim=1)
        x = torch.cat([x["a"], x["b"]])
        return ((b @ y["y"] - t[:, 0]) ** 2 / 2 + torch.cos(a @ x)).mean() + (x**2).sum() / 2

    def lower(self, x, y, batch):
        a, b, _ = batch[0].split((DX, DY, 1), dim=1)
        r = b @ y["y"] - a @ torch.cat([x["a"], x["b"]])
        return (r**2 / 2 + torch.cos(r) / 2).mean() + (y["y"] ** 2).sum()

    def metrics(self, x, y, predictions):
        return {"norm": float(torch.cat([x["a"], x["b"]]).norm())}


def levels_at(problem: Levels, seed: int, batch_size: int, noise, count: int = 64):
    """Return ``upper``, ``lower`` and ``products`` for the references, on sample j < ``count`` of round r."""

    def sample(k, key):
        (r, j), rows = key, problem.rows[k]
        if batch_size:
            rows = rows[drawn.rows(seed, k, r, count, len(rows), batch_size)[j]]
        extra = torch.zeros(2 * DX + 3 * DY, dtype=torch.float64)
        if noise is not None:
            extra = torch.from_numpy(drawn.noise(noise, seed, k, r, count, len(extra))[j])
        return rows[:, :DX], rows[:, DX:-1], rows[:, -1], extra.split((DX, DY, DY, DX, DY))

    def upper(k, x, y, key):
        a, b, t, extra = sample(k, key)
        gx = x - (torch.sin(a @ x)[:, None] * a).mean(0)
        return gx + extra[0], ((b @ y - t)[:, None] * b).mean(0) + extra[1]

    def lower(k, x, y, key):
        a, b, _, extra = sample(k, key)
        r = b @ y - a @ x
        return ((r - torch.sin(r) / 2)[:, None] * b).mean(0) + 2 * y + extra[2]

    def products(k, x, y, v, key):
        a, b, _, extra = sample(k, key)
        r = b @ y - a @ x
        curvature = (1 - torch.cos(r) / 2) * (b @ v)
        return (
            -(curvature[:, None] * a).mean(0) + extra[3],
            (curvature[:, None] * b).mean(0) + 2 * v + extra[4],
        )

    return upper, lower, products
