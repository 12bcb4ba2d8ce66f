"""The page docs/settings.md: every setting with its values, default and effect."""

from __future__ import annotations

import dataclasses
import inspect

from mpifed.cli.schema import Row, rows_of
from mpifed.cli.topics import GROUPS, Group
from mpifed.config.job import SECTIONS, Config
from mpifed.config.tuning import Tune

__all__ = ["SWEEP", "THEORY", "TOP", "TUNE", "settings_page"]

#: The settings of a job file outside its sections.
TOP = ("seed", "rounds", "output", "record", "metrics", "initial")
#: Introductions of the sections that are not classes.
THEORY = (
    "The name of a theorem, `of`, and constants that it is to take. A step of `[algorithm]` may then be",
    '`"theorem"`, or a table with `name = "theorem"`, which may have `of` and constants itself, and',
    "`times`, a multiple of the step. See [Theory](theory.md).",
    "",
)
SWEEP = (
    "Lists of settings by their dotted names: every combination is a run. Of several `[[sweep]]`",
    "tables each is expanded by itself. `algorithm` and `problem` may be lists of tables, whose own",
    "settings may be lists again.",
    "",
)
TUNE = (
    "A search for the best settings of several methods, at the same cost for each: `mpifed tune`. In the",
    "table of a method a value is fixed, a list is a choice, `{ low = 1e-3, high = 1.0 }` is a range that is",
    "searched in the logarithm, and nested tables are read alike. Floats that are left out are searched in",
    "ranges of their own: weights from .01 to 1, decays by 1 minus them from .001 to 1, others from 1e-4 to",
    "1; those whose default is 1, none or infinite keep it, and so do whole numbers. See",
    "[Tuning](tuning.md).",
    "",
)


def settings_page() -> str:
    """The text of docs/settings.md."""
    return "\n".join(
        [
            "# Settings",
            "",
            "<!-- Written by `mpifed info settings`; a test compares this page with the classes. -->",
            "",
            "Every setting of a job file. On the command line a setting is `section.key=value`, e.g.",
            "`run.out=runs/a`. *Required* settings have no default; *unset* is the same as left out.",
            "",
            "## The run as a whole",
            "",
            *_table(rows_of(Config, TOP)),
            *(line for name, section in SECTIONS.items() for line in _part(f"`[{name}]`", section, 2)),
            *("## `[theory]`", "", *THEORY),
            *("## `[sweep]`", "", *SWEEP),
            *("## `[tune]`", "", *TUNE, *_table(rows_of(Tune))),
            *(line for heading, group in GROUPS.items() for line in _group(heading, group)),
        ]
    )


def _group(heading: str, group: Group) -> list[str]:
    """The objects of a type, each with its settings; none where they have no settings."""
    classes = [getattr(member, "cls", member) for member in group.members.values()]
    if not all(isinstance(cls, type) and dataclasses.is_dataclass(cls) for cls in classes):
        return []
    how = f"`{group.setting}`: a name, or a table with the name and settings." if group.setting else ""
    parts = [line for name, cls in group.members.items() for line in _part(f"`{name}`", cls, 3)]
    return [f"## {heading.capitalize()}", "", " ".join(filter(None, [how, group.note])), "", *parts]


def _part(heading: str, cls, level: int) -> list[str]:
    said = (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ")
    source = getattr(cls, "source", "")
    words = [said, ""] if level > 2 and said else []
    words += [f"*Source: {source}.*", ""] if source and level > 2 else []
    return [f"{'#' * level} {heading}", "", *words, *_table(rows_of(cls))]


def _table(rows: list[Row]) -> list[str]:
    if not rows:
        return ["No settings.", ""]
    cells = [(f"`{row.name}`", row.values, _code(row.default), row.effect) for row in rows]
    lines = [f"| {' | '.join(one.replace('|', chr(92) + '|') for one in own)} |" for own in cells]
    return ["| setting | values | default | effect |", "|---|---|---|---|", *lines, ""]


def _code(default: str) -> str:
    return f"*{default}*" if default in ("required", "unset") else f"`{default}`"
