"""Settings of the files of a run."""

from __future__ import annotations

from pydantic import Field

from mpifed.base.settings import Files, OutputFolder, Section
from mpifed.base.units import Seconds

__all__ = ["StorageOptions"]

#: Default number of rounds and seconds between checkpoints, and minimum ratio of the time between two
#: checkpoints to the time that a checkpoint takes, unless the settings are given.
_EVERY, _SECONDS, _RATIO = 50, 300.0, 10


class StorageOptions(Section):
    """Where a run writes its files, and how often."""

    checkpoint_every: Files[int | None] = Field(
        None,
        ge=0,
        description="rounds between checkpoints; 0 writes a checkpoint only if a signal ends the run; "
        "default: 50, or more until ten times the time of the last checkpoint has passed",
    )
    checkpoint_seconds: Files[Seconds | None] = Field(
        None,
        gt=0,
        description="time after which a checkpoint is written earlier, unless checkpoint_every = 0; default: "
        "300, or ten times the time of the last checkpoint",
    )
    keep: Files[int] = Field(3, ge=1, description="number of checkpoints to keep")
    keep_best: Files[str | None] = Field(
        None,
        description="metric, e.g. validation_auc, whose best evaluated point is kept in addition to the "
        "output point: Result.best, and `mpifed export --best`",
    )
    out: Files[OutputFolder] = Field("runs/run", description="output folder")
    overwrite: Files[bool] = Field(False, description="start over and replace the run in the output folder")
    tensorboard: Files[bool] = Field(
        False, description="also write metrics and costs for TensorBoard, into the subfolder tensorboard"
    )

    @property
    def rounds_between(self) -> int:
        """Number of rounds between checkpoints, at least, if the job does not set it; 0 for none."""
        return _EVERY if self.checkpoint_every is None else self.checkpoint_every

    def is_checkpoint_due(self, round: int, saved_round: int, elapsed: float, duration: float) -> bool:
        """Return whether a checkpoint is written after ``round``.

        Args:
            saved_round: round of the last checkpoint; ``elapsed``: seconds since it was written;
                ``duration``: seconds that this took.
        """
        every, seconds = self.checkpoint_every, self.checkpoint_seconds
        if every == 0:
            return False
        shortest = _RATIO * duration
        by_time = elapsed >= (max(_SECONDS, shortest) if seconds is None else seconds)
        if every is not None:
            return by_time or round % every == 0
        # A multiple of the default that came too early is made up for.
        return by_time or (round // _EVERY > saved_round // _EVERY and elapsed >= shortest)
