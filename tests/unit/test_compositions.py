"""Compositions: distributionally robust learning and meta-learning."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from games import configuration
from oracles import oracle_of, prepared

from mpifed.algorithms import MFCGD
from mpifed.base.settings import build
from mpifed.core.problem import DataFile
from mpifed.data import Omniglot
from mpifed.models import MLP, Conv4
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.problems import DistributionallyRobust, FewShotMAML, LinearMAML, SinusoidMAML, few_shot
from mpifed.simulation.simulation import Simulation

#: Problems with smooth networks, so that differences do not meet a kink.
CASES = {
    "robust": lambda: DistributionallyRobust(dataset="patches", clients=3,
     model=MLP(hidden=(5,), activation="tanh"), lam=0.8),
    "linear": lambda: LinearMAML(d=4, clients=3, samples=9, eta=0.2),
    "sinusoid": lambda: SinusoidMAML(clients=3, samples=9, model=MLP(hidden=(4,), activation="tanh"),
     eta=0.05, tests=5),
    "few shots": lambda: FewShotMAML(clients=3, dataset="digits", ways=3, samples=6,
     model=MLP(hidden=(2,), activation="tanh"), eta=0.3, tests=5),
}  # fmt: skip
cases = pytest.mark.parametrize("case", CASES)
pytestmark = pytest.mark.usefixtures("patches")


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


def start(problem) -> torch.Tensor:
    return problem.initial(np.random.default_rng(0))["x"]


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
        # Ulps of numbers of about one.
        torch.testing.assert_close(oracle.g(x, zeta), value, rtol=0, atol=1e-14)
        # Truncation is of order h² = 1e-12, rounding 1e-16 of values of about 10, over h.
        torch.testing.assert_close(jacobian, differences(lambda v: oracle.g(v, zeta), x), rtol=0, atol=1e-8)
        gradient = oracle.grad_f(value, xi)
        for row in range(len(clients)):
            batch = tuple(column[row] for column in xi.batch)
            slopes = differences(lambda u, batch=batch: problem.outer(u, batch), value[row])
            torch.testing.assert_close(gradient[row], slopes, rtol=1e-8, atol=1e-8)  # values up to 100 here
        assert jacobian.abs().max() > 1e-2 and gradient.abs().max() > 1e-2  # far above the tolerance


@cases
def test_exact_gradient_agrees_with_the_chain_rule(case):
    """Where the objective is printed, also with its central differences."""
    problem = prepared(CASES[case]())
    x, gradient = point(problem), 0.0
    for k in range(problem.clients):  # clients differ in size: one by one
        oracle = oracle_of(problem, clients=[k])
        value, jacobian = oracle.g_and_jacobian(x, oracle.sample(number=0))
        slopes = oracle.grad_f(value, oracle.sample(number=1)) @ jacobian[0]
        gradient = gradient + slopes[0] / problem.clients
    F, exact = problem.value_and_gradient(named(problem, x))
    # Sums of at most 60 numbers of about one in another order.
    torch.testing.assert_close(exact, gradient, rtol=0, atol=1e-12)
    metrics = figures(problem, named(problem, x))
    assert metrics["objective"] == F.item() and metrics["grad_norm"] == exact.norm().item()
    if case in ("robust", "linear"):
        assert F.item() == pytest.approx(objective(problem, x), rel=1e-12)
        # Truncation is of order h² = 1e-12, rounding some ulps of values of about 10, 1e-14 over h.
        slopes = differences(lambda v: objective(problem, v), x)
        torch.testing.assert_close(gradient, slopes, rtol=0, atol=1e-7)


def test_metrics_of_the_losses_of_clients():
    """``test_mixture.py`` compares the robust loss with the penalised maximum over the simplex."""
    problem = prepared(CASES["robust"]())
    x = named(problem, point(problem))
    metrics, losses = figures(problem, x), problem.client_losses(x)[0]
    # A handful of operations on numbers of about one.
    robust_loss = problem.lam * math.log(metrics["objective"] / problem.lam)
    assert metrics["robust_loss"] == pytest.approx(robust_loss, abs=1e-13)
    assert metrics["mean_loss"] == pytest.approx(losses.mean().item(), abs=1e-13)
    assert metrics["worst_loss"] == losses.max().item() > metrics["mean_loss"]


def test_robust_clients_are_heterogeneous():
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


def test_maml_solution_has_least_norm():
    problem = prepared(LinearMAML(d=6, clients=1, samples=2))
    w, rows = problem.solution(), problem.client_data(0)[0]
    # In the span of the rows, and stationary: numbers of about one in float64, amplified by a few.
    assert (w - torch.linalg.pinv(rows) @ (rows @ w)).abs().max() < 1e-12
    assert problem.value_and_gradient({"w": w})[1].abs().max() < 1e-12


def test_maml_rows_depend_only_on_the_client_number():
    few, many = (prepared(LinearMAML(clients=clients)) for clients in (2, 30))
    assert all(torch.equal(a, b) for a, b in zip(few.client_data(1), many.client_data(1)))
    assert not torch.equal(few.client_data(1)[0], prepared(LinearMAML(clients=2), seed=1).client_data(1)[0])


def test_maml_data_have_the_documented_distribution():
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


def directions(d: int, number: int) -> torch.Tensor:
    vectors = torch.from_numpy(np.random.default_rng(4).standard_normal((number, d)))
    return vectors / vectors.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("case", ["sinusoid", "few shots"])
def test_inner_function_is_a_gradient_step_on_the_task(case):
    problem = prepared(CASES[case]())
    x, h = start(problem), 1e-5
    for k in range(3):
        batch = tuple(column.double() for column in problem.client_data(k))
        step = problem.inner(named(problem, x), batch) - x

        def loss(x, batch=batch):
            return problem.task_loss(named(problem, x), batch)

        for v in directions(len(x), 5):
            slope = (loss(x + h * v) - loss(x - h * v)) / (2 * h)
            # Truncation is of order h² = 1e-10, rounding 1e-16 of values of about 10, over h.
            assert (step @ v).item() == pytest.approx(-problem.eta * slope.item(), abs=1e-9)
        assert problem.outer(x + step, batch) == loss(x + step) < loss(x)


def test_sinusoids_have_the_documented_distribution():
    problem = prepared(SinusoidMAML(clients=400, samples=8))
    t, y = (column.reshape(400, 8) for column in problem.client_rows(np.arange(400))[0])
    assert t.abs().max() < 5 and abs(t.mean()) < 5 * (10 / math.sqrt(12)) / 3_200**0.5  # five standard errors
    # a sin(t - b) = a cos(b) sin(t) - a sin(b) cos(t)
    waves = torch.stack([torch.sin(t), -torch.cos(t)], dim=-1)
    weights = torch.linalg.lstsq(waves, y[..., None]).solution
    assert (waves @ weights - y[..., None]).abs().max() < 1e-12  # float64
    a, b = weights.norm(dim=1)[:, 0], torch.atan2(weights[:, 1, 0], weights[:, 0, 0])
    # 20 of 400 are in such a tail.
    assert 0.1 < a.min() < 0.3 and 4.8 < a.max() < 5 and 0 < b.min() < 0.1 and 3.0 < b.max() < math.pi
    few = prepared(SinusoidMAML(clients=2, samples=8))
    assert torch.equal(few.client_data(1)[0], problem.client_data(1)[0])  # rows depend on the number alone


def test_adapted_error_is_that_after_one_step_on_the_held_out_rows():
    problem = prepared(CASES["sinusoid"]())
    point = named(problem, start(problem))
    parts = [problem.predict(point, rows) for rows in (slice(0, 2), slice(2, 5))]
    metrics = problem.metrics(point, torch.cat(parts))
    for name, stepped in (("test_error", False), ("adapted_error", True)):
        errors = []
        for n in range(5):
            at = problem.adapted(point, tuple(part[n] for part in problem._support)) if stepped else point
            residuals = problem.model(at, problem._query[0][n]) - problem._query[1][n]
            errors.append((residuals**2).mean().item())
        # Mapped kernels add in another order.
        assert metrics[name] == pytest.approx(np.mean(errors), rel=1e-12)
    assert problem._support[0].shape == (5, 10, 1) and problem._query[0].shape == (5, 100, 1)


@pytest.fixture
def drawings(monkeypatch):
    """Seven and six characters with four drawings each: character c is a square of c + 3 dots, placed by
    each drawing."""

    def part(first, count):
        images = np.zeros((count, 4, 105, 105), dtype=bool)
        for c in range(count):
            for i in range(4):
                images[c, i, 20 * i : 20 * i + 3 * (first + c) + 9, 5:20] = True
        return images

    omniglot = Omniglot(part(0, 7), part(7, 6), {"images_background.npz": DataFile("here", "0")})
    monkeypatch.setattr(few_shot, "load_omniglot", lambda data_dir: omniglot)
    return omniglot


def test_rows_hold_one_drawing_of_each_character_of_the_task(drawings):
    problem = prepared(FewShotMAML(clients=5, ways=4, tests=3, samples=3))
    ink = drawings.background.mean((1, 2, 3))
    for k in range(5):
        (images,) = problem.client_data(k)
        assert images.shape == (3, 4, 1, 28, 28) and problem.client_size(k) == 3
        # Averages over overlapping windows keep the share of ink but for the edges.
        characters = [int(np.abs(ink - share).argmin()) for share in images.mean((0, 2, 3, 4)).tolist()]
        assert len(set(characters)) == 4
        for i in range(3):
            inked = (images[i, :, 0].sum(-1) > 0).int()
            assert (inked.argmax(-1) == 20 * i * 28 // 105).all()  # the first row of dots of drawing i
    assert not torch.equal(*(problem.client_data(k)[0] for k in (0, 1))), "clients have different tasks"
    assert list(problem.files) == ["images_background.npz"]
    again, other = prepared(FewShotMAML(clients=2, ways=4)), prepared(FewShotMAML(clients=2, ways=4), seed=1)
    assert torch.equal(again.client_data(1)[0][:3], problem.client_data(1)[0])
    assert not torch.equal(other.client_data(1)[0], again.client_data(1)[0])
    held_out = torch.stack(problem._held_out).mean((1, 3, 4, 5))
    # Characters of the evaluation part have more ink.
    assert held_out.min() > 1.02 * torch.from_numpy(ink).max()


def test_loss_and_accuracy_of_a_few_images(drawings):
    problem = prepared(FewShotMAML(clients=2, ways=2, tests=3, model="linear", size=7))
    point = named(problem, torch.zeros(2 * 49 + 2).double())
    images = problem.client_data(0)[0][:3].double()
    assert problem.task_loss(point, (images,)).item() == pytest.approx(math.log(2), rel=1e-12)
    step = problem.adapted(point, (images[:1],))["fc1.weight"]
    # By hand for softmax regression from 0: half the difference of the two images, by halves.
    expected = problem.eta * (images[0, 0] - images[0, 1]).flatten() / 4
    torch.testing.assert_close(step, torch.stack([expected, -expected]), rtol=0, atol=1e-14)
    for n, accuracy in enumerate(problem.predict(point, slice(0, 3)).tolist()):
        task = problem._held_out[n].double()
        W, b = problem.adapted(point, (task[:1],)).values()
        guesses = (task[1:].flatten(2) @ W.T + b).argmax(-1)
        assert accuracy == pytest.approx((guesses == torch.tensor([0, 1])).double().mean().item())  # float64
    broken = problem.predict(point | {"fc1.weight": point["fc1.weight"] * torch.nan}, slice(0, 1))
    assert math.isnan(problem.metrics(point, broken)["accuracy"])


def test_accuracy_after_a_step_on_several_images():
    """Softmax regression from 0, whose first step is the mean of (1[c = label] - 1/3) u over six images. The
    accuracies of the other four images of each class differ from task to task."""
    problem = prepared(FewShotMAML(dataset="digits", clients=1, ways=3, shots=2, samples=6, tests=9,
                                   model="linear"))  # fmt: skip
    point = named(problem, torch.zeros(3 * 64 + 3).double())
    expected = []
    for task in problem._held_out:
        assert len(task) == 6
        residuals = torch.eye(3).double() - 1 / 3
        W = problem.eta * torch.einsum("cl,nlp->cp", residuals, task[:2].flatten(2).double()) / 6
        guesses = (task[2:].flatten(2).double() @ W.T).argmax(-1)
        expected.append((guesses == torch.arange(3)).double().mean().item())
    assert len(set(expected)) > 3
    assert problem.predict(point, slice(None)).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("settings, message", [
    (dict(dataset="digits", ways=11), "at least ways = 11 classes.*got 10 classes"),
    (dict(dataset="digits", samples=3, shots=3), "than shots = 3 test images .* samples = 3 .* and 3 images"),
    (dict(dataset="digits", samples=60, shots=40), "shots = 40 test images .* and 21 images"),
    (dict(dataset="digits", model="lenet5"), "28 x 28 or 32 x 32, got 8 x 8"),
])  # fmt: skip
def test_unsuitable_data_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        FewShotMAML(**settings).prepare(0)


def test_settings_are_checked():
    with pytest.raises(ValueError, match="did you mean 'omniglot'"):
        build(FewShotMAML, {"dataset": "omniglott"}, "problem")
    with pytest.raises(ValueError, match="takes images"):
        SinusoidMAML(model="conv4").prepare(0)


def test_network_with_too_large_a_jacobian_is_refused(tmp_path):
    problem = FewShotMAML(clients=1, dataset="digits", ways=2, model=Conv4(filters=64))
    with pytest.raises(
        CollectiveError, match="needs at least 92.7 GiB of memory .* for the clients' records"
    ):
        config = configuration(MFCGD(q=2), problem, tmp_path, noise=0, client_store="device")
        Simulation.from_settings(config, SerialComm())
