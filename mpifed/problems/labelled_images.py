"""What classification problems share: labelled images divided among clients, a network, accuracies."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field

from mpifed.core.problem import Named
from mpifed.core.settings import problem_settings
from mpifed.data import DATASETS, Dataset, Partition
from mpifed.data.partition import IID
from mpifed.models import Linear, Model
from mpifed.models.base import Shapes

__all__ = ["LabelledImages", "accuracies"]

#: Test images scored at once, which bounds the memory of an evaluation.
CHUNK = 1000


@problem_settings
class LabelledImages:
    """A network with one output a class, and labelled images divided among clients: a part of a problem."""

    dataset: Dataset = Field(description="name of the data set")
    model: Model = Field(default=Linear(), description="network h; linear makes softmax regression")
    clients: int = Field(default=10, ge=1, description="number of clients")
    partition: Partition = Field(default=IID(), description="how samples are divided among clients")

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Read and part the data; the upper half of the classes counts as positive for the partition.

        Raises:
            ValueError: the data, the model and the partition do not fit each other.
        """
        self._images = images = DATASETS[self.dataset](data_dir)
        self.files = images.files
        self._shapes = self.model.shapes(images.shape, outputs=images.classes)
        labels = images.train_labels.numpy()
        self._rows = self.partition(labels, labels >= (images.classes + 1) // 2, self.clients, seed)

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

    @torch.no_grad()
    def scores(self, x: Named, rows: slice, shift: torch.Tensor | float = 0.0) -> torch.Tensor:
        """The network's outputs ``[n, classes]`` for the test images ``rows``, each moved by ``shift``."""
        like = next(iter(x.values()))
        chunks = self._images.test[rows].split(CHUNK)
        return torch.cat([self.model(x, chunk.to(like) + shift) for chunk in chunks])


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
