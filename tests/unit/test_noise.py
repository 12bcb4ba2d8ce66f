"""Gradient noise: laws and addresses."""

import numpy as np
import pytest
from scipy import stats

from mpifed.core.noise import AlphaStable, Gaussian, Pareto, StudentT
from mpifed.core.streams import Stream

DRAWS = 40_000
#: The law of one coordinate as scipy has it.
LAWS = {
    "gaussian": (Gaussian(0.5), stats.norm(scale=0.5)),
    "student": (StudentT(1.5, 2.0), stats.t(1.5, scale=2.0)),
    "stable 1.5": (AlphaStable(1.5, 0.7), stats.levy_stable(1.5, 0.0, scale=0.7)),
    "cauchy": (AlphaStable(1.0), stats.cauchy()),
    "stable 2": (AlphaStable(2.0, 0.3), stats.norm(scale=0.3 * 2**0.5)),
}


def draws(noise, number=DRAWS):
    return noise(Stream(0, "noise"), number).ravel()


@pytest.mark.parametrize("name", LAWS)
def test_quantiles(name):
    """Empirical frequencies at the law's quantiles: five standard errors of a binomial share,
    sqrt(p(1-p)/n)."""
    noise, law = LAWS[name]
    values = draws(noise)
    for p in (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99):
        assert abs((values <= law.ppf(p)).mean() - p) < 5 * (p * (1 - p) / DRAWS) ** 0.5


def test_pareto_tail():
    values = draws(Pareto(1.5, 2.0))
    assert np.abs(values).min() >= 2.0
    for v in (1.5, 3.0, 10.0):
        p = v**-1.5
        assert abs((np.abs(values) > 2.0 * v).mean() - p) < 5 * (p * (1 - p) / DRAWS) ** 0.5
    assert abs((values > 0).mean() - 0.5) < 5 * 0.5 / DRAWS**0.5


@pytest.mark.parametrize("name", LAWS)
def test_addressed(name):
    noise = LAWS[name][0]
    whole = noise(Stream(3, "noise", [1, 4], 2, 5), 7)
    assert whole.shape == (2, 5, 7) and np.isfinite(whole).all()
    np.testing.assert_array_equal(noise(Stream(3, "noise", [4], 2, 1, first=3), 7)[0, 0], whole[1, 3])
