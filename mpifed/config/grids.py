"""Grids: one job file, many runs, and the names of their folders.

The table ``[sweep]`` of a job file holds dotted settings and lists of values. Every combination is a run::

    [sweep]
    seed = [0, 1, 2]
    "problem.lam" = [0.001, 0.01]
    algorithm = [
        { name = "FESSGDA", eta_x = [0.01, 0.1], eta_y = 0.1 },
        { name = "FSGDA", eta_x = [0.01, 0.1], eta_y = [0.01, 0.1] },
    ]

A list always means a choice, also inside a table that is itself a choice. A setting whose value is a list is
written as a list in that list. Here the first method has 2 settings and the second 4, which makes
(2 + 4) · 2 · 3 = 36 runs. Of several tables, written ``[[sweep]]``, each has its own combinations: for
settings that belong together, such as rounds and a step size.

Each run has a folder in ``run.out``, named by the settings that distinguish it from the others.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from mpifed.base.errors import ConfigError, short_repr, truncate
from mpifed.config.job import Config
from mpifed.config.tables import expect_spellable, put, read_job

T = TypeVar("T")

__all__ = ["Variant", "expand", "folder_names", "settings_name", "tables", "taken", "twice", "variants"]

#: Longest name of a run's folder, in characters and in bytes, which file systems count, 255 at most; a longer
#: one is cut and ends in a digest.
LONGEST, BYTES = 120, 240
#: Runs of one sweep, at most.
MOST = 10_000
#: The settings whose value may be the name of a plugin.
_NAMED = ("algorithm", "problem", "algorithm.name", "problem.name")


@dataclass(frozen=True)
class Variant:
    """One run of a grid: its name, which is that of its folder, and its configuration."""

    name: str
    config: Config


def expand(choices: dict) -> list[dict]:
    """All combinations of a table of choices, as flat tables ``{dotted setting: value}``.

    The first setting varies slowest.
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
    return [
        {key: value for part in parts for key, value in part.items()}
        for parts in itertools.product(*alternatives)
    ]


def _count(choices: dict) -> int:
    """The number of combinations of a table of choices."""
    product = 1
    for values in choices.values():
        alternatives = values if isinstance(values, list) else [values]
        product *= sum(_count(value) if isinstance(value, dict) else 1 for value in alternatives)
    return product


def variants(path: str | Path, overrides: list[str] = ()) -> list[Variant]:
    """The runs of a job file with a ``[sweep]``, all of them validated.

    Raises:
        ConfigError: as for :func:`tables`, or a combination cannot run; says which.
    """
    return [_variant(name, table) for name, table in tables(path, overrides).items()]


def _variant(name: str, table: dict) -> Variant:
    with _of_run(name):
        return Variant(name, Config.from_table(table))


def tables(path: str | Path, overrides: list[str] = ()) -> dict[str, dict]:
    """Name → table of each run of a job file with a ``[sweep]``; no class that they name is loaded.

    Raises:
        ConfigError: the file has no sweep, an empty list, or the same run twice.
    """
    table = read_job(path, overrides)
    expect_spellable(table)
    if "tune" in table:
        raise ConfigError(
            f"{truncate(str(path))} has a [tune], a search for the best settings: start it with `mpifed "
            "tune`, "
            "which writes a file with a [sweep]"
        )
    choices = table.pop("sweep", None)
    tables = choices if isinstance(choices, list) else [choices]
    if not tables or not all(isinstance(one, dict) and one for one in tables):
        raise ConfigError(
            f"{truncate(str(path))} has no [sweep]: expected a table of lists, e.g. seed = [0, 1, 2]; a "
            "single "
            "run is started with `mpifed run`"
        )
    if sum(map(_count, tables)) > MOST:
        raise ConfigError(f"[sweep] makes more than {MOST:,} runs: write several job files")
    parts = [expand(one) for one in tables]
    if not all(parts):
        raise ConfigError("[sweep] has an empty list, which leaves no run")
    combinations = [one for part in parts for one in part]
    names = folder_names(combinations)
    if twice(names):
        raise ConfigError(f"[sweep] lists the run {short_repr(twice(names))} more than once")
    return {name: _table(table, one, name) for one, name in zip(combinations, names)}


def _table(table: dict, settings: dict, name: str) -> dict:
    own = copy.deepcopy(table)
    run = own.setdefault("run", {})
    out = run.get("out", "runs/sweep") if isinstance(run, dict) else None
    if isinstance(out, str) and out.strip():  # what else it may be is refused below
        run["out"] = str(Path(out, name))
    with _of_run(name):
        for key, value in settings.items():
            put(own, key, value)
    return own


@contextlib.contextmanager
def _of_run(name: str) -> Iterator[None]:
    """Add the name of a run to its errors."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"[sweep] {name}: {error}") from error


def taken(runs: Sequence[T], part: str) -> Sequence[T]:
    """Part ``I/N`` of the runs: every N-th from number I, which is less than N.

    Raises:
        ConfigError: the text is not of that form.
    """
    number = re.fullmatch(r"(\d+)/(\d+)", part)
    if not number or int(number[1]) >= int(number[2]):
        raise ConfigError(f"--part is I/N with 0 <= I < N, e.g. 0/4, got {short_repr(part)}")
    return runs[int(number[1]) :: int(number[2])]


def folder_names(combinations: list[dict]) -> list[str]:
    """A name for each flat table: ``FGDA,gamma=0.1,seed=1``.

    It has the settings that take more than one value, or all of them where these do not tell the runs apart.
    The part of a user-defined class is its name, with the file if two classes have the same name.
    """
    combinations = _with_short_names(combinations)
    keys = dict.fromkeys(key for one in combinations for key in one)
    varied = [key for key in keys if len({_text(one[key]) for one in combinations if key in one}) > 1]
    for chosen in (varied, list(keys)):
        names = [
            _name({_short(key, chosen): one[key] for key in chosen if key in one}) for one in combinations
        ]
        if not twice(names):
            break
    return names


def settings_name(settings: dict) -> str:
    """A name for the folder of one flat table, which has all of its settings."""
    return _name({_short(key, list(settings)): value for key, value in settings.items()})


def twice(names: list[str]) -> str:
    """The first name that stands there more than once, "" where none does."""
    return next((name for name, count in Counter(names).items() if count > 1), "")


def _with_short_names(combinations: list[dict]) -> list[dict]:
    """The combinations with plugins' names cut down to what tells them apart."""
    full = {one[key] for one in combinations for key in _NAMED if isinstance(one.get(key), str)}
    ways = {name: _ways(name) for name in full}
    short = {
        name: next(way for way, rivals in zip(ways[name], zip(*ways.values())) if rivals.count(way) == 1)
        for name in full
    }
    return [
        {
            key: short[value] if key in _NAMED and isinstance(value, str) else value
            for key, value in one.items()
        }
        for one in combinations
    ]


def _ways(name: str) -> tuple[str, str, str]:
    """A plugin's class; with its file or module; with a digest. A name of the package's is itself."""
    place, colon, attribute = name.rpartition(":")
    if not colon:
        return name, name, name
    stem = place.removesuffix(".py").replace("/", ".").rpartition(".")[2]
    digest = hashlib.blake2b(name.encode(), digest_size=4).hexdigest()
    return attribute, f"{attribute}-{stem}", f"{attribute}-{digest}"


def _text(value) -> str:
    """A value of TOML as text; dates, which no setting is, as TOML has them."""
    return json.dumps(value, default=str)


def _short(key: str, keys: list[str]) -> str:
    """The last part of a dotted key, or the whole key if another one has the same last part."""
    last = key.rpartition(".")[2]
    return key if sum(other.rpartition(".")[2] == last for other in keys) > 1 else last


def _name(settings: dict) -> str:
    """A name in characters that every file system takes."""
    parts = [str(value) if key == "name" else f"{key}={value}" for key, value in settings.items()]
    name = re.sub(r"[^\w.,=+-]+", "_", ",".join(parts))
    if len(name) > LONGEST or len(name.encode()) > BYTES:
        digest = hashlib.blake2b(_text(settings).encode(), digest_size=4).hexdigest()
        start = name[: LONGEST - 9].encode()[: BYTES - 9].decode(errors="ignore")
        name = f"{start}-{digest}"
    return name or "run"
