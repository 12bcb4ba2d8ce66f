"""Samples of clients: the k-th sample ξ of a round as a value with its data, noise and dropout masks.

A sample can be evaluated at several points (STORM, SVRG), and the order in which clients draw samples does
not matter, because every random number has an address (see :mod:`mpifed.core.streams`). To save calls, a
:class:`Sampler` computes in advance: it draws the numbers of many clients and samples of a round at once, and
those of several rounds if they are few, and gathers the rows of as many samples as fit into the processor's
cache. Drawn numbers, gathered samples and full batches are blocks of one :class:`_BlockCache`.

Rows are drawn with replacement, or without: then the samples of a client in a round pass through its rows in
the order of a random permutation, a new one in each epoch (:mod:`mpifed.core.epochs`). The permutation of an
epoch has an address, so a sample is determined by its number here, too.

Dropout masks and augmentation are part of the sample ξ, like the noise of a gradient: see
:mod:`mpifed.core.sample_words`.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from mpifed.base.errors import ContractError
from mpifed.core.client_data import ClientData, Columns
from mpifed.core.device import DeviceStream, to_device, to_device_as
from mpifed.core.epochs import batches_per_epoch, shortest_batch
from mpifed.core.noise import NOISES
from mpifed.core.numerics import first_non_finite
from mpifed.core.problem import Problem, minibatch_rows, sizes_of, user_problem
from mpifed.core.sample_words import AddressedBatch
from mpifed.core.streams import Stream, permutations

__all__ = ["Sample", "SampleNumbers", "Sampler", "drawn_at_once"]


#: Maximum number of random numbers that are drawn in one call, unless one sample of a group needs more.
MAX_DRAWN = 2**20

#: Number of random numbers below which the overhead of a call dominates. If a round of all clients needs
#: fewer, several rounds are drawn in one call.
MIN_DRAWN = 2**14

#: Number of row numbers from which a GPU draws them itself, with the same bits: the host takes 8 ms for ten
#: times as many, a GPU about a hundred kernels for any number.
DRAWN_ON_DEVICE = 2**16

#: Sample numbers of a group: a range, or one number per client ``[C]``.
SampleNumbers = range | np.ndarray


#: Maximum number of bytes of data that one gather copies, unless a single sample is larger. On a CPU the
#: data should remain in the cache until they are used; on a GPU, fewer gathers mean fewer kernel launches.
MAX_GATHERED = {"cpu": 2**20, "cuda": 2**26}

#: The rounds of a block that is valid until other members are selected.
_EVERY_ROUND = range(sys.maxsize)

#: Maximum number of blocks that are kept. A round needs a few: one for each purpose and size of samples.
MAX_BLOCKS = 32


class _Block(NamedTuple):
    """What was computed together for consecutive rounds, members and samples.

    Attributes:
        rounds: numbers of the rounds.
        rows: positions among the selected members.
        numbers: numbers of the samples.
        values: tensors of drawn numbers ``[rounds, members, count, ...]``, or lists of samples by group.
    """

    rounds: range
    rows: range
    numbers: range
    values: list

    def contains(self, round: int, rows: slice, low: int, high: int) -> bool:
        """Return whether the block contains the samples ``low`` to ``high`` of the group ``rows``."""
        inside = self.rows.start <= rows.start and rows.stop <= self.rows.stop
        return inside and low in self.numbers and high in self.numbers and round in self.rounds

    def drawn(self, round: int, rows: slice, numbers: SampleNumbers) -> list[torch.Tensor]:
        """Return a range of samples of a group ``[C, count, ...]``, or one sample per client ``[C, ...]``."""
        r = round - self.rounds.start
        group = slice(rows.start - self.rows.start, rows.stop - self.rows.start)
        if isinstance(numbers, range):
            steps = slice(numbers.start - self.numbers.start, numbers.stop - self.numbers.start)
            return [array[r, group, steps] for array in self.values]
        device = self.values[0].device
        members = torch.arange(group.start, group.stop, device=device)
        return [array[r, members, to_device(numbers - self.numbers.start, device)] for array in self.values]

    def of_group(self, rows: slice) -> Any:
        """Return the value of a group, if all groups of the block have its number of clients."""
        return self.values[(rows.start - self.rows.start) // (rows.stop - rows.start)]


class _BlockCache:
    """The blocks that a sampler has computed in advance, at most :data:`MAX_BLOCKS`.

    A block has a name, which is the same for blocks that replace each other in a round. Blocks are valid for
    the selected members, and those of a single round until the next round begins.
    """

    def __init__(self) -> None:
        self._blocks: dict[tuple, _Block] = {}

    def find(self, name: tuple, round: int, rows: slice, low: int, high: int) -> _Block | None:
        """Return the block that contains the samples ``low`` to ``high`` of a group, ``None`` without one."""
        for key in ((name, round), (name, None)):
            block = self._blocks.get(key)
            if block is not None and block.contains(round, rows, low, high):
                return block
        return None

    def store(self, name: tuple, block: _Block) -> _Block:
        """Store and return a block; if there are too many, the oldest is removed."""
        key = (name, block.rounds.start if len(block.rounds) == 1 else None)
        self._blocks.pop(key, None)
        self._blocks[key] = block
        if len(self._blocks) > MAX_BLOCKS:
            del self._blocks[next(iter(self._blocks))]
        return block

    def end_round(self) -> None:
        """Remove the blocks of single rounds."""
        self._blocks = {key: block for key, block in self._blocks.items() if key[1] is None}

    def clear(self) -> None:
        """Remove all blocks, because other members have been selected."""
        self._blocks.clear()


def drawn_at_once(members: int, group: int, samples: int, width: int) -> int:
    """Return the maximum number of random numbers that a sampler draws in one call.

    Args:
        members: number of clients that need samples.
        group: number of clients that are stepped together.
        samples: number of samples per member and round.
        width: number of random numbers per sample.
    """
    if group * samples * width > MAX_DRAWN:
        samples = max(1, MAX_DRAWN // (group * width))
    round = min(members, max(group, MAX_DRAWN // max(1, samples * width))) * samples * width
    return round * max(1, MIN_DRAWN // max(1, round))


class Sample:
    """One sample ξ of each of C clients.

    Args:
        batch: the minibatches, tensors ``[C, b, ...]``.
        noise: one vector per client over all blocks, ``[C, d]``; ``None`` without noise.
        address: (number, round, client) of each client's sample, int64 ``[C, 3]``, if the problem's network
            has dropout (see the module's docstring); otherwise ``None``.
        single: the minibatch of a single client, tensors ``[b, ...]``, from which ``batch`` is computed when
            it is needed; ``None`` for several clients.
        rows: number of rows of each client's minibatch, ``[C]``, if they may differ: the minibatch of a
            client consists of its first rows in ``batch``. ``None`` if all rows of ``batch`` are used.

    Attributes:
        is_full_batch: whether the sample consists of all data of each client; then ``batch`` is ``None``.
    """

    __slots__ = ("_batch", "noise", "address", "single", "rows", "is_full_batch")

    def __init__(
        self,
        batch: Sequence[torch.Tensor] | None = None,
        noise: torch.Tensor | None = None,
        address: torch.Tensor | None = None,
        single: Sequence[torch.Tensor] | None = None,
        rows: np.ndarray | None = None,
    ):
        self._batch: Any = batch
        self.single: Any = single
        self.rows: Any = rows
        self.noise, self.address = noise, address
        self.is_full_batch = batch is None and single is None

    @property
    def batch(self) -> Any:
        """The minibatches, tensors ``[C, b, ...]``."""
        if self._batch is None and self.single is not None:
            self._batch = tuple([column.unsqueeze(0) for column in self.single])
        return self._batch

    @property
    def loss_input(self) -> tuple[torch.Tensor, ...] | AddressedBatch:
        """The ``batch`` argument of a vectorised loss, with addresses if the network has dropout."""
        return self.batch if self.address is None else AddressedBatch(self.batch, self.address)

    @property
    def single_loss_input(self) -> tuple[torch.Tensor, ...] | AddressedBatch:
        """The ``batch`` argument of the loss of a single client, with its address if there is dropout."""
        return self.single if self.address is None else AddressedBatch(self.single, self.address[0])

    def of_clients(self, clients: torch.Tensor, rows: int) -> Sample:
        """Return the sample without noise of the clients at these positions, which have ``rows`` rows."""
        batch = tuple(column[:, :rows].index_select(0, clients) for column in self.batch)
        return Sample(batch, address=None if self.address is None else self.address.index_select(0, clients))


#: Round, rows of a minibatch (0 for all), and "g" or "f" if samples are generated for that function.
_Key = tuple[int, int, str]


def _unbind_columns(columns: Sequence[torch.Tensor], count: int) -> list[tuple[torch.Tensor, ...]]:
    """Split columns along their first axis into ``count`` tuples with one tensor per column."""
    return list(zip(*(column.unbind() for column in columns))) if columns else [()] * count


class Sampler:
    """Draws the samples of the clients that a rank may step.

    Samples are drawn and gathered in advance, but a sample depends on its address alone.

    Args:
        clients: numbers of the clients.
        batch_size: rows per sample; 0 for all rows of the client (the exact local gradient). At most 1 is
            used if the clients of the problem have a single row.
        noise: additive noise or ``None``.
        noise_width: number of elements of a sample's noise.
        hosted: positions of the clients that this rank hosts. Default: all clients.
        kept: maximum size in bytes of the data kept on the device, except those of the selected members.
            Default: the data of all hosted clients are loaded at the start.
        sampling, drop_last: how rows are drawn, see :class:`~mpifed.core.noise.OracleOptions`.

    Raises:
        ContractError: data, or the first generated sample, are not finite.

    Attributes:
        numbers: number of samples that each client has used in this round, ``[clients]``.
        selection: how the method selects the samples of this round: "counted" by ``oracle.sample()``,
            "numbered" by ``oracle.sample(number=k)``, "" before the first sample.
        has_addresses: whether samples have addresses, for dropout or for augmentation.
        permutes: whether rows are drawn without replacement.
        generates_samples: whether the problem generates its samples.
        stacks_full_batches: whether all clients have full batches of one size, which are evaluated together.
    """

    stacks_full_batches = _copies_draws = False

    def __init__(
        self,
        problem: Problem,
        clients,
        seed: int,
        *,
        batch_size: int,
        noise,
        noise_width: int,
        dtype,
        device,
        hosted: slice = slice(None),
        kept: int | None = None,
        sampling: str = "with_replacement",
        drop_last: bool = False,
    ):
        self.permutes, self.drop_last = sampling == "without_replacement", drop_last
        self.problem, self.seed, self.noise = problem, seed, noise
        self.batch_size = minibatch_rows(problem, batch_size)
        self.clients = np.asarray(clients, dtype=np.int64)
        self.dtype, self.device = dtype, torch.device(device)
        self.width = noise_width
        source = user_problem(problem)
        network: Any = getattr(source, "model", None)
        augments = source.augment is not None
        self.has_addresses = augments or getattr(network, "has_dropout", False)
        if hasattr(network, "place"):
            network.place(self.device, dtype)
        self._hosted = hosted
        self._load = functools.partial(to_device_as, device=self.device, dtype=dtype)
        self._store = ClientData(problem, self.clients, self._load, hosted, kept)
        self.sizes, self.offsets = self._store.sizes, self._store.offsets
        self._row_bytes = self._store.row_bytes
        self.generates_samples, self._numbers_per_sample = False, self.batch_size
        self._reset()
        if len(self.clients):
            self._draw_first_sample()

    @property
    def data(self) -> Columns:
        """The rows of the loaded clients, by column."""
        return self._store.columns

    def loaded(self) -> np.ndarray:
        """Return the positions of the clients whose data are on the device."""
        return np.flatnonzero(self._store.is_loaded)

    def hosted_sizes(self) -> np.ndarray:
        """Return the number of rows of each client that this rank hosts."""
        sizes, clients = self.sizes[self._hosted].copy(), self.clients[self._hosted]
        if self.data:
            missing = ~self._store.is_loaded[self._hosted]
            sizes[missing] = sizes_of(self.problem, clients[missing])
        return sizes

    def batches_per_epoch(self, positions: np.ndarray, size: int | None = None) -> np.ndarray:
        """Return the number of minibatches per epoch of the clients at ``positions``, ``[C]``.

        Args:
            size: number of rows; default: the batch size.
        """
        size = self.batch_size if size is None else size
        return batches_per_epoch(self.sizes[positions], size, self.drop_last)

    def shortest_batches(self, sizes: np.ndarray) -> np.ndarray:
        """Return the rows of the shortest minibatch of clients with these numbers of rows, ``[C]``."""
        if not self.permutes:
            return np.full_like(sizes, self.batch_size)
        return shortest_batch(sizes, self.batch_size, self.drop_last)

    @property
    def _constant(self) -> bool:
        """Whether samples that use all data of a client are the same in every round."""
        return (
            self.noise is None and not self.has_addresses and (bool(self.data) or not self.generates_samples)
        )

    def copy(self) -> Sampler:
        """Return a sampler with the same data, for evaluations that do not affect the samples of the run."""
        other = copy.copy(self)
        other._reset()
        return other

    def _reset(self) -> None:
        """Start round 0 with an empty cache, and with all clients if their data are loaded."""
        self._cache, self._expected = _BlockCache(), {"sample": 1, "normal": 1}
        self.members = np.arange(len(self.clients) if self._store.is_complete else 0)
        self._version = self._store.version
        self.numbers, self.normals = np.zeros((len(self.clients), 2), dtype=np.int64).T
        self._selected: list[np.ndarray] = [self.members[:0]]
        self.begin_round(0)

    def _draw_first_sample(self) -> None:
        """Draw the first sample, so that errors of ``draw`` are raised at once."""
        stream = Stream(self.seed, "sample", self.clients, 0, 1)
        drawn = self.problem.draw(stream, 1 if self.data else self.batch_size)
        if drawn is None:
            return
        again = self.problem.draw(stream, 1 if self.data else self.batch_size) or ()
        # Arrays that the problem keeps would change when it writes to them for the next samples.
        self._copies_draws = any(map(np.may_share_memory, map(np.asarray, drawn), map(np.asarray, again)))
        for number, array in enumerate(map(self._from_numpy, drawn)):
            self._numbers_per_sample = max(self._numbers_per_sample, array[:1].numel())
            if index := first_non_finite(array):
                raise ContractError(
                    f"{type(self.problem).__name__}: draw() has {array[index].item()} in array {number} for "
                    f"client {self.clients[index[0]]}, at {list(index[2:])}: expected finite numbers"
                )
        self.generates_samples = True

    def _on_device(self, stream: Stream) -> Stream:
        """Return the stream, or on a GPU its equivalent that draws there."""
        return DeviceStream(stream, self.device) if self.device.type == "cuda" else stream

    def _from_numpy(self, array: np.ndarray) -> torch.Tensor:
        array = np.array(array, order="C") if self._copies_draws else np.ascontiguousarray(array)
        return self._load(array)

    def begin_round(self, r: int) -> None:
        """Start round ``r``, in which as many samples are expected as in the previous round."""
        selected = np.concatenate(self._selected)  # the others, of which there may be many more, have none
        for counter, used in (("sample", self.numbers), ("normal", self.normals)):
            if most := used[selected].max(initial=0):
                self._expected[counter] = int(most)
            used[selected] = 0
        self.round, self.selection, self._selected = r, "", [self.members]
        self._cache.end_round()

    def select_members(self, members: np.ndarray) -> None:
        """Select the clients at positions ``members``, and load their data."""
        same = np.array_equal(members, self.members)
        if not self._store.is_complete:
            self._store.require(members)
        if not same or self._version != self._store.version:
            self.members, self._version = members, self._store.version
            self._selected.append(members)
            self._cache.clear()

    def expect_selection(self, selection: str) -> None:
        """Record how the method selects a sample.

        Raises:
            ContractError: other samples of this round were selected in the other way.
        """
        if self.selection not in ("", selection):
            raise ContractError(
                "the samples of a round are either counted, oracle.sample(), or numbered, "
                "oracle.sample(number=k): do not use both"
            )
        self.selection = selection

    def samples(
        self, k, rows: slice, *, round: int | None = None, size: int | None = None, of: str = ""
    ) -> list[Sample]:
        """Return sample ``k`` of the group ``members[rows]``, and the following samples gathered with it.

        Args:
            k: number of the sample, or one number per client ``[C]``.
            round: default: the current round.
            size: number of rows; default: the batch size.
            of: "g" or "f", the function of a composition; only for problems that generate their samples.
        """
        key = (
            self.round if round is None else round,
            self.batch_size if size is None else minibatch_rows(self.problem, size),
            of if self.generates_samples else "",
        )
        if not isinstance(k, int):
            return self._samples(key, rows, k)
        if not key[1] and self._constant:
            return [self.full_sample(rows)] * max(1, self._expected["sample"] - k)
        block = self._cache.find(self._gathered_name(key, rows), key[0], rows, k, k)
        if block is None:
            block = self._gather(key, rows, k)
        return block.of_group(rows)[k - block.numbers.start :]

    @staticmethod
    def _gathered_name(key: _Key, rows: slice) -> tuple:
        return "gathered", rows.stop - rows.start, *key[1:]

    def _gather(self, key: _Key, rows: slice, k: int) -> _Block:
        """Gather the rows of a group's samples from number ``k``.

        If clients are looped over, the samples of the next clients are gathered, too.
        """
        numbers = self._numbers_gathered_with(key, rows, k)
        count, stop = len(numbers), rows.stop
        if rows.stop - rows.start == 1 and self.selection == "counted" and not self._uses_full_batches(key):
            clients = self._samples_per_gather(key) // count
            same = self.numbers[self.members[rows.start + 1 : rows.start + clients]] == k
            stop += same.size if same.all() else int(same.argmin())
        samples = self._samples(key, slice(rows.start, stop), numbers, per_client=stop > rows.stop)
        groups = [samples[first : first + count] for first in range(0, len(samples), count)]
        block = _Block(range(key[0], key[0] + 1), range(rows.start, stop), numbers, groups)
        return self._cache.store(self._gathered_name(key, rows), block)

    def _numbers_gathered_with(self, key: _Key, rows: slice, k: int) -> range:
        """Return the numbers of a group's samples that are gathered together, from ``k``."""
        if self.selection == "numbered":
            return range(k, k + 1)
        count = self._samples_per_gather(key) // (rows.stop - rows.start)
        return range(k, max(k + 1, min(k + count, self._expected["sample"])))

    def _samples_per_gather(self, key: _Key) -> int:
        """Return the maximum number of samples of one client that one gather, and one draw, computes."""
        _, size, _ = key
        count = MAX_GATHERED[self.device.type] // max(1, size * self._row_bytes)
        return count if self.noise is None else min(count, MAX_DRAWN // max(1, self.width))

    def _samples(
        self, key: _Key, rows: slice, numbers: SampleNumbers, per_client: bool = False
    ) -> list[Sample]:
        """Return samples of ``members[rows]``.

        Args:
            numbers: a range, or a single number per client ``[C]``.
            per_client: return separate samples for each client, client by client, instead of samples of the
                group.
        """
        round, _, _ = key

        def samples_first(array: torch.Tensor) -> torch.Tensor:
            """Reshape ``[C, count, ...]`` or ``[C, ...]`` to ``[samples, clients, ...]``."""
            if not isinstance(numbers, range):
                return array.unsqueeze(0)
            return array.flatten(0, 1).unsqueeze(1) if per_client else array.transpose(0, 1)

        count = len(numbers) if isinstance(numbers, range) else 1
        clients = rows.stop - rows.start
        count, clients = (count * clients, 1) if per_client else (count, clients)
        batches: Sequence[Any] = [None] * count
        single, noise, addresses, lengths = batches, batches, batches, batches
        if self._uses_full_batches(key):
            full = self.full_sample(rows)
            batches, single = [full.batch] * count, [full.single] * count
        else:
            columns = self._columns(key, rows, numbers, samples_first)
            if clients > 1:
                batches = _unbind_columns(columns, count)
            else:
                single = _unbind_columns([column[:, 0] for column in columns], count)
            if self.permutes:
                sizes = samples_first(torch.from_numpy(self._batch_rows(key[1], rows, numbers))).numpy()
                if clients > 1:
                    lengths = [*sizes]
                else:
                    single = [tuple(c[:size] for c in batch) for batch, size in zip(single, sizes[:, 0])]
        if self.noise is not None:
            of_package = type(self.noise) in NOISES.values()

            def draw(stream: Stream, members: np.ndarray) -> tuple[torch.Tensor]:
                if getattr(self.noise, "on_device", False):
                    stream = self._on_device(stream)
                values = self._load(self.noise(stream, self.width))
                return (values if of_package else values.clone(),)  # a user may keep and change the array

            # A user's distribution may depend on the number of the round.
            drawn = self._drawn(
                ("noise",), round, rows, numbers, self.width, draw, several_rounds=of_package
            )[0]
            noise = samples_first(drawn).unbind()
        if self.has_addresses:
            addresses = samples_first(self._addresses(round, rows, numbers)).unbind()
        return list(map(Sample, batches, noise, addresses, single, lengths))

    def _uses_full_batches(self, key: _Key) -> bool:
        """Return whether a sample consists of all data of a client."""
        return not key[1] and (bool(self.data) or not self.generates_samples)

    def _addresses(self, round: int, rows: slice, numbers: SampleNumbers) -> torch.Tensor:
        """Return the addresses of samples: ``[C, count, 3]`` for a range of numbers, otherwise ``[C, 3]``."""
        clients = self.clients[self.members[rows]]
        if isinstance(numbers, range):
            address = np.broadcast_arrays(np.asarray(numbers), np.int64(round), clients[:, None])
        else:
            address = np.broadcast_arrays(numbers, np.int64(round), clients)
        return to_device(np.stack(address, axis=-1), self.device)

    def _columns(
        self,
        key: _Key,
        rows: slice,
        numbers: SampleNumbers,
        samples_first: Callable[[torch.Tensor], torch.Tensor],
    ) -> list[torch.Tensor]:
        """Return the columns of the minibatches, ``[samples, clients, b, ...]``."""
        round, size, of = key

        def draw(stream: Stream, members: np.ndarray) -> tuple[torch.Tensor, ...]:
            if self.generates_samples:
                stream.of = of
                return tuple(map(self._from_numpy, self.problem.draw(stream, size) or ()))
            if self.permutes:
                chosen = self._permuted_rows(stream, members, size) + self.offsets[members, None, None]
                return (to_device(chosen, self.device),)
            if len(members) * stream.count * size >= DRAWN_ON_DEVICE:
                stream = self._on_device(stream)
            return (self._draw_rows(stream, members, size),)

        drawn = self._drawn(
            ("sample", size, of), round, rows, numbers, max(size, self._numbers_per_sample), draw,
            splittable=not self.generates_samples, several_rounds=not self.generates_samples,
        )  # fmt: skip
        if self.generates_samples:
            return list(map(samples_first, drawn))
        chosen = samples_first(drawn[0])  # makes the rows of a sample adjacent
        flat = chosen.reshape(-1)
        return [column.index_select(0, flat).view(*chosen.shape, *column.shape[1:]) for column in self.data]

    def _draw_rows(self, stream: Stream, members: np.ndarray, size: int) -> torch.Tensor:
        """Return the row numbers of minibatches, uniform in the strata, ``[members, count, size]``."""
        first, drawn = self.offsets[members], []
        strata = user_problem(self.problem).strata
        for rows, number in strata(stream.clients, size) if strata else [(self.sizes[members], size)]:
            numbers = to_device(stream.integers(rows, number), self.device)
            drawn.append(numbers + to_device(first, self.device)[:, None, None])
            first = first + rows
        return torch.cat(drawn, dim=-1) if strata else drawn[0]

    def _permuted_rows(self, stream: Stream, members: np.ndarray, size: int) -> np.ndarray:
        """Return the row numbers of samples drawn without replacement, int64 ``[members, count, size]``.

        A short minibatch is filled up with copies of a row.
        """
        rows, batches = self.sizes[members], self.batches_per_epoch(members, size)[:, None]
        epoch, batch = np.divmod(np.arange(stream.first, stream.first + stream.count), batches)
        counts = epoch[:, -1] - epoch[:, 0] + 1
        starts = np.cumsum(counts) - counts
        numbers = np.arange(counts.sum()) - np.repeat(starts - epoch[:, 0], counts)
        address = np.broadcast_to(stream.round, len(members)), stream.clients, rows
        round, client, lengths = (np.repeat(part, counts) for part in address)
        permuted = permutations(self.seed, "permutation", client, round, numbers, lengths)
        ends = np.cumsum(lengths)
        place = batch[..., None] * size + np.arange(size)
        first = (ends - lengths)[starts[:, None] + epoch - epoch[:, :1]]
        return permuted[first[..., None] + np.minimum(place, rows[:, None, None] - 1)]

    def _batch_rows(self, size: int, rows: slice, numbers: SampleNumbers) -> np.ndarray:
        """Return the rows of samples drawn without replacement, ``[C, count]`` or ``[C]`` as ``numbers``."""
        members = self.members[rows]
        sizes, batches = self.sizes[members], self.batches_per_epoch(members, size)
        if isinstance(numbers, range):
            sizes, batches = sizes[:, None], batches[:, None]
        return np.minimum(size, sizes - np.asarray(numbers) % batches * size)

    def _drawn(
        self,
        name: tuple,
        round: int,
        rows: slice,
        numbers: SampleNumbers,
        width: int,
        draw: Callable[[Stream, np.ndarray], tuple[torch.Tensor, ...]],
        *,
        splittable: bool = True,
        several_rounds: bool = False,
    ) -> list[torch.Tensor]:
        """Return the draws of samples of the group ``members[rows]``.

        If they are not in the cache, all samples that the round is expected to need are drawn, for as many
        members as the limit :data:`MAX_DRAWN` allows.

        Args:
            name: the purpose of the stream, and what determines the shape of a draw.
            numbers: numbers of the samples.
            width: number of random numbers per sample.
            draw: computes tensors ``[members, count, ...]`` from a stream and the members' positions on this
                rank.
            splittable: whether the samples of a round may be drawn in several calls; false for a
                problem's ``draw``, which is called for all expected samples of a round at once.
            several_rounds: whether ``draw`` accepts a stream of several rounds.

        Returns:
            Tensors ``[C, count, ...]`` for a range of numbers, ``[C, ...]`` for one number per client.
        """
        if isinstance(numbers, range):
            low, high = numbers[0], numbers[-1]
        else:
            low, high = int(numbers.min()), int(numbers.max())
        if block := self._cache.find(name, round, rows, low, high):
            return block.drawn(round, rows, numbers)
        counter = "normal" if name[0] == "normal" else "sample"  # minibatches and noise are equally frequent
        if high >= self._expected[counter]:
            self._expected[counter] = max(2 * self._expected[counter], high + 1)
        first, count, group = 0, self._expected[counter], rows.stop - rows.start
        if splittable and group * count * width > MAX_DRAWN:
            first, count = low, max(high + 1 - low, min(count - low, MAX_DRAWN // (group * width)))
        members = self.members[rows.start : rows.start + max(group, MAX_DRAWN // max(1, count * width))]
        # Before the second round, the number of samples per round is unknown.
        same = several_rounds and round > 1 and len(self.members) == len(self.clients)
        rounds = max(1, MIN_DRAWN // (len(members) * count * width)) if same else 1
        tiled, round_of = np.tile(members, rounds), np.repeat(np.arange(round, round + rounds), len(members))
        stream = Stream(
            self.seed, name[0], self.clients[tiled], round_of if rounds > 1 else round, count, first
        )
        values = [array.unflatten(0, (rounds, len(members))) for array in draw(stream, tiled)]
        block = _Block(
            range(round, round + rounds),
            range(rows.start, rows.start + len(members)),
            range(first, first + count),
            values,
        )
        return self._cache.store(name, block).drawn(round, rows, numbers)

    def normal(self, k, rows: slice, size: int) -> torch.Tensor:
        """Return standard normal vector ``k`` of the round, ``[C, size]``, independent of all samples.

        ``k`` is one number, or one per client ``[C]``.
        """
        numbers: SampleNumbers = range(k, k + 1) if isinstance(k, int) else k

        def draw(stream: Stream, members: np.ndarray) -> tuple[torch.Tensor]:
            return (self._load(self._on_device(stream).normal(size)),)

        drawn = self._drawn(("normal", size), self.round, rows, numbers, size, draw, several_rounds=True)[0]
        return drawn[:, 0] if isinstance(k, int) else drawn

    def client_batches(self, rows: slice) -> Iterator[tuple[torch.Tensor, ...]]:
        """Iterate over the full batches of the clients ``members[rows]``, tensors ``[n, ...]``.

        Raises:
            ContractError: the problem generates samples and has no full batch.
        """
        if self.generates_samples and not self.data:
            raise ContractError(
                f"{type(self.problem).__name__} generates samples, so it has no oracle.full_batch: define "
                "full_batch(client) if the exact gradient is known, or use oracle.sample()"
            )
        for member in self.members[rows]:
            block = slice(self.offsets[member], self.offsets[member] + self.sizes[member])
            yield tuple(column[block] for column in self.data)

    def full_sample(self, rows: slice) -> Sample:
        """Return all data of a group's clients as a sample without noise, which is kept for all steps."""
        group = rows.stop - rows.start
        name = ("full", group)
        block = self._cache.find(name, 0, rows, 0, 0)
        if block is None and group == 1:
            samples = [Sample(single=columns) for columns in self.client_batches(slice(None))]
            block = _Block(_EVERY_ROUND, range(len(samples)), range(1), samples)
            self._cache.store(name, block)
        elif block is None:  # replaces that of another group, whose data may be copies
            block = _Block(_EVERY_ROUND, range(rows.start, rows.stop), range(1), [self._stacked(rows)])
            self._cache.store(name, block)
        return block.of_group(rows)

    def _stacked(self, rows: slice) -> Sample:
        """Return all data of several clients with equal numbers of rows, views of adjacent clients' data."""
        members = self.members[rows]
        sizes, start = self.sizes[members], self.offsets[members[0]]
        if (np.diff(members) == 1).all() and (sizes == sizes[0]).all():
            block = slice(start, start + sizes.sum())
            return Sample(
                tuple(column[block].unflatten(0, (len(members), int(sizes[0]))) for column in self.data)
            )
        return Sample(tuple(map(torch.stack, zip(*self.client_batches(rows)))))
