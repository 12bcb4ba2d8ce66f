"""Convolutional networks without normalisation: LeNet-5, plain stacks of small convolutions, and the one of
MAML."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt

from mpifed.core.settings import hyperparameters
from mpifed.models.base import ACTIVATIONS, Network, Params, Shapes, he, layers

__all__ = ["LeNet5", "CNN", "CNN7", "Conv4"]


@hyperparameters
class LeNet5(Network):
    """LeNet-5 (LeCun et al., 1998) with max-pooling and full connections between its convolutions.

    Images of 28 x 28 are padded to the 32 x 32 that the network is made for.
    """

    activation: Literal["relu", "tanh"] = Field(
        default="relu", description="nonlinearity of the hidden layers"
    )

    def shapes(self, sample_shape: tuple[int, ...], outputs: int) -> Shapes:
        """Shapes of the parameters, in order, for images of shape ``(c, h, w)``.

        Raises:
            ValueError: the images are neither 28 x 28 nor 32 x 32.
        """
        channels, *size = sample_shape
        if size not in ([28, 28], [32, 32]):
            got = " x ".join(map(str, size)) or f"rows of {channels} numbers: take mlp or linear"
            raise ValueError(f"lenet5 takes images of 28 x 28 or 32 x 32, got {got}")
        return layers(
            conv1=(6, channels, 5, 5), conv2=(16, 6, 5, 5), fc1=(120, 400), fc2=(84, 120), fc3=(outputs, 84)
        )

    def __call__(self, params: Params, samples: torch.Tensor) -> torch.Tensor:
        """Outputs ``[b, outputs]`` for images ``[b, c, h, w]``."""
        activation, padding = ACTIVATIONS[self.activation], (32 - samples.shape[-1]) // 2
        h = activation(F.conv2d(samples, params["conv1.weight"], params["conv1.bias"], padding=padding))
        h = activation(F.conv2d(F.max_pool2d(h, 2), params["conv2.weight"], params["conv2.bias"]))
        h = F.max_pool2d(h, 2).flatten(1)
        h = activation(F.linear(h, params["fc1.weight"], params["fc1.bias"]))
        h = activation(F.linear(h, params["fc2.weight"], params["fc2.bias"]))
        return F.linear(h, params["fc3.weight"], params["fc3.bias"])


class _ReLUNetwork(Network):
    def initial(self, shapes: Shapes, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """Weights of He et al. (2015), biases 0; float64."""
        return {
            name: torch.zeros(shape, dtype=torch.float64) if name.endswith("bias") else he(shape, rng)
            for name, shape in shapes.items()
        }


@hyperparameters
class CNN(_ReLUNetwork):
    """A convolutional network; by default that of Shen et al. 2024, Table 3, for fair classification.

    Convolutions are 3 x 3 with padding 1 and followed by a ReLU, a stage of them by 2 x 2 max-pooling; then
    come full connections with ReLU between. The paper prints no starting values: they are those of He et al.
    (2015), biases 0.
    """

    stages: tuple[tuple[PositiveInt, ...], ...] = Field(
        default=((16,), (32,), (64,)), description="channels of the convolutions of each stage"
    )
    hidden: tuple[PositiveInt, ...] = Field(default=(512, 64), description="widths of the hidden full layers")

    def shapes(self, sample_shape: tuple[int, ...], outputs: int) -> Shapes:
        """Shapes of the parameters, in order, for images of shape ``(c, h, w)``.

        Raises:
            ValueError: the samples are no images, or too small to be halved by every stage.
        """
        least = 2 ** len(self.stages)
        if len(sample_shape) != 3 or min(sample_shape[1:]) < least:
            raise ValueError(
                f"{self.choice_name} of {len(self.stages)} stages takes images of {least} x {least} at "
                "least, got samples of "
                f"shape {' x '.join(map(str, sample_shape))}"
            )
        channels, height, width = sample_shape
        through = (channels, *(c for stage in self.stages for c in stage))
        flat = through[-1] * (height // least) * (width // least)
        widths = (flat, *self.hidden, outputs)
        convolutions = {f"conv{i}": (through[i], through[i - 1], 3, 3) for i in range(1, len(through))}
        return layers(**convolutions, **{f"fc{i}": (widths[i], widths[i - 1]) for i in range(1, len(widths))})

    def __call__(self, params: Params, samples: torch.Tensor) -> torch.Tensor:
        """Outputs ``[b, outputs]`` for images ``[b, c, h, w]``."""
        h, i = samples, 0
        for stage in self.stages:
            for _ in stage:
                i += 1
                h = torch.relu(F.conv2d(h, params[f"conv{i}.weight"], params[f"conv{i}.bias"], padding=1))
            h = F.max_pool2d(h, 2)
        h, last = h.flatten(1), len(self.hidden) + 1
        for i in range(1, last):
            h = torch.relu(F.linear(h, params[f"fc{i}.weight"], params[f"fc{i}.bias"]))
        return F.linear(h, params[f"fc{last}.weight"], params[f"fc{last}.bias"])


@hyperparameters
class CNN7(CNN):
    """A 7-layer CNN for CIFAR-10 (Huang et al. 2024, section 6.2): four convolutions in two stages and three
    full layers.

    The paper says no more than "7-layer CNN": seven layers with weights are meant here, LeNet-5's plan with
    the two small convolutions of VGG (Simonyan and Zisserman, 2015) in place of each of its own.
    """

    stages: tuple[tuple[PositiveInt, ...], ...] = Field(
        default=((32, 32), (64, 64)), description="channels of the convolutions of each stage"
    )
    hidden: tuple[PositiveInt, ...] = Field(
        default=(512, 128), description="widths of the hidden full layers"
    )


@hyperparameters
class Conv4(_ReLUNetwork):
    """Four strided convolutions and a linear layer: the network of MAML (Finn et al., 2017) for Omniglot,
    with few filters.

    Convolutions are 3 x 3 with stride 2, padding 1 and a ReLU; the last are averaged over their positions.
    Finn et al. have 64 filters and batch normalisation; without it the loss of a batch is the mean of its
    samples' losses, which the composition of Huang n.d. asks for, and few filters keep the dense Jacobian of
    that composition small.
    """

    filters: PositiveInt = Field(default=8, description="channels of each convolution")

    def shapes(self, sample_shape: tuple[int, ...], outputs: int) -> Shapes:
        """Shapes of the parameters, in order, for images of shape ``(c, h, w)``.

        Raises:
            ValueError: the samples are no images.
        """
        if len(sample_shape) != 3:
            raise ValueError(f"conv4 takes images, got samples of shape {' x '.join(map(str, sample_shape))}")
        n = self.filters
        convolutions = {f"conv{i}": (n, n if i > 1 else sample_shape[0], 3, 3) for i in range(1, 5)}
        return layers(**convolutions, fc1=(outputs, n))

    def __call__(self, params: Params, samples: torch.Tensor) -> torch.Tensor:
        """Outputs ``[b, outputs]`` for images ``[b, c, h, w]``."""
        h = samples
        for i in range(1, 5):
            h = torch.relu(
                F.conv2d(h, params[f"conv{i}.weight"], params[f"conv{i}.bias"], stride=2, padding=1)
            )
        return F.linear(h.mean((-2, -1)), params["fc1.weight"], params["fc1.bias"])
