"""The stopping rule of a run: number of rounds, target or patience of a metric, time budget, or a signal."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mpifed.base.log import warning
from mpifed.config.job import Config
from mpifed.core.metrics import Column
from mpifed.parallel.comm import SerialComm, collective_errors
from mpifed.running.recorder import expect_metric, is_better
from mpifed.storage.results import End

__all__ = ["StopRule"]


class StopRule:
    """Decides after every round, identically on all ranks, whether the run ends.

    The ranks exchange stop conditions as one number, which is summed in the first Allreduce of a round:
    rank 0 contributes 1 if the time budget is used up, and 2 if a checkpoint is due; each rank that has
    received a signal contributes 4.

    Attributes:
        checkpoint_due: whether a checkpoint is due after the last round.
        signalled: whether some rank had received a signal when the last round began.
        evaluated: the round of the last evaluation, -1 before the first.

    Rank 0 counts the evaluations without an improvement. The count is computed again from the history when
    a run is resumed, so that an interrupted run stops where an uninterrupted run stops.
    """

    def __init__(self, config: Config, comm: SerialComm):
        self.rounds, self.stop, self.comm = config.rounds, config.stop, comm
        self.signalled = self.checkpoint_due = self._out_of_time = False
        self.evaluated = -1
        self._metric_was_finite = self._warned = False  # warned that the metric is NaN
        self._best, self._best_round, self._waited = math.nan, 0, 0  # on rank 0, for patience

    def contribution(self, signalled: bool, elapsed: Callable[[], float], checkpoint_due: bool) -> float:
        """Return this rank's contribution to the Allreduce of the next round.

        Args:
            elapsed: returns the seconds that the rounds so far have taken; called on rank 0.
            checkpoint_due: whether a checkpoint is due after the round; counts on rank 0 only, because the
                clocks of the ranks differ.
        """
        budget, first = self.stop.seconds, self.comm.rank == 0
        out_of_time = budget is not None and first and elapsed() >= budget
        return float(out_of_time + 2 * (first and checkpoint_due) + 4 * signalled)

    def receive(self, total: float) -> None:
        """Read the sum of all contributions."""
        signalled, flags = divmod(round(total), 4)
        self.signalled, self.checkpoint_due, self._out_of_time = signalled > 0, flags >= 2, flags % 2 == 1

    def end_after(self, r: int) -> End | None:
        """Return the end after round ``r`` due to the time budget or the number of rounds."""
        if self._out_of_time:
            return End("time", f"wall-time budget of {self.stop.seconds} s used up")
        return End("rounds", f"all {self.rounds} rounds done") if r >= self.rounds else None

    def end_by_signal(self, r: int) -> End | None:
        """Return the end after round ``r`` due to a signal."""
        return End("signal", f"a signal after round {r}") if self.signalled else None

    def with_note(self, end: End) -> End:
        """Append a note to ``end`` if the metric could not end the run because it was always NaN."""
        unreachable = (
            self.stop.metric is not None and not self._metric_was_finite and end.kind in ("rounds", "time")
        )
        return End(end.kind, f"{end.sentence}; {self.stop.metric} was always nan") if unreachable else end

    def restore(self, history: Mapping[str, Sequence[float]], columns: Mapping[str, Column]) -> None:
        """Restore the state from the evaluations of a resumed run, with ``round``. Collective.

        Arguments and errors are those of :meth:`end_by_metric`.
        """
        state = np.array([-1, 0])
        with collective_errors(self.comm, ValueError):
            if self.comm.rank == 0 and history["round"]:
                state[0], metric = history["round"][-1], self.stop.metric
                if metric is not None:
                    expect_metric("stop.metric", metric, [name for name in history if name != "round"])
                    state[1] = not all(map(math.isnan, history[metric]))
                    for r, value in zip(history["round"], history[metric]):
                        self._count(value, r, columns[metric].maximised)
        self.comm.bcast_(state)
        self.evaluated, self._metric_was_finite = int(state[0]), bool(state[1])

    def end_by_metric(
        self, metrics: Mapping[str, float], r: int, columns: Mapping[str, Column]
    ) -> End | None:
        """Return the end if the metric has reached its target, or has not improved for long. Collective, also
        without a metric.

        Args:
            metrics: metrics after round ``r``, complete on rank 0.
            columns: columns of the history by name, complete on rank 0.

        Raises:
            CollectiveError: the metric does not exist.
        """
        stop, state = self.stop, np.zeros(5)
        with collective_errors(self.comm, ValueError):
            if self.comm.rank == 0 and stop.metric is not None:
                expect_metric("stop.metric", stop.metric, metrics)
                value = metrics[stop.metric]
                self._count(value, r, columns[stop.metric].maximised)
                finite, reached = not math.isnan(value), self._is_reached(value)
                state[:] = finite, reached, self._waited, self._best_round, self._best
        self.comm.bcast_(state)
        finite, reached, waited, best_round, best = state.tolist()
        if stop.metric is not None and not finite and not self._warned:
            self._warned = True
            if self.comm.rank == 0:
                warning(f"stop.metric = {stop.metric!r} is nan after round {r}: it cannot end the run")
        self.evaluated, self._metric_was_finite = r, self._metric_was_finite or bool(finite)
        if reached:
            bound = f"at least {stop.at_least}" if stop.at_least is not None else f"at most {stop.at_most}"
            return End("target", f"{stop.metric} is {bound}")
        if stop.patience is None or waited < stop.patience:
            return None
        return End(
            "patience",
            f"{stop.metric} has not improved in {stop.patience} evaluation(s) since {best:.6g} after "
            f"round {best_round:.0f}",
        )

    def _is_reached(self, value: float) -> bool:
        at_least, at_most = self.stop.at_least, self.stop.at_most  # comparisons with nan are false
        return (at_least is not None and value >= at_least) or (at_most is not None and value <= at_most)

    def _count(self, value: float, r: int, maximised: bool) -> None:
        """Count an evaluation for patience. The count begins at the first number, after which NaN counts."""
        if is_better(value, self._best, maximised, self.stop.min_delta or 0.0):
            self._best, self._best_round, self._waited = value, r, 0
        elif not math.isnan(self._best):
            self._waited += 1
