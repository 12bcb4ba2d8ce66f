"""The tree of ``exact`` sums by its definition, and ranks that are threads of one process."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from mpifed.parallel import exchange
from mpifed.parallel.comm import SerialComm
from mpifed.parallel.placement import Cohort, Placement
from mpifed.parallel.reduction import ExactReduction
from mpifed.parallel.transport import Host


def average_by_definition(
    members: np.ndarray, values: torch.Tensor, weights: np.ndarray | None = None
) -> torch.Tensor:
    """The value of the root divided by the total weight. A node is the sum of its children with members."""
    leaves = {int(one): values[one] for one in members}
    if weights is not None:
        leaves = {one: row * torch.tensor(weights[one], dtype=row.dtype) for one, row in leaves.items()}

    def value(level: int, index: int):
        if level == 0:
            return leaves.get(index)
        if not any(index << level <= one < (index + 1) << level for one in leaves):
            return None
        left, right = value(level - 1, 2 * index), value(level - 1, 2 * index + 1)
        return right if left is None else left if right is None else left + right

    total = float(len(members)) if weights is None else float(weights[members].sum())
    return value(int(members[-1]).bit_length(), 0) / total


class Threads:
    """Shared state of the ranks of a job."""

    def __init__(self, size: int):
        self.barrier, self.values = threading.Barrier(size, timeout=60), [None] * size

    def gather(self, rank: int, value) -> list:
        """The values of all ranks."""
        self.values[rank] = value
        self.barrier.wait()
        values = list(self.values)
        self.barrier.wait()
        return values


class ThreadComm(SerialComm):
    """One rank of a job in one process."""

    def __init__(self, rank: int, threads: Threads):
        self.rank, self.size, self._threads = rank, len(threads.values), threads

    def alltoallv(self, send, counts, receive, from_counts):
        ends, flat = np.cumsum([0, *counts]), send.reshape(-1).copy()
        assert len(flat) == ends[-1] and receive.size == sum(from_counts)
        parts = [flat[a:b] for a, b in zip(ends, ends[1:])]
        received = [theirs[self.rank] for theirs in self._threads.gather(self.rank, parts)]
        assert [len(part) for part in received] == list(from_counts)
        receive.reshape(-1)[...] = np.concatenate(received)

    def allgatherv(self, send, receive, counts):
        received = self._threads.gather(self.rank, send.reshape(-1).copy())
        assert [len(part) for part in received] == list(counts)
        receive.reshape(-1)[...] = np.concatenate(received)


def average_on_ranks(
    placement: Placement,
    members: np.ndarray,
    values: torch.Tensor,
    group: int,
    weights: np.ndarray | None = None,
    *,
    small: int = exchange.SMALL,
    chunk: int = exchange.CHUNK,
    overwrite: bool = False,
) -> list[torch.Tensor]:
    """The average of each rank; two rounds must agree. ``overwrite`` the rows after they have been added."""
    before = exchange.SMALL, exchange.CHUNK
    exchange.SMALL, exchange.CHUNK = small, chunk
    threads = Threads(placement.ranks)

    def rank(number: int) -> torch.Tensor:
        transport = Host(ThreadComm(number, threads), torch.device("cpu"))
        reduction = ExactReduction(transport, group, placement, values.shape[1], values.dtype)
        cohort, means = Cohort(members, placement, number, weights), []
        mine = placement.clients_of(number)[cohort.local]
        for _ in range(2):
            reduction.begin(cohort)
            for start in range(0, len(mine), group):
                part = mine[start : start + group]
                reduction.rows[: len(part)] = values[part]
                reduction.add(slice(start, start + len(part)))
                if overwrite and placement.counts[number] > 1:  # the row of a single client is the sum
                    reduction.rows.fill_(float("nan"))
            assert reduction.finish(number + 1.0) == placement.ranks * (placement.ranks + 1) / 2
            means.append(reduction.mean.clone())
        assert torch.equal(*means)
        return means[0]

    try:
        with ThreadPoolExecutor(placement.ranks) as pool:
            return list(pool.map(rank, range(placement.ranks)))
    finally:
        exchange.SMALL, exchange.CHUNK = before
