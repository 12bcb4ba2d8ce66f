"""Data cleaning: weights of training samples with wrong labels, learnt from clean validation samples.

Reading: the samples of a client are divided into halves at random, because data sets may be sorted by class.
The first half is for training, with labels of which a fraction is replaced by another class; the second half
is for validation, with clean labels. The weight of training sample j of all clients is σ(x_j). Client n sees
its own coordinates of x only, so that the mean over N clients of ∇_x divides its gradient by N.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field

from mpifed.base.settings import problem_settings
from mpifed.core.problem import Batch, Bilevel, Named
from mpifed.core.records import Blocks
from mpifed.core.streams import generator
from mpifed.data.partition import Parts
from mpifed.problems.labelled_images import LabelledImages

__all__ = ["DataCleaning"]


@problem_settings
class DataCleaning(LabelledImages, Bilevel):
    """f_n = mean validation loss of the network y; g_n = mean_j σ(x_j) loss_j(y) + (c/2) ‖y‖² of the training
    samples.

    The losses are cross-entropies. A row has one training and one validation sample.
    """

    corrupted: float = Field(
        default=0.3,
        ge=0,
        lt=1,
        description="fraction of the training labels that are replaced by other classes",
    )
    c: float = Field(
        default=0.01, gt=0, description="weight c of the regulariser, which makes g strongly convex"
    )

    source = "Franceschi et al. 2018, section 5"
    cites = ("franceschi2018bilevel",)
    metric_names = ("accuracy", "worst_accuracy", "f1")
    maximised = frozenset({"accuracy", "worst_accuracy", "f1"})
    of_training = frozenset({"f1"})

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        super().prepare(seed, data_dir)
        if (least := self._rows.sizes.min()) < 2:
            raise ValueError(f"expected at least 2 training samples of every client, found {least}")
        halving = generator(seed, "training and validation")
        permuted = [halving.permutation(rows) for rows in self._rows]
        self._training = Parts.of([rows[: len(rows) // 2] for rows in permuted])
        self._validation = Parts.of([rows[len(rows) // 2 :][: len(rows) // 2] for rows in permuted])
        rng, rows = generator(seed, "corrupted labels"), self._training.rows
        self._wrong = rng.random(len(rows)) < self.corrupted
        others = rng.integers(1, self._images.classes, len(rows))
        self._labels = (self._images.train_labels.numpy()[rows] + self._wrong * others) % self._images.classes

    def variables(self) -> Blocks:
        return Blocks(x={"logits": (len(self._labels),)}, y=self.network)

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """Return weights of 1/2, and random parameters of the network."""
        return {"y": self.model.start(self.network, rng)}

    def client_sizes(self, clients: np.ndarray) -> np.ndarray:
        return self._training.sizes[clients]

    def client_labels(self, client: int) -> np.ndarray:
        """Return the correct labels of the training samples."""
        return self._images.train_labels.numpy()[self._training[client]]

    def client_rows(self, clients: np.ndarray) -> tuple[Batch, np.ndarray]:
        """Return training samples, their labels and coordinates of x, validation samples and their labels."""
        training, validation = (part.of_clients(clients) for part in (self._training, self._validation))
        positions = self._training.positions(clients)
        columns = (
            self._images.train[training],
            torch.from_numpy(self._labels[positions]),
            torch.from_numpy(positions),
            self._images.train[validation],
            self._images.train_labels[validation],
        )
        return columns, self._training.sizes[clients]

    def upper(self, x: Named, y: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return F.cross_entropy(self.model(y, batch[3]), batch[4])

    def lower(self, x: Named, y: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        samples, labels, positions, *_ = batch
        losses = F.cross_entropy(self.model(y, samples), labels, reduction="none")
        weights = torch.sigmoid(x["logits"][positions])
        return (weights * losses).mean() + self.c / 2 * sum((part**2).sum() for part in y.values())

    def predict(self, x: Named, y: Named, rows: slice) -> torch.Tensor:
        """Return the network's outputs, ``[n, classes]``."""
        return self.scores(y, rows)

    def metrics(self, x: Named, y: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """Return the ``accuracy`` on the test samples, and ``worst_accuracy``, the smallest of any class.

        Of the training samples: ``f1`` of σ(x_j) < 1/2 as a prediction of a wrong label, 0 if none is found;
        only for the test split.
        """
        accuracy, by_class = self.accuracies(predictions)
        metrics = {"accuracy": accuracy, "worst_accuracy": float(by_class.min())}
        if self.split != "test":
            return metrics
        found = (x["logits"] < 0).cpu().numpy()
        hits = int((found & self._wrong).sum())
        return metrics | {"f1": 2 * hits / max(int(found.sum() + self._wrong.sum()), 1)}
