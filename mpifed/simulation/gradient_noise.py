"""The noise of stochastic gradients at a point: ∇f_n(z; ξ) - ∇f_n(z), over samples that the run does not use.

Samples are of the job's batch size and with its noise. They have addresses that no run has, so that they
take no part in its bits and its costs.
"""

from __future__ import annotations

import numpy as np
import torch

from mpifed.base.errors import user_code_errors
from mpifed.core.numerics import Tail, hill
from mpifed.parallel.comm import SerialComm, collective_errors
from mpifed.simulation.full_data import FullData

__all__ = ["TAIL", "gathered", "noise", "rounding", "tail", "tail_of"]

#: Names of a tail index and its interval.
TAIL = ("tail", "tail_low", "tail_high")
#: These samples have rounds that no run has: the address of round r is this number plus r.
ROUNDS = 2**31
#: What is below so many roundings of a vector is 0.
ROUNDING = 100


def rounding(vector: torch.Tensor, least: float = 0.0) -> float:
    """The length of what may be rounding in a vector, which counts as one of length ``least`` at least."""
    return ROUNDING * torch.finfo(vector.dtype).eps * max(least, float(vector.norm()))


def noise(
    full: FullData, place: int, r: int, samples: int, point: torch.Tensor, local: torch.Tensor
) -> np.ndarray:
    """Squared lengths of the noise of this rank's client at ``place`` after round ``r``, by block ``[samples,
    blocks]``.

    Args:
        local: the client's gradient on all its data, ``[d]``.
    """
    sizes = tuple(full.blocks.sizes.values())
    squares = np.empty((samples, len(sizes)))
    for number in range(samples):
        away = full.sample(place, number, ROUNDS + r, point) - local
        squares[number] = [float(part.double().square().sum()) for part in away.split(sizes)]
    return np.where(squares.sum(axis=1, keepdims=True) > rounding(local) ** 2, squares, 0.0)


def tail(full: FullData, counts: list[int], r: int, samples: int, point: torch.Tensor) -> Tail:
    """The tail index of all clients' noise, each length over its client's median. Collective.

    Args:
        counts: numbers of clients of the ranks.

    Raises:
        CollectiveError: a client's function has failed.
    """
    lengths = np.empty((len(full.clients), samples))
    with collective_errors(full.comm, ValueError):
        for place, client in enumerate(full.clients.tolist()):
            with user_code_errors(type(full.problem).__name__, None, "", [client]):
                squares = noise(full, place, r, samples, point, full.local(place, point))
            lengths[place] = np.sqrt(squares.sum(axis=1))
    return tail_of(gathered(full.comm, counts, lengths))


def tail_of(lengths: np.ndarray) -> Tail:
    """The tail index of ``[clients, samples]``, each over its client's median where that is not 0."""
    medians = np.median(lengths, axis=1, keepdims=True)
    return hill((lengths / np.where(medians > 0, medians, 1.0)).reshape(-1))


def gathered(comm: SerialComm, counts: list[int], own: np.ndarray) -> np.ndarray:
    """The rows of all ranks' clients, ``[N, columns]``. Collective."""
    width = own.shape[1]
    every = np.empty(sum(counts) * width)
    comm.allgatherv(np.ascontiguousarray(own).reshape(-1), every, [n * width for n in counts])
    return every.reshape(-1, width)
