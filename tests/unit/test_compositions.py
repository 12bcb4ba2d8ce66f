"""The compositions: distributionally robust learning and meta-learning."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from games import configuration
from oracles import oracle_of, prepared
from patches import patches_of

from mpifed import run
from mpifed.algorithms import MFCGD, AdaMFCGD
from mpifed.parallel.comm import SerialComm
from mpifed.problems.distributional import DistributionallyRobust
from mpifed.problems.maml import LinearMAML

#: A smooth network, so that differences meet no kink.
SMOOTH = {"name": "mlp", "hidden": [5], "activation": "tanh"}
CASES = {
    "robust": lambda: DistributionallyRobust(dataset="patches", clients=3, model=SMOOTH, lam=0.8),
    "maml": lambda: LinearMAML(d=4, clients=3, samples=9, eta=0.2),
}
cases = pytest.mark.parametrize("case", CASES)


@pytest.fixture(autouse=True)
def patches(monkeypatch):
    return patches_of(monkeypatch, 3, 4)


def point(problem) -> torch.Tensor:
    """A random point near the problem's start."""
    rng = np.random.default_rng(0)
    start = problem.initial(rng).get("x", 0)
    return start + torch.from_numpy(0.5 * rng.standard_normal(problem.variables().sizes["x"]))


def named(problem, x):
    return problem.variables().unflatten("x", x)


def figures(problem, x):
    return problem.metrics(x, problem.predict(x, slice(None)) if problem.test_rows else None)


def objective(problem, x: torch.Tensor) -> float:
    """F(x) on all data from the loss functions as printed, client by client."""
    total = 0.0
    for k in range(problem.clients):
        rows, labels = (column.double() for column in problem.client_data(k))
        if isinstance(problem, LinearMAML):
            residual = rows @ x - labels
            adapted = x - problem.eta * rows.T @ residual / len(rows)
            total += float(((rows @ adapted - labels) ** 2).mean() / 2)
        else:
            chances = torch.softmax(problem.model(named(problem, x), rows), dim=1)
            loss = -torch.log(chances[torch.arange(len(rows)), labels.long()]).mean()
            total += problem.lam * float(torch.exp(loss / problem.lam))
    return total / problem.clients


def differences(function, x: torch.Tensor, h=1e-6) -> torch.Tensor:
    """Central differences of a number or a tensor in every coordinate of ``x``: the last axis."""
    steps = h * torch.eye(len(x)).double()
    slopes = [(function(x + e) - function(x - e)) / (2 * h) for e in steps]
    return torch.stack([torch.as_tensor(slope, dtype=torch.float64) for slope in slopes], dim=-1)


@cases
@pytest.mark.parametrize("batched", [False, True])
def test_jacobians_and_outer_gradients_by_central_differences(case, batched):
    problem = prepared(CASES[case]())
    x = point(problem)
    for clients in [[0, 1, 2]] if batched else [[0], [2]]:
        oracle = oracle_of(problem, batch_size=4, batched=batched, clients=clients)
        zeta, xi = oracle.sample(number=0), oracle.sample(number=1)
        value, jacobian = oracle.g_and_jacobian(x, zeta)
        assert value.shape == (len(clients), problem.inner_size)
        torch.testing.assert_close(
            oracle.g(x, zeta), value, rtol=0, atol=1e-14
        )  # ulps of numbers of about one
        # Truncation is of order h² = 1e-12, rounding 1e-16 of values of about 10, over h.
        torch.testing.assert_close(jacobian, differences(lambda v: oracle.g(v, zeta), x), rtol=0, atol=1e-8)
        gradient = oracle.grad_f(value, xi)
        for row in range(len(clients)):
            batch = tuple(column[row] for column in xi.batch)
            slopes = differences(lambda u, batch=batch: problem.outer(u, batch), value[row])
            torch.testing.assert_close(gradient[row], slopes, rtol=1e-8, atol=1e-8)  # values up to 100 here
        assert jacobian.abs().max() > 1e-2 and gradient.abs().max() > 1e-2  # far above the tolerance


@cases
def test_evaluations_mapped_over_clients_equal_one_by_one(case):
    problem = prepared(CASES[case]())
    x = point(problem)
    oracle = oracle_of(problem, batch_size=4, batched=True)
    value, jacobian = oracle.g_and_jacobian(x, oracle.sample(number=0))
    gradient = oracle.grad_f(value, oracle.sample(number=1))
    for k in range(3):
        one = oracle_of(problem, batch_size=4, clients=[k])
        own = one.g_and_jacobian(x, one.sample(number=0))
        mine = *own, one.grad_f(own[0], one.sample(number=1))
        whole = value[k], jacobian[k], gradient[k]
        # Batched kernels add in another order: some ulps of numbers of about ten.
        torch.testing.assert_close(tuple(part[0] for part in mine), whole, rtol=0, atol=1e-12)


@cases
def test_chain_rule_on_full_batches_gives_the_gradient_of_the_exact_objective(case):
    problem = prepared(CASES[case]())
    x, gradient = point(problem), 0.0
    for k in range(problem.clients):  # clients differ in size: one by one
        oracle = oracle_of(problem, clients=[k])
        value, jacobian = oracle.g_and_jacobian(x, oracle.sample(number=0))
        gradient = (
            gradient + (oracle.grad_f(value, oracle.sample(number=1)) @ jacobian[0])[0] / problem.clients
        )
    # Truncation is of order h² = 1e-12, rounding some ulps of values of about 10, 1e-14 over h.
    torch.testing.assert_close(gradient, differences(lambda v: objective(problem, v), x), rtol=0, atol=1e-7)
    metrics = figures(problem, named(problem, x))
    # Sums of at most 60 numbers of about one in another order.
    assert metrics["objective"] == pytest.approx(objective(problem, x), rel=1e-12)
    assert metrics["grad_norm"] == pytest.approx(gradient.norm().item(), rel=1e-12)
    exact = problem.value_and_gradient(named(problem, x))[1]
    torch.testing.assert_close(exact, gradient, rtol=0, atol=1e-12)


@cases
@pytest.mark.parametrize("group", [1, 2, "all"])
def test_training_reduces_the_objective(tmp_path, case, group):
    robust = DistributionallyRobust(dataset="digits", clients=3)
    problem, gamma, share = {"robust": (robust, 0.003, 0.5), "maml": (LinearMAML(clients=3), 0.03, 0.6)}[case]
    for method in (MFCGD(q=5, gamma=0.05), AdaMFCGD(q=5, gamma=gamma)):
        config = configuration(method, problem, tmp_path, rounds=12, batch_size=16, noise=0, group=group)
        result = run(config.model_copy(update={"record": ()}), SerialComm())
        first = result.history
        assert result.metrics["objective"] < share * first["objective"][0], method
        assert result.metrics["grad_norm"] < share * first["grad_norm"][0], method


def test_robust_loss_is_the_value_of_the_penalised_maximum():
    problem = prepared(CASES["robust"]())
    x = named(problem, point(problem))
    losses, lam = problem.client_losses(x)[0], problem.lam
    p = torch.softmax(losses / lam, 0)

    def penalised(p):
        return float(p @ losses - lam * (p * torch.log(3 * p)).sum())

    metrics = figures(problem, x)
    # A handful of operations on numbers of about one.
    assert metrics["robust_loss"] == pytest.approx(penalised(p), abs=1e-13)
    assert metrics["robust_loss"] == pytest.approx(lam * np.log(metrics["objective"] / lam), abs=1e-13)
    rng = np.random.default_rng(0)
    assert all(
        penalised(torch.from_numpy(rng.dirichlet(np.ones(3)))) < metrics["robust_loss"] for _ in range(100)
    )
    assert metrics["mean_loss"] < metrics["robust_loss"] < metrics["worst_loss"]
    assert metrics["worst_loss"] == losses.max().item()


@pytest.mark.parametrize("lam, limit, tolerance", [(1e4, "mean_loss", 1e-4), (3e-3, "worst_loss", 4e-3)])
def test_robust_loss_runs_from_the_mean_to_the_worst(lam, limit, tolerance):
    problem = prepared(DistributionallyRobust(dataset="patches", clients=3, model=SMOOTH, lam=lam))
    metrics = figures(problem, named(problem, problem.initial(np.random.default_rng(0))["x"]))
    # It is var / 2λ above the mean for large λ, with a variance below 1, and λ log 3 below the worst at the
    # most.
    assert metrics["robust_loss"] == pytest.approx(metrics[limit], abs=tolerance)


def test_robust_clients_are_unequal():
    problem = prepared(DistributionallyRobust(dataset="digits", clients=5))
    shares = [problem.client_data(k)[1].double().mean().item() for k in range(5)]
    assert np.ptp(shares) > 0.5  # the mean label is 4.5 for all where labels are not skewed


@pytest.mark.parametrize("eta", [0.0, 0.2])
def test_maml_solution_is_the_minimiser(eta):
    problem = prepared(LinearMAML(d=4, clients=5, samples=12, eta=eta))
    w = problem.solution()
    # Gradients of numbers of about one at the solution of a well-conditioned 4 x 4 system.
    assert problem.value_and_gradient({"w": w})[1].abs().max() < 1e-13
    steps = torch.from_numpy(np.random.default_rng(0).standard_normal((20, 4)))
    # The objective is a strictly convex quadratic: it rises along every direction.
    assert all(objective(problem, w + step) > objective(problem, w) for step in steps)
    if eta == 0:  # plain least squares of all rows together
        rows, targets = (torch.cat(column) for column in zip(*(problem.client_data(k) for k in range(5))))
        expected = torch.linalg.lstsq(rows, targets[:, None]).solution[:, 0]
        torch.testing.assert_close(w, expected, rtol=0, atol=1e-13)  # as above
    metrics = problem.metrics(named(problem, w + torch.tensor([3.0, 0, 4, 0])), None)
    assert metrics["error"] == pytest.approx(5, abs=1e-14)


def test_maml_adapts_to_tasks_without_noise():
    problem = prepared(LinearMAML(d=3, clients=4, samples=30, s=0.0, noise=0.0))
    # One task for all and no noise: its weights are a fixed point of the adaptation with loss 0.
    value, _ = problem.value_and_gradient({"w": problem.solution()})
    assert value.item() == pytest.approx(0, abs=1e-25)  # squares of rounding


def test_maml_solution_of_too_few_rows_is_the_least_norm_one():
    problem = prepared(LinearMAML(d=6, clients=1, samples=2))
    w, rows = problem.solution(), problem.client_data(0)[0]
    # In the span of the rows, and stationary: numbers of about one in float64, amplified by a few.
    assert (w - torch.linalg.pinv(rows) @ (rows @ w)).abs().max() < 1e-12
    assert problem.value_and_gradient({"w": w})[1].abs().max() < 1e-12


def test_maml_rows_of_a_client_depend_on_its_number_alone():
    few, many = (prepared(LinearMAML(clients=clients)) for clients in (2, 30))
    assert all(torch.equal(a, b) for a, b in zip(few.client_data(1), many.client_data(1)))
    assert not torch.equal(few.client_data(1)[0], prepared(LinearMAML(clients=2), seed=1).client_data(1)[0])


def test_maml_data_are_of_the_stated_laws():
    problem = prepared(LinearMAML(d=5, clients=200, samples=50, s=2.0, noise=0.5))
    rows, targets = (torch.stack(column) for column in zip(*(problem.client_data(k) for k in range(200))))
    tasks = torch.linalg.lstsq(rows, targets[..., None]).solution[..., 0]
    residual = targets - (rows @ tasks[..., None])[..., 0]
    # Five standard errors of 50,000 features, of 9,000 degrees of freedom of the residuals, and of 1,000
    # coordinates of tasks about their own mean; these are fitted with an error of 0.5 / √50, which adds 0.001
    # to their deviation.
    assert abs(rows.std() - 1) < 5 / 100_000**0.5
    assert abs((residual.square().sum() / 9_000).sqrt() - 0.5) < 5 * 0.5 / 18_000**0.5
    assert abs((tasks - tasks.mean(0)).std() - 2) < 5 * 2 / 2_000**0.5
