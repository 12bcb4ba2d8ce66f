"""Compositional methods that coincide by theory, compared with each other.

These tests find errors that a method shares with its reference. Full batches without noise are used, since
the methods number their samples differently.
"""

from functools import partial

import pytest
from fields import Chain, Square
from identity_games import ROUNDING, VISIBLE, distance, path

from mpifed.algorithms import (
    ComFedL,
    FedNestComposition,
    LocalMOML,
    LocalSCGD,
    LocalSCGDM,
)
from mpifed.base.errors import ContractError

Q = 3
POWER = {"name": "power", "scale": 0.1, "offset": 2.0}

run = partial(path, batch_size=0, noise=None)


class Equal(Chain):
    """The chain whose clients all have the data of the first."""

    def client_data(self, k):
        return super().client_data(0)


def scgdm(**settings):
    return LocalSCGDM(**dict(p=Q, eta=POWER, alpha=1.0, beta=1.0) | settings)


def moml(**settings):
    return LocalMOML(**dict(H=Q, eta=POWER, beta=1.0, K_0=2) | settings)


def nest(**settings):
    return FedNestComposition(**dict(T=2, tau=1, alpha=0.2, beta=0.4) | settings)


#: Name → methods with the iterates of ComFedL, methods with others, and the problem.
IDENTITIES = {
    "Local-SCGD(M) with full weights": (
        [scgdm(), scgdm(average_inner=False), LocalSCGD(p=Q, eta=POWER, beta=1.0)],
        [scgdm(alpha=0.1), scgdm(beta=0.5)],
        ComFedL(q=Q, eta=POWER),
        Chain(),
    ),
    "LocalMOML with full weight": (
        [moml()],
        [moml(beta=0.3), moml(first_order=True)],
        ComFedL(q=Q, eta=POWER),
        Square(),
    ),
    "FedNest on equal clients": (
        [nest(beta=1.0), nest(beta=1.0, first_y="mean")],
        [nest(beta=0.3)],
        ComFedL(q=1, eta=0.2),
        Equal(),
    ),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_methods_coincide(name):
    equal, unequal, method, problem = IDENTITIES[name]
    right = run(method, problem)
    for methods, near in ((equal, True), (unequal, False)):
        for one in methods:
            gap = distance(run(one, problem), right)
            assert gap < ROUNDING if near else gap > VISIBLE, (one, gap)


def test_first_order_needs_as_many_inner_values_as_variables():
    with pytest.raises(ContractError, match="expected as many inner values as variables, got 2 and 3"):
        run(moml(first_order=True), Chain())
