"""Local steps of clients that take different numbers of steps, τ_i, given as numbers or in epochs."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from pydantic import Field

from mpifed.base.errors import short_repr
from mpifed.base.settings import hyperparameters
from mpifed.core.algorithm import Algorithm
from mpifed.core.device import to_device
from mpifed.core.epochs import Epochs
from mpifed.core.schedules import Rate

__all__ = [
    "UnequalSteps", "local_steps", "numbers_of_steps", "sampling_scale", "step_masks", "total_step_size",
]  # fmt: skip


def numbers_of_steps(oracle, K: int | Epochs) -> np.ndarray:
    """Return the numbers of local steps of the clients that are stepped together, ``[C]``."""
    if isinstance(K, Epochs):
        return K.epochs * oracle.steps_per_epoch
    return np.full(len(oracle.client), K)


def local_steps(oracle, K: int | Epochs) -> Iterable[tuple[int, torch.Tensor | None]]:
    """Iterate over local steps k = 1, 2, ..., each with a mask of the clients that take it, as step_masks."""
    return enumerate([None] * K if isinstance(K, int) else step_masks(oracle, numbers_of_steps(oracle, K)), 1)


def total_step_size(now, oracle, K: int | Epochs, rate: Rate) -> float | torch.Tensor:
    """Return the sum of a step size over the local steps of each client, a number or ``[C, 1]``."""
    if isinstance(K, int):
        return now.total(rate)
    tau = numbers_of_steps(oracle, K).tolist()
    totals = {steps: now.total(rate, steps) for steps in {*tau}}
    device, dtype = oracle.sampler.device, oracle.sampler.dtype
    return to_device(np.array([[totals[steps]] for steps in tau]), device, dtype)


@hyperparameters
class UnequalSteps(Algorithm):
    """Base class of methods whose client i takes τ_i local steps."""

    tau: int | tuple[int, ...] = Field(description="local steps τ_i: one number, or one per client")

    example = {"tau": 4}
    steps = "longest"

    def __post_init__(self):
        if not isinstance(self.tau, Epochs) and (not np.size(self.tau) or np.min(self.tau) < 1):
            got = short_repr(self.tau)
            raise ValueError(f"tau: expected at least 1 local step per client, got {got}")

    def expect_clients(self, clients: int) -> None:
        if isinstance(self.tau, tuple) and len(self.tau) != clients:
            raise ValueError(
                f"algorithm.tau: expected one number per client for {clients} clients, got {len(self.tau)}"
            )

    @property
    def longest(self) -> int | Epochs:
        """The largest number of local steps among the clients."""
        return self.tau if isinstance(self.tau, Epochs) else int(np.max(self.tau))

    def steps_of(self, now, oracle) -> np.ndarray:
        """Return the numbers of local steps of the clients that are stepped together, ``[C]``."""
        if isinstance(self.tau, Epochs):
            return numbers_of_steps(oracle, self.tau)
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
