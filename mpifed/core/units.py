"""Times, sizes and rates as people write them: ``"2h"``, ``"64MiB"``, ``"10MB/s"``.

Numbers are in seconds, bytes, bytes a second and so on, and so is what a text with a unit becomes. Prefixes
are decimal (k, M, G, T) or binary (Ki, Mi, Gi, Ti); B is a byte, b and bit an eighth of one.
"""

from __future__ import annotations

import difflib
import functools
import re
from typing import TYPE_CHECKING, NamedTuple

from mpifed.core.errors import cut, shown

if TYPE_CHECKING:
    import pint

__all__ = ["GRADIENT_RATE", "RATE", "SIZE", "TIME", "Kind", "plain"]


class Kind(NamedTuple):
    """What is measured: its words, the unit of plain numbers, an example, and what is often written."""

    words: str
    unit: str
    example: str
    often: tuple[str, ...]


TIME = Kind("a time", "seconds", "2h", ("ns", "us", "µs", "ms", "s", "min", "h", "d"))
SIZE = Kind("a size", "bytes", "64MiB", ("B", "kB", "MB", "GB", "KiB", "MiB", "GiB"))
RATE = Kind(
    "a rate",
    "bytes/second",
    "10MB/s",
    ("B/s", "kB/s", "MB/s", "GB/s", "kbit/s", "Mbit/s", "Gbit/s"),
)
GRADIENT_RATE = Kind("a rate", "gradients/second", "500/s", ("/s", "/ms", "/min"))

#: What the units are made of: nothing that a job has no use for, so a slip of the pen is no other unit.
_DEFINITIONS = (
    *("kilo- = 1e3 = k- = K-", "mega- = 1e6 = M-", "giga- = 1e9 = G-", "tera- = 1e12 = T-"),
    *("kibi- = 2**10 = Ki-", "mebi- = 2**20 = Mi-", "gibi- = 2**30 = Gi-", "tebi- = 2**40 = Ti-"),
    *("second = [time] = s = sec", "minute = 60 * second = min = m", "hour = 3600 * second = h"),
    *("day = 86400 * second = d", "millisecond = 1e-3 * second = ms", "nanosecond = 1e-9 * second = ns"),
    *("microsecond = 1e-6 * second = us = µs = μs", "gradient = [gradient]"),
    *("byte = [information] = B", "bit = 0.125 * byte = b", "bps = bit / second", "Bps = byte / second"),
)
#: A number, and a unit or a quotient of two: pint would also compute what is written with signs.
_TEXT = re.compile(
    r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([^\W\d_]*(?:\s*(?:/|\bper\b)\s*[^\W\d_]+)?)\s*"
)


@functools.cache
def _registry() -> pint.UnitRegistry:
    import pint

    registry: pint.UnitRegistry = pint.UnitRegistry(None)
    registry.load_definitions(_DEFINITIONS)
    return registry


def plain(value, kind: Kind):
    """A text with a unit as a number of seconds, bytes and so on; whatever is no text as it is.

    Raises:
        ValueError: the text is no number with a unit of this kind; one sentence with the near miss.
    """
    if not isinstance(value, str):
        return value
    found = _TEXT.fullmatch(cut(value))
    number, unit = found.groups() if found else ("", "")
    factor = _factor(unit, kind) if unit else None
    if factor is not None:
        return float(number) * factor
    lower = {one.lower(): one for one in reversed(kind.often)}
    near = difflib.get_close_matches(unit.lower(), lower, n=1) if unit else []
    hint = f": write {number}" if number and not unit else f" (units: {', '.join(kind.often)})"
    hint = f': did you mean "{number}{lower[near[0]]}"?' if near else hint
    raise ValueError(
        f'expected {kind.words} in {kind.unit}, or with its unit such as "{kind.example}", '
        f"got {shown(value)}{hint}"
    )


def _factor(unit: str, kind: Kind) -> float | None:
    """How many of the kind's own units one ``unit`` is; ``None`` where it is no unit of this kind."""
    from pint.errors import PintError

    registry = _registry()
    try:
        one = registry.parse_units(f"gradient{unit}" if unit.startswith("/") else unit)
        return float((1 * one).to(kind.unit).magnitude)
    except PintError:
        return None
