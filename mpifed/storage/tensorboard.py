"""Scalars for TensorBoard, written during a run."""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mpifed.base.log import warning

__all__ = ["Scalars"]


class Scalars:
    """A callback that writes metrics and costs of every evaluation, as ``metrics/NAME`` and ``costs/NAME``,
    to event files in the folder ``tensorboard`` of a run.

    A file that cannot be written, on a full disk say, costs a warning and the scalars from there on, not the
    run.

    Raises:
        ValueError: the package that writes them is not installed.
    """

    def __init__(self, folder: str | Path):
        try:
            import tensorboardX.event_file_writer  # noqa: F401
        except ImportError:
            raise ValueError(
                "run.tensorboard = true needs the package tensorboardX: pip install 'mpifed[tensorboard]'"
            ) from None
        self._folder, self._writer, self._failed = Path(folder, "tensorboard"), None, False

    def on_evaluation(self, event: Any) -> None:
        """Add an evaluation.

        The first one of a process starts a file: what earlier files hold of this round and later ones does
        not count any more.
        """
        if self._failed:
            return
        try:
            self._write("metrics", event.metrics, event.round)
            self._write("costs", event.costs, event.round)
            self._writer.flush()
        except OSError as fault:
            self._failed = True
            warning(f"no more scalars for TensorBoard: {fault}; the run goes on")

    def _write(self, group: str, values: Mapping[str, float], step: int) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        figures = [Summary.Value(tag=f"{group}/{name}", simple_value=value) for name, value in values.items()]
        self._opened(step).write_event(
            Event(wall_time=time.time(), step=step, summary=Summary(value=figures))
        )

    def _opened(self, step: int):
        from tensorboardX.event_file_writer import (
            EventsWriter,
        )  # SummaryWriter has a queue that does not say when it is empty
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        if self._writer is None:
            self._folder.mkdir(exist_ok=True)
            self._writer = EventsWriter(
                str(self._folder / "events"), f".{step:08d}"
            )  # after the time, so that names sort by step
            weakref.finalize(self, self._writer.close)
            self._writer.write_event(
                Event(wall_time=time.time(), step=step, session_log=SessionLog(status=SessionLog.START))
            )
        return self._writer
