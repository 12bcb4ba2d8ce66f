"""Base class of networks: settings that determine the shapes of the parameters, and a forward function.

A network is a pure function of a dictionary of parameters, not an ``nn.Module``, so that ``torch.func.vmap``
can vectorise it over clients and a call has no overhead. Unknown names in the dictionary are ignored, because
it may contain other variables of a problem.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import nn

__all__ = ["ACTIVATIONS", "Exported", "Network", "Params", "Shapes", "he", "layers", "uniform"]

Shapes = dict[str, tuple[int, ...]]
Params = Mapping[str, torch.Tensor]

ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh}


def layers(**weights: tuple[int, ...]) -> Shapes:
    """Return the shapes of weight and bias of each layer, in order."""
    shapes: Shapes = {}
    for name, shape in weights.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return shapes


def uniform(bound: float, shape: tuple[int, ...], rng: np.random.Generator) -> torch.Tensor:
    """Return numbers uniform in (-bound, bound), float64."""
    return torch.from_numpy(rng.uniform(-bound, bound, shape))


def he(shape: tuple[int, ...], rng: np.random.Generator) -> torch.Tensor:
    """Return weights uniform in ±√(6 / fan_in), float64 (He et al. 2015)."""
    return uniform(math.sqrt(6 / math.prod(shape[1:])), shape, rng)


class Network:
    """Base class: subclasses define ``shapes(sample_shape, outputs)`` and ``__call__(params, samples)``."""

    def initial(self, shapes: Shapes, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """Return weights and biases uniform in ±1/√fan_in, float64, as in torch's layers."""
        params = {}
        for name, shape in shapes.items():
            fan_in = math.prod(shapes[name.replace("bias", "weight")][1:])
            params[name] = uniform(fan_in**-0.5, shape, rng)
        return params

    def start(self, shapes: Shapes, rng: np.random.Generator) -> torch.Tensor:
        """Return the initial parameters as one vector ``[d]``, float64."""
        return torch.cat([tensor.flatten() for tensor in self.initial(shapes, rng).values()])

    def fixed(self) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        """Return the entries of the ``state_dict`` of :meth:`module` that are not parameters.

        Returns:
            Constants by name, and for parameters that several layers share, further name → first name.
        """
        return {}, {}

    def module(self, params: Params) -> torch.nn.Module:
        """Return a module in evaluation mode whose ``state_dict`` has the names of the parameters."""
        return Exported(self, params).eval()


class Exported(nn.Module):
    """A built-in network as a torch module whose ``state_dict`` has the parameters' names.

    Args:
        network: called as ``network(params, *inputs)``.
        params: the parameters, which are copied.
    """

    def __init__(self, network: Callable[..., torch.Tensor], params: Mapping[str, torch.Tensor]):
        super().__init__()
        self._network = network
        for name, values in params.items():
            *path, last = name.split(".")
            owner: nn.Module = self
            for part in path:
                if part not in dict(owner.named_children()):
                    owner.add_module(part, nn.Module())
                owner = owner.get_submodule(part)
            owner.register_parameter(last, nn.Parameter(values.detach().clone()))

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return outputs ``[b, outputs]`` for samples ``[b, ...]`` and, for ``rnn``, lengths ``[b]``."""
        return self._network(dict(self.named_parameters()), *inputs)
