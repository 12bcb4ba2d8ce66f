"""Settings that have no effect because of other settings are refused."""

import pytest
from everything import METHODS

from mpifed import ConfigError
from mpifed.algorithms import ALGORITHMS
from mpifed.base.settings import build
from mpifed.config.job import Config

#: Settings, and the setting that has no effect.
REFUSED = [
    ("FedNova", dict(tau=2, eta=0.1, nesterov=True), "nesterov"),
    ("FedNova", dict(tau=2, eta=0.1, nesterov=True, rho=0.0), "nesterov"),
    ("SLIPPAX", dict(K=1, eta=0.1, H=1, L=1.0, delta=0.1, sigma=2.0), "sigma"),
    ("SLIPPAX", dict(K=1, eta=0.1, H=1, gamma=0.1, L=1.0, delta=0.1), "L"),
    ("LIPPAX", dict(K=1, eta=0.1, H=1, gamma=0.1, L=1.0), "L"),
    ("SAGDA", dict(K=1, eta_xl=0.1, eta_yl=0.1, first_variates="gradient"), "first_variates"),
    ("FedMuonDA", METHODS["FedMuonDA"][0] | dict(orthogonalize="svd", iterations=3), "iterations"),
    ("AdaMFCGD", dict(q=1, project_init=True), "project_init"),
]


@pytest.mark.parametrize("name, settings, setting", REFUSED)
def test_settings_without_effect_are_refused(name, settings, setting):
    with pytest.raises(ConfigError, match=f"{setting} has no effect without"):
        build(ALGORITHMS[name], settings, name)
    with pytest.raises(ConfigError, match="has no effect without .*: leave .* out, or set"):
        ALGORITHMS[name](**settings)


@pytest.mark.parametrize("name, settings", [
    ("FedNova", dict(tau=2, eta=0.1, nesterov=False)),
    ("SLIPPAX", dict(K=1, eta=0.1, H=1, gamma=0.1, L=None, delta=0.1, sigma=None)),
    ("SAGDA", dict(K=1, eta_xl=0.1, eta_yl=0.1, first_variates="zero")),
])  # fmt: skip
def test_defaults_without_effect_are_accepted(name, settings):
    assert ALGORITHMS[name](**settings)


CLOCK = {"bandwidth_down": 1.0, "bandwidth_up": 1.0, "gradients_per_second": 1.0, "timeout": 2.0}


@pytest.mark.parametrize("sections, message", [
    ({"measures": {"of": ["tail"], "ell": 2.0}}, "ell has no effect without"),
    ({"measures": {"of": ["stationarity"], "evaluations": 5}}, "evaluations has no effect without"),
    ({"measures": {"of": ["stationarity"], "accuracy": 0.1}}, "accuracy has no effect without"),
    ({"measures": {"of": ["phi"], "samples": 20}}, "samples has no effect without"),
    ({"clock": CLOCK}, "clock.timeout has no effect without clients that drop out"),
    ({"plugins": {"anything": 3}}, "no setting 'plugins'"),
    ({"plugins": 3}, "no setting 'plugins'"),
    ({"problem": {"name": "QuadraticMixture", "divergence": "kl"}}, "divergence has no effect without rho"),
    ({"problem": {"name": "FewShotMAML", "dataset": "digits", "size": 16}}, "size has no effect without"),
])  # fmt: skip
def test_settings_of_a_job_without_effect_are_refused(sections, message):
    job = {
        "rounds": 1,
        "algorithm": {"name": "FSGDA", "K": 1, "eta_xl": 0.1, "eta_yl": 0.1},
        "problem": {"name": "Saddle", "clients": 2, "d": 2},
    }
    with pytest.raises(ConfigError, match=message):
        Config.from_table(job | sections)
