"""Limits of methods with control variates, and what a method finds on a problem without y."""

import dataclasses

import numpy as np
import pytest
import torch
from baselines import CLASSES, PLUGINS, Beside, Half, Monotone, Quadratic, plugin
from everything import METHODS, method
from games import configuration, trace

from mpifed import run
from mpifed.algorithms import ALGORITHMS, CODASCA, FSGDA, SAGDA, SCAFFOLD, FedAvg, LocalSGDA
from mpifed.parallel.comm import SerialComm

#: Rounding alone: some hundred operations a round on numbers of about 1, and no round enlarges a difference.
ROUNDING = 1e-12
ETA, K, N, COHORT = 0.04, 5, 20, 4


@pytest.mark.parametrize("name", CLASSES)
def test_a_method_is_a_file_of_forty_lines(name):
    assert len((PLUGINS / f"{name}.py").read_text().splitlines()) <= 40


def error(algorithm, problem, out, weights="uniform", rounds=300, cohort=COHORT) -> float:
    """The distance from the exact solution, relative to that of the start, 0."""
    config = configuration(
        algorithm, problem, out, rounds=rounds, batch_size=1, noise=0, cohort=cohort, weights=weights,
        group="all",
    )  # fmt: skip
    path, _ = trace(config, SerialComm())
    solution = problem.solution(problem.sizes() if weights == "samples" else [1] * N).numpy()
    return np.linalg.norm(path[-1] - solution) / np.linalg.norm(solution)


def by_count(whole):
    """The method with cohort / clients in place of the cohort's weight."""

    class ByCount(type(whole)):
        def server_round(self, now, shared, mean):
            super().server_round(
                type(now)(**vars(now) | {"cohort_weight": now.cohort / now.clients}), shared, mean
            )

    return ByCount(**{field.name: getattr(whole, field.name) for field in dataclasses.fields(whole)})


FEDAVG, LOCAL_SGDA = FedAvg(K=K, eta=ETA), LocalSGDA(q=K, eta_x=ETA, eta_y=ETA)
#: A problem, a method whose variates reach its solution, and the method without them.
LIMITS = {
    "SCAFFOLD": (Quadratic, SCAFFOLD(K=K, eta_l=ETA), FEDAVG),
    "SCAFFOLD, option I": (Quadratic, SCAFFOLD(K=K, eta_l=ETA, option="I"), FEDAVG),
    "SCAFFOLD with y": (Monotone, SCAFFOLD(K=K, eta_l=ETA), LOCAL_SGDA),
    "SAGDA, stored": (Monotone, SAGDA(K=K, eta_xl=ETA, eta_yl=0.03, variates="stored"), LOCAL_SGDA),
    "CODASCA": (
        Monotone,
        CODASCA(K=K, eta=ETA, prox=0.3, T=20, growth=1, decay=1.0, keep_variates=True),
        LOCAL_SGDA,
    ),
}


@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("name", LIMITS)
def test_variates_reach_the_exact_solution_with_a_cohort(tmp_path, name, weights):
    """1e-8 with 4 of 20 clients; without variates the drift is left, with all clients too."""
    problem, method, without = LIMITS[name]
    assert error(method, problem(N), tmp_path, weights) < 1e-8
    for cohort in (COHORT, None):
        assert error(without, problem(N), tmp_path, weights, cohort=cohort) > 1e-3


@pytest.mark.parametrize("name", LIMITS)
def test_the_share_is_one_of_weight_and_not_of_count(tmp_path, name):
    problem, method, _ = LIMITS[name]
    assert error(by_count(method), problem(N), tmp_path, "uniform") < 1e-8
    assert error(by_count(method), problem(N), tmp_path, "samples") > 1e-3


@pytest.mark.parametrize("group", [1, 2, "all"])
@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_fsgda_without_y_is_fedavg_bit_for_bit(tmp_path, group, weights):
    settings = dict(rounds=5, cohort=3, weights=weights, group=group)
    ours = FSGDA(K=3, eta_xl=0.05, eta_yl=0.7, eta_xg=1.3, eta_yg=0.2)
    paths = [
        trace(configuration(one, Half(clients=5), tmp_path, **settings), SerialComm())[0]
        for one in (ours, plugin("fedavg", K=3, eta=0.05, eta_g=1.3))
    ]
    np.testing.assert_array_equal(*paths)
    assert np.abs(np.diff(paths[0], axis=0)).max() > 1e-2


#: SLIPPAX's smoothing radius depends on the number of variables.
ALONE = [name for name in METHODS if ALGORITHMS[name].family in ("minimax", "operator") and name != "SLIPPAX"]


@pytest.mark.parametrize("group", [1, 2, "all"])
@pytest.mark.parametrize("name", ALONE)
def test_without_y_x_goes_as_beside_a_y_that_does_not_touch_it(tmp_path, name, group):
    """Its noise is the same in both: a block's numbers come before those of the next block."""
    alone, beside = (
        trace(
            configuration(method(name), problem(clients=4), tmp_path, rounds=4, group=group),
            SerialComm(),
        )[0]
        for problem in (Half, Beside)
    )
    assert alone.shape == (4, 3) and np.abs(np.diff(alone, axis=0)).max() > 1e-4
    np.testing.assert_allclose(alone, beside[:, :3], rtol=ROUNDING, atol=ROUNDING)


def test_the_point_of_a_minimisation_has_one_block(tmp_path):
    config = configuration(FSGDA(K=2, eta_xl=0.1, eta_yl=0.1), Half(), tmp_path)
    result = run(config.model_copy(update={"record": ("x",)}), SerialComm())
    assert set(result.point) == {"x"} and torch.isfinite(result.point["x"]).all()
    assert result.parameters["x"]["u"].shape == (2,)
