"""Fully connected networks."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt

from mpifed.base.settings import hyperparameters
from mpifed.models.base import ACTIVATIONS, Network, Params, Shapes, layers

__all__ = ["Linear", "MLP"]


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
        widths = (math.prod(sample_shape), *self.hidden, outputs)
        return layers(**{f"fc{i}": (widths[i], widths[i - 1]) for i in range(1, len(widths))})

    def __call__(self, params: Params, samples: torch.Tensor) -> torch.Tensor:
        """Return outputs ``[b, outputs]`` for samples ``[b, ...]``."""
        activation, last = ACTIVATIONS[self.activation], len(self.hidden) + 1
        h = samples.flatten(1)
        for i in range(1, last):
            h = activation(F.linear(h, params[f"fc{i}.weight"], params[f"fc{i}.bias"]))
        return F.linear(h, params[f"fc{last}.weight"], params[f"fc{last}.bias"])
