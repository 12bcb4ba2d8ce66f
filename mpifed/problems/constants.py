"""Random constants of synthetic problems: rotations, and client parameters around a mean."""

from __future__ import annotations

import numpy as np

from mpifed.core.streams import Stream

__all__ = ["around", "rotation"]


def rotation(rng: np.random.Generator, d: int) -> np.ndarray:
    """A dense random orthogonal matrix ``[d, d]``: the product of d reflections."""
    Q = np.eye(d)
    for _ in range(d):
        v = rng.standard_normal(d)
        Q -= np.multiply.outer((Q * v).sum(axis=1), 2 / (v * v).sum() * v)
    return Q


def around(mean: np.ndarray, scale: float, stream: Stream) -> np.ndarray:
    """One array per client, ``[N, *shape]``, normal with standard deviation ``scale``, shifted to the average
    ``mean``."""
    if scale == 0:
        return np.broadcast_to(mean, (len(stream.clients), *mean.shape))  # no copy per client
    deviations = stream.normal(*mean.shape)[:, 0]
    return mean + scale * (deviations - deviations.mean(axis=0))
