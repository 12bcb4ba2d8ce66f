"""Built-in networks: number of parameters, agreement with torch's modules, vectorisation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mpifed.base.settings import build
from mpifed.models import CNN, CNN7, MLP, MODELS, RNN, Conv4, LeNet5, Linear, ResNet
from mpifed.problems import DeepAUC

IMAGE = (1, 28, 28)
SMALL = ResNet(blocks=(2, 1), width=8, groups=4)
#: Network, shape of a small sample, outputs.
CASES = {
    "linear": (Linear(), IMAGE, 10),
    "mlp": (MLP(), IMAGE, 10),
    "tanh mlp": (MLP(hidden=(5,), activation="tanh"), IMAGE, 1),
    "lenet5": (LeNet5(), IMAGE, 10),
    "tanh lenet5": (LeNet5(activation="tanh"), (3, 32, 32), 2),
    "cnn": (CNN(stages=((3,), (4,)), hidden=(6,)), (2, 9, 8), 3),
    "cnn7": (CNN7(stages=((3, 2), (4, 5)), hidden=(6, 7)), (3, 8, 8), 1),
    "conv4": (Conv4(filters=3), (1, 20, 20), 4),
    "resnet": (SMALL, (3, 16, 16), 2),
    "small resnet": (ResNet(blocks=(1, 1, 1), width=4, groups=2, stem="small"), (1, 8, 8), 2),
    "plain": (RNN(hidden=5), (4, 3), 2),
    "lstm": (RNN(hidden=5, cell="lstm"), (4, 3), 2),
}
cases = pytest.mark.parametrize("case", CASES)


def count(shapes) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


def start(case: str, seed: int = 0) -> dict[str, torch.Tensor]:
    """Starting values, moved a little so that none is 0 or 1."""
    model, shape, outputs = CASES[case]
    rng = np.random.default_rng(seed)
    params = model.initial(model.shapes(shape, outputs), rng)
    return {
        name: value + 0.05 * torch.from_numpy(rng.standard_normal(value.shape))
        for name, value in params.items()
    }


def inputs(case: str, n: int = 2, seed: int = 1) -> tuple[torch.Tensor, ...]:
    """Samples, and for a recurrent network their lengths, 0 to all."""
    model, shape, _ = CASES[case]
    samples = torch.from_numpy(np.random.default_rng(seed).standard_normal((n, *shape)))
    return (samples, torch.arange(shape[0], shape[0] - n, -1)) if isinstance(model, RNN) else (samples,)


@pytest.mark.parametrize("model, shape, outputs, number", [
    (Linear(), IMAGE, 10, 7_850),
    (MLP(), IMAGE, 10, 784 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10),
    (LeNet5(), IMAGE, 10, 61_706),  # LeNet-5 with full connections, as commonly counted
    (LeNet5(), (3, 32, 32), 10, 61_706 + 2 * 6 * 25),
    (LeNet5(), IMAGE, 1, 61_706 - 9 * 85),
    # Shen et al. 2024, Table 3: 3, 16, 32 and 64 channels, 32 x 32 halved three times, 512, 64 and 10
    # units
    (CNN(), (3, 32, 32), 10, 448 + 4_640 + 18_496 + (64 * 4 * 4 * 512 + 512) + (512 * 64 + 64) + 650),
    (CNN7(), (3, 32, 32), 1,
     896 + 9_248 + 18_496 + 36_928 + (64 * 8 * 8 * 512 + 512) + (512 * 128 + 128) + 129),
    (ResNet(), (3, 224, 224), 1000, 25_557_032),  # as published for ResNet-50 with batch normalisation
    (ResNet(), (3, 64, 64), 1, 25_557_032 - 999 * 2_049),
    (ResNet(blocks=(3, 4, 23, 3)), (3, 224, 224), 1000, 44_549_160),  # as published for ResNet-101
    (Conv4(filters=64), (1, 28, 28), 5, 640 + 3 * 36_928 + 325),
    (RNN(), (40, 300), 2, 4096 * (300 + 4096 + 2) + 4096 * (2 * 4096 + 2) + 2 * 4097),
    (RNN(cell="lstm"), (40, 300), 2, 4 * (4096 * (300 + 4096 + 2) + 4096 * (2 * 4096 + 2)) + 2 * 4097),
])  # fmt: skip
def test_number_of_parameters(model, shape, outputs, number):
    assert count(model.shapes(shape, outputs)) == number


@cases
def test_outputs_and_starting_values(case):
    model, shape, outputs = CASES[case]
    shapes = model.shapes(shape, outputs)
    params = model.initial(shapes, np.random.default_rng(0))
    assert [(name, tuple(value.shape)) for name, value in params.items()] == [*shapes.items()]
    assert model(params, *inputs(case)).shape == (2, outputs)


@pytest.mark.parametrize("model", [Linear(), MLP(), LeNet5()])
def test_initial_parameters_are_uniform_with_torchs_bounds(model):
    shapes = model.shapes(IMAGE, 10)
    for name, value in model.initial(shapes, np.random.default_rng(0)).items():
        bound = 1 / math.sqrt(math.prod(shapes[name.replace("bias", "weight")][1:]))
        assert value.abs().max() <= bound
        if value.numel() > 100:  # the largest of 100 uniform numbers misses 0.8 of the bound once in 10^10
            assert value.abs().max() > 0.8 * bound


def test_starting_values_keep_the_scale_of_the_signal():
    """With He's weights seven layers keep the size of the inputs; with torch's it would fall to 1/500."""
    params = CNN7().initial(CNN7().shapes((3, 32, 32), 10), np.random.default_rng(0))
    images = torch.from_numpy(np.random.default_rng(1).standard_normal((8, 3, 32, 32)))
    assert 0.2 < CNN7()(params, images).std() < 10  # pooling favours large numbers
    assert all((value == 0).all() for name, value in params.items() if name.endswith("bias"))
    rnn = RNN(hidden=9).initial(RNN(hidden=9).shapes((4, 3), 2), np.random.default_rng(0))
    assert 0.3 < max(value.abs().max() for value in rnn.values()) < 1 / 3
    shapes = {"conv1.weight": (64, 64, 3, 3), "norm1.weight": (64,), "norm1.bias": (64,)}
    resnet = ResNet().initial(shapes, np.random.default_rng(0))
    # Five standard errors of the deviation of 36,864 normal numbers; fan_out is 64 · 9.
    deviation = resnet["conv1.weight"].std().item()
    assert deviation == pytest.approx(math.sqrt(2 / 576), rel=5 / math.sqrt(2 * 36_864))
    assert (resnet["norm1.weight"] == 1).all() and (resnet["norm1.bias"] == 0).all()


class Bottleneck(nn.Module):
    """A block in torch's modules, its parameters in the order of the network's."""

    def __init__(self, channels: int, inside: int, stride: int, groups: int):
        super().__init__()
        out = 4 * inside
        self.conv1, self.norm1 = nn.Conv2d(channels, inside, 1, bias=False), nn.GroupNorm(groups, inside)
        self.conv2 = nn.Conv2d(inside, inside, 3, stride, 1, bias=False)
        self.norm2 = nn.GroupNorm(groups, inside)
        self.conv3, self.norm3 = nn.Conv2d(inside, out, 1, bias=False), nn.GroupNorm(groups, out)
        self.short = nn.Sequential()
        if stride > 1 or channels != out:
            self.short.append(nn.Conv2d(channels, out, 1, stride, bias=False))
            self.short.append(nn.GroupNorm(groups, out))

    def forward(self, x):
        h = torch.relu(self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x))))))
        return torch.relu(self.norm3(self.conv3(h)) + self.short(x))


def full(*widths: int) -> list[nn.Module]:
    return [layer for pair in zip(widths, widths[1:]) for layer in (nn.Linear(*pair), nn.ReLU())][:-1]


def module(case: str) -> nn.Module:
    """The network of a case in torch's layers."""

    def conv(*c):
        return [layer for pair in zip(c, c[1:]) for layer in (nn.Conv2d(*pair, 3, padding=1), nn.ReLU())]

    pool, flat = nn.MaxPool2d(2), nn.Flatten()
    if case == "linear":
        return nn.Sequential(flat, nn.Linear(784, 10))
    if case == "mlp":
        return nn.Sequential(flat, *full(784, 128, 64, 10))
    if case == "tanh mlp":
        return nn.Sequential(flat, nn.Linear(784, 5), nn.Tanh(), nn.Linear(5, 1))
    if case.endswith("lenet5"):
        act, channels, padding, outputs = (nn.ReLU, 1, 2, 10) if case == "lenet5" else (nn.Tanh, 3, 0, 2)
        layers = [nn.Conv2d(channels, 6, 5, padding=padding), act(), pool, nn.Conv2d(6, 16, 5), act(), pool]
        layers += [flat, nn.Linear(400, 120), act(), nn.Linear(120, 84), act(), nn.Linear(84, outputs)]
        return nn.Sequential(*layers)
    if case == "cnn":
        return nn.Sequential(*conv(2, 3), pool, *conv(3, 4), pool, flat, *full(4 * 2 * 2, 6, 3))
    if case == "cnn7":
        return nn.Sequential(*conv(3, 3, 2), pool, *conv(2, 4, 5), pool, flat, *full(5 * 2 * 2, 6, 7, 1))
    if case == "conv4":
        strided = [layer for c in (1, 3, 3, 3) for layer in (nn.Conv2d(c, 3, 3, 2, 1), nn.ReLU())]
        return nn.Sequential(*strided, nn.AdaptiveAvgPool2d(1), flat, nn.Linear(3, 4))
    if case == "resnet":
        stem = [nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.GroupNorm(4, 8), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        blocks = [Bottleneck(8, 8, 1, 4), Bottleneck(32, 8, 1, 4), Bottleneck(32, 16, 2, 4)]
        return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), flat, nn.Linear(64, 2))
    stem = [nn.Conv2d(1, 4, 3, 1, 1, bias=False), nn.GroupNorm(2, 4), nn.ReLU()]
    blocks = [Bottleneck(4, 4, 1, 2), Bottleneck(16, 8, 2, 2), Bottleneck(32, 16, 2, 2)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), flat, nn.Linear(64, 2))


@pytest.mark.parametrize("case", [case for case in CASES if case not in ("plain", "lstm")])
def test_agrees_with_torchs_modules(case):
    params, net = start(case), module(case).double()
    renamed = dict(zip((name for name, _ in net.named_parameters()), params.values(), strict=True))
    expected = torch.func.functional_call(net, renamed, inputs(case))
    # The same operations in float64 on numbers of about one; only their order inside a layer may differ.
    torch.testing.assert_close(CASES[case][0](params, *inputs(case)), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("case, cls", [("plain", nn.RNN), ("lstm", nn.LSTM)])
def test_recurrent_networks_agree_with_torchs_on_bare_sequences(case, cls):
    params, (samples, lengths) = start(case), inputs(case, n=4)
    assert lengths.tolist() == [4, 3, 2, 1]
    net = cls(3, 5, 2, batch_first=True).double()
    net.load_state_dict({name: value for name, value in params.items() if not name.startswith("fc")})
    samples[1:, 3:] = torch.nan  # values after the end of a sequence must not be read
    for row, length, own in zip(samples, lengths, CASES[case][0](params, samples, lengths)):
        state = net(row[None, :length])[0][0, -1]
        # The same operations in float64 on numbers of about one.
        torch.testing.assert_close(
            own, F.linear(state, params["fc.weight"], params["fc.bias"]), rtol=0, atol=1e-12
        )
    empty = CASES[case][0](params, torch.zeros(1, 4, 3).double(), torch.tensor([0]))
    assert torch.isfinite(empty).all()  # a text without known words has a score, too


@cases
def test_vectorised_networks_equal_the_loop(case):
    model, each = CASES[case][0], [start(case, seed) for seed in range(3)]
    batches = [inputs(case, seed=seed) for seed in range(3)]
    stacked = {name: torch.stack([params[name] for params in each]) for name in each[0]}
    expected = torch.stack([model(params, *own) for params, own in zip(each, batches)])
    mapped = torch.func.vmap(model)(stacked, *(torch.stack(column) for column in zip(*batches)))
    # Batched kernels add in another order: some ulps of sums of a hundred terms of size one.
    torch.testing.assert_close(mapped, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("model, shape, message", [
    (LeNet5(), (1, 8, 8), "28 x 28 or 32 x 32, got 8 x 8"),
    (LeNet5(), (1, 28, 32), "28 x 28 or 32 x 32, got 28 x 32"),
    (CNN(), (3, 4, 32), "at least 8 x 8, got samples of shape 3 x 4 x 32"),
    (CNN7(), (20,), "cnn7 takes images of channels x height x width"),
    (Conv4(), (20,), "conv4 takes images"),
    (ResNet(), (20,), "resnet50 takes images"),
    (RNN(), (3, 8, 8), "rnn takes sequences"),
])  # fmt: skip
def test_unsuitable_samples_are_refused(model, shape, message):
    with pytest.raises(ValueError, match=message):
        model.shapes(shape, 2)


def test_settings_are_checked():
    assert build(MODELS["mlp"], {"hidden": [7]}, "model") == MLP(hidden=(7,))
    with pytest.raises(ValueError, match="hidden"):
        build(MODELS["mlp"], {"hidden": [0]}, "model")
    with pytest.raises(ValueError, match="relu"):
        build(MODELS["lenet5"], {"activation": "gelu"}, "model")
    with pytest.raises(ValueError, match="multiple of groups = 32, got width = 20"):
        build(ResNet, {"width": 20}, "model")
    with pytest.raises(ValueError, match="tanh"):
        build(RNN, {"cell": "gru"}, "model")
    model = {"name": "cnn", "stages": [[2, 3]], "hidden": [4]}
    problem = build(DeepAUC, {"dataset": "digits", "model": model}, "problem")
    assert problem.model == CNN(stages=((2, 3),), hidden=(4,))


@pytest.mark.parametrize("model", [LeNet5(), CNN(), Conv4(), ResNet()])
def test_the_axis_of_channels_is_named(model):
    with pytest.raises(ValueError, match=r"28 x 28 without the axis of channels: add it, samples\[:, None\]"):
        model.shapes((28, 28), 2)
    with pytest.raises(ValueError, match="rows of 5 features: use mlp or linear"):
        model.shapes((5,), 2)


@pytest.mark.parametrize("model", [LeNet5(), CNN()])
def test_images_with_channels_last_are_named(model):
    with pytest.raises(ValueError, match="28 x 1: the axis of channels comes first"):
        model.shapes((28, 28, 1), 2)
