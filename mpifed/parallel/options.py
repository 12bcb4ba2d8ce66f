"""Settings of ranks, devices and messages."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, model_validator

from mpifed.base.settings import Digits, Section, Speed

__all__ = ["ParallelOptions"]


class ParallelOptions(Section):
    """Distribution of the work over ranks and devices, and summation of messages."""

    device: Speed[Literal["auto", "cpu", "cuda"]] = Field(
        "auto", description="device of the state and the gradients; auto: a GPU if one is available"
    )
    gpus: Speed[tuple[NonNegativeInt, ...] | None] = Field(
        None,
        min_length=1,
        description="numbers of the GPUs that are assigned to the ranks of a node, round-robin; default: all",
    )
    transport: Speed[Literal["auto", "shm", "host", "cuda-mpi", "nccl"]] = Field(
        "auto",
        description="transport of messages; auto: shared memory within a node, NCCL if every rank has its "
        "own GPU, otherwise MPI in host memory",
    )
    reduction: Digits[Literal["exact", "fused"] | None] = Field(
        None,
        description="exact: results are bitwise identical for every number and placement of ranks, for the "
        "same dtype, autocast, compile, threads, type of device, machine, and loop or vectorised clients; on "
        "GPUs for the loop, which is then chosen; fused: one Allreduce; default: exact on CPUs, fused on "
        "GPUs and for compiled groups",
    )
    placement: Speed[Literal["even", "balanced"]] = Field(
        "even",
        description="even: equal numbers of clients per rank; balanced: with full batches, nearly equal "
        "numbers of samples per rank",
    )

    @property
    def is_reproducible(self) -> bool:
        """Whether the reduction gives the same bits for every number and placement of ranks."""
        return self.reduction == "exact"

    @model_validator(mode="after")
    def _one_device(self):
        if self.gpus and self.device == "cpu":
            raise ValueError(
                f"gpus = {list(self.gpus)} selects GPUs, but device = 'cpu': remove gpus, or set device to "
                "'auto' or 'cuda'"
            )
        return self
