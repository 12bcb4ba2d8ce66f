"""A strongly monotone game that is not affine, whose saddle point Newton's method computes."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field

from mpifed.base.settings import problem_settings
from mpifed.core.problem import Batch, Minimax, Named
from mpifed.core.records import Blocks
from mpifed.core.streams import BYTES_PER_DRAW, Stream, generator
from mpifed.problems.constants import around, rotation

__all__ = ["SoftplusSaddle"]

#: Newton steps to the saddle point; the last ones are at the rounding of float64.
NEWTON_STEPS = 50
#: Least fraction of a Newton step; shorter ones occur only at the rounding of the residual.
SHORTEST = 1e-3


@problem_settings
class SoftplusSaddle(Minimax):
    """f_n(x, y) = mean_j s(a_njᵀx) + xᵀC_n y - mean_j s(b_njᵀy) + (μ/2)(‖x‖² - ‖y‖²) + u_nᵀx + v_nᵀy.

    Here s(r) = log(1 + eʳ). The problem is μ-strongly convex in x and μ-strongly concave in y for all data,
    and its Hessians depend on the point. The rows a_nj and b_nj are normal with norms of about 1 around a
    centre of the client. The mean of the C_n has singular values from ``coupling`` down to ``coupling`` /
    min(dx, dy), and that of the u_n and v_n is normal.
    """

    dx: int = Field(default=5, ge=1, description="dimension of x")
    dy: int = Field(default=5, ge=1, description="dimension of y")
    clients: int = Field(default=10, ge=1, description="number of clients")
    samples: int = Field(default=20, ge=1, description="number of pairs (a_nj, b_nj) per client")
    mu: float = Field(default=0.1, gt=0, description="strong convexity in x and strong concavity in y, μ")
    coupling: float = Field(default=1.0, ge=0, description="norm of the mean of the C_n")
    heterogeneity: float = Field(default=0.3, ge=0, description="heterogeneity of the clients")

    metric_names = ("error", "operator_norm")

    def footprint(self) -> int:
        per_client = self.samples * (self.dx + self.dy) + self.dx * self.dy
        return BYTES_PER_DRAW * self.clients * per_client

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Draw all N clients on every rank, as the solution needs: O(N · samples · (dx + dy)) memory."""
        rng, stream = generator(seed, "softplus"), Stream(seed, "softplus", np.arange(self.clients))
        k = min(self.dx, self.dy)
        columns = rotation(rng, self.dx)[:, :k] * np.linspace(self.coupling, 0, k, endpoint=False)
        mean = np.einsum("ij,kj->ik", columns, rotation(rng, self.dy)[:, :k])
        # A normal matrix of standard deviation σ has norm about σ (√dx + √dy).
        spread = self.heterogeneity * self.coupling / (np.sqrt(self.dx) + np.sqrt(self.dy))
        self._C = around(mean, spread, stream)
        self._u = around(rng.standard_normal(self.dx), self.heterogeneity, stream)
        self._v = around(rng.standard_normal(self.dy), self.heterogeneity, stream)
        self._a, self._b = self._rows(self.dx, stream), self._rows(self.dy, stream)
        self._solution = self._newton()

    def _rows(self, d: int, stream: Stream) -> np.ndarray:
        """Return rows ``[N, samples, d]`` around a centre of each client."""
        centres = self.heterogeneity * stream.normal(1, d)[:, 0]
        return (centres + stream.normal(self.samples, d)[:, 0]) / np.sqrt(d)

    def _newton(self) -> np.ndarray:
        """Return the zero of the mean operator, ``[dx + dy]``."""
        z = np.zeros(self.dx + self.dy)
        for _ in range(NEWTON_STEPS):
            value, jacobian = self.mean_operator(z)
            step = np.linalg.solve(jacobian, value)
            scale = 1.0  # far from the solution, a whole step can lead away from it
            while scale > SHORTEST and self._residual(z - scale * step) > np.linalg.norm(value):
                scale /= 2
            z = z - scale * step
        return z

    def _residual(self, z: np.ndarray) -> float:
        return float(np.linalg.norm(self.mean_operator(z)[0]))

    def mean_operator(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return V(z) = (∇_x f, -∇_y f) of the mean f and its Jacobian, ``[d]`` and ``[d, d]``, float64."""
        x, y = z[: self.dx], z[self.dx :]
        C, m = self._C.mean(axis=0), self.mu
        (gx, Hx), (gy, Hy) = _mean_softplus(self._a, x), _mean_softplus(self._b, y)
        value = np.concatenate(
            [gx + C @ y + m * x + self._u.mean(axis=0), gy - x @ C + m * y - self._v.mean(axis=0)]
        )
        return value, np.block([[Hx + m * np.eye(self.dx), C], [-C.T, Hy + m * np.eye(self.dy)]])

    def variables(self) -> Blocks:
        return Blocks(x={"x": (self.dx,)}, y={"y": (self.dy,)})

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        sizes = {"x": self.dx, "y": self.dy}
        return {block: torch.from_numpy(rng.standard_normal(d)) for block, d in sizes.items()}

    def client_rows(self, clients: np.ndarray) -> tuple[Batch, np.ndarray]:
        """Return a_nj ``[n, dx]``, b_nj ``[n, dy]`` and, in each row, C_n, u_n and v_n."""
        rows = (one[clients].reshape(-1, one.shape[-1]) for one in (self._a, self._b))
        fixed = (np.repeat(one[clients], self.samples, axis=0) for one in (self._C, self._u, self._v))
        return tuple(map(torch.from_numpy, (*rows, *fixed))), self.client_sizes(clients)

    def client_sizes(self, clients: np.ndarray) -> np.ndarray:
        return np.full_like(clients, self.samples)

    def gradients(self, x: torch.Tensor, y: torch.Tensor, batch: tuple) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the gradients of f_n, with means over the rows of the batch."""
        a, b, *constants = batch
        C, u, v = (one[:, 0] for one in constants)  # equal in all rows of a client
        gx = _mean_slope(a, x) + (C * y.unsqueeze(-2)).sum(-1) + self.mu * x + u
        gy = (C * x.unsqueeze(-1)).sum(-2) - _mean_slope(b, y) - self.mu * y + v
        return gx, gy

    def constants(self) -> dict[str, float]:
        """Return ``L``, a bound for every client and minibatch, and ``mu``.

        s'' ≤ 1/4, so that ‖a‖²/4 and ‖b‖²/4 bound the curvatures of a row.
        """
        curvature = max(float((rows**2).sum(axis=-1).max()) for rows in (self._a, self._b)) / 4
        return {
            "L": curvature + float(np.linalg.norm(self._C, 2, axis=(1, 2)).max()) + self.mu,
            "mu": self.mu,
        }

    def solution(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the saddle point (x*, y*), ``[dx]`` and ``[dy]`` float64."""
        return torch.from_numpy(self._solution).split((self.dx, self.dy))

    def metrics(self, x: Named, y: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """Return the distance ``error`` from the saddle point, and ``operator_norm`` = ‖V(z)‖ of the mean."""
        z = np.concatenate([one.cpu().double().numpy() for one in (x["x"], y["y"])])
        return {"error": float(np.linalg.norm(z - self._solution)), "operator_norm": self._residual(z)}


def _mean_slope(rows: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the gradient of mean_j s(rows_jᵀx), ``[C, d]``: s'(r) = σ(r) = exp(log σ(r))."""
    slopes = F.logsigmoid((rows * x.unsqueeze(-2)).sum(-1)).exp()
    return (rows * slopes.unsqueeze(-1)).mean(-2)


def _mean_softplus(rows: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradient and the Hessian of the mean of s(rᵀx) over the rows r of all clients."""
    rows = rows.reshape(-1, rows.shape[-1])
    slopes = (1 + np.tanh(rows @ x / 2)) / 2
    return slopes @ rows / len(rows), (rows * (slopes * (1 - slopes))[:, None]).T @ rows / len(rows)
