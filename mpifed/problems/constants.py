"""Constants of problems that are made from a seed: random rotations, clients spread around a mean, and what
theorems ask for."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpifed.core.proximal import L1Box, Zero
from mpifed.core.streams import Stream

__all__ = ["affine_constants", "around", "rotation"]


def rotation(rng: np.random.Generator, d: int) -> np.ndarray:
    """A dense random orthogonal matrix ``[d, d]``: the product of d reflections."""
    Q = np.eye(d)
    for _ in range(d):
        v = rng.standard_normal(d)
        Q -= np.multiply.outer((Q * v).sum(axis=1), 2 / (v * v).sum() * v)
    return Q


def around(mean: np.ndarray, scale: float, stream: Stream) -> np.ndarray:
    """One array a client, ``[N, *shape]``, normal with standard deviation ``scale``, shifted to average
    ``mean``."""
    if scale == 0:
        return np.broadcast_to(mean, (len(stream.clients), *mean.shape))  # no copy for every client
    deviations = stream.normal(*mean.shape)[:, 0]
    return mean + scale * (deviations - deviations.mean(axis=0))


def affine_constants(self: Any) -> dict[str, float]:
    """``L`` and ``sigma`` = 0 of an affine operator V(z) = Jz + c of which the instance knows J, c and z_0.

    Without φ also the radius ``D`` of err_D; on a box ``D``, the way from z_0 to the farthest corner, and
    ``G``, a bound on ‖V‖ there.
    """
    known = {"L": self.L, "sigma": 0.0}
    if isinstance(self.phi, Zero):
        return known | {"D": self.radius}
    if isinstance(self.phi, L1Box):
        corner, largest = self.phi.bound + abs(self._start), self.phi.bound * abs(self._J).sum(axis=1)
        return known | {
            "D": float(np.linalg.norm(corner)),
            "G": float(np.linalg.norm(largest + abs(self._c))),
        }
    return known
