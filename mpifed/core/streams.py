"""Random streams by address.

The address of a stream is ``(seed, purpose, client, round)``; that of a sample also has its index within the
client's round. Ranks and the order of evaluation are not part of it. The address is the counter of a
counter-based generator, Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC
2011)::

    key     = hash(seed, purpose)                      64 bits
    counter = (lane, index, round, client)             4 x 32 bits

so draws are random access: there is no generator state to store in a checkpoint, and one vectorised call
draws for all clients of a rank and a whole round. NumPy's generators are sequential and would need one object
per client; :func:`generator` returns one for numbers that are drawn once (partitions, starting points).
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import pickle
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

__all__ = [
    "BYTES_PER_DRAW", "Stream", "generator", "key", "global_states", "permutations", "philox",
    "seeded_globals",
]  # fmt: skip

#: Peak memory per uniform or normal number during a draw, in bytes.
BYTES_PER_DRAW = 40

_LOW = 0xFFFFFFFF


def philox(counter: tuple, key: tuple[int, int]) -> tuple:
    """Return the output of Philox4x32-10, four 32-bit words.

    Args:
        counter: four words: integers, uint64 arrays or int64 tensors, which are broadcast.
        key: two words.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        # The low halves of the products are not cut off before the next round: one mask per word also removes
        # the bits of the sign that a shift of int64 tensors repeats. Products wrap around at 64 bits.
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = ((p1 >> 32) ^ c1 ^ k0) & _LOW, p1, ((p0 >> 32) ^ c3 ^ k1) & _LOW, p0
        k0, k1 = (k0 + 0x9E3779B9) & _LOW, (k1 + 0xBB67AE85) & _LOW
    return c0, c1 & _LOW, c2, c3 & _LOW


def _digest(*address, size: int) -> bytes:
    return hashlib.blake2b("/".join(map(str, address)).encode(), digest_size=size).digest()


def generator(seed: int, purpose: str, client: int = 0, round: int = 0) -> np.random.Generator:
    """Return a NumPy generator for numbers that are drawn once per address (partitions, starting points)."""
    key = int.from_bytes(_digest(seed, purpose, client, round, size=16), "little")
    return np.random.Generator(np.random.Philox(key=key))


def key(seed: int, purpose: str) -> tuple[int, int]:
    """Return the key of the streams of a purpose, two words of 32 bits."""
    digest = _digest(seed, purpose, size=8)
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


class Stream:
    """Random numbers of some clients in one round, for samples ``first .. first + count - 1`` of that round.

    Every method returns an array ``[C, count, *shape]``. Successive calls use new lanes, so a problem may
    draw several quantities per sample. The values of a sample depend neither on ``count`` nor on the other
    clients.

    Args:
        seed, purpose: determine the key of the generator.
        clients: global client numbers, ``[C]``.
        round: the round's number, or one per client ``[C]``.
        count: number of samples per client.
        first: index of the first sample.

    Attributes:
        of: "g" or "f", the function of a composition that the samples are for, otherwise "".
    """

    #: The module with the functions of the arrays: numpy, or torch in ``device.DeviceStream``.
    math: Any = np

    def __init__(self, seed: int, purpose: str, clients=(0,), round=0, count: int = 1, first: int = 0):
        self._key = key(seed, purpose)
        self.clients = np.asarray(clients, dtype=np.int64)
        self.round, self.count, self.first, self._lane = round, count, first, 0
        self.of = ""

    def _range(self, start: int, stop: int) -> Any:
        return np.arange(start, stop, dtype=np.uint64)

    def _per_client(self, values) -> Any:
        """Return one integer ``[1, 1]``, or one per client ``[C, 1, 1]``, for products with words."""
        return np.asarray(values, dtype=np.uint64)[..., None, None]

    def words(self, number: int) -> Any:
        """Return ``number`` uniform 32-bit words per sample, uint64 ``[C, count, number]``."""
        lanes = -(-number // 4)
        lane = self._range(self._lane, self._lane + lanes)
        index = self._range(self.first, self.first + self.count)[:, None]
        self._lane += lanes
        words = philox((lane, index, self._per_client(self.round), self._per_client(self.clients)), self._key)
        return self.math.stack(words, -1).reshape(len(self.clients), self.count, 4 * lanes)[..., :number]

    def integers(self, high, number: int) -> Any:
        """Return integers in ``[0, high)``, int64 ``[C, count, number]``; ``high`` may be ``[C]``."""
        return self.math.asarray((self.words(number) * self._per_client(high)) >> 32, dtype=self.math.int64)

    def uniform(self, *shape: int) -> Any:
        """Return numbers uniform in the open interval (0, 1), 52 bits, float64 ``[C, count, *shape]``."""
        words = self.words(2 * math.prod(shape))
        bits = words[..., 0::2] << 20 | words[..., 1::2] >> 12
        values = self.math.asarray(bits, dtype=self.math.float64)  # 52 bits, so that + 0.5 is exact
        return ((values + 0.5) * 2.0**-52).reshape(len(self.clients), self.count, *shape)

    def normal(self, *shape: int) -> Any:
        """Return standard normal numbers by inversion, one uniform each, float64 ``[C, count, *shape]``."""
        from scipy.special import ndtri  # imported late, because it takes a third of a second

        return ndtri(self.uniform(*shape))

    def permutation(self, n: int) -> Any:
        """Return a random permutation of ``range(n)`` per client and sample, int64 ``[C, count, n]``."""
        return self.math.argsort(self.uniform(n), stable=True)


def permutations(
    seed: int, purpose: str, clients: np.ndarray, rounds: np.ndarray, indices: np.ndarray, sizes: np.ndarray
) -> np.ndarray:
    """Return a random permutation of ``range(size)`` per address, one after another, int64 ``[sizes.sum()]``.

    Each is that of ``Stream(seed, purpose, [client], round, first=index).permutation(size)``. Here, one call
    computes permutations of different sizes.

    Args:
        clients, rounds, indices: the addresses, int64 ``[P]``.
        sizes: size of each permutation, int64 ``[P]``.
    """
    lanes = -(-sizes // 2)  # a lane has four words, and a number of 52 bits takes two
    address = np.repeat(np.stack([indices, rounds, clients]).astype(np.uint64), lanes, axis=1)
    lane = np.arange(lanes.sum()) - np.repeat(np.cumsum(lanes) - lanes, lanes)
    words = np.stack(philox((lane.astype(np.uint64), *address), key(seed, purpose)), axis=-1).reshape(-1, 2)
    numbers = words[:, 0] << 20 | words[:, 1] >> 12
    if (sizes % 2).any():  # the last number of an odd size is not used
        numbers = np.delete(numbers, (2 * np.cumsum(lanes) - 1)[sizes % 2 == 1])
    order = np.lexsort((numbers, np.repeat(np.arange(len(sizes)), sizes)))
    return order - np.repeat(np.cumsum(sizes) - sizes, sizes)


def global_states() -> tuple[Any, ...]:
    """Return the states of the global generators, which change if user code draws numbers from them."""
    legacy = pickle.dumps(np.random.get_state())  # noqa: NPY002
    return random.getstate(), legacy, torch.get_rng_state().numpy().tobytes()


@contextlib.contextmanager
def seeded_globals(seed: int) -> Iterator[None]:
    """A context for user code in which the global generators of Python, NumPy and torch are seeded.

    User code that does not seed them then returns the same on every rank and when a run is resumed.
    Afterwards the generators continue as if nothing had been drawn.
    """
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        torch.default_generator.manual_seed(seed % 2**63)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)  # noqa: NPY002
