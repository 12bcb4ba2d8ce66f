"""Built-in networks: fully connected, convolutional, residual and recurrent."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt

from mpifed.base.settings import hyperparameters
from mpifed.models.base import ACTIVATIONS, Network, Params, Shapes, he, layers, uniform

__all__ = ["CNN", "CNN7", "Conv4", "LeNet5", "Linear", "MLP", "RNN", "ResNet"]

#: Output channels of a bottleneck block per inner channel.
EXPANSION = 4


def _widths(*widths: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights of fully connected layers fc1, fc2, ..."""
    return {f"fc{i}": (widths[i], widths[i - 1]) for i in range(1, len(widths))}


def _fully_connected(
    params: Params, h: torch.Tensor, count: int, activation: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Return the outputs of ``count`` layers fc1, fc2, ..., with an activation between them."""
    for i in range(1, count):
        h = activation(F.linear(h, params[f"fc{i}.weight"], params[f"fc{i}.bias"]))
    return F.linear(h, params[f"fc{count}.weight"], params[f"fc{count}.bias"])


@hyperparameters
class Linear(Network):
    """One linear layer."""

    def shapes(self, sample_shape: tuple[int, ...], outputs: int) -> Shapes:
        """Return the shapes of the parameters, in order, for samples of any shape."""
        return layers(fc1=(outputs, math.prod(sample_shape)))

    def __call__(self, params: Params, samples: torch.Tensor) -> torch.Tensor:
        """Return outputs ``[b, outputs]`` for samples ``[b, ...]``."""
        return F.linear(samples.flatten(1), params["fc1.weight"], params["fc1.bias"])


@hyperparameters
class MLP(Network):
    """A multilayer perceptron, by default with three layers (Huang et al. 2024, section 6.3)."""

    hidden: tuple[PositiveInt, ...] = Field(default=(128, 64), description="widths of the hidden layers")
    activation: Literal["relu", "tanh"] = Field(
        default="relu", description="nonlinearity of the hidden layers"
    )

    def shapes(self, sample_shape: tuple[int, ...], outputs: int) -> Shapes:
        """Return the shapes of the parameters, in order, for samples of any shape."""
        return layers(**_widths(math.prod(sample_shape), *self.hidden, outputs))

    def __call__(self, params: Params, samples: torch.Tensor) -> torch.Tensor:
        """Return outputs ``[b, outputs]`` for samples ``[b, ...]``."""
        return _fully_connected(
            params, samples.flatten(1), len(self.hidden) + 1, ACTIVATIONS[self.activation]
        )


def _expect_image(model: str, sample_shape: tuple[int, ...]) -> None:
    """Check that samples are images ``(c, h, w)``.

    Raises:
        ValueError: they have another number of axes.
    """
    if len(sample_shape) == 3:
        return
    size = " x ".join(map(str, sample_shape))
    got = f"samples of shape {size}"
    if len(sample_shape) == 1:
        got = f"rows of {size} features: use mlp or linear"
    elif len(sample_shape) == 2:
        got += f" without the axis of channels: add it, samples[:, None], for images of 1 x {size}"
    raise ValueError(f"{model} takes images of channels x height x width, got {got}")


def _channels_last(sample_shape: tuple[int, ...]) -> str:
    """Return a hint for images whose last axis seems to be that of the channels; "" for others."""
    last = sample_shape[-1] in (1, 3) and sample_shape[0] > 4
    return ": the axis of channels comes first, np.moveaxis(samples, -1, 1)" if last else ""


@hyperparameters
class LeNet5(Network):
    """LeNet-5 (LeCun et al. 1998) with max-pooling and full connections between its convolutions.

    Images of 28 x 28 are padded to 32 x 32.
    """

    activation: Literal["relu", "tanh"] = Field(
        default="relu", description="nonlinearity of the hidden layers"
    )

    def shapes(self, sample_shape: tuple[int, ...], outputs: int) -> Shapes:
        """Return the shapes of the parameters, in order, for images of shape ``(c, h, w)``.

        Raises:
            ValueError: the images are neither 28 x 28 nor 32 x 32.
        """
        _expect_image("lenet5", sample_shape)
        channels, *size = sample_shape
        if size not in ([28, 28], [32, 32]):
            raise ValueError(
                f"lenet5 takes images of 28 x 28 or 32 x 32, got {' x '.join(map(str, size))}"
                f"{_channels_last(sample_shape)}"
            )
        return layers(
            conv1=(6, channels, 5, 5), conv2=(16, 6, 5, 5), fc1=(120, 400), fc2=(84, 120), fc3=(outputs, 84)
        )

    def __call__(self, params: Params, samples: torch.Tensor) -> torch.Tensor:
        """Return outputs ``[b, outputs]`` for images ``[b, c, h, w]``."""
        activation, padding = ACTIVATIONS[self.activation], (32 - samples.shape[-1]) // 2
        h = activation(F.conv2d(samples, params["conv1.weight"], params["conv1.bias"], padding=padding))
        h = activation(F.conv2d(F.max_pool2d(h, 2), params["conv2.weight"], params["conv2.bias"]))
        return _fully_connected(params, F.max_pool2d(h, 2).flatten(1), 3, activation)


class _ReLUNetwork(Network):
    def initial(self, shapes: Shapes, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """Return the weights of :func:`he` and zero biases, float64."""
        return {
            name: torch.zeros(shape, dtype=torch.float64) if name.endswith("bias") else he(shape, rng)
            for name, shape in shapes.items()
        }


@hyperparameters
class CNN(_ReLUNetwork):
    """A convolutional network, by default that of Shen et al. 2024, Table 3, for fair classification.

    Each stage has 3 x 3 convolutions with padding 1 and ReLU, and 2 x 2 max-pooling. Fully connected layers
    with ReLU follow. The paper does not specify initial parameters; here they are those of He et al. (2015)
    with zero biases.
    """

    stages: tuple[tuple[PositiveInt, ...], ...] = Field(
        default=((16,), (32,), (64,)), description="channels of the convolutions of each stage"
    )
    hidden: tuple[PositiveInt, ...] = Field(
        default=(512, 64), description="widths of the hidden fully connected layers"
    )

    def shapes(self, sample_shape: tuple[int, ...], outputs: int) -> Shapes:
        """Return the shapes of the parameters, in order, for images of shape ``(c, h, w)``.

        Raises:
            ValueError: the samples are not images, or too small for the number of stages.
        """
        least = 2 ** len(self.stages)
        _expect_image(self.choice_name, sample_shape)
        if min(sample_shape[1:]) < least:
            raise ValueError(
                f"{self.choice_name} with {len(self.stages)} stages takes images of at least "
                f"{least} x {least}, got samples of shape {' x '.join(map(str, sample_shape))}"
                f"{_channels_last(sample_shape)}"
            )
        channels, height, width = sample_shape
        through = (channels, *(c for stage in self.stages for c in stage))
        flat = through[-1] * (height // least) * (width // least)
        convolutions = {f"conv{i}": (through[i], through[i - 1], 3, 3) for i in range(1, len(through))}
        return layers(**convolutions, **_widths(flat, *self.hidden, outputs))

    def __call__(self, params: Params, samples: torch.Tensor) -> torch.Tensor:
        """Return outputs ``[b, outputs]`` for images ``[b, c, h, w]``."""
        h, i = samples, 0
        for stage in self.stages:
            for _ in stage:
                i += 1
                h = torch.relu(F.conv2d(h, params[f"conv{i}.weight"], params[f"conv{i}.bias"], padding=1))
            h = F.max_pool2d(h, 2)
        return _fully_connected(params, h.flatten(1), len(self.hidden) + 1, torch.relu)


@hyperparameters
class CNN7(CNN):
    """A CNN with four convolutions in two stages and three fully connected layers, for CIFAR-10.

    Huang et al. 2024, section 6.2, specify a "7-layer CNN". Here this is LeNet-5 with each convolution
    replaced by two 3 x 3 convolutions as in VGG (Simonyan and Zisserman 2015).
    """

    stages: tuple[tuple[PositiveInt, ...], ...] = Field(
        default=((32, 32), (64, 64)), description="channels of the convolutions of each stage"
    )
    hidden: tuple[PositiveInt, ...] = Field(
        default=(512, 128), description="widths of the hidden fully connected layers"
    )


@hyperparameters
class Conv4(_ReLUNetwork):
    """Four strided convolutions and a linear layer, as in MAML for Omniglot (Finn et al. 2017).

    Convolutions are 3 x 3 with stride 2, padding 1 and ReLU; the last outputs are averaged over positions.
    Finn et al. use 64 filters and batch normalisation. Without it the loss of a batch is the mean of the
    losses of its samples, as the composition of Huang n.d. requires. Few filters keep its dense Jacobian
    small.
    """

    filters: PositiveInt = Field(default=8, description="channels of each convolution")

    def shapes(self, sample_shape: tuple[int, ...], outputs: int) -> Shapes:
        """Return the shapes of the parameters, in order, for images of shape ``(c, h, w)``.

        Raises:
            ValueError: the samples are not images.
        """
        _expect_image("conv4", sample_shape)
        n = self.filters
        convolutions = {f"conv{i}": (n, n if i > 1 else sample_shape[0], 3, 3) for i in range(1, 5)}
        return layers(**convolutions, fc1=(outputs, n))

    def __call__(self, params: Params, samples: torch.Tensor) -> torch.Tensor:
        """Return outputs ``[b, outputs]`` for images ``[b, c, h, w]``."""
        h = samples
        for i in range(1, 5):
            h = torch.relu(
                F.conv2d(h, params[f"conv{i}.weight"], params[f"conv{i}.bias"], stride=2, padding=1)
            )
        return F.linear(h.mean((-2, -1)), params["fc1.weight"], params["fc1.bias"])


@hyperparameters
class ResNet(Network):
    """A residual network of bottleneck blocks (He et al. 2016) with group normalisation.

    The default is ResNet-50 (Huang et al. 2024, section 6.2), with 25,557,032 parameters for 3 channels and
    1000 outputs as published. Group normalisation (Wu and He 2018), which has as many parameters, replaces
    batch normalisation: that couples the samples of a batch, so the loss of a batch would be a biased
    estimate of a client's loss, and its running averages are not variables and differ between heterogeneous
    clients (Hsieh et al. 2020). As in torchvision, the stride of a block is in its 3 x 3 convolution, and
    initial parameters are normal with standard deviation √(2 / fan_out) for convolutions, scales 1 and shifts
    0, and uniform in ±1/√fan_in for the linear layer.
    """

    blocks: tuple[PositiveInt, ...] = Field(
        default=(3, 4, 6, 3),
        min_length=1,
        description="number of blocks of each stage; (3, 4, 23, 3) is ResNet-101",
    )
    width: PositiveInt = Field(
        default=64, description="channels of the first convolution and inside the blocks of the first stage"
    )
    groups: PositiveInt = Field(default=32, description="number of groups of channels for normalisation")
    stem: Literal["large", "small"] = Field(
        default="large",
        description="first layer: 7 x 7 with stride 2 and pooling, or 3 x 3 without these for small images "
        "such as 32 x 32",
    )

    def __post_init__(self):
        if self.width % self.groups:
            raise ValueError(
                f"expected a width that is a multiple of groups = {self.groups}, got width = {self.width}"
            )

    def shapes(self, sample_shape: tuple[int, ...], outputs: int) -> Shapes:
        """Return the shapes of the parameters, in order, for images of shape ``(c, h, w)``.

        Raises:
            ValueError: the samples are not images.
        """
        _expect_image("resnet50", sample_shape)
        size, channels = 7 if self.stem == "large" else 3, self.width
        shapes: Shapes = {
            "conv1.weight": (channels, sample_shape[0], size, size),
            **layers(norm1=(channels,)),
        }
        for name, inside, stride in self._plan():
            out = EXPANSION * inside
            kernels = (inside, channels, 1, 1), (inside, inside, 3, 3), (out, inside, 1, 1)
            for i, kernel in enumerate(kernels, 1):
                shapes |= {f"{name}.conv{i}.weight": kernel, **layers(**{f"{name}.norm{i}": kernel[:1]})}
            if stride > 1 or channels != out:
                shapes |= {
                    f"{name}.shortcut.weight": (out, channels, 1, 1),
                    **layers(**{f"{name}.norm": (out,)}),
                }
            channels = out
        return shapes | layers(fc=(outputs, channels))

    def _plan(self):
        """Iterate over name, inner channels and stride of each block."""
        for stage, count in enumerate(self.blocks):
            for block in range(count):
                yield f"stage{stage + 1}.{block}", self.width * 2**stage, 2 if stage and not block else 1

    def initial(self, shapes: Shapes, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """Return initial parameters, float64."""
        params = {}
        for name, shape in shapes.items():
            if len(shape) == 4:
                fan_out = shape[0] * math.prod(shape[2:])
                params[name] = torch.from_numpy(math.sqrt(2 / fan_out) * rng.standard_normal(shape))
            elif name.startswith("fc"):
                params[name] = uniform(shapes["fc.weight"][1] ** -0.5, shape, rng)
            else:
                params[name] = torch.full(shape, float(name.endswith("weight")), dtype=torch.float64)
        return params

    def __call__(self, params: Params, samples: torch.Tensor) -> torch.Tensor:
        """Return outputs ``[b, outputs]`` for images ``[b, c, h, w]``."""
        large = self.stem == "large"
        h = F.conv2d(samples, params["conv1.weight"], stride=2 if large else 1, padding=3 if large else 1)
        h = torch.relu(self._norm(params, "norm1", h))
        if large:
            h = F.max_pool2d(h, 3, stride=2, padding=1)
        for name, _, stride in self._plan():
            h = self._block(params, name, h, stride)
        return F.linear(h.mean((-2, -1)), params["fc.weight"], params["fc.bias"])

    def _norm(self, params: Params, name: str, h: torch.Tensor) -> torch.Tensor:
        return F.group_norm(h, self.groups, params[f"{name}.weight"], params[f"{name}.bias"])

    def _block(self, params: Params, name: str, samples: torch.Tensor, stride: int) -> torch.Tensor:
        h = torch.relu(self._norm(params, f"{name}.norm1", F.conv2d(samples, params[f"{name}.conv1.weight"])))
        h = F.conv2d(h, params[f"{name}.conv2.weight"], stride=stride, padding=1)
        h = torch.relu(self._norm(params, f"{name}.norm2", h))
        h = self._norm(params, f"{name}.norm3", F.conv2d(h, params[f"{name}.conv3.weight"]))
        if f"{name}.shortcut.weight" in params:
            samples = F.conv2d(samples, params[f"{name}.shortcut.weight"], stride=stride)
            samples = self._norm(params, f"{name}.norm", samples)
        return torch.relu(h + samples)


@hyperparameters
class RNN(Network):
    """A recurrent network with a linear layer on the last state of its last layer (Zhang & Gao n.d., section
    5).

    The paper uses two layers of width 4096 on 300-dimensional word vectors and does not specify the cell. The
    plain cell, h' = tanh(Wx + Uh + b), is the literal reading, and long short-term memory the common
    alternative. Names, shapes and initial distribution of the parameters are those of torch's ``nn.RNN`` and
    ``nn.LSTM``.
    """

    hidden: PositiveInt = Field(default=4096, description="width of each layer")
    layers: PositiveInt = Field(default=2, description="number of layers")
    cell: Literal["tanh", "lstm"] = Field(
        default="tanh", description="plain recurrence, or long short-term memory"
    )

    def shapes(self, sample_shape: tuple[int, ...], outputs: int) -> Shapes:
        """Return the shapes of the parameters, in order, for sequences of shape ``(length, d)``.

        Raises:
            ValueError: the samples are not sequences of vectors.
        """
        if len(sample_shape) != 2:
            raise ValueError(
                f"rnn takes sequences of vectors, got samples of shape {' x '.join(map(str, sample_shape))}"
            )
        rows, shapes = self.hidden * (4 if self.cell == "lstm" else 1), {}
        for layer in range(self.layers):
            shapes |= {
                f"weight_ih_l{layer}": (rows, self.hidden if layer else sample_shape[1]),
                f"weight_hh_l{layer}": (rows, self.hidden),
                f"bias_ih_l{layer}": (rows,),
                f"bias_hh_l{layer}": (rows,),
            }
        return shapes | {"fc.weight": (outputs, self.hidden), "fc.bias": (outputs,)}

    def initial(self, shapes: Shapes, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """Return all parameters uniform in ±1/√width, float64."""
        return {name: uniform(self.hidden**-0.5, shape, rng) for name, shape in shapes.items()}

    def __call__(self, params: Params, samples: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return outputs ``[b, outputs]`` for padded sequences.

        Args:
            samples: vectors ``[b, length, d]``, padded on the right, which does not change earlier states.
            lengths: number of vectors per sequence, int64 ``[b]``; 0 is treated as 1.
        """
        step = _lstm if self.cell == "lstm" else _plain
        h = samples.transpose(0, 1)
        for layer in range(self.layers):
            biases = params[f"bias_ih_l{layer}"] + params[f"bias_hh_l{layer}"]
            inputs = F.linear(h, params[f"weight_ih_l{layer}"], biases)  # one matrix product for all words
            h = torch.stack(step(inputs, params[f"weight_hh_l{layer}"]))
        last = (lengths.clamp(min=1) - 1)[None, :, None].expand(1, -1, self.hidden)
        return F.linear(h.gather(0, last)[0], params["fc.weight"], params["fc.bias"])


def _plain(inputs: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
    """Return the states ``[b, width]`` of one layer for Wx + b of each word, ``[length, b, width]``."""
    states = [torch.tanh(inputs[0])]
    for step in inputs[1:].unbind():
        states.append(torch.tanh(step + F.linear(states[-1], weight)))
    return states


def _lstm(inputs: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
    """Return the states as :func:`_plain`; rows are input, forget, cell and output gate."""
    states: list[torch.Tensor] = []
    memory = None
    for step in inputs.unbind():
        gates = step + F.linear(states[-1], weight) if states else step
        i, f, g, o = gates.chunk(4, dim=-1)
        fresh = torch.sigmoid(i) * torch.tanh(g)
        memory = fresh + torch.sigmoid(f) * memory if states else fresh
        states.append(torch.sigmoid(o) * torch.tanh(memory))
    return states
