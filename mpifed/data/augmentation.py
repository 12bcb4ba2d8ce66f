"""Random changes of training images, different each time an image is drawn.

An augmentation is a function ``augmentation(images, words)`` of the images of a minibatch, ``[b, c, h, w]``,
and of the random words of its sample (:class:`mpifed.core.sample_words.SampleWords`). The result has the same
shape.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field

from mpifed.base.settings import choice, hyperparameters, problem_settings
from mpifed.core.problem import Batch

__all__ = ["AUGMENTATIONS", "Augmentation", "Augmented", "Crop", "Flip"]


@hyperparameters
class Flip:
    """Images are mirrored horizontally with probability 1/2."""

    def __call__(self, images: torch.Tensor, words: Any) -> torch.Tensor:
        keep = words.mask((len(images), 1, 1, 1), 0.5)
        return torch.where(keep, images, images.flip(-1))


@hyperparameters
class Crop:
    """Images are shifted at random by up to ``pad`` pixels in each direction; the border is filled with 0."""

    pad: int = Field(default=4, ge=1, lt=2**15, description="largest shift in pixels")

    def __call__(self, images: torch.Tensor, words: Any) -> torch.Tensor:
        b, c, h, w = images.shape
        padded = F.pad(images, (self.pad,) * 4)
        down, right = words.integers(2 * self.pad + 1, (2, b, 1))
        rows = down + torch.arange(h, device=images.device)
        columns = right + torch.arange(w, device=images.device)
        padded = padded.gather(2, rows[:, None, :, None].expand(b, c, h, w + 2 * self.pad))
        return padded.gather(3, columns[:, None, None, :].expand(b, c, h, w))


AUGMENTATIONS = {"flip": Flip, "crop": Crop}

#: An augmentation by name, table or instance.
Augmentation = choice("augmentation", AUGMENTATIONS)


@problem_settings
class Augmented:
    """Base class of problems whose batches are images and labels, with the setting ``augmentation``."""

    augmentation: tuple[Augmentation, ...] | None = Field(
        default=None, description="random changes of the images of each minibatch, in order: flip, crop"
    )

    @property
    def augment(self):
        """The function that augments a minibatch, see :attr:`Problem.augment`, or ``None``."""
        return self._augmented if self.augmentation else None

    def _augmented(self, batch: Batch, words: Any) -> Batch:
        images, *others = batch
        for change in self.augmentation or ():
            images = change(images, words)
        return images, *others

    def _expect_images(self, shape: tuple[int, ...]) -> None:
        """Raise a ``ValueError`` if there are augmentations and the samples are not images ``[c, h, w]``."""
        if self.augmentation and len(shape) != 3:
            raise ValueError(
                f"augmentation: expected images [c, h, w], got samples of shape {list(shape)}: leave it out"
            )
