"""Minimax methods that coincide by theory, compared with each other, and closed forms.

These tests find errors that a method shares with its reference, such as a misread line of the paper.
Identities of the plain loops themselves are in ``tests/reference``.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from baselines import FIXED, Half
from games import DX, DY, Game, completed, configuration, simulated, start_of
from identity_games import (
    NOISE,
    ROUNDING,
    VISIBLE,
    Affine,
    Scaled,
    Started,
    Swapped,
    Timed,
    distance,
    path,
)

from mpifed import Blocks
from mpifed.algorithms import (
    CDMAADA,
    CDMANC,
    CDMAONE,
    CODASCA,
    FESSGDA,
    FGDA,
    FLRA,
    FSGDA,
    MIFA,
    SAGDA,
    SCAFFOLD,
    Bi2Clip,
    CODAPlus,
    ExtraStepLocalSGD,
    FATClipping,
    FedAvg,
    FedGDAGT,
    FedNest,
    FedNormSGDA,
    FedNormSGDAPlus,
    FedProx,
    FedSGDAClip,
    FedSGDAM,
    FedSGDAPlus,
    FedVARP,
    KGTMinimax,
    LFedNest,
    LocalAdaSEG,
    LocalAMSGrad,
    LocalSGDA,
    LocalSGDAPlus,
    MomentumLocalSGDA,
    ProxSkipLSVRGDAFL,
    ProxSkipVIPFL,
    SmoothedGDA,
)
from mpifed.base.settings import title
from mpifed.core.noise import Gaussian
from mpifed.core.streams import generator

K, ETA = 3, 0.04
RATES = dict(eta_x=0.05, eta_y=0.04)
STEPS = dict(K=K, **RATES)
GLOBAL = dict(K=K, eta_xl=0.05, eta_yl=0.04, eta_xg=1.3, eta_yg=0.9)
UNIT = GLOBAL | dict(eta_xg=1.0, eta_yg=1.0)
EQUAL = dict(K=K, eta_xl=ETA, eta_yl=ETA, eta_xg=0.8, eta_yg=0.8)
STAGES = dict(K=K, eta=0.1, T=2, growth=2, prox=1.3)
ONE_STAGE = dict(K=K, eta=ETA, T=999, prox=0.0)
NEST = dict(T=2, tau=3, alpha=0.05, beta=0.04)
READINGS = ["stem", "local", "mean_after"]
LOCAL = LocalSGDA(q=K, **RATES)
LOCAL_FGDA = LocalSGDA(q=K, eta_x=0.9 * 0.05, eta_y=0.9 * 0.04)
#: Weights by samples with all clients, and cohorts of two.
WEIGHTED, SAMPLED = ({"weights": "samples"},), ({"weights": "samples"}, {"cohort": 2})
EXACT = {"noise": None, "batch_size": 0}


def fgda(**settings):
    common = dict(q=K, gamma=0.05, lam=0.04, eta=0.9, alpha=0.3, beta=0.5)
    return FGDA(**common | settings)


def timed(offset=0, q=K):
    return Timed(scale=0.3, q=q, offset=offset)


@dataclass
class Identical(Game):
    """The game with the data of the first client at all clients."""

    def prepare(self, seed, data_dir=None):
        super().prepare(seed)
        self.h, self.C, self.rows = ([part[0]] * self.clients for part in (self.h, self.C, self.rows))


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
CLIP_NOTHING = FedSGDAClip(
    p=K, **RATES, gamma_x=1.3 * 0.05 * K, gamma_y=0.9 * 0.04 * K, beta_x=1.0, beta_y=1.0, tau=math.inf
)
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
            FedNormSGDA(tau=(K,) * 5, **RATES, gamma_x=0.05, gamma_y=0.04),
            # v never exceeds ε.
            LocalAMSGrad(K=K, eta_x=50.0, eta_y=40.0, beta_1=0.0, epsilon=1e6),
            FedNormSGDA(tau=K, eta_x=0.05 / 0.2, eta_y=0.04 / 0.2, gamma_x=0.05, gamma_y=0.04, a=(0.2,) * K),
        ],
        LOCAL,
        [FSGDA(**UNIT | {"eta_yg": 0.7}), CDMAONE(**STEPS), LocalAMSGrad(**STEPS, beta_1=0.0, epsilon=0.5)],
        problem=Game(clients=5),
    ),
    "Local-SGDA with a cohort": Identity(
        [CDMANC(**STEPS), FedNormSGDA(tau=K, **RATES, gamma_x=0.05, gamma_y=0.04)],
        LOCAL,
        runs=({"cohort": 2},),
        problem=Game(clients=5),
    ),
    "Local-SGDA+ with a snapshot per step": Identity(
        [LocalSGDAPlus(q=1, S=1, **RATES)], LocalSGDA(q=1, **RATES), [LocalSGDAPlus(q=1, S=2, **RATES)]
    ),
    "one step of CDMA-ONE is exact": Identity(
        [CDMAONE(K=1, **RATES)],
        LocalSGDA(q=1, **RATES),
        [CDMANC(K=1, **RATES), CDMAONE(K=1, **RATES, large_batch=2), CDMAONE(**STEPS)],
        ({},),
        right=EXACT,
    ),
    "FedGDA-GT is CDMA-ONE without noise": Identity(
        [FedGDAGT(K=K, eta_xl=ETA, eta_yl=ETA)],
        CDMAONE(K=K, eta_x=ETA, eta_y=ETA),
        [FedGDAGT(K=1, eta_xl=ETA, eta_yl=ETA), SAGDA(**UNIT), STORED],
        ({}, {"cohort": 2}),
        Game(clients=5),
        right=EXACT,
    ),
    "one step of FedGDA-GT is gradient descent ascent": Identity(
        [FedGDAGT(K=1, eta_xl=0.05, eta_yl=0.04)], LocalSGDA(q=1, **RATES), runs=({},), right=EXACT
    ),
    "CDMA-ADA with all clients is CDMA-ONE": Identity(
        [CDMAADA(**STEPS, alpha=0.9, b=1.0, a=0.0), CDMAADA(**STEPS, alpha=5.0, b=0.5, a=0.0)],
        CDMAONE(**STEPS),
        [CDMAADA(**STEPS, alpha=0.9, b=1.0, a=0.3)],
        ({},),
    ),
    "CDMA-ADA without memory is CDMA-ONE": Identity(
        [CDMAADA(**STEPS, alpha=1.0, a=0.0)],
        CDMAONE(**STEPS),
        [CDMAADA(**STEPS, alpha=0.3, a=0.0, b=0.0)],
        ({"cohort": 2},),
        Game(clients=5),
    ),
    "SAGDA with fresh variates, one local step": Identity(
        [SAGDA(**GLOBAL | {"K": 1})],
        FSGDA(**GLOBAL | {"K": 1}),
        runs=SAMPLED,
        left={"noise": timed(-1, 1), "batch_size": 0},
        right={"noise": timed(0, 1), "batch_size": 0},
    ),
    "SAGDA with stored variates, one local step": Identity(
        [SAGDA(**GLOBAL | {"K": 1}, variates="stored"), KGTMinimax(**GLOBAL | {"K": 1})],
        FSGDA(**GLOBAL | {"K": 1}),
        [SAGDA(**GLOBAL)],
    ),
    "FedSGDA-M in the stem order": Identity(
        [FedSGDAM(Q=K, alpha=0.5, beta=0.3, average_start=False, **RATES)],
        fgda(eta=1.0, alpha=0.3, beta=0.5),  # α and β are exchanged
        [FedSGDAM(Q=K, alpha=0.5, beta=0.3, average_start=False, order="after", **RATES)],
        left={"noise": timed(1), "batch_size": 0},
        right={"noise": timed(), "batch_size": 0},
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
    "clipping nothing without momentum": Identity(
        [CLIP_NOTHING], SAGDA(**GLOBAL, variates="stored"), [SAGDA(**GLOBAL)], ({},)
    ),
    "SCAFFOLD in both blocks": Identity(
        [STORED, CODASCA(**ONE_STAGE, eta_g=0.8)],
        SCAFFOLD(K=K, eta_l=ETA, eta_g=0.8),
        [
            SCAFFOLD(K=K, eta_l=ETA, eta_g=0.8, option="I"),
            KGTMinimax(**EQUAL),
            CODASCA(**ONE_STAGE | {"prox": 1.3}, eta_g=0.8),
            CODASCA(**ONE_STAGE | {"T": 1}, eta_g=0.8),
        ],
        ({"weights": "samples"}, {"cohort": 2}, {"cohort": 2, "weights": "samples"}),
    ),
    "SCAFFOLD without y": Identity(
        [SAGDA(**EQUAL | dict(eta_yl=0.7, eta_yg=0.3), variates="stored")],
        SCAFFOLD(K=K, eta_l=ETA, eta_g=0.8),
        [FedAvg(K=K, eta=ETA, eta_g=0.8)],
        SAMPLED,
        Half(),
    ),
    "FedAvg": Identity([FSGDA(**EQUAL)], FedAvg(K=K, eta=ETA, eta_g=0.8), runs=SAMPLED, problem=Half()),
    "servers of FedAvg": Identity(
        [
            FedAvg(K=K, eta=ETA, server={"name": "momentum", "beta": 0.0}),
            # With τ far above all displacements, √v + τ is 2τ up to 1 / τ².
            FedAvg(K=K, eta=ETA, eta_g=2e6, server={"name": "adagrad", "tau": 1e6}),
        ],
        FedAvg(K=K, eta=ETA),
        problem=Half(),
    ),
    "CODA+ in one stage": Identity(
        [CODAPlus(**ONE_STAGE)],
        LocalSGDA(q=K, eta_x=ETA, eta_y=ETA),
        [CODAPlus(**ONE_STAGE | {"prox": 1.3}), CODAPlus(**ONE_STAGE | {"T": 1})],
        ({},),
    ),
    "CODASCA with one local step": Identity(
        [CODASCA(**STAGES | {"K": 1})], CODAPlus(**STAGES | {"K": 1}), [CODASCA(**STAGES)], ({},)
    ),
    "FedProx without proximal term": Identity(
        [FedProx(K=K, eta=ETA, mu=0.0, eta_g=0.8)],
        FSGDA(**EQUAL),
        [FedProx(K=K, eta=ETA, mu=0.5, eta_g=0.8)],
        SAMPLED,
        Game(clients=5),
    ),
    "FedProx without proximal term and server step": Identity(
        [FedProx(K=K, eta=ETA, mu=0.0)],
        LocalSGDA(q=K, eta_x=ETA, eta_y=ETA),
        [FedProx(K=K, eta=ETA)],
    ),
    "FedProx with one local step": Identity(
        [FedProx(K=1, eta=ETA, mu=9.0, eta_g=0.8)],
        FSGDA(**EQUAL | {"K": 1}),
        runs=SAMPLED,
        problem=Game(clients=5),
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
    "FAT-Clipping per iteration": Identity(
        [],
        FATClipping(**GLOBAL, lam=1.0),
        [FATClipping(**GLOBAL, lam=1.0, per="round"), FATClipping(**GLOBAL, lam=3.0, per="round")],
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
    "the first round of FedVARP": Identity(
        [FedVARP(K=K, eta=ETA, eta_g=0.8)],
        FSGDA(**EQUAL),
        [MIFA(K=K, eta=ETA)],
        ({"cohort": 2, "rounds": 1},),
    ),
    "ProxSkip-VIP-FL with a fixed period": Identity(
        [ProxSkipVIPFL(gamma=ETA, p=1 / K, period="fixed")],
        SCAFFOLD(K=K, eta_l=ETA),
        [ProxSkipVIPFL(gamma=ETA, p=1 / K), LocalSGDA(q=K, eta_x=ETA, eta_y=ETA)],
        ({}, {"weights": "samples"}),
    ),
    "Scaffnew with a fixed period": Identity(
        [ProxSkipVIPFL(gamma=ETA, p=1 / K, period="fixed")], SCAFFOLD(K=K, eta_l=ETA), problem=Half()
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
    "FedNest on identical clients": Identity(
        [FedNest(**NEST)], LFedNest(**NEST), [FedNest(**NEST | {"T": 1})], ({},), Identical(), EXACT, EXACT
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


def local_sgda_averaging_after(averages, method, noise, rounds) -> np.ndarray:
    """Return the clients' mean points after K, 2K, ... steps of a Local-SGDA that averages after other
    steps."""
    game, done, points = Game(), 0, []

    def run(steps):
        return path(method(steps), game, rounds=1, batch_size=0, noise=noise(done, steps))[0]

    for until in sorted({*averages, *range(K, rounds * K + 1, K)}):
        if until % K == 0:
            points.append(run(until - done))
        if until in averages:
            game, done = Started(start=tuple(run(until - done))), until
    return np.array(points)


def momentum(**settings):
    """Momentum-Local-SGDA with βα = 1 and the steps of ``RATES``."""
    return MomentumLocalSGDA(q=K, eta_x=0.1, eta_y=0.08, alpha=0.5, beta_x=2.0, beta_y=2.0, **settings)


ENDS, LATE = [3, 6, 9], [4, 7, 10]
#: Method with fresh gradients → the steps after which a Local-SGDA with the same means averages.
AVERAGED_AFTER = {
    "FGDA, mean_after": (
        fgda(alpha=1.0, beta=1.0, sync_estimator="mean_after"),
        sorted(ENDS + LATE),
        0,
        0.9,
    ),
    "Momentum-Local-SGDA": (momentum(), LATE, 1, 1.0),
    "Momentum-Local-SGDA, averaged start": (momentum(average_start=True), [1, *LATE], 1, 1.0),
    "FedSGDA-M, stem": (
        FedSGDAM(Q=K, alpha=1.0, beta=1.0, average_start=False, **RATES),
        ENDS,
        1,
        1.0,
    ),
    "FedSGDA-M, averaged start": (FedSGDAM(Q=K, alpha=1.0, beta=1.0, **RATES), [1, *ENDS], 1, 1.0),
    "FedSGDA-M, after": (
        FedSGDAM(Q=K, alpha=1.0, beta=1.0, order="after", **RATES),
        [1, *LATE],
        1,
        1.0,
    ),
}


@pytest.mark.parametrize("name", AVERAGED_AFTER)
def test_fresh_gradients_make_a_local_sgda_with_shifted_averages(name):
    """The gradient of a step was taken before the average that the step follows."""
    method, averages, offset, eta = AVERAGED_AFTER[name]

    def local(steps):
        return LocalSGDA(q=steps, eta_x=eta * 0.05, eta_y=eta * 0.04)

    left = path(method, Game(), batch_size=0, noise=timed(offset))
    right = local_sgda_averaging_after(averages, local, lambda done, steps: timed(done, steps), 4)
    assert distance(left, right) < ROUNDING
    gap = distance(left, path(local(K), Game(), batch_size=0, noise=timed()))
    assert gap < ROUNDING if averages == ENDS else gap > VISIBLE


@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize(
    "method", [LOCAL_FGDA, *(fgda(sync_estimator=sync) for sync in READINGS)], ids=["", *READINGS]
)
def test_a_common_jacobian_makes_gda_on_the_mean_field(method, weights):
    """Means commute with affine maps of one Jacobian: K steps of gradient descent ascent per round."""
    pooled = Affine(pooled=weights)
    pooled.prepare(1)
    point, row = pooled.initial(generator(1, "initial")), pooled.rows[0][0]
    x, y, iterates = point["x"], point["y"], []
    for _ in range(6 * K):
        gx, gy = pooled.H @ x + pooled.C @ y + row[:DX], pooled.C.T @ x - pooled.G @ y + row[DX:]
        x, y = x - 0.9 * 0.05 * gx, y + 0.9 * 0.04 * gy
        iterates.append(torch.cat([x, y]).numpy())
    settings = EXACT | dict(rounds=6, weights=weights)
    expected = np.array(iterates)[K - 1 :: K]
    assert distance(path(method, Affine(), **settings), expected) < ROUNDING
    assert distance(path(method, Affine(common=False), **settings), expected) > VISIBLE


@pytest.mark.parametrize("cls", [FedNest, LFedNest])
def test_single_calls_of_single_steps_are_alternating_descent_ascent(cls):
    """y steps first, so the game with exchanged roles is compared, whose method steps first in its x."""
    left = path(cls(T=1, tau=1, alpha=0.05, beta=0.04), Game(), **EXACT)
    first = SmoothedGDA(eta_x=0.04, eta_y=0.05, alternating=True)
    assert distance(left, np.roll(path(first, Swapped(), **EXACT), DX, axis=1)) < ROUNDING
    assert distance(left, path(LocalSGDA(q=1, **RATES), Game(), **EXACT)) > VISIBLE


@dataclass
class Stacked(Game):
    """The game with one y per client, all stored in one block."""

    def variables(self):
        return Blocks(x=super().variables()["x"], y={"y": (self.clients, DY)})

    def initial(self, rng):
        point = super().initial(rng)
        return {"x": point["x"], "y": point["y"].repeat(self.clients)}

    def client_data(self, k):
        data = super().client_data(k)
        own = torch.zeros(len(data[0]), self.clients, dtype=torch.float64)
        own[:, k] = 1
        return *data, own

    def loss(self, x, y, batch):
        *batch, own = batch
        return super().loss(x, {"y": own[0] @ y["y"]}, batch)

    def metrics(self, x, y, predictions):
        return {}


@pytest.mark.parametrize("cohort", [None, 2])
def test_flra_is_fsgda_on_all_adversaries_as_one(cohort):
    """The global rate of y undoes the average over clients that each move their own block only."""
    clients, settings = 4, dict(cohort=cohort, batch_size=2, noise=None)
    left = path(FLRA(tau=K, eta_1=0.05, eta_2=0.04), Game(clients=clients), **settings)
    for rate, near in ((float(cohort or clients), True), (1.0, False)):
        method = FSGDA(K=K, eta_xl=0.05, eta_yl=0.04, eta_yg=rate)
        right = path(method, Stacked(clients=clients), **settings)
        right = np.hstack([right[:, :DX], right[:, DX:].reshape(-1, clients, DY).mean(1)])
        gap = distance(left, right)
        assert gap < ROUNDING if near else gap > VISIBLE


def test_flra_without_ascent_is_fedavg():
    """At the y where the game is the minimisation ``Half``."""
    start = Started(start=(*start_of(Game(), 1)[0].tolist(), *FIXED.tolist()))
    right = path(FedAvg(K=K, eta=0.05), Half(), noise=None)
    for eta_2, near in ((0.0, True), (0.1, False)):
        left = path(FLRA(tau=K, eta_1=0.05, eta_2=eta_2), start, noise=None)
        gap = distance(left[:, :DX], right)
        assert gap < ROUNDING if near else gap > VISIBLE


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
    game = simulation.problem
    x, y = game.saddle().split((DX, DY))
    batches = [game.client_data(k) for k in range(game.clients)]
    own = zip(*(game.gradients(x, y, [column[None] for column in batch]) for batch in batches))
    # Rounding of some hundred contracting rounds on numbers of about 1; variates divide it by ηK = 0.1.
    torch.testing.assert_close(simulation.point(), game.saddle(), rtol=0, atol=1e-11)
    for variates, gradients in zip((simulation.clients.cx, simulation.clients.cy), own):
        torch.testing.assert_close(variates, torch.cat(gradients), rtol=0, atol=1e-9)
        assert torch.cat(gradients).norm(dim=1).min() > VISIBLE


@pytest.mark.parametrize("per", ["iteration", "round"])
def test_fat_clipping_bounds_the_steps(per):
    """A factor 4 of f in the threshold and in 1/η changes exponents only, so not a bit changes."""
    settings = GLOBAL | dict(eta_yg=1.3)
    tiny = 0.01  # below every norm
    points = path(FATClipping(**settings, lam=tiny, per=per), Game(), cohort=1)
    steps = np.linalg.norm(np.diff(points[:, :DX], axis=0), axis=1)
    bound = 1.3 * 0.05 * tiny * (K if per == "iteration" else 1)
    assert (steps <= bound * (1 + ROUNDING)).all() and (steps > 0.9 * bound).all()
    scaled = settings | dict(eta_xl=0.05 / 4, eta_yl=0.04 / 4)
    left = path(FATClipping(**settings, lam=1.0, per=per), Game())
    right = path(
        FATClipping(**scaled, lam=4.0, per=per), Scaled(factor=4.0), noise=Gaussian(scale=4 * NOISE.scale)
    )
    assert np.array_equal(left, right)


def test_localadaseg_with_a_large_guess_is_extra_step_local_sgd():
    """With D α / G_0 = η, the step sizes are η up to O(1 / G_0²)."""
    right = path(ExtraStepLocalSGD(K=K, eta=ETA), Game())
    gaps = [distance(path(LocalAdaSEG(K=K, G_0=G, D=ETA * G), Game()), right) for G in (1.0, 1e2, 1e3)]
    assert gaps[0] > VISIBLE and gaps[2] == pytest.approx(gaps[1] / 100, rel=0.05)


def test_localadaseg_does_not_depend_on_the_scale_of_f_and_its_steps_never_grow():
    """A factor 4 changes exponents only, so not a bit changes."""
    left, right, fixed = (
        path(LocalAdaSEG(K=K, G_0=G, D=0.3), problem, noise=Gaussian(scale=scale))
        for G, problem, scale in (
            (2.0, Game(), 0.3), (8.0, Scaled(factor=4.0), 1.2), (2.0, Scaled(factor=4.0), 1.2),
        )
    )  # fmt: skip
    assert np.array_equal(left, right) and distance(left, fixed) > VISIBLE
    config = configuration(LocalAdaSEG(K=K, G_0=2.0, D=0.3), Game(), "unused")
    squares = torch.stack([simulation.clients.squares.clone() for simulation in simulated(config)])
    assert (squares.diff(dim=0) > 0).all()


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
    settings = dict(rounds=300, batch_size=batch_size, noise=None)
    simulation = completed(configuration(method, Affine(common=False), "unused", **settings))
    game, z = simulation.problem.problem, simulation.problem.problem.saddle()
    gap = float((simulation.point() - z).abs().max())
    assert gap < 1e-11 if exact else gap > 10 * VISIBLE  # rounding, as for the variates above
    if exact:
        batches = [[column[None] for column in game.client_data(k)] for k in range(game.clients)]
        gx, gy = zip(*(game.gradients(*z.split((DX, DY)), batch) for batch in batches))
        values = torch.cat([torch.cat(gx), -torch.cat(gy)], dim=1)
        torch.testing.assert_close(simulation.clients.h, values, rtol=0, atol=1e-9)
