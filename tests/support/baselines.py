"""The method in ``tests/plugins``, gradients for references, and problems with exact solutions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from games import DX, Game, reference_gradient

from mpifed import Blocks, Minimax
from mpifed.base.settings import build
from mpifed.config.plugins import find_class
from mpifed.core.problem import Minimisation
from mpifed.core.streams import generator

PLUGINS = Path(__file__).parents[1] / "plugins"
#: The y at which :class:`Half` is the game.
FIXED = torch.tensor([0.5, -0.3], dtype=torch.float64)
#: Upper bound of the samples that a method here takes per round.
MANY = 64
#: Rows of a large batch.
LARGE = 4


def plugin(name: str, **settings):
    """Return the method in the file ``name``, found in the same way as by a job."""
    return build(find_class(f"{PLUGINS / name}.py:FedAvg", "algorithm"), settings, name)


def gradient_at(game: Game, seed: int, batch_size: int, noise):
    """Return ``grad(k, x, y, (r, j))`` for the references.

    With j ``None``, all data are used without noise; with ``(r, j, "large")``, a minibatch of :data:`LARGE`
    rows.
    """
    some, large = (reference_gradient(game, seed, MANY, size, noise) for size in (batch_size, LARGE))
    exact = reference_gradient(game, seed, MANY, 0, None)

    def grad(k, x, y, key):
        r, j, *rest = key
        return exact(k, x, y, 1) if j is None else (large if rest else some)(k, x, y, (r - 1) * MANY + j + 1)

    return grad


@dataclass
class Half(Minimisation):
    """The game at the fixed y ``FIXED``, a minimisation."""

    clients: int = 3

    def prepare(self, seed, data_dir=None):
        self.game = Game(clients=self.clients)
        self.game.prepare(seed)

    def variables(self):
        return Blocks(x=self.game.variables()["x"])

    def initial(self, rng):
        return {"x": self.game.initial(rng)["x"]}

    def client_data(self, k):
        return self.game.client_data(k)

    def loss(self, x, batch):
        return self.game.loss(x, {"y": FIXED}, batch)

    def metrics(self, x, predictions):
        return {"norm": float(torch.cat([x["u"], x["v"]]).norm())}


@dataclass
class Beside(Half, Minimax):
    """The same minimisation with an added, uncoupled y: -½‖y - 1‖²."""

    layouts = (("x", "y"),)

    def variables(self):
        return self.game.variables()

    def loss(self, x, y, batch):
        return Half.loss(self, x, batch) - 0.5 * ((y["y"] - 1) ** 2).sum()

    def metrics(self, x, y, predictions):
        return {}


@dataclass
class Quadratic(Minimisation):
    """½ xᵀA_k x - b_kᵀx with A_k ≥ I; client k has 1 + k mod 5 equal rows, so minibatches are exact."""

    clients: int = 20

    def prepare(self, seed, data_dir=None):
        self.A, self.b = [], []
        for k in range(self.clients):
            rng = generator(seed, "quadratic", k)
            S = rng.standard_normal((DX, DX))
            self.A.append(torch.from_numpy(S @ S.T / DX) + torch.eye(DX, dtype=torch.float64))
            self.b.append(torch.from_numpy(rng.standard_normal(DX)))

    def variables(self):
        return Blocks(x={"x": (DX,)})

    def sizes(self):
        return [1 + k % 5 for k in range(self.clients)]

    def client_data(self, k):
        rows = self.sizes()[k]
        return self.A[k].expand(rows, DX, DX), self.b[k].expand(rows, DX)

    def gradients(self, x, batch):
        A, b = (column[:, 0] for column in batch)
        return (A @ x.expand(len(A), DX).unsqueeze(-1)).squeeze(-1) - b

    def solution(self, weights) -> torch.Tensor:
        """Where the weighted mean of the gradients is 0."""
        A, b = (sum(w * part for w, part in zip(weights, parts)) for parts in (self.A, self.b))
        return torch.linalg.solve(A, b)


@dataclass
class Monotone(Quadratic, Minimax):
    """The field J_k z - b_k of a quadratic in x, two numbers, and y, one; a skew part couples them."""

    layouts = (("x", "y"),)
    turn = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0], [-1.0, 1.0, 0.0]], dtype=torch.float64)

    def prepare(self, seed, data_dir=None):
        super().prepare(seed)
        mask = torch.block_diag(torch.ones(2, 2), torch.ones(1, 1))
        self.A = [A * mask + (1 + k % 3) * self.turn for k, A in enumerate(self.A)]

    def variables(self):
        return Blocks(x={"x": (2,)}, y={"y": (1,)})

    def gradients(self, x, y, batch):
        count = len(batch[0])
        z = torch.cat([x.expand(count, 2), y.expand(count, 1)], dim=1)
        field = super().gradients(z, batch)
        return field[:, :2], -field[:, 2:]
