"""Which metrics may choose settings: those that no test sample enters."""

from __future__ import annotations

import pytest

from mpifed.base.errors import ConfigError
from mpifed.config.tuning import tuning
from mpifed.parallel.comm import SerialComm
from mpifed.tuning.trials import probe

JOB = """
rounds = 9
problem = {{ {problem}, clients = 2 }}
run = {{ out = "{out}" }}
[tune]
methods = [{{ name = "ComFedL", q = 1 }}]
"""
ROBUST = 'name = "DistributionallyRobust", dataset = "digits"'
SINUSOIDS = 'name = "SinusoidMAML", tests = 3, model = { name = "mlp", hidden = [2] }'


@pytest.mark.parametrize(
    "problem, trained, tested",
    [
        (ROBUST, ("objective", "grad_norm", "robust_loss", "mean_loss", "worst_loss"), ("accuracy",)),
        (SINUSOIDS, ("objective", "grad_norm"), ("test_error", "adapted_error")),
    ],
)
def test_figures_of_training_choose_and_those_of_test_samples_do_not(problem, trained, tested, tmp_path):
    (tmp_path / "job.toml").write_text(JOB.format(problem=problem, out=tmp_path / "out"))
    (cell,) = tuning(tmp_path / "job.toml").cells
    seen = probe(cell, SerialComm())
    assert {*trained, *tested} == {*seen.metrics}
    assert [seen.deciding(name) for name in trained] == [*trained]
    for name in tested:
        with pytest.raises(ConfigError, match=f"{name} is a metric of the test data"):
            seen.deciding(name)
