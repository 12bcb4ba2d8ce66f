"""The local optimiser against ``torch.optim.SGD``, and what it adds to the methods."""

from __future__ import annotations

import pytest
import torch

from mpifed import ConfigError
from mpifed.algorithms import FedAvg
from mpifed.algorithms.local_optimisers import SGD

OPTIONS = {
    "plain": {},
    "momentum": dict(momentum=0.7),
    "nesterov": dict(momentum=0.7, nesterov=True),
    "weight decay": dict(weight_decay=0.2),
    "all": dict(momentum=0.4, nesterov=True, weight_decay=0.2),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_steps_are_those_of_torch(options):
    torch.manual_seed(0)
    start, gradients = torch.randn(2, 5, dtype=torch.float64), torch.randn(4, 2, 5, dtype=torch.float64)
    theirs = start.clone().requires_grad_()
    optimiser = torch.optim.SGD([theirs], lr=0.3, **options)
    ours, v = start, None
    for g in gradients:
        theirs.grad = g.clone()
        optimiser.step()
        d, v = SGD(**options)(g, ours, v)
        ours = ours - 0.3 * d
    # The same operations on numbers of about one, some of them fused.
    torch.testing.assert_close(ours, theirs.detach(), rtol=0, atol=1e-15)


def test_without_options_a_step_is_along_the_gradient_itself():
    g = torch.ones(1, 3)
    assert SGD()(g, g, None) == (g, None)


def test_nesterov_needs_momentum():
    with pytest.raises(ConfigError, match="nesterov has no effect without momentum > 0"):
        FedAvg(K=2, eta=0.1, local={"name": "sgd", "nesterov": True})
