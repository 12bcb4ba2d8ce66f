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
def permutation(seed: int, client: int, r: int, epoch: int, size: int) -> np.ndarray:
    """Return the order of a client's rows in epoch 0, 1, ... of round ``r``, ``[size]``."""
    return Stream(seed, "permutation", [client], r, first=epoch).permutation(size)[0, 0]


@functools.lru_cache(maxsize=10_000)
def noise(law, seed: int, client: int, r: int, count: int, size: int) -> np.ndarray:
    """Return the noise of every sample of round ``r``, ``[count, size]``."""
    return law(Stream(seed, "noise", [client], r, count), size)[0]


def length(seed: int, r: int, p: float) -> int:
    """Return the number of steps of round ``r`` of ProxSkip: more than L steps have probability (1 - p)^L."""
    uniform = Stream(seed, "method/period", round=r).uniform().item()
    steps = 1
    while (1 - p) ** steps >= uniform:
        steps += 1
    return steps


def snapshot(seed: int, r: int, tau: int, client: int | None = None) -> int:
    """Return the local steps before the snapshot of DRFA: from 1..τ, or for one client from 0..τ-2."""
    clients = [0] if client is None else [client]
    uniform = Stream(seed, "method/snapshot", clients, r).uniform().item()
    return 1 + int(uniform * tau) if client is None else int(uniform * (tau - 1))


def term(seed: int, r: int, J: int) -> int:
    """Return the number of the term of the series of FedNest, from 0 to ``J``."""
    return int(Stream(seed, "method/length of the series", round=r).uniform().item() * (J + 1))


def coin(seed: int, client: int, r: int, j: int) -> float:
    """Return the uniform number of step ``j`` of round ``r`` that decides on a client's reference point."""
    return Stream(seed, "method/refresh", [client], r, first=j).uniform().item()


def uniform(seed: int, purpose: str, r: int, size: int, client: int = 0) -> np.ndarray:
    """Return the uniform numbers of a method for a purpose in round ``r``, ``[size]``."""
    return Stream(seed, f"method/{purpose}", [client], r).uniform(size)[0, 0]


def straggler(seed: int, client: int, r: int) -> np.ndarray:
    """Return the two uniform numbers of a possible straggler of FedProx in a round."""
    return Stream(seed, "method/stragglers", [client], r).uniform(2)[0, 0]


def cohort(seed: int, r: int, clients: int, size: int, number: int = 0) -> np.ndarray:
    """Return the ``number``-th cohort of round ``r``: ``size`` clients, uniform without replacement."""
    if size == clients:
        return np.arange(clients)
    stream, chosen, draws = Stream(seed, "cohort", round=r, first=number), [], size + size % 2
    while len(chosen) < size and 2 * len(chosen) < clients:
        for u in stream.uniform(draws)[0, 0]:
            if int(u * clients) not in chosen:
                chosen.append(int(u * clients))
        draws *= 2
    if len(chosen) < size:
        others = [client for client in range(clients) if client not in chosen]
        keys = stream.uniform(len(others))[0, 0]
        chosen += [client for _, client in sorted(zip(keys, others))]
    return np.sort(chosen[:size])
