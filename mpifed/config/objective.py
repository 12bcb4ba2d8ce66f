"""The sections [measures] and [regularize] of a job file: what is told of the problem's f, and added."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from mpifed.config.section import Section

__all__ = ["Measures", "Regularize"]


class Measures(Section):
    """[measures]: figures that theorems bound, on all data, at every evaluation, beside the metrics."""

    of: tuple[Literal["stationarity", "phi", "nuclear_norm", "moreau", "potential", "tail"], ...] = Field(
        min_length=1,
        description="stationarity: ‖∇_x f‖, ℓ‖P_Y(y + ∇_y f/ℓ) - y‖; phi: ‖∇Φ‖; nuclear_norm: that of ∇Φ; "
        "moreau: ‖∇Φ_{1/2ℓ}‖; potential: V of FESSGDA and SmoothedGDA; tail: tail index of the noise",
    )
    ell: float | None = Field(
        None, gt=0, description="smoothness ℓ of f, for moreau, and for stationarity where y has a set"
    )
    accuracy: float = Field(1e-6, ge=0, description="natural residual at which an inner problem is solved")
    evaluations: int = Field(
        1000, ge=1, description="most gradients on all data that an inner problem may take"
    )
    samples: int = Field(
        100, ge=10, description="stochastic gradients of each client at each evaluation, for tail"
    )


class Regularize(Section):
    """[regularize]: f + a‖x - x̃‖² - b‖y - y_0‖² for the problem's f; metrics stay those of f."""

    x: float = Field(0.0, ge=0, description="weight a of ‖x - x̃‖²; x̃ starts at x_0")
    y: float = Field(0.0, ge=0, description="weight b of ‖y - y_0‖²")
    stage: int | None = Field(
        None, ge=1, description="rounds of a stage, at whose end x̃ becomes the current x; never when left out"
    )

    @model_validator(mode="after")
    def _pulls(self):
        if not (self.x or self.y):
            raise ValueError("needs x or y, the weight of a term")
        if self.stage and not self.x:
            raise ValueError("stage renews the centre of x: it needs the weight x")
        return self
