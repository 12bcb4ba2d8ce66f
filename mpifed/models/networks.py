"""Networks: frozen settings that say the parameters' shapes and map parameters and images to outputs.

A network is a pure function of a dictionary of parameters, not an ``nn.Module``, so that ``torch.func.vmap`` maps it
over clients and a call costs no more than its tensor operations. Names that a network does not know are ignored: the
dictionary may hold a problem's other variables too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt

from mpifed.options import choice, hyperparameters

__all__ = ["Linear", "MLP", "LeNet5", "MODELS", "Model"]

Shapes = dict[str, tuple[int, ...]]
Params = Mapping[str, torch.Tensor]

_ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh}


def _layers(**weights: tuple[int, ...]) -> Shapes:
    """Weight and bias of each layer, in order."""
    shapes: Shapes = {}
    for name, shape in weights.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return shapes


class _Network:
    def initial(self, shapes: Shapes, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """Weights and biases uniform in ±1/√fan_in, as in torch's layers; float64."""
        params = {}
        for name, shape in shapes.items():
            bound = math.prod(shapes[name.replace("bias", "weight")][1:]) ** -0.5
            params[name] = torch.from_numpy(rng.uniform(-bound, bound, shape))
        return params


@hyperparameters
class Linear(_Network):
    """One linear layer."""

    def shapes(self, image_shape: tuple[int, ...], outputs: int) -> Shapes:
        """Shapes of the parameters, in order, for images of shape ``(c, h, w)``."""
        return _layers(fc1=(outputs, math.prod(image_shape)))

    def __call__(self, params: Params, images: torch.Tensor) -> torch.Tensor:
        """Outputs ``[b, outputs]`` for images ``[b, c, h, w]``."""
        return F.linear(images.flatten(1), params["fc1.weight"], params["fc1.bias"])


@hyperparameters
class MLP(_Network):
    """A multilayer perceptron; two hidden layers make the 3-layer network of 000, section 6.3."""

    hidden: tuple[PositiveInt, ...] = Field(default=(128, 64), description="widths of the hidden layers")
    activation: Literal["relu", "tanh"] = Field(default="relu", description="nonlinearity of the hidden layers")

    def shapes(self, image_shape: tuple[int, ...], outputs: int) -> Shapes:
        """Shapes of the parameters, in order, for images of shape ``(c, h, w)``."""
        widths = (math.prod(image_shape), *self.hidden, outputs)
        return _layers(**{f"fc{i}": (widths[i], widths[i - 1]) for i in range(1, len(widths))})

    def __call__(self, params: Params, images: torch.Tensor) -> torch.Tensor:
        """Outputs ``[b, outputs]`` for images ``[b, c, h, w]``."""
        activation, last = _ACTIVATIONS[self.activation], len(self.hidden) + 1
        h = images.flatten(1)
        for i in range(1, last):
            h = activation(F.linear(h, params[f"fc{i}.weight"], params[f"fc{i}.bias"]))
        return F.linear(h, params[f"fc{last}.weight"], params[f"fc{last}.bias"])


@hyperparameters
class LeNet5(_Network):
    """LeNet-5 (LeCun et al., 1998) with max-pooling and full connections between its convolutions.

    Images of 28 x 28 are padded to the 32 x 32 that the network is made for.
    """

    activation: Literal["relu", "tanh"] = Field(default="relu", description="nonlinearity of the hidden layers")

    def shapes(self, image_shape: tuple[int, ...], outputs: int) -> Shapes:
        """Shapes of the parameters, in order, for images of shape ``(c, h, w)``.

        Raises:
            ValueError: the images are neither 28 x 28 nor 32 x 32.
        """
        channels, *size = image_shape
        if size not in ([28, 28], [32, 32]):
            raise ValueError(f"lenet5 takes images of 28 x 28 or 32 x 32, got {' x '.join(map(str, size))}")
        return _layers(
            conv1=(6, channels, 5, 5), conv2=(16, 6, 5, 5), fc1=(120, 400), fc2=(84, 120), fc3=(outputs, 84)
        )

    def __call__(self, params: Params, images: torch.Tensor) -> torch.Tensor:
        """Outputs ``[b, outputs]`` for images ``[b, c, h, w]``."""
        activation, padding = _ACTIVATIONS[self.activation], (32 - images.shape[-1]) // 2
        h = activation(F.conv2d(images, params["conv1.weight"], params["conv1.bias"], padding=padding))
        h = activation(F.conv2d(F.max_pool2d(h, 2), params["conv2.weight"], params["conv2.bias"]))
        h = F.max_pool2d(h, 2).flatten(1)
        h = activation(F.linear(h, params["fc1.weight"], params["fc1.bias"]))
        h = activation(F.linear(h, params["fc2.weight"], params["fc2.bias"]))
        return F.linear(h, params["fc3.weight"], params["fc3.bias"])


MODELS = {"linear": Linear, "mlp": MLP, "lenet5": LeNet5}

#: A network by name, table or instance.
Model = choice("model", MODELS)
