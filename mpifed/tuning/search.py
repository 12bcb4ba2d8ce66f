"""The search for one method on one task: brackets of successive halving until the budget is spent.

The first bracket runs several settings for a ninth of the rounds. The best third continues to a third of the
rounds with several seeds, and the best third of these to all rounds. Step sizes that are best after few
rounds are often too large for many rounds. Therefore later brackets begin with a third of the rounds, then
with all rounds, then again with a ninth. The settings of the first bracket are spread evenly over the search
space. Those of later brackets are proposed from the results so far, near the best settings if the bracket
begins with all rounds. A share of the budget is reserved for extending a range if the best value is at its
end.

Optuna's pruners stop single trials and cannot express synchronous rungs with a budget in oracle calls, whose
runs are distributed over ranks.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mpifed.base.errors import ConfigError
from mpifed.config.space import Range
from mpifed.config.tuning import Study
from mpifed.report.statistics import MeanStd, ranking_key
from mpifed.tuning.proposals import Point, settings_at, sobol_points, tpe_points
from mpifed.tuning.trials import Preview, Request, TrialOutcome

__all__ = ["ROUNDING", "Search", "Trial", "rung_rounds"]

#: Reduction factor: the best 1 / 3 continues to the next rung, which has 3 times the rounds.
REDUCTION_FACTOR = 3
#: Maximum number of settings of a bracket that begins with a ninth of the rounds, with a third, and with all.
BRACKET_SIZES = (9, 5, 4)
#: Number of brackets before ranges may be extended, and share of the budget that is reserved for extensions.
INITIAL_BRACKETS, RESERVED_SHARE = 2, 0.25
#: Radius of the neighbourhood of the best point in decades, and the factor by which it shrinks every time.
NEIGHBOURHOOD, SHRINK_FACTOR = 0.5, 0.5
#: Relative difference of means that are equal: means over different numbers of seeds differ by rounding.
ROUNDING = 1e-12
#: Maximum number of attempts to replace proposed settings that are incompatible with each other.
MAX_ATTEMPTS = 5


def rung_rounds(rounds: int, least: int = 1) -> list[int]:
    """Return the rounds of the rungs: a ninth, a third (both at least ``least``) and all of ``rounds``."""
    return sorted({min(rounds, max(least, rounds // REDUCTION_FACTOR**k)) for k in range(3)})


@dataclass
class Trial:
    """Values of the open settings and the results of their runs.

    Attributes:
        point: the values as numbers.
        settings: the values by dotted name.
        bracket: number of the bracket in which they were proposed.
        outcomes: (rounds, seed) → outcome of the run.
    """

    point: Point
    settings: dict[str, Any]
    bracket: int
    outcomes: dict[tuple[int, int], TrialOutcome] = field(default_factory=dict)

    @property
    def rounds(self) -> int:
        """The rounds of its last rung."""
        return max(rounds for rounds, _ in self.outcomes)

    def values(self, rounds: int) -> list[float]:
        """Return the value of each seed after ``rounds``."""
        return [outcome.value for (reached, _), outcome in self.outcomes.items() if reached == rounds]

    @property
    def calls(self) -> int:
        """Oracle calls of all its runs."""
        last: dict[int, int] = {}  # the calls of a run include those of its earlier rungs
        for (_, seed), outcome in self.outcomes.items():
            last[seed] = max(last.get(seed, 0), outcome.calls)
        return sum(last.values())


class Search:
    """The execution of a study: requests runs and receives their outcomes.

    Args:
        study: the method, the task and the search space.
        seeds: number of seeds.
        budget: oracle calls.
        preview: costs and metrics of the method.
        sign: 1 if the metric is minimised, -1 if it is maximised.
        min_rounds: least number of rounds of the shortest runs.
        risk: multiple of the deviation over the seeds that is added to the mean, as a worse value.

    Attributes:
        open: the open settings, whose ranges may have been extended.
        incompatible: points whose settings are invalid in combination.
        dropped: trials that have ended since the caller last cleared the list, to delete their checkpoints.
    """

    def __init__(
        self,
        study: Study,
        seeds: int,
        budget: int,
        preview: Preview,
        sign: int,
        min_rounds: int = 1,
        risk: float = 0.0,
    ):
        self.study, self.budget, self.preview, self.sign = study, budget, preview, sign
        self.risk = risk
        self.seeds = [study.seed + k for k in range(seeds)]
        self.rungs = rung_rounds(study.rounds, min_rounds)
        self.open = dict(study.space.open)
        self.trials: list[Trial] = []
        self.incompatible: list[Point] = []
        self.dropped: list[Trial] = []

    @property
    def spent(self) -> int:
        """Oracle calls so far."""
        return sum(trial.calls for trial in self.trials)

    @property
    def best(self) -> Trial | None:
        """The best trial that was run for all rounds with every seed; ``None`` if there is none."""
        done = [trial for trial in self.trials if len(trial.values(self.rungs[-1])) == len(self.seeds)]
        return min(done, key=lambda trial: self.rank(trial, self.rungs[-1]), default=None)

    def rank(self, trial: Trial, rounds: int) -> tuple[int, float]:
        """Return the sort key of a trial: the number of runs without a finite value, then the mean, increased
        by ``risk`` times the deviation over the seeds."""
        values = trial.values(rounds)
        failed, mean = ranking_key(values, self.sign < 0)
        deviation = MeanStd.from_values(values).deviation  # NaN for one seed, or if some are not finite
        return failed, mean + self.risk * deviation if self.risk and math.isfinite(deviation) else mean

    @property
    def tied(self) -> int:
        """Number of trials whose last values have the same mean as those of the best trial."""
        failed, least = self.rank(self.best, self.rungs[-1])
        ranks = [self.rank(trial, trial.rounds) for trial in self.trials]
        return sum(count == failed and math.isclose(mean, least, rel_tol=ROUNDING) for count, mean in ranks)

    def extensions(self) -> dict[str, Range]:
        """Return the decade beyond the range of each setting whose best value is at the end of its range."""
        best = self.best
        return {
            key: decade
            for (key, searched), number in zip(self.open.items(), best.point if best else ())
            if isinstance(searched, Range) and (decade := searched.extension(number))
        }

    def requests(self) -> Generator[list[Request], Sequence[TrialOutcome], None]:
        """Yield the runs of each rung, and receive their outcomes."""
        if not self.open:
            yield from self._bracket([()], [(self.rungs[-1], len(self.seeds))])
            return
        reserve, number = self._reserve(), 0
        while True:
            left, first_rung = self.budget - self.spent, number % len(BRACKET_SIZES)
            count = self._affordable(first_rung, left - reserve) if number < INITIAL_BRACKETS else 0
            extensions = {} if count else self.extensions()
            first_rung = len(BRACKET_SIZES) - 1 if extensions else first_rung
            count = count or self._affordable(first_rung, left)
            points = self._proposed(count, first_rung, extensions) if count else []
            if not points:
                return
            yield from self._bracket(points, self._stages(first_rung))
            number += not extensions

    def _reserve(self) -> float:
        """Return the part of the budget for extending ranges; 0 if a bracket could not use it."""
        extends = any(isinstance(domain, Range) and not domain.integer for domain in self.open.values())
        least = self._cost(REDUCTION_FACTOR, self._stages(0))
        return max(RESERVED_SHARE * self.budget, least) if extends and self.budget >= 2 * least else 0

    def _stages(self, first_rung: int) -> list[tuple[int, int]]:
        """Return the rounds and number of seeds of each rung of a bracket: first one seed, then all.

        Args:
            first_rung: number of the rung with which the bracket begins; with fewer rungs, the last one.
        """
        rungs = self.rungs[min(first_rung, len(self.rungs) - 1) :]
        later = rungs[1:] or rungs
        return [(rungs[0], 1), *((rounds, len(self.seeds)) for rounds in later)]

    def _cost(self, count: int, stages: Sequence[tuple[int, int]]) -> int:
        """Return an upper bound of the oracle calls of a bracket of ``count`` settings."""
        total = before = 0
        for rounds, seeds in stages:
            calls = seeds * self.preview.calls(rounds)
            total += count * (calls - before)
            before, count = calls, _survivors(count)
        return total

    def _affordable(self, first_rung: int, budget: float) -> int:
        """Return the number of settings of the next bracket; 0 if the budget is too small."""
        counts, stages = range(1, BRACKET_SIZES[first_rung] + 1), self._stages(first_rung)
        return max((count for count in counts if self._cost(count, stages) <= budget), default=0)

    def _proposed(self, count: int, first_rung: int, extensions: Mapping[str, Range]) -> list[Point]:
        """Return up to ``count`` new compatible settings.

        Raises:
            ConfigError: none of the first proposals are compatible; the error is that of the last one.
        """
        self.open |= {key: self.open[key].union(more) for key, more in extensions.items()}
        near = self._near(extensions) if extensions or first_rung == len(BRACKET_SIZES) - 1 else {}
        valid: list[Point] = []
        last_error = None
        for attempt in range(MAX_ATTEMPTS):
            label = f"{self.study.seed} {self.study.task} {self.study.method} {len(self.trials)} {attempt}"
            seed, known = zlib.crc32(label.encode()), self._ranked() + self.incompatible + valid
            if near:
                points = self._neighbours(near, count - len(valid), seed, known)
            else:
                propose = tpe_points if self.trials else sobol_points
                points = propose(self.open, count - len(valid), seed, known)
            for point in points:
                try:
                    self.study.config(settings_at(self.open, point))
                    valid.append(point)
                except ConfigError as error:
                    self.incompatible.append(point)
                    last_error = error
            if len(valid) == count:
                break
        if last_error and not self.trials and not valid:
            raise last_error
        return valid

    def _near(self, extensions: Mapping[str, Range]) -> dict[str, Range]:
        """Return ranges around the best point, which include the ``extensions``."""
        brackets = sum(trial.bracket != before.bracket for before, trial in zip(self.trials, self.trials[1:]))
        factor = 10 ** (NEIGHBOURHOOD * SHRINK_FACTOR ** (brackets // len(BRACKET_SIZES)))
        near = {
            key: searched.clipped(number / factor, number * factor)
            for (key, searched), number in zip(self.open.items(), self.best.point)
            if isinstance(searched, Range)
        }
        return near | {key: near[key].union(more) for key, more in extensions.items()}

    def _neighbours(
        self, near: dict[str, Range], count: int, seed: int, known: Sequence[Point]
    ) -> list[Point]:
        """Return new points that differ from the best point only in settings with a range."""
        moved = sobol_points(near, count, seed, ())
        best = dict(zip(self.open, self.best.point))
        points = [tuple((best | dict(zip(near, point))).values()) for point in moved]
        return [point for point in points if point not in known]

    def _ranked(self) -> list[Point]:
        """Return the points so far, sorted by the rounds of their last rung and by rank, the best first."""
        key = {trial.point: (-trial.rounds, *self.rank(trial, trial.rounds)) for trial in self.trials}
        return sorted(key, key=key.__getitem__)

    def _bracket(
        self, points: Sequence[Point], stages: Sequence[tuple[int, int]]
    ) -> Generator[list[Request], Sequence[TrialOutcome], None]:
        number = self.trials[-1].bracket + 1 if self.trials else 1
        trials = [Trial(point, settings_at(self.open, point), number) for point in points]
        self.trials += trials
        for stage, (rounds, seeds) in enumerate(stages, 1):
            runs = [(trial, seed) for trial in trials for seed in self.seeds[:seeds]]
            # With one seed, full runs may have been run before.
            runs = [(trial, seed) for trial, seed in runs if (rounds, seed) not in trial.outcomes]
            requests = [
                Request(trial.settings, seed, rounds, all(other != seed for _, other in trial.outcomes))
                for trial, seed in runs
            ]
            outcomes = (yield requests) if requests else ()
            for (trial, seed), outcome in zip(runs, outcomes, strict=True):
                trial.outcomes[rounds, seed] = outcome
            ranked = sorted(trials, key=lambda trial: self.rank(trial, rounds))
            trials = ranked[: _survivors(len(ranked))] if stage < len(stages) else []
            self.dropped += ranked[len(trials) :]


def _survivors(count: int) -> int:
    return max(1, count // REDUCTION_FACTOR)
