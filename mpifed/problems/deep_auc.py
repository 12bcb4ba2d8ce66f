"""Deep AUC maximisation on images and tables (Huang et al. 2024, section 6.2)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field

from mpifed.base.errors import truncate
from mpifed.base.settings import problem_settings
from mpifed.core.problem import Named
from mpifed.data import Dataset, read
from mpifed.data.samples import parts_of, splits
from mpifed.models import LeNet5, Model
from mpifed.problems.auc import AUC

__all__ = ["DeepAUC"]

#: Number of test images scored at once, which bounds the memory of an evaluation.
CHUNK = 1000


@problem_settings
class DeepAUC(AUC):
    """min over (w, a, b), max over α of the batch mean of the bracket of Huang et al. 2024, eq. 13, for a
    network h(w; ·).

    With the positive ratio p and a sample's label ±1 the bracket is ::

        (1-p) [(h - a)² - 2(1+α) h]  for +1,   p [(h - b)² + 2(1+α) h]  for -1,   both less p(1-p) α²

    The classes of a data set are divided into positive and negative classes; w, a and b make up x.
    """

    dataset: Dataset = Field(description="data set: a name, a table, a folder or a user-defined function")
    model: Model = Field(default=LeNet5(), description="network h")
    positive_classes: tuple[int | str, ...] | None = Field(
        default=None,
        description="classes that count as positive, by their numbers or names; by default the upper half",
    )
    negative_classes: tuple[int | str, ...] | None = Field(
        default=None,
        description="classes that count as negative, others being left out; by default all but the positive "
        "ones",
    )

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Read, split, thin and partition the data.

        Raises:
            ValueError: the data, the model, the partition and the classes do not fit together.
        """
        self._images = images = read(self.dataset, data_dir)
        self.files = images.files
        self._shapes = self.model.shapes(images.shape, outputs=1)
        above, self._below = self._sides(images.names)
        used = [*above, *self._below]
        self._divide(splits(parts_of(images), self.validation, seed, used), above, seed, images)

    def _sides(self, names: Sequence[str]) -> tuple[list[int], list[int]]:
        """The numbers of the positive and of the negative classes, sorted, of classes of these names."""
        given = [self.positive_classes, self.negative_classes]
        upper = range((len(names) + 1) // 2, len(names))
        chosen = [None if one is None else {str(name) for name in one} for one in given]
        above = {names[i] for i in upper} if chosen[0] is None else chosen[0]
        below = set(names) - above if chosen[1] is None else chosen[1]
        if not above or not below or not above | below <= set(names):
            raise ValueError(
                f"positive_classes and negative_classes: expected some but not all of the classes "
                f"{truncate(', '.join(names))} of {self.dataset}, got {_listed(above)} as positive and "
                f"{_listed(below)} as negative"
            )
        if both := above & below:
            raise ValueError(
                f"{_listed(both)} are in positive_classes and in negative_classes: expected one of these"
            )
        positive, negative = ([i for i, name in enumerate(names) if name in side] for side in (above, below))
        return positive, negative

    def class_names(self) -> list[str]:
        """The names of the classes, each with the sign of its part, if it has one."""
        signs = dict.fromkeys(self._above, "+") | dict.fromkeys(self._below, "-")
        return [f"{name}{signs.get(label, '')}" for label, name in enumerate(self._images.names)]

    def outputs(self, x: Named, samples: torch.Tensor) -> torch.Tensor:
        """The network's only output for each sample."""
        return self.model(x, samples).squeeze(1)

    @torch.no_grad()
    def predict(self, x: Named, y: Named, rows: slice) -> torch.Tensor:
        """The network's outputs ``[n]``; the sigmoid would not change their order, only make ties."""
        return torch.cat([self.outputs(x, chunk.to(x["a"])) for chunk in self._held[rows].split(CHUNK)])


def _listed(names: set[str]) -> str:
    return truncate(", ".join(sorted(names))) or "none"
