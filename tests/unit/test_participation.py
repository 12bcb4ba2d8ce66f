"""Participation: availability, sampling of cohorts, dropouts, traces, and invalid settings."""

from __future__ import annotations

import itertools

import drawn
import numpy as np
import pytest
from games import Game
from hypothesis import given, settings
from hypothesis import strategies as st

from mpifed import Config
from mpifed.algorithms import DRFA, FGDA, LSGD, LocalSGDA
from mpifed.config.job import ConfigError
from mpifed.core.participation import Markov, Participation, inclusion_probabilities, random_order, read_trace
from mpifed.core.streams import Stream
from mpifed.problems import QuadraticMixture
from mpifed.simulation.coordinator import Participants
from mpifed.simulation.settings import SimulationSettings
from mpifed.simulation.setup import read_files

SEED = 7


def participants(clients=5, seed=SEED, **settings) -> Participants:
    problem = Game(clients=clients)
    problem.prepare(seed)
    return Participants(Participation(**settings), seed, problem)


def selected(clients=5, rounds=6, seed=SEED, **settings) -> list[list[int]]:
    """The clients that are selected in rounds 1, 2, ..."""
    drawn = participants(clients, seed, **settings)
    cohorts = [drawn.selected(r, 0) for r in range(1, rounds + 1)]
    return [list(range(clients)) if cohort is None else cohort.tolist() for cohort in cohorts]


def within(counts, chances, draws):
    """Counts of independent draws, or of negatively dependent ones, against their probabilities: five
    standard deviations, which a right sampler leaves once in a million and a half."""
    assert (np.abs(counts - draws * chances) <= 5 * np.sqrt(draws * chances * (1 - chances)) + 1e-9).all()


def test_default_availability_is_uniform():
    for size in (1, 3, 5):
        wanted = [drawn.cohort(SEED, r, 5, size).tolist() for r in range(1, 7)]
        assert selected(cohort=size) == selected(cohort=size, availability="uniform") == wanted


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_set_of_clients_is_an_equally_probable_cohort(size):
    cohorts = [tuple(cohort) for cohort in selected(rounds=3000, cohort=size)]
    sets = list(itertools.combinations(range(5), size))
    counts = np.array([cohorts.count(one) for one in sets])
    assert counts.sum() == 3000
    within(counts, np.full(len(sets), 1 / len(sets)), 3000)


@settings(deadline=None, max_examples=30)
@given(n=st.integers(1, 40), first=st.integers(1, 50), r=st.integers(1, 9))
def test_a_random_order_has_every_number_once(n, first, r):
    order = np.concatenate(list(random_order(Stream(SEED, "order", round=r), n, first)))
    assert sorted(order) == list(range(n))


@pytest.mark.parametrize("model", [
    "uniform",
    {"name": "bernoulli", "probability": 0.5},
    {"name": "markov", "p_off": 0.5, "p_on": 0.25},
    {"name": "cyclic", "blocks": 1000},
])  # fmt: skip
def test_a_cohort_takes_the_time_and_the_memory_of_its_members(model):
    """An array over 10^12 clients would not fit."""
    drawn = Participants(Participation(cohort=6, availability=model), SEED, Game(clients=10**12))
    for r in (1, 2, 30):
        members = drawn.selected(r, 0)
        assert len(set(members)) == 6 and list(members) == sorted(members)
        assert 0 <= members[0] and members[-1] < 10**12


def test_bernoulli_frequencies():
    chances = (0.0, 0.2, 0.5, 0.9, 1.0)
    cohorts = selected(rounds=4000, availability={"name": "bernoulli", "probability": chances})
    within(np.bincount(np.concatenate(cohorts), minlength=5), np.array(chances), 4000)
    both = sum(1 in cohort and 2 in cohort for cohort in cohorts)
    within(np.array([both]), np.array([0.1]), 4000)  # clients are independent
    assert selected(availability={"name": "bernoulli", "probability": 1}) == [[0, 1, 2, 3, 4]] * 6


@settings(deadline=None, max_examples=30)
@given(clients=st.integers(1, 12), data=st.data())
def test_cyclic_visits_each_client_once_per_cycle(clients, data):
    blocks = data.draw(st.integers(1, clients))
    cohorts = selected(clients, 2 * blocks, availability={"name": "cyclic", "blocks": blocks})
    assert cohorts[:blocks] == cohorts[blocks:]
    assert sum(cohorts[:blocks], []) == list(range(clients))
    assert max(map(len, cohorts)) - min(map(len, cohorts)) <= 1


def test_a_cohort_is_sampled_from_the_clients_that_are_on():
    """Those that the model without a cohort lists, also if fewer than the cohort are on."""
    for model in ({"name": "bernoulli", "probability": 0.4}, {"name": "markov", "p_off": 0.3, "p_on": 0.2}):
        everyone, some = selected(40, 30, availability=model), selected(40, 30, availability=model, cohort=18)
        assert {len(cohort) < 18 for cohort in some} == {True, False}
        for on, cohort in zip(everyone, some):
            assert set(cohort) <= set(on) and len(cohort) == min(18, len(on))


def test_cohort_is_sampled_from_available_clients():
    drawn = participants(availability={"name": "cyclic", "blocks": 2}, cohort=2)
    for r in range(1, 40):
        some = drawn.selected(r, 0).tolist()
        assert len(some) == 2 and set(some) <= ({0, 1} if r % 2 else {2, 3, 4})
    counts = np.bincount(np.concatenate([drawn.selected(r, 0) for r in range(2, 4002, 2)]), minlength=5)
    within(counts[2:], np.full(3, 2 / 3), 2000)


@settings(deadline=None, max_examples=60)
@given(weights=st.lists(st.floats(0.01, 100), min_size=1, max_size=9), data=st.data())
def test_inclusion_probabilities_by_their_definition(weights, data):
    size = data.draw(st.integers(1, len(weights)))
    chances, weights = inclusion_probabilities(np.array(weights), size), np.array(weights)
    np.testing.assert_allclose(chances.sum(), size, rtol=1e-12)  # N additions
    assert ((chances > 0) & (chances <= 1)).all()
    free = chances < 1
    if free.any():
        factor = chances[free] / weights[free]
        np.testing.assert_allclose(factor, factor[0], rtol=1e-12)
        assert (factor[0] * weights[~free] >= 1 - 1e-12).all()


@pytest.mark.parametrize("size", [1, 2, 4, 5])
def test_weighted_cohorts_have_their_size_and_their_inclusion_probabilities(size):
    weights = (1.0, 2.0, 3.0, 10.0, 0.5)
    cohorts = selected(rounds=3000, cohort=size, availability={"name": "weighted", "weights": weights})
    assert all(len(set(cohort)) == size for cohort in cohorts)
    counts = np.bincount(np.concatenate(cohorts), minlength=5)
    within(counts, inclusion_probabilities(np.array(weights), size), 3000)


def test_weights_by_number_of_samples():
    weights = {"name": "weighted", "weights": [5, 6, 7, 8, 9]}  # client k has 5 + k rows
    by_samples = selected(rounds=20, cohort=2, availability="weighted")
    assert by_samples == selected(rounds=20, cohort=2, availability=weights)


def chain(p_off, p_on, rounds, clients=5):
    """The states by their definition, one client and round after another, bool ``[rounds, N]``."""
    states = []
    for r in range(1, rounds + 1):
        draws = Stream(SEED, "markov", np.arange(clients), r).uniform()[:, 0]
        for client, u in enumerate(draws):
            stationary = p_on[client] / (p_on[client] + p_off[client])
            chance = stationary if r == 1 else 1 - p_off[client] if states[-1][client] else p_on[client]
            draws[client] = u < chance
        states.append(draws.astype(bool))
    return np.array(states)


#: Slow and fast chains, one that takes turns, one that is always on and one that is off for good.
P_OFF, P_ON = (0.02, 0.3, 1.0, 0.0, 0.9), (0.03, 0.4, 1.0, 0.2, 0.8)


def test_markov_states_agree_with_the_definition():
    wanted, law = chain(P_OFF, P_ON, 60), {"name": "markov", "p_off": P_OFF, "p_on": P_ON}
    cohorts = selected(rounds=60, availability=law)
    assert cohorts == [np.flatnonzero(states).tolist() for states in wanted]
    for r in (1, 2, 7, 33, 60):  # the first request of a resumed run
        assert participants(availability=law).selected(r, 0).tolist() == cohorts[r - 1]
    back = participants(availability=law)
    assert [back.selected(r, 0).tolist() for r in range(60, 0, -1)] == cohorts[::-1]


def test_markov_frequencies_and_its_stationary_start():
    law = Markov(p_off=0.2, p_on=0.1)
    starts = [participants(seed=seed, availability=law).selected(1, 0) for seed in range(400)]
    within(np.array([sum(map(len, starts))]), np.array([1 / 3]), 5 * 400)
    states = np.zeros((3000, 5), dtype=bool)
    for row, available in zip(states, selected(rounds=3000, availability=law)):
        row[available] = True
    before, after = states[:-1], states[1:]
    within(np.array([(before & ~after).sum()]), np.array([0.2]), before.sum())
    within(np.array([(~before & after).sum()]), np.array([0.1]), (~before).sum())


def test_dropouts_are_drawn_by_client_round_and_phase():
    drawn, everyone = participants(dropout=[0.0, 0.3, 0.3, 0.9, 1.0]), np.arange(5)
    every = [(r, phase) for r in range(1, 1001) for phase in (0, 1)]
    answers = {address: drawn.participating(*address, everyone) for address in every}
    counts = np.bincount(np.concatenate(list(answers.values())), minlength=5)
    within(counts, np.array([1, 0.7, 0.7, 0.1, 0]), 2000)
    twice = sum(1 in answers[r, 0] and 1 in answers[r, 1] for r in range(1, 1001))
    within(np.array([twice]), np.array([0.49]), 1000)
    for r in range(1, 50):  # independent of the other selected clients
        some = np.array([1, 3])
        assert drawn.participating(r, 0, some).tolist() == [k for k in answers[r, 0] if k in some]


def test_first_clients_that_report_form_the_cohort():
    drawn = participants(cohort=2, oversample=4, dropout=0.4)
    counts, sizes = np.zeros(5), []
    for r in range(1, 1001):
        some = drawn.selected(r, 0)
        answering = drawn.participating(r, 0, some)
        left = participants(cohort=4, dropout=0.4).participating(r, 0, some) if r < 50 else None
        assert len(some) == 4 and set(answering) <= set(some)
        assert left is None or (len(answering) == min(2, len(left)) and set(answering) <= set(left))
        counts[answering] += 1
        sizes.append(len(answering))
    assert set(sizes) == {0, 1, 2}  # 0.4^4 of 1000 rounds are without an answer
    within(counts, np.full(5, np.mean(sizes) / 5), 1000)
    assert drawn.server_waits(4, 1) and not drawn.server_waits(4, 2) and not drawn.server_waits(2, 2)


def test_availability_round_trips_through_the_table(tmp_path):
    (tmp_path / "trace.csv").write_text("round,client\n1,0\n")
    laws = [
        {"name": "uniform"},
        {"name": "weighted", "weights": [1.0, 2.0, 3.0], "unbiased": True},
        {"name": "bernoulli", "probability": [0.5, 0.5, 1.0], "unbiased": False},
        {"name": "cyclic", "blocks": 2},
        {"name": "markov", "p_off": 0.1, "p_on": [0.1, 0.2, 0.3]},
        {"name": "trace", "file": str(tmp_path / "trace.csv")},
    ]
    for law in laws:
        config = job(availability=law, cohort=2 if law["name"] == "weighted" else None)
        assert config.table()["participation"]["availability"] == law
        assert Participation(**config.table()["participation"]) == config.participation
    assert job().table()["participation"] == {"cohort": None, "weights": "uniform"}  # as before laws


@pytest.mark.parametrize("cohorts, lines, expected", [
    (1, "", "expected the columns round,client"),
    (1, "rounds,client\n1,0", "did you mean 'round'"),
    (1, "client,round\n0,1", "expected the columns round,client"),
    (1, "round,client,x\n1,0,2", "expected the columns round,client"),
    (1, "1,0\n2,0", "expected the columns round,client"),
    (1, "round,client\n\n", "has no rows"),
    (1, "round,client\n1,0\n2,5", "line 3: expected a client from 0 to 4, got 5"),
    (1, "round,client\n1,-1", "line 2: expected a client from 0 to 4, got -1"),
    (1, "round,client\n\n0,1", "line 3: rounds are numbered from 1, got 0"),
    (1, "round,client\n1;0", "line 2: expected two integers"),
    (1, "round,client\n1,0.5", "line 2: expected two integers"),
    (1, "round,client\n1,2,3", "line 2: expected two integers"),
    (1, "round,client\n2,1\n1,3\n2,1", "line 4: duplicate entry: client 1, round 2"),
    (2, "round,cohort,client\n1,0,0\n1,2,1", "line 3: a round of the method has 2 cohorts, .* got cohort 2"),
    (2, "round,cohort,client\n1,-1,0", "line 2: a round of the method has 2 cohorts, .* got cohort -1"),
    (2, "round,cohort,client\n1,0", "line 2: expected three integers, round,cohort,client, got '1,0'"),
    (2, "round,cohort,client\n1,a,0", "line 2: expected three integers"),
    (2, "round,cohort,client\n1,1,5", "line 2: expected a client from 0 to 4, got 5"),
    (2, "round,cohort,client\n1,1,2\n1,0,2\n1,1,2", "line 4: duplicate entry: client 2, round 1, cohort 1"),
    (2, "round,client,cohort\n1,0,0", "expected the columns round,client or round,cohort,client"),
    (2, "round,cohorts,client\n1,0,0", "did you mean 'cohort'"),
])  # fmt: skip
def test_invalid_traces_are_refused(tmp_path, cohorts, lines, expected):
    file = tmp_path / "trace.csv"
    file.write_text(lines)
    with pytest.raises(ValueError, match=expected):
        read_trace(str(file), 5, cohorts)


def test_trace_of_the_cohorts_of_a_round(tmp_path):
    """Rows in any order; cohorts that are not named are empty; without the column, all cohorts are equal."""
    file = tmp_path / "trace.csv"
    file.write_text("round,cohort,client\n3,1,4\n1,0,2\n3,1,0\n3,0,1\n1,1,2\n")
    law = {"name": "trace", "file": str(file)}
    problem = Game(clients=5)
    drawn = Participants(Participation(availability=law), SEED, problem, cohorts=2)
    cohorts = [[drawn.selected(r, number).tolist() for number in (0, 1)] for r in (1, 2, 3)]
    assert cohorts == [[[2], [2]], [[], []], [[1], [0, 4]]]
    method, mixture = DRFA(tau=2, eta=0.1, gamma=0.1), QuadraticMixture(clients=5)
    job = SimulationSettings(algorithm=method, problem=mixture, participation={"availability": law})
    assert read_files(job)["trace"].path == str(file)
    file.write_text("round,client\n1,3\n1,0\n")
    drawn = Participants(Participation(availability=law), SEED, problem, cohorts=2)
    assert [drawn.selected(1, number).tolist() for number in (0, 1)] == [[0, 3], [0, 3]]


def test_unreadable_traces_are_refused(tmp_path):
    with pytest.raises(OSError, match="cannot read the trace '.*nowhere.csv'"):
        read_trace(str(tmp_path / "nowhere.csv"), 5, 1)
    (tmp_path / "binary.csv").write_bytes(b"round,client\n\xff\xfe")
    with pytest.raises(ValueError, match="is not a text"):
        read_trace(str(tmp_path / "binary.csv"), 5, 1)


def test_a_trace_in_any_order_with_windows_lines(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_bytes(b"\xef\xbb\xbfround,client\r\n3,4\r\n1, 2\r\n3,0\r\n")
    assert selected(rounds=4, availability={"name": "trace", "file": str(file)}) == [[2], [], [0, 4], []]


def job(method=None, **participation):
    method = method or LocalSGDA(q=1, eta_x=0.1, eta_y=0.1)
    return Config(algorithm=method, problem=Game(clients=3), participation=participation)


REFUSED = [
    (dict(availability={"name": "bernoulli"}), "probability is missing"),
    (dict(availability={"name": "bernouli", "probability": 0.5}), "did you mean 'bernoulli'"),
    (dict(availability={"name": "bernoulli", "p": 0.5}), "has no setting 'p'"),
    (dict(availability={"name": "bernoulli", "probability": 1.5}), "probability from 0 to 1.*got 1.5"),
    (dict(availability={"name": "bernoulli", "probability": "often"}),
     "probability from 0 to 1.*got 'often'"),
    (dict(availability={"name": "bernoulli", "probability": [0.5, float("nan"), 1]}), "from 0 to 1.*got nan"),
    (dict(availability={"name": "bernoulli", "probability": []}), "from 0 to 1"),
    (dict(availability={"name": "bernoulli", "probability": [0.5, 0.5]}),
     "one per client for 3 clients, got 2"),
    (dict(availability={"name": "markov", "p_off": 0, "p_on": 0}), "p_off or p_on above 0"),
    (dict(availability={"name": "markov", "p_off": [0.1, 0.2], "p_on": 0.1}), "p_off: .* got 2"),
    (dict(availability={"name": "cyclic", "blocks": 4}), "expected at most 3, one per client, got 4"),
    (dict(availability={"name": "cyclic", "blocks": 0}), "greater than or equal to 1"),
    (dict(availability="weighted"), "set participation.cohort"),
    (dict(availability={"name": "weighted", "weights": 3.0}, cohort=1), "a list of positive weights"),
    (dict(availability={"name": "weighted", "weights": [1, 0, 2]}, cohort=1), "positive weights.*got 0"),
    (dict(availability={"name": "weighted", "weights": [1, 2]}, cohort=1), "got 2"),
    (dict(availability={"name": "weighted", "weights": [1e308, 1e308, 1]}, cohort=1), "a finite sum"),
    (dict(availability={"name": "bernoulli", "probability": [0, 1, 1], "unbiased": True}),
     "unbiased needs probabilities above 0"),
    (dict(availability={"name": "weighted", "unbiased": True}, cohort=1, dropout=0.1),
     "unknown with dropout"),
    (dict(availability={"name": "bernoulli", "probability": 0.5, "unbiased": True}, cohort=1),
     "unknown with cohort"),
    (dict(oversample=2), "needs a cohort"),
    (dict(oversample=2, cohort=3), "cohort of at most 2, got cohort = 3"),
    (dict(oversample=4, cohort=3), "participation.oversample = 4 is more than problem.clients = 3"),
    (dict(cohort=4), "participation.cohort = 4 is more than problem.clients = 3"),
    (dict(dropout=-0.1), "from 0 to 1.*got -0.1"),
    (dict(dropout=[0.1] * 4), "participation.dropout.*got 4"),
    (dict(availability={"name": "trace"}), "file is missing"),
]  # fmt: skip


@pytest.mark.parametrize("settings, expected", REFUSED, ids=lambda value: str(value)[:40])
def test_invalid_settings_are_refused(settings, expected):
    with pytest.raises(ConfigError, match=f"(?s){expected}"):
        job(**settings)


@pytest.mark.parametrize("settings", [
    dict(cohort=2),
    dict(dropout=0.1),
    dict(availability={"name": "bernoulli", "probability": [1, 1, 0.5]}),
    dict(availability={"name": "cyclic", "blocks": 2}),
    dict(availability={"name": "trace", "file": "trace.csv"}),
    dict(cohort=2, oversample=3),
], ids=str)  # fmt: skip
def test_methods_for_full_participation_refuse_partial_participation(settings):
    method = FGDA(q=2, gamma=0.01, lam=0.01)
    with pytest.raises(ConfigError, match="is defined for full participation only, .*, got participation"):
        job(method, **settings)
    with pytest.raises(ConfigError, match="because clients store x, y, w, v between rounds, got .*: leave"):
        job(method, **settings)
    with pytest.raises(ConfigError, match="LSGD is defined for full participation only, got .*: leave it"):
        job(LSGD(K=1, eta=0.1), **settings)
    job(method, availability={"name": "bernoulli", "probability": 1})  # equals full participation
    job(method, availability={"name": "cyclic", "blocks": 1}, dropout=0)


@pytest.mark.parametrize("law", [
    "uniform",
    {"name": "bernoulli", "probability": 0.5},
    {"name": "markov", "p_off": 0.5, "p_on": 0.5},
    {"name": "cyclic", "blocks": 4},
])  # fmt: skip
def test_settings_are_validated_before_arrays_over_clients_are_created(law):
    """It is the sum of memory that refuses it."""
    settings = Participation(availability=law, dropout=0.1)
    settings.expect_clients(10**15)
    assert settings.expected_reports(10**15) > 10**14 and settings.partial_setting(10**15)
    Participants(settings, SEED, Game(clients=10**15))


@pytest.mark.parametrize("settings, members", [
    (dict(), 10),
    (dict(cohort=3), 3),
    (dict(availability={"name": "bernoulli", "probability": 0.2}), 2),
    (dict(availability={"name": "cyclic", "blocks": 5}, dropout=0.5), 1),
    (dict(cohort=4, oversample=8, dropout=0.75), 2),
    (dict(availability={"name": "markov", "p_off": 0.3, "p_on": 0.3}, cohort=9), 5),
    (dict(availability={"name": "bernoulli", "probability": 0}), 1),
])  # fmt: skip
def test_expected_number_of_reporting_clients(settings, members):
    assert Participation(**settings).expected_reports(10) == members
