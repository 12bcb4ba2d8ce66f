"""The results file of a run, ``run.h5``: writing and reading it (layout: :mod:`mpifed.storage.format`).

Anybody may have written a file that is read, so its content is validated: types, shapes and nesting.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import h5py
import numpy as np

from mpifed.core.metrics import Details
from mpifed.storage.atomic import replacing, shielded
from mpifed.storage.format import COSTS, FORMAT, RUN_FILE, End
from mpifed.storage.ownership import HDF5, RESULTS_MAGIC, checkpoints
from mpifed.storage.sealed import SEAL, expect_seal, opened, seal

__all__ = [
    "Head",
    "Outcome",
    "Point",
    "RunData",
    "expect",
    "find_runs",
    "head",
    "load",
    "outcome",
    "read",
    "sound",
    "write",
]

#: Rounds at the end of a history that tell how fast a run is.
_RECENT = 100
#: Tables and lists in one another that a JSON text may have.
_DEPTH = 32
#: Types of what is read of a configuration, and whether it must be there if the table that it is in is there.
_SETTINGS: dict[str, tuple[tuple[type, ...], bool]] = {
    "algorithm": ((dict,), True),
    "algorithm.name": ((str,), True),
    "record": ((list,), False),
    "seed": ((int,), False),
    "rounds": ((int,), True),
    "problem": ((dict,), True),
    "problem.name": ((str,), True),
    "problem.clients": ((int,), False),
    "problem.dataset": ((str, dict), False),
    "problem.dataset.name": ((str,), True),
    "problem.dataset.file": ((str,), False),
    "problem.dataset.path": ((str,), False),
    "problem.partition": ((str, dict), False),
    "problem.partition.name": ((str,), True),
    "run": ((dict,), False),
    "stop": ((dict,), False),
    "theory": ((dict,), False),
    "theory.of": ((str,), True),
    "theory.times": ((dict,), False),
    "plugins": ((dict,), False),
}
#: How types are called.
_TYPE_NAMES = {int: "a whole number", str: "a text", dict: "a table", list: "a list"}


#: The attribute of a dataset that says what the network of the problem calls the parameter.
_NETWORK = "network"
#: The group of the network's buffers and frozen parameters.
_FIXED = "network"


@dataclass(frozen=True, eq=False)
class RunData:
    """A run, named by its algorithm: ``costs`` are ``[R + 1]``, ``metrics`` ``[E]``, taken after
    ``metric_rounds``.

    ``layout`` and ``data`` say what the run ran on and which files it read; ``maximised`` are the metrics of
    which more is better; ``end`` is ``None`` while the run goes on. ``ranks`` has one value a rank.
    ``class_counts`` are samples by client and class, ``[N, classes]``, and ``classes`` the classes' names,
    where samples have any. ``splits`` are the numbers of samples that metrics are taken on (older files have
    none), ``details`` those of the output point. ``infeasible`` says how far it lay outside its sets, or "".
    """

    path: Path
    name: str
    config: dict
    versions: dict
    costs: dict[str, np.ndarray]
    metric_rounds: np.ndarray
    metrics: dict[str, np.ndarray]
    end: End | None
    layout: dict
    data: dict
    maximised: frozenset[str]
    ranks: dict[str, np.ndarray]
    class_counts: np.ndarray | None
    classes: list[str]
    splits: dict[str, int]
    details: Details
    infeasible: str = ""

    @property
    def folder(self) -> Path:
        """Where the run lies."""
        return self.path.parent if self.path.name == RUN_FILE else self.path

    @property
    def stopped(self) -> str:
        """Why the run ended, "" while it is running."""
        return self.end.sentence if self.end else ""

    @property
    def diverged(self) -> bool:
        """Whether the run ended in non-finite values."""
        return self.end is not None and self.end.kind == "diverged"


class Head(NamedTuple):
    """How far a run has come, by its file: ``config``, ``end`` as in :class:`RunData`; the last ``round``,
    and the ``seconds`` that it has taken up to there; ``pace``, rounds a second of the last rounds, and
    ``metric``, the name and the latest value of the problem's first, ``None`` where there is none, and
    ``validation``, the same of the validation split; ``infeasible`` as in :class:`RunData`.
    """

    config: dict
    end: End | None
    round: int
    seconds: float
    pace: float | None
    metric: tuple[str, float] | None
    validation: tuple[str, float] | None
    infeasible: str


class Point(NamedTuple):
    """An output point: ``flat`` by block; the ``shapes`` of its parameters by block and name, in order;
    ``network``, where the parameters of the problem's network are, name → block and name there; ``fixed`` and
    ``tied``, its buffers and frozen parameters by name, and further names of shared parameters → their names.

    Files of version 0.1 have flat blocks alone.
    """

    flat: dict[str, np.ndarray]
    shapes: dict[str, dict[str, tuple[int, ...]]]
    network: dict[str, tuple[str, str]]
    fixed: dict[str, np.ndarray]
    tied: dict[str, str]


class Outcome(NamedTuple):
    """What a run has come to: its ``point``; ``metrics`` of the point; recorded ``iterates`` by block,
    ``[R, d]``.
    """

    point: Point
    metrics: dict[str, float]
    iterates: dict[str, np.ndarray]


def write(
    folder: Path,
    attributes: Mapping[str, str],
    columns: Mapping[str, Mapping[str, np.ndarray]],
    point: Point,
    class_counts: tuple[np.ndarray, list[str]] | None = None,
    metrics: Mapping[str, float] | None = None,
    details: Details | None = None,
) -> None:
    """Replace the results file of a folder.

    Args:
        attributes: of the file, as :mod:`mpifed.storage.format` lists them.
        columns: arrays by group (``costs``, ``ranks``, ``metrics``, ``iterates``) and name.
        point: the output point.
        class_counts: samples by client and class ``[clients, classes]``, and the names of the classes.
        metrics: of the output point.
        details: of the evaluation of the output point.

    Raises:
        OSError, RuntimeError: the file cannot be written.
    """
    with replacing(Path(folder) / RUN_FILE) as temporary:
        with shielded(temporary) as target, h5py.File(target, "w", userblock_size=SEAL) as file:
            file.attrs.update(attributes)
            for group, arrays in ((group, arrays) for group, arrays in columns.items() if arrays):
                node = file.create_group(group, track_order=True)  # keeps the first metric the first
                for name, values in arrays.items():
                    node[name] = values
            if class_counts:
                _write_classes(file, "holdings", class_counts[0].astype(np.int32), class_counts[1])
            _write_point(file, point)
            file["final"].attrs.update(metrics or {})
            if details:
                _write_details(file, details)
        seal(temporary, RESULTS_MAGIC, FORMAT)


def _write_classes(file: h5py.File, name: str, counts: np.ndarray, classes: list[str]) -> None:
    file[name] = counts
    file[name].attrs["classes"] = json.dumps(classes)


def _write_point(file: h5py.File, point: Point) -> None:
    """Write the output point and the network's other values.

    With these the weights can be exported without the code of the network.
    """
    final = file.create_group("final")
    for block, shapes in point.shapes.items():
        group, start = final.create_group(block, track_order=True), 0
        for name, shape in shapes.items():
            stop = start + math.prod(shape)
            group[name] = point.flat[block][start:stop].reshape(shape)
            start = stop
    for name, (block, parameter) in point.network.items():
        final[block][parameter].attrs[_NETWORK] = name
    group = file.create_group(_FIXED)
    group.attrs["tied"] = json.dumps(point.tied)
    for name, values in point.fixed.items():
        group[name] = values


def _write_details(file: h5py.File, details: Details) -> None:
    if details.confusion is not None:
        _write_classes(file, "confusion", details.confusion, details.classes)
    if details.clients:
        group = file.create_group("clients", track_order=True)
        for metric, values in details.clients.items():
            group[metric] = values


def find_runs(places: Iterable[str | Path]) -> list[Path]:
    """The run files that the places are or hold, at any depth, each once.

    Raises:
        ValueError: one of the places is none and holds none.
    """
    found: dict[Path, None] = {}
    for place in map(Path, places):
        files = sorted(place.rglob(RUN_FILE)) if place.is_dir() else [place]
        expect(files, f"a run file {RUN_FILE} in {place} or below", "none")
        found |= {file.resolve(): None for file in files}
    return list(found)


def load(path: str | Path) -> RunData:
    """Read a run from its folder or its file.

    Raises:
        ValueError: the file is missing, damaged, or not a run file; says which file, what was expected, what
            was found.
    """
    with _opened(path) as (source, file):
        return _read(source, file)


def head(path: str | Path) -> Head:
    """Read how far a run has come, from its folder or its file: a small part of it, for many runs at once.

    Raises:
        ValueError: as for :func:`load`, as far as is read.
    """
    with _opened(path) as (source, _):
        config, end = _settings(source), _end_of(source)
        rounds, seconds = _last(source, "costs/round"), _last(source, "costs/seconds")
        expect(np.isfinite([*rounds, *seconds]).all(), "finite numbers in the group 'costs'", "inf or nan")
        taken, passed = rounds[-1] - rounds[0], seconds[-1] - seconds[0]
        metrics = source.get("metrics")
        expect(isinstance(metrics, h5py.Group), "a group 'metrics'", metrics)
        first = next((name for name in metrics if name != "round"), "")
        metric, validation = (
            (name, float(_last(source, f"metrics/{name}")[-1])) if name in metrics else None
            for name in (first, f"validation_{first}")
        )
        pace = float(taken / passed) if taken > 0 and passed > 0 else None
        known = config, end, int(rounds[-1]), float(seconds[-1]), pace, metric, validation
        return Head(*known, source.attrs.get("infeasible", ""))


def outcome(path: str | Path) -> Outcome:
    """Read the point that a run has come to, from its folder or its file.

    Raises:
        ValueError: as for :func:`load`.
    """
    with _opened(path) as (source, _):
        return _read_outcome(source)


def read(path: str | Path) -> tuple[RunData, Outcome]:
    """Read a run with its output point, as :func:`load` and :func:`outcome` do, in one pass over the file.

    Raises:
        ValueError: as for :func:`load`.
    """
    with _opened(path) as (source, file):
        return _read(source, file), _read_outcome(source)


def sound(path: str | Path) -> RunData | None:
    """A run whose results file is complete and valid, ``None`` if there is no such file."""
    try:
        run, _ = read(path)
        expect({"run", "stop"} <= {*run.config}, "the sections run and stop", run.config)
    except (TypeError, ValueError):  # values that are not numbers
        return None
    return run


@contextmanager
def _opened(path: str | Path) -> Iterator[tuple[h5py.File, Path]]:
    """The opened run file of a folder, or the file itself; errors while reading it are raised with its
    place.
    """
    file = Path(path).resolve()
    file = file / RUN_FILE if file.is_dir() else file
    try:
        expect(file.is_file(), "a run file", "no such file")
        with opened(file, _expect_whole) as source:
            yield source, file
    except (
        KeyError,
        OSError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:  # damaged bytes may mean anything
        raise ValueError(f"{file} is not a readable run file: {error}{_remedy(file)}") from error


def _expect_whole(file: BinaryIO) -> None:
    """Compare the file with its digest; those of version 0.1 have none."""
    if file.read(len(HDF5)) != HDF5:
        expect_seal(file, RESULTS_MAGIC, FORMAT)


def _remedy(file: Path) -> str:
    if file.name != RUN_FILE or not checkpoints(file.parent):
        return ""
    return f"; `mpifed resume {shlex.quote(str(file.parent))}` writes it again from the newest checkpoint"


def _read_outcome(source: h5py.File) -> Outcome:
    final = source.get("final")
    expect(isinstance(final, h5py.Group), "a group 'final'", ", ".join(source) or "an empty file")
    metrics = {name: float(value) for name, value in final.attrs.items()}
    recorded = source.get("iterates", {})
    tables = all(isinstance(data, h5py.Dataset) and data.ndim for data in recorded.values())
    expect(tables, "columns in the group 'iterates'", recorded)
    iterates = {name: data[:] for name, data in recorded.items() if name != "round"}
    return Outcome(_read_point(final), metrics, iterates)


def _read(source: h5py.File, file: Path) -> RunData:
    config, splits = _settings(source), _table(source, "splits") if "splits" in source.attrs else {}
    expect(all(type(size) is int for size in splits.values()), "whole numbers in 'splits'", splits)
    end = _end_of(source)
    costs, metrics = _columns(source, "costs", COSTS), _columns(source, "metrics", ("round",))
    costs = {name: costs[name] for name in COSTS}
    rounds, taken = costs["round"], metrics.pop("round")
    expect(
        len(rounds) and np.all(np.diff(rounds) > 0), "growing numbers in 'costs/round'", rounds[:10].tolist()
    )
    expect(np.isfinite([*costs.values()]).all(), "finite numbers in the group 'costs'", "inf or nan")
    expect(
        np.isin(taken, rounds).all(),
        "metrics of rounds in 'costs/round'",
        f"{np.setdiff1d(taken, rounds)[:10]}",
    )
    ranks = _columns(source, "ranks", ("peak_host_bytes", "peak_gpu_bytes")) if "ranks" in source else {}
    counts, classes = _holdings(source)
    known = counts is None or {"clients", "seed"} <= {*config["problem"], *config}
    expect(known, "'problem.clients' and 'seed' in the attribute 'config'", config)
    return RunData(
        file,
        config["algorithm"]["name"].rpartition(":")[2],
        config,
        _table(source, "versions"),
        costs,
        taken,
        metrics,
        end,
        _table(source, "layout"),
        _files(source),
        frozenset(_names(source, "maximised")),
        ranks,
        counts,
        classes,
        splits,
        _read_details(source),
        source.attrs.get("infeasible", ""),
    )


def expect(holds, expected: str, found) -> None:
    """Raise a :class:`ValueError` that says what was expected and found unless ``holds``."""
    if not holds:
        raise ValueError(f"expected {expected}, found {found}")


def _end_of(source: h5py.File) -> End | None:
    later = {name: source.attrs.get(name, "") for name in ("end", "infeasible")}  # older files have none
    for attribute, text in {"stopped": source.attrs.get("stopped"), **later}.items():
        expect(isinstance(text, str), f"text in the attribute {attribute!r}", repr(text))
    return End.read(source.attrs)


def _last(source: h5py.File, name: str) -> np.ndarray:
    """The last values of a column of numbers, which has one at least."""
    data = source.get(name)
    numbers = isinstance(data, h5py.Dataset) and data.ndim == 1 and data.dtype.kind in "iuf" and len(data)
    expect(numbers, f"a column of numbers in {name!r}", data)
    return data[-_RECENT - 1 :]


def _holdings(source: h5py.File) -> tuple[np.ndarray | None, list[str]]:
    """Samples by client and class, and the classes' names."""
    if "holdings" not in source:
        return None, []
    counts, classes = source["holdings"], _names(source["holdings"], "classes")
    sound = (
        isinstance(counts, h5py.Dataset) and counts.dtype.kind in "iu" and counts.shape[1:] == (len(classes),)
    )
    expect(sound, f"whole numbers [clients, {len(classes)}] in 'holdings'", counts)
    return counts[:], classes


def _table(source, name: str, kind: type = dict):
    """The JSON table (or list) in an attribute of the file or of a dataset."""
    text = source.attrs.get(name)
    try:
        value = json.loads(text)
    except (TypeError, ValueError):
        value = None
    plain = isinstance(value, kind) and not _deeper(value, _DEPTH)
    expect(plain, f"a JSON {'table' if kind is dict else 'list'} in the attribute {name!r}", repr(text)[:80])
    return value


def _names(source, name: str) -> list[str]:
    """The JSON list of texts in an attribute."""
    found = _table(source, name, list)
    expect(all(isinstance(one, str) for one in found), f"texts in the attribute {name!r}", repr(found)[:80])
    return found


def _deeper(value, depth: int) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth == 0 or any(_deeper(part, depth - 1) for part in parts)


def _settings(source: h5py.File) -> dict:
    """The configuration: what is read of it has the type that a job gives it."""
    config = _table(source, "config")
    for place, (types, required) in _SETTINGS.items():
        section, _, key = place.rpartition(".")
        within = config
        for part in filter(None, section.split(".")):
            within = within.get(part) if isinstance(within, dict) else None
        if isinstance(within, dict) and (required or within.get(key) is not None):
            wanted = " or ".join(_TYPE_NAMES[kind] for kind in types)
            found = within.get(key)
            expect(type(found) in types, f"{wanted} as {place!r} in the attribute 'config'", repr(found)[:80])
    dotted = [key for part in (config, config["algorithm"]) for key in part if "." in key]
    expect(not dotted, "settings in the attribute 'config' whose names have no dot", dotted)
    for place, one in (config.get("plugins") or {}).items():
        _expect_texts(one, ("name", "digest"), f"plugins.{place} in the attribute 'config'")
    times = ((config.get("theory") or {}).get("times") or {}).values()
    expect(all(type(one) in (int, float) for one in times), "numbers as 'theory.times'", times)
    return config


def _files(source: h5py.File) -> dict[str, dict[str, str]]:
    """The data files that a run has read."""
    found = _table(source, "data")
    for name, one in found.items():
        _expect_texts(one, ("path", "digest"), f"{name!r} in the attribute 'data'")
    return found


def _expect_texts(found, keys: Sequence[str], where: str) -> None:
    sound = isinstance(found, dict) and all(isinstance(found.get(key), str) for key in keys)
    expect(sound, f"a table with the texts {' and '.join(keys)} as {where}", repr(found)[:80])


def _columns(source: h5py.File, group: str, required: Sequence[str]) -> dict[str, np.ndarray]:
    """All datasets of a group, which must be numbers, one-dimensional and equally long."""
    node = source.get(group)
    expect(isinstance(node, h5py.Group), f"a group {group!r}", ", ".join(source) or "an empty file")
    expect(
        {*required} <= {*node}, f"{', '.join(required)} in the group {group!r}", ", ".join(node) or "nothing"
    )
    for name, data in node.items():
        numbers = isinstance(data, h5py.Dataset) and data.ndim == 1 and data.dtype.kind in "iuf"
        expect(numbers, f"a column of numbers in '{group}/{name}'", data)
    lengths = {name: len(data) for name, data in node.items()}
    expect(len(set(lengths.values())) == 1, f"columns of one length in the group {group!r}", lengths)
    return {name: data[:] for name, data in node.items()}


def _read_point(final: h5py.Group) -> Point:
    """Read the point of a group ``final``, and the network's further values in its file.

    Raises:
        ValueError: something in it is no numbers.
    """
    point = Point({}, {}, {}, {}, {})
    for block, node in final.items():
        if not isinstance(node, h5py.Group):  # of version 0.1
            point.flat[block] = _numbers(node, 1)
            continue
        values = {name: _numbers(data) for name, data in node.items()}
        point.flat[block] = np.concatenate([one.reshape(-1) for one in values.values()])
        point.shapes[block] = {name: one.shape for name, one in values.items()}
        named = {name: data.attrs.get(_NETWORK) for name, data in node.items()}
        point.network.update({own: (block, name) for name, own in named.items() if own is not None})
    if (fixed := final.file.get(_FIXED)) is not None:
        point.tied.update(json.loads(fixed.attrs["tied"]))
        point.fixed.update({name: _values(data) for name, data in fixed.items()})
    if unknown := {*point.tied.values()} - {*point.network}:
        raise ValueError(f"expected names of the network's parameters, found {sorted(unknown)[0]!r}")
    return point


def _values(data) -> np.ndarray:
    """Numbers or truth values of a dataset.

    Raises:
        ValueError: it has none.
    """
    if not isinstance(data, h5py.Dataset) or data.dtype.kind not in "biufc":
        raise ValueError(f"expected numbers of a network, found {data}")
    return data[...]


def _numbers(data, axes: int | None = None) -> np.ndarray:
    """The floating-point numbers of a dataset.

    Raises:
        ValueError: it has none, or another number of axes than expected.
    """
    numbers = isinstance(data, h5py.Dataset) and data.dtype.kind == "f"
    if not numbers or axes not in (None, data.ndim):
        raise ValueError(f"expected floating-point numbers of a point, found {data}")
    return data[...]


def _read_details(source: h5py.File) -> Details:
    """Take it from a file, as far as it is there.

    Raises:
        ValueError: it is of another shape than :func:`write_details` leaves it in.
    """
    counts = source.get("confusion")
    classes = [] if counts is None else _names(counts, "classes")
    square = counts is None or (isinstance(counts, h5py.Dataset) and counts.shape == 2 * (len(classes),))
    expect(square, f"{len(classes)} rows and columns in 'confusion'", getattr(counts, "shape", counts))
    clients = _columns(source, "clients", ()) if "clients" in source else {}
    return Details(None if counts is None else counts[:], classes, clients)
