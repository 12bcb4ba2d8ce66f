"""Additive gradient noise, an option of every problem.

``[oracle] noise = { name = "student_t", nu = 1.5, scale = 0.1 }`` selects it. The noise belongs to the
sample ξ: evaluating the same ξ at two points adds the same vector to both gradients, as in ∇f(z; ξ) = ∇f(z) +
ξ. Recursive estimators therefore see the difference of exact gradients. Coordinates are independent and
symmetric about 0.

Heavy tails: Zhang & Gao assume a bounded moment E‖∇f(z; ξ) - ∇f(z)‖^s ≤ σ^s for an s in (1, 2]. A noise of
tail index a has moments of every order s < a and none of order a or above, so it satisfies the assumption for
s < a. The tail index is ``nu`` of Student's t, ``alpha`` of the stable laws (below 2), ``tail`` of Pareto. At
or below 2 the variance is infinite; at or below 1 there is no mean, and no method here is meant for that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from mpifed.base.settings import Section, choice, hyperparameters
from mpifed.core.streams import Stream

__all__ = ["Gaussian", "StudentT", "AlphaStable", "Pareto", "NOISES", "Noise"]


@hyperparameters
class Gaussian:
    """Normal noise; all moments are finite."""

    scale: float = Field(gt=0, description="standard deviation of every coordinate")

    def __call__(self, stream: Stream, size: int) -> np.ndarray:
        return self.scale * stream.normal(size)


@hyperparameters
class StudentT:
    """Student's t with ν degrees of freedom, by inversion: moments of order s < ν."""

    nu: float = Field(gt=0, description="degrees of freedom ν: the tail index")
    scale: float = Field(default=1.0, gt=0, description="multiplies the standard law")

    def __call__(self, stream: Stream, size: int) -> np.ndarray:
        from scipy.special import stdtrit  # here: it takes a third of a second

        return self.scale * stdtrit(self.nu, stream.uniform(size))


@hyperparameters
class AlphaStable:
    """Symmetric α-stable noise, characteristic function exp(-|scale · w|^α): moments of order s < α.

    By the method of Chambers, Mallows and Stuck (1976). α = 2 is normal with variance 2 scale², α = 1 is
    Cauchy.
    """

    alpha: float = Field(gt=0, le=2, description="stability α: the tail index (below 2)")
    scale: float = Field(default=1.0, gt=0, description="scale of the law")

    def __call__(self, stream: Stream, size: int) -> np.ndarray:
        angle = np.pi * (stream.uniform(size) - 0.5)
        waiting = -np.log(stream.uniform(size))
        a = self.alpha
        tail = (np.cos((1 - a) * angle) / waiting) ** ((1 - a) / a)
        return self.scale * np.sin(a * angle) / np.cos(angle) ** (1 / a) * tail


@hyperparameters
class Pareto:
    """Pareto's law with a random sign: moments of order s < tail.

    P(|noise| > scale · v) = v^(-tail) for v ≥ 1.
    """

    tail: float = Field(gt=0, description="tail index")
    scale: float = Field(default=1.0, gt=0, description="smallest absolute value")

    def __call__(self, stream: Stream, size: int) -> np.ndarray:
        uniform = 2 * stream.uniform(size) - 1
        return self.scale * np.sign(uniform) * np.abs(uniform) ** (-1 / self.tail)


NOISES = {"gaussian": Gaussian, "student_t": StudentT, "alpha_stable": AlphaStable, "pareto": Pareto}

#: A noise by table or instance.
Noise: Any = choice("noise", NOISES)


class OracleOptions(Section):
    """[oracle]: the minibatches and the noise of stochastic gradients."""

    batch_size: int = Field(
        32,
        ge=0,
        description="number of rows in a sample ξ; 0 uses all data of the client (exact local gradients)",
    )
    noise: Noise | None = Field(
        None, description='additive gradient noise, e.g. { name = "gaussian", scale = 0.1 }'
    )
