"""Partial AUC maximisation by distributionally robust optimisation, DRO (Zhu et al. 2022).

ℓ_ij = max(0, c - (h_i - h_j))² is the loss of a pair of a positive sample i and a negative sample j with the
outputs h_i and h_j and the margin c. The CVaR at level θ of n numbers, the mean of the largest θ n of them,
is min_s s + mean (number - s)_+ / θ. It is applied twice:

* over the negative samples, with a variable s_i for each positive sample i: g_i(w, s_i) = s_i +
  mean_j (ℓ_ij - s_i)_+ / θ_1. Its minimum is the mean loss of i against the fraction θ_1 of the negative
  samples with the largest outputs, which determine the ROC curve at false positive rates up to θ_1.
* over the positive samples, with a threshold s': s' + mean_i (g_i - s')_+ / θ_0, and (v)_+ is the maximum of
  y_i v over y_i in [0, 1]. The fraction θ_0 of the positive samples that are hardest to rank determines the
  ROC curve at true positive rates from 1 - θ_0. The maximiser y selects these samples. θ_0 = 1 is the one-way
  problem.

The one-way problem has a smooth version, DRO with a Kullback-Leibler penalty: the maximum of Σ_j p_j ℓ_ij -
λ KL(p, uniform) over weights p of the negative samples is λ log mean_j exp(ℓ_ij / λ). As for the CVaR, it is
the minimum over a variable s_i of a mean over j: s_i + λ (mean_j exp((ℓ_ij - s_i) / λ) - 1). Zhu et al.
replace s_i by λ log u_i, where u_i is a moving average of exp(ℓ_ij / λ).

Reading: a row of a client has one positive and one negative sample, so that every minibatch has as many
positive as negative samples, and all its pairs count. A client has as many rows as samples of its larger
class; samples of the smaller class are repeated, and weights make the mean over all rows exact. In a
minibatch, pairs of different rows are unbiased estimates.

Pairs consist of samples of one client. The mean over the clients therefore differs from the objective of the
pooled data, unless the clients have the same distributions of positive and of negative samples and equal
weights. Metrics are computed on pooled data.

A client sees the coordinates of s and y of its own positive samples only. The box [0, 1] is projected
coordinate by coordinate, so a client that projects changes no other coordinate, and the average of projected
points has the same fixed points as a projection at the server.
"""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field

from mpifed.base.settings import problem_settings
from mpifed.core.problem import Batch, Minimax, Minimisation, Named
from mpifed.core.ranking import PartialAUC, TwoWayPartialAUC
from mpifed.core.records import Blocks
from mpifed.core.sets import Box, Sets
from mpifed.core.streams import generator
from mpifed.data.partition import Parts
from mpifed.problems.deep_auc import ImageRanking
from mpifed.problems.weight_decay import WeightDecay

__all__ = ["OneWayPAUC", "TwoWayPAUC"]

#: Number of positive samples that are compared with all negative samples at once.
CHUNK = 256


@problem_settings
class _Pairs(WeightDecay, ImageRanking):
    theta_1: float = Field(
        default=0.3,
        gt=0,
        le=1,
        description="fraction θ_1 of the negative samples that count, the largest false positive rate",
    )
    margin: float = Field(default=1.0, gt=0, description="margin c of the squared hinge loss of a pair")
    s_speed: float = Field(
        default=1.0, gt=0, description="step size of s relative to that of w: x contains s / sqrt(s_speed)"
    )

    source = "Zhu et al. 2022"
    cites = ("zhu2022partial",)

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Read, split and partition the data, and pair the samples.

        Raises:
            ValueError: data, model, partition and classes are inconsistent, or a client lacks positive or
                negative samples.
        """
        super().prepare(seed, data_dir)
        pairing, pairs = generator(seed, "pairs"), []
        for client, rows in enumerate(self._rows):
            positive = self._positive[rows].numpy()
            sides = [pairing.permutation(rows[side]) for side in (positive, ~positive)]
            if not all(map(len, sides)):
                raise ValueError(
                    f"expected positive and negative samples of every client, found {len(sides[0])} positive "
                    f"and {len(sides[1])} negative samples of client {client}: choose another partition"
                )
            pairs.append(sides)
        self._above_rows, self._below_rows = map(Parts.of, zip(*pairs))

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """Return random initial parameters of the network; all other variables of x start at 0."""
        shapes = self.variables()["x"]
        more = sum(int(np.prod(shape)) for name, shape in shapes.items() if name not in self.network)
        start = self.model.start(self.network, rng)
        return {"x": torch.cat([start, torch.zeros(more, dtype=start.dtype)])}

    def client_sizes(self, clients: np.ndarray) -> np.ndarray:
        return np.maximum(self._above_rows.sizes[clients], self._below_rows.sizes[clients])

    def client_rows(self, clients: np.ndarray) -> tuple[Batch, np.ndarray]:
        """Return positive samples ``[n, ...]``, their coordinates of s and weights ``[n]``, negative samples
        and their weights."""
        samples, sizes = self._splits["train"].samples, self.client_sizes(clients)
        steps = np.arange(sizes.sum()) - np.repeat(
            np.cumsum(sizes) - sizes, sizes
        )  # 0, 1, ... of each client
        total, columns = np.repeat(sizes, sizes), []
        for side in (self._above_rows, self._below_rows):
            length = np.repeat(side.sizes[clients], sizes)
            places = steps % length  # the shorter side is repeated
            times = (total - places - 1) // length + 1  # that a sample occurs
            positions = np.repeat(side.starts(clients), sizes) + places
            rows, weights = side.rows[positions], total / (length * times)
            columns += [
                samples[torch.from_numpy(rows)],
                torch.from_numpy(positions),
                torch.from_numpy(weights),
            ]
        return (*columns[:4], columns[5]), sizes

    def client_labels(self, client: int) -> np.ndarray:
        """Return the classes of the positive and then of the negative samples."""
        rows = np.concatenate([self._above_rows[client], self._below_rows[client]])
        return self._splits["train"].all_labels[rows]

    def cvar(self, x: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return g_i of the positive samples of a batch, ``[b]``."""
        s, excess, weights = self._excess(x, batch)
        return s + (excess.clamp(min=0) * weights).mean(1) / self.theta_1

    def _excess(self, x: Named, batch: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Return s_i ``[b]``, ℓ_ij - s_i ``[b, b]``, and the weights of the negative samples ``[b]``."""
        positive, coordinates, _, negative, weights = batch
        s = self.s_speed**0.5 * x["s"][coordinates]
        return s, self.pair_losses(x, positive, self.outputs(x, negative)) - s[:, None], weights

    def pair_losses(self, x: Named, positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
        """Return ℓ_ij ``[b, m]`` for positive samples ``[b, ...]`` and negative samples' outputs ``[m]``."""
        above = self.outputs(x, positive)[:, None] - negative
        return (self.margin - above).clamp(min=0) ** 2


@problem_settings
class OneWayPAUC(_Pairs, Minimisation):
    """min over (w, s) of the mean over positive samples i of s_i + mean_j (ℓ_ij - s_i)_+ / θ_1.

    ℓ_ij is the squared hinge loss of a pair of samples. The minimum over s is the mean loss of the pairs with
    the fraction θ_1 of the negative samples that have the largest outputs: the partial AUC at false positive
    rates up to θ_1 is maximised. x consists of w and s, which has one coordinate per positive sample. With
    ``temperature``, the mean of s_i + λ (mean_j exp((ℓ_ij - s_i) / λ) - 1) is minimised, whose minimum over s
    is the mean of λ log mean_j exp(ℓ_ij / λ).
    """

    temperature: float | None = Field(
        default=None,
        gt=0,
        description="temperature λ of DRO with a Kullback-Leibler penalty, which replaces the CVaR; θ_1 is "
        "then only that of the metric; default: CVaR",
    )

    metric_names = ("auc", "partial_auc")
    maximised = frozenset({"auc", "partial_auc"})

    def variables(self) -> Blocks:
        return Blocks(x=self.x_with(s=(len(self._above_rows.rows),)))

    def loss(self, x: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        if self.temperature is None:
            return self.decayed((batch[2] * self.cvar(x, batch)).mean(), x)
        s, excess, weights = self._excess(x, batch)
        soft = (torch.exp(excess / self.temperature) * weights).mean(1) - 1
        return self.decayed((batch[2] * (s + self.temperature * soft)).mean(), x)

    def metrics(self, x: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """Return ``auc`` and ``partial_auc`` of the pooled test samples.

        ``partial_auc`` is the partial AUC at false positive rates up to θ_1 in the scale of
        :class:`mpifed.core.ranking.PartialAUC`: 0.5 is chance.
        """
        partial = PartialAUC(max_fpr=self.theta_1)
        return {
            "auc": self.auc(predictions),
            "partial_auc": partial.given(predictions.cpu(), torch.from_numpy(self.test_labels())),
        }


@problem_settings
class TwoWayPAUC(_Pairs, Minimax):
    """min over (w, s, s'), max over y in [0, 1]^n of mean_i y_i (g_i(w, s_i) - s') / θ_0 + s'.

    g_i is the mean loss of the positive sample i against the fraction θ_1 of the negative samples with the
    largest outputs, minimised over s_i; y selects the fraction θ_0 of the positive samples with the largest
    g_i. The partial AUC at false positive rates up to θ_1 and true positive rates from 1 - θ_0 is maximised.
    x consists of w, s and the threshold s'; s and y have one coordinate per positive sample.
    """

    theta_0: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="fraction θ_0 of the positive samples that count; true positive rates are from 1 - θ_0",
    )

    metric_names = ("auc", "partial_auc")
    maximised = frozenset({"auc", "partial_auc"})
    sets = Sets(y=Box(0.0, 1.0))

    def variables(self) -> Blocks:
        n = len(self._above_rows.rows)
        return Blocks(x=self.x_with(s=(n,), threshold=(1,)), y={"y": (n,)})

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """Return random initial parameters of the network and y = θ_0; s and s' start at 0."""
        start = torch.full((len(self._above_rows.rows),), self.theta_0, dtype=torch.float64)
        return super().initial(rng) | {"y": start}

    def loss(self, x: Named, y: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        _, coordinates, weights, *_ = batch
        selected = y["y"][coordinates] * (self.cvar(x, batch) - x["threshold"])
        return self.decayed((weights * selected).mean() / self.theta_0 + x["threshold"].sum(), x)

    @torch.no_grad()
    def best_response(self, x: Named) -> torch.Tensor:
        """Return y_i = 1 where g_i > s', and 0 elsewhere, ``[n]``."""
        like, selected = x["s"], []
        for client, size in enumerate(self._above_rows.sizes.tolist()):
            columns = [c.to(like.device) for c in self.client_data(client)]
            samples, coordinates, weights, *negative = columns
            negative[0] = negative[0].to(like)
            for part in range(0, size, CHUNK):
                rows = slice(part, min(part + CHUNK, size))
                batch = samples[rows].to(like), coordinates[rows], weights[rows], *negative
                selected.append(self.cvar(x, batch) > x["threshold"])
        return torch.cat(selected).to(like)

    def metrics(self, x: Named, y: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """Return ``auc`` and ``partial_auc`` of the pooled test samples.

        ``partial_auc`` is the fraction of the region of false positive rates up to θ_1 and true positive
        rates from 1 - θ_0 that is below the ROC curve (:class:`mpifed.core.ranking.TwoWayPartialAUC`).
        """
        partial = TwoWayPartialAUC(max_fpr=self.theta_1, min_tpr=1 - self.theta_0)
        return {
            "auc": self.auc(predictions),
            "partial_auc": partial.given(predictions.cpu(), torch.from_numpy(self.test_labels())),
        }
