"""Fair classification (Shen et al. 2024, section 4.2): the network against weights on the classes.

Readings. F_c is the mean cross-entropy of the training samples of class c, pooled over clients. A sample of
class c counts y_c / π_c, with π_c the share of the class in all training data, which makes the batch mean an
unbiased estimate of Σ_c y_c F_c where clients count by their number of samples (equal clients, or ``weights =
"samples"``); a batch may lack classes. There is no regulariser. y starts uniform.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from mpifed.base.settings import problem_settings
from mpifed.core.problem import Minimax, Named
from mpifed.core.records import Blocks
from mpifed.core.sets import Sets, Simplex
from mpifed.problems.labelled_images import LabelledImages

__all__ = ["FairClassification"]


@problem_settings
class FairClassification(LabelledImages, Minimax):
    """min over the network x, max over y on the simplex of Σ_c y_c F_c(x), F_c the cross-entropy of class
    c."""

    source = "Shen et al. 2024, section 4.2"
    cites = ("shen2024fessgda",)
    maximised = frozenset({"mean_accuracy", "worst_accuracy"})
    sets = Sets(y=Simplex())

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Read and part the data, as for every classification problem."""
        super().prepare(seed, data_dir)
        held = self._images.train_labels[np.concatenate(self._rows)]
        self._inverse_share = len(held) / torch.bincount(held, minlength=self._images.classes).double()

    def variables(self) -> Blocks:
        return Blocks(x=self._shapes, y={"y": (self._images.classes,)})

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """The network's random start, and the uniform weights."""
        classes = self._images.classes
        return {
            "x": self.model.start(self._shapes, rng),
            "y": torch.full((classes,), 1 / classes, dtype=torch.float64),
        }

    def client_data(self, client: int) -> tuple[torch.Tensor, ...]:
        """Images ``[n, c, h, w]``, labels ``[n]`` and 1/π of a sample's class ``[n]``."""
        images, labels = super().client_data(client)
        return images, labels, self._inverse_share[labels]

    def loss(self, x: Named, y: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        images, labels, inverse_share = batch
        losses = F.cross_entropy(self.model(x, images), labels, reduction="none")
        return (y["y"][labels] * inverse_share * losses).mean()

    def predict(self, x: Named, y: Named, rows: slice) -> torch.Tensor:
        """The network's outputs, ``[n, classes]``."""
        return self.scores(x, rows)

    def metrics(self, x: Named, y: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """Test accuracy of a class: ``mean_accuracy`` over the classes, ``worst_accuracy`` of the worst."""
        by_class = self.accuracies(predictions)[1]
        return {"mean_accuracy": float(by_class.mean()), "worst_accuracy": float(by_class.min())}
