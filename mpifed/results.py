"""Reading finished runs, and runs that stopped half way."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from mpifed.devices import describe_memory
from mpifed.recorder import COSTS, RUN_FILE

__all__ = ["RunData", "load", "expect"]


@dataclass(frozen=True, eq=False)
class RunData:
    """A run, named by its algorithm: ``costs`` are ``[R + 1]``, ``metrics`` ``[E]``, taken after ``metric_rounds``.

    ``memory`` is the peak memory per rank as people read it.
    """

    path: Path
    name: str
    config: dict
    versions: dict
    costs: dict[str, np.ndarray]
    metric_rounds: np.ndarray
    metrics: dict[str, np.ndarray]
    stopped: str
    memory: str | None = None


def load(path: str | Path) -> RunData:
    """Read a run from its folder or its file.

    Raises:
        ValueError: the file is missing, damaged, or not a run file; says which file, what was expected, what was found.
    """
    file = Path(path).resolve()
    file = file / RUN_FILE if file.is_dir() else file
    try:
        expect(file.is_file(), "a run file", "no such file")
        with h5py.File(file, "r") as source:
            return _read(source, file)
    except (OSError, RuntimeError, ValueError) as error:  # HDF5 raises the first two on foreign and on damaged bytes
        raise ValueError(f"{file} is not a readable run file: {error}") from error


def expect(holds, expected: str, found) -> None:
    """Raise a :class:`ValueError` that says what was expected and found unless ``holds``."""
    if not holds:
        raise ValueError(f"expected {expected}, found {found}")


def _read(source: h5py.File, file: Path) -> RunData:
    config, versions, stopped = _json(source, "config"), _json(source, "versions"), source.attrs.get("stopped")
    algorithm = config.get("algorithm")
    name = algorithm.get("name") if isinstance(algorithm, dict) else None
    expect(isinstance(name, str), "the algorithm's name in the attribute 'config'", f"algorithm = {algorithm!r}")
    expect(isinstance(stopped, str), "text in the attribute 'stopped'", repr(stopped))
    costs, metrics = _columns(source, "costs", COSTS), _columns(source, "metrics", ("round",))
    rounds, taken = costs["round"], metrics.pop("round")
    expect(len(rounds) and np.all(np.diff(rounds) > 0), "growing numbers in 'costs/round'", rounds[:10].tolist())
    expect(np.isfinite([*costs.values()]).all(), "finite numbers in the group 'costs'", "inf or nan")
    expect(np.isin(taken, rounds).all(), "metrics of rounds in 'costs/round'", f"{np.setdiff1d(taken, rounds)[:10]}")
    memory = describe_memory(_columns(source, "ranks", ("peak_host_bytes", "peak_gpu_bytes"))) if "ranks" in source else None
    return RunData(file, name.rpartition(":")[2], config, versions, costs, taken, metrics, stopped, memory)


def _json(source: h5py.File, name: str) -> dict:
    text = source.attrs.get(name)
    try:
        value = json.loads(text)
    except (TypeError, ValueError):
        value = None
    expect(isinstance(value, dict), f"a JSON table in the attribute {name!r}", repr(text)[:80])
    return value


def _columns(source: h5py.File, group: str, required: Sequence[str]) -> dict[str, np.ndarray]:
    """All datasets of a group, which must be numbers, one-dimensional and equally long."""
    node = source.get(group)
    expect(isinstance(node, h5py.Group), f"a group {group!r}", ", ".join(source) or "an empty file")
    expect({*required} <= {*node}, f"{', '.join(required)} in the group {group!r}", ", ".join(node) or "nothing")
    for name, data in node.items():
        numbers = isinstance(data, h5py.Dataset) and data.ndim == 1 and data.dtype.kind in "iuf"
        expect(numbers, f"a column of numbers in '{group}/{name}'", data)
    lengths = {name: len(data) for name, data in node.items()}
    expect(len(set(lengths.values())) == 1, f"columns of one length in the group {group!r}", lengths)
    return {name: data[:] for name, data in node.items()}
