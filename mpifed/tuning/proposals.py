"""Proposals of settings: evenly spread points at first, then Optuna's TPE sampler given the results so far.

A point has a number for every open setting: a number of a :class:`~mpifed.config.space.Range`, or the index
in a list. No state is kept between calls, so proposals depend on the points so far and the seed alone.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from mpifed.config.space import Choice, Range

__all__ = ["Point", "settings_at", "sobol_points", "tpe_points"]

#: A number for every open setting.
Point = tuple[float, ...]
Open = Mapping[str, Range | Choice]

#: Number of proposals per requested point after which the space counts as exhausted.
PATIENCE = 20


def settings_at(open: Open, point: Point) -> dict:
    """Return the values of the open settings at a point."""
    return {
        key: one.value(number) if isinstance(one, Range) else one.values[int(number)]
        for (key, one), number in zip(open.items(), point)
    }


def sobol_points(open: Open, count: int, seed: int, known: Collection[Point]) -> list[Point]:
    """Return up to ``count`` new points of a scrambled Sobol sequence, which covers the space evenly."""
    from scipy.stats import qmc

    rows = qmc.Sobol(len(open), scramble=True, seed=seed).random_base2(math.ceil(math.log2(count * PATIENCE)))
    points = (
        tuple(
            one.at_fraction(share) if isinstance(one, Range) else math.floor(share * len(one.values))
            for one, share in zip(open.values(), row)
        )
        for row in rows.tolist()
    )
    return _new(points, count, known)


def tpe_points(open: Open, count: int, seed: int, ranked: Sequence[Point]) -> list[Point]:
    """Return up to ``count`` new points near good ones, from a tree-structured Parzen estimator.

    Args:
        ranked: the points so far, the best first. Only their order is used, because they have been run for
            different numbers of rounds.
    """
    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about experimental options; the version is pinned
            return _new(_proposals(optuna, open, seed, ranked, count * PATIENCE), count, ranked)
    finally:
        optuna.logging.set_verbosity(level)


def _new(points: Iterable[Point], count: int, known: Collection[Point]) -> list[Point]:
    """Return the first ``count`` distinct points that are not known."""
    found: list[Point] = []
    for point in points:
        if point not in known and point not in found:
            found.append(point)
        if len(found) == count:
            break
    return found


def _proposals(optuna, open: Open, seed: int, ranked: Sequence[Point], count: int) -> Iterator[Point]:
    """Yield ``count`` proposals of a study that contains the points so far."""
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
        params = dict(zip(open, point))
        study.add_trial(optuna.trial.create_trial(params=params, distributions=kinds, value=place))
    for _ in range(count):
        params = study.ask(kinds).params
        yield tuple(
            one.rounded(params[key]) if isinstance(one, Range) else params[key] for key, one in open.items()
        )


def _distribution(kinds, one: Range | Choice):
    if isinstance(one, Choice):
        last = len(one.values) - 1
        return (
            kinds.IntDistribution(0, last) if one.ordered else kinds.CategoricalDistribution(range(last + 1))
        )
    kind = kinds.IntDistribution if one.integer else kinds.FloatDistribution
    return kind(one.low, one.high, log=True)
