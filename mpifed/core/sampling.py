"""Samples of clients: the k-th sample ξ of a round as a value with its data, noise and dropout masks.

A sample can be evaluated at several points (STORM, SVRG), and the order in which clients draw samples does
not matter. Random numbers have addresses. They are drawn at once for as many clients and samples of a round
as memory allows, and for following rounds if these are few. Rows of data are gathered for as many samples of
a group as fit in a cache.

**Dropout.** Dropout masks are part of the sample ξ, like the noise of a gradient. A sample for a network with
dropout has the address (number, round, client). While a function of the problem is evaluated,
:func:`with_dropout_words` sets the address, and :class:`Dropping` makes torch's dropout functions use the
words of ``Stream(seed, "dropout", client, round, first=number)`` in the order of the calls. Hence a mask
depends only on the address, and not on a generator, the group, rank or device, and the same ξ has the same
masks at two points. Without an address there is no dropout: in evaluations, and in full-batch gradients,
which have no noise. Philox is computed in torch with 64-bit integers, so that it can be vectorised over
clients.
"""

from __future__ import annotations

import copy
import functools
import math
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from mpifed.base.errors import ContractError
from mpifed.core.device import DeviceStream, philox, to_device
from mpifed.core.numerics import first_bad
from mpifed.core.problem import Problem
from mpifed.core.streams import Stream

__all__ = [
    "Addressed",
    "Draws",
    "Dropping",
    "Numbers",
    "Sample",
    "Sampler",
    "Words",
    "current_words",
    "with_dropout_words",
    "drawn_at_once",
    "load_clients",
    "network_of",
]

#: The value of dropped units in ``alpha_dropout``, -scale · alpha of the SELU (Klambauer et al., 2017).
_SATURATED = -1.7580993408473766

_held: Words | None = None


class Addressed(NamedTuple):
    """A minibatch and the address of its sample, (number, round, client) ``[3]``, or ``[C, 3]``."""

    columns: tuple[torch.Tensor, ...]
    address: torch.Tensor


def network_of(problem: Any) -> Any:
    """Return the network of a problem or of a game's minimax problem, ``None`` without a network."""
    return getattr(getattr(problem, "problem", problem), "model", None)


def with_dropout_words(function: Callable, key: tuple[int, int]) -> Callable:
    """Wrap ``function(*point, batch)`` such that the words of an :class:`Addressed` batch are set in it."""

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


def current_words() -> Words | None:
    """Return the random words of the sample that is being evaluated, ``None`` without dropout."""
    return _held


class Words:
    """The random words of one sample, in order.

    Args:
        key: two words, ``streams.key(seed, "dropout")``.
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

    def keep(self, shape: tuple[int, ...], p: float) -> torch.Tensor:
        """Return a mask that is true with probability 1 - p, bool of the given shape."""
        return self.take(math.prod(shape)).reshape(shape) >= round(p * 2**32)


class Dropping(TorchFunctionMode):
    """Make torch's dropout functions use the words of a sample.

    Attributes:
        used: whether words have been used.
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
        """Drop whole channels, on axis 0 of inputs with fewer than ``batched`` axes, otherwise on axis 1."""
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
        """Saturate dropped units, and scale all units to preserve mean and variance."""
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
        """Call torch's multi-head attention with the two dropout functions replaced."""
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


Columns = tuple[torch.Tensor, ...]


def load_clients(
    problem: Problem, clients: np.ndarray, load: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[Columns, np.ndarray]:
    """Return the concatenated rows of the clients' data, and the number of rows per client ``[C]``.

    The data are not copied as a whole.

    Args:
        load: moves a tensor to the device and dtype.

    Raises:
        ContractError: the columns of the clients differ, or a value is not finite.
    """
    whole: Columns = ()
    sizes, end = np.zeros(len(clients), dtype=np.int64), 0
    for place, client in enumerate(clients.tolist()):
        part = _data(problem, client, load)
        if place == 0 and part:
            rows = _expected(problem, clients.tolist(), len(part[0]))
            whole = tuple(column.new_empty((rows, *column.shape[1:])) for column in part)
        here, first = ([list(column.shape[1:]) for column in columns] for columns in (part, whole))
        if here != first:
            raise ContractError(
                f"{type(problem).__name__}: client_data({client}) has columns with rows of shape {here}, "
                f"client_data({clients[0]}) of {first}"
            )
        sizes[place] = len(part[0]) if part else 0
        start, end = end, end + int(sizes[place])
        whole = tuple(_with_room(column, new, end) for column, new in zip(whole, part))
        for column, new in zip(whole, part):
            column[start:end] = new
    return tuple(column[:end] for column in whole), sizes


def _data(problem: Problem, client: int, load: Callable[[torch.Tensor], torch.Tensor]) -> Columns:
    """Return the data of one client, or its full batch if the problem generates samples.

    Raises:
        ContractError: a value is not finite.
    """
    columns = tuple(map(load, problem.client_data(client) or problem.full_batch(client) or ()))
    for number, column in enumerate(columns):
        if index := first_bad(column):
            raise ContractError(
                f"{type(problem).__name__}: client_data({client}) has {column[index].item()} in row "
                f"{index[0]} of column {number}: expected finite numbers"
            )
    return columns


def _expected(problem: Problem, clients: list[int], first: int) -> int:
    """Return the total number of rows by ``client_size``; without it, estimate it from the first client."""
    if getattr(problem.client_size, "__func__", None) is Problem.client_size:  # the default loads the data
        return first * len(clients)
    return sum(int(problem.client_size(client)) for client in clients)


def _with_room(column: torch.Tensor, new: torch.Tensor, rows: int) -> torch.Tensor:
    """Return ``column`` with space for ``rows`` rows and a dtype to which ``new`` can be cast."""
    missing = rows - len(column)
    if missing <= 0 and torch.promote_types(column.dtype, new.dtype) == column.dtype:
        return column
    more = max(missing, len(column) // 2) if missing > 0 else 0
    return torch.cat([column, new.new_empty((more, *new.shape[1:]))])


#: Maximum number of random numbers that are drawn at once, unless one sample of a group needs more.
DRAWN = 2**20

#: Number of random numbers below which the overhead of a call dominates: so many are drawn for several rounds
#: with the same clients.
FEW = 2**14

#: Sample numbers of a group: a range, or one number per client ``[C]``.
Numbers = range | np.ndarray


class _Drawn(NamedTuple):
    """Draws for members from ``row`` and samples from ``first``: tensors ``[members, count, ...]``."""

    row: int
    first: int
    values: tuple[torch.Tensor, ...]

    def has(self, rows: slice, low: int, high: int) -> bool:
        """Return whether the samples ``low`` to ``high`` of a group are contained."""
        members, count = self.values[0].shape[:2]
        inside = self.row <= rows.start and rows.stop <= self.row + members
        return inside and self.first <= low and high < self.first + count

    def of(self, rows: slice, numbers: Numbers) -> list[torch.Tensor]:
        """Return a range of samples of a group ``[C, count, ...]``, or one per client ``[C, ...]``."""
        group = slice(rows.start - self.row, rows.stop - self.row)
        if isinstance(numbers, range):
            steps = slice(numbers.start - self.first, numbers.stop - self.first)
            return [array[group, steps] for array in self.values]
        device = self.values[0].device
        members = torch.arange(group.start, group.stop, device=device)
        return [array[members, to_device(numbers - self.first, device)] for array in self.values]


def drawn_at_once(members: int, group: int, samples: int, width: int, ahead: bool = False) -> int:
    """Return how many numbers :class:`Draws` draws at once for ``samples`` of ``width`` numbers per member.

    Args:
        group: size of the groups.
        ahead: whether several rounds are drawn at once.
    """
    if group * samples * width > DRAWN:
        samples = max(1, DRAWN // (group * width))
    round = min(members, max(group, DRAWN // max(1, samples * width))) * samples * width
    return round * max(1, FEW // max(1, round)) if ahead else round


class _Ahead(NamedTuple):
    """Draws of rounds from ``first``: tensors ``[rounds, members, count, ...]``."""

    first: int
    values: list[torch.Tensor]


class Draws:
    """The random draws of a round for a rank's clients.

    Args:
        seed: seed of the run.
        clients: numbers of this rank's clients.
    """

    def __init__(self, seed: int, clients: np.ndarray):
        self.seed, self.clients = seed, clients
        self._expected: dict[str, int] = {}
        self.members: Any = None
        self.select_members(np.arange(len(clients)))

    def expect(self, kind: str, count: int) -> None:
        """Set the number of samples per round of a kind; default: the number drawn so far."""
        self._expected[kind] = count

    def expected(self, kind: str) -> int:
        return self._expected.get(kind, 1)

    def select_members(self, members: np.ndarray) -> None:
        """Discard the draws of a round, and select the clients at local positions ``members``."""
        self._ahead: dict[tuple, _Ahead]
        if not np.array_equal(members, self.members):
            self.members, self._ahead = members, {}
        self._held: dict[tuple, _Drawn] = {}

    def of(
        self,
        key: tuple[str, int, Any],
        rows: slice,
        numbers: Numbers,
        width: int,
        draw: Callable[[Stream, np.ndarray], tuple[torch.Tensor, ...]],
        *,
        kind: str = "sample",
        parts: bool = True,
        ahead: bool = False,
    ) -> list[torch.Tensor]:
        """Return the draws for ``members[rows]``, ``[C, count, ...]``, or ``[C, ...]`` for one number each.

        Args:
            key: purpose of the stream, round, and a further identifier.
            width: number of random numbers per sample.
            draw: computes tensors ``[members, count, ...]`` from a stream and the members' local positions.
            kind: samples of the same kind are counted together.
            parts: whether many samples may be drawn in parts.
            ahead: whether ``draw`` accepts a stream of several rounds.
        """
        if isinstance(numbers, range):
            low, high = numbers[0], numbers[-1]
        else:
            low, high = int(numbers.min()), int(numbers.max())
        held = self._held.get(key)
        if held is None or not held.has(rows, low, high):
            if high >= self.expected(kind):
                self._expected[kind] = max(2 * self.expected(kind), high + 1)
            first, count, group = 0, self.expected(kind), rows.stop - rows.start
            if parts and group * count * width > DRAWN:
                first, count = low, max(high + 1 - low, min(count - low, DRAWN // (group * width)))
            places = self.members[rows.start : rows.start + max(group, DRAWN // max(1, count * width))]
            rounds = FEW // (len(places) * count * width) if ahead else 1
            values = self._values(key, places, range(first, first + count), rounds, draw)
            held = self._held[key] = _Drawn(rows.start, first, values)
        return held.of(rows, numbers)

    def _values(
        self, key: tuple[str, int, Any], places: np.ndarray, numbers: range, rounds: int, draw: Callable
    ) -> tuple[torch.Tensor, ...]:
        """Return the samples ``numbers`` of a round, ``[members, count, ...]``, drawn for several rounds."""
        purpose, r, other = key
        if rounds < 2:
            stream = Stream(self.seed, purpose, self.clients[places], r, len(numbers), numbers.start)
            return draw(stream, places)
        name = purpose, other, int(places[0]), len(places), numbers
        ahead = self._ahead.get(name)
        if ahead is None or not 0 <= r - ahead.first < rounds:
            each = np.tile(places, rounds)
            which = np.repeat(np.arange(r, r + rounds), len(places))
            stream = Stream(self.seed, purpose, self.clients[each], which, len(numbers), numbers.start)
            values = [array.unflatten(0, (rounds, len(places))) for array in draw(stream, each)]
            ahead = self._ahead[name] = _Ahead(r, values)
        return tuple(array[r - ahead.first] for array in ahead.values)


#: Maximum number of bytes of data that are gathered at once, unless a single sample is larger. On a CPU the
#: data should remain in the cache until they are used; on a GPU, fewer gathers mean fewer kernel launches.
GATHERED = {"cpu": 2**20, "cuda": 2**26}


class Sample:
    """One sample ξ of each of C clients.

    Args:
        batch: the minibatches, tensors ``[C, b, ...]``.
        noise: one vector per client over all blocks, ``[C, d]``; ``None`` without noise.
        address: (number, round, client) of each client's sample, int64 ``[C, 3]``, if the problem's network
            has dropout (see the module's docstring); otherwise ``None``.
        alone: the minibatch of a single client, tensors ``[b, ...]``, from which ``batch`` is computed.

    Attributes:
        whole: whether the sample consists of all data of each client; then ``batch`` is ``None``.
    """

    __slots__ = ("_batch", "noise", "address", "_alone", "whole")

    def __init__(
        self,
        batch: Sequence[torch.Tensor] | None = None,
        noise: torch.Tensor | None = None,
        address: torch.Tensor | None = None,
        alone: Sequence[torch.Tensor] | None = None,
    ):
        self._batch: Any = batch
        self._alone: Any = alone
        self.noise, self.address = noise, address
        self.whole = batch is None and alone is None

    @property
    def batch(self) -> Any:
        """The minibatches, tensors ``[C, b, ...]``."""
        if self._batch is None and self._alone is not None:
            self._batch = tuple([column.unsqueeze(0) for column in self._alone])
        return self._batch

    @property
    def evaluated(self) -> tuple[torch.Tensor, ...] | Addressed:
        """The argument of a vectorised loss: the minibatches, with addresses if there are any."""
        return self.batch if self.address is None else Addressed(self.batch, self.address)

    @property
    def evaluated_alone(self) -> tuple[torch.Tensor, ...] | Addressed:
        """The argument of the loss of a single client."""
        return self._alone if self.address is None else Addressed(self._alone, self.address[0])


class _Dealt(NamedTuple):
    """Samples from number ``first``: a list for each group, which is a range of members."""

    first: int
    samples: dict[tuple[int, int], list[Sample]]


#: Round, rows of a minibatch, and function of a composition for which samples are drawn.
_Key = tuple[int, int, str]


def _apart(columns: Sequence[torch.Tensor], count: int) -> list[tuple[torch.Tensor, ...]]:
    """Split columns along their first axis into ``count`` tuples with one tensor per column."""
    return list(zip(*(column.unbind() for column in columns))) if columns else [()] * count


class Sampler:
    """Draws the samples of a rank's clients, whose data it stores on the device.

    Args:
        clients: numbers of this rank's clients.
        batch_size: rows per sample; 0 for all rows of the client (the exact local gradient).
        noise: additive noise or ``None``.
        noise_width: number of elements of a sample's noise.

    Raises:
        ContractError: data, or the first generated sample, are not finite.

    Attributes:
        numbers: number of samples that each client has used in this round, ``[clients]``.
        selection: how the samples of this round are selected: "counted", "named", "" before the first.
        drops: whether the problem's network has dropout, so that samples have addresses.
    """

    def __init__(
        self, problem: Problem, clients, seed: int, batch_size: int, noise, noise_width: int, dtype, device
    ):
        self.problem, self.seed, self.batch_size, self.noise = problem, seed, batch_size, noise
        self.clients = np.asarray(clients, dtype=np.int64)
        self.dtype, self.device = dtype, torch.device(device)
        self.width = noise_width
        network = network_of(problem)
        self.drops = getattr(network, "drops", False)
        if hasattr(network, "place"):
            network.place(self.device, dtype)
        self.data, self.sizes = load_clients(problem, self.clients, self._load)
        self.offsets = np.cumsum(self.sizes) - self.sizes
        self._row_bytes = sum(column[:1].nbytes for column in self.data)
        self._draws = Draws(seed, self.clients)
        self._whole: tuple[np.ndarray, tuple[torch.Tensor, ...]] | None = None
        self._own, self._width = False, batch_size
        self._full: dict[int, Sample] = {}
        self.numbers = self.normals = np.zeros(0, dtype=np.int64)
        self.begin(0)
        self.select_members(np.arange(len(self.clients)))
        if len(self.clients):
            self._try()

    @property
    def _constant(self) -> bool:
        """Whether a sample of a full batch consists of that batch alone."""
        return self.noise is None and not self.drops and (bool(self.data) or not self._own)

    @property
    def draws(self) -> bool:
        """Whether the problem generates its samples."""
        return self._own

    def copy(self) -> Sampler:
        """Return a sampler with the same data, for evaluations that do not affect the samples of the run."""
        other = copy.copy(self)
        other._draws = Draws(self.seed, self.clients)
        other.begin(0)
        other.select_members(np.arange(len(self.clients)))
        return other

    def _try(self) -> None:
        """Draw the first sample, so that errors of ``draw`` are raised at once."""
        stream = Stream(self.seed, "sample", self.clients, 0, 1)
        drawn = self.problem.draw(stream, 1 if self.data else self.batch_size)
        if drawn is None:
            return
        for number, array in enumerate(map(self._from_numpy, drawn)):
            self._width = max(self._width, array[:1].numel())
            if index := first_bad(array):
                raise ContractError(
                    f"{type(self.problem).__name__}: draw() has {array[index].item()} in array {number} for "
                    f"client {self.clients[index[0]]}, at {list(index[2:])}: expected finite numbers"
                )
        self._own = True

    def _load(self, values: torch.Tensor | np.ndarray) -> torch.Tensor:
        tensor = torch.as_tensor(values)
        return to_device(tensor, self.device, self.dtype if tensor.is_floating_point() else None)

    def _on_device(self, stream: Stream) -> Stream:
        """Return the stream that draws on the device on which samples are needed."""
        return DeviceStream(stream, self.device) if self.device.type == "cuda" else stream

    def _from_numpy(self, array: np.ndarray) -> torch.Tensor:
        return self._load(torch.from_numpy(np.ascontiguousarray(array)))

    def begin(self, r: int) -> None:
        """Start round ``r``, in which as many samples are expected as in the previous round."""
        for kind, dealt in (("sample", self.numbers), ("normal", self.normals)):
            if dealt.any():
                self._draws.expect(kind, int(dealt.max()))
        self.round, self.selection = r, ""
        self.numbers = np.zeros(len(self.clients), dtype=np.int64)
        self.normals = np.zeros(len(self.clients), dtype=np.int64)
        self.members: Any = None

    def select_members(self, members: np.ndarray) -> None:
        """Select the clients at local positions ``members``."""
        if self.members is None or not np.array_equal(members, self.members):
            self.members = members
            self._draws.select_members(members)
            self._dealt: dict[_Key, _Dealt] = {}

    def select_by(self, selection: str) -> None:
        """Record how a sample is selected.

        Raises:
            ContractError: other samples of this round were selected differently.
        """
        if self.selection not in ("", selection):
            raise ContractError(
                "a round either counts its samples, oracle.sample(), or numbers them, "
                "oracle.sample(number=k): do not use both"
            )
        self.selection = selection

    def samples(
        self, k, rows: slice, *, round: int | None = None, size: int | None = None, of: str = ""
    ) -> list[Sample]:
        """Return sample ``k`` of a round for ``members[rows]`` and those after it that were gathered with it.

        Args:
            k: number of the sample, or one number per client ``[C]``.
            round: default: the current round.
            size: number of rows; default: the batch size.
            of: "g" or "f" if a composition generates different samples for its functions.
        """
        key = (
            self.round if round is None else round,
            self.batch_size if size is None else size,
            of if self._own else "",
        )
        if not isinstance(k, int):
            return self._samples(key, rows, k)
        group = rows.start, rows.stop
        if group[1] - group[0] == 1 and self._constant and not key[1]:
            return [self._full_sample(rows)] * max(1, self._draws.expected("sample") - k)
        dealt = self._dealt.get(key)
        held = dealt.samples.get(group, []) if dealt else []
        if dealt is None or not 0 <= k - dealt.first < len(held):
            dealt = self._dealt[key] = self._deal(key, rows, k)
            held = dealt.samples[group]
        return held[k - dealt.first :]

    def _full_sample(self, rows: slice) -> Sample:
        """Return all data of one client as a sample, which is the same in every round."""
        place = int(self.members[rows.start])
        if place not in self._full:
            self._full[place] = self._samples((0, 0, ""), rows, range(1))[0]
        return self._full[place]

    def _deal(self, key: _Key, rows: slice, k: int) -> _Dealt:
        """Gather samples of a group from number ``k``, and of the next clients if clients are looped over."""
        numbers = self._together(key, rows, k)
        count, groups = len(numbers), [(rows.start, rows.stop)]
        if rows.stop - rows.start == 1 and self.selection == "counted" and not self._whole_clients(key):
            room = self._room(key) // count
            same = self.numbers[self.members[rows.start + 1 : rows.start + room]] == k
            following = same.size if same.all() else int(same.argmin())
            groups = [(row, row + 1) for row in range(rows.start, rows.stop + following)]
        samples = self._samples(key, slice(rows.start, groups[-1][1]), numbers, each=len(groups) > 1)
        return _Dealt(k, {group: samples[n * count : (n + 1) * count] for n, group in enumerate(groups)})

    def _together(self, key: _Key, rows: slice, k: int) -> range:
        """Return the numbers of the samples of a group that are gathered together with number ``k``."""
        if self.selection == "named":
            return range(k, k + 1)
        room = self._room(key) // (rows.stop - rows.start)
        return range(k, max(k + 1, min(k + room, self._draws.expected("sample"))))

    def _room(self, key: _Key) -> int:
        """Return the number of samples of one client that are gathered at once, at most those with noise."""
        _, size, _ = key
        room = GATHERED[self.device.type] // max(1, size * self._row_bytes)
        return room if self.noise is None else min(room, DRAWN // max(1, self.width))

    def _samples(self, key: _Key, rows: slice, numbers: Numbers, each: bool = False) -> list[Sample]:
        """Return samples of ``members[rows]``.

        Args:
            numbers: a range, or a single number per client ``[C]``.
            each: whether a sample is for one client; then all samples of a client are adjacent.
        """
        round, _, _ = key

        def by_sample(array: torch.Tensor) -> torch.Tensor:
            """Reshape ``[C, count, ...]`` to ``[samples, clients, ...]``."""
            if not isinstance(numbers, range):
                return array.unsqueeze(0)
            return array.flatten(0, 1).unsqueeze(1) if each else array.transpose(0, 1)

        count = len(numbers) if isinstance(numbers, range) else 1
        count, clients = (count * (rows.stop - rows.start), 1) if each else (count, rows.stop - rows.start)
        batches: Sequence[Any] = [None] * count
        alone, noise, addresses = batches, batches, batches
        if self._whole_clients(key):
            batch = self._full_batch(rows)
            batches = [batch] * count
            if clients == 1:
                alone = [tuple(column[0] for column in batch)] * count
        else:
            columns = self._columns(key, rows, numbers, by_sample)
            if clients > 1:
                batches = _apart(columns, count)
            else:
                alone = _apart([column[:, 0] for column in columns], count)
        if self.noise is not None:

            def draw(stream: Stream, places: np.ndarray) -> tuple[torch.Tensor]:
                if getattr(self.noise, "on_device", False):
                    stream = self._on_device(stream)
                return (self._load(self.noise(stream, self.width)),)

            drawn = self._draws.of(("noise", round, None), rows, numbers, self.width, draw)[0]
            noise = by_sample(drawn).unbind()
        if self.drops:
            addresses = by_sample(self._addresses(round, rows, numbers)).unbind()
        return list(map(Sample, batches, noise, addresses, alone))

    def _whole_clients(self, key: _Key) -> bool:
        """Return whether a sample consists of all data of a client."""
        return not key[1] and (bool(self.data) or not self._own)

    def _addresses(self, round: int, rows: slice, numbers: Numbers) -> torch.Tensor:
        """Return the addresses of samples, ``[C, count, 3]``, or ``[C, 3]`` for one number per client."""
        clients = self.clients[self.members[rows]]
        if isinstance(numbers, range):
            address = np.broadcast_arrays(np.asarray(numbers), np.int64(round), clients[:, None])
        else:
            address = np.broadcast_arrays(numbers, np.int64(round), clients)
        return to_device(np.stack(address, axis=-1), self.device)

    def _columns(
        self, key: _Key, rows: slice, numbers: Numbers, by_sample: Callable[[torch.Tensor], torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return the columns of the minibatches, ``[samples, clients, b, ...]``."""
        round, size, of = key

        def draw(stream: Stream, places: np.ndarray) -> tuple[torch.Tensor, ...]:
            if self._own:
                stream.of = of
                return tuple(map(self._from_numpy, self.problem.draw(stream, size) or ()))
            local = stream.integers(self.sizes[places], size)
            return (to_device(local + self.offsets[places][:, None, None], self.device),)

        drawn = self._draws.of(
            ("sample", round, (size, of)), rows, numbers, max(size, self._width), draw,
            parts=not self._own, ahead=not self._own,
        )  # fmt: skip
        if self._own:
            return list(map(by_sample, drawn))
        chosen = by_sample(drawn[0])  # makes the rows of a sample adjacent
        flat = chosen.reshape(-1)
        return [column.index_select(0, flat).view(*chosen.shape, *column.shape[1:]) for column in self.data]

    def normal(self, k, rows: slice, size: int) -> torch.Tensor:
        """Return standard normal vector ``k`` of the round, ``[C, size]``, independent of all samples.

        ``k`` is one number, or one per client ``[C]``.
        """
        numbers: Numbers = range(k, k + 1) if isinstance(k, int) else k

        def draw(stream: Stream, places: np.ndarray) -> tuple[torch.Tensor]:
            return (self._load(self._on_device(stream).normal(size)),)

        drawn = self._draws.of(("normal", self.round, size), rows, numbers, size, draw, kind="normal")[0]
        return drawn[:, 0] if isinstance(k, int) else drawn

    def each(self, rows: slice) -> Iterator[tuple[torch.Tensor, ...]]:
        """Iterate over all data of each client of ``members[rows]``.

        Raises:
            ContractError: the problem generates samples and has no full batch.
        """
        if self._own and not self.data:
            raise ContractError(
                f"{type(self.problem).__name__} generates samples, so it has no oracle.full_batch: define "
                "full_batch(client) if the exact gradient is known, or use oracle.sample()"
            )
        for member in self.members[rows]:
            block = slice(self.offsets[member], self.offsets[member] + self.sizes[member])
            yield tuple(column[block] for column in self.data)

    def _full_batch(self, rows: slice) -> tuple[torch.Tensor, ...]:
        """Return all rows of clients of equal size, cached for all steps of a phase."""
        places = self.members[rows]
        if self._whole is None or not np.array_equal(places, self._whole[0]):
            sizes, start = self.sizes[places], self.offsets[places[0]]
            if len(places) == 1 or ((np.diff(places) == 1).all() and (sizes == sizes[0]).all()):
                block = slice(start, start + sizes.sum())
                whole = tuple(
                    column[block].view(len(places), sizes[0], *column.shape[1:]) for column in self.data
                )
            else:
                whole = tuple(map(torch.stack, zip(*self.each(rows))))
            self._whole = places, whole
        return self._whole[1]
