"""When a run ends: after the rounds asked for, at a metric's target, after a budget of time, on a signal."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from mpifed.base.log import warning
from mpifed.base.settings import suggest
from mpifed.config.job import Config
from mpifed.parallel.comm import SerialComm, collective_errors
from mpifed.storage.format import End

__all__ = ["StopRule"]


class StopRule:
    """Decides after every round, identically on all ranks, whether the run ends.

    What only some ranks know, that the time is up or that a signal has come, they tell the others by a number
    that rides on a round's first sum: 1 from rank 0 if the time is up, 2 from every rank that was asked to
    stop.

    Attributes:
        asked: whether some rank had been asked to stop when the last round began.
        evaluated: the round of the last evaluation, -1 before the first.
    """

    def __init__(self, config: Config, comm: SerialComm):
        self.rounds, self.stop, self.comm = config.rounds, config.stop, comm
        self.asked = self._late = False
        self.evaluated = -1
        self._ever = self._warned = (
            False  # whether the metric has been a number, and that it was none is said
        )

    def vote(self, asked: bool, elapsed: Callable[[], float]) -> float:
        """This rank's number for the next round.

        Args:
            elapsed: seconds that the rounds so far have taken, asked on rank 0.
        """
        budget = self.stop.seconds
        late = budget is not None and self.comm.rank == 0 and elapsed() >= budget
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

    def told(self, end: End) -> End:
        """``end``, which says so where the run could not have reached its target."""
        hopeless = self.stop.metric is not None and not self._ever and end.kind in ("rounds", "time")
        return End(end.kind, f"{end.sentence}; {self.stop.metric} was never a number") if hopeless else end

    def signal(self, r: int) -> End | None:
        """The end that a signal puts to the run after round ``r``."""
        return End("signal", f"a signal after round {r}") if self.asked else None

    def restore(self, history: Mapping[str, Sequence[float]]) -> None:
        """Go on from the evaluations of a run that continues. Collective.

        Args:
            history: metrics by name, with ``round``, complete on rank 0.

        Raises:
            CollectiveError: the metric is none of them.
        """
        known = np.array([-1, 0])
        with collective_errors(self.comm, ValueError):
            if self.comm.rank == 0 and history["round"]:
                known[:] = history["round"][-1], self._numbers(history)
        self.comm.bcast_(known)
        self.evaluated, self._ever = int(known[0]), bool(known[1])

    def _numbers(self, history: Mapping[str, Sequence[float]]) -> bool:
        """Whether the metric has been a number in some evaluation."""
        if self.stop.metric is None:
            return False
        self._expect_metric([name for name in history if name != "round"])
        return not all(map(math.isnan, history[self.stop.metric]))

    def target(self, metrics: Mapping[str, float], r: int) -> End | None:
        """The end if the metric has reached its target. Collective, also without one: all wait for rank 0.

        Args:
            metrics: after round ``r``, complete on rank 0.

        Raises:
            CollectiveError: there is no such metric.
        """
        stop, found = self.stop, np.zeros(2, dtype=np.int64)
        with collective_errors(self.comm, ValueError):
            if self.comm.rank == 0 and stop.metric is not None:
                self._expect_metric(metrics)
                value = metrics[stop.metric]
                found[:] = not math.isnan(value), self._reached(value)
        self.comm.bcast_(found)
        if stop.metric is not None and not found[0]:
            self._warn(r)
        self.evaluated, self._ever = r, self._ever or bool(found[0])
        if not found[1]:
            return None
        bound = f"at least {stop.at_least}" if stop.at_least is not None else f"at most {stop.at_most}"
        return End("target", f"{stop.metric} is {bound}")

    def _reached(self, value: float) -> bool:
        """NaN reaches nothing."""
        stop = self.stop
        return value >= stop.at_least if stop.at_least is not None else value <= stop.at_most

    def _warn(self, r: int) -> None:
        """Say once that the metric is none with which the run could end."""
        if self.comm.rank == 0 and not self._warned:
            warning(
                f"stop.metric = {self.stop.metric!r} is not a number (nan) after round {r}: "
                "it ends the run only where it is one"
            )
        self._warned = True

    def _expect_metric(self, names: Collection[str]) -> None:
        if self.stop.metric not in names:
            options = suggest(self.stop.metric, names)
            raise ValueError(f"stop.metric = {self.stop.metric!r} is no metric of this problem: {options}")
