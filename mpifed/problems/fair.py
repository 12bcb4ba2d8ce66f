"""Fair classification (Shen et al. 2024, section 4.2): a network against weights of the classes, or of groups
such as people by sex.

Interpretation of the paper: F_c is the mean cross-entropy of the training samples of class c of all clients.
A sample of class c has the weight y_c / π_c, where π_c is the fraction of class c in all training data. The
mean over a batch, which may lack classes, is then an unbiased estimate of Σ_c y_c F_c if the weights of the
clients are proportional to their numbers of samples (equal clients, or ``weights = "samples"``). The paper
has no weight decay. y starts uniform.

With ``groups``, F_c is the mean over the samples of group c, and the rest is the same. If every client has
samples of one group only, the problem is a mixture of the clients' losses: methods that project y at the
clients then solve another problem, see :mod:`mpifed.problems.mixture`.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field

from mpifed.base.settings import problem_settings
from mpifed.core.metrics import group_metric_name
from mpifed.core.problem import Batch, Minimax, Named
from mpifed.core.records import Blocks
from mpifed.core.sets import Sets, Simplex
from mpifed.data import Grouping
from mpifed.problems.labelled_images import LabelledImages
from mpifed.problems.weight_decay import WeightDecay

__all__ = ["FairClassification", "Grouped"]


@problem_settings
class Grouped(LabelledImages):
    """Base class of problems with groups of samples. A subclass sets ``_grouping`` in ``prepare``."""

    def train_groups(self) -> np.ndarray:
        """Return the groups of the training samples of all clients, one client after the other, ``[n]``."""
        return self._grouping.numbers["train"][self._rows.rows]

    def groups_of(self, clients: np.ndarray) -> torch.Tensor:
        """Return the groups of the samples of clients, one client after the other, ``[n]``."""
        return torch.from_numpy(self._grouping.numbers["train"])[self._rows.of_clients(clients)]

    def test_groups(self) -> np.ndarray:
        """Return the groups of the held-out samples, ``[n]``."""
        return self._grouping.numbers[self._held_out.part][self._held_out.rows]

    def group_means(self, prefix: str, values: np.ndarray) -> dict[str, float]:
        """Return the mean of ``values``, one per held-out sample, ``[n]``, by group: ``prefix_GROUP``.

        Groups without held-out samples are left out.
        """
        groups, names = self.test_groups(), self._grouping.names
        return {
            group_metric_name(prefix, names[group]): float(values[groups == group].mean())
            for group in np.unique(groups)
        }


@problem_settings
class FairClassification(WeightDecay, Grouped, Minimax):
    """min over x, max over y in the simplex of Σ_c y_c F_c(x), where F_c is the cross-entropy of class c, or
    of group c of the samples."""

    groups: str | None = Field(
        default=None, description="name of the groups of the data set, such as sex; default: the classes"
    )

    source = "Shen et al. 2024, section 4.2"
    cites = ("shen2024fessgda",)
    metric_names = (
        "mean_accuracy",
        "worst_accuracy",
        "accuracy_gap",
        "loss_gap",
        "error_GROUP",
        "loss_GROUP",
    )
    maximised = frozenset({"mean_accuracy", "worst_accuracy"})
    sets = Sets(y=Simplex())

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Read, split and partition the data, see :meth:`LabelledImages.prepare`."""
        super().prepare(seed, data_dir)
        if self.groups is None:
            self._grouping = Grouping(self._images.names, {"train": self._images.train_labels.numpy()})
        else:
            self._grouping = self._images.grouping(self.groups)
            if "gap" in self._grouping.names:
                raise ValueError(
                    f"groups = {self.groups!r}: expected groups whose metrics have names of their own, found "
                    "the group 'gap', as loss_gap is the difference of the groups' losses: rename the group"
                )
        groups = torch.from_numpy(self.train_groups())
        counts = torch.bincount(groups, minlength=len(self._grouping.names))
        self._inverse_share = len(groups) / counts.double()

    def variables(self) -> Blocks:
        return Blocks(x=self.network, y={"y": (len(self._grouping.names),)})

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """Return random initial parameters of the network and uniform weights."""
        count = len(self._grouping.names)
        return {
            "x": self.model.start(self.network, rng),
            "y": torch.full((count,), 1 / count, dtype=torch.float64),
        }

    def client_rows(self, clients: np.ndarray) -> tuple[Batch, np.ndarray]:
        """Return images ``[n, c, h, w]``, labels ``[n]``, 1/π of each sample's class or group ``[n]`` and,
        for ``groups``, its group ``[n]``."""
        (images, labels), sizes = super().client_rows(clients)
        group = self.groups_of(clients)
        data = images, labels, self._inverse_share[group]
        return (data if self.groups is None else (*data, group)), sizes

    def loss(self, x: Named, y: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        images, labels, inverse_share, *groups = batch
        group = groups[0] if groups else labels
        losses = F.cross_entropy(self.model(x, images), labels, reduction="none")
        return self.decayed((y["y"][group] * inverse_share * losses).mean(), x)

    def metrics(self, x: Named, y: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """Return ``mean_accuracy`` and ``worst_accuracy``, mean and minimum test accuracy over classes.

        With ``groups``, the accuracies are those of the groups. Further metrics are ``error_GROUP`` and
        ``loss_GROUP``, the error rate and the mean cross-entropy of each group, and ``accuracy_gap`` and
        ``loss_gap``, the differences between the largest and the smallest of them.
        """
        if self.groups is None:
            by_class = self.accuracies(predictions)[1]
            return {"mean_accuracy": float(by_class.mean()), "worst_accuracy": float(by_class.min())}
        labels = torch.from_numpy(self.test_labels()).to(predictions.device)
        wrong = (predictions.argmax(dim=1) != labels).double()
        finite = torch.where(torch.isfinite(predictions).all(), wrong, torch.nan)
        errors = self.group_means("error", finite.cpu().numpy())
        losses = F.cross_entropy(predictions, labels, reduction="none")
        losses_by_group = self.group_means("loss", losses.double().cpu().numpy())
        rates, means = np.array([*errors.values()]), np.array([*losses_by_group.values()])
        return {
            "mean_accuracy": 1 - float(rates.mean()),
            "worst_accuracy": 1 - float(rates.max()),
            "accuracy_gap": float(np.ptp(rates)),
            "loss_gap": float(np.ptp(means)),
            **errors,
            **losses_by_group,
        }
