"""The results of a run: one HDF5 file, ``run.h5``, with a digest of its bytes (:mod:`mpifed.storage.hdf5`).

==============  =======================================================================================
attributes      JSON texts: ``config``, ``versions``, ``layout``, ``data`` (path and SHA-256 of the files
                that were read), ``columns`` (a list for each dataset in ``metrics/`` except ``round``:
                metric, split, statistic over the clients, and whether it is to be maximised, see
                :class:`~mpifed.core.metrics.Column`), ``splits`` (number of samples per split on which
                metrics are evaluated). Texts: ``end`` and ``stopped`` (why the
                run ended, as a keyword and as a sentence, :class:`End`; "" while it runs), ``infeasible``
                (distance of the first evaluated infeasible point, as a sentence; "" without one)
``costs/``      cumulative, one value per round, the first for the starting point: ``round``,
                ``oracle_calls``, ``phases``, ``bytes_up`` and ``bytes_down`` (communication of federated
                clients), ``wire_bytes`` (communication between the ranks of this run),
                ``compute_seconds`` and ``communication_seconds`` (mean over the ranks), ``seconds``,
                ``federated_seconds`` (simulated time of federated clients, 0 without a clock)
``ranks/``      one value per rank: ``gpu`` (its number, -1 for the CPU), ``peak_host_bytes``,
                ``peak_gpu_bytes``
``metrics/``    ``round`` and one dataset per metric, one value per evaluation
``holdings``    number of samples by client and class, with the names of the classes in the attribute
                ``classes``; only if samples have classes
``confusion``   number of test samples by true (rows) and predicted class at the output point, with the
                attribute ``classes``; only for classification
``clients/``    with ``run.evaluate_on = ["clients"]``: one dataset per metric at the output point, one
                value per client
``final/``      the output point: one group per block with one dataset per parameter, in the order of the
                flat vector. Parameters of the problem's network have their name in the network as the
                attribute ``network``. Metrics of the point are attributes of the group
``best/``       with ``run.keep_best``: the best evaluated point, in the form of ``final/``. Attributes:
                ``metric`` and ``round``
``network/``    buffers and frozen parameters of the network; attribute ``tied``: further names of shared
                parameters
``iterates/``   with ``record``: ``round`` and the averaged iterate of every round, one dataset per block
==============  =======================================================================================

Files from untrusted sources may be read, so types, shapes and nesting are validated.
"""

from __future__ import annotations

import errno
import json
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import BinaryIO, NamedTuple

import h5py
import numpy as np

from mpifed.base.data_files import walk
from mpifed.base.log import warning
from mpifed.base.paths import expand_home
from mpifed.core.metrics import Column, Details, validation_column
from mpifed.storage.files import HDF5_MAGIC, RESULTS_MAGIC, RUN_FILE, checkpoints, replacing
from mpifed.storage.hdf5 import create, expect_digest, open_untrusted

__all__ = [
    "BestPoint", "COSTS", "FORMAT", "End", "OutputPoint", "RunData", "RunOutput", "class_name",
    "columns_of_names", "end_entries", "expect", "files_below", "find_runs", "load", "load_if_valid", "read",
    "read_if_valid", "write",
]  # fmt: skip

#: Format number of the results file.
FORMAT = 2
#: Columns of the cost history.
COSTS = (
    "round", "oracle_calls", "phases", "bytes_up", "bytes_down", "wire_bytes", "compute_seconds",
    "communication_seconds", "seconds", "federated_seconds",
)  # fmt: skip
#: Maximum nesting of a JSON text.
MAX_DEPTH = 32
#: Settings that this package reads from results files: types, and whether they are required in their section.
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
#: Names of columns in files without their records.
_NAME = re.compile(r"(?:(validation|train)_(.+)|(client|personal)_(.+)_(mean|q\d\d|worst))")
_TYPE_NAMES = {int: "a whole number", str: "a text", dict: "a table", list: "a list"}
#: Attribute of a parameter with its name in the network, and group of the network's other values.
_NETWORK = "network"


@dataclass(frozen=True)
class End:
    """Why a run has ended.

    Attributes:
        kind: "rounds" (all are done), "target" (a metric has reached its target), "patience" (a metric has
            not improved), "time" (the time budget is used up), "callback" (a callback has stopped the run),
            "diverged" (non-finite values), or "signal" (the run continues from its checkpoint when it is
            started again). "" in files of versions that stored only the sentence.
        sentence: the reason as a sentence.
    """

    kind: str
    sentence: str

    @classmethod
    def read(cls, table: Mapping[str, str]) -> End | None:
        """Read the :func:`end_entries` of a file; ``None`` if the run has not ended."""
        return cls(table.get("end", ""), table["stopped"]) if table["stopped"] else None


def end_entries(end: End | None) -> dict[str, str]:
    """Return the entries of a file for the end of a run. A run interrupted by a signal has not ended."""
    over = end is not None and end.kind != "signal"
    return {"end": end.kind if over else "", "stopped": end.sentence if over else ""}


def class_name(config: Mapping, section: str) -> str:
    """Return the name of the method or problem in stored settings, without the file of a user-defined class.

    "" if the section "algorithm" or "problem" has no name.
    """
    table = config.get(section)
    name = table.get("name") if isinstance(table, dict) else None
    return name.rpartition(":")[2] if isinstance(name, str) else ""


@dataclass(frozen=True, eq=False)
class RunData:
    """The results of a run, except the output point. R is the number of rounds, E of evaluations.

    Attributes:
        path: the results file.
        name: name of the algorithm.
        config, versions, layout, data: tables, see the attributes of the file.
        costs: cumulative costs by name, ``[R + 1]``.
        metrics, metric_rounds: metrics by name and their rounds, ``[E]``.
        columns: what each of the metrics is, by name.
        end: why the run ended; ``None`` while it runs.
        ranks: values per rank by name, {} in old files.
        class_counts, classes: samples by client and class, ``[C, classes]``, and the names of the classes; of
            C evenly spaced clients (:func:`mpifed.core.problem.listed_clients`) if there are many.
        splits: number of samples per split, {} in old files.
        details: details of the evaluation of the output point.
        infeasible: distance of the first evaluated infeasible point, as a sentence; "" without one.
    """

    path: Path
    name: str
    config: dict
    versions: dict
    costs: dict[str, np.ndarray]
    metric_rounds: np.ndarray
    metrics: dict[str, np.ndarray]
    columns: dict[str, Column]
    end: End | None
    layout: dict
    data: dict
    ranks: dict[str, np.ndarray]
    class_counts: np.ndarray | None
    classes: list[str]
    splits: dict[str, int]
    details: Details
    infeasible: str = ""

    @property
    def infeasible_from(self) -> float:
        """Round of the first evaluated infeasible point, infinite without one."""
        return int(self.infeasible.rpartition(" ")[2]) if self.infeasible else math.inf

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self.path.parent if self.path.name == RUN_FILE else self.path

    @property
    def last_round(self) -> int:
        """The number of completed rounds."""
        return int(self.costs["round"][-1])

    @property
    def stopped(self) -> str:
        """Why the run ended; "" while it runs."""
        return self.end.sentence if self.end else ""

    @property
    def diverged(self) -> bool:
        """Whether the run ended with non-finite values."""
        return self.end is not None and self.end.kind == "diverged"

    def maximises(self, metric: str) -> bool:
        """Whether a metric is to be maximised."""
        return metric in self.columns and self.columns[metric].maximised

    def best_evaluation(self, metric: str) -> int | None:
        """Index of the best evaluation, which has the smallest finite value of a metric, or the largest if
        the metric is to be maximised, on the validation split if there is one; ``None`` without any."""
        ranking = validation_column(metric, self.columns) or metric
        values = self.metrics[ranking] * (1 if self.maximises(ranking) else -1)
        finite = np.isfinite(values)
        return int(np.argmax(np.where(finite, values, -np.inf))) if finite.any() else None


class OutputPoint(NamedTuple):
    """An output point. Files of version 0.1 contain ``flat`` only.

    Attributes:
        flat: flat vectors by block.
        shapes: shapes of the parameters by block and name, in order.
        network: block and name of the network's parameters, by name in the network.
        fixed: buffers and frozen parameters of the network by name.
        tied: further name → name of shared parameters.
    """

    flat: dict[str, np.ndarray]
    shapes: dict[str, dict[str, tuple[int, ...]]]
    network: dict[str, tuple[str, str]]
    fixed: dict[str, np.ndarray]
    tied: dict[str, str]


class BestPoint(NamedTuple):
    """The best evaluated point of a run (``run.keep_best``).

    Attributes:
        metric: the metric that is best.
        round: the round after which the run had this point.
        flat: flat vectors by block.
    """

    metric: str
    round: int
    flat: dict[str, np.ndarray]


class RunOutput(NamedTuple):
    """The output point of a run, its metrics, the recorded iterates by block, ``[R, d]``, the best point."""

    point: OutputPoint
    metrics: dict[str, float]
    iterates: dict[str, np.ndarray]
    best: BestPoint | None


def write(
    folder: Path,
    attributes: Mapping[str, str],
    columns: Mapping[str, Mapping[str, np.ndarray]],
    output: RunOutput,
    class_counts: tuple[np.ndarray, list[str]] | None,
    details: Details,
) -> None:
    """Replace the results file of a folder.

    Args:
        columns: arrays by group (``costs``, ``ranks``, ``metrics``) and name.
        class_counts: samples by client and class ``[C, classes]``, and the names of the classes, see
            :class:`RunData`.
        details: details of the evaluation of the output point.

    Raises:
        OSError, RuntimeError: the file cannot be written.
    """
    point, rounds = output.point, len(next(iter(output.iterates.values()), ()))
    recorded = {**output.iterates, "round": np.arange(1, rounds + 1)} if output.iterates else {}
    groups = {**columns, "iterates": recorded, "clients": details.clients}
    classes = {"holdings": (class_counts[0].astype(np.int32), class_counts[1])} if class_counts else {}
    if details.confusion is not None:
        classes["confusion"] = details.confusion, details.classes
    with replacing(Path(folder) / RUN_FILE) as temporary, create(temporary, RESULTS_MAGIC, FORMAT) as file:
        file.attrs.update(attributes)
        for group, arrays in ((group, arrays) for group, arrays in groups.items() if arrays):
            node = file.create_group(group, track_order=True)  # the order of the metrics is kept
            for name, values in arrays.items():
                node[name] = values
        for name, (counts, names) in classes.items():
            file[name] = counts
            file[name].attrs["classes"] = json.dumps(names)
        _write_blocks(file, "final", point.flat, point).attrs.update(output.metrics)
        if best := output.best:
            node = _write_blocks(file, "best", best.flat, point)
            node.attrs.update(metric=best.metric, round=best.round)
        network = file.create_group(_NETWORK)  # so that exports need no user code
        network.attrs["tied"] = json.dumps(point.tied)
        for name, values in point.fixed.items():
            network[name] = values


def _write_blocks(
    file: h5py.File, name: str, flat: Mapping[str, np.ndarray], point: OutputPoint
) -> h5py.Group:
    """Write flat vectors by block as the parameters of ``point``, to a new group, which is returned."""
    node = file.create_group(name)
    for block, shapes in point.shapes.items():
        group, start = node.create_group(block, track_order=True), 0
        for parameter, shape in shapes.items():
            stop = start + math.prod(shape)
            group[parameter] = flat[block][start:stop].reshape(shape)
            start = stop
    for key, (block, parameter) in point.network.items():
        node[block][parameter].attrs[_NETWORK] = key
    return node


def files_below(folder: Path) -> list[Path]:
    """Return the results files in a folder, at any depth, also behind links. Warns of unreadable folders."""

    def warn(error: OSError) -> None:
        if error.errno != errno.ELOOP:  # the runs are found without the link, too
            warning(f"{error.filename} cannot be read: {error.strerror}; its runs are left out")

    return sorted(path / RUN_FILE for path, _, files in walk(folder, warn) if RUN_FILE in files)


def find_runs(places: Iterable[str | Path]) -> list[Path]:
    """Find results files, each listed once.

    Args:
        places: results files, or folders that contain them at any depth.

    Raises:
        ValueError: a folder contains no results file, or a file does not exist.
    """
    runs: dict[Path, None] = {}
    for place in map(Path, map(expand_home, places)):
        files = files_below(place) if place.is_dir() else [place]
        expect(files, f"a run file {RUN_FILE} in {place} or below", "none")
        runs |= {file.resolve(): None for file in files}
    return list(runs)


def load(path: str | Path) -> RunData:
    """Read the results of a run, except the output point, from its folder or its results file.

    Raises:
        ValueError: the file is missing, damaged or not a results file.
    """
    with _opened(path) as (source, file):
        return _read(source, file)


def read(path: str | Path) -> tuple[RunData, RunOutput]:
    """Read the results of a run and the output point. Arguments and errors are those of :func:`load`."""
    with _opened(path) as (source, file):
        return _read(source, file), _read_output(source)


def load_if_valid(path: str | Path) -> RunData | None:
    """Read the results of a run as :func:`load` does; ``None`` if any part of the file is invalid."""
    valid = read_if_valid(path)
    return valid and valid[0]


def read_if_valid(path: str | Path) -> tuple[RunData, RunOutput] | None:
    """Read the results of a run as :func:`read` does; ``None`` if any part of the file is invalid."""
    try:
        run, output = read(path)
        expect({"run", "stop"} <= {*run.config}, "the sections run and stop", run.config)
    except (TypeError, ValueError):  # values that are not numbers
        return None
    return run, output


@contextmanager
def _opened(path: str | Path) -> Iterator[tuple[h5py.File, Path]]:
    """Open a results file, given its path or its folder. Errors while it is read contain its path."""
    file = Path(path).resolve()
    file = file / RUN_FILE if file.is_dir() else file
    try:
        expect(file.is_file(), "a run file", "no such file")
        with open_untrusted(file, _expect_valid_digest) as source:
            yield source, file
    # HDF5 raises many types of errors for damaged files.
    except (KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        forbidden = isinstance(error, PermissionError)
        fixable = file.name == RUN_FILE and checkpoints(file.parent) and not forbidden
        command = f"`mpifed resume {shlex.quote(str(file.parent))}`"
        hint = f"; {command} writes it again from the newest checkpoint" if fixable else ""
        raise ValueError(f"{file} is not a readable run file: {error}{hint}") from error


def _expect_valid_digest(file: BinaryIO) -> None:
    if file.read(len(HDF5_MAGIC)) != HDF5_MAGIC:  # files of version 0.1 have no digest
        expect_digest(file, RESULTS_MAGIC, FORMAT)


def _read_output(source: h5py.File) -> RunOutput:
    final, recorded = _group(source, "final"), _group(source, "iterates") if "iterates" in source else {}
    metrics = {name: float(value) for name, value in final.attrs.items()}
    iterates = {name: _array(data, "f", 2) for name, data in recorded.items() if name != "round"}
    point = _read_point(final)
    return RunOutput(point, metrics, iterates, _read_best(source, point))


def _read_best(source: h5py.File, point: OutputPoint) -> BestPoint | None:
    if "best" not in source:
        return None
    node = _group(source, "best")
    flat, shapes = _read_blocks(node)
    expect(shapes == point.shapes, f"the parameters {point.shapes} in 'best'", shapes)
    metric, r = node.attrs.get("metric"), node.attrs.get("round")
    known = isinstance(metric, str) and r in source["costs/round"][:]
    expect(known, "a metric and a round as attributes of 'best'", (metric, r))
    return BestPoint(metric, int(r), flat)


def _read(source: h5py.File, file: Path) -> RunData:
    config, splits = _read_config(source), _table(source, "splits") if "splits" in source.attrs else {}
    expect(all(type(size) is int for size in splits.values()), "whole numbers in 'splits'", splits)
    texts = {"stopped": source.attrs.get("stopped")}
    texts |= {name: source.attrs.get(name, "") for name in ("end", "infeasible")}  # not in old files
    for name, text in texts.items():
        expect(isinstance(text, str), f"text in the attribute {name!r}", repr(text))
    costs, metrics = _columns(source, "costs", COSTS), _columns(source, "metrics", ("round",))
    costs = {name: costs[name] for name in COSTS}
    rounds, evaluated = costs["round"], metrics.pop("round")
    growing = len(rounds) and np.all(np.diff(rounds) > 0)
    expect(growing, "growing numbers in 'costs/round'", rounds[:10].tolist())
    expect(np.isfinite([*costs.values()]).all(), "finite numbers in the group 'costs'", "inf or nan")
    unknown = np.setdiff1d(evaluated, rounds)
    expect(not len(unknown), "metrics of rounds in 'costs/round'", unknown[:10])
    ranks = _columns(source, "ranks", ("peak_host_bytes", "peak_gpu_bytes")) if "ranks" in source else {}
    counts, classes = _read_counts(source, "holdings")
    confusion, labels = _read_counts(source, "confusion")
    square = confusion is None or len(confusion) == len(labels)
    expect(square, f"{len(labels)} rows and columns in 'confusion'", np.shape(confusion))
    clients = _columns(source, "clients", ()) if "clients" in source else {}
    known = counts is None or {"clients", "seed"} <= {*config["problem"], *config}
    expect(known, "'problem.clients' and 'seed' in the attribute 'config'", config)
    data = _table(source, "data")
    for name, entry in data.items():
        _expect_texts(entry, ("path", "digest"), f"{name!r} in the attribute 'data'")
    return RunData(
        path=file,
        name=class_name(config, "algorithm"),
        config=config,
        versions=_table(source, "versions"),
        costs=costs,
        metric_rounds=evaluated,
        metrics=metrics,
        columns=_read_columns(source, [*metrics]),
        end=End.read(texts),
        layout=_table(source, "layout"),
        data=data,
        ranks=ranks,
        class_counts=counts,
        classes=classes,
        splits=splits,
        details=Details(confusion, labels, clients),
        infeasible=texts["infeasible"],
    )


def columns_of_names(names: Iterable[str], maximised: Iterable[str]) -> list[Column]:
    """Return what columns contain in files of versions that stored only their names, which may be ambiguous.

    Args:
        maximised: names of the columns or of the metrics to maximise.
    """
    columns = []
    for name in names:
        match = _NAME.fullmatch(name)
        split, metric, *statistic = filter(None, match.groups()) if match else ("test", name)
        columns.append(Column(metric, split, "".join(statistic), not {name, metric}.isdisjoint(maximised)))
    return columns


def _read_columns(source: h5py.File, names: Sequence[str]) -> dict[str, Column]:
    """Return what the columns of the group ``metrics`` contain, by name."""
    if "columns" not in source.attrs:
        return dict(zip(names, columns_of_names(names, _text_list(source, "maximised"))))
    entries, types = _table(source, "columns", list), [str, str, str, bool]
    valid = all(isinstance(entry, list) and [*map(type, entry)] == types for entry in entries)
    expect(valid, "lists of three texts and a truth value in the attribute 'columns'", repr(entries)[:80])
    columns = {column.name: column for column in starmap(Column, entries)}
    expect({*columns} == {*names}, f"the columns {', '.join(names)} in the attribute 'columns'", [*columns])
    return columns


def expect(condition, expected: str, found) -> None:
    """Raise a :class:`ValueError` with what was expected and found unless ``condition`` holds."""
    if not condition:
        raise ValueError(f"expected {expected}, found {found}")


def _read_counts(source: h5py.File, name: str) -> tuple[np.ndarray | None, list[str]]:
    """Return whole numbers by row and class, and the names of the classes."""
    if name not in source:
        return None, []
    counts, classes = _array(source[name], "iu", 2), _text_list(source[name], "classes")
    expect(counts.shape[1] == len(classes), f"{len(classes)} columns in {name!r}", counts.shape)
    return counts, classes


def _table(source, name: str, kind: type = dict):
    """Return the JSON table (or list) in an attribute of the file or of a dataset."""
    text = source.attrs.get(name)
    try:
        value = json.loads(text)
    except (TypeError, ValueError):
        value = None
    plain = isinstance(value, kind) and not _is_deeper(value, MAX_DEPTH)
    expect(plain, f"a JSON {'table' if kind is dict else 'list'} in the attribute {name!r}", repr(text)[:80])
    return value


def _text_list(source, name: str) -> list[str]:
    values = _table(source, name, list)
    texts = all(isinstance(value, str) for value in values)
    expect(texts, f"texts in the attribute {name!r}", repr(values)[:80])
    return values


def _is_deeper(value, depth: int) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth == 0 or any(_is_deeper(part, depth - 1) for part in parts)


def _read_config(source: h5py.File) -> dict:
    """Return the configuration after checking the types of the settings in ``_SETTINGS``."""
    config = _table(source, "config")
    for place, (types, required) in _SETTINGS.items():
        section, _, key = place.rpartition(".")
        table = config
        for part in filter(None, section.split(".")):
            table = table.get(part) if isinstance(table, dict) else None
        if isinstance(table, dict) and (required or table.get(key) is not None):
            wanted, value = " or ".join(_TYPE_NAMES[kind] for kind in types), table.get(key)
            expect(type(value) in types, f"{wanted} as {place!r} in the attribute 'config'", repr(value)[:80])
    dotted = [key for part in (config, config["algorithm"]) for key in part if "." in key]
    expect(not dotted, "settings in the attribute 'config' whose names have no dot", dotted)
    for place, plugin in (config.get("plugins") or {}).items():
        _expect_texts(plugin, ("name", "digest"), f"plugins.{place} in the attribute 'config'")
    times = ((config.get("theory") or {}).get("times") or {}).values()
    expect(all(type(factor) in (int, float) for factor in times), "numbers as 'theory.times'", times)
    return config


def _expect_texts(table, keys: Sequence[str], where: str) -> None:
    valid = isinstance(table, dict) and all(isinstance(table.get(key), str) for key in keys)
    expect(valid, f"a table with the texts {' and '.join(keys)} as {where}", repr(table)[:80])


def _group(source: h5py.File, name: str) -> h5py.Group:
    node = source.get(name)
    expect(isinstance(node, h5py.Group), f"a group {name!r}", ", ".join(source) or "an empty file")
    return node


def _columns(source: h5py.File, group: str, required: Sequence[str]) -> dict[str, np.ndarray]:
    """Return all datasets of a group, which must be one-dimensional numbers of equal length."""
    node = _group(source, group)
    expect(
        {*required} <= {*node}, f"{', '.join(required)} in the group {group!r}", ", ".join(node) or "nothing"
    )
    columns = {name: _array(data, "iuf", 1) for name, data in node.items()}
    lengths = {name: len(data) for name, data in columns.items()}
    expect(len(set(lengths.values())) == 1, f"columns of one length in the group {group!r}", lengths)
    return columns


def _read_point(final: h5py.Group) -> OutputPoint:
    point = OutputPoint(*_read_blocks(final), {}, {}, {})
    for block in point.shapes:
        names = {name: data.attrs.get(_NETWORK) for name, data in final[block].items()}
        point.network.update({key: (block, name) for name, key in names.items() if key is not None})
    if (fixed := final.file.get(_NETWORK)) is not None:
        point.tied.update(json.loads(fixed.attrs["tied"]))
        point.fixed.update({name: _array(data, "biufc") for name, data in fixed.items()})
    if unknown := {*point.tied.values()} - {*point.network}:
        raise ValueError(f"expected names of the network's parameters, found {sorted(unknown)[0]!r}")
    return point


def _read_blocks(group: h5py.Group) -> tuple[dict[str, np.ndarray], dict[str, dict[str, tuple[int, ...]]]]:
    """Return the flat vectors of a group by block, and the shapes of the parameters by block and name."""
    flat, shapes = {}, {}
    for block, node in group.items():
        if not isinstance(node, h5py.Group):  # version 0.1
            flat[block] = _array(node, "f", 1)
            continue
        values = {name: _array(data, "f") for name, data in node.items()}
        flat[block] = np.concatenate([value.reshape(-1) for value in values.values()])
        shapes[block] = {name: value.shape for name, value in values.items()}
    return flat, shapes


def _array(data, kinds: str, axes: int | None = None) -> np.ndarray:
    """Return a dataset with a dtype of one of the ``kinds`` and the given number of axes."""
    valid = isinstance(data, h5py.Dataset) and data.dtype.kind in kinds and axes in (None, data.ndim)
    numbers = "whole numbers" if kinds == "iu" else f"numbers with a dtype of kind {' or '.join(kinds)}"
    expect(valid, f"{numbers}{'' if axes is None else f' [{axes} axes]'} in {data.name[1:]!r}", data)
    return data[...]
