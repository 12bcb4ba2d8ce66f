"""The measured costs of every method per client and round, compared with the counts of the papers.

A steady round is the third, with all clients: fields that have not been written since are not sent again.
"""

import dataclasses
import itertools
import re

import levels
import pytest
from baselines import Half
from everything import METHODS, method
from fields import Chain, P
from games import DX, DY, Game, configuration, started
from levels import Levels
from mixtures import LogCosh

from mpifed.algorithms import ALGORITHMS
from mpifed.base.settings import build
from mpifed.core.algorithm import local_steps
from mpifed.simulation.costs import Costs

X, Y, D, K, CLIENTS = DX, DY, DX + DY, 3, 4
GLOBAL = dict(K=K, eta_xl=0.01, eta_yl=0.01)
STORM = dict(q=K, gamma=0.01)
RATES = dict(eta_x=0.01, eta_y=0.01)
NORMED = dict(gamma_x=0.01, gamma_y=0.01, **RATES)
LOCAL = dict(K=K, eta=0.01)
CDMA = dict(K=K, eta_x=0.01, eta_y=0.01)
SKIP = dict(gamma=0.01, p=1 / K, period="fixed")
NEST = dict(tau=K, alpha=0.01, beta=0.01)
RAND_2 = {"name": "rand-k", "ratio": 0.4}
MASHA = dict(gamma=0.01, compression=RAND_2, server_compression=RAND_2)

LX, LY = levels.DX, levels.DY
ALL_RATES = dict(eta_z=0.01, gamma_x=0.01, gamma_y=0.01, gamma_z=0.01, **RATES)

#: The plain form of ``paper_cost``, such as "up 2D (with momenta); down D; 1 phase; 1 gradient per step".
PLAIN = re.compile(
    r"up (\d*)D(| \+ 1| and 1 scalar)(?: \([^)]*\))?; down (\d*)D(?: \([^)]*\))?; "
    r"(\d+) phases?(?: \([^)]*\))?; (\d+) (?:gradient|operator value)s? per step"
)


def stated(name: str) -> tuple | None:
    """Return the row of a method with its small settings, if its ``paper_cost`` has the plain form."""
    cost = PLAIN.fullmatch(ALGORITHMS[name].paper_cost)
    if cost is None:
        return None
    up, scalar, down, phases, calls = cost.groups()
    problem, size = (Half, X) if ALGORITHMS[name].family == "minimisation" else (Game, D)
    up, down = int(up or 1) * size + bool(scalar), int(down or 1) * size
    return METHODS[name][0], problem, up, down, int(phases), int(calls) * local_steps(method(name))


#: Settings of the method with which the key begins, problem, elements up, elements down, phases, calls; a
#: comment if a paper counts otherwise. Methods without a row here need a plain ``paper_cost``.
COSTS = {
    **{name: row for name in ALGORITHMS if (row := stated(name))},
    # A "+" method needs one block of each of two pairs of gradients, and an evaluation computes a pair. The
    # snapshot is a separate field, which clients download once, in the round after its update; papers do not
    # count it, because it has been sent as x. Round 3 is not such a round.
    "LocalSGDAPlus": (dict(q=K, S=3 * K, **RATES), Game, D, D, 1, 2 * K),
    "LocalSGDAPlus, a snapshot a round": (dict(q=K, S=K, **RATES), Game, D, D, 1, 2 * K),
    "MomentumLocalSGDAPlus": (dict(q=K, S=3 * K, average_start=True, **RATES), Game, 2 * D, 2 * D, 1, 2 * K),
    "FedSGDAPlus": (dict(K=K, S=3, **RATES), Game, D, D, 1, 2 * K),
    "FedSGDAM after": (dict(Q=K, order="after", **RATES), Game, 2 * D, 2 * D, 1, 2 * K),
    "FedNormSGDA": (dict(tau=(1, 2, 3, 6), **NORMED), Game, D, D, 1, 3),  # calls: their mean
    "FedNormSGDAPlus": (dict(tau=K, S=3, **NORMED), Game, D, D, 1, 2 * K),
    "LocalSGDA alternating": (dict(q=K, alternating=True, **RATES), Game, D, D, 1, 2 * K),
    "FSGDA alternating": (dict(alternating=True, **GLOBAL), Game, D, D, 1, 2 * K),
    "FSGDA without y": (GLOBAL, Half, X, X, 1, K),
    # The method is not federated in its paper; here it uploads gradients and downloads points.
    "SmoothedGDA": (dict(eta_x=0.01, eta_y=0.01, p=0.1), Game, D, D, 1, 1),
    "SmoothedGDA alternating": (dict(eta_x=0.01, eta_y=0.01, alternating=True), Game, D, D, 2, 2),
    "FGDA stem": (STORM, Game, 2 * D, 2 * D, 1, 2 * K),
    "FGDA local": (dict(**STORM, sync_estimator="local"), Game, 2 * D, D, 1, 2 * K),
    "FGDA mean_after": (dict(**STORM, sync_estimator="mean_after"), Game, 3 * D, 2 * D, 2, 2 * K),
    "AdaFGDA stem": (STORM, Game, 2 * D, 3 * D, 1, 2 * K),  # A and B, dense
    "AdaFGDA local": (dict(**STORM, sync_estimator="local"), Game, 2 * D, 2 * D, 1, 2 * K),
    "AdaFGDA, a number for each block": (dict(**STORM, matrix="norm"), Game, 2 * D, 2 * D + 2, 1, 2 * K),
    # The sums for the output average do not count.
    "LESGD, z only": (dict(**LOCAL, sync_extrapolation=False), Game, D, D, 1, 2 * K),
    "LIPPAX": (dict(**LOCAL, H=2, L=5.0), Game, D, D, 1, 3 * K),
    "SLIPPAX": (dict(**LOCAL, H=1, L=5.0, sigma=1.0), Game, D, D, 1, 2 * K),
    "LocalDualExtrapolation, z only": (dict(**LOCAL, sync_extrapolation=False), Game, D, D, 1, 2 * K),
    "ExtraSGD": (dict(eta=0.01, b=K), Game, 2 * D, 2 * D, 2, 2 * K),
    # The mean duals, which only the output needs, do not count.
    "FeDualEx, averages of points": (dict(K=K, eta_c=0.01, shadow=False), Game, D, D, 1, 2 * K),
    # A call is one evaluation of g with its Jacobian, or of ∇f: two of each per step.
    "MFCGD": (STORM, Chain, 2 * X, X, 1, 4 * K),
    "AdaMFCGD": (STORM, Chain, 2 * X, 2 * X, 1, 4 * K),
    "FedAvg, adam": (dict(**LOCAL, server="adam"), Half, X, X, 1, K),  # the moments are not sent
    # v̄ is sent after the points, and needs one gradient per round.
    "SAGDA": (GLOBAL, Game, 2 * D, 2 * D, 2, K + 1),
    "SAGDA, stored": (dict(**GLOBAL, variates="stored"), Game, 2 * D, 2 * D, 1, K),
    "FedProx": (LOCAL, Half, X, X, 1, K),
    "FedProx, with y": (LOCAL, Game, D, D, 1, K),
    "FedNova": (dict(tau=(1, 2, 3, 6), eta=0.01, beta=0.5), Half, X + 1, X, 1, 3),  # calls: their mean
    "FedNova, tau_eff": (dict(tau=K, eta=0.01, tau_eff=2.0), Half, X, X, 1, K),
    "MimeLite": (LOCAL, Half, 2 * X, 2 * X, 1, K + 1),
    "MimeLite, adam": (dict(**LOCAL, base="adam", large_batch=4), Half, 2 * X, 3 * X, 1, K + 1),
    "Mime": (LOCAL, Half, 2 * X, 3 * X, 2, 2 * K + 1),
    "Mime, adam": (dict(**LOCAL, base="adam"), Half, 2 * X, 4 * X, 2, 2 * K + 1),
    "SAGDA, exact gradients": (dict(**GLOBAL, full_batch=True), Game, 2 * D, 2 * D, 2, K + 1),
    "FedGDAGT": (GLOBAL, Game, 2 * D, 2 * D, 2, K + 1),
    "KGTMinimax": (GLOBAL, Game, 2 * D, 2 * D, 1, K),  # in the paper D
    "STEM": (dict(q=K, eta=0.01), Half, 2 * X, 2 * X, 1, 2 * K),
    "SCAFFOLD": (dict(K=K, eta_l=0.01), Half, 2 * X, 2 * X, 1, K),
    "SCAFFOLD, option I": (dict(K=K, eta_l=0.01, option="I"), Half, 2 * X, 2 * X, 1, K + 1),
    "SCAFFOLD, with y": (dict(K=K, eta_l=0.01), Game, 2 * D, 2 * D, 1, K),
    "CODAPlus": (dict(**LOCAL, T=9), Game, D, D, 1, K),
    "CODASCA": (dict(**LOCAL, T=9), Game, 2 * D, 2 * D, 1, K),
    "ComFedL": (dict(q=K, eta=0.01, B_g=5, B_f=2), Chain, X, X, 1, 7 * K),
    "LocalMOML": (dict(H=K, eta=0.01, K_0=4), Chain, X, X, 1, 2 * K + 4),
    "LocalSCGDM": (dict(p=K, eta=0.01), Chain, 2 * X + P, 2 * X + P, 1, 2 * K),
    "LocalSCGDM, local u": (dict(p=K, eta=0.01, average_inner=False), Chain, 2 * X, 2 * X, 1, 2 * K),
    "LocalSCGD": (dict(p=K, eta=0.01), Chain, X + P, X + P, 1, 2 * K),
    # Local steps draw no samples: one value of g per phase, then ∇f and one Jacobian.
    **{
        f"FedNestComposition, T = {T}": (
            dict(T=T, tau=K, alpha=0.01, beta=0.1), Chain, 2 * T * P + P + 2 * X,
            2 * T * P + P + 2 * X, 2 * T + 3, T + 2,
        )
        for T in (1, 2, 3)
    },
    "FedNestComposition, variance-reduced x": (
        dict(T=1, tau=K, alpha=0.01, beta=0.1, recompute_jacobian=True), Chain, 3 * P + 2 * X,
        3 * P + 2 * X, 5, 3 + 2 * K,
    ),
    # The reference point of a new stage counts, although it has been sent as a point.
    "CODAPlus, a new stage": (dict(**LOCAL, T=2), Game, D, D + X, 1, K),
    "CODASCA, a new stage": (dict(**LOCAL, T=2), Game, 2 * D, 2 * D + X, 1, K),
    # A full gradient of a client is one call.
    "CDMAONE": (CDMA, Game, 2 * D, 2 * D, 2, 1 + 2 * K),
    "CDMAADA": (CDMA, Game, 2 * D, 3 * D, 2, 2 + 2 * K),
    "CDMAADA, a large batch": (dict(**CDMA, large_batch=4), Game, 2 * D, 3 * D, 2, 2 + 2 * K),
    **{
        f"FedNest, T = {T}": (
            dict(T=T, **NEST), Game, 2 * T * Y + 2 * X, 2 * T * Y + 2 * X, 2 * T + 2,
            (T + 1) * (1 + 2 * K),
        )
        for T in (1, 2, 3)
    },
    "FedNest, inner alone": (
        dict(T=2, tau_outer=5, outer="sgd", **NEST), Game, 4 * Y + X, 4 * Y + X, 5, 2 * (1 + 2 * K) + 5,
    ),
    "LFedNest": (dict(T=3, **NEST), Game, 3 * Y + X, 3 * Y + X, 4, 4 * K),
    "FLRA": (dict(tau=K, eta_1=0.01, eta_2=0.01), Game, X, X, 1, K),
    # The paper counts one number for a loss; a message has all coordinates of y.
    "DRFA": (dict(tau=K, eta=0.01, gamma=0.01), LogCosh, 2 * X + CLIENTS, 2 * X + CLIENTS, 2, K + 1),
    "AFL": (dict(gamma_x=0.01, gamma_y=0.01), Game, D, D, 1, 1),  # a mixture sends all coordinates of y
    "ProxSkipVIPFL": (SKIP, Game, D, D, 1, K),
    # Per step ∇f, ∇_y g and a pair of products.
    "SimFBO": (dict(tau=K, **ALL_RATES), Levels, LX + 2 * LY, LX + 2 * LY, 1, 3 * K),
    "ShroFBO": (dict(tau=K, **ALL_RATES), Levels, LX + 2 * LY, LX + 2 * LY, 1, 3 * K),
    "FedNestBilevel": (
        dict(T=2, J=2, ell=0.1, **NEST), Levels, 7 * LY + 2 * LX, 7 * LY + 2 * LX, 9,
        2 * (1 + 2 * K) + 3 + 2 * (1 + 2 * K),
    ),
    "LFedNestBilevel": (dict(T=2, J=2, ell=0.1, **NEST), Levels, 2 * LY + LX, 2 * LY + LX, 3, 4 * K + 3),
    # 2 of 5 values of 8 bytes with their indices of 4 bytes take 3 elements. F is known without
    # an exchange in round 2.
    "MASHA1, no exchange": (dict(tau=0.999, **MASHA), Game, 3, 3, 1, 1),
    "MASHA1, exchanges": (dict(tau=0, **MASHA), Game, 3 + D, 3 + D, 2, 2),
    "MASHA1, not compressed": (dict(tau=0.999, gamma=0.01), Game, D, D, 1, 1),
    "MASHA2, no exchange": (dict(tau=0.999, **MASHA), Game, 3, 3, 1, 1),
    "MASHA2, exchanges": (dict(tau=0, **MASHA), Game, 3 + D, 3 + D, 2, 2),
    # A new reference point in every step.
    "ProxSkipLSVRGDAFL": (dict(**SKIP, q=1.0), Game, D, D, 1, 3 * K),
}  # fmt: skip
BUILT = {
    key: build(ALGORITHMS[name], dict(row[0]), name)
    for key, row in COSTS.items()
    for name in re.findall(r"^\w+", key)
}


def third_round(config) -> list[int]:
    """Bytes up and down, phases and calls of the third round."""
    simulation, totals = started(config, 1), []
    for _ in range(2):
        simulation.step()
        costs = simulation.rounds.costs
        totals.append((costs.bytes_up, costs.bytes_down, costs.phases, costs.oracle_calls))
    return [after - before for before, after in zip(*totals)]


@pytest.mark.parametrize("name, group", [*zip(COSTS, itertools.cycle([1, 2, "all"]))])
def test_a_steady_round(tmp_path, name, group):
    _, problem, up, down, phases, calls = COSTS[name]
    config = configuration(BUILT[name], problem(clients=CLIENTS), tmp_path, group=group)
    item = 8 * CLIENTS  # bytes of a float64 from or to every client
    assert third_round(config) == [up * item, down * item, phases, calls * CLIENTS]


@pytest.mark.parametrize("name", COSTS)
def test_calls_per_local_step(name):
    """Other calls of a round, fewer than its steps here, do not count. Methods with several kinds of local
    steps are left out."""
    method, (*_, calls) = BUILT[name], COSTS[name]
    if not name.startswith(("FedNest", "LFedNest", "LocalMOML", "ProxSkipLSVRGDAFL", "SmoothedGDA", "MASHA")):
        if isinstance(getattr(method, "tau", 0), tuple):
            calls *= 2  # the largest number of local steps is twice the mean
        assert calls // local_steps(method) == method.calls_per_step


def test_calls_per_local_step_besides_those_of_all_data():
    """With q = 1, a new reference point takes a call on all data in every step."""
    calls = COSTS["ProxSkipLSVRGDAFL"][-1] - K
    assert calls // local_steps(BUILT["ProxSkipLSVRGDAFL"]) == ALGORITHMS["ProxSkipLSVRGDAFL"].calls_per_step


def test_all_methods_have_costs():
    missing = set(ALGORITHMS) - {re.match(r"\w+", name)[0] for name in COSTS}
    assert not missing, (
        f"add lines to COSTS in tests/unit/test_costs.py for {missing}, whose paper_cost is not of the form "
        f"{PLAIN.pattern}"
    )


@pytest.mark.parametrize(
    "name, down, fresh_down",
    [
        ("SCAFFOLD", 2 * X, None),  # x and c
        ("FSGDA", D, None),
        ("FedSGDAPlus", D + X, None),  # also the snapshot
        ("SAGDA", 2 * D, None),  # (x, y), then the variates
        ("CDMAONE", 2 * D, 3 * D),  # (x, y), then (u, v); a new cohort also needs (x, y)
        ("CDMAADA", 3 * D, 4 * D),  # also the last point
        # y, x, q and y in each inner call, without x after the first one; then h and x
        ("FedNest, T = 3", D + 3 * 2 * Y + X, 3 * (D + Y) + D + X),
        ("LFedNest", D + 3 * Y, 4 * D),
    ],
)
def test_a_cohort_downloads_each_value_that_it_reads_once(tmp_path, name, down, fresh_down):
    _, problem, up, _, phases, calls = COSTS[name]
    for fresh, expected in ((False, down), (True, fresh_down)):
        if expected is not None:
            method = dataclasses.replace(BUILT[name], **({"fresh_cohort": True} if fresh else {}))
            config = configuration(method, problem(clients=CLIENTS), tmp_path, cohort=2)
            assert third_round(config) == [2 * 8 * up, 2 * 8 * expected, phases, 2 * calls]


def test_costs_start_at_zero_and_the_blocks_have_different_sizes():
    assert {type(value) for value in vars(Costs()).values()} == {int, float}
    assert not any(vars(Costs()).values()) and len({X, Y, P * X, D}) == 4


@pytest.mark.parametrize("name", ["FGDA stem", "STEM", "MFCGD"])
def test_identity_matrices_are_not_sent(tmp_path, name):
    """The start sends the estimators, and round 1 the averages of the blocks alone."""
    config = configuration(BUILT[name], COSTS[name][1](clients=1), tmp_path)
    simulation = started(config, 1)
    read = {"FGDA stem": D, "STEM": 2 * X, "MFCGD": X}[name]  # STEM also starts from the averaged estimators
    assert simulation.rounds.costs.bytes_down == 8 * read
