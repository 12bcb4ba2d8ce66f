"""References for the methods, problems, adaptive matrices and data of runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mpifed.base.bibliography import bibtex, cites_of, format_reference
from mpifed.base.settings import flatten
from mpifed.config.plugins import builtin_classes
from mpifed.core.adaptive import MATRICES
from mpifed.storage.results import find_runs, load

__all__ = ["cite", "references", "sources"]


def cite(places: Iterable[str | Path]) -> str:
    """The BibTeX entries of the methods, problems and data of runs; "" if there are none.

    Raises:
        ValueError: there are no runs, or a run cannot be read.
    """
    return bibtex(sources(load(path).config for path in find_runs(places)))


def references(configs: Iterable[dict[str, Any]]) -> list[str]:
    """One line per source of the runs with these resolved settings, in the order of first use."""
    return [format_reference(key) for key in sources(configs)]


def sources(configs: Iterable[dict[str, Any]]) -> list[str]:
    """Keys of the sources in the bibliography, in the order of first use."""
    keys: dict[str, None] = {}
    for config in configs:
        for setting, value in flatten(config).items():
            if isinstance(value, str):
                keys |= dict.fromkeys(cites_of(value, _known(setting, value)))
    return [*keys]


def _known(setting: str, value: str) -> object:
    """The class of a name; ``None`` for a user-defined class, which a report does not import."""
    if setting.endswith(".matrix.name"):
        return MATRICES.get(value)
    section, _, key = setting.partition(".")
    if key == "name" and section in ("algorithm", "problem"):
        return builtin_classes(section).get(value)
    return None
