"""Bilevel problems: known derivatives and solutions, limits of the methods, and their identities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from games import Game, configuration

from mpifed import Bilevel, run
from mpifed.algorithms import FedNest, FedNestBilevel, LFedNestBilevel, ShroFBO, SimFBO
from mpifed.base.errors import ConfigError
from mpifed.parallel.comm import CollectiveError
from mpifed.problems import DataCleaning, QuadraticBilevel

SMALL = dict(clients=4, dx=3, dy=4)
LOCAL = dict(eta_x=0.05, eta_y=0.05, eta_z=0.05)


def prepared(**settings) -> QuadraticBilevel:
    problem = QuadraticBilevel(**SMALL | settings)
    problem.prepare(3)
    return problem


def upper_value(problem: QuadraticBilevel, x: np.ndarray) -> float:
    """Return Φ(x), the mean over the clients of f_n(x, y*(x))."""
    point = {"x": torch.from_numpy(x)}, {"y": torch.from_numpy(problem.y_star(x))}
    values = [problem.upper(*point, problem.client_data(n)) for n in range(problem.clients)]
    return float(torch.stack(values).mean())


def test_the_hypergradient_and_the_solution_of_the_quadratic():
    problem = prepared()
    x, steps = np.random.default_rng(0).standard_normal(3), 1e-4 * np.eye(3)
    slopes = [(upper_value(problem, x + step) - upper_value(problem, x - step)) / 2e-4 for step in steps]
    # Differences of a quadratic are exact up to rounding, 1e-16 / 1e-4 times values of order 10.
    np.testing.assert_allclose(slopes, problem.hypergradient(x), atol=1e-9)
    best, y = (part.numpy() for part in problem.solution())
    assert np.abs(problem.hypergradient(best)).max() < 1e-12  # rounding
    np.testing.assert_allclose(y, problem.y_star(best))
    slopes = [
        torch.func.grad(problem.lower, 1)(
            {"x": torch.from_numpy(best)}, {"y": torch.from_numpy(y)}, problem.client_data(n)
        )["y"]
        for n in range(4)
    ]
    assert torch.stack(slopes).mean(0).abs().max() < 1e-12
    assert min(map(float, map(torch.linalg.norm, slopes))) > 0.1, "clients differ"


def final(method, tmp_path, rounds, **settings) -> dict[str, float]:
    config = configuration(
        method, QuadraticBilevel(**SMALL | settings), tmp_path, rounds=rounds, noise=0, batch_size=0,
        group="all", eval_every=rounds,
    )  # fmt: skip
    return run(config).metrics


SERVER = dict(gamma_x=0.1, gamma_y=0.2, gamma_z=0.2)
SLOW = dict(gamma_x=0.05, gamma_y=0.05, gamma_z=0.05)


@pytest.mark.parametrize("method, rounds, settings", [
    (SimFBO(tau=1, **LOCAL, **SERVER), 600, {}),
    (SimFBO(tau=4, **LOCAL, **SLOW), 300, {"heterogeneity": 0.0}),
    (FedNestBilevel(T=6, tau=1, alpha=0.3, beta=0.5, J=36, ell=0.5), 50, {}),
])  # fmt: skip
def test_exact_limits(tmp_path, method, rounds, settings):
    """One local step has no drift, and identical clients do not drift apart."""
    found = final(method, tmp_path, rounds, **settings)
    assert max(found["error"], found["grad_phi"], found["lower_error"]) < 1e-8, found


@pytest.mark.parametrize("method, rounds", [
    (SimFBO(tau=4, **LOCAL, **SLOW), 150),
    (FedNestBilevel(T=6, tau=1, alpha=0.3, beta=0.5, J=2, ell=0.5), 40),
    (LFedNestBilevel(T=6, tau=1, alpha=0.3, beta=0.5, J=30, ell=0.5), 40),
])  # fmt: skip
def test_other_limits(tmp_path, method, rounds):
    """Local steps of different clients drift; a short series and separate series are biased."""
    assert 1e-3 < final(method, tmp_path, rounds)["grad_phi"] < 1.0


@dataclass
class Descent(Bilevel):
    """The minimax problem ``Game`` as a bilevel problem with the lower function g = -f."""

    clients: int = 3

    def prepare(self, seed, data_dir=None):
        self.game = Game(clients=self.clients)
        self.game.prepare(seed)
        self.variables, self.initial = self.game.variables, self.game.initial
        self.client_data = self.game.client_data

    def upper(self, x, y, batch):
        return self.game.loss(x, y, batch)

    def lower(self, x, y, batch):
        return -self.game.loss(x, y, batch)


def end(method, problem, tmp_path) -> np.ndarray:
    config = configuration(method, problem, tmp_path, rounds=4, noise=0, batch_size=0)
    return np.concatenate([*run(config).point.values()])


def test_fednest_without_series_is_fednest_for_minimax_problems(tmp_path):
    nest = dict(T=2, tau=2, alpha=0.05, beta=0.04)
    lower = FedNestBilevel(**nest, J=0, ell=1e-300)  # then p is 0 up to rounding
    found = end(lower, Descent(), tmp_path / "a"), end(FedNest(**nest), Game(clients=3), tmp_path / "b")
    np.testing.assert_allclose(*found, rtol=0, atol=1e-12)  # rounding of other sums


def test_shrofbo_with_equal_steps_is_simfbo(tmp_path):
    settings = dict(tau=3, **LOCAL, **SERVER)
    one, other = (
        end(cls(**settings), QuadraticBilevel(**SMALL), tmp_path / cls.__name__) for cls in (SimFBO, ShroFBO)
    )
    np.testing.assert_array_equal(one, other)


def test_separate_series_exclude_other_options():
    with pytest.raises(ConfigError, match='separate: expected outer = "sgd" and truncation = "sum"'):
        FedNestBilevel(T=1, tau=1, alpha=0.1, beta=0.1, J=1, ell=0.1, separate=True)


def test_effective_steps_need_normalized_directions():
    with pytest.raises(ConfigError, match="tau_eff has no effect without normalized = true"):
        SimFBO(tau=3, tau_eff=2.0, **LOCAL, **SERVER)


def test_wrong_labels_get_small_weights(tmp_path):
    rates = dict(eta_x=30, eta_y=0.3, eta_z=0.1, gamma_x=30, gamma_y=0.3, gamma_z=0.1)
    config = configuration(
        SimFBO(tau=5, **rates), DataCleaning(clients=4, dataset="digits"), tmp_path, rounds=40, noise=0,
        batch_size=32, group="all", eval_every=40, dtype="float32",
    )  # fmt: skip
    found = run(config).metrics
    assert found["f1"] > 0.8 and found["accuracy"] > 0.8  # 0.9 on another seed, and 0 at the start


def test_rows_of_data_cleaning():
    problem = DataCleaning(clients=3, dataset="digits", corrupted=0.25)
    problem.prepare(1)
    sizes = [problem.client_size(n) for n in range(3)]
    (total,) = problem.variables()["x"]["logits"]
    assert total == sum(sizes)
    positions = torch.cat([problem.client_data(n)[2] for n in range(3)])
    assert positions.tolist() == list(range(total))
    given = np.concatenate([problem.client_data(n)[1].numpy() for n in range(3)])
    correct = np.concatenate([problem.client_labels(n) for n in range(3)])
    assert ((given != correct) == problem._wrong).all()
    assert abs(problem._wrong.mean() - 0.25) < 0.1  # five standard deviations of 670 labels
    for n in range(3):
        train, _, _, validation, labels = problem.client_data(n)
        assert len(train) == len(validation) == len(labels) == sizes[n]


def test_f1_of_the_training_labels_is_a_metric_of_the_test_split_only():
    problem = DataCleaning(clients=3, dataset="digits", validation=0.1)
    problem.prepare(1)
    logits = {"logits": torch.from_numpy(np.where(problem._wrong, -1.0, 1.0))}
    for one, names in ((problem, {"f1"}), (problem.tested_on("validation"), set())):
        found = one.metrics(logits, {}, torch.zeros(one.test_rows, 10))
        assert found.keys() == {"accuracy", "worst_accuracy"} | names and found.get("f1", 1) == 1


def test_halves_of_sorted_data_have_the_same_classes(tmp_path):
    """Rows of a client are in the order of the data set, which may be sorted by class."""
    rows = [f"{n},{n // 100}" for n in range(200)]
    (tmp_path / "sorted.csv").write_text("\n".join(["a,label", *rows]))
    table = {"name": "table", "file": str(tmp_path / "sorted.csv"), "target": "label", "test": 0.2}
    problem = DataCleaning(clients=2, dataset=table)
    problem.prepare(1)
    for n in range(2):
        validation = problem.client_data(n)[4]
        # Five standard deviations of the mean of 40 labels.
        assert abs(problem.client_labels(n).mean() - 0.5) < 0.4
        assert abs(validation.double().mean() - 0.5) < 0.4


def test_a_client_with_one_sample_is_refused(tmp_path):
    config = configuration(
        SimFBO(tau=1, **LOCAL, **SERVER), DataCleaning(clients=1400, dataset="digits"), tmp_path
    )
    with pytest.raises(
        CollectiveError, match="expected at least 2 training samples of every client, found 1"
    ):
        run(config)
