"""The measured costs of every method per client and round, compared with the counts of the papers.

A steady round is the third, with all clients: fields that have not been written since are not sent again.
"""

import dataclasses

import levels
import pytest
from baselines import Half
from fields import Chain, P
from games import DX, DY, Game, configuration
from levels import Levels
from mixtures import LogCosh

from mpifed.algorithms import (
    AFL,
    ALGORITHMS,
    CDMAADA,
    CDMANC,
    CDMAONE,
    CODASCA,
    DRFA,
    FESSGDA,
    FGDA,
    FLRA,
    FSGDA,
    LESGD,
    LIPPAX,
    LSGD,
    MASHA1,
    MASHA2,
    MFCGD,
    MIFA,
    SAGDA,
    SCAFFOLD,
    SLIPPAX,
    STEM,
    AdaFGDA,
    AdaMFCGD,
    Bi2Clip,
    CODAPlus,
    ComFedL,
    ExtraSGD,
    ExtraStepLocalSGD,
    FATClipping,
    FedAvg,
    FedDualAvg,
    FedDyn,
    FedExP,
    FedGDAGT,
    FedMuonDA,
    FedNest,
    FedNestBilevel,
    FedNestComposition,
    FedNormSGDA,
    FedNormSGDAPlus,
    FedNova,
    FedNSGDAM,
    FedProx,
    FedSGDAClip,
    FedSGDAM,
    FedSGDAPlus,
    FeDualEx,
    FedVARP,
    KGTMinimax,
    LFedNest,
    LFedNestBilevel,
    LocalAdaSEG,
    LocalAMSGrad,
    LocalDualExtrapolation,
    LocalMOML,
    LocalSCGD,
    LocalSCGDM,
    LocalSGDA,
    LocalSGDAPlus,
    Mime,
    MimeLite,
    MomentumLocalSGDA,
    MomentumLocalSGDAPlus,
    ProxSkipLSVRGDAFL,
    ProxSkipVIPFL,
    ShroFBO,
    SimFBO,
    SmoothedGDA,
)
from mpifed.parallel.comm import SerialComm
from mpifed.simulation.costs import Costs
from mpifed.simulation.evaluation import local_steps
from mpifed.simulation.simulation import Simulation

X, Y, D, K, CLIENTS = DX, DY, DX + DY, 3, 4
HEAVY = dict(p=K, eta_x=0.01, eta_y=0.01, gamma_x=0.02, gamma_y=0.02)
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

#: Method, problem, elements up, elements down, phases, calls; a comment if a paper counts otherwise.
COSTS = {
    "LocalSGDA": (LocalSGDA(q=K, **RATES), Game, D, D, 1, K),
    # A "+" method needs one block of each of two pairs of gradients, and an evaluation computes a pair. The
    # snapshot is a separate field, which clients download once, in the round after its update; papers do not
    # count it, because it has been sent as x. Round 3 is not such a round.
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
    "FESSGDA": (FESSGDA(p=0.1, **GLOBAL), Game, D, D, 1, K),  # z is not sent
    # The method is not federated in its paper; here it uploads gradients and downloads points.
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
    # The sums for the output average do not count.
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
    # The mean duals, which only the output needs, do not count.
    "FeDualEx": (FeDualEx(K=K, eta_c=0.01), Game, D, D, 1, 2 * K),
    "FeDualEx, averages of points": (FeDualEx(K=K, eta_c=0.01, shadow=False), Game, D, D, 1, 2 * K),
    # A call is one evaluation of g with its Jacobian, or of ∇f: two of each per step.
    "MFCGD": (MFCGD(**STORM), Chain, 2 * X, X, 1, 4 * K),
    "AdaMFCGD": (AdaMFCGD(**STORM), Chain, 2 * X, 2 * X, 1, 4 * K),
    "FedAvg": (FedAvg(**LOCAL), Half, X, X, 1, K),
    "FedAvg, adam": (FedAvg(**LOCAL, server="adam"), Half, X, X, 1, K),  # the moments are not sent
    # v̄ is sent after the points, and needs one gradient per round.
    "SAGDA": (SAGDA(**GLOBAL), Game, 2 * D, 2 * D, 2, K + 1),
    "SAGDA, stored": (SAGDA(**GLOBAL, variates="stored"), Game, 2 * D, 2 * D, 1, K),
    "FedProx": (FedProx(**LOCAL), Half, X, X, 1, K),
    "FedProx, with y": (FedProx(**LOCAL), Game, D, D, 1, K),
    "FedNova": (FedNova(tau=(1, 2, 3, 6), eta=0.01, beta=0.5), Half, X + 1, X, 1, 3),  # calls: their mean
    "FedNova, tau_eff": (FedNova(tau=K, eta=0.01, tau_eff=2.0), Half, X, X, 1, K),
    "FedDyn": (FedDyn(**LOCAL), Half, X, X, 1, K),
    "FedExP": (FedExP(**LOCAL), Half, X + 1, X, 1, K),
    "MimeLite": (MimeLite(**LOCAL), Half, 2 * X, 2 * X, 1, K + 1),
    "MimeLite, adam": (MimeLite(**LOCAL, base="adam", large_batch=4), Half, 2 * X, 3 * X, 1, K + 1),
    "Mime": (Mime(**LOCAL), Half, 2 * X, 3 * X, 2, 2 * K + 1),
    "Mime, adam": (Mime(**LOCAL, base="adam"), Half, 2 * X, 4 * X, 2, 2 * K + 1),
    "SAGDA, exact gradients": (SAGDA(**GLOBAL, full_batch=True), Game, 2 * D, 2 * D, 2, K + 1),
    "FedGDAGT": (FedGDAGT(**GLOBAL), Game, 2 * D, 2 * D, 2, K + 1),
    "KGTMinimax": (KGTMinimax(**GLOBAL), Game, 2 * D, 2 * D, 1, K),  # in the paper D
    "STEM": (STEM(q=K, eta=0.01), Half, 2 * X, 2 * X, 1, 2 * K),
    "SCAFFOLD": (SCAFFOLD(K=K, eta_l=0.01), Half, 2 * X, 2 * X, 1, K),
    "SCAFFOLD, option I": (SCAFFOLD(K=K, eta_l=0.01, option="I"), Half, 2 * X, 2 * X, 1, K + 1),
    "SCAFFOLD, with y": (SCAFFOLD(K=K, eta_l=0.01), Game, 2 * D, 2 * D, 1, K),
    "CODAPlus": (CODAPlus(**LOCAL, T=9), Game, D, D, 1, K),
    "CODASCA": (CODASCA(**LOCAL, T=9), Game, 2 * D, 2 * D, 1, K),
    "ComFedL": (ComFedL(q=K, eta=0.01, B_g=5, B_f=2), Chain, X, X, 1, 7 * K),
    "LocalMOML": (LocalMOML(H=K, eta=0.01, K_0=4), Chain, X, X, 1, 2 * K + 4),
    "LocalSCGDM": (LocalSCGDM(p=K, eta=0.01), Chain, 2 * X + P, 2 * X + P, 1, 2 * K),
    "LocalSCGDM, local u": (LocalSCGDM(p=K, eta=0.01, average_inner=False), Chain, 2 * X, 2 * X, 1, 2 * K),
    "LocalSCGD": (LocalSCGD(p=K, eta=0.01), Chain, X + P, X + P, 1, 2 * K),
    # Local steps draw no samples: one value of g per phase, then ∇f and one Jacobian.
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
    # The reference point of a new stage counts, although it has been sent as a point.
    "CODAPlus, a new stage": (CODAPlus(**LOCAL, T=2), Game, D, D + X, 1, K),
    "CODASCA, a new stage": (CODASCA(**LOCAL, T=2), Game, 2 * D, 2 * D + X, 1, K),
    # A full gradient of a client is one call.
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
    # The paper counts one number for a loss; a message has all coordinates of y.
    "DRFA": (DRFA(tau=K, eta=0.01, gamma=0.01), LogCosh, 2 * X + CLIENTS, 2 * X + CLIENTS, 2, K + 1),
    "AFL": (AFL(gamma_x=0.01, gamma_y=0.01), Game, D, D, 1, 1),  # a mixture sends all coordinates of y
    "LocalAMSGrad": (LocalAMSGrad(**CDMA), Game, 2 * D, 2 * D, 2, K),  # points and second moments
    "FedVARP": (FedVARP(**LOCAL), Game, D, D, 1, K),
    "MIFA": (MIFA(**LOCAL), Game, D, D, 1, K),
    "FATClipping": (FATClipping(lam=0.5, **GLOBAL), Game, D, D, 1, K),
    "Bi2Clip": (Bi2Clip(u=0.5, u_g=0.1, **LOCAL), Half, X, X, 1, K),
    "LocalAdaSEG": (LocalAdaSEG(K=K, G_0=1.0, D=0.1), Game, D + 1, D, 1, 2 * K),
    "ProxSkipVIPFL": (ProxSkipVIPFL(**SKIP), Game, D, D, 1, K),
    # Per step ∇f, ∇_y g and a pair of products.
    "SimFBO": (SimFBO(tau=K, **ALL_RATES), Levels, LX + 2 * LY, LX + 2 * LY, 1, 3 * K),
    "ShroFBO": (ShroFBO(tau=K, **ALL_RATES), Levels, LX + 2 * LY, LX + 2 * LY, 1, 3 * K),
    "FedNestBilevel": (
        FedNestBilevel(T=2, J=2, ell=0.1, **NEST), Levels, 7 * LY + 2 * LX, 7 * LY + 2 * LX, 9,
        2 * (1 + 2 * K) + 3 + 2 * (1 + 2 * K),
    ),
    "LFedNestBilevel": (
        LFedNestBilevel(T=2, J=2, ell=0.1, **NEST), Levels, 2 * LY + LX, 2 * LY + LX, 3, 4 * K + 3,
    ),
    # 2 of 5 values of 8 bytes with their indices of 4 bytes take 3 elements. F is known without
    # an exchange in round 2.
    "MASHA1, no exchange": (MASHA1(tau=0.999, **MASHA), Game, 3, 3, 1, 1),
    "MASHA1, exchanges": (MASHA1(tau=0, **MASHA), Game, 3 + D, 3 + D, 2, 2),
    "MASHA1, not compressed": (MASHA1(tau=0.999, gamma=0.01), Game, D, D, 1, 1),
    "MASHA2, no exchange": (MASHA2(tau=0.999, **MASHA), Game, 3, 3, 1, 1),
    "MASHA2, exchanges": (MASHA2(tau=0, **MASHA), Game, 3 + D, 3 + D, 2, 2),
    # A new reference point in every step.
    "ProxSkipLSVRGDAFL": (ProxSkipLSVRGDAFL(**SKIP, q=1.0), Game, D, D, 1, 3 * K),
}  # fmt: skip


def third_round(config) -> list[int]:
    """Bytes up and down, phases and calls of the third round."""
    simulation, totals = Simulation.from_settings(config, SerialComm()), []
    simulation.start()
    for _ in range(3):
        simulation.step()
        costs = simulation.rounds.costs
        totals.append((costs.bytes_up, costs.bytes_down, costs.phases, costs.oracle_calls))
    return [after - before for before, after in zip(*totals[1:])]


@pytest.mark.parametrize("group", [1, 2, "all"])
@pytest.mark.parametrize("name", COSTS)
def test_a_steady_round(tmp_path, name, group):
    method, problem, up, down, phases, calls = COSTS[name]
    config = configuration(method, problem(clients=CLIENTS), tmp_path, group=group)
    item = 8 * CLIENTS  # bytes of a float64 from or to every client
    assert third_round(config) == [up * item, down * item, phases, calls * CLIENTS]


@pytest.mark.parametrize("name", COSTS)
def test_calls_per_local_step(name):
    """Other calls of a round, fewer than its steps here, do not count. Methods with several kinds of local
    steps are left out."""
    method, *_, calls = COSTS[name]
    if not name.startswith(("FedNest", "LFedNest", "LocalMOML", "ProxSkipLSVRGDAFL", "SmoothedGDA", "MASHA")):
        if isinstance(getattr(method, "tau", 0), tuple):
            calls *= 2  # the largest number of local steps is twice the mean
        assert calls // local_steps(method) == method.calls_per_step


def test_all_methods_have_costs():
    assert set(ALGORITHMS) <= {name.split(",")[0].split(" ")[0] for name in COSTS}


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
    method, problem, up, _, phases, calls = COSTS[name]
    for fresh, expected in ((False, down), (True, fresh_down)):
        if expected is not None:
            made = dataclasses.replace(method, fresh_cohort=True) if fresh else method
            config = configuration(made, problem(clients=CLIENTS), tmp_path, cohort=2)
            assert third_round(config) == [2 * 8 * up, 2 * 8 * expected, phases, 2 * calls]


def test_costs_start_at_zero_and_the_blocks_have_different_sizes():
    assert {type(value) for value in vars(Costs()).values()} == {int, float}
    assert not any(vars(Costs()).values()) and len({X, Y, P * X, D}) == 4


@pytest.mark.parametrize("name", ["FGDA stem", "STEM", "MFCGD"])
def test_identity_matrices_are_not_sent(tmp_path, name):
    """The start sends the estimators, and round 1 the averages of the blocks alone."""
    method, problem, *_ = COSTS[name]
    simulation = Simulation.from_settings(configuration(method, problem(clients=1), tmp_path), SerialComm())
    simulation.start()
    simulation.step()
    read = {"FGDA stem": D, "STEM": 2 * X, "MFCGD": X}[name]  # STEM also starts from the averaged estimators
    assert simulation.rounds.costs.bytes_down == 8 * read
