"""Dropout by address: what a network drops belongs to the sample ξ, like the noise of a gradient.

A sample of a network that drops carries its address, (number, round, client). While a function of the problem
is evaluated at it, :func:`drawing` holds the address, and :class:`Dropping` makes torch's dropout functions
draw from it: the words are those of ``Stream(seed, "dropout", client, round, first=number)``, taken in the
order of the calls. So a mask depends on the address alone, on no generator, group, rank or device, and the
same ξ has the same masks at two points. Where no address is held, nothing is drawn: in evaluations, and on
all of a client's data at once, which is without noise.

Philox is computed in torch here, in integers of 64 bits, so that it can be mapped over clients.
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

__all__ = ["Addressed", "Dropping", "Words", "drawing", "held", "network_of"]

_LOW = 0xFFFFFFFF
#: What dropped units of ``alpha_dropout`` become, -scale · alpha of the SELU (Klambauer et al., 2017).
_SATURATED = -1.7580993408473766

_held: Words | None = None


class Addressed(NamedTuple):
    """A minibatch and the address of its sample: (number, round, client) ``[3]``, or one a client
    ``[C, 3]``."""

    columns: tuple[torch.Tensor, ...]
    address: torch.Tensor


def network_of(problem: Any) -> Any:
    """The network of a problem, or of the problem that a game is made of; ``None`` without one."""
    return getattr(getattr(problem, "problem", problem), "model", None)


def drawing(function: Callable, key: tuple[int, int]) -> Callable:
    """``function(*point, batch)`` with the address of an :class:`Addressed` batch held while it runs."""

    def held_while(*arguments):
        global _held
        *point, batch = arguments
        if not isinstance(batch, Addressed):
            return function(*arguments)
        before, _held = _held, Words(key, batch.address)
        try:
            return function(*point, batch.columns)
        finally:
            _held = before

    return held_while


def held() -> Words | None:
    """The words of the sample that is evaluated at; ``None`` where nothing is to be drawn."""
    return _held


class Words:
    """The random words of one sample, taken one after another.

    Args:
        key: two words, ``streams.key(seed, "dropout")``.
        address: (number, round, client), int64 ``[3]``.
    """

    def __init__(self, key: tuple[int, int], address: torch.Tensor):
        self._key, self._address, self._lane = key, address, 0

    def take(self, number: int) -> torch.Tensor:
        """The next ``number`` uniform 32-bit words, int64 ``[number]``."""
        lanes = -(-number // 4)
        lane = torch.arange(self._lane, self._lane + lanes, device=self._address.device)
        self._lane += lanes
        words = _philox((lane, *self._address.unbind()), self._key)
        return torch.stack(words, dim=-1).flatten()[:number]

    def keep(self, shape: tuple[int, ...], p: float) -> torch.Tensor:
        """Which units stay, bool of this shape: each with probability 1 - p."""
        return self.take(math.prod(shape)).reshape(shape) >= round(p * 2**32)


def _philox(counter: tuple, key: tuple[int, int]) -> tuple[torch.Tensor, ...]:
    """Philox4x32-10, as ``streams.philox``; products wrap around at 64 bits, which keeps all bits."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = ((p1 >> 32) & _LOW) ^ c1 ^ k0, p1 & _LOW, ((p0 >> 32) & _LOW) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + 0x9E3779B9) & _LOW, (k1 + 0xBB67AE85) & _LOW
    return c0, c1, c2, c3


class Dropping(TorchFunctionMode):
    """Lets torch's dropout functions draw from a sample's words.

    Attributes:
        used: whether anything was drawn.
    """

    def __init__(self, words: Words):
        super().__init__()
        self.words, self.used = words, False
        self._functions: dict[Callable, Callable] = {
            F.dropout: self._dropout,
            torch.dropout: self._dropout,
            F.dropout1d: functools.partial(self._channels, 3),
            F.dropout2d: functools.partial(self._channels, 3),
            F.dropout3d: functools.partial(self._channels, 5),
            F.alpha_dropout: self._alpha,
            F.feature_alpha_dropout: self._feature_alpha,
            F.scaled_dot_product_attention: self._attention,
            F.multi_head_attention_forward: self._heads,
        }

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return self._functions.get(func, func)(*args, **(kwargs or {}))

    def _keep(self, shape: tuple[int, ...], p: float) -> torch.Tensor:
        self.used = True
        return self.words.keep(shape, p)

    def _dropout(self, input, p=0.5, training=True, inplace=False, train=None):
        on = training if train is None else train
        return self._scaled(input, tuple(input.shape), p, on, inplace)

    def _channels(self, batched, input, p=0.5, training=True, inplace=False):
        """Whole channels; of inputs with fewer axes than ``batched`` the first one is that of channels."""
        lead = 2 if input.dim() >= batched else 1
        return self._scaled(input, (*input.shape[:lead], *[1] * (input.dim() - lead)), p, training, inplace)

    def _scaled(self, input, shape, p, training, inplace):
        if not training or not p:
            return input
        scale = self._keep(shape, p).to(input.dtype) * (1 / (1 - p) if p < 1 else 0)
        return input.mul_(scale) if inplace else input * scale

    def _alpha(self, input, p=0.5, training=False, inplace=False):
        return self._to_saturated(input, tuple(input.shape), p, training)

    def _feature_alpha(self, input, p=0.5, training=False, inplace=False):
        return self._to_saturated(input, (*input.shape[:2], *[1] * (input.dim() - 2)), p, training)

    def _to_saturated(self, input, shape, p, training):
        """Dropped units saturate, and all are scaled so that mean and variance stay."""
        if not training or not p:
            return input
        a = ((1 - p) * (1 + p * _SATURATED**2)) ** -0.5 if p < 1 else 0.0
        return a * torch.where(self._keep(shape, p), input, _SATURATED) - a * p * _SATURATED

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
        weights = scores.softmax(-1)
        return self._scaled(weights, tuple(weights.shape), dropout_p, True, False) @ value

    def _heads(self, *args, **kwargs):
        """Multi-head attention, with its own calls of the two functions that drop."""
        whole: Any = F.multi_head_attention_forward
        names = {
            **whole.__globals__,
            "dropout": self._dropout,
            "scaled_dot_product_attention": self._attention,
            "has_torch_function": lambda tensors: False,
        }
        own = types.FunctionType(whole.__code__, names, whole.__name__, whole.__defaults__, whole.__closure__)
        own.__kwdefaults__ = whole.__kwdefaults__
        return own(*args, **kwargs)
