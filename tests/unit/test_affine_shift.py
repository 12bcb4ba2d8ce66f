"""Classification under affine shifts of the inputs: loss, attack, metrics, and training by FLRA."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracles import prepared
from patches import patches_of

from mpifed.problems import AffineShift

SMOOTH = {"name": "mlp", "hidden": [5], "activation": "tanh"}
both = pytest.mark.parametrize("diagonal", [False, True], ids=["full", "diagonal"])


def at(problem, rng=None):
    """The start as named parameters, or a point near it."""
    start, sizes = problem.initial(np.random.default_rng(0)), problem.variables().sizes
    if rng is not None:
        start = {
            block: start[block] + torch.from_numpy(rng.normal(scale=0.2, size=sizes[block])) for block in "xy"
        }
    return [problem.variables().unflatten(block, start[block].double()) for block in "xy"]


@both
def test_loss_agrees_with_the_paper(patches, diagonal):
    problem = prepared(
        AffineShift(dataset="patches", clients=3, lambda_1=0.3, lambda_2=0.7, diagonal=diagonal)
    )
    x, y = at(problem, np.random.default_rng(1))
    images, labels = problem.client_data(0)
    matrix = np.diag(y["matrix"]) if diagonal else y["matrix"].numpy()
    losses = []
    for image, label in zip(images.double().flatten(1).numpy(), labels):
        scores = x["fc1.weight"].numpy() @ (matrix @ image + y["offset"].numpy()) + x["fc1.bias"].numpy()
        losses.append(np.log(np.exp(scores).sum()) - scores[label])
    away = 0.3 * ((matrix - np.eye(12)) ** 2).sum() + 0.7 * (y["offset"].numpy() ** 2).sum()
    # Sums of some hundred numbers of about one in another order.
    found = problem.loss(x, y, (images.double(), labels)).item()
    assert found == pytest.approx(np.mean(losses) - away, abs=1e-12) and away > 0.1


@both
def test_start_has_no_shift(patches, diagonal):
    problem = prepared(AffineShift(dataset="patches", clients=3, model=SMOOTH, diagonal=diagonal))
    x, y = at(problem)
    images = patches.test.double()
    assert torch.equal(problem.shifted(y, images), images)
    found = problem.metrics(x, y, problem.predict(x, y, slice(0, 25)))
    assert found["shifted_accuracy"] == found["accuracy"] and found["penalty"] == 0
    loss = torch.nn.functional.cross_entropy(problem.model(x, images), patches.test_labels).item()
    assert found["objective"] == pytest.approx(loss, abs=1e-14)


@both
def test_attack_converges_to_a_stationary_point(patches, diagonal):
    """There the gradient of the adversary is 0; where the penalty is large, every step comes nearer."""
    problem = prepared(
        AffineShift(
            dataset="patches", clients=3, model=SMOOTH, lambda_1=5.0, lambda_2=4.0, diagonal=diagonal,
            attack_steps=40,
        )
    )  # fmt: skip
    x, _ = at(problem, np.random.default_rng(1))
    batch = patches.test.double(), patches.test_labels
    slope = torch.func.grad(lambda y: problem.loss(x, y, batch))
    attack, (_, none) = problem.attack(x), at(problem)
    # 40 contractions leave rounding.
    assert max(part.abs().max() for part in slope(attack).values()) < 1e-12
    assert max(part.abs().max() for part in slope(none).values()) > 1e-3
    assert problem.loss(x, attack, batch) > problem.loss(x, none, batch)
    found = problem.metrics(x, none, problem.predict(x, none, slice(0, 25)))
    assert found["attacked_objective"] == pytest.approx(problem.loss(x, attack, batch).item(), abs=1e-12)
    assert found["attacked_objective"] > found["objective"]


def test_attack_is_cached_per_network(patches):
    problem = prepared(AffineShift(dataset="patches", clients=3, model=SMOOTH))
    one, other = (at(problem, np.random.default_rng(seed))[0] for seed in (1, 2))
    first = problem.attack(one)["matrix"]
    assert problem.attack(one)["matrix"] is first
    assert not torch.equal(problem.attack(other)["matrix"], first)
    assert torch.equal(problem.attack(one)["matrix"], first)


def test_predictions_are_clean_shifted_and_attacked(patches):
    problem = prepared(AffineShift(dataset="patches", clients=3, lambda_1=0.1, lambda_2=0.1))
    x, y = at(problem, np.random.default_rng(1))
    whole, images = problem.predict(x, y, slice(0, 25)), patches.test.double()
    expected = [images, problem.shifted(y, images), problem.shifted(problem.attack(x), images)]
    torch.testing.assert_close(whole, torch.cat([problem.model(x, one) for one in expected], dim=1))
    parts = [problem.predict(x, y, slice(0, 9)), problem.predict(x, y, slice(9, 25))]
    torch.testing.assert_close(torch.cat(parts), whole)  # products of other sizes round otherwise
    right = [(part.argmax(1) == patches.test_labels).double().mean().item() for part in whole.chunk(3, 1)]
    found = problem.metrics(x, y, whole)
    names = "accuracy", "shifted_accuracy", "attacked_accuracy"
    assert [found[name] for name in names] == pytest.approx(right, abs=1e-12)
    assert len(set(right)) > 1


def test_full_matrix_for_large_inputs_is_refused(monkeypatch):
    patches_of(monkeypatch, 33, 32)
    said = "a full matrix Λ needs inputs with at most 1024 features, .* 1056: set problem.diagonal = true"
    with pytest.raises(ValueError, match=said):
        prepared(AffineShift(dataset="patches", clients=3))
    assert prepared(AffineShift(dataset="patches", clients=3, diagonal=True)).variables().sizes["y"] == 2112
