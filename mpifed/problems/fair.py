"""Fair classification (Shen et al. 2024, section 4.2): a network against weights of the classes.

Interpretation of the paper: F_c is the mean cross-entropy of the training samples of class c of all clients.
A sample of class c has the weight y_c / π_c, where π_c is the fraction of class c in all training data. The
mean over a batch, which may lack classes, is then an unbiased estimate of Σ_c y_c F_c if the weights of the
clients are proportional to their numbers of samples (equal clients, or ``weights = "samples"``). There is no
regulariser. y starts uniform.
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
    """min over x, max over y in the simplex of Σ_c y_c F_c(x), where F_c is the cross-entropy of class c."""

    source = "Shen et al. 2024, section 4.2"
    cites = ("shen2024fessgda",)
    maximised = frozenset({"mean_accuracy", "worst_accuracy"})
    sets = Sets(y=Simplex())

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Read, split and partition the data, see :meth:`LabelledImages.prepare`."""
        super().prepare(seed, data_dir)
        labels = self._images.train_labels[np.concatenate(self._rows)]
        self._inverse_share = len(labels) / torch.bincount(labels, minlength=self._images.classes).double()

    def variables(self) -> Blocks:
        return Blocks(x=self._shapes, y={"y": (self._images.classes,)})

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """Return random initial parameters of the network and uniform weights."""
        classes = self._images.classes
        return {
            "x": self.model.start(self._shapes, rng),
            "y": torch.full((classes,), 1 / classes, dtype=torch.float64),
        }

    def client_data(self, client: int) -> tuple[torch.Tensor, ...]:
        """Return images ``[n, c, h, w]``, labels ``[n]`` and 1/π of each sample's class ``[n]``."""
        images, labels = super().client_data(client)
        return images, labels, self._inverse_share[labels]

    def loss(self, x: Named, y: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        images, labels, inverse_share = batch
        losses = F.cross_entropy(self.model(x, images), labels, reduction="none")
        return (y["y"][labels] * inverse_share * losses).mean()

    def predict(self, x: Named, y: Named, rows: slice) -> torch.Tensor:
        """Return the network's outputs, ``[n, classes]``."""
        return self.scores(x, rows)

    def metrics(self, x: Named, y: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """Return ``mean_accuracy`` and ``worst_accuracy``, mean and minimum test accuracy over classes."""
        by_class = self.accuracies(predictions)[1]
        return {"mean_accuracy": float(by_class.mean()), "worst_accuracy": float(by_class.min())}
