"""Averages of messages over the cohort, by two reductions with the same interface.

A reduction owns the buffers of a message: the rows that client functions fill, the partial sums of this rank,
and the mean; other objects have views. The memory of partial sums and mean comes from
:mod:`mpifed.parallel.exchange`. A rank adds its rows along a fixed binary tree over the clients' numbers
(:mod:`mpifed.parallel.tree`), like a binary counter. It stores about log2 of the number of its clients
partial sums, which do not depend on the size of groups.

``fused``: the partial sums of a rank are added, then summed over the ranks by one Allreduce in a persistent
buffer. With one client per rank, the client's row is that buffer, and nothing is copied. The results depend
on the number of ranks and on the transport.

``exact``: the partial sums of all ranks are added along the tree. The results are bitwise identical for every
number and placement of ranks.

Both send a control value with the message, so that a decision of one rank (the time limit is near) reaches
all ranks without another collective.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from mpifed.core.device import to_device
from mpifed.core.numerics import all_finite
from mpifed.parallel.devices import wait_for
from mpifed.parallel.placement import Cohort, Placement
from mpifed.parallel.transport import Transport
from mpifed.parallel.tree import PartialSums

__all__ = ["FusedReduction", "ExactReduction", "REDUCTIONS"]

#: Bytes of rows that are added at a time, so that they stay in the cache of a core.
BLOCK = 2**18
#: Suppresses NumPy's warnings of non-finite values, which the run reports itself.
_silently = np.errstate(all="ignore")


class _Reduction:
    """Buffers for the message of one phase, on the transport's device.

    Call :meth:`begin`, then :meth:`add` for each group of members that has filled its rows, then
    :meth:`finish`, which is collective.

    Args:
        capacity: maximum number of rows of a group.

    Attributes:
        rows: the messages of a group, ``[capacity, size]``, to be filled before :meth:`add`.
        mean: the averaged message, ``[size]``, valid after :meth:`finish`.
    """

    rows: torch.Tensor
    mean: torch.Tensor

    def _allocate(self, sums: list[torch.Tensor], capacity: int, clients: int) -> None:
        """Create the buffers of a group and store ``sums``, ``[size]`` each, the memory of partial sums.

        Args:
            clients: number of clients that this rank may step. If it is 1, the client's row is the sum.
        """
        first, self._on_cpu = sums[0], sums[0].device.type == "cpu"
        self._one_client = clients == capacity == 1
        self.rows = first.view(1, -1) if self._one_client else first.new_zeros(max(capacity, 1), len(first))
        self._sums: list[Any] = [partial.numpy() for partial in sums] if self._on_cpu else sums
        self._rows: Any = self.rows.numpy() if self._on_cpu else self.rows
        self._scratch = self._rows[:0]
        self._add_arrays: Callable[..., Any] = np.add if self._on_cpu else torch.add

    def begin(self, cohort: Cohort) -> None:
        """Start a sum over ``cohort``."""
        self._cohort = cohort

    def mean_is_finite(self) -> bool | None:
        """Return whether all elements of the mean are finite; ``None`` if the host does not know and had to
        wait for a GPU."""
        raise NotImplementedError

    def _apply_weights(self, members: slice) -> None:
        """Multiply the rows of a group by their weights."""
        weights = self._cohort.local_weights
        if weights is not None:
            rows = self.rows[: members.stop - members.start]
            rows *= to_device(weights[members], rows.device, rows.dtype)[:, None]

    @_silently
    def add(self, members: slice) -> None:
        """Add the messages of ``cohort.local[members]``, the first rows of ``rows``, which may change."""
        self._apply_weights(members)
        if self._one_client:
            return
        count, size = members.stop - members.start, len(self._sums[0])
        levels, new_sums = self._cohort.tree.steps(members)
        step = max(2**13, BLOCK // self.mean.itemsize // count)
        scratch = self._workspace(sum(pairs for pairs in levels if type(pairs) is int), min(step, size))
        for start in range(0, size, step):
            columns = slice(start, min(start + step, size))
            rows = self._add_levels(levels, self._rows[:count, columns], scratch[:, : columns.stop - start])
            self._store(new_sums, rows, [partial[columns] for partial in self._sums])

    def _workspace(self, count: int, width: int):
        """Return memory for sums of pairs, ``[count, width]``, which is reused to avoid page faults."""
        if len(self._scratch) < count or self._scratch.shape[1] != width:
            memory = self.rows.new_empty(count, width)
            self._scratch = memory.numpy() if self._on_cpu else memory
        return self._scratch

    def _add_levels(self, levels, rows, scratch):
        """Add ``rows`` to each other; return the rows with the sums."""
        used = 0
        for pairs in levels:
            if type(pairs) is int:
                sums = scratch[used : used + pairs]
                self._add_arrays(rows[0 : 2 * pairs : 2], rows[1 : 2 * pairs : 2], out=sums)
                rows, used = sums, used + pairs
                continue
            left, right = map(self._index, pairs)
            if isinstance(left, slice):
                self._add_arrays(rows[left], rows[right], out=rows[left])
            else:
                rows[left] = rows[left] + rows[right]
        return rows

    def _index(self, rows: slice | np.ndarray):
        """Return an index of rows on the device of the buffers."""
        return rows if self._on_cpu or isinstance(rows, slice) else to_device(rows, self.rows.device)

    def _store(self, new_sums, rows, sums) -> None:
        """Add the sums of a group to the partial sums, see :meth:`mpifed.parallel.tree.Tree.steps`."""
        for row, first, stored in new_sums:
            value = rows[row]
            for number in range(stored - 1, first, -1):
                self._add_arrays(value, sums[number], out=value)
            if first < stored:
                self._add_arrays(sums[first], value, out=sums[first])
            else:
                sums[first][...] = value


class FusedReduction(_Reduction):
    """Adds the partial sums of each rank, then sums over the ranks by one Allreduce."""

    def __init__(self, transport: Transport, capacity: int, placement: Placement, size: int, dtype):
        self._exchange, self._rank = transport.fused_exchange(size, dtype), transport.comm.rank
        self.mean, own = map(torch.as_tensor, (self._exchange.result, self._exchange.slots[0]))
        others = own.new_zeros(placement.max_partial_sums(self._rank, self._rank + 1) - 1, size)
        self._allocate([own, *others], capacity, len(placement.reach(self._rank)))
        self._of_ranks = PartialSums.of_ranks(transport.nodes)

    @_silently
    def finish(self, control: float = 0.0) -> float:
        """Average over the cohort. Collective.

        Args:
            control: a value of this rank.

        Returns:
            The sum of the ranks' control values.
        """
        if not len(self._cohort.local):
            self._sums[0][...] = 0
        elif not self._one_client:
            for other in self._sums[1 : self._cohort.tree.sums.counts[self._rank]]:
                self._add_arrays(self._sums[0], other, out=self._sums[0])
        return self._exchange.finish(self._of_ranks, self._cohort.total, control)

    def mean_is_finite(self) -> bool | None:
        checksum = self._exchange.checksum
        if checksum is None and not self._on_cpu:
            return None
        if checksum is not None and math.isfinite(checksum / self._cohort.total):
            return True
        return all_finite(self.mean)


class ExactReduction(_Reduction):
    """Sums along the tree over the clients' numbers, bitwise identical for every placement of ranks."""

    def __init__(self, transport: Transport, capacity: int, placement: Placement, size: int, dtype):
        self._exchange, self._rank = transport.exact_exchange(placement, size, dtype), transport.comm.rank
        self._transport, self._result = transport, torch.as_tensor(self._exchange.result)
        self.mean, slots = self._result.to(transport.device), torch.as_tensor(self._exchange.slots)
        if transport.device.type == "cuda":
            # Only copies of whole rows of pinned memory are queued: the device has rows of the same length.
            self._host = torch.as_tensor(self._exchange.rows)
            self._rows_on_device = self._host.to(transport.device)
            slots = self._rows_on_device[:, :size]
        self._allocate(list(slots), capacity, len(placement.reach(self._rank)))

    @_silently
    def finish(self, control: float = 0.0) -> float:
        """See :meth:`FusedReduction.finish`."""
        sums, transport = self._cohort.tree.sums, self._transport
        if self.mean is self._result:
            return self._exchange.finish(sums, self._cohort.total, control)
        own = slice(0, sums.counts[self._rank])
        with transport.queued():
            self._host[own].copy_(self._rows_on_device[own], non_blocking=True)
        wait_for(transport.device)  # earlier copies from this memory are done, too
        transport.waited()
        controls = self._exchange.finish(sums, self._cohort.total, control)
        with transport.queued():
            self.mean.copy_(self._result, non_blocking=True)
        return controls

    def mean_is_finite(self) -> bool:
        return all_finite(self._result)  # in host memory, so a GPU is not waited for


REDUCTIONS = {"fused": FusedReduction, "exact": ExactReduction}
