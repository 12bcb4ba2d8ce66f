"""Step sizes and weights as functions of a count t = 1, 2, ...

Wherever a method takes a :data:`Rate`, a job file may give a number (constant) or a table such as
``eta = { name = "power", scale = 0.5, offset = 8, exponent = 0.3333 }``. For step sizes and weights of local
steps, t is the number of the step among all steps of the run (``now.step(k)``), or with ``per = "round"`` the
round of that step. For those of the server, and wherever the description of a setting says so, it is the
round (``now.round``), and ``per`` changes nothing.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from mpifed.base.errors import short_repr
from mpifed.base.settings import choice, hyperparameters

__all__ = [
    "SCHEDULES", "Constant", "Cosine", "Exponential", "Listed", "Polynomial", "PositiveRate", "Power", "Rate",
    "Squared", "Step", "Steps", "StormWeight", "Threshold", "Weight", "largest",
]  # fmt: skip


class Step(int):
    """The number of a local step among all steps of the run, which also knows its round.

    Attributes:
        round: the round of the step, from 1.
    """

    round: int

    def __new__(cls, number: int, round: int) -> Step:
        step = super().__new__(cls, number)
        step.round = round
        return step


@hyperparameters
class _Schedule:
    """Base class of schedules, which can begin with a linear warm-up."""

    #: Name of the schedule in job files.
    choice_name: ClassVar[str]

    warmup: int = Field(
        default=0,
        ge=0,
        kw_only=True,
        description="length of a linear warm-up with the factor t / warmup",
    )
    per: Literal["step", "round"] = Field(
        default="step",
        kw_only=True,
        description="what t counts in a setting of local steps: steps of the run, or rounds; settings of a "
        "round always count rounds",
    )

    def __call__(self, t: int, eta: float | None = None) -> float:
        """Return the value at t. The step size ``eta`` is for :class:`Squared` only."""
        if self.per == "round":
            t = getattr(t, "round", t)  # a number without a round is one already
        value = self.at(t)
        return value if t >= self.warmup else value * (t / self.warmup)

    def at(self, t: int) -> float:
        """Return the value at t without the warm-up."""
        raise NotImplementedError

    def table(self) -> float | dict[str, Any]:
        """Return the setting as in a job file: ``warmup`` and ``per`` only if they are set."""
        settings = {field.name: getattr(self, field.name) for field in fields(self)}
        if not self.warmup:
            del settings["warmup"]
        if self.per == "step":
            del settings["per"]
        return {"name": self.choice_name, **settings}

    @property
    def candidates(self) -> tuple[int, ...]:
        """Counts t that include that of the largest value and, if the value can be 0, one where it is 0."""
        return (1, self.warmup + 1, *([self.warmup] if self.warmup else []))


@hyperparameters
class Constant(_Schedule):
    """The same value at every t."""

    value: float = Field(ge=0, description="the value")

    def at(self, t: int) -> float:
        return self.value

    def table(self) -> float | dict[str, Any]:
        return super().table() if self.warmup else self.value


@hyperparameters
class Power(_Schedule):
    """``scale / (offset + t)**exponent``.

    The step size of Huang et al. 2024, Theorem 1, η_t = n K^{1/3} / (m + t)^{1/3}, is ``scale`` = n K^{1/3},
    ``offset`` = m and the default ``exponent``.
    """

    scale: float = Field(ge=0, description="numerator")
    offset: float = Field(default=0.0, ge=0, description="added to t")
    exponent: float = Field(default=1 / 3, ge=0, description="power of offset + t")

    def at(self, t: int) -> float:
        return self.scale / (self.offset + t) ** self.exponent

    @property
    def candidates(self) -> tuple[int, ...]:
        # t / (offset + t)**exponent grows up to t = offset / (exponent - 1), for an exponent above 1.
        peak = self.offset / (self.exponent - 1) if self.exponent > 1 else 0.0
        inside = 1 < peak < self.warmup
        return (*super().candidates, *((math.floor(peak), math.ceil(peak)) if inside else ()))


#: The message for a schedule :class:`Squared` in a setting without a step size.
NO_STEP_SIZE = (
    "'squared' depends on a step size η, which this setting does not have: expected another schedule, "
    "such as 'power'"
)


@hyperparameters
class Squared:
    """``min(1, c η_t²)``, the momentum weights α_{t+1} = c_1 η_t², β_{t+1} = c_2 η_t² of Huang et al. 2024,
    Theorem 1.

    Only for the weights of STORM estimators, such as ``alpha`` and ``beta`` of FGDA. The theorem's conditions
    keep the weight below 1; the minimum does so for every η.
    """

    c: float = Field(ge=0, description="multiple of the squared step size")

    def __call__(self, t: int, eta: float | None = None) -> float:
        if eta is None:
            raise ValueError(NO_STEP_SIZE)
        return min(1.0, self.c * eta**2)


@hyperparameters
class Steps(_Schedule):
    """``value * factor**(number of boundaries passed)``: a piecewise constant schedule."""

    value: float = Field(ge=0, description="value before the first boundary")
    boundaries: tuple[int, ...] = Field(description="each t after which the value is multiplied by factor")
    factor: float = Field(default=0.1, gt=0, description="multiplier at each boundary")

    def at(self, t: int) -> float:
        return self.value * self.factor ** sum(t > boundary for boundary in self.boundaries)

    @property
    def candidates(self) -> tuple[int, ...]:
        return (*super().candidates, *(t + after for t in self.boundaries if t >= 1 for after in (0, 1)))


@hyperparameters
class Exponential(_Schedule):
    """``value * factor**(t - 1)``. After a warm-up, t = warmup + 1 has ``value``."""

    value: float = Field(ge=0, description="value before the decay")
    factor: float = Field(gt=0, le=1, description="multiplier in every step, or in every round")

    def at(self, t: int) -> float:
        return self.value * self.factor ** max(0, t - self.warmup - 1)


@hyperparameters
class Listed(_Schedule):
    """The values of a list, one for each t. The last one stays."""

    values: tuple[float, ...] = Field(min_length=1, description="values at t = 1, 2, ...; the last one stays")

    def __post_init__(self):
        if (least := min(self.values)) < 0:
            raise ValueError(f"values: expected numbers of at least 0, got {short_repr(least)}")

    def at(self, t: int) -> float:
        return self.values[max(1, min(t, len(self.values))) - 1]

    @property
    def candidates(self) -> tuple[int, ...]:
        return (*super().candidates, *range(1, len(self.values) + 1))


@hyperparameters
class _Final(_Schedule):
    """Base class of decays from ``value`` to ``final``, which begin after the warm-up.

    After the warm-up, t = warmup + 1 has ``value``. From t = ``length`` on, the value is ``final``.
    """

    value: float = Field(ge=0, description="value before the decay")
    length: int = Field(ge=1, description="t from which the value is final, e.g. the number of steps")
    final: float = Field(default=0.0, ge=0, description="value after the decay")

    def __post_init__(self):
        if self.length <= self.warmup + 1:
            raise ValueError(f"expected length > warmup + 1, got {self.length} and a warmup of {self.warmup}")

    def at(self, t: int) -> float:
        first = self.warmup + 1
        if t >= self.length:
            return self.final
        share = max(0, t - first) / (self.length - first)
        return self.final + (self.value - self.final) * self.rest(share)

    def rest(self, share: float) -> float:
        """Return the part of the decay, from 1 to 0, that remains after this share of its time."""
        raise NotImplementedError

    @property
    def candidates(self) -> tuple[int, ...]:
        return (*super().candidates, self.length)


@hyperparameters
class Cosine(_Final):
    """Half a period of a cosine from ``value`` to ``final`` (Loshchilov & Hutter 2017, without restarts).

    After the warm-up, t = warmup + 1 has ``value``. From t = ``length`` on, the value is ``final``.
    """

    def rest(self, share: float) -> float:
        return (1 + math.cos(math.pi * share)) / 2


@hyperparameters
class Polynomial(_Final):
    """A polynomial from ``value`` to ``final``: ``final + (value - final) * (1 - s)**power``, where s grows
    linearly from 0 to 1.

    After the warm-up, t = warmup + 1 has ``value``. From t = ``length`` on, the value is ``final``.
    """

    power: float = Field(default=1.0, gt=0, description="power of the decay; 1: linear")

    def rest(self, share: float) -> float:
        return (1 - share) ** self.power


SCHEDULES = {
    "constant": Constant,
    "power": Power,
    "squared": Squared,
    "steps": Steps,
    "exponential": Exponential,
    "polynomial": Polynomial,
    "cosine": Cosine,
    "listed": Listed,
}


_AnySchedule: Any = choice("schedule", SCHEDULES, number=Constant, title="number or schedule")


def largest(rate: Rate) -> float:
    """Return the largest value of a schedule."""
    return max(rate(t) for t in rate.candidates)


def _without_step_size(rate):
    if isinstance(rate, Squared):
        raise ValueError(NO_STEP_SIZE)
    return rate


def _positive(rate: Rate) -> Rate:
    value = min(rate(t) for t in rate.candidates)
    if value <= 0:
        raise ValueError(f"expected a step size above 0 at every step, got {short_repr(value)}")
    return rate


def _weight(rate):
    if not isinstance(rate, Squared) and (value := largest(rate)) > 1:
        raise ValueError(f"expected a weight of at most 1 at every step, got {short_repr(value)}")
    return rate


@hyperparameters
class _NoThreshold(Constant):
    """The threshold that nothing exceeds."""

    value: float = math.inf


def _threshold(value):
    return _NoThreshold() if isinstance(value, float) and value == math.inf else value


#: A step size: a number or a schedule.
Rate: Any = Annotated[_AnySchedule, AfterValidator(_without_step_size)]
#: A step size by which a method divides: a number or a schedule whose values are above 0.
PositiveRate: Any = Annotated[Rate, AfterValidator(_positive), Field(title="number or schedule, > 0")]
#: A weight of a STORM estimator: a number or a schedule of at most 1, or :class:`Squared`. A method calls
#: it as ``alpha(t, eta)``.
StormWeight: Any = Annotated[
    _AnySchedule, AfterValidator(_weight), Field(title="number or schedule, ≥ 0, ≤ 1")
]
#: A weight, such as that of the fresh gradient in a momentum: a number or a schedule of at most 1.
Weight: Any = Annotated[StormWeight, AfterValidator(_without_step_size)]
#: A threshold, such as that of clipping: a number or a schedule; ``inf`` for none.
Threshold: Any = Annotated[Rate, BeforeValidator(_threshold), Field(title="number or schedule")]
