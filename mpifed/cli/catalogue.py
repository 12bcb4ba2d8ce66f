"""What there is, and what each thing takes: the texts of ``mpifed list`` and ``mpifed info``."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections import Counter

from pydantic.fields import FieldInfo
from rich import box
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from mpifed.algorithms import ALGORITHMS
from mpifed.config.job import describe, find
from mpifed.core.adaptive import MATRICES
from mpifed.core.algorithm import Algorithm
from mpifed.core.noise import NOISES
from mpifed.core.records import Record
from mpifed.core.schedules import SCHEDULES
from mpifed.core.sets import SETS
from mpifed.core.settings import Preset, build, near_miss
from mpifed.data import DATASETS, TEXTS
from mpifed.data.partition import PARTITIONS
from mpifed.models import MODELS
from mpifed.problems import PROBLEMS

__all__ = ["catalogue", "print_catalogue", "print_info", "example"]

GROUPS = {
    "methods": ALGORITHMS,
    "problems": PROBLEMS,
    "datasets": DATASETS,
    "texts": TEXTS,
    "models": MODELS,
    "partitions": PARTITIONS,
    "matrices": MATRICES,
    "schedules": SCHEDULES,
    "noises": NOISES,
    "sets": SETS,
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
    """An instance of a class of settings: those given, its own ``example``, then 4 (whole numbers) or 0.01 (others).

    Raises:
        ValueError: the settings do not fit.
    """
    filled = {**getattr(cls, "example", {}), **(settings or {})}
    for field in dataclasses.fields(cls):
        if field.init and _default(field) is dataclasses.MISSING and field.name not in filled:
            filled[field.name] = 4 if field.type in (int, "int") else 0.01
    return build(cls, filled, cls.__name__)


def _default(field: dataclasses.Field):
    """A field's default, whether it is written in dataclass or in pydantic manner; MISSING for none."""
    default = field.default
    if isinstance(default, FieldInfo):
        return (
            dataclasses.MISSING if default.is_required() else default.get_default(call_default_factory=True)
        )
    return default if field.default_factory is dataclasses.MISSING else field.default_factory()


def print_info(name: str) -> None:
    """Everything about a name of the catalogue or a user's own class.

    Raises:
        ConfigError, ValueError: there is no such name.
    """
    console = _console()
    for group, members in GROUPS.items():
        for known, thing in members.items():
            if known.lower() == name.lower():
                return _print_thing(console, known, group, thing)
    if ":" in name:
        return _print_user_class(console, name)
    from mpifed.config.job import ConfigError

    raise ConfigError(
        f"nothing is called {name!r}: {near_miss(name, [one for members in GROUPS.values() for one in members])}"
    )


def _print_user_class(console: Console, name: str) -> None:
    from mpifed.config.job import ConfigError

    try:
        found, group = find(name, "algorithm"), "methods"
    except ConfigError:
        found, group = find(name, "problem"), "problems"
    _print_thing(console, name, group, found)


def _print_thing(console: Console, name: str, group: str, thing) -> None:
    console.print(f"{name}  ({group})", style="bold")
    if source := getattr(thing, "source", ""):
        console.print(f"source: {source}")
    if family := getattr(thing, "family", ""):
        console.print(f"problem family: {family}")
    console.print(f"\n{inspect.getdoc(thing) or 'no description'}\n")
    if dataclasses.is_dataclass(thing):
        _print_settings(console, thing)
    kind = thing.cls if isinstance(thing, Preset) else thing
    if isinstance(kind, type) and issubclass(kind, Algorithm):
        _print_method(console, example(thing))
        console.print(Markdown("---\n" + (inspect.getdoc(sys.modules[thing.__module__]) or "")))


def _print_settings(console: Console, cls) -> None:
    """Settings of a class with their defaults, or the values that an object (a reader of a data set) has."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    made = not isinstance(cls, type | Preset)
    for column in ("setting", "value" if made else "default", "" if made else "role"):
        table.add_column(column, overflow="fold")
    for field in dataclasses.fields(cls):
        if made:
            table.add_row(field.name, str(getattr(cls, field.name)))
        elif field.init:
            default = _default(field)
            shown = "required" if default is dataclasses.MISSING else str(describe(default))
            role = field.default.description if isinstance(field.default, FieldInfo) else ""
            table.add_row(field.name, shown, role or "")
    console.print(table)


def _print_method(console: Console, method: Algorithm) -> None:
    """Records, phases and cost of a method with its default options."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for column in ("record", "fields (kind)"):
        table.add_column(column, overflow="fold")
    for record in ("shared", "coordinator", "client"):
        table.add_row(record, _fields(getattr(method, record)))
    for when, phases in (("once", method.start), ("every round", method.phases)):
        for phase in phases:
            table.add_row(f"message of {phase.name!r} ({when})", _fields(phase.message))
    console.print(table)
    up = sum((_sizes(phase.message, phase.up or phase.message.fields) for phase in method.phases), Counter())
    down = sum(
        (_sizes(method.shared, phase.down or method.shared.fields) for phase in method.phases), Counter()
    )
    console.print("cost per client and round:")
    console.print(
        f"  counted, with the default options: up {_sum(up)}; down {_sum(down)}; {len(method.phases)} phase(s); "
        f"{method.calls_per_step} evaluation(s) a local step"
    )
    if method.paper_cost:
        console.print(f"  in the papers (D numbers of variables): {method.paper_cost}")
    part = "yes" if method.partial_participation else "no, every client in every round"
    console.print(f"  partial participation: {part}")


def _fields(record: Record) -> str:
    return (
        ", ".join(
            f"{name} ({kind if isinstance(kind, str) else ' + '.join(kind)})"
            for name, kind in record.fields.items()
        )
        or "none"
    )


def _sizes(record: Record, names) -> Counter:
    kinds = [record.fields[name] for name in names]
    return Counter(one for kind in kinds for one in ([kind] if isinstance(kind, str) else kind))


def _sum(sizes: Counter) -> str:
    terms = [
        ("" if count == 1 else f"{count}") + (f"|{kind}|" if kind != "scalar" else "1")
        for kind, count in sizes.items()
    ]
    return " + ".join(terms) or "nothing"
