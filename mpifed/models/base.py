"""The base class of networks: frozen settings that define the parameters' shapes and map parameters and
samples to outputs.

A network is a pure function of a dictionary of parameters, not an ``nn.Module``, so that ``torch.func.vmap``
vectorises it over clients and a call costs no more than its tensor operations. Unknown names are ignored: the
dictionary may also contain a problem's other variables.
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
    """Weight and bias of each layer, in order."""
    shapes: Shapes = {}
    for name, shape in weights.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return shapes


def uniform(bound: float, shape: tuple[int, ...], rng: np.random.Generator) -> torch.Tensor:
    """Numbers uniform in ±``bound``, float64."""
    return torch.from_numpy(rng.uniform(-bound, bound, shape))


def he(shape: tuple[int, ...], rng: np.random.Generator) -> torch.Tensor:
    """Weights uniform in ±√(6 / fan_in), float64, with which a ReLU preserves the second moment of its input
    (He et al., 2015)."""
    return uniform(math.sqrt(6 / math.prod(shape[1:])), shape, rng)


class Network:
    """The contract: ``shapes(sample_shape, outputs)`` and a call ``(params, samples) -> [b, outputs]``."""

    def initial(self, shapes: Shapes, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """Weights and biases uniform in ±1/√fan_in, as in torch's layers; float64."""
        params = {}
        for name, shape in shapes.items():
            fan_in = math.prod(shapes[name.replace("bias", "weight")][1:])
            params[name] = uniform(fan_in**-0.5, shape, rng)
        return params

    def start(self, shapes: Shapes, rng: np.random.Generator) -> torch.Tensor:
        """The initial parameters in one vector ``[d]``, float64."""
        return torch.cat([tensor.flatten() for tensor in self.initial(shapes, rng).values()])

    def fixed(self) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        """The entries of :meth:`module`'s ``state_dict`` other than parameters: constants by name, and
        further names of shared parameters → the first name."""
        return {}, {}

    def module(self, params: Params) -> torch.nn.Module:
        """The network with these parameters as a module in evaluation mode, whose ``state_dict`` has their
        names."""
        return Exported(self, params).eval()


class Exported(nn.Module):
    """A built-in network as a torch module, whose ``state_dict`` has the parameters' names.

    Args:
        network: ``network(params, *inputs)``.
        params: the parameters; the module stores copies.
    """

    def __init__(self, network: Callable[..., torch.Tensor], params: Mapping[str, torch.Tensor]):
        super().__init__()
        self._network = network
        for name, values in params.items():
            *path, last = name.split(".")
            owner: nn.Module = self
            for part in path:
                if part not in owner._modules:
                    owner.add_module(part, nn.Module())
                owner = owner.get_submodule(part)
            owner.register_parameter(last, nn.Parameter(values.detach().clone()))

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """The network's outputs ``[b, outputs]`` for samples ``[b, ...]``; ``rnn`` also takes the sequences'
        lengths ``[b]``."""
        return self._network(dict(self.named_parameters()), *inputs)
