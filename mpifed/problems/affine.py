"""Base classes of affine variational inequalities and bilinear games.

The mean operator is V(z) = Jz + c with J = (1/N) Σ_n J_n. Its error metrics are computed exactly.
"""

from __future__ import annotations

import numpy as np
import torch

from mpifed.core.problem import Batch, Named, Operator
from mpifed.core.records import Blocks
from mpifed.core.sets import L1Box, Zero
from mpifed.problems.restricted_gap import maximize_on_ball, restricted_gap

__all__ = ["Affine", "Coupled", "flat"]


class Affine(Operator):
    """Base class of affine operators, with exact metrics of the mean operator.

    All vectors are float64 ``[d]``. In :meth:`prepare`, a subclass calls ``_set_mean_operator`` and, if a
    solution is known, ``_set_solution``.
    """

    monotone = single_row = True
    metric_names = ("err_D", "err_D_slack", "distance", "residual")

    def _set_mean_operator(self, J: np.ndarray, c: np.ndarray, start: np.ndarray) -> None:
        self._J, self._c, self._start = J, c, start

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """Return z_0, the centre of the ball of :meth:`err_D`. It is drawn in :meth:`prepare`."""
        return {"z": torch.from_numpy(self._start)}

    def constants(self) -> dict[str, float]:
        """Return the known constants: always ``L`` and ``sigma`` = 0.

        For φ = 0, ``D`` is the radius of :meth:`err_D`. On a box, ``D`` is the distance from z_0 to the
        farthest corner, and ``G`` is a bound on ‖V‖ on the box.
        """
        known = {"L": self.L, "sigma": 0.0}
        if isinstance(self.phi, Zero):
            return known | {"D": self.radius}
        if isinstance(self.phi, L1Box):
            corner, max_Jz = self.phi.bound + abs(self._start), self.phi.bound * abs(self._J).sum(axis=1)
            G = np.linalg.norm(max_Jz + abs(self._c))
            return known | {"D": float(np.linalg.norm(corner)), "G": float(G)}
        return known

    def mean_operator(self, z: np.ndarray) -> np.ndarray:
        """Return V(z) = Jz + c, without φ."""
        return self._J @ z + self._c

    def residual(self, z: np.ndarray) -> float:
        """Return ‖z - prox_φ(z - V(z))‖, which is zero at solutions only. For φ = 0 it is ‖V(z)‖."""
        V = self.mean_operator(z)
        if isinstance(self.phi, Zero):
            return float(np.linalg.norm(V))
        return float(np.linalg.norm(z - self.phi(torch.from_numpy(z - V), 1.0).numpy()))

    def err_D(self, z: np.ndarray) -> float:
        """Return max over ‖w - z_0‖ ≤ D of ⟨V(w), z - w⟩ (Wang & Kale n.d., section 3, on a ball), exactly.

        The value can be negative if z is outside the ball. With w = z_0 + v and u = z - z_0 it is ⟨V(z_0), u⟩
        plus the maximum of ⟨Jᵀu - V(z_0), v⟩ - vᵀJv. See :meth:`composite_err_D` for φ ≠ 0.
        """
        u, V = z - self._start, self.mean_operator(self._start)
        return float(V @ u) + maximize_on_ball(-(self._J + self._J.T), self._J.T @ u - V, self.radius)[0]

    def composite_err_D(self, z: np.ndarray) -> tuple[float, float]:
        """Return certified bounds of max over ‖w - z_0‖ ≤ D of ⟨V(w), z - w⟩ + φ(z) - φ(w).

        This is the gap of Wang & Kale n.d., section 5, on a ball.

        Returns:
            The lower and the upper bound, which are equal for bilinear games.

        Raises:
            ValueError: φ is infinite on the whole ball.
        """
        return restricted_gap(self._J, self._c, self.phi, z, self._start, self.radius)

    def _set_solution(self, solution: np.ndarray) -> None:
        """Store a solution and the directions in which it is unique (all directions for φ ≠ 0)."""
        self._solution = solution
        _, s, rows = np.linalg.svd(self._J)
        self._unique = (
            rows[s > 1e-12 * s.max(initial=0.0)] if isinstance(self.phi, Zero) else np.eye(len(solution))
        )

    def solution(self) -> torch.Tensor:
        """Return a solution z*, ``[d]`` float64."""
        return torch.from_numpy(self._solution)

    def distance(self, z: np.ndarray) -> float:
        """Return the distance to the solution set for φ = 0, and to z* otherwise."""
        return float(np.linalg.norm(self._unique @ (z - self._solution)))

    def metrics(self, z: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """Return ``err_D``, ``distance`` and ``residual``.

        For φ ≠ 0, ``err_D`` is the upper bound of :meth:`composite_err_D`, and ``err_D_slack`` is the upper
        bound minus the lower bound, or 0 if they are infinite.
        """
        point = flat(z)
        if isinstance(self.phi, Zero):
            errors = {"err_D": self.err_D(point)}
        else:
            low, high = self.composite_err_D(point)
            errors = {"err_D": high, "err_D_slack": high - low if np.isfinite(high) else 0.0}
        return errors | {"distance": self.distance(point), "residual": self.residual(point)}


def flat(z: Named) -> np.ndarray:
    """Return the parameters of a block as one float64 vector ``[d]``."""
    return torch.cat([part.reshape(-1) for part in z.values()]).cpu().double().numpy()


class Coupled(Affine):
    """Base class of bilinear games: z = (x, y) and V_n(z) = (C_n y, -C_nᵀ x) + offset_n."""

    def _set_couplings(self, C: np.ndarray, offsets: np.ndarray, start: np.ndarray) -> None:
        self._C, self._offsets, mean = C, offsets, C.mean(axis=0)
        J = np.block([[np.zeros((self.dx, self.dx)), mean], [-mean.T, np.zeros((self.dy, self.dy))]])
        self._set_mean_operator(J, offsets.mean(axis=0), start)

    @property
    def L(self) -> float:
        """Largest Lipschitz constant of the V_n: the largest singular value of the C_n."""
        return float(max(np.linalg.norm(C, 2) for C in self._C))

    def variables(self) -> Blocks:
        return Blocks(z={"x": (self.dx,), "y": (self.dy,)})

    def client_rows(self, clients: np.ndarray) -> tuple[Batch, np.ndarray]:
        """Return a row per client: C_n ``[C, dx, dy]`` and offset_n ``[C, dx + dy]``."""
        columns = tuple(torch.from_numpy(one[clients]) for one in (self._C, self._offsets))
        return columns, self.client_sizes(clients)

    def operator(self, z: torch.Tensor, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        C, offset = batch[0][:, 0], batch[1][:, 0]
        x, y = z.unsqueeze(-1).split((self.dx, self.dy), dim=-2)
        return torch.cat([C @ y, -(C.mT @ x)], dim=-2).squeeze(-1) + offset
