"""Weight decay: a term of the objective of problems with a network."""

from __future__ import annotations

import torch
from pydantic import Field

from mpifed.base.settings import problem_settings
from mpifed.core.problem import Named

__all__ = ["WeightDecay"]


@problem_settings
class WeightDecay:
    """Base class of problems whose objective has the term (λ/2) ‖w‖², where w are the network's parameters.

    Other variables, such as those of a maximum, have no such term.
    """

    weight_decay: float = Field(
        default=0.0,
        ge=0,
        description="weight decay λ: a term (λ/2) ‖w‖² of the objective, w all parameters of the network",
    )

    def decayed(self, value: torch.Tensor, block: Named) -> torch.Tensor:
        """Return a value plus (λ/2) ‖w‖².

        Args:
            block: the parameters of the block with the network, which may have other variables.
        """
        if not self.weight_decay:
            return value
        squares = ((block[name] ** 2).sum() for name in self.network)  # type: ignore[attr-defined]
        return value + self.weight_decay / 2 * sum(squares)
