"""Games with binding sets of x and y: one for references, one that records the points of evaluation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from games import DX, DY, Game

from mpifed import Blocks, Minimax, Sets
from mpifed.core.sets import Simplex
from mpifed.core.streams import generator


def sets_of(set_x, set_y) -> Sets:
    """Return the sets of both blocks; ``None`` is the whole space."""
    return Sets(**{block: own for block, own in (("x", set_x), ("y", set_y)) if own is not None})


def within(cls, own):
    """Return a class of problems with a set for x."""

    class Inside(cls):
        def prepare(self, seed, data_dir=None):
            super().prepare(seed)
            self.sets = Sets(x=own)

    return Inside


@dataclass
class Bounded(Game):
    """The game with a set for either block."""

    set_x: object = None
    set_y: object = None

    def prepare(self, seed, data_dir=None):
        super().prepare(seed, data_dir)
        self.sets = sets_of(self.set_x, self.set_y)


@dataclass
class Watched(Minimax):
    """h_k ‖x‖²/2 + xᵀC_k y - ‖y‖²/2 + aᵀx + cᵀy, the mean over rows (a, c). ``seen`` has all points of
    evaluation.

    The linear part is large, so that a few steps of 0.01 leave every set of a size below 1. The
    start, 0 or the centre of a simplex, is in every set. ``bound = False`` removes the sets.
    """

    clients: int = 3
    set_x: object = None
    set_y: object = None
    bound: bool = True

    def prepare(self, seed, data_dir=None):
        self.seen = []
        self.sets = sets_of(self.set_x, self.set_y) if self.bound else Sets()
        rngs = [generator(seed, "watched", client) for client in range(self.clients)]
        self.C = [torch.from_numpy(rng.standard_normal((DX, DY))) for rng in rngs]
        centre = torch.tensor([-60.0, 90.0, 40.0, 70.0, -50.0], dtype=torch.float64)
        self.rows = [
            centre + torch.from_numpy(rng.standard_normal((5 + k, DX + DY))) for k, rng in enumerate(rngs)
        ]

    def variables(self):
        return Blocks(x={"x": (DX,)}, y={"y": (DY,)})

    def initial(self, rng):
        sizes = {"x": (DX, self.set_x), "y": (DY, self.set_y)}
        return {
            block: torch.full((d,), 1 / d if isinstance(own, Simplex) else 0.0, dtype=torch.float64)
            for block, (d, own) in sizes.items()
        }

    def client_data(self, k):
        n = len(self.rows[k])
        return self.rows[k], torch.full((n,), 1.0 + k, dtype=torch.float64), self.C[k].expand(n, DX, DY)

    def gradients(self, x, y, batch):
        self.seen.append((x.clone(), y.clone()))
        (a, c), h, C = batch[0].mean(1).split((DX, DY), dim=-1), batch[1][:, :1], batch[2][:, 0]
        x, y = x.expand(len(h), DX), y.expand(len(h), DY)
        return h * x + (C @ y.unsqueeze(-1)).squeeze(-1) + a, (C.mT @ x.unsqueeze(-1)).squeeze(-1) - y + c
