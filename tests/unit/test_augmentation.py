"""Augmented images: values, addresses, steps compared with plain torch, and errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import ndtri

from mpifed import Config, Simulation
from mpifed.algorithms import FedAvg
from mpifed.base.errors import ConfigError
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


def table():
    rows = np.eye(4, dtype=np.float32), np.arange(4) % 2
    return {"train": rows, "test": rows}


def test_tables_are_refused():
    problem = Classification(dataset=table, clients=2, augmentation=("flip",))
    message = r"augmentation: flip expects images \[c, h, w\], got samples of shape \[4\]"
    with pytest.raises(ValueError, match=message):
        problem.prepare(0)


def test_numbers_of_user_defined_functions():
    drawn = Stream(0, "augment", [3], 2, 1, 1).words(6)[0, 0].reshape(2, 3)
    uniform = (drawn + 0.5) / 2**32
    np.testing.assert_array_equal(words().uniform((2, 3)), uniform)
    # The inverse of the normal distribution in torch and in SciPy: some ulps.
    np.testing.assert_allclose(words().normal((2, 3)), ndtri(uniform), rtol=1e-12)


FUNCTIONS = """
import torch

def jitter(samples, words, scale=0.1):
    samples += scale * words.normal(samples.shape)  # in place
    return samples

def double(samples, words):
    return 2.0 * samples

def alone(samples):
    return samples

def unaddressed(samples, words):
    return samples + torch.randn(samples.shape)

def shorter(samples, words):
    return samples[:1]
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    (tmp_path / "changes.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "changes.py"


def simulation_of(augmentation, group=1, dataset=table):
    problem = Classification(dataset=dataset, clients=2, augmentation=augmentation)
    run = {"dtype": "float64", "group": group}
    return Simulation(problem, FedAvg(K=1, eta=0.1), oracle={"batch_size": 3}, run=run, comm=SerialComm())


def test_a_user_defined_function_changes_rows_of_tables(file):
    """One local step in plain torch: the doubled rows plus noise of the words."""
    points = []
    for group in (1, 2):
        simulation = simulation_of(
            ["./changes.py:double", {"name": "./changes.py:jitter", "scale": 0.5}], group
        )
        simulation.start()
        start = simulation.point().clone()
        simulation.step()
        points.append(simulation.point())
    problem, ends = simulation.problem, []
    for client in range(2):
        samples, labels = problem.client_data(client)
        chosen = Stream(0, "sample", [client], 1).integers([len(samples)], 3)[0, 0]
        numbers = SampleWords(KEY, torch.tensor([0, 1, client])).normal((3, 4))
        x = start.clone().requires_grad_()
        weights, bias = problem.variables().unflatten("x", x).values()
        scores = (2 * samples[chosen].double() + 0.5 * numbers) @ weights.T + bias
        gradient = torch.autograd.grad(torch.nn.functional.cross_entropy(scores, labels[chosen]), x)[0]
        ends.append(start - 0.1 * gradient)
    for found in points:
        # One step in float64, with products in another order.
        np.testing.assert_allclose(found, (ends[0] + ends[1]) / 2, rtol=1e-12, atol=1e-14)


def test_user_defined_functions_are_identified_by_their_source(file):
    augmentation = ["flip", {"name": "./changes.py:jitter", "scale": 0.5}]
    problem = Classification(dataset="digits", augmentation=augmentation)
    config = Config(problem=problem, algorithm=FedAvg(K=1, eta=0.1))
    stored = config.table()
    assert stored["problem"]["augmentation"][1] == {"name": f"{file}:jitter", "scale": 0.5}
    assert stored["plugins"]["problem.augmentation.1"]["name"] == f"{file}:jitter"
    assert Config.from_table(stored).table() == stored


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("./changes.py:alone", "changes.py:alone: expected a function of .samples, words., got"),
        ({"name": "./changes.py:jitter", "scael": 1}, "jitter has no setting 'scael': did you mean 'scale'"),
        ("blur", "unknown augmentation 'blur': expected one of crop, flip; user-defined: "),
    ],
)
def test_unsuitable_functions_are_refused(file, change, message):
    with pytest.raises(ConfigError, match=message):
        Classification(dataset=table, augmentation=[change])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unaddressed", "augment.. returns other rows for the same words: draw all .* from `words`"),
        ("shorter", r"augment.. must return columns of the same shapes, .*, got \[\[1, 4\], \[2\]\]"),
    ],
)
def test_results_of_functions_are_checked_before_a_run(file, name, message):
    with pytest.raises(RuntimeError, match=message):
        simulation_of([f"./changes.py:{name}"])
