"""Random constants of synthetic problems: rotations, and parameters of clients around a mean."""

from __future__ import annotations

import numpy as np

from mpifed.core.streams import Stream

__all__ = ["around", "rotation"]


def rotation(rng: np.random.Generator, d: int) -> np.ndarray:
    """Return a dense random orthogonal matrix ``[d, d]``, the product of d reflections."""
    Q = np.eye(d)
    for _ in range(d):
        v = rng.standard_normal(d)
        Q -= np.multiply.outer((Q * v).sum(axis=1), 2 / (v * v).sum() * v)
    return Q


def around(mean: np.ndarray, scale: float, stream: Stream) -> np.ndarray:
    """Return normal arrays ``[N, *shape]``, one per client, whose average over the clients is ``mean``.

    Args:
        scale: standard deviation.
    """
    if scale == 0:
        return np.broadcast_to(mean, (len(stream.clients), *mean.shape))  # no copy per client
    deviations = stream.normal(*mean.shape)[:, 0]
    return mean + scale * (deviations - deviations.mean(axis=0))
