"""What there is, and what each thing takes: the texts of ``mpifed list`` and ``mpifed info``."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import sys
from collections import Counter
from collections.abc import Iterable

from rich import box
from rich.markdown import Markdown
from rich.table import Table

from mpifed.base.bibliography import bibtex, cites_of
from mpifed.base.console import Console
from mpifed.base.errors import ConfigError
from mpifed.base.settings import build, default_of, suggest
from mpifed.cli.output import echo
from mpifed.cli.schema import Row, rows_of, toml
from mpifed.cli.settings_page import SWEEP, THEORY, TOP, TUNE, settings_page
from mpifed.cli.topics import EXAMPLES, GROUPS, Group
from mpifed.config.job import SECTIONS, Config
from mpifed.config.plugins import find
from mpifed.config.tuning import Tune
from mpifed.core.algorithm import Algorithm
from mpifed.core.records import Record
from mpifed.theory import Theorem

#: What stands outside the sections.
_OUTSIDE = """A job file: settings of the run as a whole, then [algorithm] and [problem], each with a name,
and sections that may be left out: oracle, participation, message, stop, run, clock, measures, regularize,
theory, sweep, tune. `mpifed info SECTION` explains each, `mpifed list` has the names."""
#: Values for settings without a default, by their types.
_PLAUSIBLE = {"int": 4, "float": 0.1, "Rate": 0.1, "Probabilities": 0.5, "tuple[float, ...]": [0.1, 0.2]}

__all__ = ["catalogue", "print_catalogue", "print_citation", "print_info", "example"]


def catalogue() -> dict[str, dict[str, str]]:
    """Group → name → one line."""
    return {
        name: {member: _first_line(one) for member, one in group.members.items()}
        for name, group in GROUPS.items()
    }


def _first_line(thing) -> str:
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ")


def print_catalogue() -> None:
    """All groups as one table."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for column in ("", "name", ""):
        table.add_column(column, overflow="fold")
    for group, members in catalogue().items():
        for number, (name, line) in enumerate(members.items()):
            table.add_row(group if number == 0 else "", name, line)
        table.add_section()
    _console().print(table)


def _console() -> Console:
    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 110)


def example(cls: type, settings: dict | None = None):
    """An instance of a class of settings: those given, its ``example``, then 4 (whole numbers) or 0.01.

    Raises:
        ConfigError: the settings do not fit, or the class is no record of settings.
    """
    filled = {**getattr(cls, "example", {}), **(settings or {})}
    for field in dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ():
        if field.init and default_of(field) is dataclasses.MISSING and field.name not in filled:
            filled[field.name] = 4 if field.type in (int, "int") else 0.01
    return build(cls, filled, cls.__name__)


def print_info(name: str) -> None:
    """Everything about a name of the catalogue, a kind of names, a section or a setting, or a user's class.

    ``settings`` prints the page docs/settings.md.

    Raises:
        ConfigError: there is no such name.
    """
    plain = name.strip("[]")
    section, _, key = plain.partition(".")
    groups = {word: group for plural, group in GROUPS.items() for word in (plural, group.one)}
    if name == "settings":
        echo(settings_page(), nl=False)
    elif plain in groups and plain not in ("algorithm", "problem"):
        _print_group(groups[plain])
    elif section in EXAMPLES and ":" not in name:
        _print_setting(section, key) if key else _print_section(section)
    else:
        _print_thing(*_found(name))


def _rows(section: str) -> list[Row]:
    if section == "job":
        return rows_of(Config, TOP)
    if section == "tune":
        return rows_of(Tune)
    return rows_of(SECTIONS[section]) if section in SECTIONS else []


def _print_section(section: str) -> None:
    """A section of a job file: what it is for, its settings, an example."""
    parts = {"sweep": SWEEP, "theory": THEORY, "tune": TUNE}
    words = {name: "\n".join(lines).strip() for name, lines in parts.items()} | {"job": _OUTSIDE}
    console = _console()
    console.print(f"{words.get(section) or inspect.getdoc(SECTIONS[section])}\n")
    if rows := _rows(section):
        _print_rows(rows)
    if section == "theory":
        console.print(f"Theorems: {', '.join(GROUPS['theorems'].members)}")
    console.print(f"\nFor example:\n\n{EXAMPLES[section]}")


def _print_setting(section: str, key: str) -> None:
    """One setting of a section; of one that takes a name, also the names."""
    rows = [row for row in _rows(section) if row.name == key]
    if not rows:
        known = [row.name for row in _rows(section)]
        raise ConfigError(f"[{section}] has no setting {key!r}: {suggest(key, known)}")
    _print_rows(rows)
    for group in GROUPS.values():
        if group.setting == f"{section}.{key}":
            _print_group(group)


def _print_group(group: Group) -> None:
    """Things of a kind, and how a job asks for one."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for column in (group.one, "what it is"):
        table.add_column(column, overflow="fold")
    for name, thing in group.members.items():
        table.add_row(name, _first_line(thing))
    console = _console()
    console.print(table)
    some = [text for name, thing in group.members.items() if (text := in_a_job(group, name, thing))]
    console.print(f"\nFor example: {max(some[:3], key=len)}" if some else "")
    console.print("The settings of each: mpifed info NAME")


def in_a_job(group: Group, name: str, thing) -> str:
    """How a job asks for a thing, with the settings that have no default; "" where no setting does."""
    cls = getattr(thing, "cls", thing)
    if not group.setting or (isinstance(cls, type) and not dataclasses.is_dataclass(cls)):
        return ""
    needed = {}
    for field in dataclasses.fields(thing) if isinstance(cls, type) else ():
        if field.init and default_of(field) is dataclasses.MISSING:
            needed[field.name] = _PLAUSIBLE.get(str(getattr(field.type, "__name__", field.type)), "...")
    needed |= {key: value for key, value in getattr(cls, "example", {}).items() if key in needed}
    return f"{group.setting} = {toml({'name': name, **needed}) if needed else toml(name)}"


def print_citation(name: str) -> None:
    """The BibTeX entries of a method, a problem, a matrix or a data set.

    Raises:
        ConfigError: there is no such name.
        ValueError: a class cites a key that the bibliography does not have.
    """
    known, _, thing = _found(name)
    if keys := cites_of(known, thing):
        echo(bibtex(keys))
    else:
        echo(f"{known} names no source in the bibliography")


def _found(name: str) -> tuple[str, str, object]:
    """The name as it is written, the group and the thing itself."""
    for group, (members, *_) in GROUPS.items():
        for known, thing in members.items():
            if known.lower() == name.lower():
                return known, group, thing
    if ":" not in name:
        kinds = [word for plural, group in GROUPS.items() for word in (plural, group.one, *group.members)]
        names = [*kinds, *EXAMPLES, "settings"]
        raise ConfigError(f"nothing is called {name!r}: {suggest(name, names)}")
    try:
        return name, "methods", find(name, "algorithm")
    except ConfigError as error:
        with contextlib.suppress(ConfigError):
            return name, "problems", find(name, "problem")
        raise error


def _print_thing(name: str, group: str, thing) -> None:
    console = _console()
    console.print(f"{name}  ({group})", style="bold")
    if source := getattr(thing, "source", ""):
        console.print(f"source: {source}")
    if family := getattr(thing, "family", ""):
        console.print(f"problem family: {family}")
    console.print(f"\n{inspect.getdoc(thing) or 'no description'}\n")
    cls = getattr(thing, "cls", thing)
    if isinstance(cls, type) and dataclasses.is_dataclass(cls):
        _print_rows(rows_of(thing))
    elif isinstance(thing, Theorem):
        _print_theorem(console, thing)
    elif dataclasses.is_dataclass(thing):
        _print_values(thing)
    if name in GROUPS[group].members and (text := in_a_job(GROUPS[group], name, thing)):
        console.print(f"\nFor example: {text}\n")
    if isinstance(cls, type) and issubclass(cls, Algorithm):
        _print_method(console, example(thing))
        console.print(Markdown("---\n" + (inspect.getdoc(sys.modules[cls.__module__]) or "")))


def _print_rows(rows: Iterable[Row]) -> None:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for column in ("setting", "values", "default", "effect"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    _console().print(table)


def _print_theorem(console: Console, theorem: Theorem) -> None:
    """What a theorem is about, and its constants."""
    console.print(f"of {', '.join(theorem.methods)}; bounds {theorem.of}")
    needed = [name for name, given in theorem.constants.items() if given]
    free = [name for name, given in theorem.constants.items() if not given]
    console.print(f"constants: {', '.join(needed)}" + (f"; may be given: {', '.join(free)}" if free else ""))
    known = ", ".join(f"{letter} ({what})" for letter, what in theorem.letters.items())
    console.print(f"which the job tells: {known}; the problem may tell others" if known else "")


def _print_values(reader) -> None:
    """What a reader of a data set was made with."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for column in ("setting", "value"):
        table.add_column(column, overflow="fold")
    for field in dataclasses.fields(reader):
        table.add_row(field.name, str(getattr(reader, field.name)))
    _console().print(table)


def _print_method(console: Console, method: Algorithm) -> None:
    """Records, phases and cost of a method with its default options."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for column in ("record", "fields (kind)"):
        table.add_column(column, overflow="fold")
    for record in ("shared", "client"):
        table.add_row(record, _fields(getattr(method, record)))
    for when, phases in (("once", method.start), ("every round", method.phases)):
        messages = {phase.name: phase.message for phase in phases}
        for name, times in Counter(phase.name for phase in phases).items():
            often = when if times == 1 else f"{times} times {when}"
            table.add_row(f"message of {name!r} ({often})", _fields(messages[name]))
    console.print(table)
    steps = f"{method.calls_per_step} evaluation(s) a local step"
    console.print(
        f"cost per client and round, with the default options: {len(method.phases)} phase(s); {steps}"
    )
    if method.paper_cost:
        console.print(f"  in the papers (D numbers of variables): {method.paper_cost}")
    part = "yes" if method.partial_participation else "no, every client in every round"
    console.print(f"  partial participation: {part}")
    console.print("  bytes up and down are observed while a method runs, and stand in its results")


def _fields(record: Record) -> str:
    return ", ".join(f"{name} ({_kind(kind)})" for name, kind in record.fields.items()) or "none"


def _kind(kind) -> str:
    """A field's kind in words: a block's name, several, or a kind that says more than a size."""
    if isinstance(kind, str):
        return kind
    if isinstance(kind, tuple):
        return " + ".join(kind)
    if hasattr(kind, "of"):
        return f"{kind.block}, adaptive, of {kind.of}"
    return f"{_kind(kind.kind)}, {type(kind).__name__.lower()}"
