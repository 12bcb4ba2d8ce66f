"""Augmented images: values, addresses, steps compared with plain torch, and errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mpifed import Simulation
from mpifed.algorithms import FedAvg
from mpifed.core.sample_words import SampleWords
from mpifed.core.streams import Stream, generator, key
from mpifed.data.augmentation import Crop, Flip
from mpifed.parallel.comm import SerialComm
from mpifed.problems import PROBLEMS, Classification

KEY = key(0, "augment")
IMAGES = torch.arange(2 * 3 * 4 * 5, dtype=torch.float64).reshape(2, 3, 4, 5)


def words() -> SampleWords:
    return SampleWords(KEY, torch.tensor([1, 2, 3]))


def test_flip_and_crop_by_hand():
    drawn = Stream(0, "augment", [3], 2, 1, 1)
    keep = drawn.words(2)[0, 0] >= 2**31
    flipped = Flip()(IMAGES, words())
    for image, found, kept in zip(IMAGES, flipped, keep):
        assert torch.equal(found, image if kept else image.flip(-1))
    down, right = (Stream(0, "augment", [3], 2, 1, 1).words(4)[0, 0].reshape(2, 2) * 5) >> 32
    found = Crop(pad=2)(IMAGES, words())
    padded = np.pad(IMAGES.numpy(), ((0, 0), (0, 0), (2, 2), (2, 2)))
    for n in range(2):
        y, x = int(down[n]), int(right[n])
        np.testing.assert_array_equal(found[n], padded[n, :, y : y + 4, x : x + 5])


def three_steps(problem, client: int) -> torch.Tensor:
    """The client's x after the first round in plain torch, with the words of (number, round 1, client)."""
    x, blocks = problem.initial(generator(0, "initial"))["x"].double(), problem.variables()
    images, labels = problem.client_data(client)
    for k in range(3):
        chosen = Stream(0, "sample", [client], 1, 1, k).integers([len(images)], 4)[0, 0]
        drawn = Stream(0, "augment", [client], 1, 1, k)
        keep, shift = drawn.words(4)[0, 0] >= 2**31, drawn.words(8)[0, 0].reshape(2, 4) * 3 >> 32
        batch = []
        for n, image in enumerate(images[chosen].double().numpy()):
            image = np.pad(image if keep[n] else image[:, :, ::-1], ((0, 0), (1, 1), (1, 1)))
            y, z = map(int, shift[:, n])
            batch.append(image[:, y : y + 8, z : z + 8])
        point = x.clone().requires_grad_()
        weights, bias = blocks.unflatten("x", point).values()
        scores = torch.from_numpy(np.stack(batch)).flatten(1) @ weights.T + bias
        loss = torch.nn.functional.cross_entropy(scores, labels[chosen])
        x = x - 0.1 * torch.autograd.grad(loss, point)[0]
    return x


@pytest.mark.parametrize("group", [1, 2], ids=["loop", "pairs"])
def test_a_round_agrees_with_plain_torch(group):
    problem = Classification(dataset="digits", clients=2, augmentation=["flip", {"name": "crop", "pad": 1}])
    run = {"dtype": "float64", "group": group}
    method, comm = FedAvg(K=3, eta=0.1), SerialComm()
    simulation = Simulation(problem, method, oracle={"batch_size": 4}, run=run, comm=comm)
    simulation.start()
    simulation.step()
    expected = (three_steps(problem, 0) + three_steps(problem, 1)) / 2
    # Three steps in float64, with products in another order.
    np.testing.assert_allclose(simulation.point(), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("cls", [cls for cls in PROBLEMS.values() if hasattr(cls, "augmentation")])
def test_every_problem_with_the_setting_augments(cls):
    groups = {"groups": "writer"} if cls is PROBLEMS["GroupParity"] else {}
    assert cls(dataset="digits", augmentation=("flip",), **groups).augment is not None


def test_tables_are_refused():
    def table():
        rows = np.eye(4, dtype=np.float32), np.arange(4) % 2
        return {"train": rows, "test": rows}

    problem = Classification(dataset=table, clients=2, augmentation=("flip",))
    with pytest.raises(ValueError, match=r"augmentation: expected images \[c, h, w\], got .* of shape \[4\]"):
        problem.prepare(0)
