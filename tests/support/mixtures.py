"""A mixture of the clients' losses with minibatches and its losses and gradients for the references, and the
quadratic mixture without the declaration that protects it."""

from __future__ import annotations

from dataclasses import dataclass

import drawn
import torch
from games import DX

from mpifed import Blocks, Minimax, Sets
from mpifed.core.sets import Simplex
from mpifed.core.streams import generator
from mpifed.problems import QuadraticMixture

#: Upper bound of the samples that a method takes per round.
MANY = 64


@dataclass
class LogCosh(Minimax):
    """f_k(x, λ) = N λ_k ℓ_k(x), ℓ_k(x; ξ) = ‖x‖²/4 + mean over the rows (a, b) of ξ of log cosh(aᵀx - b).

    Clients have 5 + k rows; ``set_x`` bounds x.
    """

    clients: int = 5
    set_x: object = None
    separate_coordinates = mixture = True

    def prepare(self, seed, data_dir=None):
        self.sets = Sets(y=Simplex(), **({"x": self.set_x} if self.set_x else {}))
        rngs = [generator(seed, "log cosh", client) for client in range(self.clients)]
        # Clients with larger targets have larger losses.
        self.rows = [
            torch.from_numpy(rng.standard_normal((5 + k, DX + 1)) + k / 4) for k, rng in enumerate(rngs)
        ]

    def variables(self):
        return Blocks(x={"x": (DX,)}, y={"weights": (self.clients,)})

    def initial(self, rng):
        weights = torch.full((self.clients,), 1 / self.clients, dtype=torch.float64)
        return {"x": torch.from_numpy(rng.standard_normal(DX)), "y": weights}

    def client_data(self, k):
        return self.rows[k], torch.full((len(self.rows[k]),), k)

    def loss(self, x, y, batch):
        rows, number = batch
        loss = (x["x"] @ x["x"]) / 4 + torch.log(torch.cosh(rows[:, :DX] @ x["x"] - rows[:, DX])).mean()
        return self.clients * y["weights"][number[:1]].sum() * loss

    def metrics(self, x, y, predictions):
        return {"largest": float(y["weights"].max())}


def losses_of(problem: LogCosh, seed: int, batch_size: int):
    """Return ``loss(k, x, (r, j))`` and ``slope(k, x, (r, j))``: ℓ_k and ∇ℓ_k on sample j of round r."""

    def rows_at(k, key):
        r, j = key
        rows = problem.rows[k]
        return rows[drawn.rows(seed, k, r, MANY + 1, len(rows), batch_size)[j]].split((DX, 1), dim=1)

    def loss(k, x, key):
        a, b = rows_at(k, key)
        return (x @ x) / 4 + torch.log(torch.cosh(a @ x - b[:, 0])).mean()

    def slope(k, x, key):
        a, b = rows_at(k, key)
        return x / 2 + (torch.tanh(a @ x - b[:, 0])[:, None] * a).mean(0)

    return loss, slope


class Undeclared(QuadraticMixture):
    """The quadratic mixture, for methods that project at the clients."""

    separate_coordinates = False
