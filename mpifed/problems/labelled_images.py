"""Base classes of problems with labelled samples: splits, partitioned images, a network, accuracies."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import torch
from pydantic import Field

from mpifed.base.settings import problem_settings
from mpifed.core.problem import Batch, Named
from mpifed.core.records import Blocks
from mpifed.data import Dataset, Labelled, Partition, read
from mpifed.data.augmentation import Augmented
from mpifed.data.partition import IID, Parts, divide
from mpifed.data.samples import Split, hold_out, splits, splits_of
from mpifed.models import Linear, Model

__all__ = ["HeldOut", "LabelledImages", "accuracies"]

#: Number of test images scored at once, which bounds the memory of an evaluation.
CHUNK = 1000
#: Maximum bytes of held-out samples that stay on a GPU between evaluations.
RESIDENT = 2**30


@problem_settings
class HeldOut:
    """Base class of problems whose metrics are computed on the samples ``_held_out`` of one split.

    In ``prepare``, a subclass sets ``_splits`` and ``_rows``, the row numbers of the clients' samples
    (:class:`Parts`), and then calls ``_hold_out_locally`` and ``_select_split("test")``.

    Attributes:
        split: the split on which metrics are computed: "test", another split, or the number of a client.
        client_names: names of the clients, if the data set assigns samples to clients.
    """

    validation: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="fraction of the training samples that is held out for validation before they are "
        "partitioned; for data sets without a validation split",
    )
    local_test: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="fraction of each client's samples that is held out from training as the client's own "
        'test samples, for run.evaluate_on = ["clients"] and [personalize]',
    )

    split, client_names = "test", ()

    def tested_on(self, split: str | int):
        """Return the problem with metrics on another split, see :meth:`Problem.tested_on`."""
        if split != "train" and not isinstance(split, int) and split not in self._splits:
            return None
        other = copy.copy(self)
        other._select_split(split)
        return other

    def _hold_out_locally(self, seed: int) -> None:
        """Hold out the share ``local_test`` of every class of each client's samples.

        The clients' samples are drawn one client after the other.

        Raises:
            ValueError: nothing of a client would be held out, or nothing would remain.
        """
        self._local = self._rows  # the rows on which a client is evaluated
        if self.local_test:
            labels = self._splits["train"].all_labels
            trained, local = [], []
            for client, rows in enumerate(self._rows):
                try:
                    rest, held = hold_out(labels[rows], self.local_test, seed, "local_test", client)
                except ValueError as error:
                    raise ValueError(f"client {client}: {error}") from None
                trained.append(rows[rest])
                local.append(rows[held])
            self._rows, self._local = Parts.of(trained), Parts.of(local)

    def _select_split(self, split: str | int) -> None:
        """Use the samples of a split, or of the client with this number, as held-out samples."""
        train = self._splits["train"]
        selected: Split = train.select(self._local[split]) if isinstance(split, int) else self._splits[split]
        if split == "train":  # only the clients' samples
            selected = train.select(np.sort(self._rows.rows))
        self._held_out, self._resident = selected, {}
        self.split, self.test_rows = split, len(self._held_out)

    def _held_out_chunks(
        self, rows: slice, device: torch.device, dtype: torch.dtype | None = None, size: int = CHUNK
    ) -> Iterator[torch.Tensor]:
        """Iterate over the held-out samples ``rows`` on a device, ``size`` at a time; a GPU keeps them."""
        first, last, _ = rows.indices(self.test_rows)
        for start in range(first, last, size):
            stop = min(start + size, last)
            chunk = self._resident.get((start, stop, device, dtype))
            if chunk is None:
                chunk = self._held_out[start:stop].to(device, dtype)
                if chunk.is_cuda and sum(part.nbytes for part in self._resident.values()) < RESIDENT:
                    self._resident[start, stop, device, dtype] = chunk
            yield chunk

    def test_labels(self) -> np.ndarray:
        return self._held_out.labels

    def client_sizes(self, clients: np.ndarray) -> np.ndarray:
        return self._rows.sizes[clients]

    def client_labels(self, client: int) -> np.ndarray:
        return self._splits["train"].all_labels[self._rows[client]]


@problem_settings
class LabelledImages(HeldOut, Augmented):
    """Base class of problems with labelled images and a network x with one output per class."""

    dataset: Dataset = Field(description="data set: a name, a table, a folder or a user-defined function")
    model: Model = Field(default=Linear(), description="network h; linear gives softmax regression")
    clients: int = Field(default=10, ge=1, description="number of clients")
    partition: Partition = Field(default=IID(), description="partition of the samples over the clients")

    def read_once(self, data_dir: str | None = None) -> Labelled:
        return read(self.dataset, data_dir)

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Read, split and partition the data. The partition treats the upper half of the classes as positive.

        Raises:
            ValueError: data, model and partition are inconsistent.
        """
        self._images = images = self.read_once(data_dir)
        self.files = images.files
        self._expect_images(images.shape)
        self.network = self.model.shapes(images.shape, outputs=images.classes)
        self._splits = splits(splits_of(images), self.validation, seed)
        train = self._splits["train"]
        positive = train.labels >= (images.classes + 1) // 2
        self._rows = divide(self.partition, train, positive, self.clients, seed, images)
        self.client_names = images.owner_names
        self._hold_out_locally(seed)
        self._select_split("test")

    def variables(self) -> Blocks:
        return Blocks(x=self.network)

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """Return random initial parameters of the network; other blocks start at 0."""
        return {"x": self.model.start(self.network, rng)}

    def client_rows(self, clients: np.ndarray) -> tuple[Batch, np.ndarray]:
        """Return images ``[n, c, h, w]`` and class labels ``[n]``, int64."""
        rows = self._rows.of_clients(clients)
        return (self._images.train[rows], self._images.train_labels[rows]), self._rows.sizes[clients]

    def class_names(self) -> list[str]:
        return list(self._images.names)

    @torch.no_grad()
    def scores(self, x: Named, rows: slice, shift: torch.Tensor | float = 0.0) -> torch.Tensor:
        """Return the network's outputs ``[n, classes]`` for held-out images plus ``shift``."""
        like = next(iter(x.values()))
        chunks = self._held_out_chunks(rows, like.device, like.dtype)
        return torch.cat([self.model(x, chunk + shift) for chunk in chunks])

    def predict(self, x: Named, *y_and_rows) -> torch.Tensor:
        """Return the network's outputs for held-out images, ``[n, classes]``."""
        return self.scores(x, y_and_rows[-1])

    def class_scores(self, predictions: torch.Tensor) -> torch.Tensor:
        """Return the outputs for the unchanged images, which come first, ``[n, classes]``."""
        return predictions[:, : self._images.classes]

    def accuracies(self, scores: torch.Tensor) -> tuple[float, np.ndarray]:
        """Return the accuracy of scores ``[n, classes]`` on all held-out images and on each class."""
        labels = torch.from_numpy(self.test_labels())
        by_class, counts = accuracies(scores, labels), labels.unique(return_counts=True)[1].numpy()
        return float(np.average(by_class, weights=counts)), by_class


def accuracies(scores: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
    """Return the accuracy of each class that occurs in ``labels``; NaN if a score is not finite."""
    labels = labels.numpy()
    classes = np.unique(labels)
    if not torch.isfinite(scores).all():
        return np.full(len(classes), np.nan)
    correct = scores.argmax(dim=1).cpu().numpy() == labels
    return np.array([correct[labels == label].mean() for label in classes])
