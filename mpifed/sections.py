"""The sections of a job file as frozen, validated objects: [oracle], [participation], [stop], [run]."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mpifed.noise import Noise

__all__ = ["Oracle", "Participation", "Stop", "Run", "SECTIONS"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Oracle(_Section):
    """[oracle]: how the stochastic oracle answers."""

    batch_size: int = Field(32, ge=0, description="rows of a client's data in one sample ξ; 0 takes all (exact local gradients)")
    noise: Noise | None = Field(None, description="additive gradient noise, e.g. { name = \"gaussian\", scale = 0.1 }")


class Participation(_Section):
    """[participation]: who takes part in a round and how much each counts."""

    cohort: int | None = Field(None, ge=1, description="clients drawn for a round; all when left out")
    weights: Literal["uniform", "samples"] = Field("uniform", description="equal weights, or by number of samples")


class Stop(_Section):
    """[stop]: when to end before the last round."""

    metric: str | None = Field(None, description="metric whose value ends the run")
    at_least: float | None = Field(None, description="stop once the metric is at least this")
    at_most: float | None = Field(None, description="stop once the metric is at most this")
    seconds: float | None = Field(None, gt=0, description="wall-time budget; evaluation is not counted")

    @model_validator(mode="after")
    def _one_target(self):
        targets = (self.at_least is not None) + (self.at_most is not None)
        if targets != (self.metric is not None):
            raise ValueError("a target needs metric and exactly one of at_least, at_most")
        return self


class Run(_Section):
    """[run]: how the run is executed."""

    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto takes a GPU where there is one")
    dtype: Literal["float32", "float64"] = Field("float32", description="precision of all state and gradients")
    executor: Literal["loop", "batched"] = Field("loop", description="clients of a rank one by one, or all at once")
    reduction: Literal["fused", "exact"] = Field("fused", description="one Allreduce, or the same bits on every layout")
    matrices: Literal["coordinator", "replicated"] = Field("coordinator", description="adaptive matrices on rank 0, or everywhere")
    eval_every: int = Field(10, ge=1, description="rounds between evaluations; the first and last round always count")
    checkpoint_every: int = Field(50, ge=0, description="rounds between checkpoints; 0 writes none")
    keep: int = Field(3, ge=1, description="checkpoints kept")
    out: str = Field("runs/run", description="folder of the results file and the checkpoints")
    overwrite: bool = Field(False, description="replace the results that lie in out")
    data_dir: str | None = Field(None, description="folder of the data files; else $MPIFED_DATA, else ../shared/data")
    threads: int | None = Field(None, ge=1, description="torch threads a rank; cores / ranks of the node when left out")
    watchdog: float = Field(60.0, ge=0, description="least seconds without progress that end the run; 0 switches it off")
    progress: bool = Field(True, description="progress bar on rank 0")


#: Name in a job file → section.
SECTIONS = {"oracle": Oracle, "participation": Participation, "stop": Stop, "run": Run}
