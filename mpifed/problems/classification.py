"""Classification with a network and the cross-entropy loss, for minimisation methods."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field

from mpifed.base.settings import problem_settings
from mpifed.core.problem import Minimisation, Named
from mpifed.problems.labelled_images import LabelledImages

__all__ = ["Classification"]


@problem_settings
class Classification(LabelledImages, Minimisation):
    """min over the network's parameters x of the mean cross-entropy plus (λ/2) ‖x‖².

    The samples are images or rows of a table.
    """

    weight_decay: float = Field(default=0.0, ge=0, description="weight decay λ of all parameters")

    maximised = frozenset({"accuracy", "worst_accuracy"})

    def loss(self, x: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        images, labels = batch
        loss = F.cross_entropy(self.model(x, images), labels)
        if self.weight_decay:
            loss = loss + self.weight_decay / 2 * sum((weights**2).sum() for weights in x.values())
        return loss

    def metrics(self, x: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """Return the ``accuracy`` on the test images, and ``worst_accuracy``, the smallest of any class."""
        accuracy, by_class = self.accuracies(predictions)
        return {"accuracy": accuracy, "worst_accuracy": float(by_class.min())}
