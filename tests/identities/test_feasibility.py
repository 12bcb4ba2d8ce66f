"""Every method on a problem with sets that bind: the server's points and the outputs are in them.

``PROMISES`` says which methods evaluate elsewhere, at the clients: what a method promises must hold to
rounding, what it does not must fail. Without the sets every point must leave them, so that no row holds by
accident.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from bounded import Watched
from compositions import Plain, PlainMinimisation
from games import DX, configuration, trace

from mpifed import Config, Sets
from mpifed.algorithms import ALGORITHMS
from mpifed.base.errors import ConfigError
from mpifed.core.sets import Ball, Box, Simplex
from mpifed.parallel.comm import SerialComm
from mpifed.simulation.simulation import Simulation

#: How far outside a projected point may lie: a few roundings of coordinates below 1.
ROUNDING = 1e-12
#: How far outside a point lies that nobody projects.
VISIBLE = 1e-3
#: Of another kind for each block, so that a set of the other block cannot stand in.
SETS = {
    "ball and box": (Ball(0.4), Box(-0.3, 0.2)),
    "box and simplex": (Box(-0.3, 0.2), Simplex()),
    "simplex and ball": (Simplex(), Ball(0.4)),
}


class Promise(NamedTuple):
    """A method with settings, and the blocks that are in their sets where clients evaluate."""

    method: str
    settings: dict
    clients: str = "xy"


#: Readings of a synchronisation, and of where the set of y acts.
SYNC = ("stem", "local", "mean_after", "box")
PROJECT_Y = ("mixed", "step")
FGDA = dict(q=3, gamma=0.05, lam=0.04, eta=0.9, alpha=0.3, beta=0.4)
#: Steps that reach the border in one round and server rates that go on from there.
GLOBAL = dict(K=3, eta_xl=0.05, eta_yl=0.04, eta_xg=1.4, eta_yg=1.5)
RATES = dict(eta_x=0.05, eta_y=0.04)
HEAVY = dict(p=3, eta_x=0.2, eta_y=0.15, gamma_x=1.0, gamma_y=0.9, beta_x=0.7, beta_y=0.4)
CENTRAL = dict(eta_x=0.05, eta_y=0.04, p=2.0, beta=0.3)
PROXIMAL = dict(K=3, eta=0.05, H=2, L=3.0)
DUAL = dict(K=3, eta=0.05)
STEPS = dict(K=3, eta_x=0.05, eta_y=0.04)

#: SLIPPAX evaluates at projected points plus noise.
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
    Promise("FedDualAvg", dict(K=3, eta_c=0.05, eta_s=1.4)),
    *(Promise("FeDualEx", dict(K=3, eta_c=0.05, eta_s=1.4, shadow=shadow)) for shadow in (True, False)),
    Promise("FSGDA", GLOBAL),
    Promise("FESSGDA", GLOBAL | {"p": 2.0, "beta": 0.3}),
    *(Promise("SmoothedGDA", CENTRAL | {"alternating": alternating}) for alternating in (False, True)),
    *(Promise("SAGDA", GLOBAL | {"variates": variates}) for variates in ("fresh", "stored")),
    *(Promise("SCAFFOLD", dict(K=3, eta_l=0.05, eta_g=1.4, option=option)) for option in ("II", "I_sample")),
    Promise("CODAPlus", dict(K=3, eta=0.05, T=2)),
    Promise("CODASCA", dict(K=3, eta=0.05, T=2, eta_g=1.4)),
    *(Promise(name, STEPS) for name in ("CDMANC", "CDMAONE", "CDMAADA")),
    *(Promise(name, dict(T=2, tau=2, alpha=0.05, beta=0.04)) for name in ("FedNest", "LFedNest")),
    Promise("FLRA", dict(tau=3, eta_1=0.05, eta_2=0.04)),
    Promise("LocalAMSGrad", STEPS),
    Promise("LocalSGDA", dict(q=3, **RATES)),
    Promise("LocalSGDAPlus", dict(q=3, S=6, **RATES)),
    *(Promise("MomentumLocalSGDA", dict(q=3, average_start=start, **RATES)) for start in (False, True)),
    Promise("MomentumLocalSGDAPlus", dict(q=3, S=6, **RATES)),
    Promise("FedSGDAPlus", dict(K=3, S=2, gamma_x=1.4, gamma_y=1.5, **RATES)),
    *(Promise("FedSGDAM", dict(Q=3, order=order, **RATES)) for order in ("stem", "after")),
    Promise("FedNormSGDA", dict(tau=3, gamma_x=0.07, gamma_y=0.06, **RATES), ""),
    Promise("FedNormSGDAPlus", dict(tau=3, S=2, gamma_x=0.07, gamma_y=0.06, **RATES), ""),
]
#: The methods of problems without y.
OF_X = {
    "MFCGD": dict(q=2, gamma=0.3),
    "AdaMFCGD": dict(q=2, gamma=0.3),
    "ComFedL": dict(q=2, eta=0.3),
    "LocalMOML": dict(H=2, eta=0.3, K_0=1),
    "LocalSCGD": dict(p=2, eta=0.3),
    "LocalSCGDM": dict(p=2, eta=0.3),
    "FedNestComposition": dict(T=1, tau=2, alpha=0.3, beta=0.5, recompute_jacobian=True),
    "FedAvg": dict(K=2, eta=0.3, eta_g=1.4),
}


def outside(own, points) -> float:
    """How far the farthest of the points ``[..., d]`` lies from a set, or from a bound of it."""
    if isinstance(own, Ball):
        return float(points.norm(dim=-1).max()) - own.radius
    if isinstance(own, Box):
        return float(torch.maximum(own.low - points, points - own.high).max())
    return float(torch.maximum((points.sum(-1) - own.total).abs(), -points.amin(-1)).max())


class Seen(NamedTuple):
    """Points of a run by block, ``[n, d]``: the server's after every round, the outputs, the evaluated."""

    server: dict
    average: dict
    clients: dict


def play(promise, sets, out, bound=True, rounds=4, sections=None, **settings) -> Seen:
    """The points of a run with the sets, or of one from the same start that knows none."""
    method = ALGORITHMS[promise.method](**promise.settings)
    game = Watched(set_x=sets[0], set_y=sets[1], bound=bound)
    config = configuration(method, game, out, rounds=rounds, **settings)
    config = Config(**dict(config) | {"output": "average", "record": ()} | (sections or {}))
    simulation = Simulation.from_settings(config, SerialComm())
    simulation.start()
    server, average = [], []
    for _ in range(rounds):
        simulation.step()
        server.append(simulation.point().clone())
        average.append(simulation.output.buffer.clone())
    return Seen(_blocks(server), _blocks(average), _evaluated(game))


def _blocks(points) -> dict:
    points = torch.stack(points)
    return {"x": points[:, :DX], "y": points[:, DX:]}


def _evaluated(game) -> dict:
    xs, ys = zip(*game.seen)
    return {
        block: torch.cat([point.reshape(-1, point.shape[-1]) for point in points])
        for block, points in (("x", xs), ("y", ys))
    }


def name_of(promise) -> str:
    extra = [str(value) for value in promise.settings.values() if isinstance(value, str | bool)]
    return "-".join([promise.method, *extra, promise.clients])


@pytest.mark.parametrize("group", [1, "all"])
@pytest.mark.parametrize("sets", SETS.values(), ids=SETS)
@pytest.mark.parametrize("promise", PROMISES, ids=name_of)
def test_points_stay_in_the_sets(tmp_path, promise, sets, group):
    seen, free = (play(promise, sets, tmp_path, bound, group=group) for bound in (True, False))
    for block, own in zip("xy", sets):
        for kind in Seen._fields:
            kept = promise.clients if kind == "clients" else "xy"
            gap, unbound = (outside(own, getattr(run, kind)[block]) for run in (seen, free))
            where = f"{block} ({kind}) lies {gap} outside, {unbound} without sets"
            assert gap < ROUNDING if block in kept else gap > VISIBLE, where
            assert unbound > VISIBLE, where


SAMPLED = [one for one in PROMISES if ALGORITHMS[one.method](**one.settings).partial_participation]


@pytest.mark.parametrize("promise", SAMPLED, ids=name_of)
def test_a_cohort_stays_in_the_sets(tmp_path, promise):
    seen = play(promise, SETS["simplex and ball"], tmp_path, cohort=2, weights="samples")
    for block, own in zip("xy", SETS["simplex and ball"]):
        assert outside(own, seen.server[block]) < ROUNDING
        assert block not in promise.clients or outside(own, seen.clients[block]) < ROUNDING


ONE_EACH = list({one.method: one for one in PROMISES}.values())


@pytest.mark.parametrize("compression", [{"name": "top-k", "ratio": 0.3}, {"name": "qsgd", "levels": 1}])
@pytest.mark.parametrize("promise", ONE_EACH, ids=name_of)
def test_compressed_points_stay_in_the_sets(tmp_path, promise, compression):
    """What the server makes of compressed points need not be in a set that all of them are in."""
    seen = play(
        promise, SETS["box and simplex"], tmp_path, sections={"message": {"compression": compression}}
    )
    for block, own in zip("xy", SETS["box and simplex"]):
        assert outside(own, seen.server[block]) < ROUNDING


UNBIASED = {"cohort": 2, "availability": {"name": "weighted", "weights": (1.0, 2.0, 5.0), "unbiased": True}}


@pytest.mark.parametrize("promise", [one for one in ONE_EACH if one in SAMPLED], ids=name_of)
def test_unbiased_averages_stay_in_the_sets(tmp_path, promise):
    """Their weights do not sum to 1. Methods that average twice over a cohort are refused."""
    if promise.method in ("ExtraSGD", "CDMAONE", "CDMAADA", "FedNest", "LFedNest"):
        with pytest.raises(ConfigError, match="averages over one cohort in several phases"):
            play(promise, SETS["box and simplex"], tmp_path, sections={"participation": UNBIASED})
        return
    seen = play(promise, SETS["box and simplex"], tmp_path, sections={"participation": UNBIASED})
    for block, own in zip("xy", SETS["box and simplex"]):
        assert outside(own, seen.server[block]) < ROUNDING


@dataclass
class Boxed(Plain):
    """A composition from 0 whose x is in a box; ``bound = False``: the same without it."""

    bound: bool = True

    def __post_init__(self):
        self.sets = Sets(x=BOX) if self.bound else Sets()

    def initial(self, rng):
        return {"x": torch.zeros(DX)}


@dataclass
class BoxedSum(PlainMinimisation):
    """The same as a plain minimisation."""

    def __post_init__(self):
        self.sets = self.plain.sets


BOX = Box(-0.05, 0.02)


@pytest.mark.parametrize("message", [{}, {"compression": {"name": "qsgd", "levels": 1}}], ids=["", "qsgd"])
@pytest.mark.parametrize("name", OF_X)
def test_problems_without_y(tmp_path, name, message):
    method, gaps = ALGORITHMS[name](**OF_X[name]), []
    for bound in (True, False):
        plain = Boxed(bound=bound)
        problem = BoxedSum(plain) if method.family == "minimisation" else plain
        config = configuration(method, problem, tmp_path, rounds=4)
        changes = {"record": ("x",), "message": message}
        path, _ = trace(Config(**dict(config) | changes), SerialComm())
        gaps.append(outside(BOX, torch.from_numpy(path)))
    assert gaps[0] < ROUNDING and gaps[1] > VISIBLE, gaps


def test_every_method_has_its_row():
    assert {promise.method for promise in PROMISES} | {*OF_X} == {*ALGORITHMS}
