"""How clients are drawn where they do not all have the same chance."""

from __future__ import annotations

import numpy as np

from mpifed.core.streams import Stream

__all__ = ["Chain", "inclusion", "systematic"]


class Chain:
    """Two-state chains, one a client; round r's step is u_r < P(on | the state before), u_r by address.

    A u outside of the interval between the two probabilities decides by itself. So the state of any round
    follows from a walk back to the last such u, at most to round 1, and no checkpoint has to hold it.
    """

    def __init__(self, seed: int, off: np.ndarray, on: np.ndarray, stationary: np.ndarray):
        self._seed, self._on, self._stay, self._first = seed, on, 1 - off, stationary
        self._round, self._state = 0, np.zeros(len(on), dtype=bool)

    def _draws(self, clients: np.ndarray, r: int) -> np.ndarray:
        return Stream(self._seed, "markov", clients, r).uniform()[:, 0]

    def at(self, r: int) -> np.ndarray:
        """Which clients are on in round ``r``, bool ``[N]``."""
        if r == self._round + 1 and self._round:
            everyone = np.arange(len(self._on))
            self._state = self._draws(everyone, r) < np.where(self._state, self._stay, self._on)
        elif r != self._round:
            self._state = self._walk(r)
        self._round = r
        return self._state

    def _walk(self, r: int) -> np.ndarray:
        state, open_ = np.zeros(len(self._on), dtype=bool), np.arange(len(self._on))
        for back in range(r):
            draws, stay, on = self._draws(open_, r - back), self._stay[open_], self._on[open_]
            if back == r - 1:
                decided, value = np.ones(len(open_), dtype=bool), draws < self._first[open_]
            else:
                low, high = np.minimum(stay, on), np.maximum(stay, on)
                decided, value = (draws < low) | (draws >= high), draws < low
            turned = (stay < on) & (back % 2 == 1)  # undecided, such a chain takes the other state
            state[open_[decided]] = (value ^ turned)[decided]
            open_ = open_[~decided]
            if not len(open_):
                break
        return state


def inclusion(weights: np.ndarray, size: int) -> np.ndarray:
    """The probability with which each of N clients is among ``size`` drawn by weight, ``[N]``.

    Proportional to the weights as far as no probability exceeds 1; their sum is ``size``.
    """
    chances, certain = np.zeros(len(weights)), np.zeros(len(weights), dtype=bool)
    while True:
        rest = np.where(certain, 0.0, weights)
        left = size - int(certain.sum())
        chances = np.where(certain, 1.0, left * rest / rest.sum() if left else 0.0)
        if not (over := (chances >= 1) & ~certain).any():
            return chances
        certain |= over


def systematic(chances: np.ndarray, order: np.ndarray, point: float) -> np.ndarray:
    """The clients in whose intervals the points ``point``, ``point`` + 1, ... lie, ascending.

    Args:
        chances: lengths of the intervals, ``[N]`` from 0 to 1.
        order: the clients in the order in which their intervals stand.
        point: in (0, 1).
    """
    certain, order = np.flatnonzero(chances >= 1), order[chances[order] < 1]
    size = round(float(chances.sum())) - len(certain)
    ends = np.cumsum(chances[order])
    places = np.searchsorted(ends, point + np.arange(size), side="right")
    drawn = order[np.minimum(places, len(order) - 1)] if size else order[:0]
    return np.unique(np.concatenate([certain, drawn]))
