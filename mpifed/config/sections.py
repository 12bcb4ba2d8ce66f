"""The sections [stop] and [run] of a job file. The other sections are records of the rooms that they set."""

from __future__ import annotations

from pydantic import Field, model_validator

from mpifed.base.settings import Section
from mpifed.base.units import Seconds
from mpifed.simulation.settings import ExecutionOptions
from mpifed.storage.options import StorageOptions

__all__ = ["Run", "Stop"]


class Stop(Section):
    """[stop]: conditions that end a run before its last round."""

    metric: str | None = Field(None, description="metric that ends the run")
    at_least: float | None = Field(None, description="stop when the metric is at least this value")
    at_most: float | None = Field(None, description="stop when the metric is at most this value")
    seconds: Seconds | None = Field(None, gt=0, description="wall-time budget, without evaluation")

    @model_validator(mode="after")
    def _one_target(self):
        targets = (self.at_least is not None) + (self.at_most is not None)
        if targets != (self.metric is not None):
            raise ValueError("a target needs metric and exactly one of at_least, at_most")
        return self


class Run(StorageOptions, ExecutionOptions):
    """[run]: how the run is executed."""

    threads: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="threads of torch per rank; default: 1 with reduction = exact, otherwise the cores of "
        "the node divided by its ranks",
    )
    watchdog: Seconds = Field(
        60.0,
        ge=0,
        le=1e8,
        description="minimum time without progress after which the run is ended; ten times as long for the "
        "set-up, the first round and the first evaluation; 0 disables the watchdog",
    )
    progress: bool = Field(True, description="show a progress bar on rank 0")
