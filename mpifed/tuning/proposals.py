"""Which settings are tried next: points spread evenly at first, then Optuna's TPE on what has been found.

A point has a number for every open setting: that of a :class:`~mpifed.config.ranges.Range`, or the index in
a list. Nothing is kept between calls, so what is proposed follows from the points and the seed alone.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping, Sequence

from mpifed.config.ranges import Choice, Range

__all__ = ["Point", "guided", "settings_of", "spread"]

#: A number for every open setting.
Point = tuple[float, ...]
Open = Mapping[str, Range | Choice]

#: Draws for each new point before the space is taken for exhausted.
PATIENCE = 20


def settings_of(open: Open, point: Point) -> dict:
    """The values of the open settings at a point."""
    return {
        key: one.value(number) if isinstance(one, Range) else one.values[int(number)]
        for (key, one), number in zip(open.items(), point)
    }


def spread(open: Open, count: int, seed: int, known: Collection[Point]) -> list[Point]:
    """New points that cover the space evenly: a scrambled Sobol sequence. Fewer where there are no more."""
    from scipy.stats import qmc

    sequence = qmc.Sobol(len(open), scramble=True, seed=seed)
    found: list[Point] = []
    for row in sequence.random_base2(math.ceil(math.log2(count * PATIENCE))).tolist():
        point = tuple(_at(one, share) for one, share in zip(open.values(), row))
        if point not in known and point not in found:
            found.append(point)
        if len(found) == count:
            break
    return found


def _at(one: Range | Choice, share: float) -> float:
    return one.at(share) if isinstance(one, Range) else math.floor(share * len(one.values))


def guided(open: Open, count: int, seed: int, ranked: Sequence[Point]) -> list[Point]:
    """New points where earlier ones did well, by a tree-structured Parzen estimator.

    Args:
        ranked: the points so far, the best first: only their order counts, for they have been run for
            different numbers of rounds.
    """
    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of options that may change; the version is pinned
            return _asked(optuna, open, count, seed, ranked)
    finally:
        optuna.logging.set_verbosity(level)


def _asked(optuna, open: Open, count: int, seed: int, ranked: Sequence[Point]) -> list[Point]:
    """The answers of a study that knows the points so far."""
    sampler = optuna.samplers.TPESampler(
        n_startup_trials=0,
        multivariate=True,
        constant_liar=True,
        gamma=lambda trials: math.ceil(trials / 4),
        seed=seed % 2**31,
    )
    study = optuna.create_study(sampler=sampler)
    kinds = {key: _distribution(optuna.distributions, one) for key, one in open.items()}
    for place, point in enumerate(ranked):
        study.add_trial(
            optuna.trial.create_trial(params=dict(zip(open, point)), distributions=kinds, value=place)
        )
    found: list[Point] = []
    for _ in range(count * PATIENCE):
        asked = study.ask(kinds).params
        point = tuple(
            one.rounded(asked[key]) if isinstance(one, Range) else asked[key] for key, one in open.items()
        )
        if point not in ranked and point not in found:
            found.append(point)
        if len(found) == count:
            break
    return found


def _distribution(kinds, one: Range | Choice):
    if isinstance(one, Choice):
        places = range(len(one.values))
        return (
            kinds.IntDistribution(0, len(places) - 1)
            if one.ordered
            else kinds.CategoricalDistribution(places)
        )
    kind = kinds.IntDistribution if one.whole else kinds.FloatDistribution
    return kind(one.low, one.high, log=True)
