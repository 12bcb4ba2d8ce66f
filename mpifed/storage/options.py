"""Settings of the files of a run."""

from __future__ import annotations

from pydantic import Field

from mpifed.base.settings import Files, OutputFolder, Section
from mpifed.base.units import Seconds

__all__ = ["StorageOptions"]


class StorageOptions(Section):
    """Where a run writes its files, and how often."""

    checkpoint_every: Files[int] = Field(
        50,
        ge=0,
        description="rounds between checkpoints; 0 writes a checkpoint only if a signal ends the run",
    )
    checkpoint_seconds: Files[Seconds] = Field(
        300.0,
        gt=0,
        description="time after which a checkpoint is written earlier, unless checkpoint_every = 0",
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
