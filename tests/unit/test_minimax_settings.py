"""Settings of FGDA, the "+", momentum and Fed-Norm methods that are inconsistent; cohorts that need masks."""

import pytest

from mpifed import Config
from mpifed.algorithms import FGDA, FedNormSGDA, LocalSGDAPlus, MomentumLocalSGDA, MomentumLocalSGDAPlus
from mpifed.base.errors import ConfigError
from mpifed.problems import Saddle

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
    with pytest.raises(ConfigError) as fault:
        make()
    assert says in str(fault.value) and "function-" not in str(fault.value)


def test_largest_allowed_weights():
    MomentumLocalSGDA(q=2, alpha=0.1, beta_x=10.0, beta_y=10.0, **RATES)
    MomentumLocalSGDA(q=2, alpha=STAIRS, beta_x=0.5, beta_y=0.5, **RATES)
    FGDA(q=2, eta=1.0, project_y="step")
