"""The package's random numbers at an address, for the references.

References use one sample at a time. All samples of a round are drawn together and cached, since most tests
have equal addresses.
"""

import functools

import numpy as np

from mpifed.core.streams import Stream


@functools.lru_cache(maxsize=10_000)
def rows(seed: int, client: int, r: int, count: int, high: int, batch_size: int) -> np.ndarray:
    """Return row numbers below ``high`` of every sample of round ``r``, ``[count, batch_size]``."""
    return Stream(seed, "sample", [client], r, count).integers([high], batch_size)[0]


@functools.lru_cache(maxsize=10_000)
def noise(law, seed: int, client: int, r: int, count: int, size: int) -> np.ndarray:
    """Return the noise of every sample of round ``r``, ``[count, size]``."""
    return law(Stream(seed, "noise", [client], r, count), size)[0]


def uniform(seed: int, client: int, r: int, size: int) -> np.ndarray:
    """Return ``oracle.uniform(size)`` of a client in round ``r``, ``[size]``."""
    return Stream(seed, "client", [client], r).uniform(size)[0, 0]
