"""A network of this package as a torch module, for whoever goes on without the package's runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn

__all__ = ["Exported"]


class Exported(nn.Module):
    """A pure function of named parameters as a module whose ``state_dict`` has the same names.

    Args:
        network: ``network(params, *inputs)``.
        params: the parameters; the module has copies.
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
        """The network's outputs ``[b, outputs]`` for samples ``[b, ...]``; ``rnn`` takes the sequences'
        lengths ``[b]`` as well."""
        return self._network(dict(self.named_parameters()), *inputs)
