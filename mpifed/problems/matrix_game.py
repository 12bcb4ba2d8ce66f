"""Zero-sum matrix games in mixed strategies, for entropic mirror maps."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import Field

from mpifed.base.settings import problem_settings
from mpifed.core.problem import Named
from mpifed.core.sets import Indicator, Separable, Simplex
from mpifed.core.streams import BYTES_PER_DRAW, Stream, generator
from mpifed.problems.affine import Coupled, flat
from mpifed.problems.constants import around

__all__ = ["MatrixGame"]


@problem_settings
class MatrixGame(Coupled):
    """min over x, max over y of the mean of xᵀA_n y, where x and y are in simplexes (mixed strategies).

    Entries of the mean A are uniform in (-1, 1), and those of the A_n are normal around them. φ is the
    indicator function of the simplexes. Dual methods can use the mirror maps "euclidean", "entropy" and
    "blockwise".
    """

    dx: int = Field(default=20, ge=1, description="number of pure strategies of x")
    dy: int = Field(default=20, ge=1, description="number of pure strategies of y")
    clients: int = Field(default=10, ge=1, description="number of clients")
    heterogeneity: float = Field(default=0.0, ge=0, description="standard deviation of the entries of A_n")
    start: Literal["uniform", "random"] = Field(
        default="uniform", description="starting point: uniform strategies, or uniform in the simplexes"
    )

    source = "Juditsky, Nemirovski & Tauvel 2011"
    cites = ("juditsky2011mirrorprox",)
    metric_names = ("gap", "residual")

    @property
    def phi(self) -> Separable:
        """The indicator function of the two simplexes."""
        return Separable({"x": Indicator(Simplex()), "y": Indicator(Simplex())}, (self.dx, self.dy))

    def footprint(self) -> int:
        per_client = (
            8 * (self.dx + self.dy) + (BYTES_PER_DRAW if self.heterogeneity else 0) * self.dx * self.dy
        )
        return self.clients * per_client + 16 * (self.dx + self.dy) ** 2

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Draw all N clients on every rank, as the solution needs: O(N · dx dy) memory."""
        rng, stream = generator(seed, "matrix game"), Stream(seed, "matrix game", np.arange(self.clients))
        A = rng.uniform(-1, 1, (self.dx, self.dy))
        lengths = [rng.exponential(size=size) for size in (self.dx, self.dy)]
        if self.start == "uniform":
            lengths = [np.ones_like(length) for length in lengths]
        start = np.concatenate([length / length.sum() for length in lengths])
        offsets = np.zeros((self.clients, self.dx + self.dy))
        self._set_couplings(around(A, self.heterogeneity, stream), offsets, start)

    @property
    def largest(self) -> float:
        """The largest absolute payoff of a client.

        It is the largest Lipschitz constant of the V_n from the norm (‖x‖₁² + ‖y‖₁²)^½, in which the entropy
        is 1-strongly convex, to its dual norm.
        """
        return float(np.abs(self._C).max())

    def gap(self, z: np.ndarray) -> float:
        """Return the duality gap max_j (Aᵀx)_j - min_i (Ay)_i of z = (x, y), which is 0 at solutions."""
        V = self.mean_operator(z)  # (Ay, -Aᵀx)
        return float(-V[self.dx :].min() - V[: self.dx].min())

    def metrics(self, z: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """Return ``gap`` and ``residual``."""
        point = flat(z)
        return {"gap": self.gap(point), "residual": self.residual(point)}
