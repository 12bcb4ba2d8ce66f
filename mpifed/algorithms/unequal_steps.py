"""Methods whose clients take different numbers of local steps, τ_i."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from pydantic import Field

from mpifed.base.errors import short_repr
from mpifed.base.settings import hyperparameters
from mpifed.core.algorithm import Algorithm

__all__ = ["UnequalSteps", "sampling_scale", "step_masks"]


@hyperparameters
class UnequalSteps(Algorithm):
    """Base class of methods whose client i takes τ_i local steps."""

    tau: int | tuple[int, ...] = Field(description="local steps τ_i: one number, or one per client")

    example = {"tau": 4}
    steps = "longest"

    def __post_init__(self):
        if not np.size(self.tau) or np.min(self.tau) < 1:
            got = short_repr(self.tau)
            raise ValueError(f"tau: expected at least 1 local step per client, got {got}")

    def expect_clients(self, clients: int) -> None:
        if isinstance(self.tau, tuple) and len(self.tau) != clients:
            raise ValueError(
                f"algorithm.tau: expected one number per client for {clients} clients, got {len(self.tau)}"
            )

    @property
    def longest(self) -> int:
        """The largest number of local steps among the clients."""
        return int(np.max(self.tau))

    def steps_of(self, now, oracle) -> np.ndarray:
        """Return the numbers of local steps of the clients that are stepped together, ``[C]``."""
        return np.broadcast_to(self.tau, now.clients)[oracle.client]


def step_masks(oracle, tau: np.ndarray) -> Iterable[torch.Tensor | None]:
    """Iterate over local steps; each value is a mask of the clients that take the step, or ``None`` for all.

    Args:
        tau: number of local steps of each client, ``[C]``.
    """
    return [None] * int(tau[0]) if (tau == tau[0]).all() else oracle.steps(tau)


def sampling_scale(now) -> float:
    """Return the factor by which the mean over a cohort S estimates the weighted sum over all N clients.

    The mean is Σ_S w_i v_i / Σ_S w_i, the unbiased estimate is (N / |S|) Σ_S w_i v_i, for weights w_i that
    sum to 1 over all clients. Averages of ``availability.unbiased`` are unbiased already.
    """
    return 1.0 if now.unbiased else now.cohort_weight * now.clients / now.cohort
