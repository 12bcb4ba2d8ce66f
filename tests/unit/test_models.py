"""Networks: shapes, counts, starting values, and agreement with torch's modules and with a mapped call."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from mpifed.base.settings import build
from mpifed.models import MLP, MODELS, LeNet5, Linear

IMAGE = (1, 28, 28)
ALL = [Linear(), MLP(), MLP(hidden=(5,), activation="tanh"), LeNet5(), LeNet5(activation="tanh")]


def count(shapes) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


def images(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(1).uniform(size=shape))


def start(model, image_shape, outputs, seed=0):
    return model.initial(model.shapes(image_shape, outputs), np.random.default_rng(seed))


@pytest.mark.parametrize(
    "model, image, outputs, number",
    [
        (Linear(), IMAGE, 10, 7_850),
        (MLP(), IMAGE, 10, 784 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10),
        (LeNet5(), IMAGE, 10, 61_706),  # LeNet-5 with full connections, as commonly counted
        (LeNet5(), (3, 32, 32), 10, 61_706 + 2 * 6 * 25),
        (LeNet5(), IMAGE, 1, 61_706 - 9 * 85),
    ],
)
def test_number_of_parameters(model, image, outputs, number):
    assert count(model.shapes(image, outputs)) == number


@pytest.mark.parametrize("model", ALL)
@pytest.mark.parametrize("outputs", [1, 10])
def test_outputs_and_starting_values(model, outputs):
    shapes = model.shapes(IMAGE, outputs)
    params = start(model, IMAGE, outputs)
    assert {name: tuple(value.shape) for name, value in params.items()} == shapes and list(params) == list(
        shapes
    )
    assert model(params, images(3, *IMAGE)).shape == (3, outputs)
    for name, value in params.items():
        bound = 1 / math.sqrt(math.prod(shapes[name.replace("bias", "weight")][1:]))
        assert value.abs().max() <= bound
        if value.numel() > 100:  # the largest of 100 uniform numbers misses 0.8 of the bound once in 10^10
            assert value.abs().max() > 0.8 * bound


def module(model, outputs) -> nn.Module:
    """The network in torch's layers, without values of its own."""
    act = nn.ReLU if model.activation == "relu" else nn.Tanh
    with torch.device("meta"):
        if isinstance(model, MLP):
            widths = (784, *model.hidden)
            hidden = [layer for pair in zip(widths, widths[1:]) for layer in (nn.Linear(*pair), act())]
            return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(widths[-1], outputs))
        conv = [
            nn.Conv2d(1, 6, 5, padding=2),
            act(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            act(),
            nn.MaxPool2d(2),
        ]
        full = [nn.Linear(400, 120), act(), nn.Linear(120, 84), act(), nn.Linear(84, outputs)]
        return nn.Sequential(*conv, nn.Flatten(), *full)


@pytest.mark.parametrize("model", ALL[1:])
def test_agrees_with_torchs_modules(model):
    params, batch, net = start(model, IMAGE, 10), images(2, *IMAGE), module(model, 10)
    renamed = dict(zip((name for name, _ in net.named_parameters()), params.values(), strict=True))
    expected = torch.func.functional_call(net, renamed, batch)
    # The same operations in float64; only their order inside a layer may differ.
    torch.testing.assert_close(model(params, batch), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("model", ALL)
@pytest.mark.parametrize("image", [IMAGE, (3, 32, 32)])
def test_mapped_over_clients_equals_one_by_one(model, image):
    each = [start(model, image, 2, seed) for seed in range(3)]
    batch = images(3, 4, *image)
    stacked = {name: torch.stack([params[name] for params in each]) for name in each[0]}
    expected = torch.stack([model(params, own) for params, own in zip(each, batch)])
    # Batched kernels add in another order: some ulps of sums of about a thousand terms of size one.
    torch.testing.assert_close(torch.func.vmap(model)(stacked, batch), expected, rtol=0, atol=1e-12)


def test_lenet5_pads_small_images_to_the_large():
    model = LeNet5()
    params, small = start(model, IMAGE, 10), images(2, *IMAGE)
    large = torch.nn.functional.pad(small, (2, 2, 2, 2))
    # Equal up to the order of additions in the first convolution.
    torch.testing.assert_close(model(params, small), model(params, large), rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [(8, 8), (28, 32)])
def test_lenet5_refuses_other_sizes(size):
    with pytest.raises(ValueError, match=f"28 x 28 or 32 x 32, got {size[0]} x {size[1]}"):
        LeNet5().shapes((1, *size), 10)


def test_settings_are_checked():
    assert build(MODELS["mlp"], {"hidden": [7]}, "model") == MLP(hidden=(7,))
    with pytest.raises(ValueError, match="hidden"):
        build(MODELS["mlp"], {"hidden": [0]}, "model")
    with pytest.raises(ValueError, match="relu"):
        build(MODELS["lenet5"], {"activation": "gelu"}, "model")
