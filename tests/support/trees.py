"""The tree of ``exact`` by its definition, and ranks that live in one process, a thread each."""

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


def mean_of(members: np.ndarray, values: torch.Tensor, weights: np.ndarray | None = None) -> torch.Tensor:
    """The root's value over the total: a node's value is its left child's plus its right one's, and a child
    without a member is skipped."""
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
    """What the ranks of one job share."""

    def __init__(self, size: int):
        self.barrier, self.left = threading.Barrier(size, timeout=60), [None] * size

    def meet(self, rank: int, mine) -> list:
        """What all ranks have brought."""
        self.left[rank] = mine
        self.barrier.wait()
        all_of_them = list(self.left)
        self.barrier.wait()
        return all_of_them


class ThreadComm(SerialComm):
    """One rank of several in one process."""

    def __init__(self, rank: int, threads: Threads):
        self.rank, self.size, self._threads = rank, len(threads.left), threads

    def alltoallv(self, send, counts, receive, from_counts):
        ends, brought = np.cumsum([0, *counts]), send.reshape(-1).copy()
        assert len(brought) == ends[-1] and receive.size == sum(from_counts)
        pieces = [brought[a:b] for a, b in zip(ends, ends[1:])]
        came = [theirs[self.rank] for theirs in self._threads.meet(self.rank, pieces)]
        assert [len(one) for one in came] == list(from_counts)
        receive.reshape(-1)[...] = np.concatenate(came)

    def allgatherv(self, send, receive, counts):
        came = self._threads.meet(self.rank, send.reshape(-1).copy())
        assert [len(one) for one in came] == list(counts)
        receive.reshape(-1)[...] = np.concatenate(came)


def fill(rows: torch.Tensor) -> None:
    """Spoil rows that have been added."""
    rows.fill_(float("nan"))


def together(
    placement: Placement,
    members: np.ndarray,
    values: torch.Tensor,
    group: int,
    weights: np.ndarray | None = None,
    *,
    small: int = exchange.SMALL,
    chunk: int = exchange.CHUNK,
    spoil=lambda rows: None,
) -> list[torch.Tensor]:
    """The average on every rank, of two rounds that must agree."""
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
                if placement.counts[number] > 1:  # a lone row is the sum
                    spoil(reduction.rows)
            assert reduction.finish(number + 1.0) == placement.ranks * (placement.ranks + 1) / 2
            means.append(reduction.mean.clone())
        assert torch.equal(*means)
        return means[0]

    try:
        with ThreadPoolExecutor(placement.ranks) as pool:
            return list(pool.map(rank, range(placement.ranks)))
    finally:
        exchange.SMALL, exchange.CHUNK = before
