"""Names as a paper writes them, from a file ``labels.toml`` of the user's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from mpifed.config.tables import read_table
from mpifed.core.settings import near_miss
from mpifed.report.comparison import Setting, metrics_of
from mpifed.report.figures import AXES
from mpifed.report.names import labels

__all__ = ["Renaming", "renaming"]


@dataclass(frozen=True)
class Renaming:
    """New names by old ones.

    Attributes:
        methods: of methods (``FGDA``), or of whole lines (``"FGDA, gamma=0.1"``).
        settings: of settings in the names of lines (``gamma``).
        metrics: of metrics.
        axes: of horizontal axes (``bytes``); a unit is put behind.
    """

    methods: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)
    axes: Mapping[str, str] = field(default_factory=dict)

    def labels(self, settings: Sequence[Setting]) -> list[str]:
        """The settings' names, as :func:`mpifed.report.names.labels` gives them, renamed."""
        renamed = labels(settings, self.methods, self.settings)
        return [self.methods.get(plain, new) for plain, new in zip(labels(settings), renamed)]


def renaming(path: str | Path, settings: Sequence[Setting]) -> Renaming:
    """Read new names for what these settings have.

    Raises:
        ValueError: the file cannot be read, or it names what is not there.
    """
    tables = read_table(path, "file of labels")
    known = {
        "methods": {*(one.name for one in settings), *labels(settings)},
        "settings": {key.rpartition(".")[2] for one in settings for key in one.settings},
        "metrics": set(metrics_of(settings)),
        "axes": {axis.name for axis in AXES},
    }
    assert [*known] == [one.name for one in fields(Renaming)]
    for section, names in tables.items():
        if section not in known:
            raise ValueError(f"{path}: unknown section [{section}]: {near_miss(section, known)}")
        if not isinstance(names, dict):
            raise ValueError(f"{path}: {section} must be a table of names, found {names!r}")
        for name, new in names.items():
            if name not in known[section]:
                raise ValueError(f"{path}: [{section}] has no {name!r}: {near_miss(name, known[section])}")
            if not isinstance(new, str):
                raise ValueError(f"{path}: [{section}] {name} must be a text, found {new!r}")
    return Renaming(**tables)
