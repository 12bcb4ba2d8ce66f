"""The options of ranks, devices and messages."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, model_validator

from mpifed.base.settings import Section

__all__ = ["ParallelOptions"]


class ParallelOptions(Section):
    """How the work is distributed over ranks and devices, and how messages are summed."""

    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="device of the state and the gradients; auto uses a GPU if one is available"
    )
    gpus: tuple[NonNegativeInt, ...] | None = Field(
        None,
        min_length=1,
        description="numbers of the GPUs that the ranks of a node use in turn; default: all GPUs",
    )
    transport: Literal["auto", "shm", "host", "cuda-mpi", "nccl"] = Field(
        "auto",
        description="how messages are exchanged; auto: shared memory on a node, NCCL if every rank has its "
        "own GPU, otherwise MPI in host memory",
    )
    reduction: Literal["exact", "fused"] | None = Field(
        None,
        description="exact: results are bitwise identical on every layout, for the same dtype, autocast, "
        "compile, threads, type of device, machine, and loop or vectorised clients; fused: one Allreduce; "
        "default: exact on CPUs, fused on GPUs and for compiled groups",
    )
    placement: Literal["even", "balanced"] = Field(
        "even",
        description="even: equal numbers of clients per rank; balanced: with full batches, nearly equal "
        "numbers of samples per rank",
    )

    @model_validator(mode="after")
    def _one_device(self):
        if self.gpus and self.device == "cpu":
            raise ValueError(
                f"gpus = {list(self.gpus)} names GPUs, but device = 'cpu': leave gpus out, or "
                "device = auto, cuda"
            )
        return self
