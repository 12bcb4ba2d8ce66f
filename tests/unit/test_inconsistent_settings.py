"""Settings that have no effect because of other settings, or that contradict each other, are refused."""

import pytest
from everything import METHODS
from refusals import refusal

from mpifed import Config, ConfigError
from mpifed.algorithms import (
    ALGORITHMS,
    FGDA,
    SAGDA,
    FedAvg,
    FedNormSGDA,
    FedNova,
    LocalSGDAPlus,
    MomentumLocalSGDA,
    MomentumLocalSGDAPlus,
)
from mpifed.base.settings import build
from mpifed.config.tuning import Tune
from mpifed.problems import Saddle

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
    ("DRFA", dict(tau=2, eta=0.1, gamma=0.1, snapshot=0, snapshot_weights="uniform"), "snapshot_weights"),
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
    ({"oracle": {"batch_size": 0, "sampling": "without_replacement"}}, "sampling has no effect without"),
    ({"oracle": {"drop_last": True}}, "drop_last has no effect without sampling = 'without_replacement'"),
    ({"clock": CLOCK}, "clock.timeout has no effect without clients that drop out"),
    ({"clock": CLOCK, "participation": {"availability": {"name": "bernoulli", "probability": 0.5}}},
     "clock.timeout has no effect without clients that drop out"),
    ({"clock": CLOCK, "participation": {"dropout": [0.0, 0.0]}}, "clock.timeout has no effect without"),
    ({"problem": {"name": "TextAUC", "dataset": "sst2", "vectors": "words.npz", "dimension": 50}},
     "dimension has no effect without random vectors"),
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


def test_a_budget_of_a_search_without_effect_is_refused():
    with pytest.raises(ValueError, match="budget has no effect without several methods"):
        Tune(methods=[{"name": "FGDA"}], budget="proportional")


RATES = dict(eta_x=0.05, eta_y=0.04)
NORMED = dict(gamma_x=0.06, gamma_y=0.03, **RATES)
STAIRS = {"name": "steps", "value": 0.5, "boundaries": [4, 9], "factor": 2.0}


@pytest.mark.parametrize("make, says", [
    (lambda: LocalSGDAPlus(q=3, S=4, **RATES), "expected S as a multiple of q = 3, got S = 4"),
    (lambda: LocalSGDAPlus(q=3, S=1, **RATES), "expected S as a multiple of q = 3, got S = 1"),
    (lambda: MomentumLocalSGDAPlus(q=2, S=5, **RATES), "expected S as a multiple of q = 2"),
    (lambda: MomentumLocalSGDA(q=2, beta_x=1.1, **RATES), "expected beta_x alpha ≤ 1 at every step, got 1.1"),
    (lambda: MomentumLocalSGDAPlus(q=2, S=2, beta_y=3.0, **RATES), "expected beta_y alpha ≤ 1"),
    (lambda: MomentumLocalSGDA(q=2, alpha=STAIRS, beta_y=0.7, **RATES), "at every step, got 1.4"),
    (lambda: FedAvg(K={"epochs": 0}, eta=0.1), "expected an integer >= 1, the number of local steps, or a"),
    (lambda: FedAvg(K=0, eta=0.1), "or a table such as { epochs = 5 }, got 0"),
    (lambda: FedNova(tau={"epochs": 2.0}, eta=0.1), "or a table such as { epochs = 5 }, got {'epochs': 2.0}"),
    (lambda: SAGDA(K={"epochs": 2}, full_batch=True, eta_xl=0.1, eta_yl=0.1), "exact gradients have no"),
    (lambda: FGDA(q=2, eta=1.2, project_y="step"), "expected eta ≤ 1 at every step, or project_y ="),
    (lambda: FedNormSGDA(tau=0, **NORMED), "tau: expected at least 1 local step per client, got 0"),
    (lambda: FedNormSGDA(tau=(2, 0), **NORMED), "per client, got (2, 0)"),
    (lambda: FedNormSGDA(tau=(), **NORMED), "per client, got ()"),
    (lambda: FedNormSGDA(tau=2.5, **NORMED), "FedNormSGDA.tau: Input should be a valid integer, got 2.5"),
    (lambda: FedNormSGDA(tau=2, a=1.2, **NORMED), "a: expected a ratio r in (0, 1], or a list of weights"),
    (lambda: FedNormSGDA(tau=3, a=(1.0, 2.0), **NORMED), "a: expected 3 weights > 0, one per local step"),
    (lambda: FedNormSGDA(tau=2, a=(1.0, 0.0), **NORMED), "a: expected 2 weights > 0, one per local step"),
    (lambda: Config(algorithm=FedNormSGDA(tau=(1, 2), **NORMED), problem=Saddle(clients=3)),
     "algorithm.tau: expected one number per client for 3 clients, got 2"),
])  # fmt: skip
def test_inconsistent_settings_are_refused(make, says):
    assert says in refusal(make)


def test_methods_without_epochs_name_those_with_epochs():
    method = {"name": "FSGDA", "K": {"epochs": 5}, "eta_xl": 0.1, "eta_yl": 0.1}
    says = refusal(
        lambda: Config.from_table({"algorithm": method, "problem": {"name": "Saddle", "clients": 3}})
    )
    assert "algorithm.K: FSGDA has no local steps in epochs, got {'epochs': 5}: set a number, or use" in says
    assert "FedAvg, " in says and "LocalSGDA, " in says and "FedSGDA" not in says


def test_largest_allowed_weights():
    MomentumLocalSGDA(q=2, alpha=0.1, beta_x=10.0, beta_y=10.0, **RATES)
    MomentumLocalSGDA(q=2, alpha=STAIRS, beta_x=0.5, beta_y=0.5, **RATES)
    FGDA(q=2, eta=1.0, project_y="step")
