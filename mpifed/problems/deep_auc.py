"""Deep AUC maximisation on images and tables (Huang et al. 2024, section 6.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator, Field

from mpifed.base.errors import truncate
from mpifed.base.settings import problem_settings
from mpifed.core.problem import Named
from mpifed.data import Dataset, Labelled, read
from mpifed.data.augmentation import Augmented
from mpifed.data.samples import splits, splits_of
from mpifed.models import LeNet5, Model
from mpifed.problems.auc import AUC, Ranking

__all__ = ["DeepAUC", "ImageRanking"]


def _expect_name(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f'expected names of classes in quotes, such as "{value}", got {str(value).lower()}')
    return value


#: The name of a class: a text, or a whole number that stands for its digits.
ClassName = Annotated[int | str, BeforeValidator(_expect_name)]


@problem_settings
class ImageRanking(Ranking):
    """Base class of problems that rank images or rows of a table.

    The classes of the data set are divided into positive and negative classes.
    """

    dataset: Dataset = Field(description="data set: a name, a table, a folder or a user-defined function")
    model: Model = Field(default=LeNet5(), description="network h")
    positive_classes: tuple[ClassName, ...] | None = Field(
        default=None,
        description="names of the positive classes, numbers if they have no names; default: the upper half "
        "of the classes",
    )
    negative_classes: tuple[ClassName, ...] | None = Field(
        default=None,
        description="names of the negative classes, numbers if they have no names; all others are left out; "
        "default: all classes that are not positive",
    )

    def read_once(self, data_dir: str | None = None) -> Labelled:
        return read(self.dataset, data_dir)

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Read, split and partition the data.

        Raises:
            ValueError: data, model, partition and classes are inconsistent.
        """
        self._images = images = self.read_once(data_dir)
        self.files = images.files
        self.network = self.model.shapes(images.shape, outputs=1)
        above, self._below = self._sides(images.names)
        used = [*above, *self._below]
        self._divide(splits(splits_of(images), self.validation, seed, used), above, seed, images)

    def _sides(self, names: Sequence[str]) -> tuple[list[int], list[int]]:
        """Return the numbers of the positive and of the negative classes, sorted."""
        given = [self.positive_classes, self.negative_classes]
        upper = range((len(names) + 1) // 2, len(names))
        chosen = [None if one is None else {str(name) for name in one} for one in given]
        above = {names[i] for i in upper} if chosen[0] is None else chosen[0]
        below = set(names) - above if chosen[1] is None else chosen[1]
        if not above or not below or not above | below <= set(names):
            raise ValueError(
                f"positive_classes and negative_classes: expected some but not all of the classes "
                f"{truncate(', '.join(names))} of {self.dataset}, got positive {_listed(above)} and negative "
                f"{_listed(below)}"
            )
        if both := above & below:
            raise ValueError(
                f"{_listed(both)} are both in positive_classes and in negative_classes: expected one of these"
            )
        positive, negative = ([i for i, name in enumerate(names) if name in side] for side in (above, below))
        return positive, negative

    def class_names(self) -> list[str]:
        """Return the names of the classes, followed by + if they are positive and - if they are negative."""
        signs = dict.fromkeys(self._above, "+") | dict.fromkeys(self._below, "-")
        return [f"{name}{signs.get(label, '')}" for label, name in enumerate(self._images.names)]

    def outputs(self, x: Named, samples: torch.Tensor) -> torch.Tensor:
        """Return the network's output for each sample, ``[b]``."""
        return self.model(x, samples).squeeze(1)

    @torch.no_grad()
    def predict(self, x: Named, *y_and_rows) -> torch.Tensor:
        """Return the network's outputs ``[n]``. A sigmoid is omitted, since it could only cause ties."""
        like = next(iter(x.values()))
        chunks = self._held_out_chunks(y_and_rows[-1], like.device, like.dtype)
        return torch.cat([self.outputs(x, chunk) for chunk in chunks])


@problem_settings
class DeepAUC(ImageRanking, Augmented, AUC):
    """AUC maximisation for a network h(w; ·): min over (w, a, b), max over α of the mean loss.

    With the fraction p of positive samples and the margin m, the loss of a sample with label ±1 is ::

        (1-p) [(h - a)² - 2(m+α) h]  for +1,   p [(h - b)² + 2(m+α) h]  for -1,   each minus p(1-p) α²

    x consists of w, a and b; y is α. The classes of the data set are divided into positive and negative
    classes. m = 1 is the loss of Huang et al.; ``hinge`` gives the AUC margin loss of Yuan et al. 2021, which
    is AUCMLoss in LibAUC.
    """

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Read, split and partition the data.

        Raises:
            ValueError: data, model, partition, augmentation and classes are inconsistent.
        """
        super().prepare(seed, data_dir)
        self._expect_images(self._images.shape)


def _listed(names: set[str]) -> str:
    return truncate(", ".join(sorted(names))) or "none"
