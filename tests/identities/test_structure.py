"""Changes of a problem that change the iterates in a known way: roles, clients, scale, period, cohort."""

from dataclasses import dataclass

import numpy as np
import pytest
from fields import Chain, Field
from games import DX, Game
from identity_games import (
    NOISE,
    ROUNDING,
    VISIBLE,
    Exchanged,
    Rearranged,
    RearrangedChain,
    Renamed,
    Scaled,
    Swapped,
    Timed,
    distance,
    path,
)

from mpifed.algorithms import (
    ALGORITHMS,
    CODASCA,
    FGDA,
    LESGD,
    LIPPAX,
    LSGD,
    MASHA1,
    MASHA2,
    MFCGD,
    SAGDA,
    SCAFFOLD,
    AdaFGDA,
    ComFedL,
    ExtraStepLocalSGD,
    FedDualAvg,
    FedSGDAM,
    FeDualEx,
    LocalAdaSEG,
    LocalDualExtrapolation,
    LocalSCGDM,
    LocalSGDA,
    LocalSGDAPlus,
    MomentumLocalSGDA,
    MomentumLocalSGDAPlus,
    ProxSkipVIPFL,
)
from mpifed.base.settings import build
from mpifed.core.noise import Gaussian
from mpifed.core.sets import L1

RATES = dict(eta_x=0.05, eta_y=0.04)
STEPS = dict(K=3, **RATES)
GLOBAL = dict(K=3, eta_xl=0.05, eta_yl=0.04, eta_xg=1.3, eta_yg=0.9)
HEAVY = dict(p=3, eta_x=0.03, eta_y=0.02, gamma_x=0.1, gamma_y=0.07, beta_x=0.7, beta_y=0.4)
FGDA_RATES = dict(q=3, gamma=0.05, lam=0.04, eta=0.9, alpha=0.3, beta=0.5)
MATRIX = {"name": "adam", "rho": 0.3}
POWER = {"name": "power", "scale": 1.5}
#: Pairs of settings that belong to x and to y.
ROLES = [
    ("gamma", "lam"),
    ("alpha", "beta"),
    *((f"{name}x", f"{name}y") for name in ("eta_", "gamma_", "beta_")),
]
ROLES += [("eta_xl", "eta_yl"), ("eta_xg", "eta_yg")]

#: Name → method, settings, and whether x and y are treated alike.
MINIMAX = {
    **{f"FGDA {sync}": ("FGDA", FGDA_RATES | {"sync_estimator": sync}, True)
       for sync in ("stem", "local", "mean_after", "box")},
    **{f"AdaFGDA {name}": ("AdaFGDA", FGDA_RATES | {"matrix": {"name": name, "rho": 0.3}}, True)
       for name in ("adam", "adabelief", "amsgrad", "norm", "adagrad_norm", "barzilai_borwein")},
    "LocalSGDA": ("LocalSGDA", dict(q=3, **RATES), True),
    "FedNSGDAM": ("FedNSGDAM", HEAVY, True),
    "FedMuonDA": ("FedMuonDA", HEAVY, True),
    "FedSGDAClip": ("FedSGDAClip", HEAVY | {"tau": 1.0}, True),
    "FSGDA": ("FSGDA", GLOBAL, True),
    "FESSGDA": ("FESSGDA", GLOBAL | dict(p=2.0, beta=0.3), False),
    "SmoothedGDA": ("SmoothedGDA", RATES | dict(p=2.0, beta=0.3), False),
    "SAGDA": ("SAGDA", GLOBAL, True),
    "SAGDA stored": ("SAGDA", GLOBAL | {"variates": "stored"}, True),
    **{f"SCAFFOLD {option}": ("SCAFFOLD", dict(K=3, eta_l=0.04, option=option), True)
       for option in ("II", "I", "I_sample")},
    "CODAPlus": ("CODAPlus", dict(K=3, eta=0.05, T=1, prox=1.3), False),
    "CODASCA": ("CODASCA", dict(K=3, eta=0.05, T=999, prox=0.0), True),
    "CDMANC": ("CDMANC", STEPS, True),
    "CDMAONE": ("CDMAONE", STEPS, True),
    "CDMAADA": ("CDMAADA", STEPS, True),
    "FedNest": ("FedNest", dict(T=2, tau=3, alpha=0.05, beta=0.04), False),
    "LFedNest": ("LFedNest", dict(T=2, tau=3, alpha=0.05, beta=0.04), False),
    "LocalAMSGrad": ("LocalAMSGrad", STEPS, True),
    "FedVARP": ("FedVARP", dict(K=3, eta=0.04, eta_g=0.9), True),
    "MIFA": ("MIFA", dict(K=3, eta=0.04), True),
    **{f"FATClipping {per}": ("FATClipping", GLOBAL | dict(lam=1.5, per=per), True)
       for per in ("iteration", "round")},
    "LocalSGDAPlus": ("LocalSGDAPlus", dict(q=3, S=6, **RATES), False),
    "MomentumLocalSGDA": ("MomentumLocalSGDA", dict(q=3, **RATES, beta_x=0.5, beta_y=0.3), True),
    "MomentumLocalSGDAPlus": ("MomentumLocalSGDAPlus", dict(q=3, S=6, **RATES), False),
    "FedSGDAPlus": ("FedSGDAPlus", dict(K=3, S=2, **RATES), False),
    "FedSGDAM": ("FedSGDAM", dict(Q=3, alpha=0.5, beta=0.3, **RATES), True),
    "FedNormSGDA": ("FedNormSGDA", dict(tau=(3, 1, 2), a=0.8, gamma_x=0.06, gamma_y=0.03, **RATES), True),
    "FedNormSGDAPlus": ("FedNormSGDAPlus", dict(tau=(3, 1, 2), S=2, gamma_x=0.06, gamma_y=0.03, **RATES),
    False), "FLRA": ("FLRA", dict(tau=3, eta_1=0.05, eta_2=0.04), False),
}  # fmt: skip


def method(name, **changes):
    cls, settings, _ = MINIMAX[name]
    return build(ALGORITHMS[cls], settings | changes, cls)


@pytest.mark.parametrize("name", [name for name in MINIMAX if name != "FLRA"])
def test_exchanging_the_roles_of_x_and_y(name):
    """min max of f in (x, y) is min max of -f in (y, x), with the settings of x and y exchanged."""
    settings = MINIMAX[name][1]
    exchanged = dict(settings)
    for one, other in ROLES:
        if one in settings and other in settings:
            exchanged[one], exchanged[other] = settings[other], settings[one]
    left = path(method(name), Game())
    gaps = [
        distance(left, np.roll(path(one, Swapped(), noise=Exchanged(scale=0.3)), DX, axis=1))
        for one in (method(name, **exchanged), method(name))
    ]
    if MINIMAX[name][2]:
        assert gaps[0] < ROUNDING and (exchanged == settings or gaps[1] > VISIBLE)
    else:
        assert min(gaps) > VISIBLE


@dataclass
class RearrangedField(Field):
    """The operator in which client k has the data of client ``order[k]``."""

    order: tuple[int, ...] = (0, 1, 2)

    def __post_init__(self):
        self.clients = len(self.order)

    def prepare(self, seed, data_dir=None):
        field = Field()
        field.prepare(seed)
        self.rows, self.M = ([part[k] for k in self.order] for part in (field.rows, field.M))


OPERATORS = {
    "LSGD": LSGD(K=3, eta=0.05),
    "LESGD": LESGD(K=3, eta=0.05),
    "LIPPAX": LIPPAX(K=3, eta=0.05, H=2, L=3.0),
    "ExtraStepLocalSGD": ExtraStepLocalSGD(K=3, eta=0.05),
    "LocalDualExtrapolation": LocalDualExtrapolation(K=3, eta=0.05),
    "FedDualAvg": FedDualAvg(K=3, eta_c=0.05),
    "FeDualEx": FeDualEx(K=3, eta_c=0.05),
    "LocalAdaSEG": LocalAdaSEG(K=3, G_0=3.0, D=0.2),
    "ProxSkipVIPFL": ProxSkipVIPFL(gamma=0.05, p=0.4),
    "MASHA1": MASHA1(gamma=0.05, tau=0.5),
    "MASHA2": build(MASHA2, dict(gamma=0.05, tau=0.5, compression=dict(name="top-k", ratio=0.4)), ""),
}
COMPOSITIONS = {
    "MFCGD": MFCGD(q=3, gamma=0.06, eta=0.9, alpha=0.3, beta=0.6, varrho=0.45, C_g=0.8, C_f=0.5),
    "AdaMFCGD": build(ALGORITHMS["AdaMFCGD"], dict(q=3, gamma=0.06, matrix=MATRIX), ""),
    "ComFedL": ComFedL(q=3, eta=0.06, B_g=2, B_f=3),
    "LocalSCGDM": LocalSCGDM(p=3, eta=0.06, beta=0.4),
    "LocalSCGDM, own u": LocalSCGDM(p=3, eta=0.06, beta=0.4, average_inner=False),
    "LocalMOML": build(ALGORITHMS["LocalMOML"], dict(H=3, eta=0.06, beta=0.4, K_0=2), ""),
    "FedNest": build(ALGORITHMS["FedNestComposition"], dict(T=2, tau=2, alpha=0.06, beta=0.4), ""),
}
#: ``Rearranged`` draws its samples, so it has no full gradients, which three methods need.
PERMUTED = [
    *((Rearranged, name) for name in MINIMAX if name not in ("CDMAONE", "CDMAADA", "SCAFFOLD I")),
    *((RearrangedField, name) for name in OPERATORS),
    *((RearrangedChain, name) for name in COMPOSITIONS),
]


@pytest.mark.parametrize("problem, name", PERMUTED, ids=[name for _, name in PERMUTED])
def test_duplicated_and_permuted_clients(problem, name):
    """Only weighted means over the clients enter."""

    def run(order, weights="samples"):
        one = OPERATORS.get(name) or COMPOSITIONS.get(name) if problem is not Rearranged else method(name)
        if "Norm" in name and problem is Rearranged:  # numbers of local steps belong to the clients
            one = method(name, tau=tuple(one.tau[k] for k in order))
        noise = Renamed(scale=0.3, order=order)
        return path(one, problem(order=order), noise=noise, batch_size=0, weights=weights, rounds=3)

    left = run((0, 1, 2))
    assert distance(left, run((2, 0, 1))) < ROUNDING
    assert distance(left, run((0, 1, 2, 0, 1, 2))) < ROUNDING
    assert distance(left, run((0, 1, 2, 0))) > VISIBLE
    assert distance(left, run((0, 1, 2), "uniform")) > VISIBLE


@pytest.mark.parametrize("name", ["adam", "adabelief", "amsgrad", "norm", "adagrad_norm"])
def test_adafgda_without_offset_does_not_depend_on_the_scale_of_f(name):
    """With ρ = 0, A is proportional to the estimator. A factor 4 changes exponents only, so not a bit
    changes."""

    def gap(rho):
        one = AdaFGDA(**FGDA_RATES, matrix={"name": name, "rho": rho})
        return distance(path(one, Game()), path(one, Scaled(factor=4.0), noise=Gaussian(scale=1.2)))

    assert gap(0.0) == 0.0
    assert gap(0.3) > VISIBLE


#: Method of a number of local steps, problem, samples per step, first sample, and whether the period has no
#: effect.
PERIODIC = {
    "LocalSGDA": (
        lambda q: LocalSGDA(q=q, eta_x=POWER | {"scale": 0.075}, eta_y=POWER | {"scale": 0.06}),
        Game, 1, 0, True,
    ),
    **{
        f"FGDA {sync}": (
            lambda q, sync=sync: FGDA(
                **FGDA_RATES
                | dict(q=q, eta=POWER, alpha={"name": "squared", "c": 0.4}, sync_estimator=sync)
            ),
            Game, 1, 0, sync != "box",
        )
        for sync in ("stem", "local", "mean_after", "box")
    },
    "AdaFGDA": (lambda q: AdaFGDA(**FGDA_RATES | {"q": q}, matrix=MATRIX), Game, 1, 0, False),
    "MomentumLocalSGDA": (
        lambda q: MomentumLocalSGDA(q=q, alpha=POWER | {"scale": 0.9}, beta_x=0.5, beta_y=0.3, **RATES),
        Game, 1, 0, True,
    ),
    # Snapshots are renewed after equal numbers of steps.
    "MomentumLocalSGDAPlus": (
        lambda q: MomentumLocalSGDAPlus(q=q, S=12, beta_x=0.5, beta_y=0.3, **RATES), Game, 1, 0, True,
    ),
    "LocalSGDAPlus": (lambda q: LocalSGDAPlus(q=q, S=12, **RATES), Game, 1, 0, True),
    "FedSGDAM": (lambda q: FedSGDAM(Q=q, **RATES), Game, 1, 0, True),
    "FedSGDAM after": (lambda q: FedSGDAM(Q=q, order="after", **RATES), Game, 1, 0, True),
    "SAGDA": (lambda q: SAGDA(K=q, eta_xl=0.05, eta_yl=0.04), Game, 1, 1, True),
    "SAGDA stored": (lambda q: SAGDA(K=q, eta_xl=0.05, eta_yl=0.04, variates="stored"), Game, 1, 0, True),
    "SCAFFOLD": (lambda q: SCAFFOLD(K=q, eta_l=0.04), Game, 1, 0, True),
    "CODASCA": (lambda q: CODASCA(K=q, eta=0.04, T=999, prox=0.0), Game, 1, 0, True),
    "LSGD": (lambda q: LSGD(K=q, eta=0.05), Field, 1, 0, True),
    "LESGD": (lambda q: LESGD(K=q, eta=0.05), Field, 2, 0, True),
    "LocalAdaSEG": (lambda q: LocalAdaSEG(K=q, G_0=3.0, D=0.2), Field, 2, 0, True),
    "LIPPAX": (lambda q: LIPPAX(K=q, eta=0.05, H=2, L=3.0), Field, 3, 0, True),
    # Mirror maps count all steps, not those of a round.
    "LocalDualExtrapolation": (
        lambda q: LocalDualExtrapolation(K=q, eta=0.05), lambda clients: Field(clients, L1(lam=0.4)), 2, 0,
        True,
    ),
    "FedDualAvg": (
        lambda q: FedDualAvg(K=q, eta_c=0.05), lambda clients: Field(clients, L1(lam=0.4)), 1, 0, True,
    ),
    "FeDualEx": (
        lambda q: FeDualEx(K=q, eta_c=0.05), lambda clients: Field(clients, L1(lam=0.4)), 2, 0, True,
    ),
    "MFCGD": (
        lambda q: MFCGD(q=q, gamma=0.06, eta=POWER, alpha={"name": "squared", "c": 0.4}, beta=0.2,
        varrho=0.5), Chain, 2, 0, True,
    ),
    "ComFedL": (lambda q: ComFedL(q=q, eta=POWER | {"scale": 0.1}), Chain, 2, 0, True),
    "LocalSCGDM": (lambda q: LocalSCGDM(p=q, eta=POWER | {"scale": 0.1}, beta=0.4), Chain, 2, 0, True),
}  # fmt: skip


@pytest.mark.parametrize("name", PERIODIC)
def test_one_client_does_not_depend_on_the_period(name):
    """After 12 steps in rounds of 1 to 12. The noise belongs to the step, so sample addresses are tested
    too."""
    make, problem, samples, first, same = PERIODIC[name]

    def end(q):
        noise = Timed(scale=0.3, q=samples * q, offset=-first)
        return path(make(q), problem(clients=1), noise=noise, rounds=12 // q, batch_size=0)[-1:]

    gaps = [distance(end(12), end(q)) for q in (2, 4)]
    assert max(gaps) < ROUNDING if same else min(gaps) > VISIBLE


@pytest.mark.parametrize("group, reduction", [(1, "exact"), ("all", "fused")])
@pytest.mark.parametrize("name", ["LocalSGDA", "SAGDA stored", "CDMAADA", "FedNest"])
def test_a_cohort_of_all_clients_is_full_participation(name, group, reduction):
    settings = dict(noise=NOISE, weights="samples", group=group, reduction=reduction)
    full, everybody, fewer = (
        path(method(name), Game(clients=5), cohort=size, **settings) for size in (None, 5, 4)
    )
    assert np.array_equal(full, everybody)
    assert distance(full, fewer) > VISIBLE


@pytest.mark.parametrize("name", ["CDMAONE", "CDMAADA", "FedNest", "LFedNest"])
def test_a_fresh_cohort_differs_unless_it_has_all_clients(name):
    for cohort in (None, 2):
        one, other = (
            path(method(name, fresh_cohort=fresh), Game(clients=5), cohort=cohort) for fresh in (False, True)
        )
        assert np.array_equal(one, other) if cohort is None else distance(one, other) > VISIBLE
