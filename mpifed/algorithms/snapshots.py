"""The snapshot x̃ of the "+" methods: y's gradient is taken at (x̃, y), x's at (x, y), with one sample.

x̃ is the averaged x with which every ``period``-th round begins, the first round among them. In such a round
clients have it as x. In the others they read it from the field ``snapshot`` of ``shared``, so it counts
as sent again after each renewal, and with a cohort in each of these rounds.
"""

from __future__ import annotations

__all__ = ["gradients", "keep_snapshot", "snapshot_of"]


def _renews(now, period: int) -> bool:
    return (now.round - 1) % period == 0


def snapshot_of(now, shared, period: int):
    """x̃ of this round, ``[d]``, for a client function."""
    return shared.x if _renews(now, period) else shared.snapshot


def keep_snapshot(now, shared, period: int) -> None:
    """Keep x̃ for the rounds to come: for a server function, before it moves x."""
    if _renews(now, period):
        shared.snapshot = shared.x


def gradients(oracle, x, y, snapshot, xi):
    """∇_x f(x, y; ξ) and ∇_y f(x̃, y; ξ), ``[C, dx]`` and ``[C, dy]``; without a snapshot both at (x, y)."""
    gx, gy = oracle.grad(x, y, xi)
    return (gx, gy) if snapshot is None else (gx, oracle.grad(snapshot, y, xi)[1])
