"""Every method on a problem whose sets bind: the server's points and the outputs are in the sets.

``PROMISES`` lists the methods whose clients evaluate outside. A promised point is in its set to rounding,
any other must leave it. Without the sets all points must leave them, so that no row passes by accident.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import pytest
import torch
from bounded import Watched
from everything import method
from games import DX, configuration
from identity_games import Plain, PlainMinimisation, path
from levels import Levels

from mpifed import Config, Sets
from mpifed.algorithms import ALGORITHMS
from mpifed.base.errors import ConfigError
from mpifed.core.sets import Ball, Box, Simplex
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.simulation.simulation import Simulation

#: Largest distance of a projected point from its set: a few roundings of coordinates below 1.
ROUNDING = 1e-12
#: Least distance of a point that is not projected.
VISIBLE = 1e-3
#: The sets of x and y are of different types, so that neither can replace the other.
SETS = {
    "ball and box": (Ball(0.4), Box(-0.3, 0.2)),
    "box and simplex": (Box(-0.3, 0.2), Simplex()),
    "simplex and ball": (Simplex(), Ball(0.4)),
}


class Promise(NamedTuple):
    """A method with settings, and the blocks that are in their sets at all points where clients evaluate."""

    method: str
    settings: dict
    clients: str = "xy"


#: Readings of a synchronisation, and of the projection of y.
SYNC = ("stem", "local", "mean_after", "box")
PROJECT_Y = ("mixed", "step")
FGDA = dict(q=3, gamma=0.05, lam=0.04, eta=0.9, alpha=0.3, beta=0.4)
#: Steps that reach the border in one round, with server rates above 1.
GLOBAL = dict(K=3, eta_xl=0.05, eta_yl=0.04, eta_xg=1.4, eta_yg=1.5)
RATES = dict(eta_x=0.05, eta_y=0.04)
HEAVY = dict(p=3, eta_x=0.2, eta_y=0.15, gamma_x=1.0, gamma_y=0.9, beta_x=0.7, beta_y=0.4)
CENTRAL = RATES | dict(p=2.0, beta=0.3)
PROXIMAL = dict(K=3, eta=0.05, H=2, L=3.0)
DUAL = dict(K=3, eta=0.05)
STEPS = dict(K=3, **RATES)

#: SLIPPAX evaluates at projected points plus noise, Fed-Norm-SGDA at points that are projected at the
#: server only.
PROMISES = [
    *(
        Promise(name, FGDA | {"sync_estimator": sync, "project_y": where})
        for name in ("FGDA", "AdaFGDA")
        for sync in SYNC
        for where in PROJECT_Y
    ),
    *(
        Promise(name, HEAVY | extra | {"first_round": first})
        for name, extra in (("FedNSGDAM", {}), ("FedMuonDA", {}), ("FedSGDAClip", {"tau": 2.0}))
        for first in ("beta_one", "zero", "gradient")
    ),
    Promise("LSGD", DUAL),
    *(Promise("LESGD", DUAL | {"sync_extrapolation": sync}) for sync in (True, False)),
    Promise("LIPPAX", PROXIMAL),
    Promise("SLIPPAX", PROXIMAL | {"delta": 0.0}),
    Promise("SLIPPAX", PROXIMAL | {"delta": 0.1}, ""),
    *(
        Promise("LocalDualExtrapolation", DUAL | {"sync_extrapolation": sync, "t0_mirror": mirror})
        for sync in (True, False)
        for mirror in ("prox", "identity")
    ),
    Promise("ExtraSGD", dict(eta=0.1, b=2)),
    Promise("ExtraStepLocalSGD", DUAL),
    Promise("LocalAdaSEG", dict(K=3, G_0=1.0, D=1.0)),
    Promise("FedDualAvg", dict(K=3, eta_c=0.05, eta_s=1.4)),
    Promise("MASHA1", dict(gamma=0.3, tau=0.5, compression={"name": "rand-k", "ratio": 0.4})),
    *(Promise("FeDualEx", dict(K=3, eta_c=0.05, eta_s=1.4, shadow=shadow)) for shadow in (True, False)),
    Promise("FSGDA", GLOBAL),
    *(Promise("FedProx", dict(K=3, eta=0.05, eta_g=1.4, stragglers=share)) for share in (None, 0.5)),
    *(Promise("FATClipping", GLOBAL | {"lam": 50.0, "per": per}) for per in ("iteration", "round")),
    Promise("FESSGDA", GLOBAL | {"p": 2.0, "beta": 0.3}),
    *(Promise("SmoothedGDA", CENTRAL | {"alternating": alternating}) for alternating in (False, True)),
    Promise("SAGDA", GLOBAL | {"variates": "stored", "projection": "server"}, ""),
    *(Promise("SAGDA", GLOBAL | {"variates": variates}) for variates in ("fresh", "stored")),
    Promise("FedGDAGT", dict(K=3, eta_xl=0.05, eta_yl=0.04), ""),
    Promise("KGTMinimax", GLOBAL),
    *(Promise("SCAFFOLD", dict(K=3, eta_l=0.05, eta_g=1.4, option=option)) for option in ("II", "I_sample")),
    Promise("CODAPlus", dict(K=3, eta=0.05, T=2)),
    Promise("CODASCA", dict(K=3, eta=0.05, T=2, eta_g=1.4)),
    *(Promise(name, STEPS) for name in ("CDMANC", "CDMAONE", "CDMAADA")),
    *(Promise(name, dict(T=2, tau=2, alpha=0.05, beta=0.04)) for name in ("FedNest", "LFedNest")),
    Promise("FLRA", dict(tau=3, eta_1=0.05, eta_2=0.04)),
    Promise("LocalAMSGrad", STEPS),
    Promise("AFL", dict(gamma_x=0.2, gamma_y=0.2)),
    Promise("LocalSGDA", dict(q=3, **RATES)),
    Promise("LocalSGDAPlus", dict(q=3, S=6, **RATES)),
    *(Promise("MomentumLocalSGDA", dict(q=3, average_start=start, **RATES)) for start in (False, True)),
    Promise("MomentumLocalSGDAPlus", dict(q=3, S=6, **RATES)),
    Promise("FedSGDAPlus", dict(K=3, S=2, gamma_x=1.4, gamma_y=1.5, **RATES)),
    *(Promise("FedSGDAM", dict(Q=3, order=order, **RATES)) for order in ("stem", "after")),
    Promise("FedNormSGDA", dict(tau=3, gamma_x=0.07, gamma_y=0.06, **RATES), ""),
    Promise("FedNormSGDAPlus", dict(tau=3, S=2, gamma_x=0.07, gamma_y=0.06, **RATES), ""),
]
#: Methods whose phases share a cohort, which ``availability.unbiased`` does not allow.
DEPENDENT = ("ExtraSGD", "CDMAONE", "CDMAADA", "FedNest", "LFedNest", "FedGDAGT")
#: Methods for problems without y.
OF_X = {
    "MFCGD": dict(q=2, gamma=0.3),
    "AdaMFCGD": dict(q=2, gamma=0.3),
    "ComFedL": dict(q=2, eta=0.3),
    "LocalMOML": dict(H=2, eta=0.3, K_0=1),
    "LocalSCGD": dict(p=2, eta=0.3),
    "LocalSCGDM": dict(p=2, eta=0.3),
    "FedNestComposition": dict(T=1, tau=2, alpha=0.3, beta=0.5, recompute_jacobian=True),
    "FedAvg": dict(K=2, eta=0.3, eta_g=1.4),
    "STEM": dict(q=2, eta=0.3),
    "Bi2Clip": dict(K=2, eta=0.3, u=5.0, u_g=2.0, eta_g=1.4),
    "FedNova": dict(tau=(1, 2, 3), eta=0.3, rho=0.5, beta=0.5),
    "FedExP": dict(K=2, eta=0.3),
    "MimeLite": dict(K=2, eta=0.3, eta_g=1.4),
    "Mime": dict(K=2, eta=0.3, eta_g=1.4),
}


def outside(own, points) -> float:
    """Return the largest distance of the points ``[..., d]`` from a set, or by which they exceed a bound of
    it."""
    if isinstance(own, Ball):
        return float(points.norm(dim=-1).max()) - own.radius
    if isinstance(own, Box):
        return float(torch.maximum(own.low - points, points - own.high).max())
    return float(torch.maximum((points.sum(-1) - own.total).abs(), -points.amin(-1)).max())


def play(promise, name, bound=True, rounds=4, sections=None, **settings) -> dict:
    """Return how far a run with the sets, or one without them, leaves them.

    Returns:
        ``{(kind, block): distance}`` of the server's points, the outputs and the points of evaluation.
    """
    sets = SETS[name]
    game = Watched(set_x=sets[0], set_y=sets[1], bound=bound)
    method = ALGORITHMS[promise.method](**promise.settings)
    config = configuration(method, game, "unused", rounds=rounds, **settings)
    config = Config(**dict(config) | {"output": "average", "record": ()} | (sections or {}))
    simulation = Simulation.from_settings(config, SerialComm())
    simulation.start()
    points = {"server": [], "average": []}
    for _ in range(rounds):
        simulation.step()
        points["server"].append(simulation.point().clone())
        points["average"].append(simulation.output.buffer.clone())
    found = {}
    for kind, rows in points.items():
        x, y = torch.stack(rows)[:, :DX], torch.stack(rows)[:, DX:]
        found |= {(kind, "x"): outside(sets[0], x), (kind, "y"): outside(sets[1], y)}
    for block, own, seen in zip("xy", sets, zip(*game.seen)):
        found["clients", block] = max(outside(own, point.reshape(-1, point.shape[-1])) for point in seen)
    return found


@cache
def free(number, name) -> dict:
    return play(PROMISES[number], name, bound=False, group="all")


def name_of(promise) -> str:
    extra = [str(value) for value in promise.settings.values() if isinstance(value, str | bool)]
    return "-".join([promise.method, *extra, promise.clients])


@pytest.mark.parametrize("group", [1, "all"])
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("number", range(len(PROMISES)), ids=map(name_of, PROMISES))
def test_points_stay_in_the_sets(number, name, group):
    promise, unbound = PROMISES[number], free(number, name)
    for (kind, block), gap in play(promise, name, group=group).items():
        inside = kind != "clients" or block in promise.clients
        where = f"{block} ({kind}) is {gap} outside, {unbound[kind, block]} without sets"
        assert gap < ROUNDING if inside else gap > VISIBLE, where
        assert unbound[kind, block] > VISIBLE, where


ONE_EACH = list({one.method: one for one in PROMISES}.values())
SAMPLED = [one for one in ONE_EACH if ALGORITHMS[one.method](**one.settings).partial_participation]
UNBIASED = {"cohort": 2, "availability": {"name": "weighted", "weights": (1.0, 2.0, 5.0), "unbiased": True}}
#: The server's average of compressed points, or with weights that do not sum to 1, need not be in a set
#: that has all of the points.
CHANGES = {
    "cohort": {"participation": {"cohort": 2, "weights": "samples"}},
    "unbiased": {"participation": UNBIASED},
    "top-k": {"message": {"compression": {"name": "top-k", "ratio": 0.3}}},
    "qsgd": {"message": {"compression": {"name": "qsgd", "levels": 1}}},
}
CASES = [
    (promise, change)
    for promise in ONE_EACH
    for change in CHANGES
    if promise in SAMPLED or change in ("top-k", "qsgd") and promise.method != "MASHA1"  # compresses itself
]


@pytest.mark.parametrize("promise, change", CASES, ids=[f"{one.method}-{change}" for one, change in CASES])
def test_averages_of_cohorts_and_of_compressed_points_stay_in_the_sets(promise, change):
    if change == "unbiased" and promise.method in DEPENDENT:
        with pytest.raises(ConfigError, match="averages over one cohort in several phases"):
            play(promise, "box and simplex", sections=CHANGES[change])
        return
    seen = play(promise, "box and simplex", sections=CHANGES[change])
    assert max(seen["server", "x"], seen["server", "y"]) < ROUNDING
    assert change != "cohort" or all(seen["clients", block] < ROUNDING for block in promise.clients)


BOX = Box(-0.05, 0.02)


@dataclass
class Boxed(Plain):
    """A composition started at 0 whose x is in a box, or in the whole space if not ``bound``."""

    bound: bool = True

    def __post_init__(self):
        self.sets = Sets(x=BOX) if self.bound else Sets()

    def initial(self, rng):
        return {"x": torch.zeros(DX)}


@dataclass
class BoxedSum(PlainMinimisation):
    """The same problem as a minimisation."""

    def __post_init__(self):
        self.sets = self.plain.sets


@pytest.mark.parametrize("name", OF_X)
def test_problems_without_y(name):
    method, gaps = ALGORITHMS[name](**OF_X[name]), []
    for bound in (True, False):
        problem = Boxed(bound=bound)
        minimisation = ALGORITHMS[name].family == "minimisation"
        points = path(method, BoxedSum(problem) if minimisation else problem)
        gaps.append(outside(BOX, torch.from_numpy(points)))
    assert gaps[0] < ROUNDING and gaps[1] > VISIBLE, gaps


class Bounded(Levels):
    sets = Sets(x=BOX)


#: Methods that would ignore sets.
REFUSING = [name for name, cls in ALGORITHMS.items() if not cls.constrained]


@pytest.mark.parametrize("name", REFUSING)
def test_methods_that_do_not_project_refuse_sets(name):
    problems = {"minimisation": lambda: BoxedSum(Boxed()), "bilevel": Bounded}
    problem = problems.get(ALGORITHMS[name].family, lambda: Watched(set_x=BOX))()
    config = configuration(method(name), problem, "unused")
    with pytest.raises(CollectiveError, match=f"{name} would ignore its set of"):
        Simulation.from_settings(config, SerialComm())


def test_every_method_has_a_row():
    mixtures = {name for name, cls in ALGORITHMS.items() if cls.mixture}  # with sets in test_baselines
    assert {promise.method for promise in PROMISES} | {*OF_X, *REFUSING} | mixtures == {*ALGORITHMS}
