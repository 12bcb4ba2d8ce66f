"""The tree of ``exact`` sums: compared with its definition for many placements, and its memory."""

import itertools
from itertools import combinations_with_replacement
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from trees import ThreadComm, average_by_definition, average_on_ranks

from mpifed.parallel import exchange, transport
from mpifed.parallel.exchange import MessageExchange
from mpifed.parallel.placement import Cohort, Placement
from mpifed.parallel.tree import PartialSums, Tree, max_partial_sums, plan_one_by_one

RNG = np.random.default_rng(5)


def rows(clients: int, size: int, dtype=torch.float32) -> torch.Tensor:
    """Values of very different magnitude, so that the order of additions changes the sum."""
    scale = 10.0 ** RNG.integers(-3, 4, (clients, 1))
    return torch.from_numpy(RNG.standard_normal((clients, size)) * scale).to(dtype)


@pytest.mark.parametrize("ranks, most", [(1, 70), (2, 17), (3, 9)])
@pytest.mark.parametrize("group", [1, 3, 70])
def test_every_contiguous_placement(ranks, most, group):
    for clients in range(1, most + 1):
        values, members = rows(clients, 3), np.arange(clients)
        expected = average_by_definition(members, values)
        for inner in combinations_with_replacement(range(clients + 1), ranks - 1):
            placement = Placement(clients, ranks, [0, *inner, clients])
            for average in average_on_ranks(placement, members, values, group):
                assert torch.equal(average, expected), (clients, inner)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weighted", [False, True])
def test_random_cohorts_placements_and_groups(dtype, weighted):
    """Up to five ranks, some without clients; exchanges by one or two messages, with and without chunks."""
    for _ in range(150):
        clients, ranks = int(RNG.integers(1, 71)), int(RNG.integers(1, 6))
        inner = np.sort(RNG.integers(0, clients + 1, ranks - 1)).tolist()
        members = np.sort(RNG.choice(clients, RNG.integers(1, clients + 1), replace=False))
        weights = RNG.random(clients) if weighted else None
        values, group = rows(clients, 9, dtype), int(RNG.choice([1, 2, 3, 7, 70]))
        expected = average_by_definition(members, values, weights)
        placement = Placement(clients, ranks, [0, *inner, clients])
        for small, chunk in ((2**15, 2**24), (0, 2**24), (0, 40), (2**15, 40)):
            sizes = dict(small=small, chunk=chunk)
            for average in average_on_ranks(placement, members, values, group, weights, **sizes):
                assert torch.equal(average, expected), (inner, members, group, sizes)


@pytest.mark.parametrize("ranks", [3, 6, 12])
def test_the_number_of_exchanges_does_not_grow_with_the_ranks(ranks, monkeypatch):
    """A chunk has as many columns as a rank has space for its own partial sums and for its share of all."""
    sizes, exchange_slices = [], ThreadComm.alltoallv

    def counted(comm, send, counts, receive, from_counts):
        sizes.append((send.size, receive.size))
        exchange_slices(comm, send, counts, receive, from_counts)

    monkeypatch.setattr(ThreadComm, "alltoallv", counted)
    values = rows(ranks, 100)
    for average in average_on_ranks(Placement(ranks, ranks), np.arange(ranks), values, 1, small=0, chunk=40):
        assert torch.equal(average, average_by_definition(np.arange(ranks), values))
    assert len(sizes) == 2 * ranks * 3  # rounds, ranks, chunks of 40, 40 and 20 columns
    assert max(map(max, sizes)) <= 40 + ranks  # shares of columns are rounded up


@pytest.mark.parametrize("nodes", [(0, 2, 4), (0, 1, 4), (0, 1, 2, 5), (0, 3, 5)])
def test_sums_within_and_between_nodes_give_the_root(nodes):
    for _ in range(100):
        clients, ranks = int(RNG.integers(1, 71)), nodes[-1]
        edges = [0, *np.sort(RNG.integers(0, clients + 1, ranks - 1)).tolist(), clients]
        members = np.sort(RNG.choice(clients, RNG.integers(1, clients + 1), replace=False))
        values, placement = rows(clients, 2), Placement(clients, ranks, edges)
        sums = Cohort(members, placement, 0).tree.sums
        parts = [values[0] * 0 + RNG.standard_normal() for _ in range(sum(sums.counts))]
        whole, left, ends = evaluate(sums.all, parts)[0], [], np.cumsum([0, *sums.counts])
        for first, last in zip(nodes, nodes[1:]):
            left += evaluate(sums.within(first, last), parts[ends[first] : ends[last]])
            assert sum(sums.between(nodes).counts[: nodes.index(last)]) == len(left)
        assert torch.equal(evaluate(sums.between(nodes).all, left)[0], whole)


def evaluate(plan, parts):
    """The final values of a plan of ``tree.plan_one_by_one``."""
    additions, final = plan
    values = dict(enumerate(parts))
    for out, left, right in additions:
        values[out] = values[left] + values[right]
    return [values[place] for place in final] if parts else []


def test_fused_sums_add_ranks_in_order_first_within_nodes():
    assert PartialSums.of_ranks((0, 4)).all[0] == [(-1, 0, 1), (-1, -1, 2), (-1, -1, 3)]
    assert PartialSums.of_ranks((0, 2, 4)).all[0] == [(-1, 0, 1), (-2, 2, 3), (-1, -1, -2)]
    assert plan_one_by_one([64, 64]) == ([], [0])


@pytest.mark.parametrize("first, last", [(0, 1), (0, 64), (0, 10_000), (5, 5), (1, 128), (313, 2500), (7, 9)])
def test_a_rank_stores_few_partial_sums(first, last):
    """At most as many as are allocated, and at most 2 log2 of the number of its clients."""
    most = max_partial_sums(first, last)
    assert most <= max(1, 2 * np.log2(max(1, last - first + 1)))
    clients = last + 3
    for members in (np.arange(clients), np.sort(RNG.choice(clients, clients // 2 + 1, replace=False))):
        inside = (members >= first) & (members < last)
        counts = np.array([(members < first).sum(), inside.sum(), (members >= last).sum()])
        tree, stored = Tree(members, counts, 1), 0
        for row in range(counts[1]):
            for _, number, before in tree.steps(slice(row, row + 1))[1]:
                assert before == stored
                stored = number + 1
                assert stored <= most
        assert stored == tree.sums.counts[1]


def test_aligned_blocks_have_one_partial_sum_per_rank():
    assert Cohort(np.arange(64), Placement(64, 4), 2).tree.sums.counts == (1, 1, 1, 1)
    assert Cohort(np.arange(1000), Placement(1000, 2), 0).tree.sums.counts == (6, 3)


def test_groups_are_added_in_few_steps():
    """Ten levels for a thousand rows; the plan is cached."""
    cohort = Cohort(np.arange(1000), Placement(1000, 1), 0)
    levels, new_sums = cohort.tree.steps(slice(0, 1000))
    assert len(levels) <= 10 and new_sums == [(0, 0, 0)]
    assert cohort.tree.steps(slice(0, 1000))[0] is levels


def test_rows_may_be_overwritten_between_groups():
    placement, values, members = Placement(6, 1), rows(6, 4), np.arange(6)
    averages = average_on_ranks(placement, members, values, 4, overwrite=True)
    assert torch.equal(averages[0], average_by_definition(members, values))


def test_bytes_and_start_times_of_exchanges_by_two_messages(monkeypatch):
    """3 ranks with 1, 2 and 2 partial sums of 10 numbers. First, a rank sends its partial sums and receives 3
    or 4 columns of all five. Then it sends the sum of these columns and a control value, and receives those
    of all ranks.
    """
    clock, counted = itertools.count(), []

    class Counted(MessageExchange):
        def __init__(self, comm, rows, result, count):
            super().__init__(comm, rows, result, lambda start, size: counted.append((comm.rank, start, size)))

    monkeypatch.setattr(transport, "MessageExchange", Counted)
    monkeypatch.setattr(exchange, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    average_on_ranks(Placement(5, 3, [0, 1, 3, 5]), np.arange(5), rows(5, 10), 2, small=0)
    for rank, (sums, columns) in enumerate([(1, 3), (2, 3), (2, 4)]):
        sizes = [size for owner, _, size in counted if owner == rank]
        first, second = 4 * (sums * 10 + 5 * columns), 4 * (columns + 1 + 10 + 3)
        assert sizes == 2 * [first, second]  # two rounds
    assert sorted(start for _, start, _ in counted) == [*range(len(counted))]
