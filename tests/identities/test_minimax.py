"""Minimax methods that coincide by theory, compared with each other, and known solutions.

These tests find errors that a method shares with its reference, such as a misread line of the paper.
Identities of the plain loops themselves are in ``tests/reference``.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from baselines import Half
from games import DX, DY, Game, completed, configuration
from identity_games import (
    NOISE,
    ROUNDING,
    VISIBLE,
    Affine,
    distance,
    path,
)

from mpifed.algorithms import (
    CDMAADA,
    CDMANC,
    CDMAONE,
    CODASCA,
    FESSGDA,
    FGDA,
    FSGDA,
    MIFA,
    SAGDA,
    SCAFFOLD,
    Bi2Clip,
    ExtraStepLocalSGD,
    FATClipping,
    FedAvg,
    FedGDAGT,
    FedNest,
    FedNormSGDA,
    FedNormSGDAPlus,
    FedProx,
    FedSGDAM,
    FedSGDAPlus,
    FedVARP,
    KGTMinimax,
    LFedNest,
    LocalAdaSEG,
    LocalSGDA,
    LocalSGDAPlus,
    ProxSkipLSVRGDAFL,
    ProxSkipVIPFL,
)
from mpifed.base.settings import title

K, ETA = 3, 0.04
RATES = dict(eta_x=0.05, eta_y=0.04)
STEPS = dict(K=K, **RATES)
GLOBAL = dict(K=K, eta_xl=0.05, eta_yl=0.04, eta_xg=1.3, eta_yg=0.9)
EQUAL = dict(K=K, eta_xl=ETA, eta_yl=ETA, eta_xg=0.8, eta_yg=0.8)
ONE_STAGE = dict(K=K, eta=ETA, T=999, prox=0.0)
NEST = dict(T=2, tau=3, alpha=0.05, beta=0.04)
LOCAL = LocalSGDA(q=K, **RATES)
#: Weights by samples with all clients, and cohorts of two.
WEIGHTED, SAMPLED = ({"weights": "samples"},), ({"weights": "samples"}, {"cohort": 2})
EXACT = {"noise": None, "batch_size": 0}


@dataclass
class Identity:
    """``equal`` methods have the iterates of ``method`` in each of ``runs``, ``unequal`` ones do not.

    Attributes:
        right: settings of the runs of ``method`` where they differ from the others'.
    """

    equal: list
    method: Any
    unequal: list = field(default_factory=list)
    runs: tuple = WEIGHTED
    problem: Any = field(default_factory=Game)
    left: dict = field(default_factory=dict)
    right: dict = field(default_factory=dict)


STORED = SAGDA(**EQUAL, variates="stored")
IDENTITIES = {
    "FSGDA": Identity(
        [FedNormSGDA(tau=K, **RATES, gamma_x=1.3 * 0.05, gamma_y=0.9 * 0.04)],
        FSGDA(**GLOBAL),
        [FESSGDA(**GLOBAL, p=2.0, beta=0.4)],
        SAMPLED,
        Game(clients=5),
    ),
    "Local-SGDA": Identity(
        [
            CDMANC(**STEPS),
            FedNormSGDA(tau=K, **RATES, gamma_x=0.05, gamma_y=0.04),
            FedNormSGDA(tau=K, eta_x=0.05 / 0.2, eta_y=0.04 / 0.2, gamma_x=0.05, gamma_y=0.04, a=(0.2,) * K),
        ],
        LOCAL,
        [CDMAONE(**STEPS)],
        SAMPLED,
        Game(clients=5),
    ),
    "FedGDA-GT is CDMA-ONE without noise": Identity(
        [FedGDAGT(K=K, eta_xl=ETA, eta_yl=ETA)],
        CDMAONE(K=K, eta_x=ETA, eta_y=ETA),
        [FedGDAGT(K=1, eta_xl=ETA, eta_yl=ETA), SAGDA(**EQUAL), STORED],
        ({}, {"cohort": 2}),
        Game(clients=5),
        right=EXACT,
    ),
    "SAGDA with stored variates, one local step": Identity(
        [SAGDA(**GLOBAL | {"K": 1}, variates="stored"), KGTMinimax(**GLOBAL | {"K": 1})],
        FSGDA(**GLOBAL | {"K": 1}),
        [SAGDA(**GLOBAL)],
    ),
    "FedSGDA-M in the stem order": Identity(
        [FedSGDAM(Q=K, alpha=0.5, beta=0.3, average_start=False, **RATES)],
        FGDA(q=K, gamma=0.05, lam=0.04, eta=1.0, alpha=0.3, beta=0.5),  # α and β are exchanged
        [FedSGDAM(Q=K, alpha=0.5, beta=0.3, average_start=False, order="after", **RATES)],
        left=EXACT,
        right=EXACT,
    ),
    "FedSGDA+": Identity(
        [FedNormSGDAPlus(tau=K, S=2, **RATES, gamma_x=1.3 * 0.05, gamma_y=0.9 * 0.04)],
        FedSGDAPlus(K=K, S=2, **RATES, gamma_x=1.3, gamma_y=0.9),
        runs=SAMPLED,
        problem=Game(clients=5),
    ),
    "Local-SGDA+": Identity(
        [FedSGDAPlus(K=K, S=2, **RATES)],
        LocalSGDAPlus(q=K, S=2 * K, **RATES),
        [LocalSGDAPlus(q=K, S=K, **RATES), LOCAL],
    ),
    "SCAFFOLD in both blocks": Identity(
        [STORED, CODASCA(**ONE_STAGE, eta_g=0.8)],
        SCAFFOLD(K=K, eta_l=ETA, eta_g=0.8),
        [KGTMinimax(**EQUAL), CODASCA(**ONE_STAGE | {"prox": 1.3}, eta_g=0.8)],
        SAMPLED,
    ),
    "FedProx without proximal term": Identity(
        [FedProx(K=K, eta=ETA, mu=0.0, eta_g=0.8)],
        FSGDA(**EQUAL),
        [FedProx(K=K, eta=ETA, mu=0.5, eta_g=0.8)],
        SAMPLED,
        Game(clients=5),
    ),
    "FAT-Clipping that clips nothing": Identity(
        [
            FATClipping(**GLOBAL, lam=lam, per=per)
            for per in ("iteration", "round")
            for lam in (1e9, math.inf)
        ],
        FSGDA(**GLOBAL),
        [FATClipping(**GLOBAL, lam=1.0, per=per) for per in ("iteration", "round")],
        SAMPLED,
        Game(clients=5),
    ),
    "FAT-Clipping of one local step": Identity(
        [FATClipping(**GLOBAL | {"K": 1}, lam=1.0, per="round")],
        FATClipping(**GLOBAL | {"K": 1}, lam=1.0),
        runs=SAMPLED,
        problem=Game(clients=5),
    ),
    "Bi²Clip without bounds": Identity(
        [Bi2Clip(K=K, eta=ETA, u=float("inf"), u_g=float("inf"), eta_g=0.8)],
        FedAvg(K=K, eta=ETA, eta_g=0.8),
        [
            Bi2Clip(K=K, eta=ETA, u=0.5, u_g=float("inf"), eta_g=0.8),
            Bi2Clip(K=K, eta=ETA, u=float("inf"), u_g=0.02, eta_g=0.8),
            Bi2Clip(K=K, eta=ETA, u=9.0, d=1.5, u_g=9.0, eta_g=0.8),
        ],
        SAMPLED,
        Half(),
    ),
    "FedVARP and MIFA with all clients": Identity(
        [FedVARP(K=K, eta=ETA), MIFA(K=K, eta=ETA), MIFA(K=K, eta=ETA, initial_memory="zero")],
        FSGDA(**EQUAL | dict(eta_xg=1.0, eta_yg=1.0)),
        [FedVARP(K=K, eta=ETA, eta_g=0.8)],
    ),
    "ProxSkip-VIP-FL with a fixed period": Identity(
        [ProxSkipVIPFL(gamma=ETA, p=1 / K, period="fixed")],
        SCAFFOLD(K=K, eta_l=ETA),
        [ProxSkipVIPFL(gamma=ETA, p=1 / K), LocalSGDA(q=K, eta_x=ETA, eta_y=ETA)],
        ({}, {"weights": "samples"}),
    ),
    "ProxSkip-VIP-FL with p = 1": Identity(
        [ProxSkipVIPFL(gamma=ETA, p=1.0)],
        LocalSGDA(q=1, eta_x=ETA, eta_y=ETA),
        [ProxSkipVIPFL(gamma=ETA, p=0.4)],
    ),
    "ProxSkip-L-SVRGDA-FL without noise": Identity(
        [ProxSkipLSVRGDAFL(gamma=ETA, p=0.4, q=0.3)],
        ProxSkipVIPFL(gamma=ETA, p=0.4),
        [ProxSkipLSVRGDAFL(gamma=ETA, p=0.4, q=0.3, large_batch=2)],
        left=EXACT,
        right=EXACT,
    ),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_methods_coincide(name):
    case = IDENTITIES[name]
    for run in case.runs:
        settings = {"noise": NOISE, "batch_size": 2} | run
        right = path(case.method, case.problem, **settings | case.right)
        for methods, near in ((case.equal, True), (case.unequal, False)):
            for method in methods:
                gap = distance(path(method, case.problem, **settings | case.left), right)
                assert gap < ROUNDING if near else gap > VISIBLE, (run, method, gap)


def gradients_at_the_saddle(game) -> list[torch.Tensor]:
    """Return the clients' gradients of x and those of y, ``[clients, d]``."""
    x, y = game.saddle().split((DX, DY))
    batches = [[column[None] for column in game.client_data(k)] for k in range(game.clients)]
    return [torch.cat(own) for own in zip(*(game.gradients(x, y, batch) for batch in batches))]


#: The affine game whose clients have different Jacobians, started at its saddle point.
AT_SADDLE = dict(common=False, at_saddle=True)


@pytest.mark.parametrize(
    "method",
    [
        CDMAONE(**STEPS),
        CDMAADA(**STEPS),
        FedNest(**NEST),
        SAGDA(**GLOBAL),
        FedGDAGT(K=K, eta_xl=0.05, eta_yl=0.04),
    ],
    ids=title,
)
def test_corrected_methods_stay_at_the_saddle_point(method):
    """With all clients; the corrections of a cohort do not average to 0, and uncorrected clients leave the
    point."""

    def moved(one, **settings):
        game = Affine(**AT_SADDLE)
        found = path(one, game, **EXACT, **settings)
        return np.abs(found - game.saddle().numpy()).max()

    assert moved(method) < ROUNDING
    assert moved(method, cohort=2) > VISIBLE
    for other in (LOCAL, CDMANC(**STEPS), LFedNest(**NEST), SAGDA(**GLOBAL, variates="stored")):
        assert moved(other) > VISIBLE


@pytest.mark.parametrize(
    "method",
    [
        STORED,
        KGTMinimax(**EQUAL),
        *(SCAFFOLD(K=K, eta_l=ETA, option=one) for one in ("II", "I")),
        CODASCA(**ONE_STAGE),
    ],
    ids=["SAGDA", "K-GT-Minimax", "II", "I", "CODASCA"],
)
@pytest.mark.parametrize("cohort", [None, 2])
def test_stored_variates_converge_to_the_saddle_and_to_the_clients_gradients(method, cohort):
    config = configuration(
        method, Affine(**AT_SADDLE), "unused", rounds=200, batch_size=0, noise=None, cohort=cohort
    )
    simulation = completed(config)
    # Rounding of some hundred contracting rounds on numbers of about 1; variates divide it by ηK = 0.1.
    torch.testing.assert_close(simulation.point(), simulation.problem.saddle(), rtol=0, atol=1e-11)
    variates = simulation.clients.cx, simulation.clients.cy
    for own, gradients in zip(variates, gradients_at_the_saddle(simulation.problem)):
        torch.testing.assert_close(own, gradients, rtol=0, atol=1e-9)
        assert gradients.norm(dim=1).min() > VISIBLE


@pytest.mark.parametrize("per", ["iteration", "round"])
def test_fat_clipping_bounds_the_steps(per):
    tiny = 0.01  # below every norm
    points = path(FATClipping(**GLOBAL, lam=tiny, per=per), Game(), cohort=1)
    steps = np.linalg.norm(np.diff(points[:, :DX], axis=0), axis=1)
    bound = 1.3 * 0.05 * tiny * (K if per == "iteration" else 1)
    assert (steps <= bound * (1 + ROUNDING)).all() and (steps > 0.9 * bound).all()


def test_localadaseg_with_a_large_guess_is_extra_step_local_sgd():
    """With D α / G_0 = η, the step sizes are η up to O(1 / G_0²)."""
    right = path(ExtraStepLocalSGD(K=K, eta=ETA), Game())
    gaps = [distance(path(LocalAdaSEG(K=K, G_0=G, D=ETA * G), Game()), right) for G in (1.0, 1e2, 1e3)]
    assert gaps[0] > VISIBLE and gaps[2] == pytest.approx(gaps[1] / 100, rel=0.05)


def test_bi2clip_with_equal_bounds_moves_all_coordinates_by_equal_steps_and_never_settles():
    def steps(**bounds):
        method = Bi2Clip(K=K, eta=ETA, eta_g=0.5, **{"u": 100.0, "u_g": 100.0} | bounds)
        return np.abs(np.diff(path(method, Half(), rounds=300, **EXACT), axis=0))

    np.testing.assert_allclose(steps(u_g=0.04, d_g=0.04), 0.02, rtol=1e-10)  # rounding of the points
    assert steps()[-1].max() < ROUNDING
    with pytest.raises(ValueError, match="d_g: expected at most the upper bound 0.1, got 0.2"):
        steps(u_g=0.1, d_g=0.2)
    assert steps(d=0.2)[-20:].max() > VISIBLE and steps(d_g=0.02)[-20:].min() > VISIBLE


@pytest.mark.parametrize("steps", [1, K])
@pytest.mark.parametrize("cls, start", [(FedVARP, {}), (MIFA, {}), (MIFA, {"initial_memory": "zero"})])
def test_memories_remove_the_variance_of_cohorts_and_not_the_drift(cls, start, steps):
    """With cohorts, the limit is that of FSGDA with all clients: for one local step, the saddle point."""
    game, local = Affine(common=False), dict(K=steps, eta_xl=0.02, eta_yl=0.02)
    run = EXACT | dict(rounds=1000)
    limit = path(FSGDA(**local), game, **run)[-1]
    found = path(cls(K=steps, eta=0.02, **start), game, cohort=2, **run)
    assert np.abs(found[-1] - limit).max() < 1e-11  # rounding of contracting rounds
    assert np.ptp(path(FSGDA(**local), game, cohort=2, **run)[-50:], axis=0).max() > VISIBLE
    gap = np.abs(limit - game.saddle().numpy()).max()
    assert gap < 1e-11 if steps == 1 else gap > VISIBLE


@pytest.mark.parametrize(
    "method, batch_size, exact",
    [
        (ProxSkipVIPFL(gamma=ETA, p=0.3), 0, True),
        (ProxSkipLSVRGDAFL(gamma=ETA, p=0.3), 1, True),
        (ProxSkipVIPFL(gamma=ETA, p=0.3), 1, False),
    ],
    ids=["all rows", "variance-reduced rows", "rows"],
)
def test_proxskip_converges_to_the_saddle_and_to_the_clients_operators(method, batch_size, exact):
    """Plain estimates on single rows keep their noise."""
    settings = dict(rounds=300, batch_size=batch_size, noise=None, sections={"record": ()})
    simulation = completed(configuration(method, Affine(common=False), "unused", **settings))
    game = simulation.problem.problem
    gap = float((simulation.point() - game.saddle()).abs().max())
    assert gap < 1e-11 if exact else gap > 10 * VISIBLE  # rounding, as for the variates above
    if exact:
        gx, gy = gradients_at_the_saddle(game)
        torch.testing.assert_close(simulation.clients.h, torch.cat([gx, -gy], dim=1), rtol=0, atol=1e-9)
