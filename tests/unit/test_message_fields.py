"""In every method, a message field with the name of a field of ``shared`` contains a value of that field."""

from __future__ import annotations

import pytest
import torch
from baselines import Half
from everything import METHODS, method
from fields import Chain
from games import Game, configuration
from levels import Levels
from mixtures import LogCosh

from mpifed.algorithms import ALGORITHMS
from mpifed.core.algorithm import communicated_fields
from mpifed.core.records import Stored
from mpifed.parallel.comm import SerialComm
from mpifed.simulation.executor import Observer
from mpifed.simulation.simulation import Simulation

#: Rounds after which a momentum of weight 0.1 has converged to 1e-7.
ROUNDS = 150
#: Options that send other messages.
OPTIONS = {
    "SAGDA, fresh": ("SAGDA", {"variates": "fresh"}),
    "SCAFFOLD, I": ("SCAFFOLD", {"option": "I"}),
    "CODASCA, kept variates": ("CODASCA", {"keep_variates": True}),
    "AdaFGDA, local": ("AdaFGDA", {"sync_estimator": "local"}),
    "LESGD, one average": ("LESGD", {"sync_extrapolation": False}),
    "FedSGDAM, after": ("FedSGDAM", {"order": "after"}),
}


def without_steps(name: str):
    """The method with steps that do not change the point, and without large minibatches, with which
    estimates do not converge."""
    name, options = OPTIONS.get(name, (name, {}))
    settings, still = METHODS[name]
    all_data = {"large_batch": None} if "large_batch" in settings else {}
    return method(name, **still, **all_data, **options)


class Comparing(Observer):
    """Compares averages with the fields of ``shared`` of the same names, before the server updates them."""

    calls = 0

    def after_mean(self, stage, cohort):
        if self.simulation.round < ROUNDS:
            return
        self.calls += 1
        record, shared, served = stage.mean.layout.record, self.simulation.shared, stage.phase.server
        for name in communicated_fields(record):
            if name not in shared or not getattr(shared, name).numel():  # a problem without y
                continue
            assert not isinstance(record.fields[name], Stored), f"{name} is a change, and a field of shared"
            sent, field = getattr(stage.mean, name), getattr(shared, name)
            assert served is None or field.norm() > 1e-6, f"{name} is 0, so the comparison is void"
            torch.testing.assert_close(sent, field, rtol=1e-6, atol=1e-9, msg=lambda text: f"{name}: {text}")


@pytest.mark.parametrize("name", [*METHODS, *OPTIONS])
def test_without_steps_messages_repeat_the_fields_of_shared(tmp_path, name):
    """Estimates of one client without noise converge and their changes vanish, so changes would differ."""
    family = ALGORITHMS[OPTIONS.get(name, (name,))[0]].family
    problems = {
        "minimax": Game(clients=1), "operator": Game(clients=1), "minimisation": Half(clients=1),
        "composition": Chain(clients=1), "bilevel": Levels(clients=1),
    }  # fmt: skip
    problem = LogCosh(clients=1) if name == "DRFA" else problems[family]
    config = configuration(without_steps(name), problem, tmp_path, noise=0, batch_size=0)
    observer = Comparing()
    simulation = observer.simulation = Simulation.from_settings(config, SerialComm(), observers=[observer])
    simulation.start()
    for _ in range(ROUNDS):
        simulation.step()
    assert observer.calls
