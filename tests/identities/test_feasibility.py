"""Every method on a problem whose sets bind: the server's points and the outputs are in the sets.

A promised point is in its set to rounding, any other must leave it. Without the sets all points must leave
them, so that no row passes by accident.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pytest
import torch
from bounded import Watched
from everything import METHODS, method
from games import DX, DY, configuration, simulated
from identity_games import Plain, PlainMinimisation, path
from levels import Levels

from mpifed import Sets
from mpifed.algorithms import ALGORITHMS
from mpifed.base.errors import ConfigError
from mpifed.base.settings import build
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


FGDA = [
    {"sync_estimator": sync, "project_y": where}
    for sync in ("stem", "local", "mean_after", "box")
    for where in ("mixed", "step")
]
#: Steps of bounded length that reach the border in a few rounds.
HEAVY = dict(eta_x=0.2, eta_y=0.15, gamma_x=1.0, gamma_y=0.9)
FIRST = [HEAVY | {"first_round": first} for first in ("beta_one", "zero", "gradient")]
#: Method → changes of its settings in ``everything``: other readings, or longer steps.
VARIANTS = {
    "FGDA": FGDA,
    "AdaFGDA": [readings | {"gamma": 0.2, "lam": 0.2} for readings in FGDA],
    "FedNSGDAM": FIRST,
    "FedMuonDA": FIRST,
    "FedSGDAClip": [steps | {"tau": 2.0} for steps in FIRST],
    "LESGD": [{"sync_extrapolation": sync} for sync in (True, False)],
    "SLIPPAX": [{"delta": 0.1, "sigma": None}, {"delta": 0.0, "sigma": None}],
    "LocalDualExtrapolation": [
        {"sync_extrapolation": sync, "t0_mirror": mirror}
        for sync in (True, False)
        for mirror in ("prox", "identity")
    ],
    "LocalAdaSEG": [{"D": 1.0}],
    "FeDualEx": [{"shadow": shadow} for shadow in (True, False)],
    "FedProx": [{"stragglers": share} for share in (None, 0.5)],
    "FATClipping": [{"lam": 50.0, "per": per} for per in ("iteration", "round")],
    "SmoothedGDA": [{"alternating": alternating} for alternating in (False, True)],
    "SAGDA": [{}, {"variates": "fresh"}, {"projection": "server"}],
    "SCAFFOLD": [{"option": option} for option in ("II", "I_sample")],
    "LocalAMSGrad": [{"eta_x": 0.05, "eta_y": 0.05}],
    "MomentumLocalSGDA": [{"average_start": start} for start in (False, True)],
    "FedSGDAM": [{"order": order} for order in ("stem", "after")],
    "FedAvg": [{"server": "average", "eta_g": 1.4}],
    "Bi2Clip": [{"u": 5.0, "u_g": 2.0}],
}
#: Methods whose clients evaluate outside of the sets: at projected points plus noise, or at points that are
#: projected at the server only.
OUTSIDE = [("SLIPPAX", {"delta": 0.1, "sigma": None}), ("SAGDA", {"projection": "server"})]
OUTSIDE += [(name, {}) for name in ("FedGDAGT", "FedNormSGDA", "FedNormSGDAPlus")]
OUTSIDE += [("ProxSkipVIPFL", {}), ("ProxSkipLSVRGDAFL", {})]
PROJECTING = [
    (name, changes)
    for name, cls in ALGORITHMS.items()
    if cls.constrained and not cls.mixture  # mixtures with sets are in test_baselines
    for changes in VARIANTS.get(name, [{}])
]
GAMES = [row for row in PROJECTING if ALGORITHMS[row[0]].family in ("minimax", "operator")]
#: Methods whose phases share a cohort, which ``availability.unbiased`` does not allow.
DEPENDENT = ("ExtraSGD", "CDMAONE", "CDMAADA", "FedNest", "LFedNest", "FedGDAGT")


def changed(name, changes):
    return build(ALGORITHMS[name], METHODS[name][0] | changes, name)


def name_of(row) -> str:
    return "-".join([row[0], *map(str, row[1].values())])


def outside(own, points) -> float:
    """Return the largest distance of the points ``[..., d]`` from a set, or by which they exceed a bound of
    it."""
    if isinstance(own, Ball):
        return float(points.norm(dim=-1).max()) - own.radius
    if isinstance(own, Box):
        return float(torch.maximum(own.low - points, points - own.high).max())
    return float(torch.maximum((points.sum(-1) - own.total).abs(), -points.amin(-1)).max())


def play(row, name, bound=True, rounds=4, sections=None, **settings) -> dict:
    """Return how far a run with the sets, or one without them, leaves them.

    Returns:
        ``{(kind, block): distance}`` of the server's points, the outputs and the points of evaluation.
    """
    sets = SETS[name]
    game = Watched(set_x=sets[0], set_y=sets[1], bound=bound)
    sections = {"output": "average", "record": ()} | (sections or {})
    config = configuration(changed(*row), game, "unused", rounds=rounds, sections=sections, **settings)
    points = {"server": [], "average": []}
    for simulation in simulated(config):
        points["server"].append(simulation.point().clone())
        points["average"].append(simulation.output.buffer.clone())
    found = {}
    for kind, rows in points.items():
        x, y = torch.stack(rows[1:]).split((DX, DY), dim=1)
        found |= {(kind, "x"): outside(sets[0], x), (kind, "y"): outside(sets[1], y)}
    for block, own, seen in zip("xy", sets, zip(*game.seen)):
        found["clients", block] = max(outside(own, point.reshape(-1, point.shape[-1])) for point in seen)
    return found


@cache
def free(number, name) -> dict:
    return play(GAMES[number], name, bound=False, group="all")


@pytest.mark.parametrize("group", [1, "all"])
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("number", range(len(GAMES)), ids=map(name_of, GAMES))
def test_points_stay_in_the_sets(number, name, group):
    row, unbound = GAMES[number], free(number, name)
    for (kind, block), gap in play(row, name, group=group).items():
        inside = kind != "clients" or row not in OUTSIDE
        where = f"{block} ({kind}) is {gap} outside, {unbound[kind, block]} without sets"
        assert gap < ROUNDING if inside else gap > VISIBLE, where
        assert unbound[kind, block] > VISIBLE, where


ONE_EACH = list({name: (name, changes) for name, changes in GAMES}.values())
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
    (row, change)
    for row in ONE_EACH
    for change in CHANGES
    if changed(*row).partial_participation or change in ("top-k", "qsgd") and row[0] != "MASHA1"
]  # MASHA1 compresses itself


@pytest.mark.parametrize("row, change", CASES, ids=[f"{name}-{change}" for (name, _), change in CASES])
def test_averages_of_cohorts_and_of_compressed_points_stay_in_the_sets(row, change):
    if change == "unbiased" and row[0] in DEPENDENT:
        with pytest.raises(ConfigError, match="averages over one cohort in several phases"):
            play(row, "box and simplex", sections=CHANGES[change])
        return
    seen = play(row, "box and simplex", sections=CHANGES[change])
    assert max(seen["server", "x"], seen["server", "y"]) < ROUNDING
    if change == "cohort" and row not in OUTSIDE:
        assert max(seen["clients", "x"], seen["clients", "y"]) < ROUNDING


BOX = Box(-0.05, 0.02)


@dataclass
class Boxed(Plain):
    """A composition started at 0 whose x is in a box, or in the whole space if not ``bound``."""

    bound: bool = True

    def __post_init__(self):
        self.sets = Sets(x=BOX) if self.bound else Sets()

    def initial(self, rng):
        return {"x": torch.zeros(DX)}

    def outer(self, u, batch):
        return 20 * super().outer(u, batch)  # so that steps of 0.01 leave the box


@dataclass
class BoxedSum(PlainMinimisation):
    """The same problem as a minimisation."""

    def __post_init__(self):
        self.sets = self.plain.sets


OF_X = [row for row in PROJECTING if row not in GAMES]


@pytest.mark.parametrize("row", OF_X, ids=name_of)
def test_problems_without_y(row):
    method, gaps = changed(*row), []
    for bound in (True, False):
        problem = Boxed(bound=bound)
        minimisation = ALGORITHMS[row[0]].family == "minimisation"
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
