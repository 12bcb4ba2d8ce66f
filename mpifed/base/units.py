"""Times and rates with units: ``"2h"``, ``"10MB/s"``.

Numbers are in seconds, bytes per second or gradients per second. A text with a unit is converted to such a
number. Prefixes are decimal (k, M, G, T) or binary (Ki, Mi, Gi, Ti); B is a byte, b or bit an
eighth of a byte. (pydantic's ``ByteSize`` reads b as B and truncates to whole bytes.)
"""

from __future__ import annotations

import difflib
import functools
import re
from dataclasses import dataclass
from typing import Annotated

from pydantic_core import core_schema

from mpifed.base.errors import short_repr, truncate

__all__ = [
    "GRADIENT_RATE", "RATE", "TIME", "BytesPerSecond", "Dimension", "GradientsPerSecond", "Seconds",
    "convert",
]  # fmt: skip

_TIMES = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3}
_TIMES |= dict.fromkeys(("s", "sec", "second", "seconds"), 1)
_TIMES |= dict.fromkeys(("min", "m", "minute", "minutes"), 60)
_TIMES |= dict.fromkeys(("h", "hour", "hours"), 3600)
_TIMES |= dict.fromkeys(("d", "day", "days"), 86400)
_PREFIXES = {"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_PREFIXES |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_SIZES = {
    prefix + unit: factor * size
    for prefix, factor in _PREFIXES.items()
    for unit, size in {"B": 1, "b": 1 / 8, "bit": 1 / 8}.items()
}
_RATES = {f"{size}/{time}": a / b for size, a in _SIZES.items() for time, b in _TIMES.items()}
_RATES |= {f"{size}ps": factor for size, factor in _SIZES.items() if not size.endswith("bit")}
_GRADIENT_RATES = {
    f"{word}/{time}": 1 / b for word in ("", "gradient", "gradients") for time, b in _TIMES.items()
}


@dataclass(frozen=True, eq=False)
class Dimension:
    """A physical dimension.

    Attributes:
        noun: name of the dimension with an article.
        unit: unit of plain numbers.
        example: example of a text with a unit.
        units: name of a unit → its size in ``unit``.
        common: names of units that error messages list.
    """

    noun: str
    unit: str
    example: str
    units: dict[str, float]
    common: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source, handler):
        before = functools.partial(convert, dimension=self)
        return core_schema.no_info_before_validator_function(before, handler(source))

    def __get_pydantic_json_schema__(self, schema, handler):
        text = {"type": "string", "pattern": r"\d"}
        title = f'{self.unit} or text such as "{self.example}"'
        return {"title": title, "anyOf": [handler(schema), text]}


TIME = Dimension("a time", "seconds", "2h", _TIMES, ("ns", "us", "µs", "ms", "s", "min", "h", "d"))
RATE = Dimension(
    "a rate", "bytes/second", "10MB/s", _RATES, ("B/s", "kB/s", "MB/s", "GB/s", "kbit/s", "Mbit/s", "Gbit/s")
)
GRADIENT_RATE = Dimension("a rate", "gradients/second", "500/s", _GRADIENT_RATES, ("/s", "/ms", "/min"))

_TEXT = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(\D*?)\s*")


def convert(value, dimension: Dimension):
    """Convert a text with a unit to a number in ``dimension.unit``. Other values are returned unchanged.

    Raises:
        ValueError: the text is not a number with a unit of this dimension.
    """
    if not isinstance(value, str):
        return value
    parts = _TEXT.fullmatch(truncate(value))
    number, unit = parts.groups() if parts else ("", "")
    unit = re.sub(r"\s*(/|\bper\b)\s*", "/", unit)
    if unit in dimension.units:
        return float(number) * dimension.units[unit]
    lower = {unit_name.lower(): unit_name for unit_name in reversed(dimension.common)}
    near = difflib.get_close_matches(unit.lower(), lower, n=1) if unit else []
    hint = f": write {number}" if number and not unit else f" (units: {', '.join(dimension.common)})"
    hint = f': did you mean "{number}{lower[near[0]]}"?' if near else hint
    raise ValueError(
        f'expected {dimension.noun} in {dimension.unit}, or with its unit such as "{dimension.example}", '
        f"got {short_repr(value)}{hint}"
    )


#: Numbers that may also be given as a text with a unit.
Seconds = Annotated[float, TIME]
BytesPerSecond = Annotated[float, RATE]
GradientsPerSecond = Annotated[float, GRADIENT_RATE]
