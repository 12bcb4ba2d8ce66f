"""What every method costs a client in a round, observed, against what the papers count.

A steady round is the third, with all clients: what nobody has written since is not sent again.
"""

import pytest
from baselines import Half
from fields import Chain, P
from games import DX, DY, Game, configuration

from mpifed.algorithms import (
    CDMAADA,
    CDMANC,
    CDMAONE,
    CODASCA,
    FESSGDA,
    FGDA,
    FLRA,
    FSGDA,
    LESGD,
    LIPPAX,
    LSGD,
    MFCGD,
    SAGDA,
    SCAFFOLD,
    SLIPPAX,
    AdaFGDA,
    AdaMFCGD,
    CODAPlus,
    ComFedL,
    ExtraSGD,
    ExtraStepLocalSGD,
    FedAvg,
    FedDualAvg,
    FedMuonDA,
    FedNest,
    FedNestComposition,
    FedNormSGDA,
    FedNormSGDAPlus,
    FedNSGDAM,
    FedSGDAClip,
    FedSGDAM,
    FedSGDAPlus,
    FeDualEx,
    LFedNest,
    LocalAMSGrad,
    LocalDualExtrapolation,
    LocalMOML,
    LocalSCGD,
    LocalSCGDM,
    LocalSGDA,
    LocalSGDAPlus,
    MomentumLocalSGDA,
    MomentumLocalSGDAPlus,
    SmoothedGDA,
)
from mpifed.parallel.comm import SerialComm
from mpifed.simulation.simulation import Simulation

X, Y, D, K, CLIENTS = DX, DY, DX + DY, 3, 4
HEAVY = dict(p=K, eta_x=0.01, eta_y=0.01, gamma_x=0.02, gamma_y=0.02)
GLOBAL = dict(K=K, eta_xl=0.01, eta_yl=0.01)
STORM = dict(q=K, gamma=0.01)
RATES = dict(eta_x=0.01, eta_y=0.01)
NORMED = dict(gamma_x=0.01, gamma_y=0.01, **RATES)
LOCAL = dict(K=K, eta=0.01)
CDMA = dict(K=K, eta_x=0.01, eta_y=0.01)
NEST = dict(tau=K, alpha=0.01, beta=0.01)

#: Method, problem, then numbers up, numbers down, phases, calls; a comment where a paper counts otherwise.
COSTS = {
    "LocalSGDA": (LocalSGDA(q=K, **RATES), Game, D, D, 1, K),
    # A "+" method needs one block of each of two pairs of gradients, and an evaluation makes a pair. The
    # snapshot is a field of its own: a client that takes part every time is sent it once, in the round after
    # it was renewed; papers do not count it, since it has been sent as x. Round 3 is not such a round.
    "LocalSGDAPlus": (LocalSGDAPlus(q=K, S=3 * K, **RATES), Game, D, D, 1, 2 * K),
    "LocalSGDAPlus, a snapshot a round": (LocalSGDAPlus(q=K, S=K, **RATES), Game, D, D, 1, 2 * K),
    "MomentumLocalSGDA": (MomentumLocalSGDA(q=K, **RATES), Game, 2 * D, 2 * D, 1, K),
    "MomentumLocalSGDAPlus": (
        MomentumLocalSGDAPlus(q=K, S=3 * K, average_start=True, **RATES), Game, 2 * D, 2 * D, 1, 2 * K,
    ),
    "FedSGDAPlus": (FedSGDAPlus(K=K, S=3, **RATES), Game, D, D, 1, 2 * K),
    "FedSGDAM": (FedSGDAM(Q=K, **RATES), Game, 2 * D, 2 * D, 1, 2 * K),
    "FedSGDAM after": (FedSGDAM(Q=K, order="after", **RATES), Game, 2 * D, 2 * D, 1, 2 * K),
    "FedNormSGDA": (FedNormSGDA(tau=(1, 2, 3, 6), **NORMED), Game, D, D, 1, 3),  # calls: their mean
    "FedNormSGDAPlus": (FedNormSGDAPlus(tau=K, S=3, **NORMED), Game, D, D, 1, 2 * K),
    "FSGDA": (FSGDA(**GLOBAL), Game, D, D, 1, K),
    "FSGDA without y": (FSGDA(**GLOBAL), Half, X, X, 1, K),
    "FESSGDA": (FESSGDA(p=0.1, **GLOBAL), Game, D, D, 1, K),  # z stays at the server
    # Its paper is central and counts nothing; here it sends gradients and is sent points.
    "SmoothedGDA": (SmoothedGDA(eta_x=0.01, eta_y=0.01, p=0.1), Game, D, D, 1, 1),
    "SmoothedGDA alternating": (SmoothedGDA(eta_x=0.01, eta_y=0.01, alternating=True), Game, D, D, 2, 2),
    "FGDA stem": (FGDA(**STORM), Game, 2 * D, 2 * D, 1, 2 * K),
    "FGDA local": (FGDA(**STORM, sync_estimator="local"), Game, 2 * D, D, 1, 2 * K),
    "FGDA mean_after": (FGDA(**STORM, sync_estimator="mean_after"), Game, 3 * D, 2 * D, 2, 2 * K),
    "AdaFGDA stem": (AdaFGDA(**STORM), Game, 2 * D, 3 * D, 1, 2 * K),  # A and B, dense
    "AdaFGDA local": (AdaFGDA(**STORM, sync_estimator="local"), Game, 2 * D, 2 * D, 1, 2 * K),
    "AdaFGDA, a number for each block": (AdaFGDA(**STORM, matrix="norm"), Game, 2 * D, 2 * D + 2, 1, 2 * K),
    "FedNSGDAM": (FedNSGDAM(**HEAVY), Game, 2 * D, 2 * D, 1, K),  # clients recompute the momentum
    "FedMuonDA": (FedMuonDA(**HEAVY), Game, 2 * D, 2 * D, 1, K),
    "FedSGDAClip": (FedSGDAClip(**HEAVY), Game, 2 * D, 2 * D, 1, K),
    # The sums for the output average are not counted.
    "LSGD": (LSGD(**LOCAL), Game, D, D, 1, K),
    "LESGD": (LESGD(**LOCAL), Game, 2 * D, 2 * D, 2, 2 * K),
    "LESGD, z only": (LESGD(**LOCAL, sync_extrapolation=False), Game, D, D, 1, 2 * K),
    "LIPPAX": (LIPPAX(**LOCAL, H=2, L=5.0), Game, D, D, 1, 3 * K),
    "SLIPPAX": (SLIPPAX(**LOCAL, H=1, L=5.0, sigma=1.0), Game, D, D, 1, 2 * K),
    "LocalDualExtrapolation": (LocalDualExtrapolation(**LOCAL), Game, 2 * D, 2 * D, 2, 2 * K),
    "LocalDualExtrapolation, z only": (
        LocalDualExtrapolation(**LOCAL, sync_extrapolation=False), Game, D, D, 1, 2 * K,
    ),
    "ExtraSGD": (ExtraSGD(eta=0.01, b=K), Game, 2 * D, 2 * D, 2, 2 * K),
    "ExtraStepLocalSGD": (ExtraStepLocalSGD(**LOCAL), Game, D, D, 1, 2 * K),
    "FedDualAvg": (FedDualAvg(K=K, eta_c=0.01, eta_s=0.5), Game, D, D, 1, K),
    # Nor are the mean duals that only the output is made of.
    "FeDualEx": (FeDualEx(K=K, eta_c=0.01), Game, D, D, 1, 2 * K),
    "FeDualEx, averages of points": (FeDualEx(K=K, eta_c=0.01, shadow=False), Game, D, D, 1, 2 * K),
    # A call is one evaluation of g with its Jacobian, or of ∇f: two of each a step.
    "MFCGD": (MFCGD(**STORM), Chain, 2 * X, X, 1, 4 * K),
    "AdaMFCGD": (AdaMFCGD(**STORM), Chain, 2 * X, 2 * X, 1, 4 * K),
    "FedAvg": (FedAvg(**LOCAL), Half, X, X, 1, K),
    "FedAvg, adam": (FedAvg(**LOCAL, server="adam"), Half, X, X, 1, K),  # the moments stay at the server
    # v̄ is sent after the points, and one gradient a round is taken for it.
    "SAGDA": (SAGDA(**GLOBAL), Game, 2 * D, 2 * D, 2, K + 1),
    "SAGDA, stored": (SAGDA(**GLOBAL, variates="stored"), Game, 2 * D, 2 * D, 1, K),
    "SCAFFOLD": (SCAFFOLD(K=K, eta_l=0.01), Half, 2 * X, 2 * X, 1, K),
    "SCAFFOLD, option I": (SCAFFOLD(K=K, eta_l=0.01, option="I"), Half, 2 * X, 2 * X, 1, K + 1),
    "SCAFFOLD, with y": (SCAFFOLD(K=K, eta_l=0.01), Game, 2 * D, 2 * D, 1, K),
    "CODAPlus": (CODAPlus(**LOCAL, T=9), Game, D, D, 1, K),
    "CODASCA": (CODASCA(**LOCAL, T=9), Game, 2 * D, 2 * D, 1, K),
    "ComFedL": (ComFedL(q=K, eta=0.01, B_g=5, B_f=2), Chain, X, X, 1, 7 * K),
    "LocalMOML": (LocalMOML(H=K, eta=0.01, K_0=4), Chain, X, X, 1, 2 * K + 4),
    "LocalSCGDM": (LocalSCGDM(p=K, eta=0.01), Chain, 2 * X + P, 2 * X + P, 1, 2 * K),
    "LocalSCGDM, own u": (LocalSCGDM(p=K, eta=0.01, average_inner=False), Chain, 2 * X, 2 * X, 1, 2 * K),
    "LocalSCGD": (LocalSCGD(p=K, eta=0.01), Chain, X + P, X + P, 1, 2 * K),
    # Local steps take no samples: one value of g a call, then one of ∇f and one Jacobian.
    **{
        f"FedNestComposition, T = {T}": (
            FedNestComposition(T=T, tau=K, alpha=0.01, beta=0.1), Chain, 2 * T * P + P + 2 * X,
            2 * T * P + P + 2 * X, 2 * T + 3, T + 2,
        )
        for T in (1, 2, 3)
    },
    "FedNestComposition, variance-reduced x": (
        FedNestComposition(T=1, tau=K, alpha=0.01, beta=0.1, recompute_jacobian=True), Chain, 3 * P + 2 * X,
        3 * P + 2 * X, 5, 3 + 2 * K,
    ),
    # The reference point of a new stage is counted, although it is a point that has been sent.
    "CODAPlus, a new stage": (CODAPlus(**LOCAL, T=2), Game, D, D + X, 1, K),
    "CODASCA, a new stage": (CODASCA(**LOCAL, T=2), Game, 2 * D, 2 * D + X, 1, K),
    # All data of a client are one call.
    "CDMANC": (CDMANC(**CDMA), Game, D, D, 1, K),
    "CDMAONE": (CDMAONE(**CDMA), Game, 2 * D, 2 * D, 2, 1 + 2 * K),
    "CDMAADA": (CDMAADA(**CDMA), Game, 2 * D, 3 * D, 2, 2 + 2 * K),
    "CDMAADA, a large batch": (CDMAADA(**CDMA, large_batch=4), Game, 2 * D, 3 * D, 2, 2 + 2 * K),
    **{
        f"FedNest, T = {T}": (
            FedNest(T=T, **NEST), Game, 2 * T * Y + 2 * X, 2 * T * Y + 2 * X, 2 * T + 2,
            (T + 1) * (1 + 2 * K),
        )
        for T in (1, 2, 3)
    },
    "FedNest, inner alone": (
        FedNest(T=2, tau_outer=5, outer="sgd", **NEST), Game, 4 * Y + X, 4 * Y + X, 5, 2 * (1 + 2 * K) + 5,
    ),
    "LFedNest": (LFedNest(T=3, **NEST), Game, 3 * Y + X, 3 * Y + X, 4, 4 * K),
    "FLRA": (FLRA(tau=K, eta_1=0.01, eta_2=0.01), Game, X, X, 1, K),
    "LocalAMSGrad": (LocalAMSGrad(**CDMA), Game, 2 * D, 2 * D, 2, K),  # points and second moments
}  # fmt: skip


@pytest.mark.parametrize("group", [1, 2, "all"])
@pytest.mark.parametrize("name", COSTS)
def test_a_steady_round(tmp_path, name, group):
    method, problem, *counts = COSTS[name]
    config = configuration(method, problem(clients=CLIENTS), tmp_path, group=group)
    simulation, before = Simulation.from_settings(config, SerialComm()), None
    simulation.start()
    for _ in range(3):
        costs = simulation.rounds.costs
        before = costs.bytes_up, costs.bytes_down, costs.phases, costs.oracle_calls
        simulation.step()
    after = costs.bytes_up, costs.bytes_down, costs.phases, costs.oracle_calls
    up, down, phases, calls = (now - then for now, then in zip(after, before))
    each = CLIENTS * 8  # bytes of a number of float64 from or to every client
    assert [up / each, down / each, phases, calls / CLIENTS] == counts


def test_every_method_is_counted():
    from mpifed.algorithms import ALGORITHMS

    assert set(ALGORITHMS) <= {name.split(",")[0].split(" ")[0] for name in COSTS}


def test_a_cohort_is_sent_all_that_it_reads_and_alone_is_counted(tmp_path):
    """SCAFFOLD x and c; FedSGDA+ the snapshot too; CDMA-ADA x, y and the last point, then, as others may be
    asked, x, y, u and v."""
    for name, down in (("SCAFFOLD", 2 * X), ("CDMAADA", 4 * D), ("FSGDA", D), ("FedSGDAPlus", D + X)):
        method, problem, up, _, phases, calls = COSTS[name]
        simulation = Simulation.from_settings(
            configuration(method, problem(clients=CLIENTS), tmp_path, cohort=2), SerialComm()
        )
        simulation.start()
        simulation.step()
        simulation.step()
        costs = simulation.rounds.costs
        before = costs.bytes_up, costs.bytes_down, costs.phases, costs.oracle_calls
        simulation.step()
        after = costs.bytes_up, costs.bytes_down, costs.phases, costs.oracle_calls
        spent = [now - then for now, then in zip(after, before)]
        assert spent == [2 * 8 * up, 2 * 8 * down, phases, 2 * calls], name


def test_dimensions_tell_the_blocks_apart():
    assert len({X, Y, P * X, D}) == 4
