"""Baselines against plain loops: every option, noise, cohorts, sample weights, binding sets and resumption.

Tolerance 1e-10 in float64 for the reason given in ``test_references``.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import drawn
import numpy as np
import pytest
import torch
from baselines import FIXED, LARGE, PLUGINS, Half, gradient_at
from bounded import Bounded, within
from fields import Chain, Square, chain_at
from games import DX, Game, configuration, sizes, start_of, trace, trace_file
from levels import Levels, levels_at
from mixtures import LogCosh, losses_of
from oracles import prepared
from reference import (
    agnostic,
    bilevel,
    clipping,
    compressed,
    cross_device,
    masha,
    memory,
    plain_training,
    proxskip,
    variates,
)
from reference import composition_baselines as composed
from reference import minimax_baselines as plain
from reference.fedopt import fedopt
from reference.local_sgda import local_sgda
from reference.stem import stem
from resumed import assert_path, assert_resumed

from mpifed import run
from mpifed.algorithms import ALGORITHMS
from mpifed.base.settings import build
from mpifed.config.plugins import find_class
from mpifed.core.noise import Gaussian
from mpifed.core.sets import Ball, Box
from mpifed.core.streams import generator
from mpifed.parallel.comm import SerialComm

pytestmark = pytest.mark.mpi

#: Stages of 1, 2 and then 4 rounds, so that a client can miss the start of a stage and participate in its
#: middle.
SEED, BATCH, NOISE, ROUNDS, CLIENTS = 1, 2, Gaussian(scale=0.3), 5, 5
#: Both sets bind from the first round on; the solution of ``Half`` is near 0, outside of ``OUTER``.
BOTH, Y, X, OUTER = (Box(-0.45, 0.3), Ball(0.1)), Ball(0.15), Ball(0.5), Box(0.05, 0.6)


game = cache(lambda: prepared(Game(clients=CLIENTS), SEED))


@dataclass
class Family:
    """Problems of a reference, and how it is called with ``(cohorts, weights, **settings)``.

    Attributes:
        bound: the problem with binding sets, and the options of the reference for these sets.
        partly: options for fewer sets, which give other points; by default no set.
        noise: additive noise of the gradients; ``None`` if the reference has losses and gradients on samples.
    """

    problem: Callable
    call: Callable
    bound: Callable
    project: dict
    partly: list = field(default_factory=lambda: [{}])
    record: tuple = ("x", "y")
    noise: Any = NOISE


def on_game(reference, cohorts, weights, /, **settings):
    return reference(
        gradient_at(game(), SEED, BATCH, NOISE), *start_of(game(), SEED), cohorts, weights, **settings
    )


def on_half(reference, cohorts, weights, /, **settings):
    grad, x = gradient_at(game(), SEED, BATCH, NOISE), start_of(game(), SEED)[0]
    return reference(grad, x, FIXED, cohorts, weights, **settings)


def on_operator(reference, cohorts, weights, /, **settings):
    """The game as a variational inequality in z = (x, y)."""
    grad = gradient_at(game(), SEED, BATCH, NOISE)

    def value(k, z, key):
        gx, gy = grad(k, z[:DX], z[DX:], key)
        return torch.cat([gx, -gy])

    path = reference(value, torch.cat(start_of(game(), SEED)), weights, ROUNDS, **settings)
    return [(z,) for z in path]


def on_gradient(reference, cohorts, weights, /, **settings):
    """The minimisation as a variational inequality."""
    grad, x = gradient_at(game(), SEED, BATCH, NOISE), start_of(game(), SEED)[0]
    path = reference(lambda k, x, key: grad(k, x, FIXED, key)[0], x, weights, ROUNDS, **settings)
    return [(x,) for x in path]


def without_y(reference, cohorts, weights, /, **settings):
    grad, x = gradient_at(game(), SEED, BATCH, NOISE), start_of(game(), SEED)[0]
    path = reference(
        lambda k, x, key: grad(k, x, FIXED, key)[0], x, [one for (one,) in cohorts], weights, **settings
    )
    return [(x,) for x in path]


def on_chain(kind):
    def call(reference, cohorts, weights, /, **settings):
        problem = prepared(kind(clients=CLIENTS), SEED)
        x = problem.initial(generator(SEED, "initial"))["x"]
        path = reference(chain_at(problem, SEED, BATCH, NOISE), x, cohorts, weights, **settings)
        return [(x,) for x in path]

    return call


def on_mixture(reference, cohorts, weights, /, **settings):
    problem = prepared(LogCosh(clients=CLIENTS), SEED)
    losses = losses_of(problem, SEED, BATCH)
    return reference(*losses, *start_of(problem, SEED), cohorts, weights, **settings)


def on_levels(reference, cohorts, weights, /, **settings):
    problem = prepared(Levels(clients=CLIENTS), SEED)
    start = problem.initial(generator(SEED, "initial"))
    return reference(
        levels_at(problem, SEED, BATCH, NOISE), start["x"], start["y"], cohorts, weights, **settings
    )


free = cross_device.free
MINIMAX = Family(
    Game,
    on_game,
    lambda clients: Bounded(clients=clients, set_x=BOTH[0], set_y=BOTH[1]),
    {"project": BOTH},
    [{"project": (free, BOTH[1])}, {"project": (BOTH[0], free)}],
)
#: References that project y only.
ASCENT = Family(
    Game,
    lambda reference, cohorts, *rest, **settings: on_game(
        reference, [one for (one,) in cohorts], *rest, **settings
    ),
    lambda clients: Game(clients=clients, ball=0.15),
    {"project": Y},
)
INSIDE = within(Half, OUTER)
HALF, PLAIN = (Family(Half, call, INSIDE, {"project": OUTER}, record=("x",)) for call in (on_half, without_y))
OPERATOR = Family(Game, on_operator, Bounded, {}, record=("z",))
GRADIENT = Family(Half, on_gradient, INSIDE, {}, record=("z",))
#: The game as a variational inequality in a set.
BINDING = Family(
    Game,
    on_operator,
    MINIMAX.bound,
    {"project": lambda z: torch.cat([one(part) for one, part in zip(BOTH, (z[:DX], z[DX:]))])},
    record=("z",),
)
#: The same, for references with a proximal map.
PROXIMAL = replace(BINDING, project={"prox": lambda z, weight: BINDING.project["project"](z)})
CHAIN, SQUARE = (
    Family(kind, on_chain(kind), within(kind, X), {"project": X}, record=("x",)) for kind in (Chain, Square)
)

LEVELS = Family(Levels, on_levels, Levels, {})
MIXTURE = Family(
    LogCosh, on_mixture, lambda clients: LogCosh(clients=clients, set_x=X), {"project_x": X}, noise=None
)


@dataclass
class Case:
    """A method by name, its reference and settings; ``theirs`` are those of the reference where they differ.

    With ``everybody``, all clients participate, as the reference has no cohorts.
    """

    family: Family
    method: str
    reference: Callable
    settings: dict
    theirs: dict = field(default_factory=dict)
    resumed: bool = False
    sets: bool = False
    everybody: bool = False

    def algorithm(self):
        return build(find_class(self.method, "algorithm"), self.settings, self.method)

    def expected(self, cohort, weights, cohorts=None, **options) -> np.ndarray:
        """Return the points after every round, ``[rounds, d]``, by plain loops."""
        settings = self.settings | self.theirs
        new = settings.pop("fresh_cohort", False)
        calls = settings.get("T", 1) + 1 + ("J" in settings)  # a series has a cohort, too
        numbers = range(calls if new else 1)
        cohorts = cohorts or [
            [drawn.cohort(SEED, r, CLIENTS, cohort or CLIENTS, one).tolist() for one in numbers]
            for r in range(1, ROUNDS + 1)
        ]
        n = sizes(game()).tolist() if weights == "samples" else [1.0] * CLIENTS  # a chain has as many rows
        path = self.family.call(self.reference, cohorts, n, **settings | options)
        return np.array([torch.cat(point).numpy() for point in path])

    def cohort(self, size):
        return size if self.algorithm().partial_participation and not self.everybody else None


CDMA, NEST = dict(K=3, eta_x=0.05, eta_y=0.04), dict(tau=2, alpha=0.04, beta=0.06)
NEW = dict(fresh_cohort=True)
GLOBAL = dict(K=3, eta_xl=0.05, eta_yl=0.04, eta_xg=1.2, eta_yg=0.9)
STAGES = dict(K=3, eta=0.06, T=1, growth=2, decay=1.5, prox=1.3)
SCAFFOLDS = dict(K=3, eta_l=0.05, eta_g=0.9)
RATES = dict(eta_x=0.05, eta_y=0.04)
SERVER = dict(gamma_x=0.06, gamma_y=0.03)
LOCAL = dict(K=3, eta={"name": "power", "scale": 0.1})
SKIPS = dict(gamma=0.05, p=0.35)
POWER = {"name": "power", "scale": 0.9, "offset": 1.0, "exponent": 0.5}
MOMENTUM = dict(q=3, **RATES, beta_x=0.7, beta_y=0.4)
TAU = (1, 4, 2, 3, 1)
RAND_2, TOP_2 = dict(name="rand-k", ratio=0.4), dict(name="top-k", ratio=0.4)  # 2 of 5 entries
FALLING = {"name": "power", "scale": 0.09, "offset": 1, "exponent": 0.6}
NESTED = dict(T=2, tau=2, alpha=0.04, beta=0.6)
DECAYED = dict(momentum=0.6, weight_decay=0.9)
NESTEROV = dict(momentum=0.7, nesterov=True)
#: A step size that falls from round to round.
BY_ROUND = {"name": "exponential", "value": 0.1, "factor": 0.6, "per": "round"}


def constant(value):
    return lambda t: value


def power(scale):
    return lambda t: scale / (1 + t) ** 0.5


CONSTANT_STEPS = dict(eta_xl=constant(0.05), eta_yl=constant(0.04))
FALLING_STEPS = dict(eta_xl=POWER | {"scale": 0.1}, eta_yl=POWER | {"scale": 0.08})
POWER_STEPS = dict(eta_xl=power(0.1), eta_yl=power(0.08))


def minimax(name, method, *variants, module=cross_device, **flags):
    """Return cases of a reference by number, of which the last is resumed."""
    return {
        f"{method} {number}": Case(
            MINIMAX, method, getattr(module, name), one, resumed=one is variants[-1], sets=True, **flags
        )
        for number, one in enumerate(variants)
    }


def method_of(name) -> str:
    """Return the method of a case, the first word of its name."""
    return name.split()[0]


def by_round(t):
    """The values of ``BY_ROUND`` for 3 steps in a round."""
    return 0.1 * 0.6 ** ((t - 1) // 3)


def on_steps(grad, x, y, cohorts, weights, **settings):
    """Local-SGDA, whose samples have the number of the step, with samples by round and step."""
    settings = dict(cohorts=cohorts, weights=weights, rounds=ROUNDS) | settings
    return local_sgda(
        lambda k, x, y, t: grad(k, x, y, ((t - 1) // 3 + 1, (t - 1) % 3)), CLIENTS, x, y, **settings
    )


def ascent(name, ours, theirs, reference, resumed=False):
    return {name: Case(ASCENT, method_of(name), reference, ours, theirs, resumed, True)}


def with_local(case, options):
    """Return a case with a local optimiser."""
    ours = case.settings | {"local": {"name": "sgd", **options}}
    return dataclasses.replace(case, settings=ours, theirs=case.theirs | {"local": options})


def fedavg(name, server=None, theirs=None, eta_g=0.1, resumed=False):
    settings = LOCAL | dict(eta_g=eta_g) | ({"server": server} if server else {})
    theirs = dict(eta=lambda t: 0.1 / t ** (1 / 3)) | (theirs or {})
    return {f"FedAvg{name}": Case(PLAIN, "FedAvg", fedopt, settings, theirs, resumed, not server)}


def training(name, reference, settings, resumed=False, **theirs):
    """A method for problems without y, with a falling step size if its K local steps are numbered."""
    if "K" in settings:
        settings, theirs = settings | {"eta": LOCAL["eta"]}, {"eta": lambda t: 0.1 / t ** (1 / 3)} | theirs
    method = method_of(name)
    return {name: Case(PLAIN, method, reference, settings, theirs, resumed, ALGORITHMS[method].constrained)}


def mime_lite(*arguments, **settings):
    return plain_training.mime(*arguments, lite=True, **settings)


def composition(name, reference, settings, sets=False, family=CHAIN):
    theirs = {"eta": constant(settings["eta"])} if "eta" in settings else {}
    if settings.get("eta") is FALLING:
        theirs = {"eta": lambda t: 0.09 / (1 + t) ** 0.6}
    return {name: Case(family, method_of(name), reference, settings, theirs, True, sets)}


def simfbo(name, **settings):
    """Unequal numbers of steps are a list in the reference."""
    rates = dict(eta_x=0.04, eta_y=0.06, eta_z=0.05, gamma_x=0.03, gamma_y=0.04, gamma_z=0.06)
    tau = settings["tau"]
    theirs = {"tau": [tau] * CLIENTS if isinstance(tau, int) else tau, "normalized": name == "ShroFBO"}
    return {name: Case(LEVELS, method_of(name), bilevel.simfbo, rates | settings, theirs, True)}


def series(name, settings):
    settings = dict(T=2, tau=2, alpha=0.04, beta=0.06, J=2, ell=0.2) | settings
    theirs = dict(inner="sgd", outer="sgd", separate=True) if name == "LFedNestBilevel" else {}
    theirs["term"] = lambda r: drawn.term(SEED, r, settings["J"])
    return {name: Case(LEVELS, method_of(name), bilevel.fednest, settings, theirs, True)}


def proxskips(name, settings, family=OPERATOR, resumed=True):
    """A case with random lengths of rounds and, for a client, a probability q of 1 / rows by default."""
    theirs = {"length": lambda r: drawn.length(SEED, r, settings["p"])}
    reference = proxskip.proxskip_vip
    if method_of(name) == "ProxSkipLSVRGDAFL":
        q = settings.get("q")
        theirs |= {"refreshes": partial(drawn.coin, SEED), "q": lambda k: q or 1 / sizes(game())[k]}
        reference = proxskip.proxskip_l_svrgda
    return {name: Case(family, method_of(name), reference, settings, theirs, resumed, family is PROXIMAL)}


def mashas(name, tau=0.6, resumed=False, family=None, **settings):
    """A case with its compressions, for which the reference has functions of one vector."""
    settings = dict(gamma=POWER | {"scale": 0.2}, tau=tau) | settings
    first = method_of(name) == "MASHA1"
    family = family or (BINDING if first else OPERATOR)
    clients, server = (compressing(settings.get(key), not first)
                       for key in ("compression", "server_compression"))  # fmt: skip
    theirs = {
        "gamma": power(0.2),
        "coin": lambda r: drawn.uniform(SEED, "reference", r, 1)[0],
        "compression": lambda k, r, v: clients(v, lambda size: drawn.uniform(SEED, "client", r, size, k)),
        "server_compression": lambda r, v: server(v, lambda size: drawn.uniform(SEED, "server", r, size)),
    }
    reference = masha.masha1 if first else masha.masha2
    return {name: Case(family, method_of(name), reference, settings, theirs, resumed, first)}


def compressing(table, contract):
    """Return a function of a vector and of a function that draws uniform numbers."""
    if table is None:
        return lambda v, draw: v
    if table["name"] == "qsgd":
        s = table["levels"]
        return lambda v, draw: (
            compressed.qsgd(v, s, draw(len(v))) / (1 + contract * min(len(v) / s**2, len(v) ** 0.5 / s))
        )
    if table["name"] == "top-k":
        return lambda v, draw: compressed.top_k(v, 2)
    return lambda v, draw: compressed.rand_k(v, 2, draw(len(v))) * (2 / len(v) if contract else 1)


ADAM = dict(name="adam", beta_1=0.7, beta_2=0.8, epsilon=0.2)
BASES = {
    "": dict(name="momentum", beta=0.6, mix="ema"),
    " sum": dict(name="momentum", beta=0.6, mix="sum"),
    " rmsprop": dict(name="rmsprop", beta_2=0.8, epsilon=0.2),
    " adam": ADAM,
}
LOCAL_RATES = {name: constant(rate) for name, rate in RATES.items()}
STORM, WEIGHTS = dict(alpha=0.3, beta=0.5), dict(alpha=constant(0.3), beta=constant(0.5))
CASES = {
    "plug-in FedAvg": Case(
        PLAIN, f"{PLUGINS}/fedavg.py:FedAvg", fedopt, dict(K=3, eta=0.05, eta_g=1.3),
        dict(eta=constant(0.05)), True,
    ),
    **minimax("cdma_nc", "CDMANC", CDMA),
    **minimax("cdma_one", "CDMAONE", CDMA | {"large_batch": LARGE}, CDMA | NEW, CDMA),
    **minimax(
        "cdma_ada", "CDMAADA", CDMA | dict(alpha=0.95, a=0.2, b=0.9), CDMA | NEW | dict(alpha=5.0, a=1 / 3),
        CDMA | NEW | dict(alpha=0.95, a=1 / 3, large_batch=LARGE),
    ),
    **minimax(
        "fednest", "FedNest", NEST | dict(T=1), NEST | dict(T=3), NEST | dict(T=2, tau_outer=4, inner="sgd"),
        NEST | NEW | dict(T=2, tau_outer=1, outer="sgd"), NEST | NEW | dict(T=2),
    ),
    **minimax("lfednest", "LFedNest", NEST | dict(T=1), NEST | NEW | dict(T=2)),
    "FLRA": Case(MINIMAX, "FLRA", cross_device.flra, dict(tau=3, eta_1=0.05, eta_2=0.04), resumed=True),
    "LocalAMSGrad": Case(
        MINIMAX, "LocalAMSGrad", cross_device.local_amsgrad,
        dict(K=3, eta_x=0.03, eta_y=0.02, beta_1=0.7, beta_2=0.8, epsilon=0.05), resumed=True,
    ),
    **{
        f"DRFA {name}": Case(
            MIXTURE, "DRFA", agnostic.drfa, dict(tau=3, eta=0.1, gamma=0.02) | options,
            dict(snapshot=snapshot, fresh_cohort=True), name == "common", True,
        )
        for name, options, snapshot in (
            ("common", {}, lambda r, k: drawn.snapshot(SEED, r, 3)),
            ("client", dict(snapshot="client"), lambda r, k: drawn.snapshot(SEED, r, 3, k)),
            ("start", dict(snapshot=0), lambda r, k: 0),
            ("two steps", dict(snapshot=2, snapshot_weights="uniform"), lambda r, k: 2),
        )
    },
    "AFL": Case(MIXTURE, "AFL", agnostic.afl, dict(gamma_x=0.1, gamma_y=0.05), resumed=True, sets=True),
    "AFL entropy": Case(
        MIXTURE, "AFL", agnostic.afl, dict(gamma_x=0.1, gamma_y=0.05, mirror="entropy"),
        resumed=True, sets=True,
    ),
    **minimax(
        "sagda", "SAGDA", GLOBAL, GLOBAL | dict(full_batch=True),
        GLOBAL | dict(variates="stored", projection="server"), GLOBAL | dict(variates="stored"),
        module=variates,
    ),
    **minimax("fedgda_gt", "FedGDAGT", dict(K=3, eta_xl=0.05, eta_yl=0.05), module=variates),
    **minimax("kgt_minimax", "KGTMinimax", GLOBAL, module=variates, everybody=True),
    "STEM": Case(
        HALF, "STEM", stem, dict(q=3, eta=POWER | {"scale": 0.1}, beta=0.3),
        dict(eta=power(0.1), beta=constant(0.3)), True, True,
    ),
    **minimax(
        "scaffold_minimax", "SCAFFOLD", *(SCAFFOLDS | dict(option=one) for one in ("II", "I", "I_sample")),
        module=variates,
    ),
    **{
        f"SCAFFOLD {option} without y": Case(
            HALF, "SCAFFOLD", variates.scaffold, SCAFFOLDS | dict(option=option), resumed=option == "II",
        )
        for option in ("II", "I", "I_sample")
    },
    **{
        f"FATClipping {name}": Case(
            MINIMAX, "FATClipping", clipping.fat_clipping,
            GLOBAL | dict(lam=POWER | {"scale": scale}, per=per) | ours,
            dict(lam=power(scale)) | theirs, name == "round", True,
        )
        for name, per, scale, ours, theirs in (
            ("iteration", "iteration", 3.0, {}, CONSTANT_STEPS),
            ("round", "round", 6.0, {}, CONSTANT_STEPS),
            ("iteration, schedule", "iteration", 3.0, FALLING_STEPS, POWER_STEPS),
            ("round, schedule", "round", 6.0, FALLING_STEPS, POWER_STEPS),
        )
    },
    "Bi2Clip": Case(
        HALF, "Bi2Clip", clipping.bi2_clip,
        dict(K=3, eta=FALLING, u=1.2, d=0.3, u_g=0.15, d_g=0.05, eta_g=1.3),
        dict(eta=lambda t: 0.09 / (1 + t) ** 0.6), True, True,
    ),
    "FedVARP": Case(MINIMAX, "FedVARP", memory.fedvarp, dict(K=3, eta=0.05), dict(eta=constant(0.05))),
    "FedVARP schedule": Case(
        MINIMAX, "FedVARP", memory.fedvarp, dict(K=2, eta=POWER | {"scale": 0.1}, eta_g=0.8),
        dict(eta=power(0.1)), True,
    ),
    "MIFA": Case(MINIMAX, "MIFA", memory.mifa, dict(K=3, eta=0.05), dict(eta=constant(0.05))),
    **{
        f"MIFA schedule {start}": Case(
            MINIMAX, "MIFA", memory.mifa, dict(K=2, eta=POWER | {"scale": 0.1}, initial_memory=start),
            dict(eta=power(0.1)), True,
        )
        for start in ("updates", "zero")
    },
    **proxskips("ProxSkipVIPFL", SKIPS, PROXIMAL),
    **proxskips("ProxSkipVIPFL fixed", SKIPS | dict(p=1 / 3, period="fixed"), resumed=False),
    **proxskips("ProxSkipVIPFL without y", SKIPS, GRADIENT),
    **proxskips("ProxSkipLSVRGDAFL", SKIPS, resumed=False),
    **proxskips("ProxSkipLSVRGDAFL q", SKIPS | dict(q=0.4, large_batch=LARGE), PROXIMAL),
    **proxskips("ProxSkipLSVRGDAFL fixed", SKIPS | dict(p=0.5, q=0.3, period="fixed"), GRADIENT, False),
    **mashas("MASHA1", compression=RAND_2, server_compression=RAND_2, resumed=True),
    **mashas("MASHA1 old", compression=dict(name="qsgd", levels=2), reference="old"),
    **mashas("MASHA2", compression=TOP_2, server_compression=TOP_2, resumed=True),
    **mashas("MASHA2 old", compression=RAND_2, server_compression=TOP_2, reference="old"),
    **mashas("MASHA2 qsgd", compression=TOP_2, server_compression=dict(name="qsgd", levels=2)),
    **minimax(
        "coda_plus", "CODAPlus", STAGES, STAGES | dict(growth=1.6), dict(K=3, eta=0.05, T=9),
        STAGES | dict(reference="average"), module=variates,
    ),
    **minimax(
        "codasca", "CODASCA", STAGES | dict(eta_g=1.1), STAGES | dict(eta_g=0.9, reference="average"),
        STAGES | dict(keep_variates=True), module=variates,
    ),
    **fedavg("", eta_g=1.3),
    "FedAvg by round": Case(PLAIN, "FedAvg", fedopt, dict(K=3, eta=BY_ROUND), dict(eta=by_round), True),
    **fedavg(" momentum", {"name": "momentum", "beta": 0.7}, dict(server="momentum", beta=0.7), 1.0),
    **fedavg(" adagrad", "adagrad", dict(server="adagrad")),
    **fedavg(
        " adagrad with momentum", {"name": "adagrad", "beta_1": 0.6, "tau": 0.2},
        dict(server="adagrad", beta_1=0.6, tau=0.2),
    ),
    **fedavg(" adam", "adam", dict(server="adam")),
    **fedavg(
        " yogi", {"name": "yogi", "beta_1": 0.6, "beta_2": 0.8, "tau": 0.2},
        dict(server="yogi", beta_1=0.6, beta_2=0.8, tau=0.2), resumed=True,
    ),
    **training("FedProx", plain_training.fedprox, dict(K=3, mu=0.7, eta_g=1.2), True),
    "FedProx minimax": Case(
        MINIMAX, "FedProx", plain_training.fedprox_minimax, dict(K=3, eta=LOCAL["eta"], mu=0.7, eta_g=1.2),
        dict(eta=lambda t: 0.1 / t ** (1 / 3)), True, True,
    ),
    "FedProx minimax stragglers": Case(
        MINIMAX, "FedProx", plain_training.fedprox_minimax, dict(K=4, eta=0.05, mu=0.7, stragglers=0.5),
        dict(eta=constant(0.05), numbers=partial(drawn.straggler, SEED)),
    ),
    **training(
        "FedProx stragglers", plain_training.fedprox, dict(K=4, mu=0.7, stragglers=0.5), True,
        numbers=partial(drawn.straggler, SEED),
    ),
    **{
        key: case
        for name, options in {
            "": dict(tau=TAU),
            " momentum": dict(tau=TAU, rho=0.6, beta=0.5),
            " nesterov": dict(tau=TAU, rho=0.6, nesterov=True),
            " proximal": dict(tau=TAU, mu=0.9),
            " equal steps": dict(tau=3, rho=0.4, tau_eff=2.5),
        }.items()
        for key, case in training(
            f"FedNova{name}", plain_training.fednova, dict(eta=0.05) | options, name == " momentum",
            **({} if options["tau"] is TAU else {"tau": [3] * CLIENTS}),
        ).items()
    },
    **training("FedDyn", plain_training.feddyn, dict(K=3, alpha=0.8), True),
    **training("FedExP", plain_training.fedexp, dict(K=3, epsilon=1e-3), True),
    **training("FedExP scaled", plain_training.fedexp, dict(K=3, epsilon=2e-3, epsilon_scaled=True)),
    **{
        key: case
        for method, reference in (("Mime", plain_training.mime), ("MimeLite", mime_lite))
        for name, base in BASES.items()
        for key, case in training(
            f"{method}{name}", reference, dict(K=3, base=base, eta_g=1.1), name == " adam"
        ).items()
    },
    **training("Mime large batch", plain_training.mime, dict(K=3, base=ADAM, large_batch=LARGE), True),
    **training("MimeLite large batch", mime_lite, dict(K=3, base=ADAM, large_batch=LARGE), True),
    **ascent(
        "LocalSGDA by round", dict(q=3, eta_x=BY_ROUND, eta_y=0.04, alternating=True),
        dict(eta_x=by_round, eta_y=constant(0.04)), on_steps, True,
    ),
    **ascent("LocalSGDAPlus", dict(q=3, S=6, **RATES), LOCAL_RATES, plain.local_sgda_plus, True),
    **ascent(
        "LocalSGDAPlus schedules", dict(q=3, S=9, eta_x=POWER | {"scale": 0.1}, eta_y=0.04),
        dict(eta_x=power(0.1), eta_y=constant(0.04)), plain.local_sgda_plus,
    ),
    **ascent(
        "MomentumLocalSGDA averaged start", MOMENTUM | dict(average_start=True),
        dict(alpha=constant(1.0)), plain.momentum_local_sgda,
    ),
    **ascent(
        "MomentumLocalSGDA schedule", MOMENTUM | dict(average_start=False, alpha=POWER),
        dict(alpha=power(0.9)), plain.momentum_local_sgda, True,
    ),
    **ascent(
        "MomentumLocalSGDAPlus", MOMENTUM | dict(S=6, alpha=0.8, average_start=False),
        dict(alpha=constant(0.8)), plain.momentum_local_sgda, True,
    ),
    **ascent("FedSGDAPlus", dict(K=3, S=2, **RATES, gamma_x=1.3, gamma_y=0.9), {}, plain.fed_sgda_plus, True),
    **{
        key: case
        for order in ("stem", "after")
        for start in (True, False)
        for key, case in ascent(
            f"FedSGDAM {order} {start}",
            dict(Q=3, **RATES, **STORM, order=order, average_start=start), LOCAL_RATES | WEIGHTS,
            plain.fed_sgda_m, start == (order == "stem"),
        ).items()
    },
    **ascent(
        "FedSGDAM schedules",
        dict(
            Q=2, eta_x=POWER | {"scale": 0.1}, eta_y=0.04, alpha={"name": "squared", "c": 50}, beta=POWER,
            order="stem",
        ),
        dict(
            eta_x=power(0.1), eta_y=constant(0.04), alpha=lambda t: 50 * power(0.1)(t) ** 2, beta=power(0.9),
        ),
        plain.fed_sgda_m,
    ),
    **ascent(
        "FedNormSGDA", dict(tau=TAU, **RATES, **SERVER, a=0.8), dict(a=lambda j: 0.8**j),
        plain.fed_norm_sgda, True,
    ),
    **ascent(
        "FedNormSGDA equal steps",
        dict(tau=3, **RATES, **SERVER, a=(0.5, 2.0, 1.0), tau_eff=2.5),
        dict(tau=[3] * CLIENTS, a=(0.5, 2.0, 1.0).__getitem__), plain.fed_norm_sgda,
    ),
    **ascent(
        "FedNormSGDAPlus", dict(tau=TAU, S=2, **RATES, **SERVER), dict(a=constant(1.0)),
        plain.fed_norm_sgda, True,
    ),
    **composition("ComFedL", composed.comfedl, dict(q=3, eta=0.05), True),
    **composition("ComFedL batches", composed.comfedl, dict(q=2, eta=FALLING, B_g=3, B_f=2)),
    **composition("LocalMOML", composed.local_moml, dict(H=3, eta=FALLING, beta=0.3, K_0=2), True),
    **composition(
        "LocalMOML first order", composed.local_moml,
        dict(H=2, eta=0.05, beta=0.6, first_order=True), family=SQUARE,
    ),
    **composition("LocalSCGDM", composed.local_scgdm, dict(p=3, eta=FALLING, beta=0.4, alpha=0.3), True),
    **composition(
        "LocalSCGDM own u", composed.local_scgdm,
        dict(p=2, eta=0.05, beta=0.4, alpha=0.3, average_inner=False),
    ),
    **composition("LocalSCGD", composed.local_scgdm, dict(p=3, eta=0.05, beta=0.4)),
    **composition(
        "LocalSCGD own u", composed.local_scgdm, dict(p=1, eta=0.05, beta=0.4,
        average_inner=False), True
    ),
    **simfbo("SimFBO", tau=TAU),
    **simfbo("SimFBO in a ball", tau=3, radius=0.2),
    **simfbo("ShroFBO", tau=TAU),
    **series("FedNestBilevel", {}),
    **series("FedNestBilevel one term", dict(T=1, J=4, truncation="random")),
    **series("FedNestBilevel new cohorts", dict(fresh_cohort=True, tau_outer=3, J=0)),
    **series("FedNestBilevel sgd", dict(outer="sgd")),
    **series("LFedNestBilevel", {}),
    **{
        key: case
        for name, options in {
            "": {},
            " one call": dict(T=1, tau=3),
            " mean": dict(T=3, tau=1, first_y="mean"),
            " two numbers of steps": dict(tau_outer=3),
            " variance-reduced x": dict(tau=1, tau_outer=3, recompute_jacobian=True),
            " new cohorts": dict(T=3, fresh_cohort=True),
        }.items()
        for key, case in composition(
            f"FedNestComposition{name}", composed.fednest, NESTED | options, not name
        ).items()
    },
}  # fmt: skip

CASES |= {
    f"{name} {label}": with_local(CASES[name], options)
    for label, options in {"decayed": DECAYED, "nesterov": NESTEROV}.items()
    for name in ("FedAvg", "FedProx minimax", "FedProx minimax stragglers", "FedDyn", "FedExP")
}


def job(case, out, problem=None, sections=None, **changes):
    settings = dict(seed=SEED, rounds=ROUNDS, batch_size=BATCH, noise=case.family.noise)
    settings |= dict(reduction="exact", watchdog=0, eval_every=10**6) | changes
    sections = {"record": case.family.record} | (sections or {})
    problem = problem or case.family.problem(clients=CLIENTS)
    return configuration(case.algorithm(), problem, out, sections=sections, **settings)


#: Cohort, weights, and number of clients stepped together.
SAMPLING = [(None, "uniform", 1), (None, "samples", "all"), (2, "uniform", 2), (3, "samples", 1)]
EVERYBODY = [(None, "uniform", 1), (None, "samples", "all"), (None, "uniform", 2)]
RUNS = [(name, *run) for name, case in CASES.items() for run in (SAMPLING if case.cohort(2) else EVERYBODY)]


@pytest.mark.dealt
@pytest.mark.parametrize("name, cohort, weights, group", RUNS)
def test_plain_loops(comm, out, name, cohort, weights, group):
    case = CASES[name]
    config = job(case, out, group=group, cohort=cohort, weights=weights, reduction="fused")
    assert_path(comm, config, lambda: case.expected(cohort, weights))


@pytest.mark.dealt
@pytest.mark.parametrize(
    "name, group", zip([name for name, case in CASES.items() if case.sets], itertools.cycle([1, "all"]))
)
def test_binding_sets(comm, out, name, group):
    """The points of the reference that projects; without one of its sets they differ."""
    case = CASES[name]
    cohort, family = case.cohort(3), case.family
    problem = family.bound(clients=CLIENTS)
    path, _ = trace(job(case, out, problem, group=group, cohort=cohort, weights="samples"), comm)
    if comm.rank == 0:
        wanted = case.expected(cohort, "samples", **family.project)
        np.testing.assert_allclose(path, wanted, rtol=1e-10, atol=1e-10)
        for fewer in family.partly:
            assert np.abs(wanted - case.expected(cohort, "samples", **fewer)).max() > 1e-3


@pytest.mark.dealt
@pytest.mark.parametrize(
    "name, group", zip([name for name, case in CASES.items() if case.resumed], itertools.cycle(["all", 1]))
)
def test_resumption(comm, out, name, group):
    """Resumed after round 2, within a stage."""
    case = CASES[name]
    cohort = case.cohort(3)
    changes = dict(group=group, cohort=cohort, weights="samples", checkpoint_every=2, keep=9)
    assert_resumed(comm, out, job(case, out, **changes), lambda: case.expected(cohort, "samples"))


#: Cohorts of the two phases of CDMA, and of the calls of FedNest with two inner calls, for each round.
PRESCRIBED = [
    [[0], [1, 4], [2, 3]], [[2, 1], [0], [3]], [[4, 3], [4], [0, 1, 2]], [[1], [2], [0, 4]],
    [[3], [0, 1], [2]],
]  # fmt: skip


@pytest.mark.parametrize("group", [1, "all"])
@pytest.mark.parametrize("name, phases", [("FedNest 4", 3), ("LFedNest 1", 3), ("CDMAONE 1", 2)])
def test_prescribed_cohorts(comm, out, name, phases, group):
    case, cohorts = CASES[name], [one[:phases] for one in PRESCRIBED]
    rows = [(r, j, k) for r, one in enumerate(cohorts, 1) for j, each in enumerate(one) for k in each]
    file = trace_file(out, comm, rows, "round,cohort,client")
    participation = {"availability": {"name": "trace", "file": file}, "weights": "samples"}
    config = job(case, f"{out}/run", group=group, sections={"participation": participation})
    assert_path(comm, config, lambda: case.expected(None, "samples", cohorts))


@pytest.mark.parametrize("group", [1, "all"])
def test_flra_evaluates_the_average_of_the_clients_y(comm, out, group):
    """Each client's y starts at the problem's point; the result is bitwise that of one process."""
    case = CASES["FLRA"]
    result = run(job(case, f"{out}/all", cohort=2, group=group), comm)
    if comm.rank == 0:
        last = case.expected(2, "uniform")[-1]
        assert result.metrics["norm"] == pytest.approx(np.linalg.norm(last), rel=1e-10)
        alone = run(job(case, f"{out}/alone", cohort=2, group=group), SerialComm())
        for block in "xy":
            np.testing.assert_array_equal(alone.point[block], result.point[block])
