"""Descriptions of settings and named objects: the output of ``mpifed list`` and ``mpifed info``."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import re
import sys
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from mpifed.algorithms import ALGORITHMS
from mpifed.algorithms.fedavg import SERVERS
from mpifed.algorithms.local_optimisers import LOCAL_OPTIMISERS
from mpifed.algorithms.mime import BASES
from mpifed.base.bibliography import bibtex, cites_of
from mpifed.base.errors import ConfigError
from mpifed.base.settings import build, default_of, join_names, settings_of, suggest
from mpifed.cli.output import console, echo, print_markdown, print_table
from mpifed.cli.schema import Row, rows_of, toml
from mpifed.config.job import SECTIONS, Config
from mpifed.config.plugins import find_class
from mpifed.config.tuning import EXAMPLE, Tune
from mpifed.core.adaptive import MATRICES
from mpifed.core.algorithm import Algorithm
from mpifed.core.compression import COMPRESSIONS
from mpifed.core.directions import DIRECTIONS
from mpifed.core.metrics import CLIENTS, VALIDATION, Column
from mpifed.core.noise import NOISES
from mpifed.core.participation import AVAILABILITY_MODELS
from mpifed.core.problem import Minimisation, Problem
from mpifed.core.ranking import METRICS
from mpifed.core.records import Record
from mpifed.core.schedules import SCHEDULES
from mpifed.core.sets import MIRRORS, PROXIMALS, SETS
from mpifed.data import DATASETS, TEXTS, USER_DATASETS, USER_TEXTS
from mpifed.data.partition import PARTITIONS
from mpifed.models import MODELS
from mpifed.problems import PROBLEMS
from mpifed.theory import THEOREMS, Theorem

__all__ = [
    "EXAMPLES", "GROUPS", "Group", "catalogue", "example", "example_line", "example_settings",
    "print_catalogue", "print_citation", "print_info", "settings_page",
]  # fmt: skip


class Group(NamedTuple):
    """Objects of one type.

    Attributes:
        members: name → class or object.
        singular: the word for one member, e.g. "partition".
        setting: the setting of a job file whose value is a member; "" if there are several such settings.
        note: a sentence for the page of settings.
    """

    members: Mapping[str, Any]
    singular: str
    setting: str
    note: str = ""


GROUPS = {
    "methods": Group(
        ALGORITHMS, "algorithm", "algorithm", "`mpifed info NAME` shows the *Readings* of a method."
    ),
    "problems": Group(PROBLEMS, "problem", "problem"),
    "datasets": Group(DATASETS, "dataset", "problem.dataset"),
    "texts": Group(TEXTS, "text", "problem.dataset"),
    "user-defined data": Group(
        {**USER_DATASETS, **USER_TEXTS}, "data format", "problem.dataset", "See [Your own data](own_data.md)."
    ),
    "models": Group(MODELS, "model", "problem.model"),
    "partitions": Group(PARTITIONS, "partition", "problem.partition"),
    "matrices": Group(MATRICES, "matrix", "algorithm.matrix"),
    "directions": Group(DIRECTIONS, "direction", "algorithm.direction"),
    "servers": Group(SERVERS, "server", "algorithm.server"),
    "base optimisers": Group(BASES, "base optimiser", "algorithm.base"),
    "local optimisers": Group(LOCAL_OPTIMISERS, "local optimiser", "algorithm.local"),
    "schedules": Group(
        SCHEDULES, "schedule", "algorithm.eta", "For every *number or schedule*; a number is `constant`."
    ),
    "noises": Group(NOISES, "noise", "oracle.noise"),
    "availability": Group(AVAILABILITY_MODELS, "availability model", "participation.availability"),
    "compressions": Group(COMPRESSIONS, "compression", "message.compression"),
    "sets": Group(SETS, "set", "", "For problems with a set among their settings."),
    "convex functions": Group(PROXIMALS, "phi", "problem.phi"),
    "mirror maps": Group(MIRRORS, "mirror", "algorithm.mirror"),
    "metrics": Group(
        METRICS, "metric", "", "`metrics`: a list of names, or of tables with the name and settings."
    ),
    "theorems": Group(THEOREMS, "theorem", "theory.of"),
}

#: Section → example. "job" is a whole job file.
EXAMPLES = {
    "job": """\
rounds = 100
seed = 0
[algorithm]
name = "FGDA"
q = 10
[problem]
name = "DeepAUC"
dataset = "digits"
model = "mlp"
clients = 8
[run]
out = "runs/first\"""",
    "oracle": """\
[oracle]
batch_size = 16
noise = { name = "gaussian", scale = 0.1 }""",
    "participation": """\
[participation]
cohort = 4          # clients per round
dropout = 0.1""",
    "message": """\
[message]
compression = { name = "top-k", ratio = 0.01 }
error_feedback = true""",
    "stop": """\
[stop]
metric = "error"    # the columns of a report are the metrics of a problem
at_most = 0.01
patience = 10       # evaluations without an improvement
seconds = "2h\"""",
    "run": """\
[run]
out = "runs/first"
dtype = "float64"
eval_every = 5
checkpoint_every = 20""",
    "clock": """\
[clock]
bandwidth_down = "100Mbit/s"
bandwidth_up = "10MB/s"
gradients_per_second = "500/s"
latency = "20ms\"""",
    "measures": """\
[measures]
of = ["stationarity", "phi"]
ell = 10.0""",
    "personalize": """\
[personalize]       # with problem.local_test = 0.2, on samples that no client trains on
step_size = 0.05
steps = 20""",
    "regularize": """\
[regularize]
x = 0.1""",
    "theory": """\
[algorithm]
name = "LESGD"
K = 10
eta = "theorem"
[problem]
name = "AffineGame"
clients = 4
[theory]
of = "wang-kale-2"
D = 10.0""",
    "sweep": """\
[sweep]
seed = [0, 1, 2]
"algorithm.gamma" = [0.01, 0.1]    # with three seeds, six runs: mpifed sweep JOB""",
    "tune": EXAMPLE.strip(),
}

#: Descriptions of the sections that are not classes of settings.
DESCRIPTIONS = {
    "job": f"""A job file: settings of the whole run, then [algorithm] and [problem], each with a name, and
optional sections: {", ".join(name for name in EXAMPLES if name != "job")}.
`mpifed info SECTION` explains a section, `mpifed list` prints the names.""",
    "theory": """\
The name of a theorem, `of`, and values of its constants. A step size in `[algorithm]` may then be
`"theorem"`, or a table with `name = "theorem"`, optionally with its own `of` and constants, and
`times`, a factor of the step size. See [Theory](theory.md).""",
    "sweep": """\
Lists of values of settings by their dotted names. Every combination is a run. Several `[[sweep]]`
tables are expanded separately. `algorithm` and `problem` may be lists of tables, whose settings
may be lists, too.""",
    "tune": """\
A search for the best settings of several methods, with comparable budgets: `mpifed tune`. In the
table of a method, a value is fixed, a list is a choice, and `{ low = 1e-3, high = 1.0 }` is a range that is
searched on a logarithmic scale; the same holds for nested tables. Floats that are left out are searched in
default ranges: weights from .01 to 1, decays such that 1 minus the decay is from .001 to 1, others from 1e-4
to 1. Integers, and floats whose default is 1, unset or infinite, keep their default. See
[Tuning](tuning.md).""",
}
#: Algorithm.projects → where y is projected, for `mpifed info`.
PROJECTED = {"clients": "clients", "server": "server, so clients may see different coordinates of y"}
#: The settings of a job file outside its sections.
TOP_LEVEL = [
    name for name in Config.model_fields if name not in {*SECTIONS, "algorithm", "problem", "theory"}
]
#: Values for settings without a default of objects that are not methods, by type.
_PLAUSIBLE = {"int": 4, "float": 0.1}
_PLAUSIBLE |= {"Probabilities": 0.5, "tuple[float, ...]": [0.1, 0.2]}


def catalogue(word: str = "") -> dict[str, dict[str, str]]:
    """Return the first paragraph of the docstring of every object, by group and name.

    Args:
        word: a text that the group, the name or the paragraph must contain, in upper or lower case.
    """
    groups: dict[str, dict[str, str]] = {}
    for group, (members, *_) in GROUPS.items():
        for name, obj in members.items():
            text = _summary(obj)
            if word.lower() in f"{group}\n{name}\n{text}".lower():
                groups.setdefault(group, {})[name] = text
    return groups


def _summary(obj) -> str:
    return (inspect.getdoc(obj) or "").split("\n\n")[0].replace("\n", " ")


def print_catalogue(groups: dict[str, dict[str, str]]) -> None:
    """Print groups as one table."""
    rows: list = []
    for group, members in groups.items():
        first = next(iter(members), None)
        rows += [(group if name == first else "", name, line) for name, line in members.items()] + [None]
    print_table(("", "name", ""), rows, paged=True)


def example(cls: type, settings: dict | None = None):
    """Construct an instance of a class of settings.

    Raises:
        ConfigError: the settings are wrong, or the class is not a dataclass.
    """
    return build(cls, example_settings(cls, settings), cls.__name__)


def example_settings(cls: type, settings: dict | None = None) -> dict:
    """Return ``settings``, the values of the class attribute ``example``, and values for the other settings
    without a default: 4 for integers, else 0.01. The earlier of these has precedence.
    """
    filled = {**getattr(cls, "example", {}), **(settings or {})}
    for field in _required(cls):
        filled.setdefault(field.name, 4 if field.type in (int, "int", "LocalSteps") else 0.01)
    return {name: filled.pop(name) for name in settings_of(cls) if name in filled} | filled


def _required(cls) -> list[dataclasses.Field]:
    """Return the settings without a default."""
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    return [field for field in fields if field.init and default_of(field) is dataclasses.MISSING]


def print_info(name: str) -> None:
    """Explain an object, a group, a section or a setting of job files, or a user-defined class.

    ``settings`` prints the page of all settings.

    Raises:
        ConfigError: there is no such name.
    """
    bare_name = name.strip("[]")
    section, _, key = bare_name.partition(".")
    groups = {word: group for plural, group in GROUPS.items() for word in (plural, group.singular)}
    if name == "settings":
        echo(settings_page(), nl=False)
    elif bare_name in groups:
        _print_group(groups[bare_name])
    elif section not in SECTIONS and (named := [g for g in GROUPS.values() if g.setting == name]):
        for group in named:
            _print_group(group)
    elif section in EXAMPLES and ":" not in name:
        _print_setting(section, key) if key else _print_section(section)
    elif bare_name in TOP_LEVEL:
        _print_setting("job", bare_name)
    else:
        _print_object(*_find(name))


def _rows(section: str) -> list[Row]:
    if section == "job":
        return rows_of(Config, TOP_LEVEL)
    record = {**SECTIONS, "tune": Tune}.get(section)
    return rows_of(record) if record else []


def _print_section(section: str) -> None:
    print_markdown(DESCRIPTIONS.get(section) or inspect.getdoc(SECTIONS[section]))
    echo()
    if rows := _rows(section):
        _print_rows(rows)
    if section == "theory":
        console().print(f"Theorems: {', '.join(GROUPS['theorems'].members)}")
    echo(f"\nFor example:\n\n{EXAMPLES[section]}")


def _print_setting(section: str, key: str) -> None:
    """Print one setting of a section, with the possible names if it takes a name."""
    rows = [row for row in _rows(section) if row.name == key]
    if not rows:
        known = [row.name for row in _rows(section)]
        raise ConfigError(f"[{section}] has no setting {key!r}: {suggest(key, known)}")
    _print_rows(rows)
    for group in GROUPS.values():
        if group.setting == f"{section}.{key}":
            _print_group(group)


def _print_rows(rows: list[Row]) -> None:
    print_table(("setting", "values", "default", "effect"), rows)


def _print_group(group: Group) -> None:
    print_table(
        (group.singular, "description"), ((name, _summary(member)) for name, member in group.members.items())
    )
    some = [text for name, obj in group.members.items() if (text := example_line(group, name, obj))]
    if some:
        echo(f"\nFor example: {max(some[:3], key=len)}")
    echo("The settings of each: mpifed info NAME")


def example_line(group: Group, name: str, obj) -> str:
    """Return a line of a job file that selects an object, with its required settings; "" if there is none."""
    if not group.setting or (isinstance(obj, type) and not dataclasses.is_dataclass(obj)):
        return ""
    if isinstance(obj, type) and issubclass(obj, Algorithm):
        values = example_settings(obj)
    else:
        required = _required(obj) if isinstance(obj, type) else ()
        values = {
            field.name: _PLAUSIBLE.get(str(getattr(field.type, "__name__", field.type)), "...")
            for field in required
        }
    return f"{group.setting} = {toml({'name': name, **values}) if values else toml(name)}"


def print_citation(name: str) -> None:
    """Print the BibTeX entries of the sources of an object.

    Raises:
        ConfigError: there is no such name.
        ValueError: a class cites a key that is not in the bibliography.
    """
    known, _, obj = _find(name)
    keys = cites_of(known, obj)
    echo(bibtex(keys) if keys else f"the bibliography has no source of {known}")


def _find(name: str) -> tuple[str, str, Any]:
    """Return the name of an object in its exact spelling, its group, and the object."""
    for group, (members, *_) in GROUPS.items():
        for known, obj in members.items():
            if known.lower() == name.lower():
                return known, group, obj
    if ":" not in name:
        if places := [f"`mpifed info {place}`" for place in _places_of(name.rpartition(".")[2])]:
            raise ConfigError(f"{name!r} is a setting: see {join_names(places)}")
        options = [*EXAMPLES, *TOP_LEVEL, "settings"]
        for plural, group in GROUPS.items():
            options += [plural, group.singular, *group.members]
        raise ConfigError(f"unknown name {name!r}: {suggest(name, options)}")
    try:
        return name, "methods", find_class(name, "algorithm")
    except ConfigError as error:
        with contextlib.suppress(ConfigError):
            return name, "problems", find_class(name, "problem")
        raise error


def _places_of(key: str) -> list[str]:
    """Return the settings of sections called ``key``, and the objects with such a setting."""
    sections = [f"{section}.{key}" for section in SECTIONS if any(row.name == key for row in _rows(section))]
    members = {name: obj for group in GROUPS.values() for name, obj in group.members.items()}
    return sections + [name for name, obj in members.items() if key in settings_of(obj)]


def family_of(obj) -> str:
    """Return the problem family of a method or a problem for users; empty for other objects.

    A minimisation is stored as a minimax problem without y, since methods for minimax problems solve it.
    """
    if isinstance(obj, type) and issubclass(obj, Minimisation):
        return "minimisation"
    return getattr(obj, "family", "")


def _print_object(name: str, group: str, obj) -> None:
    screen = console()
    screen.print(f"{name}  ({group})", style="bold")
    for label, value in (("source", getattr(obj, "source", "")), ("problem family", family_of(obj))):
        if value:
            screen.print(f"{label}: {value}")
    if getattr(obj, "separate_coordinates", False):
        methods = ", ".join(known for known, cls in ALGORITHMS.items() if cls.projects == "server")
        screen.print(
            f"clients see different coordinates of y: for methods that project at the server ({methods})"
        )
    echo()
    print_markdown(inspect.getdoc(obj) or "no description")
    echo()
    if isinstance(obj, type) and dataclasses.is_dataclass(obj):
        _print_rows(rows_of(obj))
    elif isinstance(obj, Theorem):
        _print_theorem(obj)
    elif dataclasses.is_dataclass(obj):  # the reader of a data set
        values = ((field.name, str(getattr(obj, field.name))) for field in dataclasses.fields(obj))
        print_table(("setting", "value"), values)
    if name in GROUPS[group].members and (text := example_line(GROUPS[group], name, obj)):
        echo(f"\nFor example: {text}\n")
    if isinstance(obj, type) and issubclass(obj, Algorithm):
        _print_method(example(obj))
        print_markdown("---\n" + (inspect.getdoc(sys.modules[obj.__module__]) or ""))
    if isinstance(obj, type) and issubclass(obj, Problem):
        _print_metrics(obj)


def _print_metrics(problem: type[Problem]) -> None:
    """Print the names of the metrics of a problem, and the docstring of the function that computes them."""
    if problem.metrics is Problem.metrics:
        return
    # A user-defined class may have a property of this name, whose value is unknown.
    declared = problem.maximised if isinstance(problem.maximised, Collection) else ()
    function, listed = (
        next(k for k, cls in enumerate(problem.__mro__) if name in vars(cls))
        for name in ("metrics", "metric_names")
    )
    names = problem.metric_names if listed <= function else ()  # a derived class may compute others
    maximised = [name for name in names if name in declared] or sorted(declared)
    minimised = (
        [name for name in names if name not in declared] if names else ["all others" if maximised else "all"]
    )
    screen = console()
    screen.print("metrics, by the names in the history, in stop.metric and in tune.metric")
    for goal, of_goal in (("maximised", maximised), ("minimised", minimised)):
        if of_goal:
            screen.print(f"  {goal}: {', '.join(of_goal)}")
    if maximised and problem.tested_on is not Problem.tested_on:
        validation, training, clients = (
            Column(maximised[0], *other).name for other in ((VALIDATION,), ("train",), (CLIENTS, "mean"))
        )
        screen.print(f"  of other samples: {validation}; with run.evaluate_on {training}, {clients}")
    if problem.metrics.__doc__:
        print_markdown(inspect.cleandoc(problem.metrics.__doc__))


def _print_theorem(theorem: Theorem) -> None:
    screen = console()
    screen.print(f"methods: {', '.join(theorem.methods)}; bounds {theorem.of}")
    required = [name for name, given in theorem.constants.items() if given]
    optional = [name for name, given in theorem.constants.items() if not given]
    others = f"; optional: {', '.join(optional)}" if optional else ""
    screen.print(f"constants: {', '.join(required)}{others}")
    if known := ", ".join(f"{letter} ({what})" for letter, what in theorem.letters.items()):
        screen.print(f"taken from the job: {known}; a problem may provide others")


def _print_method(method: Algorithm) -> None:
    """Print records, phases, cost and projection of a method with its default options."""
    rows = [(record, _fields(getattr(method, record))) for record in ("shared", "client")]
    for when, phases in (("once", method.start), ("every round", method.phases)):
        messages = {phase.name: phase.message for phase in phases}
        conditional = {phase.name for phase in phases if phase.when}
        for name, times in Counter(phase.name for phase in phases).items():
            frequency = when if times == 1 else f"{times} times {when}"
            frequency = "some rounds" if name in conditional else frequency
            rows.append((f"message of {name!r} ({frequency})", _fields(messages[name])))
    print_table(("record", "fields (shape)"), rows)
    partial = "yes" if method.partial_participation else "no, every client in every round"
    screen = console()
    screen.print(
        f"cost per client and round, with the default options: {len(method.phases)} phase(s), "
        f"{method.calls_per_step} evaluation(s) per local step"
    )
    if paper_cost := method.paper_cost:
        screen.print(f"  in the papers (D is the number of variables): {paper_cost}")
    screen.print(f"  partial participation: {partial}")
    if method.constrained and method.family in ("minimax", "operator"):
        screen.print(f"  projection of y: at the {PROJECTED[method.projects]}")
    screen.print("  bytes up and down are measured during a run and stored in its results")
    screen.print(f"output, unless the job sets it: {_output_of(method)}")


def _output_of(method: Algorithm) -> str:
    if method.output == "last":
        return "the last iterate"
    fields = ", ".join(f"shared.{field}" for field in dict.fromkeys(method.averages.values()))
    return f"the average in {fields}" if fields else "the average of the iterates after each round"


def _fields(record: Record) -> str:
    return (
        ", ".join(f"{name} ({_field_type(declared)})" for name, declared in record.fields.items()) or "none"
    )


def _field_type(declared) -> str:
    """Describe the declared type of a record's field, e.g. "x", "x + y" or "x, not sent"."""
    if isinstance(declared, str | tuple):
        return declared if isinstance(declared, str) else " + ".join(declared)
    if hasattr(declared, "of"):
        return f"{declared.block}, adaptive, of {declared.of}"
    words = re.sub("(?<=[a-z])(?=[A-Z])", " ", type(declared).__name__).lower()
    return f"{_field_type(declared.type)}, {words}"


def settings_page() -> str:
    """Return a page in Markdown: every setting with its values, default and effect."""
    lines = [
        "# Settings",
        "",
        "Every setting of a job file. On the command line a setting is `section.key=value`, e.g.",
        "`run.out=runs/a`. *Required* settings have no default; *unset* is the same as left out.",
        "",
        "## The run as a whole",
        "",
        *_page_table(rows_of(Config, TOP_LEVEL)),
        *(line for name, section in SECTIONS.items() for line in _page_section(f"## `[{name}]`", section)),
    ]
    for section in ("theory", "sweep", "tune"):
        lines += [f"## `[{section}]`", "", *DESCRIPTIONS[section].split("\n"), ""]
    lines += _page_table(rows_of(Tune))
    for heading, group in GROUPS.items():
        if all(isinstance(cls, type) and dataclasses.is_dataclass(cls) for cls in group.members.values()):
            how = (
                f"`{group.setting}`: a name, or a table with the name and settings." if group.setting else ""
            )
            lines += [f"## {heading.capitalize()}", "", " ".join(filter(None, [how, group.note])), ""]
            for name, cls in group.members.items():
                lines += _page_section(f"### `{name}`", cls)
    return "\n".join(lines)


def _page_section(heading: str, cls) -> list[str]:
    words = [_summary(cls), f"*Source: {cls.source}.*" if getattr(cls, "source", "") else ""]
    paragraphs = [part for word in words if word for part in (word, "")] if heading.startswith("###") else []
    return [heading, "", *paragraphs, *_page_table(rows_of(cls))]


def _page_table(rows: list[Row]) -> list[str]:
    if not rows:
        return ["No settings.", ""]
    lines = ["| setting | values | default | effect |", "|---|---|---|---|"]
    for name, values, default, effect in rows:
        default = f"*{default}*" if default in ("required", "unset") else f"`{default}`"
        cells = (cell.replace("|", r"\|") for cell in (f"`{name}`", values, default, effect))
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]
