"""A message field that has the name of a field of ``shared`` holds a value of that field, in every method."""

from __future__ import annotations

import pytest
import torch
from baselines import Half
from everything import METHODS
from fields import Chain
from games import Game, configuration

from mpifed.algorithms import ALGORITHMS
from mpifed.base.settings import build
from mpifed.core.algorithm import travels
from mpifed.core.records import Stored
from mpifed.parallel.comm import SerialComm
from mpifed.simulation.executor import Observer
from mpifed.simulation.simulation import Simulation

#: Rounds after which a momentum of weight .1 has settled to 1e-11.
ROUNDS = 240
#: Methods whose steps may not be 0, with steps that move nothing.
TINY = {"LIPPAX": {"eta": 1e-14}, "SLIPPAX": {"eta": 1e-14}, "CODAPlus": {"eta": 1e-14}}
#: Other options, which send other messages.
OPTIONS = {
    "SAGDA, fresh": ("SAGDA", {"variates": "fresh"}),
    "SCAFFOLD, I": ("SCAFFOLD", {"option": "I"}),
    "CODASCA, kept variates": ("CODASCA", {"keep_variates": True}),
    "AdaFGDA, local": ("AdaFGDA", {"sync_estimator": "local"}),
    "LESGD, one average": ("LESGD", {"sync_extrapolation": False}),
    "FedSGDAM, after": ("FedSGDAM", {"order": "after"}),
    "CDMAONE, all data": ("CDMAONE", {"large_batch": None}),
    "CDMAADA, all data": ("CDMAADA", {"large_batch": None}),
}
#: Methods whose small settings take samples of their own, which never settle.
LARGE = {"CDMAONE", "CDMAADA"}


def still(name: str):
    """The method with steps that leave the point where it is."""
    of, options = OPTIONS.get(name, (name, {}))
    settings, none = METHODS[of]
    return build(ALGORITHMS[of], {**settings, **(TINY[of] if none is None else none), **options}, of)


class Settled(Observer):
    """Compares averages with the fields of ``shared`` of their names, before the server makes others."""

    def after_mean(self, stage, cohort):
        if self.simulation.round < ROUNDS:
            return
        record, shared, served = stage.mean.layout.record, self.simulation.shared, stage.phase.server
        for name in travels(record):
            if name not in shared:
                continue
            assert not isinstance(record.fields[name], Stored), f"{name} is a change, and shared has a {name}"
            sent, field = getattr(stage.mean, name), getattr(shared, name)
            assert served is None or field.norm() > 1e-6, f"{name} is 0 and says nothing"
            torch.testing.assert_close(sent, field, rtol=1e-6, atol=1e-9, msg=lambda text: f"{name}: {text}")


@pytest.mark.parametrize("name", [*(name for name in METHODS if name not in LARGE), *OPTIONS])
def test_at_rest_a_message_repeats_the_fields_of_shared_of_its_names(tmp_path, name):
    """One client without noise, and steps of length 0: estimates settle, and their changes vanish, so that a
    change under the name of the field would differ from it."""
    family = type(still(name)).family
    problems = {
        "minimax": Game(clients=1), "operator": Game(clients=1), "minimisation": Half(clients=1),
        "composition": Chain(clients=1),
    }  # fmt: skip
    config = configuration(still(name), problems[family], tmp_path, noise=0, batch_size=0)
    observer = Settled()
    simulation = observer.simulation = Simulation.from_settings(config, SerialComm(), observers=[observer])
    simulation.start()
    for _ in range(ROUNDS):
        simulation.step()
