"""The optimiser of local steps: stochastic gradient descent with momentum and weight decay."""

from __future__ import annotations

import torch
from pydantic import Field

from mpifed.base.settings import choice, hyperparameters

__all__ = ["LOCAL_OPTIMISERS", "SGD", "LocalOptimiser"]


@hyperparameters
class SGD:
    """Gradient steps, with momentum and weight decay as in ``torch.optim.SGD``.

    With the gradient g at x, g ← g + λx and v ← μ v + g. The step is along v, with ``nesterov`` along
    g + μ v. The momentum v starts at 0 in every round: clients do not store it.
    """

    momentum: float | None = Field(
        default=None, ge=0, lt=1, description="decay μ of the momentum; default: no momentum"
    )
    nesterov: bool = Field(default=False, description="Nesterov's variant of the momentum")
    weight_decay: float | None = Field(
        default=None,
        ge=0,
        description="weight decay λ of all variables; not in the objective, unlike problem.weight_decay; "
        "default: none",
    )

    needs = {"nesterov": ("momentum > 0", lambda optimiser: optimiser.momentum)}

    def __call__(
        self, g: torch.Tensor, x: torch.Tensor, v: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the direction of a descent step, ``[C, d]``, and the new momentum.

        Args:
            g: gradient ``[C, d]`` at the point x, ``[C, d]`` or ``[d]``.
            v: momentum ``[C, d]``; ``None`` in the first step of a round, and always without momentum.
        """
        if self.weight_decay:
            g = g + self.weight_decay * x
        if not self.momentum:
            return g, None
        v = g if v is None else self.momentum * v + g
        return (g + self.momentum * v if self.nesterov else v), v


LOCAL_OPTIMISERS = {"sgd": SGD}

#: A local optimiser by name, table or instance.
LocalOptimiser = choice("local optimiser", LOCAL_OPTIMISERS)
