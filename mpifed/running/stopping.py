"""When a run ends: after the rounds asked for, at a metric's target, after a budget of time, on a signal."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mpifed.config.job import Config
from mpifed.core.settings import near_miss
from mpifed.parallel.comm import SerialComm, together
from mpifed.storage.format import End

__all__ = ["StopRule"]


class StopRule:
    """Decides after every round, on all ranks alike, whether the run ends.

    What only some ranks know, that the time is up or that a signal has come, they tell the others by a number
    that rides on a round's first sum: 1 from rank 0 if the time is up, 2 from every rank that was asked to
    stop.

    Args:
        elapsed: seconds that the rounds so far have taken, asked on rank 0.

    Attributes:
        asked: whether some rank had been asked to stop when the last round began.
    """

    def __init__(self, config: Config, comm: SerialComm, elapsed: Callable[[], float]):
        self.rounds, self.stop, self.comm, self.elapsed = config.rounds, config.stop, comm, elapsed
        self.asked = self._late = False

    def vote(self, asked: bool) -> float:
        """This rank's number for the next round."""
        budget = self.stop.seconds
        late = budget is not None and self.comm.rank == 0 and self.elapsed() >= budget
        return float(late + 2 * asked)

    def count(self, votes: float) -> None:
        """Read the sum of all ranks' numbers."""
        asked, late = divmod(round(votes), 2)
        self.asked, self._late = asked > 0, late == 1

    def after(self, r: int) -> End | None:
        """The end that time or rounds put to the run after round ``r``."""
        if self._late:
            return End("time", f"wall-time budget of {self.stop.seconds} s used up")
        return End("rounds", f"all {self.rounds} rounds done") if r >= self.rounds else None

    def signal(self, r: int) -> End | None:
        """The end that a signal puts to the run after round ``r``."""
        return End("signal", f"a signal after round {r}") if self.asked else None

    def target(self, metrics: dict[str, float]) -> End | None:
        """The end if the metric has reached its target. Collective, also without one: all wait for rank 0.

        Args:
            metrics: complete on rank 0.

        Raises:
            CollectiveError: there is no such metric.
        """
        stop, reached = self.stop, np.zeros(1, dtype=np.int64)
        with together(self.comm, ValueError):
            if self.comm.rank == 0 and stop.metric is not None:
                reached[0] = self._reached(metrics)
        self.comm.bcast_(reached)
        if not reached[0]:
            return None
        bound = f"at least {stop.at_least}" if stop.at_least is not None else f"at most {stop.at_most}"
        return End("target", f"{stop.metric} is {bound}")

    def _reached(self, metrics: dict[str, float]) -> bool:
        stop = self.stop
        if stop.metric not in metrics:
            options = near_miss(stop.metric, metrics)
            raise ValueError(f"stop.metric = {stop.metric!r} is no metric of this problem: {options}")
        value = metrics[stop.metric]
        return value >= stop.at_least if stop.at_least is not None else value <= stop.at_most
