"""The random words of a sample ξ: its dropout masks and its augmentation.

**Dropout.** Dropout masks are part of the sample ξ, like the noise of a gradient. A sample for a network with
dropout has the address (number, round, client). :func:`with_dropout_words` sets the address while a function
of the problem is evaluated. :class:`DropoutMode` makes torch's dropout functions use the words of
``Stream(seed, "dropout", client, round, first=number)`` in the order of the calls. Hence a mask depends only
on the address, and not on a generator, the group, rank or device, and the same ξ has the same masks at two
points. Without an address there is no dropout; this is the case in evaluations and in full-batch gradients,
which have no noise. Philox is computed in torch with 64-bit integers, so that ``torch.func.vmap`` can
vectorise it over clients.

**Augmentation.** :func:`with_augmentation` changes the rows of a sample by :meth:`Problem.augment` with the
words of ``Stream(seed, "augment", ...)`` at the same address, so that a row is changed differently each time
it is drawn.
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable
from typing import Any, NamedTuple

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


class DropoutMode(TorchFunctionMode):
    """A context in which torch's dropout functions use the words of a sample.

    Attributes:
        used: whether a dropout function has been called.
    """

    def __init__(self, words: SampleWords):
        super().__init__()
        self.words, self.used = words, False
        self._functions: dict[Callable, Callable] = {
            F.dropout: self._dropout,
            torch.dropout: self._dropout,
            F.dropout1d: functools.partial(self._channels, 3),
            F.dropout2d: functools.partial(self._channels, 2),
            F.dropout3d: functools.partial(self._channels, 5),
            F.alpha_dropout: self._alpha,
            F.feature_alpha_dropout: self._feature_alpha,
            F.scaled_dot_product_attention: self._attention,
            F.multi_head_attention_forward: self._multi_head,
        }

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return self._functions.get(func, func)(*args, **(kwargs or {}))

    def _mask(self, shape: tuple[int, ...], p: float) -> torch.Tensor:
        self.used = True
        return self.words.mask(shape, p)

    def _dropout(self, input, p=0.5, training=True, inplace=False, train=None):
        training = training if train is None else train
        return self._drop(input, tuple(input.shape), p, training, inplace)

    def _channels(self, batched, input, p=0.5, training=True, inplace=False):
        """Drop whole channels, on axis 0 of inputs with fewer than ``batched`` axes, otherwise on axis 1."""
        lead = 2 if input.dim() >= batched else 1
        return self._drop(input, (*input.shape[:lead], *[1] * (input.dim() - lead)), p, training, inplace)

    def _drop(self, input, shape, p, training, inplace):
        """Set the units that a mask of ``shape`` drops to 0, and scale the others by 1 / (1 - p)."""
        if not training or not p:
            return input
        scale = self._mask(shape, p).to(input.dtype) * (1 / (1 - p) if p < 1 else 0)
        return input.mul_(scale) if inplace else input * scale

    def _alpha(self, input, p=0.5, training=False, inplace=False):
        return self._to_saturated(input, tuple(input.shape), p, training, inplace)

    def _feature_alpha(self, input, p=0.5, training=False, inplace=False):
        shape = (*input.shape[:2], *[1] * (input.dim() - 2))
        return self._to_saturated(input, shape, p, training, inplace)

    def _to_saturated(self, input, shape, p, training, inplace):
        """Saturate dropped units, and scale all units to preserve mean and variance."""
        if not training or not p:
            return input
        a = ((1 - p) * (1 + p * _SATURATED**2)) ** -0.5 if p < 1 else 0.0
        value = a * torch.where(self._mask(shape, p), input, _SATURATED) - a * p * _SATURATED
        return input.copy_(value) if inplace else value

    def _attention(self, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **more):
        if not dropout_p:
            return F.scaled_dot_product_attention(query, key, value, attn_mask, 0.0, is_causal, **more)
        if more.get("enable_gqa"):
            raise ValueError("dropout in attention with enable_gqa is not supported")
        scale = more.get("scale") or query.shape[-1] ** -0.5
        scores = query @ key.mT * scale
        if is_causal:
            ones = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
            scores = scores.masked_fill(~ones.tril(), -math.inf)
        if attn_mask is not None:
            masks = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -math.inf) if masks else scores + attn_mask
        weights = scores.softmax(-1) if attn_mask is None else _masked_softmax(scores)
        return self._drop(weights, tuple(weights.shape), dropout_p, True, False) @ value

    def _multi_head(self, *args, **kwargs):
        """Call torch's multi-head attention with the two dropout functions replaced."""
        original: Any = F.multi_head_attention_forward
        names = {
            **original.__globals__,
            "dropout": self._dropout,
            "scaled_dot_product_attention": self._attention,
            "has_torch_function": lambda tensors: False,
        }
        patched = types.FunctionType(
            original.__code__, names, original.__name__, original.__defaults__, original.__closure__
        )
        patched.__kwdefaults__ = original.__kwdefaults__
        return patched(*args, **kwargs)


def _masked_softmax(scores: torch.Tensor) -> torch.Tensor:
    """Return the softmax over keys, 0 for queries whose keys are all masked, as torch's attention does."""
    empty = (scores == -math.inf).all(-1, keepdim=True)
    return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
