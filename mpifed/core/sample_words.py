"""The random words of a sample ξ: its dropout masks and its augmentation.

**Dropout.** Dropout masks are part of the sample ξ, like the noise of a gradient. A sample for a network with
dropout has the address (number, round, client). :func:`with_dropout_words` sets the address while a function
of the problem is evaluated. :class:`DropoutMode` makes torch's dropout functions use the words of
``Stream(seed, "dropout", client, round, first=number)`` in the order of the calls. Hence a mask depends only
on the address, and not on a generator, the group, rank or device, and the same ξ has the same masks at two
points. Without an address there is no dropout; this is the case in evaluations and in full-batch gradients,
which have no noise. Philox is computed in torch with 64-bit integers, so that ``torch.func.vmap`` can
vectorise it over clients. Attention draws its mask in torch's own code, from torch's generator, which is
seeded by a word for each call: such a mask differs between CPU and GPU, and clients are looped over.

**Augmentation.** :func:`with_augmentation` changes the rows of a sample by :meth:`Problem.augment` with the
words of ``Stream(seed, "augment", ...)`` at the same address, so that a row is changed differently each time
it is drawn.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from mpifed.core.streams import philox

__all__ = [
    "AddressedBatch", "DropoutMode", "SampleWords", "current_words", "with_augmentation",
    "with_dropout_words",
]  # fmt: skip

#: The value of dropped units in ``alpha_dropout``, -scale · alpha of the SELU (Klambauer et al., 2017).
_SATURATED = -1.7580993408473766

#: The words of the sample that is being evaluated.
_current_words: SampleWords | None = None


class AddressedBatch(NamedTuple):
    """A minibatch and the address of its sample, (number, round, client).

    Attributes:
        columns: the minibatch, as in :class:`Sample`.
        address: int64 ``[3]`` for one client, ``[C, 3]`` for C clients.
    """

    columns: tuple[torch.Tensor, ...]
    address: torch.Tensor


def with_dropout_words(function: Callable, key: tuple[int, int]) -> Callable:
    """Wrap ``function(*point, batch)``, so that it can use the dropout words of an :class:`AddressedBatch`.

    Args:
        key: ``streams.key(seed, "dropout")``.
    """

    def evaluate(*arguments):
        global _current_words
        *point, batch = arguments
        if not isinstance(batch, AddressedBatch):
            return function(*arguments)
        before, _current_words = _current_words, SampleWords(key, batch.address)
        try:
            return function(*point, batch.columns)
        finally:
            _current_words = before

    return evaluate


def with_augmentation(function: Callable, augment: Callable, key: tuple[int, int]) -> Callable:
    """Wrap ``function(*point, batch)``, so that ``augment(columns, words)`` changes its minibatch.

    Args:
        key: ``streams.key(seed, "augment")``.
    """

    def evaluate(*arguments):
        *point, batch = arguments
        if isinstance(batch, AddressedBatch):
            columns = augment(batch.columns, SampleWords(key, batch.address))
            batch = AddressedBatch(columns, batch.address)
        return function(*point, batch)

    return evaluate


def current_words() -> SampleWords | None:
    """Return the random words of the sample that is being evaluated, ``None`` without dropout."""
    return _current_words


class SampleWords:
    """The uniform 32-bit words of one sample, which its dropout masks or its augmentation use in order.

    Args:
        key: two words, ``streams.key(seed, purpose)``.
        address: (number, round, client), int64 ``[3]``.
    """

    def __init__(self, key: tuple[int, int], address: torch.Tensor):
        self._key, self._address, self._lane = key, address, 0

    def take(self, number: int) -> torch.Tensor:
        """Return the next ``number`` uniform 32-bit words, int64 ``[number]``."""
        lanes = -(-number // 4)
        lane = torch.arange(self._lane, self._lane + lanes, device=self._address.device)
        self._lane += lanes
        words = philox((lane, *self._address.unbind()), self._key)
        return torch.stack(words, dim=-1).flatten()[:number]

    def mask(self, shape: tuple[int, ...], p: float) -> torch.Tensor:
        """Return a mask of the units to keep, bool of the given shape: true with probability 1 - p."""
        return self.take(math.prod(shape)).reshape(shape) >= round(p * 2**32)

    def integers(self, high: int, shape: tuple[int, ...]) -> torch.Tensor:
        """Return integers in ``[0, high)``, int64 of the given shape; ``high`` is less than 2^31."""
        return (self.take(math.prod(shape)).reshape(shape) * high) >> 32

    def uniform(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Return numbers uniform in the open interval (0, 1), 32 bits, float64 of the given shape."""
        return (self.take(math.prod(shape)).reshape(shape).double() + 0.5) * 2.0**-32

    def normal(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Return standard normal numbers by inversion, float64 of the given shape."""
        return torch.special.ndtri(self.uniform(shape))


class DropoutMode(TorchFunctionMode):
    """A context in which torch's dropout functions use the words of a sample.

    Attributes:
        used: whether a dropout function has been called.
        seeds: whether a function is running with torch's generator seeded by a word.
    """

    seeds = False

    def __init__(self, words: SampleWords):
        super().__init__()
        self._words, self.used = words, False
        self._functions: dict[Callable, Callable] = {
            F.dropout: self._drop,
            torch.dropout: lambda input, p, train: self._drop(input, p, train),
            F.dropout1d: functools.partial(self._drop, batched=3),
            F.dropout2d: functools.partial(self._drop, batched=2),
            F.dropout3d: functools.partial(self._drop, batched=5),
            F.alpha_dropout: self._saturate,
            F.feature_alpha_dropout: functools.partial(self._saturate, batched=0),
            F.scaled_dot_product_attention: self._attention,
            F.multi_head_attention_forward: self._multi_head,
        }

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return self._functions.get(func, func)(*args, **(kwargs or {}))

    def _mask(self, input: torch.Tensor, p: float, batched: int | None) -> torch.Tensor:
        """Return a mask of the units to keep.

        Args:
            batched: number of axes from which channels are on axis 1, otherwise on axis 0, and are dropped as
                a whole; ``None`` to drop single units.
        """
        self.used = True
        lead = input.dim() if batched is None else 2 if input.dim() >= batched else 1
        return self._words.mask((*input.shape[:lead], *[1] * (input.dim() - lead)), p)

    def _drop(self, input, p=0.5, training=True, inplace=False, batched=None):
        """Set dropped units to 0, and scale the others by 1 / (1 - p)."""
        if not training or not p:
            return input
        scale = self._mask(input, p, batched).to(input.dtype) * (1 / (1 - p) if p < 1 else 0)
        return input.mul_(scale) if inplace else input * scale

    def _saturate(self, input, p=0.5, training=False, inplace=False, batched=None):
        """Saturate dropped units, and scale all units to preserve mean and variance."""
        if not training or not p:
            return input
        a = ((1 - p) * (1 + p * _SATURATED**2)) ** -0.5 if p < 1 else 0.0
        value = a * torch.where(self._mask(input, p, batched), input, _SATURATED) - a * p * _SATURATED
        return input.copy_(value) if inplace else value

    def _attention(self, query, key, value, attn_mask=None, dropout_p=0.0, *args, **kwargs):
        function = F.scaled_dot_product_attention
        return self._seeded(dropout_p, function, query, key, value, attn_mask, dropout_p, *args, **kwargs)

    def _multi_head(self, *args, **kwargs):
        p = args[10] if kwargs.get("training", True) else 0.0
        return self._seeded(p, F.multi_head_attention_forward, *args, **kwargs)

    def _seeded(self, p, function, query, *args, **kwargs):
        """Call a function that draws its mask from torch's generator, which ``vmap`` does not support."""
        if not p:
            return function(query, *args, **kwargs)
        self.used = self.seeds = True
        seed, on_gpu = int(self._words.take(1)), query.device.type == "cuda"
        with torch.random.fork_rng([query.device] if on_gpu else []):
            # Without a GPU in use, torch.manual_seed would format the stack at each call.
            (torch.manual_seed if on_gpu else torch.default_generator.manual_seed)(seed)
            result = function(query, *args, **kwargs)
        self.seeds = False
        return result
