"""Checkpoints of a run: their content, when they are written, and how a run is restored from one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import starmap
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

from mpifed.base import log
from mpifed.base.log import warning
from mpifed.base.settings import explain
from mpifed.base.versions import versions
from mpifed.config.job import Run
from mpifed.core.algorithm import Algorithm, local_steps
from mpifed.core.metrics import Column
from mpifed.parallel.comm import CollectiveError, SerialComm, broadcast_text, collective_errors
from mpifed.parallel.nodes import Nodes
from mpifed.parallel.reproducibility import differences, machine
from mpifed.running.recorder import Recorder
from mpifed.simulation.data_agreement import digests, expect_same
from mpifed.simulation.simulation import Simulation
from mpifed.storage import checkpoint, history
from mpifed.storage.files import RUN_FILE, round_of
from mpifed.storage.folder import Folder
from mpifed.storage.results import COSTS, End, columns_of_names, end_entries, load_if_valid

__all__ = ["CheckpointManager", "Snapshot", "announce", "expect_state", "writer_version"]

#: The results file contains the whole history. To bound the cost of writing it again and again, a history of
#: more than ``LONG`` bytes must have grown by the fraction ``GROWTH`` since the last time.
LONG, GROWTH = 2**18, 1 / 32
#: Errors of a rank that reads or writes its part of a checkpoint. HDF5 raises an OSError or a RuntimeError, a
#: lack of memory a RuntimeError of torch or a MemoryError of NumPy.
_ERRORS = (OSError, RuntimeError, MemoryError)


def announce(comm: SerialComm, text: str) -> None:
    """Print a line on standard error of rank 0, and log it on all ranks."""
    if comm.rank == 0:
        log.info(text)
    else:
        log.LOG.info(text)


class CheckpointManager:
    """Writes the checkpoints and the results file of a run, and restores the run.

    Attributes:
        newest: the round of the newest checkpoint.
    """

    def __init__(
        self, run: Run, folder: Folder, simulation: Simulation, recorder: Recorder, comm: SerialComm
    ):
        self.run, self.folder, self.comm = run, folder, comm
        self.simulation, self.recorder, self.newest = simulation, recorder, 0
        self._history_rows, self._results_size = 0, 0
        self._sizes = _sizes(simulation)
        self._parts = checkpoint.Parts(comm, folder.path) if self._writes_parts() else None

    def _writes_parts(self) -> bool:
        """Whether clients have state of which only some rows change, or several nodes can write it."""
        clients, width = self._sizes["clients"]
        several = Nodes.from_comm(self.comm).node is not self.comm
        is_partial = self.simulation.config.participation.partial_setting(clients) != ""
        return width > 0 and (several or is_partial)

    @property
    def state_bytes(self) -> int:
        """The size in bytes of the state in a checkpoint, without the history."""
        sizes = self._sizes
        numbers = sizes["shared"] + sizes["coordinator"] + sizes["output"] + math.prod(sizes["clients"])
        numbers += sizes["output"] if self.run.keep_best else 0
        return numbers * np.dtype(sizes["dtype"]).itemsize

    def clear(self) -> None:
        """Remove the files of the run that is replaced. Collective.

        Raises:
            CollectiveError: they cannot be removed.
        """
        with collective_errors(self.comm, OSError):
            if self.comm.rank == 0:
                self.folder.clear()

    def restore(self, snapshot: Snapshot) -> None:
        """Restore the state of a checkpoint that rank 0 has read. Collective.

        Raises:
            CollectiveError: a rank cannot read or store its part, the data differ, the settings lead to a
                state of other sizes or leave out a recorded block, or with ``exact`` the type of the device
                differs.
        """
        simulation, comm, header = self.simulation, self.comm, snapshot.header
        expect_same(header["data"], simulation.files)
        self._expect_recorded(header)
        self._expect_same_machine(header)
        if header["sizes"] != self._sizes:
            raise CollectiveError(
                f"the checkpoint does not fit these settings: expected a state of {self._sizes}, found "
                f"{header['sizes']}"
            )
        arrays, own = simulation.arrays(), simulation.client_rows()
        with collective_errors(comm, *_ERRORS):
            read = {
                name: snapshot.arrays[name] if comm.rank == 0 else np.empty(len(values), own.dtype)
                for name, values in arrays.items()
            }
        for array in read.values():
            comm.bcast_(array)
        with collective_errors(comm, *_ERRORS, ValueError, KeyError):
            checkpoint.read_clients(snapshot.path, own, comm, simulation.placement)
            for name, values in arrays.items():
                values.copy_(torch.from_numpy(read[name]))
            past = history.read(self.folder.path, header)[0] if comm.rank == 0 else {}
            self.recorder.restore(header, past, snapshot.arrays.get("best"))
        steps = header.get("steps") or _steps_of_version_0_2(header, simulation.config.algorithm)
        columns = header.get("columns") or _columns_of_version_0_2(header, simulation)
        state = header | {"steps": steps, "columns": columns, **arrays, "clients": own}
        simulation.load_state_dict(state)
        self.newest = snapshot.round
        announce(comm, f"continuing {self.folder.path} from round {self.newest}")

    def _expect_recorded(self, header: dict) -> None:
        """Raise an error if a recorded block is no longer recorded. Blocks may be added."""
        blocks = self.recorder.blocks
        missing = [block for block in header["config"].get("record", ()) if block not in blocks]
        if missing:
            raise CollectiveError(
                f"record = {list(blocks)} leaves out {', '.join(missing)}, whose iterates the run has "
                "recorded so far: keep it in the list"
            )

    def _expect_same_machine(self, header: dict) -> None:
        """With ``exact``, refuse another type of device, and warn of another machine or other versions."""
        before, device = header.get("device"), self.simulation.device
        if not self.run.is_reproducible or before is None:
            return
        if before != device.type:
            raise CollectiveError(
                f"the run began on run.device = {before!r} and would continue on {device.type!r}, whose "
                "results are not bitwise identical, as run.reduction = 'exact' requires: set "
                f"run.device={before}, or continue without the reproducibility guarantee: `mpifed resume "
                "FOLDER run.reduction=fused`"
            )
        stored = {"mpifed": header["versions"]["mpifed"], **header["machine"]}
        current = {"mpifed": versions()["mpifed"], **machine(device)}
        changed = differences(stored, current, "before", "now")
        if changed and self.comm.rank == 0:
            warning(f"{changed}: the results may no longer be bitwise identical (run.reduction = 'exact')")

    def save(
        self, end: End | None = None, metrics: dict[str, float] | None = None, signalled: bool = False
    ) -> None:
        """Gather the history on rank 0; write the checkpoint and the results file. Collective.

        Args:
            end: why the run stops here; ``None`` while it continues. A write error while the run continues
                causes a warning, and the next checkpoint tries again. After non-finite values, no checkpoint
                is written and a write error is a warning, too.
            metrics: metrics of the output point, at the end.
            signalled: write a checkpoint even if the settings disable them, because a signal ends the run.

        Raises:
            CollectiveError: the files cannot be written at the end; names the newest checkpoint.
        """
        self.recorder.gather()
        diverged = end is not None and end.kind == "diverged"
        has_checkpoint = (self.run.checkpoint_every != 0 or signalled) and not diverged
        error = self._write(has_checkpoint, end, metrics)
        if error and end and not diverged:
            raise CollectiveError(error)
        if error and self.comm.rank == 0:
            warning(error)

    def repair(self, end: End, metrics: dict[str, float]) -> None:
        """Write the results file of a complete run that was killed after its last checkpoint. Collective.

        Raises:
            CollectiveError: it cannot be written.
        """
        with collective_errors(self.comm, *_ERRORS):
            if self.comm.rank == 0:
                run = load_if_valid(self.folder.path)
                if run is None or run.end != end:
                    self.folder.expect_held()
                    self.recorder.write(self.folder.path, end, metrics)

    def _write(self, has_checkpoint: bool, end: End | None, metrics: dict[str, float] | None) -> str:
        """Write the history, the checkpoint if there is one, and the results file. Collective.

        No rank sends its client rows before rank 0 has written the history and all ranks have copied the
        vectors of the state to the host.

        Returns:
            The error on all ranks; "" if the files are written.
        """
        state = self.simulation.state_dict() if has_checkpoint else {}
        try:
            with collective_errors(self.comm, *_ERRORS):
                if self.comm.rank == 0:
                    self.folder.expect_held()
                    if has_checkpoint:
                        self._write_history()
                if has_checkpoint:
                    snapshot = Snapshot.take(state, self._sizes, self.simulation, self.recorder, end)
            with collective_errors(self.comm, *_ERRORS):
                if has_checkpoint:
                    checkpoint.write(
                        self.folder.path,
                        self.run.keep,
                        snapshot.header,
                        snapshot.arrays,
                        state["clients"],
                        self.comm,
                        self.simulation.placement,
                        self._parts,
                        self.simulation.changed_clients,
                    )
                if self.comm.rank == 0 and (end or self._is_results_file_due()):
                    self.recorder.write(self.folder.path, end, metrics or {})
                    self._results_size = self.recorder.size
        except CollectiveError as error:
            reason = str(error).partition("\n")[0]
            return broadcast_text(self.comm, self._failure(reason, end) if self.comm.rank == 0 else None)
        if has_checkpoint:
            self.newest = self.simulation.round
            self.simulation.changed_clients[:] = False
        return ""

    def _write_history(self) -> None:
        recorder, written = self.recorder, self._history_rows
        self._history_rows = 0  # after an error the file is written again
        history.write(self.folder.path, written, len(recorder.costs), recorder.row_type, recorder.rows)
        self._history_rows = len(recorder.costs)

    def _is_results_file_due(self) -> bool:
        """Whether to write the results file although the run continues."""
        size = self.recorder.size
        short = size <= LONG or size >= (1 + GROWTH) * self._results_size
        return short or not (self.folder.path / RUN_FILE).exists()

    def _failure(self, reason: str, end: End | None) -> str:
        try:
            rounds = [round_of(path) for path in self.folder.checkpoints()]
        except OSError:  # a stale file handle of a file system that is no longer connected
            rounds = [self.newest] if self.newest else []
        newest = f"the newest checkpoint is of round {max(rounds)}" if rounds else "there is no checkpoint"
        action = "continues from there" if rounds else "starts over"
        fix = f"make the folder writable; then the same command {action}" if end else "the run continues"
        return (
            f"the files of round {self.simulation.round} could not be written to {self.folder.path} "
            f"({reason}); {newest}; {fix}"
        )


class _Table(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _Sizes(_Table):
    dtype: Literal["float32", "float64"]
    shared: NonNegativeInt
    coordinator: NonNegativeInt
    output: NonNegativeInt
    clients: Annotated[list[NonNegativeInt], Field(min_length=2, max_length=2)]


class _Settings(_Table):
    """The settings that are read before all settings are validated as a job."""

    model_config = ConfigDict(extra="allow")

    rounds: NonNegativeInt
    stop: dict[str, Any]
    run: dict[str, Any]
    record: list[str] = []


class _Best(_Table):
    metric: str
    value: float
    round: NonNegativeInt


class Header(_Table):
    """The header of a checkpoint. A change requires a new :data:`mpifed.storage.checkpoint.FORMAT`."""

    round: NonNegativeInt
    skipped: NonNegativeInt
    config: _Settings
    sizes: _Sizes
    data: dict[str, str]
    unsent: list[str]
    metrics: Annotated[list[str], Field(min_length=1)]
    stopped: str
    end: str
    group: PositiveInt | Literal["all"] | None
    recorded: dict[str, PositiveInt]
    totals: Annotated[list[float], Field(min_length=len(COSTS), max_length=len(COSTS))]
    versions: dict[str, str]
    device: str
    machine: dict[str, str]
    infeasible: str
    best: _Best | None = None  # since 0.2
    #: Number of local steps in all rounds and in the last one. Since 0.3.
    steps: Annotated[list[NonNegativeInt], Field(min_length=2, max_length=2)] | None = None
    #: What the metrics are, without ``round``. Since 0.3.
    columns: list[Column] | None = None


@dataclass
class Snapshot:
    """The state of a run between two rounds, except the client rows, which are streamed to and from the file.

    Attributes:
        header: a :class:`Header`, JSON-able, on all ranks.
        arrays: the whole records, on rank 0.
        path: the checkpoint from which the snapshot was read, on rank 0.
    """

    header: dict
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    path: Path | None = None

    @classmethod
    def take(
        cls, state: dict[str, Any], sizes: dict, simulation: Simulation, recorder: Recorder, end: End | None
    ) -> Snapshot:
        """Return a state of :meth:`Simulation.state_dict`. The history must have been gathered."""
        arrays = {name: values for name, values in state.items() if isinstance(values, torch.Tensor)}
        entries = {name: value for name, value in state.items() if name not in {*arrays, "clients"}}
        header = entries | {
            "metrics": list(recorder.metrics),
            "config": simulation.config.table(),
            "sizes": sizes,
            "data": digests(simulation.files),
            "versions": versions(),
            "device": simulation.device.type,
            "machine": machine(simulation.device),
            "recorded": recorder.sizes,
            "totals": recorder.costs[-1].tolist(),
        }
        records = {name: values.cpu().numpy() for name, values in arrays.items()}
        if best := recorder.best:
            header["best"] = {"metric": best.metric, "value": best.value, "round": best.round}
            records["best"] = best.point
        return cls(header | end_entries(end), records)

    @property
    def round(self) -> int:
        return self.header["round"]

    @property
    def end(self) -> End | None:
        """Why the run had ended; ``None`` if it had not."""
        return End.read(self.header)


def _steps_of_version_0_2(header: dict, method: Algorithm) -> tuple[int, int]:
    """Return the numbers of steps of a checkpoint without them, whose rounds all had the stored number."""
    table = header["config"].get("algorithm")
    stored = table.get(method.steps) if isinstance(table, dict) else None
    steps = stored if type(stored) is int and stored > 0 else local_steps(method)
    return (header["round"] - header["skipped"]) * steps, steps


def _columns_of_version_0_2(header: dict, simulation: Simulation) -> list[Column]:
    """Return the columns of a checkpoint without them, by their names."""
    own = (metric.maximised for metric in simulation.config.metrics)
    return columns_of_names(header["metrics"][1:], {*simulation.config.problem.maximised}.union(*own))


def _sizes(simulation: Simulation) -> dict:
    """Return the sizes that must be equal in a checkpoint and the run that is restored from it."""
    clients = [simulation.config.problem.clients, simulation.client_rows().shape[1]]
    whole = {name: len(values) for name, values in simulation.arrays().items()}
    return {"dtype": simulation.config.run.dtype, **whole, "clients": clients}


def expect_state(header, arrays: dict[str, np.ndarray], clients: tuple[tuple[int, ...], np.dtype] | None):
    """Validate the content of a checkpoint, since a valid digest can be added to any content.

    Args:
        clients: shape and dtype of the client rows; ``None`` if there are none.

    Raises:
        ValueError: a value is missing, unknown, or of another type or size; names the version that wrote it.
    """
    try:
        Header.model_validate(header)
        _expect_arrays(header, arrays, clients)
    except ValueError as error:
        text = str(error)
        if isinstance(error, ValidationError):
            text = explain(error.errors(), "its header").replace("\n", ", ")
        raise ValueError(f"{text}; it was written by {writer_version(header)}") from None


def _expect_arrays(header: dict, arrays: dict[str, np.ndarray], clients) -> None:
    sizes = header["sizes"]
    expected = {name: ((sizes[name],), sizes["dtype"]) for name in ("shared", "coordinator", "output")}
    expected["clients"] = tuple(sizes["clients"]), sizes["dtype"]
    if header.get("best"):
        expected["best"] = (sizes["output"],), sizes["dtype"]
    actual = {name: (array.shape, str(array.dtype)) for name, array in arrays.items()}
    if clients:
        actual["clients"] = clients[0], str(clients[1])
    for name in {**expected, **actual}:
        if expected.get(name) != actual.get(name):
            texts = (_type_text(table.get(name)) for table in (expected, actual))
            raise ValueError("expected {0} as {2!r}, found {1}".format(*texts, name))
    metrics, recorded = header["metrics"], header["config"].get("record", [])
    if metrics[0] != "round" or len({*metrics}) < len(metrics):
        raise ValueError(f"expected the metrics 'round' and others, found {', '.join(metrics)}")
    columns = [column.name for column in starmap(Column, header.get("columns") or ())]
    if columns not in ([], metrics[1:]):
        raise ValueError(f"expected the columns {', '.join(metrics[1:])}, found {', '.join(columns)}")
    if {*header["recorded"]} != {*recorded} or header["totals"][0] != header["round"]:
        raise ValueError("expected iterates and costs of its own settings and round, found others")


def _type_text(array: tuple | None) -> str:
    return f"{array[1]} [{', '.join(map(str, array[0]))}]" if array else "nothing"


def writer_version(header) -> str:
    """Return the version that wrote a checkpoint with this header, as text."""
    names = header.get("versions") if isinstance(header, dict) else None
    version = names.get("mpifed") if isinstance(names, dict) else None
    return f"mpifed {version}" if version else "an unknown version of mpifed"
