"""The snapshot x̃ of the "+" methods: ∇_y is evaluated at (x̃, y) and ∇_x at (x, y), on the same sample.

x̃ is updated to the averaged x at the start of rounds 1, 1 + period, 1 + 2 period, ... In these rounds clients
use x. In other rounds they read the field ``snapshot`` of ``shared``, which counts as downloaded once after
each update, and with partial participation in each of these rounds.
"""

from __future__ import annotations

__all__ = ["gradients", "store_snapshot", "snapshot_of"]


def _is_updated(now, period: int) -> bool:
    return (now.round - 1) % period == 0


def snapshot_of(now, shared, period: int):
    """Return x̃ of this round, ``[d]``. A client function calls it."""
    return shared.x if _is_updated(now, period) else shared.snapshot


def store_snapshot(now, shared, period: int) -> None:
    """Store x̃ for later rounds. A server function calls it before it updates x."""
    if _is_updated(now, period):
        shared.snapshot = shared.x


def gradients(oracle, x, y, snapshot, xi):
    """Return ∇_x f(x, y; ξ) and ∇_y f(x̃, y; ξ), ``[C, dx]`` and ``[C, dy]``; ``None`` means x̃ = x."""
    gx, gy = oracle.grad(x, y, xi)
    return (gx, gy) if snapshot is None else (gx, oracle.grad(snapshot, y, xi)[1])
