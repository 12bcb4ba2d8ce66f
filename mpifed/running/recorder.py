"""The recorder of a run: collects its history and writes its results file (:mod:`mpifed.storage.results`).

Rank 0 keeps the history in memory and replaces the file as a whole, so a reader never sees an incomplete
file. The costs of the ranks are summed only when the history is written.
"""

from __future__ import annotations

import bisect
import json
import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from mpifed.base.settings import suggest
from mpifed.base.versions import versions
from mpifed.core.metrics import Details
from mpifed.core.problem import listed_clients, network_constants, network_parameters, user_point
from mpifed.parallel.comm import SerialComm
from mpifed.parallel.devices import peak_memory
from mpifed.parallel.reproducibility import machine
from mpifed.simulation.data_agreement import files_to_json
from mpifed.simulation.simulation import Simulation
from mpifed.storage import results
from mpifed.storage.history import row_type
from mpifed.storage.results import COSTS, End, end_entries

__all__ = ["Best", "Recorder", "expect_metric", "is_better"]

#: Whether a column is summed over the ranks; the others are means.
_SUMMED = np.array([name in ("oracle_calls", "wire_bytes", "bytes_up", "bytes_down") for name in COSTS])
#: Index of the column whose values are the same on all ranks.
_CLOCK = COSTS.index("federated_seconds")
#: Maximum number of bytes of recorded iterates on rank 0.
MEMORY = 4 * 2**30


def expect_metric(setting: str, metric: str, names: Collection[str]) -> None:
    """Raise a :class:`ValueError` if a problem has no metric of the name in a setting."""
    if metric not in names:
        options = suggest(metric, names)
        raise ValueError(f"{setting} = {metric!r} is not a metric of this problem: {options}")


def is_better(value: float, best: float, maximised: bool, min_delta: float = 0.0) -> bool:
    """Whether a metric has improved on its best value, by more than ``min_delta``; NaN never does."""
    gain = value - best if maximised else best - value
    return gain > min_delta or (math.isnan(best) and not math.isnan(value))


@dataclass(frozen=True)
class Best:
    """The best evaluated point of a run (rank 0).

    Attributes:
        metric: the metric, ``run.keep_best``.
        value: its value.
        round: the round after which the run had this point.
        point: all blocks concatenated.
    """

    metric: str
    value: float
    round: int
    point: np.ndarray


class Recorder:
    """Collects the history of a run. Ranks other than 0 only contribute costs.

    Attributes:
        metrics: metrics by name, with ``round`` (rank 0).
        blocks: names of the blocks whose averaged iterates are recorded every round.
        iterates: recorded iterates by block, one array ``[d]`` per round (rank 0).
        best: the best evaluated point with ``run.keep_best``; ``None`` before it exists (rank 0).

    Raises:
        ValueError: a block to record does not exist, or its iterates would exceed the memory limit.
    """

    def __init__(self, simulation: Simulation, comm: SerialComm):
        self.simulation, self.comm, config = simulation, comm, simulation.config
        sizes = simulation.blocks.sizes
        self.blocks = config.record
        for block in self.blocks:
            if block not in sizes:
                raise ValueError(
                    f"record = {list(self.blocks)}: there is no block {block!r} (options: {', '.join(sizes)})"
                )
        row = sum(sizes[block] for block in self.blocks) * simulation.dtype.itemsize
        needed = row * config.rounds
        if needed > MEMORY:
            raise ValueError(
                f"record = {list(self.blocks)} needs {needed / 2**30:.1f} GiB for {config.rounds} rounds, "
                f"more than {MEMORY / 2**30:.0f} GiB: record fewer blocks"
            )
        self._costs_before = np.zeros(len(COSTS))
        self._pending: list[list[float]] = []
        self._costs, self._recorded = np.zeros((1, len(COSTS))), 0
        self.metrics: dict[str, list[float]] = {}
        self.best: Best | None = None
        self._peak_memory: dict[str, np.ndarray] = {}
        self.iterates: dict[str, list[np.ndarray]] = {block: [] for block in self.blocks}
        of = config.problem
        self._class_counts = of.class_counts(listed_clients(of.clients).tolist()) if comm.rank == 0 else None

    def record_round(self) -> None:
        """Record the costs, and on rank 0 the iterates, of the last round."""
        costs = self.simulation.costs
        self._pending.append([self.simulation.round, *(getattr(costs, name, 0.0) for name in COSTS[1:])])
        if self.comm.rank == 0 and self.simulation.round > 0:
            for block in self.blocks:
                self.iterates[block].append(self.simulation.block(block).cpu().numpy().copy())

    def record_metrics(self, values: dict[str, float]) -> None:
        """Record the metrics of the last round (rank 0)."""
        for name, value in {"round": self.simulation.round, **values}.items():
            self.metrics.setdefault(name, []).append(value)

    def keep_best(self, metrics: dict[str, float], point: torch.Tensor) -> None:
        """Keep a point, all blocks concatenated, if its metrics are better than those of all points before,
        by ``run.keep_best`` (rank 0).

        Raises:
            ValueError: there is no such metric.
        """
        metric = self.simulation.config.run.keep_best
        expect_metric("run.keep_best", metric, metrics)
        value, best = metrics[metric], self.best.value if self.best else math.nan
        if is_better(value, best, self.simulation.columns[metric].maximised):
            self.best = Best(metric, value, self.simulation.round, point.cpu().numpy().copy())

    def gather(self) -> None:
        """Collect the costs of the rounds since the last call and the memory usage on rank 0. Collective."""
        rows = np.array(self._pending, dtype=np.float64).reshape(-1, len(COSTS))
        self._pending = []
        self.comm.allreduce_(rows)
        rows = np.where(_SUMMED, rows, rows / self.comm.size)
        rows[:, 1:] += self._costs_before[1:]
        # A non-finite value ends a run in the middle of a round, whose time is left out.
        clock = self.simulation.federated_seconds()[: len(rows)]
        # Summed in the order of the rounds, so that a resumed run gets the same bits.
        rows[:, _CLOCK] = np.cumsum([self._costs_before[_CLOCK], *clock])[1:]
        self._costs_before[_CLOCK] = rows[-1, _CLOCK] if len(rows) else self._costs_before[_CLOCK]
        self._append(rows)
        self._peak_memory = peak_memory(self.comm, self.simulation.device)

    def _append(self, rows: np.ndarray) -> None:
        """Append rows to the costs, whose capacity doubles when it is exceeded."""
        end = self._recorded + len(rows)
        if end > len(self._costs):
            self._costs = np.concatenate([self.costs, np.empty((2 * end - self._recorded, len(COSTS)))])
        self._costs[self._recorded : end], self._recorded = rows, end

    @property
    def costs(self) -> np.ndarray:
        """The gathered costs ``[R + 1, costs]``, the first row for the starting point."""
        return self._costs[: self._recorded]

    @property
    def totals(self) -> dict[str, float]:
        """The costs after the last gathered round by name, with integer counts (rank 0)."""
        return {
            name: float(value) if name.endswith("seconds") else int(value)
            for name, value in zip(COSTS[1:], self.costs[-1, 1:])
        }

    @property
    def sizes(self) -> dict[str, int]:
        """The size d of each recorded block."""
        return {block: self.simulation.blocks.sizes[block] for block in self.blocks}

    @property
    def row_type(self) -> np.dtype:
        """The type of :meth:`rows` (rank 0)."""
        return row_type(len(self.metrics), self.sizes, self.simulation.config.run.dtype)

    def rows(self, first: int, end: int) -> np.ndarray:
        """Return the history of the rounds ``first:end`` without checksums (rank 0)."""
        rows = np.zeros(end - first, self.row_type)
        rows["costs"], rows["metrics"], evaluated = self.costs[first:end], np.nan, self.metrics["round"]
        selected = slice(bisect.bisect_left(evaluated, first), bisect.bisect_left(evaluated, end))
        positions = np.array(evaluated[selected], dtype=np.int64) - first
        rows["metrics"][positions] = np.array([values[selected] for values in self.metrics.values()]).T
        start = max(first, 1)  # no iterate is recorded for the starting point
        for block in self.blocks if start < end else ():
            rows[f"iterates_{block}"][start - first :] = self.iterates[block][start - 1 : end - 1]
        return rows

    @property
    def recorded(self) -> dict[str, np.ndarray]:
        """The recorded iterates by block, ``[R, d]`` (rank 0)."""
        dtype, sizes = self.simulation.config.run.dtype, self.sizes
        return {
            block: np.array(rows, dtype).reshape(len(rows), sizes[block])
            for block, rows in self.iterates.items()
        }

    @property
    def size(self) -> int:
        """The size of the history in bytes (rank 0)."""
        item = self.simulation.dtype.itemsize
        iterates = sum(len(self.iterates[block]) * size for block, size in self.sizes.items())
        return self.costs.nbytes + 8 * sum(map(len, self.metrics.values())) + item * iterates

    def restore(self, header: dict, arrays: dict[str, np.ndarray], best: np.ndarray | None) -> None:
        """Restore the history of a checkpoint and the best point.

        Args:
            header: header of the checkpoint.
            arrays: tables of :func:`mpifed.storage.history.read` on rank 0. Costs and iterates of lost rounds
                are NaN. Iterates of a block that was not recorded become NaN.
            best: the best evaluated point on rank 0, ``None`` if it was not kept. Of a metric other than
                ``run.keep_best``, it is not restored: the best evaluation from here on is kept.
        """
        if self.comm.rank == 0:
            if best is not None and header["best"]["metric"] == self.simulation.config.run.keep_best:
                self.best = Best(**header["best"], point=best)
            self._append(arrays["costs"])
            self._costs_before = self.costs[-1].copy()
            self.metrics = {name: row.tolist() for name, row in zip(header["metrics"], arrays["metrics"])}
            self.metrics["round"] = [int(r) for r in self.metrics["round"]]
            for block in self.blocks:
                unknown = np.full((len(self.costs) - 1, self.sizes[block]), np.nan)
                self.iterates[block] = list(arrays.get(f"iterates_{block}", unknown))

    @property
    def initial_seconds(self) -> float:
        """The seconds before this process resumed the run; 0 for a run that was not resumed (rank 0)."""
        return float(self._costs_before[COSTS.index("seconds")])

    def columns(self) -> dict[str, np.ndarray]:
        """Return the costs by name, with integer counts and without lost rounds (rank 0)."""
        columns = dict(zip(COSTS, self.costs[~np.isnan(self.costs[:, 0])].T))
        return {
            name: column if name.endswith("seconds") else column.astype(np.int64)
            for name, column in columns.items()
        }

    def write(self, folder: Path, end: End | None, final: dict[str, float]) -> None:
        """Replace the results file (rank 0).

        Args:
            end: why the run ended; ``None`` while it continues.
            final: metrics of the output point; empty while the run continues.
        """
        columns = {"costs": self.columns(), "ranks": self._peak_memory}
        columns["metrics"] = {name: np.array(values) for name, values in self.metrics.items()}
        output = results.RunOutput(self._point(), final, self.recorded, self.best_point)
        details = self.simulation.details if final else Details()
        attributes = self._attributes() | end_entries(end)
        results.write(folder, attributes, columns, output, self._class_counts, details)

    @property
    def best_point(self) -> results.BestPoint | None:
        """The best evaluated point by block (rank 0)."""
        if self.best is None:
            return None
        point = user_point(self.simulation.config.problem, torch.from_numpy(self.best.point))
        flat = {block: values.numpy() for block, values in point.items()}
        return results.BestPoint(self.best.metric, self.best.round, flat)

    def _point(self) -> results.OutputPoint:
        simulation, problem = self.simulation, self.simulation.config.problem
        point = user_point(problem, simulation.point(simulation.output))
        values, tied = network_constants(problem)
        return results.OutputPoint(
            flat={block: flat.cpu().numpy() for block, flat in point.items()},
            shapes=dict(problem.variables()),
            network=network_parameters(problem),
            fixed={
                name: tensor.cpu().to(simulation.dtype if tensor.is_floating_point() else None).numpy()
                for name, tensor in values.items()
            },
            tied=dict(tied),
        )

    def _attributes(self) -> dict[str, str]:
        simulation = self.simulation
        return {
            "config": json.dumps(simulation.config.table()),
            "versions": json.dumps(versions() | {"mpi": self.comm.mpi}),
            "layout": json.dumps(simulation.describe() | {"machine": machine(simulation.device)}),
            "data": files_to_json(simulation.files),
            "columns": json.dumps([*simulation.columns.values()]),
            "splits": json.dumps(simulation.scored_rows),
            "infeasible": simulation.infeasible,
        }
