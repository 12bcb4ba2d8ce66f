"""Adversarial training: the adversary against its closed form, its range, and its cost."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from games import configuration
from oracles import prepared

from mpifed import run
from mpifed.algorithms import LSGD, FedAvg
from mpifed.parallel.comm import SerialComm
from mpifed.problems import AdversarialTraining, Classification


def linear(problem, seed=0):
    """Return the parameters of a linear network at a random point, and the difference w of its rows."""
    x = {
        name: torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))
        for name, shape in problem.variables()["x"].items()
    }
    weights, bias = x.values()
    return x, weights[1] - weights[0], bias[1] - bias[0]


@pytest.mark.parametrize("steps", [1, 5])
def test_closed_form_of_a_linear_score(steps):
    """With a >= ε, δ = -ε t sign(w), and the loss is log(1 + exp(-t wᵀu + ε‖w‖_1)) with t = ±1."""
    problem = prepared(
        AdversarialTraining(dataset="two-groups", epsilon=0.3, step=0.4, steps=steps, clients=2)
    )
    x, w, b = linear(problem)
    samples, labels = problem.client_data(0)
    samples, t = samples.double(), 2.0 * labels.double() - 1
    delta = problem.attack(x, samples, labels, torch.zeros_like(samples), steps)
    assert torch.equal(delta, -0.3 * t[:, None] * w.sign())
    margins = t * (samples @ w + b) - 0.3 * w.abs().sum()
    expected = torch.log1p(torch.exp(-margins)).mean()
    # Sums of 600 numbers in another order.
    torch.testing.assert_close(problem.loss(x, (samples, labels)), expected, rtol=1e-12, atol=0)
    scores = problem.predict(x, slice(None))
    test, labels = problem._images.test.double(), problem._images.test_labels
    attacked = test - 0.3 * (2.0 * labels.double() - 1)[:, None] * w.sign()
    torch.testing.assert_close(scores[:, :2], problem.model(x, test))
    torch.testing.assert_close(scores[:, 2:], problem.model(x, attacked))
    found = problem.metrics(x, scores)
    assert found["attacked_accuracy"] < found["accuracy"] - 0.1


@pytest.mark.parametrize("steps", [1, 2, 4, 7, 20])
def test_the_default_step_reaches_the_bound(steps):
    """The signs of a linear score are the same in every step, so that all elements of δ reach ±ε."""
    problem = prepared(
        AdversarialTraining(dataset="two-groups", epsilon=0.3, steps=steps, test_steps=steps, clients=2)
    )
    x, w, b = linear(problem)
    samples, labels = problem.client_data(0)
    delta = problem.attack(x, samples.double(), labels, torch.zeros_like(samples).double(), steps)
    assert torch.equal(delta.abs(), torch.full_like(delta, 0.3))
    margins = (2.0 * problem._images.test_labels.double() - 1) * (problem._images.test.double() @ w + b)
    found = problem.metrics(x, problem.predict(x, slice(None)))
    assert found["attacked_accuracy"] == (margins > 0.3 * w.abs().sum()).double().mean()


@pytest.mark.parametrize("steps", [5, 7, 20])
def test_the_default_step_is_a_quarter_of_the_bound(steps):
    """2/255 for ε = 8/255. The first step from 0 has this size."""
    problem = prepared(AdversarialTraining(dataset="digits", steps=steps, clients=2))
    x, samples = linear(problem)[0], torch.full((3, *problem._images.shape), 0.5, dtype=torch.float64)
    start = torch.zeros_like(samples)
    given = prepared(AdversarialTraining(dataset="digits", steps=steps, step=2 / 255, clients=2))
    found = [one.attack(x, samples, torch.arange(3), start, steps) for one in (problem, given)]
    assert torch.equal(*found) and found[0].abs().max() > 0


@pytest.mark.parametrize("factor", [100, 1e4])
def test_confident_networks_are_not_robust(factor):
    """A factor of the scores does not change the adversary, although probabilities are then 0 or 1."""
    problem = prepared(AdversarialTraining(dataset="digits", epsilon=0.1, clients=2))
    x = {name: value.float() for name, value in linear(problem)[0].items()}
    samples, labels = problem.client_data(0)
    labels = problem.model(x, samples).argmax(1)  # the most confident predictions are correct
    delta = problem.attack(x, samples, labels, torch.zeros_like(samples), 20)
    scaled = {name: factor * value for name, value in x.items()}
    found = problem.attack(scaled, samples, labels, torch.zeros_like(samples), 20)
    correct = [(problem.model(x, samples + d).argmax(1) == labels).double().mean() for d in (delta, found)]
    assert correct[0] < 0.8 and abs(correct[1] - correct[0]) < 0.05


@pytest.mark.parametrize("settings, steps", [
    (dict(epsilon=0.3, step=2 / 255), "steps = 7"),
    (dict(epsilon=0.1, step=0.05, test_steps=1), "test_steps = 1"),
])  # fmt: skip
def test_an_adversary_that_cannot_reach_the_bound_is_refused(settings, steps):
    with pytest.raises(ValueError, match=rf"{steps} of step = .* moves by at most .*, less than epsilon"):
        AdversarialTraining(dataset="digits", **settings)


def test_the_product_of_steps_may_be_rounded():
    """3 times 0.1 / 3, rounded down, is below 0.1."""
    AdversarialTraining(dataset="digits", epsilon=0.1, step=0.1 / 3 * (1 - 1e-15), steps=3)


def test_parts_of_the_test_samples_are_attacked_with_their_labels():
    problem = prepared(AdversarialTraining(dataset="digits", test_steps=2, clients=2))
    x = linear(problem)[0]
    parts = [problem.predict(x, slice(start, start + 100)) for start in range(0, problem.test_rows, 100)]
    torch.testing.assert_close(torch.cat(parts), problem.predict(x, slice(None)), rtol=1e-12, atol=1e-12)


def test_the_adversary_stays_in_the_box_and_in_the_range_of_pixels():
    problem = prepared(AdversarialTraining(dataset="digits", epsilon=0.2, step=0.15, random_start=True))
    x = linear(problem)[0]
    samples, labels, start = problem.client_data(1)
    samples = samples.double()
    assert start.abs().max() <= 0.2 and start.std() > 0.1
    assert all(torch.equal(*pair) for pair in zip(problem.client_data(1), problem.client_data(1)))
    delta = problem.attack(x, samples, labels, start, 3)
    assert delta.abs().max() <= 0.2 + 1e-12  # u + δ - u is rounded
    assert 0 <= (samples + delta).min() and (samples + delta).max() <= 1 + 1e-12
    losses = [torch.nn.functional.cross_entropy(problem.model(x, samples + d), labels) for d in (0, delta)]
    assert losses[1] > losses[0] + 0.1


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.filterwarnings("ignore:.* the largest number of a sample is up to 255")
def test_images_outside_of_the_range_are_refused(part):
    def bright():
        images, labels = np.ones((4, 1, 2, 2)), np.arange(4) % 2
        return {"train": (images, labels), "test": (images, labels), part: (255 * images, labels)}

    message = rf"expected images with elements in \[0, 1\], found 255 to 255 in .*, {part}"
    with pytest.raises(ValueError, match=message):
        prepared(AdversarialTraining(dataset=bright, clients=1))


def calls(problem, method, out, rounds=2, **settings):
    settings |= dict(noise=0, rounds=rounds, batch_size=4, sections={"record": ()})
    return run(configuration(method, problem, out, **settings), SerialComm())


def test_gradients_of_the_adversary_are_counted(tmp_path):
    small = dict(dataset="digits", clients=3)
    for k, method in enumerate((FedAvg(K=2, eta=0.1), LSGD(K=2, eta=0.1))):  # the second runs on the game
        plain = calls(Classification(**small), method, tmp_path / f"plain{k}")
        attacked = calls(AdversarialTraining(steps=4, **small), method, tmp_path / f"attacked{k}")
        counted = [one.costs["oracle_calls"][-1] for one in (plain, attacked)]
        assert counted[1] == 5 * counted[0] > 0
        assert attacked.costs["bytes_up"][-1] == plain.costs["bytes_up"][-1]
