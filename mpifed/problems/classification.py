"""Classification with a network and the cross-entropy loss, for minimisation methods.

``class_weights`` and ``label_smoothing`` are those of ``torch.nn.functional.cross_entropy``, with another
denominator. torch divides the sum over a minibatch by the sum of the weights of its samples, which is random,
so that the mean over minibatches is not the loss of all samples. Here the sum is divided by the number of
samples, and the weights are scaled so that their mean over the training samples of all clients is 1. The loss
of a minibatch is then an unbiased estimate, and the loss of all training samples is torch's, if the weights
of the clients are proportional to their numbers of samples.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field

from mpifed.base.errors import short_repr, truncate
from mpifed.base.settings import problem_settings
from mpifed.core.problem import Batch, Minimisation, Named
from mpifed.problems.labelled_images import LabelledImages
from mpifed.problems.weight_decay import WeightDecay

__all__ = ["Classification"]


@problem_settings
class Classification(WeightDecay, LabelledImages, Minimisation):
    """min over the network's parameters x of the mean cross-entropy plus (λ/2) ‖x‖².

    The samples are images or rows of a table.
    """

    class_weights: tuple[Annotated[float, Field(gt=0)], ...] | Literal["balanced"] | None = Field(
        default=None,
        description="weights of the classes in the loss, in the order of the classes, or balanced: inversely "
        "proportional to the numbers of training samples of all clients; scaled to a mean of 1 over these "
        "samples; default: equal weights",
    )
    label_smoothing: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="part ε of the target that is divided equally among all classes, instead of 1 for the "
        "class of the sample",
    )

    metric_names = ("accuracy", "worst_accuracy")
    maximised = frozenset({"accuracy", "worst_accuracy"})

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Read, split and partition the data, see :meth:`LabelledImages.prepare`.

        Raises:
            ValueError: also if the class weights do not fit the classes.
        """
        super().prepare(seed, data_dir)
        self._targets = None
        if self.class_weights is not None or self.label_smoothing:
            classes = self._images.classes
            smoothed = (1 - self.label_smoothing) * np.eye(classes) + self.label_smoothing / classes
            self._targets = torch.from_numpy(smoothed * self._scaled_weights())

    def _scaled_weights(self) -> np.ndarray:
        """Return the weights of the classes, whose mean over all clients' training samples is 1, float64."""
        labels, names = self._images.train_labels.numpy()[self._rows.rows], self._images.names
        counts = np.bincount(labels, minlength=len(names))
        if self.class_weights is None:
            return np.ones(len(names))
        if self.class_weights == "balanced":
            if lacking := np.flatnonzero(counts == 0).tolist():
                raise ValueError(
                    "class_weights = 'balanced': expected training samples of every class, found none of "
                    f"{short_repr(names[lacking[0]])}: give a list of weights"
                )
            return counts.sum() / (len(counts) * counts)
        weights = np.array(self.class_weights)
        if len(weights) != len(names):
            raise ValueError(
                f"class_weights: expected {len(names)} weights, one for each of the classes "
                f"{truncate(', '.join(names))}, got {len(weights)}"
            )
        return weights * counts.sum() / (weights @ counts)

    def client_rows(self, clients: np.ndarray) -> tuple[Batch, np.ndarray]:
        """Return images ``[n, c, h, w]``, labels ``[n]`` and, with class weights or label smoothing, the
        weighted target of each sample, ``[n, classes]``."""
        data, sizes = super().client_rows(clients)
        return (data if self._targets is None else (*data, self._targets[data[1]])), sizes

    def loss(self, x: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        images, *_, target = batch  # without options, the target is the label
        return self.decayed(F.cross_entropy(self.model(x, images), target), x)

    def metrics(self, x: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """Return the ``accuracy`` on the test images, and ``worst_accuracy``, the smallest of any class."""
        accuracy, by_class = self.accuracies(predictions)
        return {"accuracy": accuracy, "worst_accuracy": float(by_class.min())}
