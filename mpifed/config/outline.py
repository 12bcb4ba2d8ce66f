"""What the table of a job says of its run by itself: no class that it names is loaded."""

from __future__ import annotations

from typing import Any, NamedTuple

from mpifed.base.errors import ConfigError, short_repr
from mpifed.config.job import Config
from mpifed.config.sections import Run

__all__ = ["Outline", "outline"]


class Outline(NamedTuple):
    """Where a run's files are to lie; its method and its problem by name; its rounds, ``None`` where a
    theorem sets them."""

    out: str
    method: str
    problem: str
    rounds: int | None


def outline(table: dict[str, Any]) -> Outline:
    """The outline of a job's table.

    Raises:
        ConfigError: a setting that is needed for it is of another type.
    """
    run, rounds = table.get("run", {}), table.get("rounds", Config.model_fields["rounds"].default)
    out = run.get("out", Run.model_fields["out"].default) if isinstance(run, dict) else None
    if not isinstance(out, str) or not out.strip():
        raise ConfigError(f"run.out: expected the name of a folder, got {short_repr(out)}")
    return Outline(
        out, _name(table, "algorithm"), _name(table, "problem"), rounds if isinstance(rounds, int) else None
    )


def _name(table: dict[str, Any], section: str) -> str:
    own = table.get(section)
    name = own.get("name") if isinstance(own, dict) else own
    if not isinstance(name, str):
        raise ConfigError(f"[{section}] needs a name")
    return name.rpartition(":")[2]
