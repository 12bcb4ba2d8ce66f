"""Scalars for TensorBoard, written while a run goes on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

__all__ = ["Scalars"]


class Scalars:
    """The event files of one run, in the folder ``tensorboard`` of its own.

    Raises:
        ValueError: the package that writes them is not installed.
    """

    def __init__(self, folder: str | Path):
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise ValueError("run.tensorboard = true needs the package tensorboardX: pip install 'mpifed[tensorboard]'") from None
        self._open, self._writer = lambda step: SummaryWriter(str(Path(folder, "tensorboard")), purge_step=step), None

    def write(self, group: str, values: Mapping[str, float], step: int) -> None:
        """Add ``group/name`` at a step.

        The first call of a process starts a file: what earlier files hold of this step and later ones does not count any more.
        """
        self._writer = self._writer or self._open(step)
        for name, value in values.items():
            self._writer.add_scalar(f"{group}/{name}", value, step)

    def flush(self) -> None:
        """Bring what was added to disk."""
        if self._writer:
            self._writer.flush()
