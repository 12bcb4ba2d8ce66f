"""What a search may change in a method: its open settings, each with a range or a list.

Of a table of a method's settings a value is fixed, a list is a choice, ``{ low = 1e-3, high = 1.0 }`` is a
range, searched in the logarithm, and a nested table is read alike. A float that the table leaves out is
open, too, in a range that follows from what its field declares:

* a weight (at most 1): .01 to 1;
* a decay (below 1): 1 minus it is searched, from .001 to 1;
* any other from 0: a step, an offset, a threshold: 1e-4 to 1.

Floats keep their default where that is 1 (a factor of another step), none or infinite; whole numbers, names
and truth values always do.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic.fields import FieldInfo

from mpifed.algorithms.fedavg import SERVERS, Server
from mpifed.base.errors import ConfigError, short_repr
from mpifed.config.plugins import find
from mpifed.config.ranges import Choice, Range, is_number
from mpifed.config.tables import put
from mpifed.core.adaptive import MATRICES, Decay, Matrix
from mpifed.core.directions import DIRECTIONS, Direction
from mpifed.core.schedules import Rate, Weight
from mpifed.core.sets import MIRRORS, Mirror

__all__ = ["Space", "space_of"]

#: Ranges of floats that a file leaves out: of steps, of weights, and of 1 minus a decay.
STEP, WEIGHT, FORGETTING = (1e-4, 1.0), (1e-2, 1.0), (1e-3, 1.0)
#: Choices by name whose own floats are settings of the method.
_NESTED = ((Matrix, MATRICES), (Direction, DIRECTIONS), (Server, SERVERS), (Mirror, MIRRORS))


@dataclass(frozen=True)
class Space:
    """A method with some of its settings open.

    Attributes:
        name: of the method.
        fixed: its other settings, as a table.
        open: dotted setting → where it may lie.
    """

    name: str
    fixed: dict[str, Any]
    open: dict[str, Range | Choice]

    def table(self, settings: dict[str, Any]) -> dict[str, Any]:
        """The section [algorithm] with values of the open settings."""
        table = {"name": self.name, **copy.deepcopy(self.fixed)}
        for key, value in settings.items():
            put(table, key, copy.deepcopy(value))
        return table

    @property
    def size(self) -> float:
        """The number of settings that there are, infinite with a range of real numbers."""
        parts = (
            len(one.values)
            if isinstance(one, Choice)
            else (one.high - one.low + 1 if one.whole else math.inf)
            for one in self.open.values()
        )
        return math.prod(parts)

    @property
    def costliest(self) -> dict[str, Any]:
        """Values with the largest whole numbers, of which a round evaluates the oracle most, and the smallest
        steps."""
        return {
            key: one.value(one.high if one.whole else one.low)
            if isinstance(one, Range)
            else (max(one.values) if one.ordered else one.values[0])
            for key, one in self.open.items()
        }

    def costly(self) -> Iterator[dict[str, Any]]:
        """:attr:`costliest`, then the same with one real number after the other at the other end of its
        range: what is small need not be tame, such as a floor ρ that a step is divided by."""
        yield self.costliest
        for key, one in self.open.items():
            if isinstance(one, Range) and not one.whole:
                yield self.costliest | {key: one.value(one.high)}


def space_of(table: dict[str, Any]) -> Space:
    """The space of a method's table, with the name of the method.

    Raises:
        ConfigError: no such method, an empty list, or a range that is none.
    """
    cls = find(table["name"], "algorithm")
    space = Space(table["name"], {}, {})
    for key, found in _walk(cls, {key: one for key, one in table.items() if key != "name"}, ""):
        if isinstance(found, Range | Choice):
            space.open[key] = found
        else:
            put(space.fixed, key, found)
    return space


def _walk(cls, given: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Dotted settings of a class with what is said of each; first those given, then floats left out."""
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init} if cls else {}
    hints = _hints(cls) if cls else {}
    for key, value in given.items():
        yield from _given(prefix + key, value, hints.get(key), fields.get(key))
    for key, field in fields.items():
        if key not in given:
            yield from _left_out(prefix + key, hints.get(key), field)


def _given(key: str, value, hint, field) -> Iterator[tuple[str, Any]]:
    members = next((members for kind, members in _NESTED if hint == kind), None)
    if isinstance(value, list):
        choice = _choice(key, value)
        yield key, choice if len(value) > 1 else value[0]
    elif isinstance(value, dict) and value.keys() & {"low", "high"}:
        yield key, _range(key, value, hint, field)
    elif isinstance(value, dict) or (members and isinstance(value, str)):
        table = value if isinstance(value, dict) else {"name": value}
        inner = members and members.get(table.get("name"))
        yield f"{key}.name", table.get("name")
        rest = {name: one for name, one in table.items() if name != "name"}
        yield from _walk(inner, rest, f"{key}.")
    else:
        yield key, value


def _choice(key: str, values: list) -> Choice:
    if not values:
        raise ConfigError(f"{key} = [] leaves nothing to choose from")
    if len({repr(value) for value in values}) < len(values):
        raise ConfigError(f"{key} = {short_repr(values)} has a value twice")
    if _has_range(values):
        raise ConfigError(
            f"{key}: a range inside a list, which is a choice between values: write a table of "
            "[[tune.methods]] for each"
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
            f"{key}: expected 0 < low < high, as ranges are searched in the logarithm, got "
            f"{short_repr(value)}; 0 "
            "can be in a list"
        )
    least, most = _bounds(hint, field)
    if low < least or high > most:
        raise ConfigError(f"{key}: expected a range from {least:g} to {most:g}, got {short_repr(value)}")
    if isinstance(low, int) and isinstance(high, int) and hint is not float:
        return Range(low, high, whole=True, least=least, most=most)
    if hint is int:
        raise ConfigError(f"{key} is a whole number: expected whole low and high, got {short_repr(value)}")
    if _below_one(hint, field) and high < 1:
        return Range(round(1 - high, 12), round(1 - low, 12), forgets=True, most=1.0)
    return Range(float(low), float(high), least=least, most=most)


def _bounds(hint, field) -> tuple[float, float]:
    """What a field declares its values to lie between."""
    metadata = getattr(getattr(field, "default", None), "metadata", ())
    declared = {
        word: getattr(one, word)
        for one in metadata
        for word in ("ge", "gt", "le", "lt")
        if hasattr(one, word)
    }
    most = 1.0 if hint in (Weight, Decay) else math.inf
    return declared.get("ge", declared.get("gt", 0)), declared.get("le", declared.get("lt", most))


def _below_one(hint, field) -> bool:
    """Whether a field declares a decay."""
    metadata = getattr(getattr(field, "default", None), "metadata", ())
    return hint == Decay or any(getattr(one, "lt", None) == 1 for one in metadata)


def _left_out(key: str, hint, field) -> Iterator[tuple[str, Any]]:
    """The own range of a float, and those of the floats of a choice by name."""
    default = _default(field)
    for kind, members in _NESTED:
        if hint == kind and default is not None:
            name = default if isinstance(default, str) else getattr(default, "choice_name", None)
            inside = [(one, found) for one, found in _walk(members.get(name), {}, f"{key}.")]
            yield from [(f"{key}.name", name), *inside] if inside else []
            return
    least, most = _bounds(hint, field)
    steered = hint in (float, Rate, Weight, Decay) and default not in (1, math.inf)
    if not steered or default is None or least > 0:
        return
    if _below_one(hint, field):
        yield key, Range(*FORGETTING, forgets=True, most=1.0)
    elif most == 1:
        yield key, Range(*WEIGHT, most=1.0)
    elif most == math.inf:
        yield key, Range(*STEP)


def _default(field) -> Any:
    """A field's default; NaN where it has none."""
    default = field.default
    if isinstance(default, FieldInfo):
        return math.nan if default.is_required() else default.default
    return math.nan if default is dataclasses.MISSING else default


def _hints(cls) -> dict[str, Any]:
    try:
        return typing.get_type_hints(getattr(cls, "cls", cls), include_extras=True)
    except NameError:  # of a user's class
        return {}
