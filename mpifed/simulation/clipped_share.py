"""The fraction of gradients that clients have clipped (``oracle.clip``)."""

from __future__ import annotations

import math

import numpy as np

from mpifed.core.metrics import Column
from mpifed.parallel.comm import SerialComm
from mpifed.simulation.evaluation import EvaluatedPoint, Evaluation
from mpifed.simulation.executor import Executor

__all__ = ["ClippedShare"]


class ClippedShare(Evaluation):
    """``clipped``: the fraction of clipped gradients among the oracle calls of the last round.

    NaN if there were no calls, e.g. before the first round and for a run that was complete.
    """

    names, owner = ("clipped",), "oracle.clip"

    def __init__(self, executor: Executor, comm: SerialComm):
        self._executor, self._comm = executor, comm

    def evaluate(self, point: EvaluatedPoint) -> dict[Column, float]:
        counts = np.array([int(self._executor.clipped), self._executor.calls_in_round], dtype=np.int64)
        self._comm.allreduce_(counts)
        return {Column("clipped"): float(counts[0] / counts[1]) if counts[1] else math.nan}
