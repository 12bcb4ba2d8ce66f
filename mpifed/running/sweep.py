"""Sweeps: one job file, many runs.

The table ``[sweep]`` of a job file holds dotted settings and lists of values, and every combination is a run::

    [sweep]
    seed = [0, 1, 2]
    "problem.lam" = [0.001, 0.01]
    algorithm = [
        { name = "FESSGDA", eta_x = [0.01, 0.1], eta_y = 0.1 },
        { name = "FSGDA", eta_x = [0.01, 0.1], eta_y = [0.01, 0.1] },
    ]

A list always means a choice, also inside a table that is itself a choice; a setting whose value is a list is written as a list in
that list. Here the first method has 2 settings and the second 4, which makes (2 + 4) · 2 · 3 = 36 runs. Of several tables,
written ``[[sweep]]``, each has its own combinations: for settings that belong together, such as rounds and a step size.

A run lies in a folder of ``run.out`` named by what distinguishes it, so a sweep that was interrupted, or whose lists have
changed, does only what is missing. A run that ends in non-finite values counts as done: a step size was too large.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from mpifed.config.job import Config, ConfigError, override, read_table
from mpifed.parallel.comm import SerialComm, share
from mpifed.running.resume import is_done
from mpifed.running.run import run
from mpifed.simulation.simulation import NonFiniteError
from mpifed.storage.folder import Folder

__all__ = ["Variant", "Outcome", "expand", "variants", "taken", "sweep"]

#: Longest name of a run's folder; a longer one is cut and ends in a digest.
LONGEST = 120


@dataclass(frozen=True)
class Variant:
    """One run of a sweep: its name, which is that of its folder, and its configuration."""

    name: str
    config: Config


@dataclass
class Outcome:
    """How many runs of a sweep are done, and how many of these were before; ``unfinished``: a signal has ended the sweep."""

    done: int = 0
    before: int = 0
    diverged: int = 0
    unfinished: bool = False


def expand(choices: dict) -> list[dict]:
    """All combinations of a table of choices, as flat tables ``{dotted setting: value}``, the first setting varying slowest."""
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


def variants(path: str | Path, overrides: list[str] = ()) -> list[Variant]:
    """The runs of a job file with a ``[sweep]``, all of them validated.

    Raises:
        ConfigError: the file has no sweep, an empty list, or a combination that cannot run; says which.
    """
    table = read_table(path)
    for text in overrides:
        override(table, text)
    choices = table.pop("sweep", None)
    tables = choices if isinstance(choices, list) else [choices]
    if not tables or not all(isinstance(one, dict) and one for one in tables):
        raise ConfigError(
            f"{path} has no [sweep]: expected a table of lists, e.g. seed = [0, 1, 2]; a single run is started with `mpifed run`"
        )
    parts = [expand(one) for one in tables]
    if not all(parts):
        raise ConfigError("[sweep] has an empty list, which leaves no run")
    combinations = [one for part in parts for one in part]
    names = _names(combinations)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"[sweep] lists the run {twice!r} more than once")
    return [_variant(table, one, name) for one, name in zip(combinations, names)]


def _names(combinations: list[dict]) -> list[str]:
    """A name for each: by the settings that take more than one value, or by all where these do not tell the runs apart."""
    keys = dict.fromkeys(key for one in combinations for key in one)
    varied = [key for key in keys if len({json.dumps(one[key]) for one in combinations if key in one}) > 1]
    for chosen in (varied, list(keys)):
        names = [
            _name({_short(key, chosen): one[key] for key in chosen if key in one}) for one in combinations
        ]
        if len(set(names)) == len(names):
            break
    return names


def taken(runs: list[Variant], part: str) -> list[Variant]:
    """Part ``I/N`` of the runs: every N-th from number I, which is less than N.

    Raises:
        ConfigError: the text is not of that form.
    """
    number = re.fullmatch(r"(\d+)/(\d+)", part)
    if not number or int(number[1]) >= int(number[2]):
        raise ConfigError(f"--part is I/N with 0 <= I < N, e.g. 0/4, got {part!r}")
    return runs[int(number[1]) :: int(number[2])]


def _variant(table: dict, settings: dict, name: str) -> Variant:
    own = copy.deepcopy(table)
    own.setdefault("run", {})
    own["run"]["out"] = str(Path(own["run"].get("out", "runs/sweep"), name))
    try:
        for key, value in settings.items():
            _set(own, key, value)
        return Variant(name, Config.from_table(own))
    except ConfigError as error:
        raise ConfigError(f"[sweep] {name}: {error}") from None


def _short(key: str, keys: list[str]) -> str:
    """The last part of a dotted key, or all of it where another key ends alike."""
    last = key.rpartition(".")[2]
    return key if sum(other.rpartition(".")[2] == last for other in keys) > 1 else last


def _set(table: dict, key: str, value) -> None:
    *path, last = key.split(".")
    for part in path:
        if isinstance(table.get(part), str):
            table[part] = {"name": table[part]}
        table = table.setdefault(part, {})
    table[last] = value


def _name(settings: dict) -> str:
    """``FGDA,gamma=0.1,seed=1``, in characters that every file system takes."""
    parts = [str(value) if key == "name" else f"{key}={value}" for key, value in settings.items()]
    name = re.sub(r"[^\w.,=+-]+", "_", ",".join(parts))
    if len(name) > LONGEST:
        digest = hashlib.blake2b(json.dumps(settings).encode(), digest_size=4).hexdigest()
        name = f"{name[: LONGEST - 9]}-{digest}"
    return name or "run"


def sweep(runs: list[Variant], comm: SerialComm) -> Outcome:
    """Carry out the runs one after another; those that are done already are passed over. Collective.

    Raises:
        CollectiveError: a run cannot be carried out (data, folders); the ones before it are done.
    """
    outcome = Outcome()
    for number, variant in enumerate(runs, 1):
        if _agreed(
            comm, is_done(Folder(variant.config.run.out), variant.config) if comm.rank == 0 else False
        ):
            outcome.before += 1
        else:
            if comm.rank == 0:
                print(f"mpifed: run {number} of {len(runs)}: {variant.name}", file=sys.stderr)
            try:
                if run(variant.config, comm).unfinished:
                    outcome.unfinished = True
                    return outcome
            except NonFiniteError as error:
                outcome.diverged += 1
                if comm.rank == 0:
                    print(f"mpifed: {variant.name}: {error}", file=sys.stderr)
        outcome.done += 1
    return outcome


def _agreed(comm: SerialComm, value: bool) -> bool:
    """Rank 0's answer on all ranks. Collective."""
    return bool(share(comm, "yes" if value else ""))
