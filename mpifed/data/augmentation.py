"""Random changes of training samples, different each time a sample is drawn.

An augmentation is a function ``augmentation(images, words)`` of the images of a minibatch, ``[b, c, h, w]``,
and of the random words of its sample (:class:`mpifed.core.sample_words.SampleWords`). The result has the same
shape. User-defined functions may also change samples of another shape, such as rows of a table.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field

from mpifed.base.plugins import UserObject
from mpifed.base.settings import choice, hyperparameters, problem_settings
from mpifed.core.problem import Batch

__all__ = ["AUGMENTATIONS", "Augmentation", "Augmented", "Crop", "Flip", "UserAugmentation"]


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


class UserAugmentation(UserObject):
    """A user-defined function ``change(samples, words, **settings)`` of the samples ``[b, ...]`` of a
    minibatch."""

    expected = "a function of (samples, words)"

    @classmethod
    def fits(cls, value: Any) -> bool:
        return inspect.isfunction(value) and _accepts(value, None, None)

    @classmethod
    def _expect(cls, given: Any, settings: dict[str, Any], what: str) -> None:
        super()._expect(functools.partial(given, None, None), settings, what)

    @classmethod
    def _from_instance(cls, value: Any) -> UserObject | None:
        return cls._from_function(value) if cls.fits(value) else None

    def __call__(self, samples: torch.Tensor, words: Any) -> torch.Tensor:
        # A copy, because the function may write to the samples, which are evaluated at several points.
        return self.given(samples.clone(), words, **self.settings).to(samples.dtype)


def _accepts(function: Callable, *arguments: Any) -> bool:
    """Return whether a function can be called with these positional arguments and further named ones."""
    try:
        inspect.signature(function).bind_partial(*arguments)
    except TypeError:
        return False
    return True


AUGMENTATIONS = {"flip": Flip, "crop": Crop}

#: An augmentation by name, table or instance, or a user-defined one.
Augmentation = choice("augmentation", AUGMENTATIONS, UserAugmentation)


@problem_settings
class Augmented:
    """Base class of problems whose batches are samples and labels, with the setting ``augmentation``."""

    augmentation: tuple[Augmentation, ...] | None = Field(
        default=None,
        description="random changes of the samples of each minibatch, in order: flip and crop for images, or "
        "user-defined functions",
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
        """Raise a ``ValueError`` if there are augmentations of images and the samples are not images
        ``[c, h, w]``."""
        names = [change.choice_name for change in self.augmentation or () if isinstance(change, Flip | Crop)]
        if names and len(shape) != 3:
            raise ValueError(
                f"augmentation: {names[0]} expects images [c, h, w], got samples of shape {list(shape)}: "
                "leave it out"
            )
