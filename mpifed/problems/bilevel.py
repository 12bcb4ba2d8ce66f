"""A quadratic bilevel problem with known solution."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field

from mpifed.base.settings import problem_settings
from mpifed.core.problem import Batch, Bilevel, Named
from mpifed.core.records import Blocks
from mpifed.core.streams import generator

__all__ = ["QuadraticBilevel"]


@problem_settings
class QuadraticBilevel(Bilevel):
    """f_n = (y - d_n)ᵀQ_n(y - d_n)/2 + xᵀP_n x/2 + e_nᵀx, g_n = yᵀA_n y/2 - yᵀ(B_n x + c_n).

    The matrices A_n, P_n and Q_n are I plus random positive semidefinite matrices with norms of about 1;
    those of the clients differ by the heterogeneity h. The entries of B_n √dx, c_n, d_n and e_n are normal,
    with standard deviation h around their means. With means over the clients, y*(x) = A⁻¹(Bx + c).
    """

    dx: int = Field(default=4, ge=1, description="dimension of x")
    dy: int = Field(default=5, ge=1, description="dimension of y")
    clients: int = Field(default=10, ge=1, description="number of clients")
    heterogeneity: float = Field(default=0.5, ge=0, description="heterogeneity h of the clients")

    single_row = True
    metric_names = ("error", "grad_phi", "lower_error")

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Draw all N clients on every rank, as the solution needs: O(N · (dx + dy)²) memory."""
        rng, N, h = generator(seed, "quadratic bilevel"), self.clients, self.heterogeneity

        def positive(d: int) -> np.ndarray:
            common, own = rng.standard_normal((d, d)), h * rng.standard_normal((N, d, d))
            return np.eye(d) + (common @ common.T + own @ own.swapaxes(1, 2)) / (4 * d)

        def around(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape) + h * rng.standard_normal((N, *shape))

        self._A, self._P, self._Q = positive(self.dy), positive(self.dx), positive(self.dy)
        self._B, self._c, self._d = around(self.dy, self.dx) / self.dx**0.5, around(self.dy), around(self.dy)
        self._e = around(self.dx)
        means = [part.mean(axis=0) for part in (self._A, self._B, self._c, self._P, self._Q, self._e)]
        self._means = (*means, np.einsum("nij,nj->i", self._Q, self._d) / N)
        A, B, c, P, Q, e, q = self._means
        M = np.linalg.solve(A, B)
        x = np.linalg.solve(P + M.T @ Q @ M, -e - M.T @ (Q @ np.linalg.solve(A, c) - q))
        self._point = x, np.linalg.solve(A, B @ x + c)

    def variables(self) -> Blocks:
        return Blocks(x={"x": (self.dx,)}, y={"y": (self.dy,)})

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        sizes = {"x": self.dx, "y": self.dy}
        return {block: torch.from_numpy(rng.standard_normal(size)) for block, size in sizes.items()}

    def client_rows(self, clients: np.ndarray) -> tuple[Batch, np.ndarray]:
        """Return a row per client: A ``[C, dy, dy]``, B, c, P, Q, d and e."""
        parts = (self._A, self._B, self._c, self._P, self._Q, self._d, self._e)
        return tuple(torch.from_numpy(part[clients]) for part in parts), self.client_sizes(clients)

    def upper(self, x: Named, y: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        P, Q, d, e = (column[0] for column in batch[3:])
        shifted = y["y"] - d
        return (shifted @ (Q @ shifted) + x["x"] @ (P @ x["x"])) / 2 + e @ x["x"]

    def lower(self, x: Named, y: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        A, B, c = (column[0] for column in batch[:3])
        return y["y"] @ (A @ y["y"]) / 2 - y["y"] @ (B @ x["x"] + c)

    def y_star(self, x: np.ndarray) -> np.ndarray:
        """Return y*(x) = A⁻¹(Bx + c), ``[dy]`` float64."""
        A, B, c, *_ = self._means
        return np.linalg.solve(A, B @ x + c)

    def hypergradient(self, x: np.ndarray) -> np.ndarray:
        """Return ∇Φ(x) = Px + e + BᵀA⁻¹(Q y*(x) - q), ``[dx]``, where q is the mean of the Q_n d_n."""
        A, B, _, P, Q, e, q = self._means
        return P @ x + e + B.T @ np.linalg.solve(A, Q @ self.y_star(x) - q)

    def solution(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the minimiser x* of Φ(x) = f(x, y*(x)), and y*(x*), ``[dx]`` and ``[dy]`` float64."""
        x, y = map(torch.from_numpy, self._point)
        return x, y

    def metrics(self, x: Named, y: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """Return the distance ``error`` of x from x*, ``grad_phi`` = ‖∇Φ(x)‖, and ``lower_error``, the
        distance of y from y*(x)."""
        point, other = x["x"].double().cpu().numpy(), y["y"].double().cpu().numpy()
        return {
            "error": float(np.linalg.norm(point - self._point[0])),
            "grad_phi": float(np.linalg.norm(self.hypergradient(point))),
            "lower_error": float(np.linalg.norm(other - self.y_star(point))),
        }
