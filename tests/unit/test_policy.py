"""Policy evaluation: trajectories, loss by hand, solution, MSPBE, constants, both ways of sampling."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from games import configuration, started
from oracles import oracle_of, prepared

from mpifed.algorithms import LSGD, LocalSGDA
from mpifed.core.streams import Stream, generator
from mpifed.problems import MSPBE

PROBLEMS = [
    prepared(MSPBE(clients=3, d=3, states=8, samples=12), 1),
    prepared(MSPBE(clients=2, d=4, states=6, samples=40, gamma=0.5, rho=0.0, heterogeneity=1.0), 1),
    prepared(MSPBE(clients=3, d=3, states=8, samples=12, sampling="markov"), 1),
]


def transitions(problem, n) -> list[np.ndarray]:
    rows = problem.client_data(n) or problem.full_batch(n)
    return [column.numpy() for column in rows]


@pytest.mark.parametrize("problem", PROBLEMS)
def test_loss_and_solution_by_hand(problem):
    d, rng = problem.d, generator(0, "point")
    theta, w = rng.standard_normal((2, d))
    A, b, C = np.zeros((d, d)), np.zeros(d), np.zeros((d, d))
    for n in range(problem.clients):
        A_n, b_n, C_n = np.zeros((d, d)), np.zeros(d), np.zeros((d, d))
        for phi, r, after in zip(*transitions(problem, n)):
            A_n += np.outer(phi, phi - problem.gamma * after) / problem.samples
            b_n += r * phi / problem.samples
            C_n += np.outer(phi, phi) / problem.samples
        expected = w @ (b_n - A_n @ theta) - w @ C_n @ w / 2 + problem.rho / 2 * theta @ theta
        point = {"theta": torch.from_numpy(theta)}, {"w": torch.from_numpy(w)}
        value = problem.loss(*point, tuple(map(torch.from_numpy, transitions(problem, n))))
        assert float(value) == pytest.approx(expected, rel=1e-12)  # sums of some tens of terms
        A, b, C = A + A_n / problem.clients, b + b_n / problem.clients, C + C_n / problem.clients
    star, best = (block.numpy() for block in problem.solution())
    inverse = np.linalg.inv(C)
    # Solutions of systems with condition numbers of up to 1e4.
    np.testing.assert_allclose(A.T @ inverse @ (b - A @ star), problem.rho * star, atol=1e-11)
    np.testing.assert_allclose(C @ best, b - A @ star, atol=1e-11)
    metrics = problem.metrics({"theta": torch.from_numpy(theta)}, {"w": torch.from_numpy(w)}, None)
    error = b - A @ theta
    value = error @ inverse @ error / 2 + problem.rho / 2 * theta @ theta
    assert metrics["mspbe"] == pytest.approx(value, rel=1e-10)
    distances = np.linalg.norm(theta - star), np.linalg.norm(w - best)
    assert (metrics["theta_error"], metrics["w_error"]) == pytest.approx(distances)
    response = problem.best_response({"theta": torch.from_numpy(theta)}).numpy()
    np.testing.assert_allclose(C @ response, error, atol=1e-11)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_gradients_vanish_at_the_solution(problem):
    oracle = oracle_of(problem, 0, batched=True)
    for gradient in oracle.grad(*problem.solution(), oracle.full_batch):
        np.testing.assert_allclose(gradient.mean(0), 0, atol=1e-12)  # roundings of numbers of about 1


@pytest.mark.parametrize("problem", PROBLEMS)
def test_constants(problem):
    largest, C = 0.0, np.zeros((problem.d, problem.d))
    for n in range(problem.clients):
        batch = tuple(map(torch.from_numpy, transitions(problem, n)))
        at = torch.zeros(problem.d, dtype=torch.float64), torch.zeros(problem.d, dtype=torch.float64)
        H = torch.autograd.functional.hessian(
            lambda x, y: problem.loss({"theta": x}, {"w": y}, batch), at
        )  # fmt: skip
        H = torch.cat([torch.cat(part, 1) for part in H]).numpy()
        largest, C = max(largest, np.linalg.norm(H, 2)), C - H[problem.d :, problem.d :] / problem.clients
    expected = {"L": largest, "mu": np.linalg.eigvalsh(C)[0]}
    assert problem.constants() == pytest.approx(expected, rel=1e-10)


def test_a_trajectory_is_a_chain_of_unit_features():
    phi, _, after = transitions(PROBLEMS[0], 0)
    np.testing.assert_array_equal(phi[1:], after[:-1])
    np.testing.assert_allclose(np.linalg.norm(phi, axis=1), 1, rtol=1e-14)
    long = prepared(MSPBE(clients=1, d=2, states=3, samples=20_000, heterogeneity=0.0))
    # Every state is visited, and the frequencies of the transitions satisfy the balance of flows.
    phi, _, after = transitions(long, 0)
    states, now = np.unique(phi, axis=0, return_inverse=True)
    assert len(states) == 3 and (np.bincount(now) > 100).all()
    assert np.abs(np.bincount(now[:-1]) - np.bincount(now[1:])).max() <= 1


def test_markov_samples_are_consecutive_and_unbiased():
    problem, size = PROBLEMS[2], 5
    phi, r, after = problem.draw(Stream(0, "sample", np.arange(3), 1, 600), size)
    assert phi.shape == (3, 600, size, 3) and r.shape == (3, 600, size)
    for n in range(3):
        own = transitions(problem, n)
        starts = [int(np.flatnonzero((own[0] == features[0]).all(1) & (own[1] == rewards[0]))[0])
                  for features, rewards in zip(phi[n], r[n])]  # fmt: skip
        for k in range(20):
            rows = [(row + j) % 12 for row in np.flatnonzero((own[0] == phi[n, k, 0]).all(1))
                    for j in range(size)]  # fmt: skip
            blocks = np.array(rows).reshape(-1, size)
            assert any((own[0][block] == phi[n, k]).all() and (own[2][block] == after[n, k]).all()
                       for block in blocks)  # fmt: skip
        assert len(set(starts)) > 4
    # Means over 600 samples: four standard deviations of a mean of rewards of about 1.
    means = r.mean(axis=(1, 2)), np.stack([transitions(problem, n)[1].mean() for n in range(3)])
    np.testing.assert_allclose(*means, atol=4 * r.std() / 600**0.5)


def test_singular_means_are_refused():
    with pytest.raises(ValueError, match="the mean of the C_n is singular .* d = 9 features: expected fewer"):
        MSPBE(clients=1, d=9, states=20, samples=5).prepare(0)
    flat = prepared(MSPBE(clients=2, d=2, states=6, rho=0.0))
    phi, rewards, _ = flat._columns
    flat._columns = phi, rewards, phi / flat.gamma
    with pytest.raises(ValueError, match="the mean of the A_n is singular: expected rho > 0"):
        flat._set_means()


@pytest.mark.parametrize("sampling", ["iid", "markov"])
def test_methods_for_games_have_the_full_batch(sampling):
    """With batch size 0, one step of LSGD on the game is one step of Local-SGDA, drawn samples or not."""
    points = []
    for method in (LSGD(K=1, eta=0.1), LocalSGDA(q=1, eta_x=0.1, eta_y=0.1)):
        problem = MSPBE(clients=3, d=3, states=8, samples=12, sampling=sampling)
        config = configuration(method, problem, "unused", batch_size=0, noise=0)
        points.append(started(config, 1).point())
    torch.testing.assert_close(*points, rtol=0, atol=1e-14)  # rounding
    assert points[0].norm() > 0.01


def test_clients_differ_by_a_multiple_of_the_same_noise(monkeypatch):
    seen, trajectories = [], MSPBE._trajectories

    def record(self, chances, uniform):
        seen.append(np.log(np.diff(chances, axis=2, prepend=0.0)))
        states = trajectories(self, chances, uniform)
        assert (states[:, 0] == np.floor(uniform[:, 0] * self.states)).all()
        return states

    monkeypatch.setattr(MSPBE, "_trajectories", record)
    for heterogeneity in (0.0, 0.5, 1.0):
        prepared(MSPBE(clients=3, d=3, states=8, samples=12, heterogeneity=heterogeneity))
    half, whole = (logits - seen[0] for logits in seen[1:])
    half, whole = (part - part.mean(axis=2, keepdims=True) for part in (half, whole))  # without normalisation
    assert abs(half).max() > 0.1
    np.testing.assert_allclose(whole, 2 * half, atol=1e-12)  # logarithms of chances of 1e-3 and more
