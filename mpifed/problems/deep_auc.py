"""Deep AUC maximisation as a minimax problem (000, section 6.2)."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from mpifed.data import DATASETS, Dataset, Partition, thin
from mpifed.data.partition import IID
from mpifed.models import LeNet5, Model
from mpifed.problem import Minimax, Named
from mpifed.records import Blocks

__all__ = ["DeepAUC"]

#: Test images scored at once, which bounds the memory of an evaluation.
CHUNK = 1000


@dataclass(config=ConfigDict(extra="forbid", arbitrary_types_allowed=True), kw_only=True)
class DeepAUC(Minimax):
    """min over (w, a, b), max over α of the batch mean of the bracket of 000, eq. 13, for a network h(w; ·).

    With the positive ratio p and a sample's label ±1 the bracket is ::

        (1-p) [(h - a)² - 2(1+α) h]  for +1,   p [(h - b)² + 2(1+α) h]  for -1,   both less p(1-p) α²

    The classes of an image data set are parted into positive and negative ones, and all of w, a, b make up x.
    """

    dataset: Dataset = Field(description="name of the data set")
    model: Model = Field(default=LeNet5(), description="network h")
    clients: int = Field(default=10, ge=1, description="number of clients")
    partition: Partition = Field(default=IID(), description="how samples are divided among clients")
    imbalance: float | None = Field(
        default=None, gt=0, lt=1, description="positive ratio of the training data, reached by dropping positives"
    )
    positive_classes: tuple[int, ...] | None = Field(
        default=None, description="classes that count as positive; by default the upper half"
    )
    p: Literal["pooled", "client"] = Field(
        default="pooled", description="positive ratio in the loss: of all training data, or of each client's own"
    )
    score: Literal["identity", "sigmoid"] = Field(
        default="identity", description="h is the network's output, or its sigmoid"
    )

    source = "000, eq. 13"

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Read, thin and part the data.

        Raises:
            ValueError: the data, the model, the partition and the classes do not fit each other.
        """
        self._images = images = DATASETS[self.dataset](data_dir)
        self._shapes = self.model.shapes(images.shape, outputs=1)
        chosen = self._positive(images.classes)
        labels, test = images.train_labels.numpy(), images.test_labels.numpy()
        positive = np.isin(labels, chosen)
        kept = thin(labels, positive, self.imbalance, seed)
        parts = self.partition(labels[kept], positive[kept], self.clients, seed)
        self._rows = [kept[part] for part in parts]
        self._chosen, self._ratio = torch.tensor(chosen), float(positive[kept].mean())
        self._test_positive = np.isin(test, chosen)
        self.test_rows = len(test)

    def _positive(self, classes: int) -> list[int]:
        if self.positive_classes is None:
            return list(range((classes + 1) // 2, classes))
        chosen = sorted(set(self.positive_classes))
        if not set(chosen) < set(range(classes)) or not chosen:
            raise ValueError(
                f"positive_classes: expected some but not all of the classes 0 to {classes - 1} of {self.dataset}, "
                f"got {list(self.positive_classes)}"
            )
        return chosen

    def variables(self) -> Blocks:
        return Blocks(x={**self._shapes, "a": (1,), "b": (1,)}, y={"alpha": (1,)})

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """The network's random start; a, b and α start at 0."""
        network = self.model.initial(self._shapes, rng)
        ab = torch.zeros(2, dtype=torch.float64)
        return {"x": torch.cat([*(tensor.flatten() for tensor in network.values()), ab])}

    def client_data(self, client: int) -> tuple[torch.Tensor, ...]:
        """Images ``[n, c, h, w]``, 1 or 0 for positive or negative ``[n]``, and p ``[n]`` with ``p = "client"``."""
        rows = torch.from_numpy(self._rows[client])
        positive = torch.isin(self._images.train_labels[rows], self._chosen).double()
        data = self._images.train[rows], positive
        return data if self.p == "pooled" else (*data, positive.mean().expand(len(rows)))

    def client_size(self, client: int) -> int:
        return len(self._rows[client])

    def loss(self, x: Named, y: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        images, positive, *own = batch
        p = own[0] if own else self._ratio
        h = self.model(x, images).squeeze(1)
        if self.score == "sigmoid":
            h = torch.sigmoid(h)
        slope = 2 * (1 + y["alpha"]) * h
        above = (1 - p) * positive * ((h - x["a"]) ** 2 - slope)
        below = p * (1 - positive) * ((h - x["b"]) ** 2 + slope)
        return (above + below - p * (1 - p) * y["alpha"] ** 2).mean()

    @torch.no_grad()
    def predict(self, x: Named, y: Named, rows: slice) -> torch.Tensor:
        """The network's outputs ``[n]``; the sigmoid would not change their order, only make ties."""
        chunks = self._images.test[rows].split(CHUNK)
        return torch.cat([self.model(x, chunk.to(x["a"])).squeeze(1) for chunk in chunks])

    def metrics(self, x: Named, y: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """``auc``: area under the ROC curve of the test images, NaN where an output is not finite."""
        from sklearn.metrics import roc_auc_score  # here, because it takes a second that only evaluation should pay

        if not torch.isfinite(predictions).all():
            return {"auc": float("nan")}
        return {"auc": float(roc_auc_score(self._test_positive, predictions.cpu().numpy()))}
