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
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from mpifed.core.device import philox

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
    """A context in which torch's dropout functions and attention use the words of a sample.

    Attributes:
        used: whether a dropout function has been called.
    """

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

    def _attention(self, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **more):
        if not dropout_p:
            return F.scaled_dot_product_attention(query, key, value, attn_mask, 0.0, is_causal, **more)
        if more.get("enable_gqa"):
            heads = query.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(heads, -3), value.repeat_interleave(heads, -3)
        masks = [] if attn_mask is None else [attn_mask]
        if is_causal:
            ones = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device)
            masks.append(ones.tril())
        return self._drop(_attention_weights(query, key, masks, more.get("scale")), dropout_p) @ value

    def _multi_head(self, *args, **more):
        """Compute the function of ``nn.MultiheadAttention``, in which torch's own code draws the mask."""
        query, key, value, _, heads, weight, bias, bias_k, bias_v, adds_zero, dropout_p, *output = args
        if not more.get("training", True) or not dropout_p:
            return F.multi_head_attention_forward(*args, **more)
        mask, padding = more.get("attn_mask"), more.get("key_padding_mask")
        if mask is not None and mask.dim() == 3:
            mask = mask.reshape(*query.shape[1:-1], heads, *mask.shape[1:])
        if padding is not None:
            padding = padding[..., None, None, :]
        separate = [more.get(f"{name}_proj_weight") for name in "qkv"]
        projections = separate if weight is None else weight.chunk(3)
        biases = [None] * 3 if bias is None else bias.chunk(3)
        query, key, value = map(F.linear, (query, key, value), projections, biases)
        if bias_k is not None:
            key = torch.cat([key, bias_k.flatten().expand_as(key[:1])])
            value = torch.cat([value, bias_v.flatten().expand_as(value[:1])])
        if adds_zero:
            key, value = (torch.cat([one, torch.zeros_like(one[:1])]) for one in (key, value))
        added = (bias_k is not None) + adds_zero
        masks = [F.pad(one, (0, added)) for one in (mask, padding) if one is not None]
        masks = [~one if one.dtype == torch.bool else one for one in masks]
        query, key, value = (  # [length, ..., d] to [..., heads, length, d / heads]
            one.reshape(*one.shape[:-1], heads, -1).movedim(0, -2) for one in (query, key, value)
        )
        weights = self._drop(_attention_weights(query, key, masks), dropout_p)
        result = F.linear((weights @ value).movedim(-2, 0).flatten(-2), *output)
        if not more.get("need_weights", True):
            return result, None
        return result, weights.mean(-3) if more.get("average_attn_weights", True) else weights


def _attention_weights(query, key, masks: list[torch.Tensor], scale: float | None = None) -> torch.Tensor:
    """Return the softmax of the scores over keys, 0 for queries whose keys are all masked, as in torch.

    Args:
        masks: each true for the keys to keep, or added to the scores.
    """
    scores = query @ key.mT * (scale or query.shape[-1] ** -0.5)
    for mask in masks:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    if not masks:
        return scores.softmax(-1)
    empty = (scores == -math.inf).all(-1, keepdim=True)
    return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
