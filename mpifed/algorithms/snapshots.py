"""The snapshot x̃ of the "+" methods: y's gradient is evaluated at (x̃, y), x's at (x, y), with one sample.

x̃ is the averaged x at the start of every ``period``-th round, from the first. In such a round it equals x.
In other rounds clients read it from the field ``snapshot`` of ``shared``, so it counts as sent after each
update, and with partial participation in each of these rounds.
"""

from __future__ import annotations

__all__ = ["gradients", "keep_snapshot", "snapshot_of"]


def _renews(now, period: int) -> bool:
    return (now.round - 1) % period == 0


def snapshot_of(now, shared, period: int):
    """Return x̃ of this round, ``[d]``, in a client function."""
    return shared.x if _renews(now, period) else shared.snapshot


def keep_snapshot(now, shared, period: int) -> None:
    """Store x̃ for later rounds, in a server function before it updates x."""
    if _renews(now, period):
        shared.snapshot = shared.x


def gradients(oracle, x, y, snapshot, xi):
    """Return ∇_x f(x, y; ξ) and ∇_y f(x̃, y; ξ), ``[C, dx]`` and ``[C, dy]``; ``None`` means x̃ = x."""
    gx, gy = oracle.grad(x, y, xi)
    return (gx, gy) if snapshot is None else (gx, oracle.grad(snapshot, y, xi)[1])
