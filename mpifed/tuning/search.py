"""The search for one method under one task: brackets of successive halving until the budget is spent.

A bracket starts some settings for a ninth of the rounds. The best third continues to a third of the rounds
with several seeds, and the best third of these to all rounds. What is best after few rounds is often too
large a step for many, so the brackets after the first begin later: with a third of the rounds, then with all,
then again with a ninth. The first one covers the space evenly, the others follow what has been found; those
of whole runs stay near the best. A share of the budget is kept for going on past the end of a range that the
best lies at.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mpifed.base.errors import ConfigError
from mpifed.config.ranges import Range
from mpifed.config.tuning import Cell
from mpifed.report.statistics import ranking_key
from mpifed.tuning.proposals import Point, guided, settings_of, spread
from mpifed.tuning.trials import Asked, Probe, Seen

__all__ = ["Search", "Trial", "levels"]

#: One in this number continues to the next rung, which has this many times the rounds.
THIRD = 3
#: Settings that a bracket has which begins with a ninth of the rounds, with a third, with all.
USUAL = (9, 5, 4)
#: Brackets after which the end of a range where the best lies is gone past, and the share of the budget that
#: is kept for that until then.
SURE, KEPT = 2, 0.25
#: How far from the best one looks near it, in the logarithm of 10, and by what that falls each time.
AROUND, CLOSER = 0.5, 0.5
#: Times that settings which cannot be run are replaced.
ATTEMPTS = 5


def levels(rounds: int) -> list[int]:
    """The rounds of the rungs: a ninth, a third and all, each at least 1."""
    return sorted({max(1, rounds // THIRD**k) for k in range(3)})


@dataclass
class Trial:
    """Some values of the open settings, and what they have come to.

    Attributes:
        point: the values as numbers; ``settings`` themselves, by their dotted names.
        bracket: the number of the bracket that they were proposed in.
        seen: (rounds, seed) → what was found.
    """

    point: Point
    settings: dict[str, Any]
    bracket: int
    seen: dict[tuple[int, int], Seen] = field(default_factory=dict)

    @property
    def rounds(self) -> int:
        """The rounds of the last rung that it was in."""
        return max(rounds for rounds, _ in self.seen)

    def values(self, rounds: int) -> list[float]:
        """One a seed, after ``rounds``."""
        return [one.value for (reached, _), one in self.seen.items() if reached == rounds]

    @property
    def calls(self) -> int:
        """Oracle calls of all its runs."""
        seeds = {seed for _, seed in self.seen}
        return sum(max(one.calls for (_, own), one in self.seen.items() if own == seed) for seed in seeds)


class Search:
    """The search of one method under one task: it requests runs and receives their results.

    Args:
        budget: oracle calls.
        sign: 1 where less of the metric is better, -1 where more is.
    """

    def __init__(self, cell: Cell, seeds: int, budget: int, probe: Probe, sign: int):
        self.cell, self.budget, self.probe, self.sign = cell, budget, probe, sign
        self.seeds = [cell.seed + k for k in range(seeds)]
        self.rungs = levels(cell.rounds)
        self.open = dict(cell.space.open)
        self.trials: list[Trial] = []
        self.refused: list[Point] = []
        self.dropped: list[Trial] = []

    @property
    def spent(self) -> int:
        """Oracle calls so far."""
        return sum(trial.calls for trial in self.trials)

    @property
    def best(self) -> Trial | None:
        """The best of those that were run for all rounds; ``None`` before there are any."""
        done = [one for one in self.trials if len(one.values(self.rungs[-1])) == len(self.seeds)]
        return min(done, key=lambda trial: self.rank(trial, self.rungs[-1]), default=None)

    def rank(self, trial: Trial, rounds: int) -> tuple[int, float]:
        """Less is better: runs without a finite value, then the mean."""
        return ranking_key(trial.values(rounds), self.sign < 0)

    def edges(self) -> dict[str, Range]:
        """The settings of the best that lie at the end of their range, and what is past it."""
        best = self.best
        found = {
            key: one.beyond(number)
            for (key, one), number in zip(self.open.items(), best.point if best else ())
            if isinstance(one, Range)
        }
        return {key: more for key, more in found.items() if more}

    def carry_out(self) -> Generator[list[Asked], Sequence[Seen], None]:
        """Yield the runs of one rung after another, and take what each has come to."""
        if not self.open:
            yield from self._bracket([()], [(self.rungs[-1], len(self.seeds))])
            return
        kept, number = self._kept(), 0
        while True:
            left, begin = self.budget - self.spent, number % len(USUAL)
            count = self._fitting(begin, left - kept) if number < SURE else 0
            edges = {} if count else self.edges()
            begin = len(USUAL) - 1 if edges else begin
            count = count or self._fitting(begin, left)
            points = self._proposed(count, begin, edges) if count else []
            if not points:
                return
            yield from self._bracket(points, self._stages(begin))
            number += not edges

    def _kept(self) -> float:
        """What is kept for past the ends of ranges, which one bracket at least must be able to use."""
        extends = any(isinstance(one, Range) and not one.whole for one in self.open.values())
        least = self._cost(THIRD, self._stages(0))
        return max(KEPT * self.budget, least) if extends and self.budget >= 2 * least else 0

    def _stages(self, begin: int) -> list[tuple[int, int]]:
        """Rounds and numbers of seeds of a bracket: one seed at first, then all of them."""
        rungs = self.rungs[min(begin, len(self.rungs) - 1) :]
        later = rungs[1:] or rungs
        return [(rungs[0], 1), *((rounds, len(self.seeds)) for rounds in later)]

    def _cost(self, count: int, stages: Sequence[tuple[int, int]]) -> int:
        """Oracle calls of a bracket of ``count`` settings, at the most."""
        total = before = 0
        for rounds, seeds in stages:
            calls = seeds * self.probe.calls(rounds)
            total += count * (calls - before)
            before, count = calls, _third(count)
        return total

    def _fitting(self, begin: int, budget: float) -> int:
        """How many settings the next bracket can have, 0 where the budget is too small."""
        stages = self._stages(begin)
        return max(
            (count for count in range(1, USUAL[begin] + 1) if self._cost(count, stages) <= budget), default=0
        )

    def _proposed(self, count: int, begin: int, edges: Mapping[str, Range]) -> list[Point]:
        """New settings that can be run, fewer where there are no more.

        Raises:
            ConfigError: none of those that were proposed can be run; says why the last one cannot.
        """
        self.open |= {key: self.open[key].with_(more) for key, more in edges.items()}
        near = self._near(edges) if edges or begin == len(USUAL) - 1 else {}
        sound: list[Point] = []
        fault = None
        for attempt in range(ATTEMPTS):
            label = f"{self.cell.seed} {self.cell.task} {self.cell.method} {len(self.trials)} {attempt}"
            seed, known = zlib.crc32(label.encode()), self._ranked() + self.refused + sound
            if near:
                points = self._beside(near, count - len(sound), seed, known)
            elif self.trials:
                points = guided(self.open, count - len(sound), seed, known)
            else:
                points = spread(self.open, count - len(sound), seed, known)
            for point in points:
                try:
                    self.cell.config(settings_of(self.open, point))
                    sound.append(point)
                except ConfigError as error:
                    self.refused.append(point)
                    fault = error
            if len(sound) == count:
                break
        if fault and not self.trials and not sound:
            raise fault
        return sound

    def _near(self, edges: Mapping[str, Range]) -> dict[str, Range]:
        """The ranges near the best; of settings at an edge also what is past it."""
        looks = sum(trial.bracket != before.bracket for before, trial in zip(self.trials, self.trials[1:]))
        factor = 10 ** (AROUND * CLOSER ** (looks // len(USUAL)))
        near = {
            key: one.within(number / factor, number * factor)
            for (key, one), number in zip(self.open.items(), self.best.point)
            if isinstance(one, Range)
        }
        return near | {key: near[key].with_(more) for key, more in edges.items()}

    def _beside(self, near: dict[str, Range], count: int, seed: int, known: Sequence[Point]) -> list[Point]:
        """New points that differ from the best in ranges alone."""
        moved = spread(near, count, seed, ())
        best = dict(zip(self.open, self.best.point))
        points = [tuple((best | dict(zip(near, point))).values()) for point in moved]
        return [point for point in points if point not in known]

    def _ranked(self) -> list[Point]:
        """The points so far, the best first: those that have gone further, then the better ones there."""
        key = {trial.point: (-trial.rounds, *self.rank(trial, trial.rounds)) for trial in self.trials}
        return sorted(key, key=key.__getitem__)

    def _bracket(
        self, points: Sequence[Point], stages: Sequence[tuple[int, int]]
    ) -> Generator[list[Asked], Sequence[Seen], None]:
        number = self.trials[-1].bracket + 1 if self.trials else 1
        trials = [Trial(point, settings_of(self.open, point), number) for point in points]
        self.trials += trials
        for stage, (rounds, seeds) in enumerate(stages, 1):
            wanted = [
                (trial, seed)
                for trial in trials
                for seed in self.seeds[:seeds]
                if (rounds, seed) not in trial.seen
            ]
            begun = {(id(trial), seed) for trial in trials for _, seed in trial.seen}
            asked = [
                Asked(trial.settings, seed, rounds, (id(trial), seed) not in begun) for trial, seed in wanted
            ]
            seen = (yield asked) if asked else ()  # with one seed, whole runs have been run
            for (trial, seed), one in zip(wanted, seen, strict=True):
                trial.seen[rounds, seed] = one
            ranked = sorted(trials, key=lambda trial: self.rank(trial, rounds))
            trials = ranked[: _third(len(ranked))] if stage < len(stages) else []
            self.dropped += ranked[len(trials) :]


def _third(count: int) -> int:
    return max(1, count // THIRD)
