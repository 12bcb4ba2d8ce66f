"""Proposals of settings: evenly spread points at first, then Optuna's TPE sampler given the results so far.

A point has a number for every open setting: a number in a :class:`~mpifed.config.space.Range`, or an index
into a list. No state is kept between calls, so proposals depend only on the points so far and the seed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from mpifed.config.space import Choice, Range

__all__ = ["Point", "settings_at", "sobol_points", "tpe_points"]

#: A number for every open setting.
Point = tuple[float, ...]
OpenSettings = Mapping[str, Range | Choice]

#: Maximum number of proposals per requested point. Duplicates are skipped; if too few points remain, the
#: space counts as exhausted.
PROPOSALS_PER_POINT = 20


def settings_at(open: OpenSettings, point: Point) -> dict:
    """Return the values of the open settings at a point."""
    return {key: domain.value(number) for (key, domain), number in zip(open.items(), point)}


def sobol_points(open: OpenSettings, count: int, seed: int, known: Collection[Point]) -> list[Point]:
    """Return up to ``count`` new points of a scrambled Sobol sequence, which covers the space evenly."""
    from scipy.stats import qmc

    rows = qmc.Sobol(len(open), scramble=True, seed=seed).random_base2(
        math.ceil(math.log2(count * PROPOSALS_PER_POINT))
    )
    domains = open.values()
    points = (tuple(domain.at_fraction(x) for domain, x in zip(domains, row)) for row in rows.tolist())
    return _new(points, count, known)


def tpe_points(open: OpenSettings, count: int, seed: int, ranked: Sequence[Point]) -> list[Point]:
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
            return _new(_proposals(optuna, open, seed, ranked, count * PROPOSALS_PER_POINT), count, ranked)
    finally:
        optuna.logging.set_verbosity(level)


def _new(points: Iterable[Point], count: int, known: Collection[Point]) -> list[Point]:
    """Return the first ``count`` distinct points that are not known."""
    new: list[Point] = []
    for point in points:
        if point not in known and point not in new:
            new.append(point)
        if len(new) == count:
            break
    return new


def _proposals(optuna, open: OpenSettings, seed: int, ranked: Sequence[Point], count: int) -> Iterator[Point]:
    """Yield ``count`` proposals of a study that contains the points so far."""
    sampler = optuna.samplers.TPESampler(
        n_startup_trials=0,
        multivariate=True,
        constant_liar=True,
        gamma=lambda trials: math.ceil(trials / 4),
        seed=seed % 2**31,
    )
    study = optuna.create_study(sampler=sampler)
    distributions = {key: _distribution(optuna.distributions, domain) for key, domain in open.items()}
    for position, point in enumerate(ranked):
        params = dict(zip(open, point))
        study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=position))
    for _ in range(count):
        params = study.ask(distributions).params
        yield tuple(domain.rounded(params[key]) for key, domain in open.items())


def _distribution(distributions, domain: Range | Choice):
    if isinstance(domain, Choice):
        if domain.ordered:
            return distributions.IntDistribution(0, domain.size - 1)
        return distributions.CategoricalDistribution(range(domain.size))
    numeric = distributions.IntDistribution if domain.integer else distributions.FloatDistribution
    return numeric(domain.low, domain.high, log=True)
