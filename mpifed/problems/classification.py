"""Classification: a network trained by the cross-entropy, for the methods that minimise."""

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
    """min over the network x of the mean cross-entropy of a client's samples, plus (λ/2) ‖x‖².

    The data set holds images, or a table whose rows the network takes.
    """

    weight_decay: float = Field(default=0.0, ge=0, description="λ, on all parameters of the network")

    maximised = frozenset({"accuracy", "worst_accuracy"})

    def loss(self, x: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        images, labels = batch
        loss = F.cross_entropy(self.model(x, images), labels)
        if self.weight_decay:
            loss = loss + self.weight_decay / 2 * sum((weights**2).sum() for weights in x.values())
        return loss

    def predict(self, x: Named, rows: slice) -> torch.Tensor:
        """The network's outputs, ``[n, classes]``."""
        return self.scores(x, rows)

    def metrics(self, x: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """Share of test images classified rightly: ``accuracy`` of all, ``worst_accuracy`` of the class with
        the smallest share."""
        share, by_class = self.accuracies(predictions)
        return {"accuracy": share, "worst_accuracy": float(by_class.min())}
