"""Averages of messages over the cohort: two reductions with one interface.

A reduction owns the buffers of a message: the rows that client functions fill, this rank's partial sums, and
the mean. It gets the memory of the partial sums and the mean from its :mod:`mpifed.parallel.exchange`; all
other objects have views. A rank adds a row to its partial sums as a binary counter carries, along a fixed
binary tree over the clients' numbers (:mod:`mpifed.parallel.tree`). So it keeps about log2 of its clients
partial sums, which do not depend on the size of groups.

``fused``: the rank's partial sums are added, then one Allreduce over the ranks in one persistent buffer. With
one client per rank the client's row *is* that buffer, so nothing is packed. Bits depend on the number of
ranks and on the transport.

``exact``: the partial sums of all ranks are added along the tree. The same bits for every number of ranks and
every placement.

Both carry a control value with the message, so that decisions of single ranks (time is up) reach all ranks
without another collective.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from mpifed.parallel.placement import Cohort, Placement
from mpifed.parallel.transport import Transport
from mpifed.parallel.tree import Sums

__all__ = ["FusedReduction", "ExactReduction", "REDUCTIONS"]

#: Bytes of rows that are added up at a time: what a core's cache holds.
BLOCK = 2**18
#: Numbers that are not finite are found and named by the run; what numpy says of their sums is no news.
_silently = np.errstate(all="ignore")


class _Reduction:
    """Buffers for one phase's message, on the transport's device.

    Members of the cohort come in groups: :meth:`begin`, then :meth:`add` after each group that has filled
    its rows, then :meth:`finish`, which is collective.

    Args:
        capacity: rows that are filled at a time.

    Attributes:
        rows: the messages of a group, ``[capacity, size]``, filled before :meth:`add`.
        mean: the averaged message ``[size]``, valid after :meth:`finish`.
    """

    rows: torch.Tensor
    mean: torch.Tensor

    def _make(self, sums: list[torch.Tensor], capacity: int, hosted: int) -> None:
        """Buffers for the messages of a group, and ``sums`` for what they add up to, ``[size]`` each.

        Args:
            hosted: clients on this rank. A lone client's row is the sum.
        """
        first, on_cpu = sums[0], sums[0].device.type == "cpu"
        self._lone = hosted == capacity == 1
        self.rows = first.view(1, -1) if self._lone else first.new_zeros(max(capacity, 1), len(first))
        self._sums: list[Any] = [one.numpy() for one in sums] if on_cpu else sums
        self._rows: Any = self.rows.numpy() if on_cpu else self.rows
        self._between = self._rows[:0]
        self._plus: Callable[..., Any] = np.add if on_cpu else torch.add

    def begin(self, cohort: Cohort) -> None:
        """Begin a sum over ``cohort``."""
        self._cohort = cohort

    def _weigh(self, members: slice) -> None:
        """Multiply the rows of the group by their weights."""
        weights = self._cohort.local_weights
        if weights is not None:
            rows = self.rows[: members.stop - members.start]
            rows *= torch.as_tensor(weights[members], dtype=rows.dtype, device=rows.device)[:, None]

    @_silently
    def add(self, members: slice) -> None:
        """Add the messages of ``cohort.local[members]``, in the first rows of ``rows``, which may change."""
        self._weigh(members)
        if self._lone:
            return
        count, size = members.stop - members.start, len(self._sums[0])
        levels, pushed = self._cohort.tree.steps(members)
        step = max(2**13, BLOCK // self.mean.itemsize // count)
        between = self._room(sum(one for one in levels if type(one) is int), min(step, size))
        for start in range(0, size, step):
            columns = slice(start, min(start + step, size))
            rows = self._levelled(levels, self._rows[:count, columns], between[:, : columns.stop - start])
            self._carry(pushed, rows, [one[columns] for one in self._sums])

    def _room(self, count: int, width: int):
        """Rows for the sums of pairs, ``[count, width]``; kept, since new pages cost as much as the sums."""
        if len(self._between) < count or self._between.shape[1] != width:
            room = self.rows.new_empty(count, width)
            self._between = room.numpy() if self._plus is np.add else room
        return self._between

    def _levelled(self, levels, rows, between):
        """Add up ``rows`` among themselves; the rows that hold the sums."""
        used = 0
        for pairs in levels:
            if type(pairs) is int:
                sums = between[used : used + pairs]
                self._plus(rows[0 : 2 * pairs : 2], rows[1 : 2 * pairs : 2], out=sums)
                rows, used = sums, used + pairs
            elif isinstance(pairs[0], slice):
                self._plus(rows[pairs[0]], rows[pairs[1]], out=rows[pairs[0]])
            else:
                rows[pairs[0]] = rows[pairs[0]] + rows[pairs[1]]
        return rows

    def _carry(self, pushed, rows, sums) -> None:
        """Add what the group has summed to the partial sums, as a binary counter carries."""
        for place, held, joined in pushed:
            value = rows[place]
            for number in range(held - 1, held - joined, -1):
                self._plus(value, sums[number], out=value)
            if joined:
                self._plus(sums[held - joined], value, out=sums[held - joined])
            else:
                sums[held][...] = value


class FusedReduction(_Reduction):
    """The rank's partial sums are added, then one Allreduce."""

    def __init__(self, transport: Transport, capacity: int, placement: Placement, size: int, dtype):
        self._exchange, self._rank = transport.fused_exchange(size, dtype), transport.comm.rank
        self.mean, own = map(torch.as_tensor, (self._exchange.result, self._exchange.slots[0]))
        others = own.new_zeros(placement.most_sums(self._rank, self._rank + 1) - 1, size)
        self._make([own, *others], capacity, placement.counts[self._rank])
        self._of_ranks = Sums.of_ranks(transport.nodes)

    @_silently
    def finish(self, control: float = 0.0) -> float:
        """Average over the cohort. Collective.

        Args:
            control: a value of this rank.

        Returns:
            The sum of the ranks' control values, the same on all of them.
        """
        if not len(self._cohort.local):
            self._sums[0][...] = 0
        elif not self._lone:  # a lone row is the sum: it needs no tree
            for other in self._sums[1 : self._cohort.tree.sums.partials[self._rank]]:
                self._plus(self._sums[0], other, out=self._sums[0])
        return self._exchange.finish(self._of_ranks, self._cohort.total, control)


class ExactReduction(_Reduction):
    """A sum along the tree over the clients' numbers: the same bits on every layout."""

    def __init__(self, transport: Transport, capacity: int, placement: Placement, size: int, dtype):
        self._exchange, self._rank = transport.exact_exchange(placement, size, dtype), transport.comm.rank
        self._result, self._host = map(torch.as_tensor, (self._exchange.result, self._exchange.slots))
        self.mean, self._slots = self._result.to(transport.device), self._host.to(transport.device)
        self._make(list(self._slots), capacity, placement.counts[self._rank])

    @_silently
    def finish(self, control: float = 0.0) -> float:
        """As :meth:`FusedReduction.finish`."""
        sums = self._cohort.tree.sums
        if self.mean is not self._result:
            own = slice(0, sums.partials[self._rank])
            self._host[own].copy_(self._slots[own])
        controls = self._exchange.finish(sums, self._cohort.total, control)
        if self.mean is not self._result:
            self.mean.copy_(self._result)
        return controls


REDUCTIONS = {"fused": FusedReduction, "exact": ExactReduction}
