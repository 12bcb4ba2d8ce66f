"""What ``mpifed check`` watches a method with: averages that are off, records that are not the cohort's."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mpifed.cli.check_method import _Keep, _Mean
from mpifed.core.records import Blocks, Record, State

STAGE = SimpleNamespace(phase=SimpleNamespace(name="round"))
LAYOUT = Record(x="x", u="x").layout(Blocks(x={"w": (2,)}))


@pytest.mark.parametrize("client, field, words", [
    (1, None, None),  # its own
    (0, None, "records of clients that it was not stepping"),
    (2, None, "records of clients that it was not stepping"),
    (None, 3, "changed shared.u"),
    (None, 0, "changed shared.x"),
])  # fmt: skip
def test_clients_change_their_own_records_only(client, field, words):
    shared, clients = State(LAYOUT, torch.zeros(4)), SimpleNamespace(buffer=torch.zeros(3, 2))
    keep, cohort = _Keep(), SimpleNamespace(local=np.array([1]))
    keep.simulation = SimpleNamespace(shared=shared, clients=clients)
    keep.before_clients(STAGE, cohort, slice(0, 1))
    if client is not None:
        clients.buffer[client, 1] = 1
    if field is not None:
        shared.buffer[field] = 1
    if words is None:
        keep.after_clients(STAGE, cohort, slice(0, 1))
    else:
        with pytest.raises(AssertionError, match=words):
            keep.after_clients(STAGE, cohort, slice(0, 1))


@pytest.mark.parametrize("weights, average", [("uniform", 2.0), ("samples", 2.5)])
@pytest.mark.parametrize("error, sound", [(0.0, True), (1e-13, True), (1.5e-12, False), (1.0, False)])
def test_an_average_that_is_off_is_seen(weights, average, error, sound):
    """Messages 1 and 3 of clients with 5 and 15 samples; the third row is of nobody in the cohort."""
    mean, cohort = _Mean(), SimpleNamespace(local=np.array([0, 1]), members=np.array([4, 7]))
    mean.simulation = SimpleNamespace(
        problem=SimpleNamespace(client_size={4: 5, 7: 15}.get),
        config=SimpleNamespace(participation=SimpleNamespace(weights=weights)),
    )
    messages = SimpleNamespace(buffer=torch.tensor([[1.0], [3.0], [99.0]]).double())
    mean.after_clients(SimpleNamespace(messages=messages), cohort, slice(0, 2))
    made = SimpleNamespace(buffer=torch.tensor([average * (1 + error)], dtype=torch.float64))
    stage = SimpleNamespace(mean=made, phase=STAGE.phase)
    if sound:
        mean.after_mean(stage, cohort)
    else:
        with pytest.raises(AssertionError, match="the average of phase 'round'"):
            mean.after_mean(stage, cohort)
