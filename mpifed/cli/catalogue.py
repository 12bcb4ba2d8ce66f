"""What there is, and what each thing takes: the texts of ``mpifed list`` and ``mpifed info``."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import sys
from collections import Counter
from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from mpifed.algorithms import ALGORITHMS
from mpifed.cli.settings_page import Row, default_of, rows_of, settings_page
from mpifed.config.plugins import find
from mpifed.config.sections import SECTIONS
from mpifed.core.adaptive import MATRICES
from mpifed.core.algorithm import Algorithm
from mpifed.core.compression import COMPRESSIONS
from mpifed.core.errors import ConfigError
from mpifed.core.mirrors import MIRRORS
from mpifed.core.noise import NOISES
from mpifed.core.participation import LAWS
from mpifed.core.records import Record
from mpifed.core.references import bibtex, cites_of
from mpifed.core.schedules import SCHEDULES
from mpifed.core.sets import SETS
from mpifed.core.settings import build, near_miss
from mpifed.data import DATASETS, OWN, OWN_TEXTS, TEXTS
from mpifed.data.partition import PARTITIONS
from mpifed.models import MODELS
from mpifed.problems import PROBLEMS

__all__ = ["catalogue", "print_catalogue", "print_citation", "print_info", "example"]

GROUPS = {
    "methods": ALGORITHMS,
    "problems": PROBLEMS,
    "datasets": DATASETS,
    "texts": TEXTS,
    "own data": {**OWN, **OWN_TEXTS},
    "models": MODELS,
    "partitions": PARTITIONS,
    "matrices": MATRICES,
    "schedules": SCHEDULES,
    "noises": NOISES,
    "laws": LAWS,
    "compressions": COMPRESSIONS,
    "sets": SETS,
    "mirrors": MIRRORS,
}


def catalogue() -> dict[str, dict[str, str]]:
    """Group → name → one line."""
    return {
        group: {name: _first_line(one) for name, one in members.items()} for group, members in GROUPS.items()
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
    """Everything about a name of the catalogue, a section of a job file, or a user's own class.

    ``settings`` prints the page docs/settings.md.

    Raises:
        ConfigError: there is no such name.
    """
    if name == "settings":
        print(settings_page(), end="")
    elif name.strip("[]") in SECTIONS:
        section = SECTIONS[name.strip("[]")]
        _console().print(f"{inspect.getdoc(section)}\n")
        _print_rows(rows_of(section))
    else:
        _print_thing(*_found(name))


def print_citation(name: str) -> None:
    """The BibTeX entries of a method, a problem, a matrix or a data set.

    Raises:
        ConfigError: there is no such name.
        ValueError: a class cites a key that the bibliography does not have.
    """
    known, _, thing = _found(name)
    if keys := cites_of(known, thing):
        print(bibtex(keys))
    else:
        print(f"{known} names no source in the bibliography")


def _found(name: str) -> tuple[str, str, object]:
    """The name as it is written, the group and the thing itself."""
    for group, members in GROUPS.items():
        for known, thing in members.items():
            if known.lower() == name.lower():
                return known, group, thing
    if ":" not in name:
        names = [*(one for members in GROUPS.values() for one in members), *SECTIONS, "settings"]
        raise ConfigError(f"nothing is called {name!r}: {near_miss(name, names)}")
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
    elif dataclasses.is_dataclass(thing):
        _print_values(thing)
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
