"""Classification with a network and the cross-entropy loss, for minimisation methods."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from mpifed.base.settings import problem_settings
from mpifed.core.problem import Minimisation, Named
from mpifed.problems.labelled_images import LabelledImages
from mpifed.problems.weight_decay import WeightDecay

__all__ = ["Classification"]


@problem_settings
class Classification(WeightDecay, LabelledImages, Minimisation):
    """min over the network's parameters x of the mean cross-entropy plus (λ/2) ‖x‖².

    The samples are images or rows of a table.
    """

    maximised = frozenset({"accuracy", "worst_accuracy"})

    def loss(self, x: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        images, labels = batch
        return self.decayed(F.cross_entropy(self.model(x, images), labels), x)

    def metrics(self, x: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """Return the ``accuracy`` on the test images, and ``worst_accuracy``, the smallest of any class."""
        accuracy, by_class = self.accuracies(predictions)
        return {"accuracy": accuracy, "worst_accuracy": float(by_class.min())}
