"""AUC maximisation as a minimax problem (Huang et al. 2024, eq. 13; Zhang & Gao n.d., eq. 20), for any
network and any samples."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import Field

from mpifed.base.settings import problem_settings
from mpifed.core.problem import Minimax, Named
from mpifed.core.records import Blocks
from mpifed.data import Labelled, Partition, Texts, thin
from mpifed.data.partition import IID, divide
from mpifed.data.samples import Split
from mpifed.models.base import Shapes
from mpifed.problems.labelled_images import HeldOut

__all__ = ["AUC"]


@problem_settings
class AUC(HeldOut, Minimax):
    """min over (w, a, b), max over α of the batch mean of the bracket of Huang et al. 2024, eq. 13, for a
    scoring function h(w; ·).

    With the positive ratio p and a sample's label ±1 the bracket is ::

        (1-p) [(h - a)² - 2(1+α) h]  for +1,   p [(h - b)² + 2(1+α) h]  for -1,   both less p(1-p) α²

    w, a and b make up x, α is y. A subclass sets ``model`` and ``_shapes``, calls :meth:`_divide` in
    ``prepare``, and defines :meth:`outputs`.
    """

    clients: int = Field(default=10, ge=1, description="number of clients")
    partition: Partition = Field(default=IID(), description="how samples are divided among clients")
    imbalance: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="positive ratio of the training data, reached by dropping positives",
    )
    p: Literal["pooled", "client"] = Field(
        default="pooled",
        description="positive ratio in the loss: of all training data, or of each client's data",
    )
    score: Literal["identity", "sigmoid"] = Field(
        default="identity", description="h is the network's output, or its sigmoid"
    )

    source = "Huang et al. 2024, eq. 13"
    cites = ("huang2024adafgda",)
    maximised = frozenset({"auc"})

    def _divide(self, splits: dict[str, Split], above: list[int], seed: int, data: Labelled | Texts) -> None:
        """Thin and partition the training data; the classes ``above`` of the splits are positive."""
        self._splits, self._above, train = splits, above, splits["train"]
        labels, positive = train.labels, np.isin(train.labels, above)
        kept = thin(labels, positive, self.imbalance, seed)
        left = train.of(train.rows[kept])
        self._rows = divide(self.partition, left, positive[kept], self.clients, seed, data)
        every = np.isin(train.all_labels, above)
        self._positive = torch.from_numpy(every)
        self._ratio = float(every[np.concatenate(self._rows)].mean())
        self._test_on("test")

    def outputs(self, x: Named, samples: torch.Tensor) -> torch.Tensor:
        """The network's outputs ``[b]``, the larger the likelier positive."""
        raise NotImplementedError

    @property
    def network(self) -> Shapes:
        """Names and shapes of the parameters of ``model``, those of x but for a and b."""
        return self._shapes

    def variables(self) -> Blocks:
        if both := sorted({"a", "b"} & self._shapes.keys()):
            raise ValueError(
                f"the network has a parameter {both[0]!r}, like the problem: give it another name"
            )
        return Blocks(x={**self._shapes, "a": (1,), "b": (1,)}, y={"alpha": (1,)})

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """The network's random start; a, b and α start at 0."""
        ab = torch.zeros(2, dtype=torch.float64)
        return {"x": torch.cat([self.model.start(self._shapes, rng), ab])}

    def client_data(self, client: int) -> tuple[torch.Tensor, ...]:
        """Samples ``[n, ...]``, 1 or 0 for positive or negative ``[n]``, and p ``[n]`` with ``p =
        "client"``."""
        rows = torch.from_numpy(self._rows[client])
        positive = self._positive[rows].double()
        data = self._splits["train"].samples[rows], positive
        return data if self.p == "pooled" else (*data, positive.mean().expand(len(rows)))

    def client_size(self, client: int) -> int:
        return len(self._rows[client])

    def client_labels(self, client: int) -> np.ndarray:
        return self._splits["train"].all_labels[self._rows[client]]

    def test_labels(self) -> np.ndarray:
        """1 for a positive sample, 0 for a negative one."""
        return np.isin(super().test_labels(), self._above).astype(np.int64)

    def loss(self, x: Named, y: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        samples, positive, *ratio = batch
        p = ratio[0] if ratio else self._ratio
        h = self.outputs(x, samples)
        if self.score == "sigmoid":
            h = torch.sigmoid(h)
        slope = 2 * (1 + y["alpha"]) * h
        above = (1 - p) * positive * ((h - x["a"]) ** 2 - slope)
        below = p * (1 - positive) * ((h - x["b"]) ** 2 + slope)
        return (above + below - p * (1 - p) * y["alpha"] ** 2).mean()

    def metrics(self, x: Named, y: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """``auc``: area under the ROC curve of the test samples, NaN where an output is not finite."""
        if not torch.isfinite(predictions).all():
            return {"auc": float("nan")}
        scores, positive = predictions.cpu().numpy(), self.test_labels() == 1
        return {"auc": _auc(scores[positive], scores[~positive])}


def _auc(above: np.ndarray, below: np.ndarray) -> float:
    """The fraction of pairs of a positive and a negative score in the right order, ties counting half; NaN if
    one side is empty."""
    below = np.sort(below)
    ordered = sum(int(np.searchsorted(below, above, side).sum()) for side in ("left", "right"))
    pairs = 2 * len(above) * len(below)
    return ordered / pairs if pairs else float("nan")
