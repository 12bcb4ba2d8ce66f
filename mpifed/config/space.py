"""The search space of a method: its open settings, each with a range or a list of values.

In a table of a method's settings, a value is fixed, a list is a choice, ``{ low = 1e-3, high = 1.0 }`` is a
range that is searched on a logarithmic scale, and nested tables follow the same rules. Other settings are
omitted. An omitted float is also open; its range depends on the declaration of its field:

* a weight (at most 1): .01 to 1;
* a decay (below 1): 1 minus the decay is searched, from .001 to 1;
* any other nonnegative number, i.e. a step size, an offset or a threshold: 1e-4 to 1.

An omitted float keeps its default if the default is 1 (the ratio to another step size), ``None`` or infinite.
Omitted integers, names and booleans always keep their defaults.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from typing_extensions import TypeAliasType

from mpifed.base.errors import ConfigError, short_repr
from mpifed.base.settings import default_of, is_number, options_in, settings_of, type_hints
from mpifed.config.plugins import find_class
from mpifed.config.tables import set_key
from mpifed.core.adaptive import Decay
from mpifed.core.epochs import LocalSteps
from mpifed.core.schedules import PositiveRate, Rate, StormWeight, Threshold, Weight

__all__ = ["Choice", "Range", "Space", "space_of"]

#: Types of settings that are floats.
_FLOATS = (float, Rate, PositiveRate, Threshold, StormWeight, Weight, Decay)
#: Default ranges of step sizes, of weights, and of 1 minus a decay.
STEP, WEIGHT, COMPLEMENT = (1e-4, 1.0), (1e-2, 1.0), (1e-3, 1.0)
#: Part of a range, on the logarithmic scale, that counts as its end.
END = 0.1
#: Significant digits of proposed values, which keep folder names and files readable.
DIGITS = 3


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, searched on a logarithmic scale.

    Attributes:
        integer: whether the numbers are integers.
        complement: whether the value of the setting is 1 minus the number, as for a decay.
        least, most: bounds of the numbers, beyond which the range is never extended.
    """

    low: float
    high: float
    integer: bool = False
    complement: bool = False
    least: float = 0.0
    most: float = math.inf

    def at_fraction(self, fraction: float) -> float:
        """Return the rounded number at a fraction of the logarithmic distance from ``low`` to ``high``."""
        return self.rounded(math.exp(math.log(self.low) + fraction * math.log(self.high / self.low)))

    @property
    def size(self) -> float:
        """The number of values; infinite for real numbers."""
        return self.high - self.low + 1 if self.integer else math.inf

    @property
    def costliest(self) -> float:
        """The largest integer, or the smallest real number, such as a step size."""
        return self.value(self.high if self.integer else self.low)

    def rounded(self, number: float) -> float:
        """Return the nearest number in the range with :data:`DIGITS` digits."""
        near = round(number) if self.integer else float(f"{number:.{DIGITS}g}")
        return min(max(near, self.low), self.high)

    def value(self, number: float) -> float:
        """Convert a number of the range to the value of the setting."""
        return round(1 - number, 12) if self.complement else number

    def extension(self, number: float) -> Range | None:
        """Return the decade beyond the end that ``number`` is near; ``None`` in the middle and at a bound."""
        if self.integer:  # integers determine the cost of a round, so their range is not extended
            return None
        fraction = math.log(number / self.low) / math.log(self.high / self.low)
        if fraction >= 1 - END and self.high < self.most:
            return dataclasses.replace(self, low=self.high, high=min(10 * self.high, self.most))
        if fraction <= END and self.low > self.least:
            return dataclasses.replace(self, low=max(self.low / 10, self.least), high=self.low)
        return None

    def union(self, other: Range) -> Range:
        """Return the smallest range that contains both ranges."""
        return dataclasses.replace(self, low=min(self.low, other.low), high=max(self.high, other.high))

    def clipped(self, low: float, high: float) -> Range:
        """Return the part of the range from ``low`` to ``high``."""
        return dataclasses.replace(self, low=max(self.low, low), high=min(self.high, high))

    def __str__(self) -> str:
        low, high = sorted(map(self.value, (self.low, self.high)))
        return f"{low:.12g} to {high:.12g}"


@dataclass(frozen=True)
class Choice:
    """A value out of a list. Points contain its index in the list."""

    values: tuple[Any, ...]

    @property
    def size(self) -> int:
        """The number of values."""
        return len(self.values)

    @property
    def ordered(self) -> bool:
        """Whether the values are increasing numbers, so that neighbours in the list are similar."""
        numbers = all(is_number(value) for value in self.values)
        return numbers and list(self.values) == sorted(self.values)

    @property
    def costliest(self) -> Any:
        """The largest of ordered values, otherwise the first one."""
        return max(self.values) if self.ordered else self.values[0]

    def at_fraction(self, fraction: float) -> int:
        """Return the index at a fraction of the list."""
        return math.floor(fraction * len(self.values))

    def rounded(self, index: int) -> int:
        """Return the index unchanged."""
        return index

    def value(self, index: float) -> Any:
        """Return the value with this index."""
        return self.values[int(index)]

    def __str__(self) -> str:
        return f"one of {', '.join(map(str, self.values))}"


@dataclass(frozen=True)
class Space:
    """A method with open settings.

    Attributes:
        name: name of the method.
        fixed: its fixed settings, as a table.
        open: dotted name of a setting → its range or list.
    """

    name: str
    fixed: dict[str, Any]
    open: dict[str, Range | Choice]

    def table(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return the section [algorithm] for values of the open settings."""
        table = {"name": self.name, **copy.deepcopy(self.fixed)}
        for key, value in settings.items():
            set_key(table, key, copy.deepcopy(value))
        return table

    @property
    def size(self) -> float:
        """The number of points; infinite with a range of real numbers."""
        return math.prod(domain.size for domain in self.open.values())

    @property
    def costliest(self) -> dict[str, Any]:
        """Values with the largest integers, which make a round most expensive, and the smallest steps."""
        return {key: domain.costliest for key, domain in self.open.items()}

    def costly_candidates(self) -> Iterator[dict[str, Any]]:
        """Yield :attr:`costliest`, then a copy for each range of real numbers with its largest value.

        A method may diverge with the smallest value of a setting, for example if a step is divided by it.
        """
        yield self.costliest
        for key, domain in self.open.items():
            if isinstance(domain, Range) and not domain.integer:
                yield self.costliest | {key: domain.value(domain.high)}


def space_of(table: dict[str, Any]) -> Space:
    """Return the search space that a table with a method's name and settings describes.

    Raises:
        ConfigError: the method is unknown, a list is empty, or a range is invalid.
    """
    cls = find_class(table["name"], "algorithm")
    space = Space(table["name"], {}, {})
    for key, value in _open_settings(cls, {key: value for key, value in table.items() if key != "name"}, ""):
        if isinstance(value, Range | Choice):
            space.open[key] = value
        else:
            set_key(space.fixed, key, value)
    return space


def _open_settings(cls, given: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield dotted name and value, range or list of the settings in a table, then of omitted floats."""
    fields = settings_of(cls) if cls else {}
    hints = type_hints(cls) if cls else {}
    for key, value in given.items():
        yield from _given_setting(prefix + key, value, hints.get(key), fields.get(key))
    for key, field in fields.items():
        if key not in given:
            yield from _omitted_setting(prefix + key, hints.get(key), field)


def _given_setting(key: str, value, hint, field) -> Iterator[tuple[str, Any]]:
    members = _members(hint)
    if isinstance(value, list):
        choice = _choice(key, value)
        yield key, choice if len(value) > 1 else value[0]
    elif isinstance(value, dict) and value.keys() & {"low", "high"}:
        yield key, _range(key, value, hint, field)
    elif hint == LocalSteps:
        yield key, value
    elif isinstance(value, dict) or (members and isinstance(value, str)):
        table = value if isinstance(value, dict) else {"name": value}
        inner = members and members.get(table.get("name"))
        yield f"{key}.name", table.get("name")
        rest = {name: item for name, item in table.items() if name != "name"}
        yield from _open_settings(inner, rest, f"{key}.")
    else:
        yield key, value


def _choice(key: str, values: list) -> Choice:
    if not values:
        raise ConfigError(f"{key}: expected at least one value, got []")
    if len({repr(value) for value in values}) < len(values):
        raise ConfigError(f"{key}: expected distinct values, got {short_repr(values)}")
    if _has_range(values):
        raise ConfigError(
            f"{key}: expected a list of values, got a list with a range: write one table of "
            "[[tune.methods]] per range"
        )
    return Choice(tuple(values))


def _has_range(value) -> bool:
    if isinstance(value, dict):
        return bool(value.keys() & {"low", "high"}) or any(map(_has_range, value.values()))
    return isinstance(value, list) and any(map(_has_range, value))


def _range(key: str, value: dict, hint, field) -> Range:
    low, high = value.get("low"), value.get("high")
    if value.keys() != {"low", "high"} or not is_number(low) or not is_number(high):
        raise ConfigError(
            f"{key}: expected a range {{ low = NUMBER, high = NUMBER }}, got {short_repr(value)}"
        )
    if not 0 < low < high < math.inf:
        raise ConfigError(
            f"{key}: expected 0 < low < high, because ranges are logarithmic, got {short_repr(value)}; 0 "
            "can be in a list"
        )
    least, most = _bounds(hint, field)
    if low < least or high > most:
        raise ConfigError(f"{key}: expected a range from {least:g} to {most:g}, got {short_repr(value)}")
    if isinstance(low, int) and isinstance(high, int) and hint is not float:
        return Range(low, high, integer=True, least=least, most=most)
    if hint in (int, LocalSteps):
        raise ConfigError(f"{key} is an integer: expected integers low and high, got {short_repr(value)}")
    if _is_decay(hint, field) and high < 1:
        return Range(round(1 - high, 12), round(1 - low, 12), complement=True, most=1.0)
    return Range(float(low), float(high), least=least, most=most)


def _declared(field) -> dict[str, float]:
    """Return the bounds that a field declares, as "ge", "gt", "le" or "lt" → number."""
    return {
        word: getattr(constraint, word)
        for constraint in (field.metadata if field else ())
        for word in ("ge", "gt", "le", "lt")
        if hasattr(constraint, word)
    }


def _bounds(hint, field) -> tuple[float, float]:
    declared, most = _declared(field), 1.0 if hint in (StormWeight, Weight, Decay) else math.inf
    return declared.get("ge", declared.get("gt", 0)), declared.get("le", declared.get("lt", most))


def _is_decay(hint, field) -> bool:
    return hint == Decay or _declared(field).get("lt") == 1


def _omitted_setting(key: str, hint, field) -> Iterator[tuple[str, Any]]:
    """Yield the default range of an omitted float, or of each float of an omitted choice by name."""
    default = default_of(field)
    if members := _members(hint):
        name = default if isinstance(default, str) else getattr(default, "choice_name", None)
        inside = [*_open_settings(members.get(name), {}, f"{key}.")]
        yield from [(f"{key}.name", name), *inside] if inside else []
        return
    least, most = _bounds(hint, field)
    if hint not in _FLOATS or default in (None, 1, math.inf) or least > 0:
        return
    if _is_decay(hint, field):
        low, high = COMPLEMENT
        yield key, Range(low, 1 - WEIGHT[0] if "gt" in _declared(field) else high, complement=True, most=1.0)
    elif most == 1:
        yield key, Range(*WEIGHT, most=1.0)
    elif most == math.inf:
        yield key, Range(*STEP)


def _members(hint) -> Mapping[str, Any]:
    """Return the choices of a setting that is chosen by name, whose own floats belong to the search space.

    Schedules are no such setting: they are searched as numbers.
    """
    options = options_in(hint) if isinstance(hint, TypeAliasType) else ()
    return next((option.classes for option in options if not option.number), {})
