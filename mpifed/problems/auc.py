"""AUC maximisation as a minimax problem (Huang et al. 2024, eq. 13; Zhang & Gao n.d., eq. 20)."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import Field

from mpifed.base.settings import problem_settings
from mpifed.core.problem import Batch, Minimax, Named
from mpifed.core.records import Blocks
from mpifed.data import Labelled, Partition, Texts, thin
from mpifed.data.partition import IID, divide
from mpifed.data.samples import Split
from mpifed.models.base import Shapes
from mpifed.problems.labelled_images import HeldOut
from mpifed.problems.weight_decay import WeightDecay

__all__ = ["AUC", "Ranking"]


@problem_settings
class Ranking(HeldOut):
    """Base class of problems in which a network h(w; ·) ranks positive above negative samples.

    A subclass sets ``model`` and ``network``, calls :meth:`_divide` in ``prepare``, and defines
    :meth:`outputs`.
    """

    clients: int = Field(default=10, ge=1, description="number of clients")
    partition: Partition = Field(default=IID(), description="partition of the samples over the clients")
    imbalance: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="fraction of positive training samples, reached by dropping positive samples",
    )

    def _divide(self, splits: dict[str, Split], above: list[int], seed: int, data: Labelled | Texts) -> None:
        """Drop positive samples and partition the training data; the classes ``above`` are positive.

        Raises:
            ValueError: a split has no positive or no negative samples, or the partition does not fit them.
        """
        self._splits, self._above, train = splits, above, splits["train"]
        labels, positive = train.labels, np.isin(train.labels, above)
        for part, split in splits.items():
            number = int(np.isin(split.labels, above).sum())
            if not 0 < number < len(split):
                raise ValueError(
                    f"expected positive and negative {part} samples, found {number} positive and "
                    f"{len(split) - number} negative"
                )
        kept = thin(labels, positive, self.imbalance, seed)
        thinned = train.select(train.rows[kept])
        self._rows = divide(self.partition, thinned, positive[kept], self.clients, seed, data)
        self.client_names = data.owner_names
        self._hold_out_locally(seed)
        is_positive = np.isin(train.all_labels, above)
        self._positive = torch.from_numpy(is_positive)
        self._ratio = float(is_positive[self._rows.rows].mean())
        self._select_split("test")

    def outputs(self, x: Named, samples: torch.Tensor) -> torch.Tensor:
        """Return the network's outputs ``[b]``. Larger outputs mean that samples are more likely positive."""
        raise NotImplementedError

    def x_with(self, **more: tuple[int, ...]) -> Shapes:
        """Return the shapes of x: the network's parameters, followed by ``more``.

        Raises:
            ValueError: a parameter of the network has the name of another variable.
        """
        if both := sorted(more.keys() & self.network.keys()):
            raise ValueError(
                f"the network has a parameter {both[0]!r}, which is also a variable of the problem: rename it"
            )
        return {**self.network, **more}

    def test_labels(self) -> np.ndarray:
        """Return 1 for positive and 0 for negative samples, ``[n]``."""
        return np.isin(super().test_labels(), self._above).astype(np.int64)

    def auc(self, predictions: torch.Tensor) -> float:
        """Return the area under the ROC curve on the held-out samples, or NaN for non-finite outputs."""
        if not torch.isfinite(predictions).all():
            return float("nan")
        scores, positive = predictions.cpu().numpy(), self.test_labels() == 1
        return _auc(scores[positive], scores[~positive])


@problem_settings
class AUC(WeightDecay, Ranking, Minimax):
    """Base class of :class:`mpifed.problems.DeepAUC` for any network and any samples."""

    p: Literal["pooled", "client"] = Field(
        default="pooled", description="fraction p in the loss: of all training data, or of each client's data"
    )
    score: Literal["identity", "sigmoid"] = Field(
        default="identity", description="h: the network's output, or its sigmoid"
    )

    source = "Huang et al. 2024, eq. 13"
    cites = ("huang2024adafgda",)
    maximised = frozenset({"auc"})

    def variables(self) -> Blocks:
        return Blocks(x=self.x_with(a=(1,), b=(1,)), y={"alpha": (1,)})

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """Return random initial parameters of the network; a, b and α start at 0."""
        ab = torch.zeros(2, dtype=torch.float64)
        return {"x": torch.cat([self.model.start(self.network, rng), ab])}

    def client_rows(self, clients: np.ndarray) -> tuple[Batch, np.ndarray]:
        """Return samples ``[n, ...]``, labels 1 or 0 ``[n]`` and, for ``p = "client"``, p ``[n]``."""
        rows, sizes = self._rows.of_clients(clients), self._rows.sizes[clients]
        positive = self._positive[rows].double()
        data = self._splits["train"].samples[rows], positive
        if self.p == "pooled":
            return data, sizes
        owners = np.repeat(np.arange(len(clients)), sizes)
        ratios = np.bincount(owners, weights=positive.numpy(), minlength=len(clients)) / sizes
        return (*data, torch.from_numpy(ratios[owners])), sizes

    def loss(self, x: Named, y: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        samples, positive, *ratio = batch
        p = ratio[0] if ratio else self._ratio
        h = self.outputs(x, samples)
        if self.score == "sigmoid":
            h = torch.sigmoid(h)
        slope = 2 * (1 + y["alpha"]) * h
        above = (1 - p) * positive * ((h - x["a"]) ** 2 - slope)
        below = p * (1 - positive) * ((h - x["b"]) ** 2 + slope)
        return self.decayed((above + below - p * (1 - p) * y["alpha"] ** 2).mean(), x)

    def metrics(self, x: Named, y: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """Return ``auc``, the area under the ROC curve on the test samples, or NaN for non-finite outputs."""
        return {"auc": self.auc(predictions)}


def _auc(above: np.ndarray, below: np.ndarray) -> float:
    """Return the fraction of pairs of a positive and a negative score in the right order.

    Ties count half. The result is NaN without positive or negative scores.
    """
    below = np.sort(below)
    ordered = sum(int(np.searchsorted(below, above, side).sum()) for side in ("left", "right"))
    pairs = 2 * len(above) * len(below)
    return ordered / pairs if pairs else float("nan")
