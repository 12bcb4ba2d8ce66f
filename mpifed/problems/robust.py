"""Robust training of a network against one perturbation of all images (Huang et al. 2024, section 6.3).

Interpretation of the paper: It squares the difference of the network's output and the label, and reports a
test accuracy. Here the network has one output per class, labels are one-hot, and squares are summed over the
classes. The loss is the mean over a client's samples instead of the sum, so step sizes do not depend on the
amount of data. All samples and clients share one ν, which starts at 0.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field

from mpifed.base.settings import problem_settings
from mpifed.core.problem import Batch, Minimax, Named
from mpifed.core.records import Blocks
from mpifed.core.sets import Ball, Sets
from mpifed.models import MLP, Model
from mpifed.problems.labelled_images import LabelledImages
from mpifed.problems.weight_decay import WeightDecay

__all__ = ["RobustRegression"]


@problem_settings
class RobustRegression(WeightDecay, LabelledImages, Minimax):
    """min over w, max over ‖ν‖ ≤ radius of the mean of ‖h(w; image + ν) - one-hot label‖².

    x contains the network's parameters w; y is the perturbation ν, which has the shape of an image.
    """

    model: Model = Field(default=MLP(), description="network h")
    radius: float = Field(
        default=1.0, gt=0, description="bound on the Euclidean norm of ν; pixels are in [0, 1]"
    )

    source = "Huang et al. 2024, eq. 14"
    cites = ("huang2024adafgda",)
    metric_names = ("accuracy", "perturbed_accuracy")
    maximised = frozenset({"accuracy", "perturbed_accuracy"})

    @property
    def sets(self) -> Sets:
        """The ball that contains ν."""
        return Sets(y=Ball(self.radius))

    def variables(self) -> Blocks:
        return Blocks(x=self.network, y={"nu": self._images.shape})

    def client_rows(self, clients: np.ndarray) -> tuple[Batch, np.ndarray]:
        """Return images ``[n, c, h, w]`` and one-hot labels ``[n, classes]``."""
        (images, labels), sizes = super().client_rows(clients)
        return (images, F.one_hot(labels, self._images.classes).double()), sizes

    def loss(self, x: Named, y: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        images, targets = batch
        return self.decayed(((self.model(x, images + y["nu"]) - targets) ** 2).sum(dim=1).mean(), x)

    def predict(self, x: Named, y: Named, rows: slice) -> torch.Tensor:
        """Return the network's outputs for clean and then for perturbed images, ``[n, 2 classes]``."""
        return torch.cat([self.scores(x, rows), self.scores(x, rows, y["nu"])], dim=1)

    def metrics(self, x: Named, y: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """Return the accuracies on clean and perturbed test images, ``accuracy``, ``perturbed_accuracy``."""
        clean, perturbed = (self.accuracies(part)[0] for part in predictions.chunk(2, dim=1))
        return {"accuracy": clean, "perturbed_accuracy": perturbed}
