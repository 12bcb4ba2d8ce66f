"""The faults of a job's settings in sentences."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from pydantic import ValidationError

from mpifed.config.sections import SECTIONS
from mpifed.core.errors import listed, shown
from mpifed.core.settings import explain, near_miss

__all__ = ["explained"]


def explained(error: ValidationError, settings: dict, top: Iterable[str]) -> str:
    """The faults of a configuration, one line each, with the near miss of an unknown setting."""
    places = {name: section.model_fields for name, section in SECTIONS.items()}
    parts = {name: settings.get(name) for name in ("algorithm", "problem")}
    places |= {name: vars(part) for name, part in parts.items() if dataclasses.is_dataclass(part)}
    faults = error.errors()
    unknown = [fault["loc"] for fault in faults if fault["type"] == "extra_forbidden"]
    rest = [fault for fault in faults if fault["type"] != "extra_forbidden"]
    return "\n".join(
        filter(None, [listed(unknown, lambda place: _unknown(place, places, top)), explain(rest, "")])
    )


def _unknown(place: tuple, places: Mapping[str, Iterable[str]], top: Iterable[str]) -> str:
    *path, key = map(str, place)
    known = [f"{section}.{key}" for section, names in places.items() if key in names]
    if known and not path:
        return f"a job file has no setting {shown(key)} outside its sections: did you mean {known[0]!r}?"
    known_here = SECTIONS[path[0]].model_fields if path and path[0] in SECTIONS else top
    where = f"[{path[0]}]" if path else "a job file"
    return f"{where} has no setting {shown(key)}: {near_miss(key, known_here)}"
