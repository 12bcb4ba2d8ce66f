"""Classification with the same mean score in all groups: demographic parity or equal opportunity (Hardt,
Price & Srebro 2016), by multipliers.

s_g is the mean over the samples of group g of σ(score), the probability of the second class, and s the mean
over the samples of all groups: all samples for demographic parity, positive samples for equal opportunity.
The equations s_g = s have bounded multipliers y_g and the regulariser (μ/2) ‖y‖², so that y*_g is
(s_g - s) / μ clipped to [-B, B].

Reading: a sample of s_g has the weight 1/π_g, where π_g is the fraction of the samples of s_g in all training
data, and a sample of s the weight 1/π, where π is the fraction of the samples of s. The mean over a batch,
which may lack groups, is then an unbiased estimate if the weights of the clients are proportional to their
numbers of samples. The cross-entropy is the mean over all samples.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field

from mpifed.base.settings import problem_settings
from mpifed.core.problem import Batch, Minimax, Named
from mpifed.core.records import Blocks
from mpifed.core.sets import Box, Sets
from mpifed.problems.fair import Grouped
from mpifed.problems.labelled_images import CHUNK
from mpifed.problems.weight_decay import WeightDecay

__all__ = ["GroupParity"]


@problem_settings
class GroupParity(WeightDecay, Grouped, Minimax):
    """min over x, max over y in [-B, B]^G of the mean cross-entropy + Σ_g y_g (s_g(x) - s(x)) - (μ/2) ‖y‖².

    s_g is the mean probability of the second class in group g, and s the mean over all groups.
    """

    groups: str = Field(description="name of the groups of the data set, such as sex")
    criterion: Literal["demographic_parity", "equal_opportunity"] = Field(
        default="demographic_parity",
        description="samples of the means: all, or the positive ones, those of the second class",
    )
    mu: float = Field(default=0.1, gt=0, description="weight μ of the regulariser of y")
    bound: float = Field(default=5.0, gt=0, description="bound B of the multipliers")

    source = "Hardt, Price & Srebro 2016"
    cites = ("hardt2016equality",)
    metric_names = ("objective", "accuracy", "score_gap", "rate_gap", "error_GROUP")
    maximised = frozenset({"accuracy"})

    @property
    def sets(self) -> Sets:
        """The box of the multipliers."""
        return Sets(y=Box(-self.bound, self.bound))

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Read, split and partition the data, see :meth:`LabelledImages.prepare`.

        Raises:
            ValueError: the data have no such groups or not two classes, or a group has no samples for s_g.
        """
        super().prepare(seed, data_dir)
        if self._images.classes != 2:
            raise ValueError(
                f"GroupParity: expected two classes, {self.dataset} has {self._images.classes}: use "
                "FairClassification with groups"
            )
        self._grouping = self._images.grouping(self.groups)
        counted = self._counted(self._images.train_labels.numpy()[self._rows.rows])
        counts = np.bincount(self.train_groups(), weights=counted, minlength=len(self._grouping.names))
        if lacking := np.flatnonzero(counts == 0).tolist():
            name = self._grouping.names[lacking[0]]
            kind = "positive " if self.criterion == "equal_opportunity" else ""
            raise ValueError(f"expected {kind}training samples of every group, found none of {name}")
        self._inverse_shares = len(counted) / counts
        self._inverse_share = len(counted) / counts.sum()

    def _counted(self, labels: np.ndarray) -> np.ndarray:
        """Return which samples with these labels are samples of the means, bool."""
        return np.ones(len(labels), dtype=bool) if self.criterion == "demographic_parity" else labels == 1

    def variables(self) -> Blocks:
        return Blocks(x=self.network, y={"y": (len(self._grouping.names),)})

    def client_rows(self, clients: np.ndarray) -> tuple[Batch, np.ndarray]:
        """Return samples ``[n, ...]`` and labels, groups, and weights of the samples in s_g and in s,
        ``[n]``."""
        (images, labels), sizes = super().client_rows(clients)
        groups, counted = self.groups_of(clients), torch.from_numpy(self._counted(labels.numpy())).double()
        in_group = counted * torch.from_numpy(self._inverse_shares)[groups]
        return (images, labels, groups, in_group, counted * self._inverse_share), sizes

    def loss(self, x: Named, y: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        images, labels, groups, in_group, in_all = batch
        outputs = self.model(x, images)
        multipliers = y["y"][groups] * in_group - y["y"].sum() * in_all
        gaps = (multipliers * torch.sigmoid(outputs[:, 1] - outputs[:, 0])).mean()
        loss = F.cross_entropy(outputs, labels) + gaps - self.mu / 2 * (y["y"] ** 2).sum()
        return self.decayed(loss, x)

    @torch.no_grad()
    def best_response(self, x: Named) -> torch.Tensor:
        """Return the multipliers y* = (s_g - s) / μ, clipped to [-B, B], for equal weights of the clients'
        mean functions, ``[G]``."""
        like = next(iter(x.values()))
        means = torch.zeros(len(self._grouping.names), dtype=torch.float64)
        for client in range(self.clients):
            images, _, groups, in_group, in_all = self.client_data(client)
            scores = torch.cat([self.model(x, part.to(like)) for part in images.split(CHUNK)]).double().cpu()
            probabilities = torch.sigmoid(scores[:, 1] - scores[:, 0]) / len(groups) / self.clients
            means.index_add_(0, groups, in_group * probabilities)
            means -= (in_all * probabilities).sum()
        return (means / self.mu).clamp(-self.bound, self.bound).to(like)

    def metrics(self, x: Named, y: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """Return metrics of the test samples.

        * ``objective``: the mean cross-entropy plus the maximum over y of the terms with y.
        * ``accuracy``: accuracy on all samples; ``error_GROUP``: error rate of each group.
        * ``score_gap``: largest minus smallest s_g; ``rate_gap``: the same of the fraction of samples that
          are assigned to the second class, the usual measure of the criterion.
        """
        labels = self.test_labels()
        scores = (predictions[:, 1] - predictions[:, 0]).double().cpu()
        assigned = torch.where(torch.isfinite(scores), (scores > 0).double(), torch.nan).numpy()
        wrong = np.where(np.isnan(assigned), np.nan, assigned != labels)
        counted = self._counted(labels)
        probabilities, groups = torch.sigmoid(scores).numpy()[counted], self.test_groups()[counted]
        present = [groups == group for group in np.unique(groups)]
        gaps = rates = np.full(1, np.nan)  # if no samples are counted
        if present:
            gaps = np.array([probabilities[members].mean() for members in present]) - probabilities.mean()
            rates = np.array([assigned[counted][members].mean() for members in present])
        y_best = np.clip(gaps / self.mu, -self.bound, self.bound)
        loss = F.cross_entropy(predictions.double().cpu(), torch.from_numpy(labels))
        return {
            "objective": float(loss) + float((y_best * gaps - self.mu / 2 * y_best**2).sum()),
            "accuracy": 1 - float(wrong.mean()),
            "score_gap": float(np.ptp(gaps)),
            "rate_gap": float(np.ptp(rates)),
            **self.group_means("error", wrong),
        }
