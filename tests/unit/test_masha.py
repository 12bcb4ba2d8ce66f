"""MASHA1 and MASHA2: exact limits with compression in both directions, bytes, and refused combinations."""

from __future__ import annotations

from dataclasses import dataclass

import drawn
import pytest
from baselines import Half
from fields import Field
from games import DX, DY, Game, configuration, started
from identity_games import ROUNDING, VISIBLE, Affine, distance, path

from mpifed import L1, Algorithm, Compression, Config, ConfigError, Phase, Record, compress, compressed
from mpifed.algorithms import MASHA1, MASHA2, ExtraSGD, LocalSGDA
from mpifed.core.compression import QSGD, RandK, TopK
from mpifed.parallel.comm import CollectiveError
from mpifed.problems import L1BoxBilinear

RAND_2, TOP_2 = {"name": "rand-k", "ratio": 0.4}, {"name": "top-k", "ratio": 0.4}  # 2 of 5 entries
EXACT = {"noise": None, "batch_size": 0}
ETA, SEED, CLIENTS = 0.06, 1, 3


def masha(cls=MASHA1, rule=None, server="same", **settings):
    server = rule if server == "same" else server
    return cls(**{"gamma": ETA, "tau": 0.5, "compression": rule, "server_compression": server} | settings)


@pytest.mark.parametrize("cls", [MASHA1, MASHA2])
@pytest.mark.parametrize("reference, near", [("new", True), ("old", False)])
def test_without_compression_and_tau_it_is_extragradient(cls, reference, near):
    left = path(masha(cls, tau=0, reference=reference), Game(), **EXACT)
    gap = distance(left, path(ExtraSGD(eta=ETA), Game(), **EXACT))
    assert gap < ROUNDING if near else gap > VISIBLE


#: The slowest of these rounds contract by 0.94; 1e-13 leaves room for rounding.
@pytest.mark.parametrize("reference", ["new", "old"])
@pytest.mark.parametrize("cls, rule", [(MASHA1, RAND_2), (MASHA2, TOP_2)])
def test_the_limit_is_exact_with_compression_in_both_directions(cls, rule, reference):
    """The saddle point of a game with unequal Jacobians, without noise."""
    method = masha(cls, rule, reference=reference, gamma=0.1)
    simulation = started(configuration(method, Affine(clients=3, common=False), "unused", **EXACT), 600)
    assert (simulation.point() - simulation.problem.problem.saddle()).abs().max() < 1e-13


def test_the_limit_with_a_convex_part_does_not_depend_on_the_step_size():
    """As φ has the weight γ in both proximal maps: otherwise the limits of two step sizes differ."""
    one, other, without = (
        path(masha(rule=RAND_2, gamma=gamma), Field(CLIENTS, L1(lam=lam)), rounds=500, **EXACT)[-1]
        for gamma, lam in ((0.1, 0.1), (0.2, 0.1), (0.2, 0.0))
    )
    assert abs(one - other).max() < 1e-9 and abs(one - without).max() > VISIBLE


@pytest.mark.parametrize("cls, rule, bytes", [(MASHA1, RAND_2, 24), (MASHA2, TOP_2, 24), (MASHA1, None, 40)])
def test_all_operators_cost_bytes_only_in_rounds_with_a_new_reference_point(cls, rule, bytes):
    """A round takes 2 values of 8 bytes with indices of 4 bytes in each direction, and all 5 values with its
    coin; their mean and the point are downloaded in the round after it."""
    simulation = started(configuration(masha(cls, rule), Game(clients=CLIENTS), "unused", noise=0))
    costs, new, coins = simulation.rounds.costs, 1, []
    totals = [costs.bytes_up, costs.bytes_down, costs.phases, costs.oracle_calls]
    assert totals == [40 * CLIENTS, 40 * CLIENTS, 1, CLIENTS]  # the starting point is sent
    for r in range(1, 9):
        simulation.step()
        coin = drawn.uniform(SEED, "reference", r, 1)[0] >= 0.5
        before = totals
        totals = [costs.bytes_up, costs.bytes_down, costs.phases, costs.oracle_calls]
        up, down = bytes + 40 * coin, bytes * (r > 1) + 40 * new
        assert [after - one for one, after in zip(before, totals)] == [
            up * CLIENTS, down * CLIENTS, 1 + coin, (1 + coin) * CLIENTS,
        ]  # fmt: skip
        new = coin
        coins.append(coin)
    assert {*coins} == {True, False}


def job(method, problem=None, **settings):
    return Config(algorithm=method, problem=problem or Game(clients=CLIENTS), **settings)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: masha(rule=TOP_2), "compression: expected an unbiased compression .*, got top-k"),
        (lambda: masha(server=TOP_2), "server_compression: expected an unbiased compression"),
        (lambda: job(masha(), message={"compression": RAND_2}), "leave message.compression out"),
        (lambda: job(masha(), participation={"cohort": 2}), "MASHA1 is defined for full participation only"),
        (lambda: job(masha(MASHA2), L1BoxBilinear()), "a convex part .*, which MASHA2 would ignore"),
        (lambda: path(masha(MASHA2), Game(ball=0.3)), "MASHA2 would ignore its set of y: it needs a method"),
    ],
)
def test_combinations_that_are_refused(make, words):
    with pytest.raises((ValueError, CollectiveError), match=words):
        make()


class Conditional(LocalSGDA):
    """Local-SGDA whose only phase has a condition."""

    @property
    def phases(self):
        return (Phase(self.client_round, self.message, self.server_round, when=lambda now: now.round > 1),)


class Undeclared(LocalSGDA):
    """Local-SGDA with a compressed field whose compression is not a hyperparameter."""

    message = Record(x=compressed("x", by="rule"), y="y")


@pytest.mark.parametrize(
    "cls, words",
    [
        (Conditional, "the first phase takes place in every round, but .round. has the condition `when`"),
        (Undeclared, ".x is compressed by 'rule', which is not a hyperparameter"),
    ],
)
def test_declarations_that_are_refused(cls, words):
    with pytest.raises(ConfigError, match=words):
        job(cls(q=1, eta_x=0.1, eta_y=0.1))
    with pytest.raises(ConfigError, match="cannot be Compressed.*, which is for shared and message"):
        job(type("Bad", (cls,), {"client": Record(c=compressed("x", by="q"))})(q=1, eta_x=0.1, eta_y=0.1))


@dataclass(frozen=True)
class Compressing(Algorithm):
    """A step with compressed gradients of both blocks."""

    rule: Compression

    shared = Record(x="x", y="y")
    message = Record(dx=compressed("x", by="rule"), dy=compressed("y", by="rule"))

    def client_round(self, now, shared, client, message, oracle):
        gradients = oracle.grad(shared.x, shared.y, oracle.sample())
        stream = now.stream("step", oracle.client)
        message.dx, message.dy = (compress(self.rule, one, stream) for one in gradients)

    def server_round(self, now, shared, mean):
        shared.x, shared.y = shared.x - 0.1 * mean.dx, shared.y + 0.1 * mean.dy


@pytest.mark.parametrize("problem, sizes", [(Game, (DX, DY)), (Half, (DX,))])
@pytest.mark.parametrize(
    "rule", [RandK(ratio=0.4), TopK(ratio=0.4), QSGD(levels=2)], ids=lambda one: one.choice_name
)
def test_a_user_defined_method_compresses_its_messages(problem, sizes, rule):
    """The y of a problem without y has no elements and costs no bytes."""
    simulation = started(configuration(Compressing(rule), problem(clients=CLIENTS), "unused"))
    before = simulation.point().clone()
    simulation.step()
    assert (simulation.point() - before).abs().max() > VISIBLE
    assert simulation.rounds.costs.bytes_up == CLIENTS * sum(rule.bytes(size, 8) for size in sizes)
