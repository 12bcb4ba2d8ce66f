"""Grids: the runs that the table ``[sweep]`` of a job file describes, and the names of their folders.

``[sweep]`` contains dotted names of settings and lists of values. Every combination is a run::

    [sweep]
    seed = [0, 1, 2]
    "problem.lam" = [0.001, 0.01]
    algorithm = [
        { name = "FESSGDA", eta_x = [0.01, 0.1], eta_y = 0.1 },
        { name = "FSGDA", eta_x = [0.01, 0.1], eta_y = [0.01, 0.1] },
    ]

A list is always a choice, also inside a table that is itself a choice. A setting whose value is a list is
written as a list in that list. Here the first method has 2 settings and the second 4, which makes
(2 + 4) · 2 · 3 = 36 runs. Several tables ``[[sweep]]`` have separate combinations, for settings that belong
together, such as rounds and a step size.

Each run has a folder in ``run.out``, whose name consists of the settings that distinguish the run from
others.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import itertools
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from mpifed.base.errors import ConfigError, short_repr, truncate
from mpifed.base.paths import expect_output_folder
from mpifed.base.plugins import short_names
from mpifed.config.job import Config
from mpifed.config.tables import read_job, set_key

T = TypeVar("T")

__all__ = [
    "Variant", "expand", "first_duplicate", "folder_names", "settings_name", "variant_tables", "select_part",
    "variants",
]  # fmt: skip

#: Maximum length of the name of a run's folder, in characters and in bytes (file systems admit 255 bytes). A
#: longer name is cut and ends in a digest.
MAX_CHARACTERS, MAX_BYTES = 120, 240
#: Maximum number of combinations of a sweep, of a search's tasks and of a job array.
MAX_RUNS = 10_000
#: Settings whose value is the name of a method or a problem; "name" is that of a method to tune.
_CLASS_NAMES = ("algorithm", "problem", "algorithm.name", "problem.name", "name")


class Variant(NamedTuple):
    """One run of a grid: its name, which its folder also has, and its configuration."""

    name: str
    config: Config


def expand(choices: dict) -> list[dict]:
    """Return all combinations of a table of choices, as flat tables ``{dotted setting: value}``.

    The first setting varies slowest.

    Raises:
        ConfigError: there are more than :data:`MAX_RUNS` combinations.
    """
    alternatives = []
    for key, values in choices.items():
        single = []
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, dict):
                single += expand({f"{key}.{name}": inner for name, inner in value.items()})
            else:
                single.append({key: value})
        alternatives.append(single)
    _expect_bounded(math.prod(map(len, alternatives)))
    return [
        {key: value for part in parts for key, value in part.items()}
        for parts in itertools.product(*alternatives)
    ]


def _expect_bounded(runs: int) -> None:
    if runs > MAX_RUNS:
        raise ConfigError(
            f"expected at most {MAX_RUNS:,} combinations of settings, got {runs:,}: split the job file"
        )


def variants(path: str | Path, overrides: list[str] = ()) -> list[Variant]:
    """Return the validated runs of a job file with a ``[sweep]``.

    Raises:
        ConfigError: as for :func:`variant_tables`, or the settings of a run are invalid.
    """
    runs = []
    for name, table in variant_tables(path, overrides).items():
        with _errors_of(name):
            runs.append(Variant(name, Config.from_table(table)))
    return runs


def variant_tables(path: str | Path, overrides: list[str] = ()) -> dict[str, dict]:
    """Return name → table of each run of a job file with a ``[sweep]``, without loading the named classes.

    Raises:
        ConfigError: the file has no sweep, a list is empty, or a run is duplicated.
    """
    table, file = read_job(path, overrides), truncate(str(path))
    if "tune" in table:
        raise ConfigError(
            f"{file} has a [tune], which describes a search for the best settings: start it with `mpifed "
            "tune`, which writes a file with a [sweep]"
        )
    choices = table.pop("sweep", None)
    grids = choices if isinstance(choices, list) else [choices]
    if not grids or not all(isinstance(grid, dict) and grid for grid in grids):
        raise ConfigError(
            f"{file} has no [sweep]: expected a table of lists, e.g. seed = [0, 1, 2], or on the command "
            "line 'sweep.seed=[0, 1, 2]'; a single run is started with `mpifed run`"
        )
    expanded = [expand(grid) for grid in grids]
    if not all(expanded):
        raise ConfigError("expected at least one value per setting in [sweep], got an empty list")
    combinations = [combination for grid in expanded for combination in grid]
    _expect_bounded(len(combinations))
    names = folder_names(combinations)
    if duplicate := first_duplicate(names):
        raise ConfigError(f"[sweep] lists the run {short_repr(duplicate)} more than once")
    return {name: _run_table(table, settings, name) for settings, name in zip(combinations, names)}


def _run_table(table: dict, settings: dict, name: str) -> dict:
    copied = copy.deepcopy(table)
    run = copied.setdefault("run", {})
    out = run.get("out", "runs/sweep") if isinstance(run, dict) else None
    if isinstance(out, str) and out.strip() and "\0" not in out:  # other values are refused by Config
        run["out"] = str(Path(expect_output_folder(out), name))
    with _errors_of(name):
        for key, value in settings.items():
            set_key(copied, key, value)
    return copied


@contextlib.contextmanager
def _errors_of(name: str) -> Iterator[None]:
    """A context that adds the name of a run to the messages of errors."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"[sweep] {name}: {error}") from error


def select_part(runs: Sequence[T], part: str) -> Sequence[T]:
    """Return every N-th run, beginning with run I.

    Args:
        part: "I/N" with 0 <= I < N.

    Raises:
        ConfigError: ``part`` has another form.
    """
    number = re.fullmatch(r"(\d+)/(\d+)", part)
    if not number or int(number[1]) >= int(number[2]):
        raise ConfigError(f"--part: expected I/N with 0 <= I < N, e.g. 0/4, got {short_repr(part)}")
    return runs[int(number[1]) :: int(number[2])]


def folder_names(combinations: list[dict]) -> list[str]:
    """Return a name for each flat table, such as ``FGDA,gamma=0.1,seed=1``.

    A name consists of the settings in which runs differ, or of all settings if these do not distinguish the
    runs. A user-defined class is named without its file, unless two classes have the same name.
    """
    combinations = _with_short_names(combinations)
    keys = dict.fromkeys(key for settings in combinations for key in settings)
    for chosen in ([key for key in keys if _differs(key, combinations)], list(keys)):
        short = {key: _short(key, chosen) for key in chosen}
        tables = [{short[key]: table[key] for key in chosen if key in table} for table in combinations]
        names = _distinct(tables)
        if len(names) == 1 or not (first_duplicate(names) or "" in names):
            break
    return [name or "run" for name in names]


def _distinct(tables: list[dict]) -> list[str]:
    """Return a name for each table. Names that differ in other characters than letters, digits and some
    punctuation, or in upper and lower case only, end in a digest, so that different tables have different
    names on every file system."""
    names = [_name(table) for table in tables]
    folded = [unicodedata.normalize("NFC", name.casefold()) for name in names]
    counts = Counter(folded)
    return [
        _with_digest(name, table) if counts[key] > 1 else name
        for name, key, table in zip(names, folded, tables)
    ]


def _differs(key: str, combinations: list[dict]) -> bool:
    """Whether runs have different values of a setting, or only some runs of a method have the setting."""
    having = [table for table in combinations if key in table]
    if len({_text(table[key]) for table in having}) > 1:
        return True
    methods = {table.get("algorithm.name") for table in having}
    others = (table for table in combinations if key not in table)
    return key.startswith("algorithm.") and any(table.get("algorithm.name") in methods for table in others)


def settings_name(settings: dict) -> str:
    """Return a name for one flat table that contains all of its settings, different for different values.

    The name ends in a digest if it lacks characters of the values.
    """
    table = {_short(key, list(settings)): value for key, value in settings.items()}
    name = _name(table) or "run"
    return name if name == _joined(table) else _with_digest(name, table)


def first_duplicate(names: list[str]) -> str:
    """Return the first name that occurs more than once; "" if all are different."""
    return next((name for name, count in Counter(names).items() if count > 1), "")


def _with_short_names(combinations: list[dict]) -> list[dict]:
    """Shorten the names of plugins as far as they remain different."""
    short = short_names(
        value for table in combinations for key, value in table.items() if _names_a_class(key, value)
    )
    return [
        {key: short[value] if _names_a_class(key, value) else value for key, value in table.items()}
        for table in combinations
    ]


def _names_a_class(key: str, value: object) -> bool:
    """Whether a setting names a method, a problem, or an object in a file."""
    return isinstance(value, str) and (key in _CLASS_NAMES or ".py:" in value)


def _text(value) -> str:
    return json.dumps(value, default=str)  # TOML has dates, JSON has none


def _short(key: str, keys: list[str]) -> str:
    """Return the last part of a dotted key, or the whole key if another key has the same last part."""
    last = key.rpartition(".")[2]
    return key if sum(other.rpartition(".")[2] == last for other in keys) > 1 else last


def _name(settings: dict) -> str:
    """Return a name in characters that every file system admits."""
    name = re.sub(r"[^\w.,=+-]+", "_", _joined(settings))
    too_long = len(name) > MAX_CHARACTERS or len(name.encode()) > MAX_BYTES
    return _with_digest(name, settings) if too_long or name in (".", "..") else name


def _joined(settings: dict) -> str:
    return ",".join(str(value) if key == "name" else f"{key}={value}" for key, value in settings.items())


def _with_digest(name: str, settings: dict) -> str:
    """Append a digest of the settings to a name that has none, and cut the name to its maximum length."""
    end = f"-{hashlib.blake2b(_text(settings).encode(), digest_size=4).hexdigest()}"
    if name.endswith(end):
        return name
    return name[: MAX_CHARACTERS - 9].encode()[: MAX_BYTES - 9].decode(errors="ignore") + end
