"""In every method, a message field with the name of a field of ``shared`` contains a value of that field."""

from __future__ import annotations

import pytest
import torch
from baselines import Half
from everything import METHODS
from fields import Chain
from games import Game, configuration
from levels import Levels
from mixtures import LogCosh

from mpifed.algorithms import ALGORITHMS
from mpifed.base.settings import build
from mpifed.core.algorithm import communicated_fields
from mpifed.core.records import Stored
from mpifed.parallel.comm import SerialComm
from mpifed.simulation.executor import Observer
from mpifed.simulation.simulation import Simulation

#: Rounds after which a momentum of weight 0.1 has converged to 1e-7.
ROUNDS = 150
#: Methods whose steps may not be 0, with steps that change no digit.
TINY = {
    "LIPPAX": {"eta": 1e-14},
    "SLIPPAX": {"eta": 1e-14},
    "CODAPlus": {"eta": 1e-14},
    "FedGDAGT": {"eta_xl": 1e-14, "eta_yl": 1e-14},
    "LocalAdaSEG": {"D": 1e-14},
    "MIFA": {"eta": 1e-14},
    "ProxSkipVIPFL": {"gamma": 1e-14},
    "ProxSkipLSVRGDAFL": {"gamma": 1e-14},
}
#: Options that send other messages.
OPTIONS = {
    "SAGDA, fresh": ("SAGDA", {"variates": "fresh"}),
    "SCAFFOLD, I": ("SCAFFOLD", {"option": "I"}),
    "CODASCA, kept variates": ("CODASCA", {"keep_variates": True}),
    "AdaFGDA, local": ("AdaFGDA", {"sync_estimator": "local"}),
    "LESGD, one average": ("LESGD", {"sync_extrapolation": False}),
    "FedSGDAM, after": ("FedSGDAM", {"order": "after"}),
    "CDMAONE, all data": ("CDMAONE", {"large_batch": None}),
    "CDMAADA, all data": ("CDMAADA", {"large_batch": None}),
    "MimeLite, all data": ("MimeLite", {"large_batch": None}),
    "Mime, all data": ("Mime", {"large_batch": None}),
}
#: Methods whose small settings draw additional samples, so that their estimates do not converge.
LARGE = {"CDMAONE", "CDMAADA", "MimeLite", "Mime"}


def without_steps(name: str):
    """The method with steps that do not change the point."""
    method, options = OPTIONS.get(name, (name, {}))
    settings, none = METHODS[method]
    return build(ALGORITHMS[method], settings | (TINY[method] if none is None else none) | options, method)


class Comparing(Observer):
    """Compares averages with the fields of ``shared`` of the same names, before the server updates them."""

    def after_mean(self, stage, cohort):
        if self.simulation.round < ROUNDS:
            return
        record, shared, served = stage.mean.layout.record, self.simulation.shared, stage.phase.server
        for name in communicated_fields(record):
            if name not in shared or not getattr(shared, name).numel():  # a problem without y
                continue
            assert not isinstance(record.fields[name], Stored), f"{name} is a change, and a field of shared"
            sent, field = getattr(stage.mean, name), getattr(shared, name)
            assert served is None or field.norm() > 1e-6, f"{name} is 0, so the comparison is void"
            torch.testing.assert_close(sent, field, rtol=1e-6, atol=1e-9, msg=lambda text: f"{name}: {text}")


@pytest.mark.parametrize("name", [*(name for name in METHODS if name not in LARGE), *OPTIONS])
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
