"""Short names for what users bring in files of their own."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["short_names"]


def short_names(names: Iterable[str]) -> dict[str, str]:
    """A short name for each: ``./mine.py:Mine`` is ``Mine``.

    Where two end alike, those that come from files or modules keep as much of the place as tells them apart:
    ``Mine (mine.py)``, ``Mine (a/mine.py)``.
    """
    places = {name: name.rpartition(":")[::2] for name in names}
    ends = [end for _, end in places.values()]
    short = {}
    for name, (place, end) in places.items():
        others = [there for there, other in places.values() if other == end and there != place]
        alone = ends.count(end) == 1 or not place
        short[name] = end if alone else f"{end} ({_apart(place, others)})"
    return short


def _apart(place: str, others: Iterable[str]) -> str:
    """The last parts of a path, as many as none of the others has."""
    parts = place.split("/")
    for count in range(1, len(parts)):
        tail = "/".join(parts[-count:])
        if not any(f"/{other}".endswith(f"/{tail}") for other in others):
            return tail
    return place
