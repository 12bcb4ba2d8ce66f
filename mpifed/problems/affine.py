"""Base classes of affine variational inequalities: the mean operator V(z) = Jz + c with J = (1/N) Σ_n J_n,
its exact metrics, and the coupling of x and y in bilinear games."""

from __future__ import annotations

import numpy as np
import torch

from mpifed.core.problem import Named, Operator
from mpifed.core.records import Blocks
from mpifed.core.sets import L1Box, Zero
from mpifed.problems.restricted_gap import maximize_on_ball, restricted_gap

__all__ = ["Affine", "Coupled", "flat"]


class Affine(Operator):
    """Exact metrics of a point from the mean operator; all vectors are float64 ``[d]``."""

    monotone = True

    def _fix(self, J: np.ndarray, c: np.ndarray, start: np.ndarray) -> None:
        self._J, self._c, self._start = J, c, start

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """z_0, the centre of the ball of err_D, which the seed determines in :meth:`prepare`."""
        return {"z": torch.from_numpy(self._start)}

    def client_size(self, client: int) -> int:
        return 1

    def constants(self) -> dict[str, float]:
        """``L`` and ``sigma`` = 0 of an affine operator.

        For φ = 0 also the radius ``D`` of err_D; on a box ``D``, the distance from z_0 to the farthest
        corner, and ``G``, a bound on ‖V‖ on the box.
        """
        known = {"L": self.L, "sigma": 0.0}
        if isinstance(self.phi, Zero):
            return known | {"D": self.radius}
        if isinstance(self.phi, L1Box):
            corner, largest = self.phi.bound + abs(self._start), self.phi.bound * abs(self._J).sum(axis=1)
            G = np.linalg.norm(largest + abs(self._c))
            return known | {"D": float(np.linalg.norm(corner)), "G": float(G)}
        return known

    def mean_operator(self, z: np.ndarray) -> np.ndarray:
        """V(z) = Jz + c, without φ."""
        return self._J @ z + self._c

    def residual(self, z: np.ndarray) -> float:
        """‖z - prox_φ(z - V(z))‖, which is ‖V(z)‖ for φ = 0; it vanishes at solutions only."""
        V = self.mean_operator(z)
        if isinstance(self.phi, Zero):
            return float(np.linalg.norm(V))
        return float(np.linalg.norm(z - self.phi(torch.from_numpy(z - V), 1.0).numpy()))

    def err_D(self, z: np.ndarray) -> float:
        """max over ‖w - z_0‖ ≤ D of ⟨V(w), z - w⟩ (Wang & Kale n.d., section 3, on a ball), exact; negative
        for some z off the ball.

        With w = z_0 + v and u = z - z_0 it is ⟨V(z_0), u⟩ plus the maximum of ⟨Jᵀu - V(z_0), v⟩ - vᵀJv.
        With φ, see :meth:`composite_err_D`.
        """
        u, V = z - self._start, self.mean_operator(self._start)
        return float(V @ u) + maximize_on_ball(-(self._J + self._J.T), self._J.T @ u - V, self.radius)[0]

    def composite_err_D(self, z: np.ndarray) -> tuple[float, float]:
        """Certified bounds of the max over ‖w - z_0‖ ≤ D of ⟨V(w), z - w⟩ + φ(z) - φ(w) (Wang & Kale n.d.,
        section 5, on a ball), from below and from above; they are equal for bilinear games.

        Raises:
            ValueError: no point of φ's set is in the ball.
        """
        return restricted_gap(self._J, self._c, self.phi, z, self._start, self.radius)

    def _know(self, solution: np.ndarray) -> None:
        """Store a solution, and for φ = 0 the directions in which it is unique."""
        self._solution = solution
        _, s, rows = np.linalg.svd(self._J)
        self._unique = (
            rows[s > 1e-12 * s.max(initial=0.0)] if isinstance(self.phi, Zero) else np.eye(len(solution))
        )

    def solution(self) -> torch.Tensor:
        """A solution z*, ``[d]`` float64."""
        return torch.from_numpy(self._solution)

    def distance(self, z: np.ndarray) -> float:
        """Distance to the set of solutions for φ = 0, to z* otherwise."""
        return float(np.linalg.norm(self._unique @ (z - self._solution)))

    def metrics(self, z: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """``err_D``, ``distance`` and ``residual``. With φ, ``err_D`` is the bound from above, and
        ``err_D_slack`` its distance from the bound from below."""
        point = flat(z)
        if isinstance(self.phi, Zero):
            figures = {"err_D": self.err_D(point)}
        else:
            low, high = self.composite_err_D(point)
            figures = {"err_D": high, "err_D_slack": high - low if np.isfinite(high) else 0.0}
        return figures | {"distance": self.distance(point), "residual": self.residual(point)}


def flat(z: Named) -> np.ndarray:
    return torch.cat([part.reshape(-1) for part in z.values()]).cpu().double().numpy()


class Coupled(Affine):
    """z = (x, y), V_n = (C_n y, -C_nᵀ x) + offset_n: the base class of bilinear games."""

    def _couple(self, C: np.ndarray, offsets: np.ndarray, start: np.ndarray) -> None:
        self._C, self._offsets, mean = C, offsets, C.mean(axis=0)
        J = np.block([[np.zeros((self.dx, self.dx)), mean], [-mean.T, np.zeros((self.dy, self.dy))]])
        self._fix(J, offsets.mean(axis=0), start)

    @property
    def L(self) -> float:
        """Largest Lipschitz constant of a V_n: the largest singular value of a coupling."""
        return float(max(np.linalg.norm(C, 2) for C in self._C))

    def variables(self) -> Blocks:
        return Blocks(z={"x": (self.dx,), "y": (self.dy,)})

    def client_data(self, client: int) -> tuple[torch.Tensor, ...]:
        """One row: C_n ``[1, dx, dy]`` and the constant part of V_n ``[1, dx + dy]``."""
        return torch.from_numpy(self._C[client][None].copy()), torch.from_numpy(
            self._offsets[client][None].copy()
        )

    def operator(self, z: torch.Tensor, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        C, offset = batch[0][:, 0], batch[1][:, 0]  # all rows of a batch are the client's only one
        x, y = z.unsqueeze(-1).split((self.dx, self.dy), dim=-2)
        return torch.cat([C @ y, -(C.mT @ x)], dim=-2).squeeze(-1) + offset
