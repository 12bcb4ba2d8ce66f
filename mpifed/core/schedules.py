"""Step sizes and weights as functions of the step t = 1, 2, ...

Wherever a method takes a :data:`Rate`, a job file may give a number (constant) or a table such as
``eta = { name = "power", scale = 0.5, offset = 8, exponent = 0.3333 }``.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from mpifed.base.settings import choice, hyperparameters

__all__ = ["Constant", "Power", "Squared", "Steps", "Rate", "Weight", "SCHEDULES", "largest"]


@hyperparameters
class Constant:
    """The same value at every step."""

    value: float = Field(ge=0, description="the value")

    def __call__(self, t: int, eta: float = 0.0) -> float:
        return self.value


@hyperparameters
class Power:
    """``scale / (offset + t)**exponent``.

    The step size of Huang et al. 2024, Theorem 1, η_t = n K^{1/3} / (m + t)^{1/3}, is ``scale`` = n K^{1/3},
    ``offset`` = m and the default ``exponent``.
    """

    scale: float = Field(ge=0, description="numerator")
    offset: float = Field(default=0.0, ge=0, description="added to t")
    exponent: float = Field(default=1 / 3, ge=0, description="power of offset + t")

    def __call__(self, t: int, eta: float = 0.0) -> float:
        return self.scale / (self.offset + t) ** self.exponent


@hyperparameters
class Squared:
    """``min(1, c η_t²)``, the momentum weights α_{t+1} = c_1 η_t², β_{t+1} = c_2 η_t² of Huang et al. 2024,
    Theorem 1.

    Only for hyperparameters that depend on a step size η (``alpha`` and ``beta`` of FGDA). The theorem's
    conditions keep the weight below 1; the minimum does so for every η.
    """

    c: float = Field(ge=0, description="multiple of the squared step size")

    def __call__(self, t: int, eta: float = 0.0) -> float:
        return min(1.0, self.c * eta**2)


@hyperparameters
class Steps:
    """``value * factor**(number of boundaries passed)``: a piecewise constant schedule."""

    value: float = Field(ge=0, description="value before the first boundary")
    boundaries: tuple[int, ...] = Field(description="steps t after which the value is multiplied by factor")
    factor: float = Field(default=0.1, gt=0, description="multiplier at each boundary")

    def __call__(self, t: int, eta: float = 0.0) -> float:
        return self.value * self.factor ** sum(t > boundary for boundary in self.boundaries)


SCHEDULES = {"constant": Constant, "power": Power, "squared": Squared, "steps": Steps}


#: A constant or a schedule.
Rate: Any = choice("schedule", SCHEDULES, number=Constant, title="number or schedule")
#: A schedule of weights, such as that of the fresh gradient in a momentum. ``mpifed tune`` proposes values of
#: at most 1.
Weight: Any = Annotated[Rate, "weight"]


def largest(rate: Rate) -> float:
    """Return the largest value of a schedule, which is at step 1 or after a boundary."""
    return max(rate(t) for t in (1, *(boundary + 1 for boundary in getattr(rate, "boundaries", ()))))
