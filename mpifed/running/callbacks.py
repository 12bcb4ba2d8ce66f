"""Callbacks: objects that are called during a run, user-defined or the writer for TensorBoard."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from mpifed.base.errors import ConfigError, expect_extra, short_repr, user_code_errors
from mpifed.base.log import warning
from mpifed.base.settings import suggest
from mpifed.parallel.comm import SerialComm, broadcast_text, collective_errors
from mpifed.running.recorder import Recorder
from mpifed.simulation.simulation import Simulation
from mpifed.storage.results import End

__all__ = ["Callbacks", "Event", "TensorBoard", "expect_callbacks"]

#: The methods that a callback may have.
METHODS = ("on_start", "on_round", "on_evaluation", "on_end")


@dataclass(frozen=True)
class Event:
    """The argument of a callback. It is valid during the call; copy values that are needed later.

    Attributes:
        config: the resolved settings, a table that ``mpifed.run`` accepts.
        folder: the run's folder.
        round: number of completed rounds; in ``on_start`` the rounds of the resumed run.
        metrics: metrics of the evaluation by name; in ``on_end`` metrics of the output point, {} after a
            signal or non-finite values; {} in ``on_start`` and ``on_round``.
        costs: cumulative costs over all ranks, under their names in ``run.h5``.
        stopped: why the run has ended; "" before.
    """

    config: dict
    folder: Path
    round: int
    metrics: Mapping[str, float]
    costs: Mapping[str, float]
    stopped: str
    _point: Callable[[], Mapping[str, torch.Tensor]]
    _stop: Callable[[str], None]

    def stop(self, reason: str = "") -> None:
        """End the run after this round, as if it were the last: with final metrics and complete results.

        Without effect in ``on_end``.

        Args:
            reason: why, as part of ``Result.stopped``.
        """
        self._stop(reason)

    @property
    def point(self) -> dict[str, np.ndarray]:
        """The averaged iterate by block, ``[d]``; in ``on_end`` the output point.

        The arrays are read-only copies: ``torch.from_numpy`` of a view could write to the run's memory.
        """
        copies = {block: values.cpu().numpy().copy() for block, values in self._point().items()}
        for copy in copies.values():
            copy.flags.writeable = False
        return copies


def expect_callbacks(callbacks: Sequence[object]) -> None:
    """Validate the type and the methods of callbacks.

    Raises:
        ConfigError: ``callbacks`` is no list, or an object has none of :data:`METHODS` or another ``on_...``.
    """
    if not isinstance(callbacks, list | tuple):
        raise ConfigError(f"callbacks: expected a list of objects, got {short_repr(callbacks)}")
    for callback in callbacks:
        name = type(callback).__name__
        if isinstance(callback, type):
            raise ConfigError(f"callbacks: expected an object, got the class {callback.__name__}: call it")
        methods = [method for method in dir(callback) if method.startswith("on_")]
        if unknown := next((method for method in methods if method not in METHODS), None):
            raise ConfigError(f"callbacks: {name} has {unknown}: {suggest(unknown, METHODS)}")
        if not methods:
            raise ConfigError(f"callbacks: {name} has none of the methods {', '.join(METHODS)}")


class Callbacks:
    """Calls rank 0's callbacks in their order. Ranks synchronise only if a callback has the method.

    Attributes:
        methods: the methods that some callback on rank 0 has, known on all ranks.
    """

    def __init__(
        self,
        callbacks: Sequence[object],
        simulation: Simulation,
        recorder: Recorder,
        comm: SerialComm,
        folder: Path,
    ):
        self._callbacks, self._simulation, self._recorder = callbacks, simulation, recorder
        self._comm, self._folder = comm, folder
        present = [name for name in METHODS if any(hasattr(callback, name) for callback in callbacks)]
        self.methods = frozenset(broadcast_text(comm, " ".join(present)).split())

    def call(self, name: str, metrics: Mapping[str, float], stopped: str) -> End | None:
        """Call the method ``name``, one of :attr:`methods`, of all callbacks that have it. Collective.

        Returns:
            The end of the run if a callback has stopped it.

        Raises:
            CollectiveError: a callback raises an error; names the callback.
        """
        self._recorder.gather()
        stops: list[str] = []
        with collective_errors(self._comm, ValueError):
            for callback in self._callbacks if self._comm.rank == 0 else ():
                if method := getattr(callback, name, None):
                    title = type(callback).__name__

                    def stop(reason: str, title=title) -> None:
                        stops.append(f"stopped by {title}: {reason}".removesuffix(": "))

                    event = self._event(metrics, stopped, stop)
                    with user_code_errors(f"{title}.{name}", event.round):
                        _call(method, event)
        sentence = broadcast_text(self._comm, "; ".join(stops))
        return End("callback", sentence) if sentence else None

    def _event(self, metrics: Mapping[str, float], stopped: str, stop: Callable[[str], None]) -> Event:
        simulation = self._simulation

        def point() -> dict[str, torch.Tensor]:
            read = partial(getattr, simulation.output) if stopped else simulation.block
            return {block: read(block) for block in simulation.blocks}

        return Event(
            simulation.config.table(),
            self._folder,
            simulation.round,
            dict(metrics),
            self._recorder.totals,
            stopped,
            point,
            stop,
        )


def _call(method: Callable[[Event], object], event: Event) -> None:
    try:
        method(event)
    except SystemExit as error:  # the other ranks would wait for this one
        raise RuntimeError(f"sys.exit({error.code}) was called in the middle of a run") from error


class TensorBoard:
    """Callback that writes metrics and costs of every evaluation as ``metrics/NAME`` and ``costs/NAME``.

    The event files are in the subfolder ``tensorboard`` of a run. An error while writing causes a warning and
    no further scalars, but does not end the run.

    Raises:
        MissingExtra: tensorboardX is not installed.
    """

    def __init__(self, folder: str | Path):
        expect_extra("tensorboard", "scalars for TensorBoard (run.tensorboard = true)")
        self._folder, self._writer, self._failed = Path(folder, "tensorboard"), None, False

    def on_evaluation(self, event: Event) -> None:
        if self._failed:
            return
        try:
            self._write({"metrics": event.metrics, "costs": event.costs}, event.round)
        except OSError as error:
            self._failed = True
            warning(f"cannot write scalars for TensorBoard ({error}): the run continues without them")

    def _write(self, groups: Mapping[str, Mapping[str, float]], step: int) -> None:
        # SummaryWriter writes in a thread, which hides errors of a full disk.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event as Record
        from tensorboardX.proto.event_pb2 import SessionLog
        from tensorboardX.proto.summary_pb2 import Summary

        if self._writer is None:
            self._folder.mkdir(exist_ok=True)
            # The step follows the time in the name, so that names sort by step.
            self._writer = EventsWriter(str(self._folder / "events"), f".{step:08d}")
            weakref.finalize(self, self._writer.close)
            # TensorBoard ignores values of earlier files from this step on.
            start = SessionLog(status=SessionLog.START)
            self._writer.write_event(Record(wall_time=time.time(), step=step, session_log=start))
        for group, values in groups.items():
            scalars = [Summary.Value(tag=f"{group}/{name}", simple_value=v) for name, v in values.items()]
            record = Record(wall_time=time.time(), step=step, summary=Summary(value=scalars))
            self._writer.write_event(record)
        self._writer.flush()
