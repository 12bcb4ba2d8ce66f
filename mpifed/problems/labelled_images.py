"""What classification problems share: labelled images divided among clients, a network, accuracies."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field

from mpifed.core.problem import Named
from mpifed.core.settings import problem_settings
from mpifed.data import Dataset, Partition, read
from mpifed.data.partition import IID
from mpifed.data.splits import divide, parts_of, splits
from mpifed.models import Linear, Model
from mpifed.models.base import Shapes
from mpifed.problems.held_out import HeldOut

__all__ = ["LabelledImages", "accuracies"]

#: Test images scored at once, which bounds the memory of an evaluation.
CHUNK = 1000


@problem_settings
class LabelledImages(HeldOut):
    """A network with one output a class, and labelled images divided among clients: a part of a problem."""

    dataset: Dataset = Field(description="data set: a name, a table, a folder or a function of your own")
    model: Model = Field(default=Linear(), description="network h; linear makes softmax regression")
    clients: int = Field(default=10, ge=1, description="number of clients")
    partition: Partition = Field(default=IID(), description="how samples are divided among clients")

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Read, split and part the data; the upper half of the classes counts as positive for the partition.

        Raises:
            ValueError: the data, the model and the partition do not fit each other.
        """
        self._images = images = read(self.dataset, data_dir)
        self.files = images.files
        self._shapes = self.model.shapes(images.shape, outputs=images.classes)
        self._splits = splits(parts_of(images), self.validation, seed)
        train = self._splits["train"]
        positive = train.labels >= (images.classes + 1) // 2
        self._rows = divide(self.partition, train, positive, self.clients, seed, images)
        self._test_on("test")

    @property
    def network(self) -> Shapes:
        """Names and shapes of the parameters of ``model``."""
        return self._shapes

    def start(self, rng: np.random.Generator) -> torch.Tensor:
        """The network's random start, flat ``[d]`` float64."""
        return torch.cat([tensor.flatten() for tensor in self.model.initial(self._shapes, rng).values()])

    def client_data(self, client: int) -> tuple[torch.Tensor, ...]:
        """Images ``[n, c, h, w]`` and class labels ``[n]``, int64."""
        rows = torch.from_numpy(self._rows[client])
        return self._images.train[rows], self._images.train_labels[rows]

    def client_size(self, client: int) -> int:
        return len(self._rows[client])

    def client_labels(self, client: int) -> np.ndarray:
        return self._images.train_labels.numpy()[self._rows[client]]

    def class_names(self) -> list[str]:
        return list(self._images.names)

    @torch.no_grad()
    def scores(self, x: Named, rows: slice, shift: torch.Tensor | float = 0.0) -> torch.Tensor:
        """The network's outputs ``[n, classes]`` for held-out images, each moved by ``shift``."""
        like = next(iter(x.values()))
        chunks = self._held[rows].split(CHUNK)
        return torch.cat([self.model(x, chunk.to(like) + shift) for chunk in chunks])

    def class_scores(self, predictions: torch.Tensor) -> torch.Tensor:
        """The outputs for the images as they are, which come first, ``[n, classes]``."""
        return predictions[:, : self._images.classes]

    def accuracies(self, scores: torch.Tensor) -> tuple[float, np.ndarray]:
        """Share of the held-out images that scores ``[n, classes]`` classify rightly: of all, and of each
        class that occurs among them."""
        labels = torch.from_numpy(self.test_labels())
        by_class, counts = accuracies(scores, labels), labels.unique(return_counts=True)[1].numpy()
        return float(np.average(by_class, weights=counts)), by_class


def accuracies(scores: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
    """Share of rows whose largest score is their label's, one number for each class that occurs in
    ``labels``.

    NaN throughout where a score is not finite.
    """
    labels = labels.numpy()
    classes = np.unique(labels)
    if not torch.isfinite(scores).all():
        return np.full(len(classes), np.nan)
    right = scores.argmax(dim=1).cpu().numpy() == labels
    return np.array([right[labels == label].mean() for label in classes])
