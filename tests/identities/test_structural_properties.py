"""What a change of the game must do to the iterates: labels D... are those of the list of structural
properties.

All runs are the package against itself, in float64 and one process.
"""

import numpy as np
import pytest
from games import DX, DY, Game
from identity_games import (
    BINDING,
    ROUNDING,
    VISIBLE,
    Exchanged,
    Rearranged,
    Reflected,
    Renamed,
    Scaled,
    Swapped,
    Timed,
    Turned,
    distance,
    path,
    reflection,
)

from mpifed.algorithms import FGDA, AdaFGDA, LocalSGDA
from mpifed.core.adaptive import AdaBelief, Adam, AMSGrad
from mpifed.core.noise import Gaussian

NOISE = Gaussian(scale=0.3)
RATES = {"q": 3, "gamma": 0.05, "lam": 0.04, "eta": 0.9, "alpha": 0.3, "beta": 0.5}
ROLES = {"q": 3, "gamma": 0.04, "lam": 0.05, "eta": 0.9, "alpha": 0.5, "beta": 0.3}
SYNC = ["stem", "local", "mean_after", "box"]
MATRICES = {
    "adam": {"varrho": 0.8},
    "adam corrected": {"varrho": 0.8, "bias_correction": True},
    "adabelief": {"varrho": 0.8},
    "amsgrad": {"varrho": 0.8},
    "norm": {"vartheta": 0.7},
    "norm root": {"vartheta": 0.7, "root": True},
    "adagrad_norm": {},
    "barzilai_borwein": {},
}


def matrix(name, rho=0.3):
    return {"name": name.split()[0], "rho": rho, **MATRICES[name]}


def methods(rates=RATES):
    """One of each kind: Local-SGDA, every reading of FGDA, AdaFGDA with every matrix."""
    return [
        LocalSGDA(q=3, eta_x=rates["eta"] * rates["gamma"], eta_y=rates["eta"] * rates["lam"]),
        *(FGDA(**rates, sync_estimator=sync) for sync in SYNC),
        *(AdaFGDA(**rates, matrix=matrix(name)) for name in MATRICES),
    ]


NAMES = ["LocalSGDA", *SYNC, *MATRICES]


@pytest.mark.parametrize("method, swapped", list(zip(methods(), methods(ROLES))), ids=NAMES)
def test_d1_exchanging_the_roles_of_x_and_y(tmp_path, method, swapped):
    """min max of f in (x, y) is min max of -f in (y, x), with γ and λ, α and β exchanged."""
    left = path(method, Game(), tmp_path, batch_size=2, noise=NOISE)
    right = path(swapped, Swapped(), tmp_path, batch_size=2, noise=Exchanged(scale=0.3))
    assert distance(left, np.roll(right, DX, axis=1)) < ROUNDING
    same = path(method, Swapped(), tmp_path, batch_size=2, noise=Exchanged(scale=0.3))
    assert distance(left, np.roll(same, DX, axis=1)) > VISIBLE


def rearranged(method, order, out, **settings):
    """The path on the game whose client k is client ``order[k]`` with that client's minibatches and noise."""
    return path(method, Rearranged(order=order), out, noise=Renamed(scale=0.3, order=order), **settings)


@pytest.mark.parametrize("method", methods(), ids=NAMES)
def test_d2_duplicated_clients(tmp_path, method):
    """Only means over the clients enter."""
    left = rearranged(method, (0, 1, 2), tmp_path)
    assert distance(left, rearranged(method, (0, 1, 2, 0, 1, 2), tmp_path)) < ROUNDING
    assert distance(left, rearranged(method, (0, 1, 2, 0), tmp_path)) > VISIBLE


@pytest.mark.parametrize("method", methods(), ids=NAMES)
def test_d3_permuted_clients(tmp_path, method):
    """The clients' weights, samples and estimators go with them; another order of summation rounds
    otherwise."""
    left = rearranged(method, (0, 1, 2), tmp_path, weights="samples")
    assert distance(left, rearranged(method, (2, 0, 1), tmp_path, weights="samples")) < ROUNDING


@pytest.mark.parametrize("first", ["rule", "rho"])
@pytest.mark.parametrize("name", [name for name in MATRICES if name != "barzilai_borwein"])
def test_d4_adafgda_without_offset_does_not_see_the_scale_of_f(tmp_path, name, first):
    """ρ = 0: A is proportional to the estimator. (A = ρ I = 0 divides by zero, so "rho" needs q = 1, where it
    is never used; Barzilai-Borwein starts from ρ I.) A factor 4 only moves exponents, so not a bit
    changes."""
    q = {"rule": 3, "rho": 1}[first]

    def gap(rho):
        method = AdaFGDA(**RATES | {"q": q}, matrix=matrix(name, rho), first_matrix=first)
        left = path(method, Game(), tmp_path, batch_size=2, noise=NOISE)
        return distance(
            left, path(method, Scaled(factor=4.0), tmp_path, batch_size=2, noise=Gaussian(scale=1.2))
        )

    assert gap(0.0) == 0.0
    assert gap(0.3) > VISIBLE


@pytest.mark.parametrize("sync", [None, *SYNC])
def test_d4_other_methods_want_steps_divided_by_the_scale(tmp_path, sync):
    """x moves by steps times gradients: η / 4 on 4 f. Exact, for a factor 4 only moves exponents."""

    def run(factor, eta):
        method = LocalSGDA(q=3, eta_x=0.05 * eta, eta_y=0.04 * eta)
        if sync:
            method = FGDA(**RATES | {"eta": eta}, sync_estimator=sync)
        return path(method, Scaled(factor=factor), tmp_path, batch_size=2, noise=Gaussian(scale=0.3 * factor))

    left = run(1.0, 0.9)
    assert np.array_equal(left, run(4.0, 0.225))
    assert distance(left, run(4.0, 0.9)) > VISIBLE


@pytest.mark.parametrize("method", [*methods(), FGDA(**RATES, project_y="step")], ids=[*NAMES, "step"])
def test_d5_orthogonal_change_of_variables(tmp_path, method):
    """x' = Q x, y' = R y turn the iterates, unless a matrix looks at single coordinates. A ball turns into
    itself."""
    left = path(method, Game(ball=BINDING), tmp_path, batch_size=2, noise=NOISE)
    right = path(method, Reflected(ball=BINDING), tmp_path, batch_size=2, noise=Turned(scale=0.3))
    back = np.concatenate([right[:, :DX] @ reflection(DX), right[:, DX:] @ reflection(DY)], axis=1)
    if isinstance(method, AdaFGDA) and isinstance(method.matrix, Adam | AdaBelief | AMSGrad):
        assert distance(left, back) > VISIBLE
    else:
        assert distance(left, back) < ROUNDING


def alone(method_of_q, q, out):
    """One client after 6 and 12 steps, in rounds of q; the noise of a step does not depend on q."""
    return path(method_of_q(q), Game(clients=1), out, rounds=12 // q, noise=Timed(scale=0.3, q=q))[
        6 // q - 1 :: 6 // q
    ]


@pytest.mark.parametrize("sync", [None, "stem", "local", "mean_after"])
def test_d6_one_client_does_not_see_the_period(tmp_path, sync):
    """The noise of step t sits at another sample of another round for every q, so the addresses are tested
    too."""
    eta = {"name": "power", "scale": 1.5}

    def method(q):
        if sync is None:
            return LocalSGDA(q=q, eta_x={**eta, "scale": 0.075}, eta_y={**eta, "scale": 0.06})
        return FGDA(
            **RATES | {"q": q, "eta": eta, "alpha": {"name": "squared", "c": 0.4}}, sync_estimator=sync
        )

    first = alone(method, 1, tmp_path)
    for q in (2, 3, 6):
        assert distance(first, alone(method, q, tmp_path)) < ROUNDING


@pytest.mark.parametrize("name", MATRICES)
def test_d6_adaptive_matrices_see_the_period(tmp_path, name):
    """They are refreshed at synchronisations alone."""
    paths = [alone(lambda q: AdaFGDA(**RATES | {"q": q}, matrix=matrix(name)), q, tmp_path) for q in (2, 3)]
    assert distance(*paths) > VISIBLE


def test_d6_the_printed_line_numbers_see_the_period(tmp_path):
    paths = [alone(lambda q: FGDA(**RATES | {"q": q}, sync_estimator="box"), q, tmp_path) for q in (2, 3)]
    assert distance(*paths) > VISIBLE


@pytest.mark.parametrize(
    "group, reduction, weights",
    [
        (1, "fused", "uniform"),
        ("all", "fused", "samples"),
        (1, "exact", "samples"),
        ("all", "exact", "uniform"),
    ],
)
def test_d8_a_cohort_of_everybody_is_full_participation(tmp_path, group, reduction, weights):
    settings = dict(batch_size=2, noise=NOISE, weights=weights, group=group, reduction=reduction)
    for method in (LocalSGDA(q=3, eta_x=0.05, eta_y=0.04), FGDA(**RATES)):
        paths = [path(method, Game(clients=5), tmp_path, cohort=cohort, **settings) for cohort in (None, 5)]
        assert np.array_equal(*paths)


def test_d8_a_smaller_cohort_is_not(tmp_path):
    method = LocalSGDA(q=3, eta_x=0.05, eta_y=0.04)
    paths = [
        path(method, Game(clients=5), tmp_path, batch_size=2, noise=NOISE, cohort=cohort) for cohort in (4, 5)
    ]
    assert distance(*paths) > VISIBLE
