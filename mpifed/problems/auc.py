"""AUC maximisation as a minimax problem (Huang et al. 2024, eq. 13; Zhang & Gao n.d., eq. 20).

Let m be the margin and p the fraction of positive samples. At the best a, b and α, the loss is p(1-p) times
the mean of (m - (h⁺ - h⁻))² over all pairs of a positive and a negative sample, up to a constant: the sum of
the variances of h⁺ and h⁻ and of the square of m - (E h⁺ - E h⁻). With ``hinge``, α is at least -m, and that
difference counts only if it is positive. This is the AUC margin loss of Yuan et al. 2021, ``AUCMLoss`` in
LibAUC, whose variable is α + m.

With ``sampling_rate``, the number of positive samples of a minibatch is fixed. The loss of a batch is then
π times the mean over its positive samples plus (1 - π) times the mean over its negative samples, where π is
the fraction of positive samples of the client. For all samples of the client this is the mean over the
samples, and for a minibatch an unbiased estimate of it.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import Field

from mpifed.base.errors import ContractError
from mpifed.base.settings import problem_settings
from mpifed.core.problem import Batch, Minimax, Named
from mpifed.core.records import Blocks
from mpifed.core.sets import Sets
from mpifed.data import Labelled, Partition, Texts, thin
from mpifed.data.partition import IID, Parts, divide
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
        owners = np.repeat(np.arange(len(self._rows)), self._rows.sizes)
        self._positives = np.bincount(owners[is_positive[self._rows.rows]], minlength=len(self._rows))
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
    margin: float = Field(
        default=1.0,
        gt=0,
        description="margin m: desired difference of h between positive and negative samples",
    )
    hinge: bool = Field(
        default=False,
        description="restrict α to α >= -margin, as in LibAUC's AUCMLoss, whose variable α + margin is >= 0",
    )
    sampling_rate: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="fraction of positive samples in every minibatch, rounded to at least one positive and "
        "one negative sample; the loss remains unbiased; default: samples are drawn uniformly",
    )

    source = "Huang et al. 2024, eq. 13"
    cites = ("huang2024adafgda",)
    metric_names = ("auc",)
    maximised = frozenset({"auc"})

    @property
    def sets(self) -> Sets:
        """The half-line of α with ``hinge``."""
        return Sets(y=lambda alpha: alpha.clamp(min=-self.margin)) if self.hinge else Sets()

    def _divide(self, splits: dict[str, Split], above: list[int], seed: int, data: Labelled | Texts) -> None:
        super()._divide(splits, above, seed, data)
        if self.sampling_rate is None:
            return
        lacking = np.flatnonzero((self._positives == 0) | (self._positives == self._rows.sizes)).tolist()
        if lacking:
            number = self._positives[lacking[0]]
            raise ValueError(
                "sampling_rate: expected positive and negative samples of every client, found "
                f"{number} positive and {self._rows.sizes[lacking[0]] - number} negative samples of client "
                f"{lacking[0]}: choose another partition"
            )
        owners = np.repeat(np.arange(len(self._rows)), self._rows.sizes)
        order = np.lexsort((~self._positive.numpy()[self._rows.rows], owners))  # positive samples first
        self._rows = Parts(self._rows.rows[order], self._rows.sizes)

    @property
    def strata(self):
        """The positive and the negative samples, see :attr:`Problem.strata`; ``None`` if samples are drawn
        uniformly."""
        return None if self.sampling_rate is None else self._positive_and_negative

    def _positive_and_negative(self, clients: np.ndarray, size: int) -> list[tuple[np.ndarray, int]]:
        if size < 2:
            raise ContractError(
                f"sampling_rate: expected minibatches of at least 2 rows, a positive and a negative sample, "
                f"got {size}: set oracle.batch_size"
            )
        count = min(max(round(self.sampling_rate * size), 1), size - 1)
        positives = self._positives[clients]
        return [(positives, count), (self._rows.sizes[clients] - positives, size - count)]

    def variables(self) -> Blocks:
        return Blocks(x=self.x_with(a=(1,), b=(1,)), y={"alpha": (1,)})

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """Return random initial parameters of the network; a, b and α start at 0."""
        ab = torch.zeros(2, dtype=torch.float64)
        return {"x": torch.cat([self.model.start(self.network, rng), ab])}

    def client_rows(self, clients: np.ndarray) -> tuple[Batch, np.ndarray]:
        """Return samples ``[n, ...]``, labels 1 or 0 ``[n]`` and, for ``p = "client"`` or a sampling rate,
        the fraction of positive samples of the client ``[n]``."""
        rows, sizes = self._rows.of_clients(clients), self._rows.sizes[clients]
        data = self._splits["train"].samples[rows], self._positive[rows].double()
        if self.p == "pooled" and self.sampling_rate is None:
            return data, sizes
        ratios = np.repeat(self._positives[clients] / sizes, sizes)
        return (*data, torch.from_numpy(ratios)), sizes

    def loss(self, x: Named, y: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        samples, positive, *ratio = batch
        p = ratio[0] if self.p == "client" else self._ratio
        h = self.outputs(x, samples)
        if self.score == "sigmoid":
            h = torch.sigmoid(h)
        slope = 2 * (self.margin + y["alpha"]) * h
        above = (1 - p) * positive * ((h - x["a"]) ** 2 - slope)
        below = p * (1 - positive) * ((h - x["b"]) ** 2 + slope)
        if self.sampling_rate is not None:
            share = positive.mean()  # above and below are not 0 only if there are such samples
            above = above * (ratio[0] / share.clamp(min=1 / len(h)))
            below = below * ((1 - ratio[0]) / (1 - share).clamp(min=1 / len(h)))
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
