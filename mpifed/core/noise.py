"""Additive gradient noise, which can be added to every problem.

``[oracle] noise = { name = "student_t", nu = 1.5, scale = 0.1 }`` selects it. The noise is part of the sample
ξ: at two points, the same ξ adds the same vector to both gradients, as in ∇f(z; ξ) = ∇f(z) + ξ. It therefore
cancels in the differences of recursive estimators. Coordinates are independent and symmetric about 0.

Heavy tails: Zhang & Gao assume a bounded moment E‖∇f(z; ξ) - ∇f(z)‖^s ≤ σ^s for an s in (1, 2]. Noise with
tail index a satisfies the assumption for s < a, since only moments of these orders are finite. The tail index
is ``nu`` of Student's t, ``alpha`` of the stable distributions (below 2), ``tail`` of Pareto. For an index of
at most 2 the variance is infinite; for an index of at most 1 there is no mean, which no method supports.

Distributions with ``on_device`` only use functions of the stream and its ``math``, so they can be drawn on a
GPU.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from mpifed.base.settings import Needs, Section, choice, hyperparameters
from mpifed.core.streams import Stream

__all__ = ["Gaussian", "StudentT", "AlphaStable", "Pareto", "NOISES", "Noise"]


@hyperparameters
class Gaussian:
    """Normal noise; all moments are finite."""

    scale: float = Field(gt=0, description="standard deviation of every coordinate")

    on_device: ClassVar[bool] = True

    def __call__(self, stream: Stream, size: int) -> np.ndarray:
        return self.scale * stream.normal(size)


@hyperparameters
class StudentT:
    """Student's t with ν degrees of freedom, by inversion: finite moments of orders s < ν."""

    nu: float = Field(gt=0, description="degrees of freedom ν: the tail index")
    scale: float = Field(default=1.0, gt=0, description="factor of the standard distribution")

    def __call__(self, stream: Stream, size: int) -> np.ndarray:
        from scipy.special import stdtrit  # imported late, because it takes a third of a second

        return self.scale * stdtrit(self.nu, stream.uniform(size))


@hyperparameters
class AlphaStable:
    """Symmetric α-stable noise, characteristic function exp(-|scale · w|^α): finite for orders s < α.

    Sampled by the method of Chambers, Mallows and Stuck (1976). α = 2 is normal with variance 2 scale², α = 1
    is Cauchy.
    """

    alpha: float = Field(gt=0, le=2, description="stability α: the tail index (below 2)")
    scale: float = Field(default=1.0, gt=0, description="scale of the distribution")

    on_device: ClassVar[bool] = True

    def __call__(self, stream: Stream, size: int) -> np.ndarray:
        a, m = self.alpha, stream.math
        angle = np.pi * (stream.uniform(size) - 0.5)
        exponential = -m.log(stream.uniform(size))
        tail = (m.cos((1 - a) * angle) / exponential) ** ((1 - a) / a)
        return self.scale * m.sin(a * angle) / m.cos(angle) ** (1 / a) * tail


@hyperparameters
class Pareto:
    """Pareto distribution with a random sign: finite moments of orders s < tail.

    P(|noise| > scale · v) = v^(-tail) for v ≥ 1.
    """

    tail: float = Field(gt=0, description="tail index")
    scale: float = Field(default=1.0, gt=0, description="smallest absolute value")

    on_device: ClassVar[bool] = True

    def __call__(self, stream: Stream, size: int) -> np.ndarray:
        uniform = 2 * stream.uniform(size) - 1
        m = stream.math
        return self.scale * m.sign(uniform) * m.abs(uniform) ** (-1 / self.tail)


NOISES = {"gaussian": Gaussian, "student_t": StudentT, "alpha_stable": AlphaStable, "pareto": Pareto}

#: A noise distribution by table or instance.
Noise: Any = choice("noise", NOISES)


class OracleOptions(Section):
    """[oracle]: the minibatches, the noise and the clipping of stochastic gradients."""

    batch_size: int = Field(
        32,
        ge=0,
        description="number of rows in a sample ξ; 0 uses all data of the client (exact local gradients)",
    )
    sampling: Literal["with_replacement", "without_replacement"] = Field(
        "with_replacement",
        description="how rows are drawn; without_replacement: the samples of a client in a round pass "
        "through a random permutation of its rows, a new one in each epoch",
    )
    drop_last: bool = Field(
        False,
        description="leave out the last minibatch of an epoch if it has fewer than batch_size rows, unless "
        "it is the only one",
    )
    noise: Noise | None = Field(
        None, description='additive gradient noise, e.g. { name = "gaussian", scale = 0.1 }'
    )
    clip: float | None = Field(
        None,
        gt=0,
        description="maximum norm of each gradient of a client, with its noise; longer gradients are scaled "
        "down, which biases them; the metric `clipped` is the fraction of clipped gradients",
    )
    clip_over: Literal["block", "all"] | None = Field(
        None, description="clip the gradient of each block, or of all blocks together; default: block"
    )

    needs: ClassVar[Needs] = {
        "sampling": ("batch_size >= 1", lambda oracle: oracle.batch_size),
        "drop_last": (
            "sampling = 'without_replacement'",
            lambda oracle: oracle.sampling == "without_replacement",
        ),
        "clip_over": ("clip", lambda oracle: oracle.clip is not None),
    }
