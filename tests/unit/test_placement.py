"""Placements by cost: every client once and in order, with the smallest possible largest cost of a rank."""

from itertools import combinations, combinations_with_replacement
from types import SimpleNamespace

import drawn
import numpy as np
import pytest
from games import Game
from hypothesis import given
from hypothesis import strategies as st

from mpifed.algorithms import LocalSGDA
from mpifed.core.noise import OracleOptions
from mpifed.core.problem import Game as AsGame
from mpifed.core.problem import user_problem
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.parallel.options import ParallelOptions
from mpifed.parallel.placement import Cohort, Placement
from mpifed.simulation.setup import place_clients

METHOD = LocalSGDA(q=1, eta_x=0.1, eta_y=0.1)
#: Costs with many ties, and costs of any size.
COSTS = st.integers(1, 4) | st.integers(1, 10**12)


def largest(costs: list[int], edges) -> int:
    return max(sum(costs[first:last]) for first, last in zip(edges, edges[1:]))


@given(st.lists(COSTS, min_size=1, max_size=60), st.integers(1, 80))
def test_each_client_once_in_order_and_not_worse_than_even(costs, ranks):
    balanced, even = Placement.balanced(np.array(costs), ranks), Placement(len(costs), ranks)
    for placement in (balanced, even):
        blocks = [placement.clients_of(rank).tolist() for rank in range(ranks)]
        assert sum(blocks, []) == list(range(len(costs)))
        assert placement.counts == [len(block) for block in blocks]
        hosts = [rank for rank, block in enumerate(blocks) for _ in block]
        assert [placement.rank_of(client) for client in range(len(costs))] == hosts
    assert min(balanced.counts) >= (len(costs) >= ranks) and max(even.counts) - min(even.counts) <= 1
    assert largest(costs, balanced.edges) <= largest(costs, even.edges)


@given(st.lists(COSTS, min_size=1, max_size=8), st.integers(1, 5))
def test_optimal_among_all_contiguous_placements(costs, ranks):
    inner = combinations_with_replacement(range(len(costs) + 1), ranks - 1)
    best = min(largest(costs, (0, *edges, len(costs))) for edges in inner)
    assert largest(costs, Placement.balanced(np.array(costs), ranks).edges) == best


@pytest.mark.parametrize("highest", [4, 12])
def test_blocks_of_optimal_placements_start_at_equal_shares(highest):
    """Of all optimal placements without empty blocks: for one rank after another, the block that starts
    closest to its share of the total cost. One expensive client leaves many optimal placements."""
    rng = np.random.default_rng(highest)
    for _ in range(200):
        ranks = int(rng.integers(2, 6))
        costs = rng.integers(1, 4, rng.integers(ranks + 1, 11)).tolist()
        costs[rng.integers(len(costs))] = highest
        every = [(0, *edges, len(costs)) for edges in combinations(range(1, len(costs)), ranks - 1)]
        least = min(largest(costs, edges) for edges in every)
        left = [edges for edges in every if largest(costs, edges) == least]
        for rank in range(1, ranks):
            share = next(k for k in range(len(costs) + 1) if ranks * sum(costs[:k]) >= rank * sum(costs))
            nearest = min((edges[rank] for edges in left), key=lambda edge: abs(edge - share))
            left = [edges for edges in left if edges[rank] == nearest]
        assert [tuple(Placement.balanced(np.array(costs), ranks).edges)] == left, (costs, ranks)


def test_ten_thousand_clients_on_four_thousand_ranks():
    """A lower bound of any placement: the mean cost of a rank, and the highest cost of a client."""
    costs = 1 + np.random.default_rng(0).pareto(1.5, 10_000) * 1e6
    costs = costs.astype(np.int64)
    placement = Placement.balanced(costs, 4096)
    loads = np.add.reduceat(costs, placement.edges[:-1])
    bound = max(costs.max(), -(-costs.sum() // 4096))
    assert loads.max() == bound and min(placement.counts) >= 1


@pytest.mark.parametrize("problem, settings, counts", [
    (Game(clients=3), dict(batch_size=0, placement="balanced"), [2, 1]),  # 5, 6 and 7 rows
    (Game(clients=3), dict(batch_size=0), [1, 2]),
    (Game(clients=3), dict(batch_size=4, placement="balanced"), [1, 2]),
    (AsGame(Game(clients=3)), dict(batch_size=0, placement="balanced"), [2, 1]),
])  # fmt: skip
def test_balanced_counts_the_rows_of_full_batches(problem, settings, counts):
    comm = SerialComm()
    comm.size = 2
    user_problem(problem).prepare(1)
    run = ParallelOptions(placement=settings.pop("placement", "even"))
    config = SimpleNamespace(algorithm=METHOD, run=run, oracle=OracleOptions(**settings))
    assert place_clients(config, problem, comm).counts == counts


def test_an_error_in_client_size_is_reported():
    class Lost(Game):
        def client_size(self, client):
            raise ValueError("no such file")

    config = SimpleNamespace(
        algorithm=METHOD, run=ParallelOptions(placement="balanced"), oracle=OracleOptions(batch_size=0)
    )
    with pytest.raises(CollectiveError, match="Lost.client_size.*no such file"):
        place_clients(config, Lost(clients=3), SerialComm())


@given(st.integers(1, 20), st.integers(1, 6), st.data())
def test_ranks_share_a_cohort(clients, ranks, data):
    size, r = data.draw(st.integers(1, clients)), data.draw(st.integers(1, 100))
    members = drawn.cohort(3, r, clients, size)
    assert len(set(members.tolist())) == size and members.min() >= 0 and members.max() < clients
    placement, weights = Placement(clients, ranks), np.arange(1.0, clients + 1)
    cohorts = [Cohort(members, placement, rank, weights) for rank in range(ranks)]
    local = np.concatenate([placement.clients_of(rank)[cohort.local] for rank, cohort in enumerate(cohorts)])
    np.testing.assert_array_equal(local, members)
    for cohort in cohorts:
        assert cohort.total == (members + 1).sum() and cohort.counts.sum() == size


def test_cohorts_are_uniform():
    """2,000 rounds of 3 of 7: the number of rounds per client has mean 857 and standard deviation 22."""
    counts = np.bincount(np.concatenate([drawn.cohort(0, r, 7, 3) for r in range(2000)]), minlength=7)
    assert (abs(counts - 6000 / 7) < 110).all()
