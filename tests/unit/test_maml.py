"""Meta-learning of sinusoids and of few-shot classification."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from games import configuration
from oracles import oracle_of, prepared

from mpifed import run
from mpifed.algorithms import MFCGD, AdaMFCGD
from mpifed.base.settings import build
from mpifed.core.problem import DataFile
from mpifed.data import Omniglot
from mpifed.models import MLP, Conv4
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.problems import FewShotMAML, SinusoidMAML, few_shot
from mpifed.simulation.simulation import Simulation

#: Smooth networks, so that differences meet no kink.
CASES = {
    "sinusoid": lambda: SinusoidMAML(
        clients=3, samples=9, model=MLP(hidden=(4,), activation="tanh"), eta=0.05, tests=5
    ),
    "few shots": lambda: FewShotMAML(
        clients=3,
        dataset="digits",
        ways=3,
        samples=6,
        model=MLP(hidden=(2,), activation="tanh"),
        eta=0.3,
        tests=5,
    ),
}
cases = pytest.mark.parametrize("case", CASES)


def start(problem) -> torch.Tensor:
    return problem.initial(np.random.default_rng(0))["x"]


def named(problem, x):
    return problem.variables().unflatten("x", x)


def directions(d: int, number: int) -> torch.Tensor:
    vectors = torch.from_numpy(np.random.default_rng(4).standard_normal((number, d)))
    return vectors / vectors.norm(dim=1, keepdim=True)


@cases
def test_the_inner_map_is_a_step_down_the_loss_of_the_task(case):
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


@cases
def test_jacobians_by_central_differences_and_mapped_over_clients(case):
    problem = prepared(CASES[case]())
    x, oracle, h = start(problem), oracle_of(problem, batch_size=2, batched=True), 1e-5
    zeta, xi = oracle.sample(number=0), oracle.sample(number=1)
    value, jacobian = oracle.g_and_jacobian(x, zeta)
    gradient = oracle.grad_f(value, xi)
    assert jacobian.shape == (3, len(x), len(x))
    for v in directions(len(x), 5):
        slope = (oracle.g(x + h * v, zeta) - oracle.g(x - h * v, zeta)) / (2 * h)
        torch.testing.assert_close(
            jacobian @ v, slope, rtol=0, atol=1e-8
        )  # truncation h² and rounding 1e-15 / h
    assert (jacobian - torch.eye(len(x))).abs().max() > 1e-2  # far above the tolerance
    for k in range(3):
        one = oracle_of(problem, batch_size=2, clients=[k])
        own = one.g_and_jacobian(x, one.sample(number=0))
        mine = *own, one.grad_f(own[0], one.sample(number=1))
        # Batched kernels add in another order: some ulps of numbers of about ten.
        torch.testing.assert_close(
            tuple(part[0] for part in mine), (value[k], jacobian[k], gradient[k]), rtol=0, atol=1e-12
        )


@cases
def test_the_exact_gradient_is_the_chain_rule_on_all_data(case):
    problem = prepared(CASES[case]())
    x, oracle = start(problem), oracle_of(problem, batched=True)
    value, jacobian = oracle.g_and_jacobian(x, oracle.sample(number=0))
    gradient = (oracle.grad_f(value, oracle.sample(number=1)).unsqueeze(1) @ jacobian).squeeze(1).mean(0)
    point = named(problem, x)
    F, exact = problem.value_and_gradient(point)
    torch.testing.assert_close(
        exact, gradient, rtol=0, atol=1e-12
    )  # sums of numbers of about one in another order
    metrics = problem.metrics(point, problem.predict(point, slice(0, 5)))
    assert metrics["objective"] == F.item() and metrics["grad_norm"] == exact.norm().item()


def test_sinusoids_are_of_the_stated_law():
    problem = prepared(SinusoidMAML(clients=400, samples=8))
    t, y = problem._inputs[..., 0], problem._targets[..., 0]
    assert t.abs().max() < 5 and abs(t.mean()) < 5 * (10 / math.sqrt(12)) / 3_200**0.5  # five standard errors
    waves = torch.stack(
        [torch.sin(t), -torch.cos(t)], dim=-1
    )  # a sin(t - b) = a cos(b) sin(t) - a sin(b) cos(t)
    weights = torch.linalg.lstsq(waves, y[..., None]).solution
    assert (waves @ weights - y[..., None]).abs().max() < 1e-12  # float64
    a, b = weights.norm(dim=1)[:, 0], torch.atan2(weights[:, 1, 0], weights[:, 0, 0])
    assert (
        0.1 < a.min() < 0.3 and 4.8 < a.max() < 5 and 0 < b.min() < 0.1 and 3.0 < b.max() < math.pi
    )  # 20 of 400 in such a tail
    few = prepared(SinusoidMAML(clients=2, samples=8))
    assert torch.equal(
        few.client_data(1)[0], problem.client_data(1)[0]
    )  # a client's rows depend on its number alone


def test_adapted_error_is_that_after_one_step_on_the_held_out_rows():
    problem = prepared(CASES["sinusoid"]())
    point = named(problem, start(problem))
    parts = [problem.predict(point, rows) for rows in (slice(0, 2), slice(2, 5))]
    metrics = problem.metrics(point, torch.cat(parts))
    for name, stepped in (("test_error", False), ("adapted_error", True)):
        errors = []
        for n in range(5):
            at = problem.adapted(point, tuple(part[n] for part in problem._support)) if stepped else point
            errors.append(
                ((problem.model(at, problem._query[0][n]) - problem._query[1][n]) ** 2).mean().item()
            )
        assert metrics[name] == pytest.approx(
            np.mean(errors), rel=1e-12
        )  # mapped kernels add in another order
    assert problem._support[0].shape == (5, 10, 1) and problem._query[0].shape == (5, 100, 1)


@pytest.mark.parametrize("group", [1, 2, "all"])
@pytest.mark.parametrize("case, gamma, share", [("sinusoid", 0.02, 0.9), ("few shots", 0.3, 0.7)])
def test_training_reduces_the_objective(tmp_path, case, gamma, share, group):
    for method in (MFCGD(q=5, gamma=gamma), AdaMFCGD(q=5, gamma=0.01)):
        config = configuration(method, CASES[case](), tmp_path, rounds=12, batch_size=4, noise=0, group=group)
        result = run(config.model_copy(update={"record": ()}), SerialComm())
        assert result.metrics["objective"] < share * result.history["objective"][0], method


@pytest.fixture
def drawings(monkeypatch):
    """Seven and six characters of four drawings: character c is a square of c + 3 dots a side, at a place of
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
    assert list(problem.files) == ["images_background.npz"]
    again, other = prepared(FewShotMAML(clients=2, ways=4)), prepared(FewShotMAML(clients=2, ways=4), seed=1)
    assert torch.equal(again.client_data(1)[0][:3], problem.client_data(1)[0])
    assert not torch.equal(other.client_data(1)[0], again.client_data(1)[0])
    held_out = torch.stack(problem._held_out).mean((1, 3, 4, 5))
    assert (
        held_out.min() > 1.02 * torch.from_numpy(ink).max()
    )  # characters of the evaluation part have more ink


def test_loss_and_accuracy_of_a_few_images(drawings):
    problem = prepared(FewShotMAML(clients=2, ways=2, tests=3, model="linear", size=7))
    point = named(problem, torch.zeros(2 * 49 + 2).double())
    images = problem._tasks[0][:3].double()
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
    broken = problem.predict(
        {"fc1.weight": point["fc1.weight"] * torch.nan, "fc1.bias": point["fc1.bias"]}, slice(0, 1)
    )
    assert math.isnan(problem.metrics(point, broken)["accuracy"])


@pytest.mark.parametrize(
    "settings, message",
    [
        (dict(dataset="digits", ways=11), "digits has 10 classes"),
        (dict(dataset="digits", samples=3, shots=3), "more than shots = 3 images"),
        (dict(dataset="digits", model="lenet5"), "28 x 28 or 32 x 32, got 8 x 8"),
    ],
)
def test_data_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        FewShotMAML(**settings).prepare(0)


def test_settings_are_checked():
    with pytest.raises(ValueError, match="did you mean 'omniglot'"):
        build(FewShotMAML, {"dataset": "omniglott"}, "problem")
    with pytest.raises(ValueError, match="takes images"):
        SinusoidMAML(model="conv4").prepare(0)


def test_a_network_whose_dense_jacobian_cannot_be_held_is_refused(tmp_path):
    problem = FewShotMAML(clients=1, dataset="digits", ways=2, model=Conv4(filters=64))
    with pytest.raises(
        CollectiveError, match="needs at least 92.7 GiB of memory .* for the clients' records"
    ):
        Simulation.from_settings(configuration(MFCGD(q=2), problem, tmp_path, noise=0), SerialComm())
