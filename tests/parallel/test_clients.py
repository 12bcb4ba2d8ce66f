"""Participation, dropouts and compression: plain loops, layouts, resumption and costs.

Tolerance 1e-10 in float64 for the reason given in ``test_references``.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from baselines import FIXED, Half, gradient_at, plugin
from games import DX, DY, Game, configuration, sizes, start_of, started, trace, trace_file
from oracles import prepared
from reference import compressed
from reference.local_sgda import local_sgda
from resumed import bits, iterates, resumed

from mpifed import Algorithm, Phase, Record, resume, run
from mpifed.algorithms import CDMAADA, SAGDA, CODAPlus, LocalSGDA, LocalSGDAPlus
from mpifed.core.noise import Gaussian
from mpifed.core.participation import Participation, inclusion_probabilities
from mpifed.core.records import within_round
from mpifed.core.streams import Stream
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.simulation.coordinator import Participants
from mpifed.simulation.simulation import NonFiniteError

pytestmark = pytest.mark.mpi

SEED, BATCH, NOISE, ROUNDS, CLIENTS = 1, 2, Gaussian(scale=0.3), 4, 5
METHOD = LocalSGDA(q=2, eta_x=0.05, eta_y=0.04)
STORED = SAGDA(K=2, eta_xl=0.05, eta_yl=0.04, variates="stored")

groups = pytest.mark.parametrize("group", [1, 2, "all"])


def job(out, method=METHOD, participation=None, message=None, clock=None, oracle=None, **changes):
    settings = dict(seed=SEED, rounds=ROUNDS, reduction="exact", watchdog=0, eval_every=10**6) | changes
    minimisation = type(method).__name__ == "FedAvg"
    sections = {
        "participation": participation or {},
        "message": message or {},
        "clock": clock,
        "oracle": oracle or {"batch_size": BATCH, "noise": NOISE},
        "record": ("x",) if minimisation else ("x", "y"),
    }
    problem = (Half if minimisation else Game)(clients=CLIENTS)
    return configuration(method, problem, out, sections=sections, **settings)


def dropped(k, r, phase, chance) -> bool:
    return Stream(SEED, "dropout", [k], r, first=phase).uniform()[0, 0] < chance


#: Settings of [participation], and the participating clients of each round.
LAWS = {
    "bernoulli": (
        {"availability": {"name": "bernoulli", "probability": 0.5}},
        lambda r: [k for k in range(5) if Stream(SEED, "bernoulli", [k], r).uniform()[0, 0] < 0.5],
    ),
    "cyclic": ({"availability": {"name": "cyclic", "blocks": 2}}, lambda r: [0, 1] if r % 2 else [2, 3, 4]),
    "dropout": ({"dropout": 0.4}, lambda r: [k for k in range(5) if not dropped(k, r, 0, 0.4)]),
}


@pytest.mark.dealt
@groups
@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("law", LAWS)
def test_plain_loops_over_participating_clients(comm, out, law, weights, group):
    settings, members = LAWS[law]
    config = job(out, participation=settings | {"weights": weights}, group=group, reduction="fused")
    path, _ = trace(config, comm)
    game, cohorts = prepared(Game(clients=CLIENTS), SEED), [members(r) for r in range(1, ROUNDS + 1)]
    assert all(cohorts) and len(set(map(tuple, cohorts))) > 1
    grad = gradient_at(game, SEED, BATCH, NOISE)
    wanted = local_sgda(
        lambda k, x, y, t: grad(k, x, y, ((t - 1) // 2 + 1, (t - 1) % 2)), CLIENTS, *start_of(game, SEED),
        q=2, rounds=ROUNDS, eta_x=lambda t: 0.05, eta_y=lambda t: 0.04, cohorts=cohorts,
        weights=sizes(game).tolist() if weights == "samples" else None,
    )  # fmt: skip
    wanted = np.array([torch.cat(point).numpy() for point in wanted])
    np.testing.assert_allclose(path, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.dealt
@groups
@pytest.mark.parametrize("by", ["weighted", "bernoulli"])
def test_unbiased_averages_divide_by_the_inclusion_probability(comm, out, by, group):
    """The model changes by Σ w_k / (π_k W) times the changes of the cohort; W is the weight of all
    clients."""
    laws = {
        "weighted": ({"cohort": 2, "availability": {"name": "weighted", "unbiased": True}}, None),
        "bernoulli": (
            {"availability": {"name": "bernoulli", "probability": [0.2, 0.9, 0.5, 1, 0.4], "unbiased": True}},
            np.array([0.2, 0.9, 0.5, 1, 0.4]),
        ),
    }
    settings, chances = laws[by]
    settings = settings | {"weights": "samples"}
    game = prepared(Game(clients=CLIENTS), SEED)
    weights, grad = sizes(game), gradient_at(game, SEED, BATCH, NOISE)
    chances = inclusion_probabilities(weights.astype(float), 2) if chances is None else chances
    drawn = Participants(Participation(**settings), SEED, game)
    path, _ = trace(job(out, participation=settings, group=group), comm)
    (x, y), wanted = start_of(game, SEED), []
    for r in range(1, ROUNDS + 1):
        step_x, step_y = 0, 0
        for k in drawn.selected(r, 0):
            own_x, own_y = x, y
            for j in range(2):
                gx, gy = grad(k, own_x, own_y, (r, j))
                own_x, own_y = own_x - 0.05 * gx, own_y + 0.04 * gy
            weight = weights[k] / chances[k] / weights.sum()
            step_x, step_y = step_x + weight * (own_x - x), step_y + weight * (own_y - y)
        x, y = x + step_x, y + step_y
        wanted.append(torch.cat([x, y]).numpy())
    np.testing.assert_allclose(path, wanted, rtol=1e-10, atol=1e-10)


@dataclass(frozen=True)
class Phases(Algorithm):
    """Three phases, the last with a new cohort, with a field within a round and one between rounds."""

    shared = Record(x="x", y="y")
    client = Record(g=within_round("x"), visits="scalar")

    @property
    def phases(self):
        message = Record(x="x")
        return (
            Phase(self.first, message),
            Phase(self.second, Record(y="y")),
            Phase(self.third, message, new_cohort=True),
        )

    def first(self, now, shared, client, message, oracle):
        client.g = oracle.grad(shared.x, shared.y, oracle.sample())[0]
        client.visits += 1
        message.x = shared.x - 0.1 * client.g * client.visits

    def second(self, now, shared, client, message, oracle):
        client.visits += 1
        gy = oracle.grad(shared.x, shared.y, oracle.sample())[1]
        message.y = shared.y + 0.1 * now.cohort_weight * gy + 0.01 * client.g[:, :DY] * client.visits

    def third(self, now, shared, client, message, oracle):
        message.x = shared.x - 0.1 * (1 + client.g) * oracle.grad(shared.x, shared.y, oracle.sample())[0]


@pytest.mark.dealt
@groups
@pytest.mark.parametrize("cohort", [None, 3])
def test_clients_that_drop_out_between_phases(comm, out, cohort, group):
    """A client that drops out is absent until the next new cohort, and its records do not change."""
    settings, chance = {"cohort": cohort, "dropout": 0.3}, 0.3
    path, _ = trace(job(out, Phases(), settings, rounds=6, group=group), comm)
    game = prepared(Game(clients=CLIENTS), SEED)
    grad, drawn = gradient_at(game, SEED, BATCH, NOISE), Participants(Participation(**settings), SEED, game)
    (x, y), visits, wanted, ends = start_of(game, SEED), [0] * CLIENTS, [], []

    def ask(r, phase, members):
        return [k for k in members if not dropped(k, r, phase, chance)]

    for r in range(1, 7):
        cohorts = [drawn.selected(r, number) for number in (0, 1)]
        cohorts = [range(CLIENTS) if one is None else one.tolist() for one in cohorts]
        members, number, g, new = ask(r, 0, cohorts[0]), dict.fromkeys(range(CLIENTS), 0), {}, []
        for k in members:
            g[k], visits[k], number[k] = grad(k, x, y, (r, 0))[0], visits[k] + 1, 1
            new.append(x - 0.1 * g[k] * visits[k])
        x, members, new = sum(new) / len(new), ask(r, 1, members), []
        ends.append(len(g) - len(members))
        for k in members:
            gy, visits[k], number[k] = grad(k, x, y, (r, 1))[1], visits[k] + 1, 2
            new.append(y + 0.1 * len(members) / CLIENTS * gy + 0.01 * g[k][:DY] * visits[k])
        if members:  # without clients, the rest of the round is omitted
            y, members = sum(new) / len(new), ask(r, 2, cohorts[1])
            x = sum(x - 0.1 * grad(k, x, y, (r, number[k]))[0] for k in members) / len(members)
        wanted.append(torch.cat([x, y]).numpy())
    assert any(ends)
    np.testing.assert_allclose(path, wanted, rtol=1e-10, atol=1e-10)


def compressor(name, feedback):
    """Return ``compress(k, r, vectors)`` for the references, and the section [message]."""
    if name == "top-k":
        settings = {"compression": {"name": "top-k", "ratio": 0.4}}  # 1 of 3 numbers, 1 of 2

        def compress(k, r, vectors):
            return [compressed.top_k(v, max(1, round(0.4 * len(v)))) for v in vectors]
    else:
        settings = {"compression": {"name": "qsgd", "levels": 2}}

        def compress(k, r, vectors):
            stream, sent = Stream(SEED, "rounding", [k], r), []
            for v in vectors:
                omega = min(len(v) / 4, len(v) ** 0.5 / 2) if feedback else 0
                sent.append(compressed.qsgd(v, 2, stream.uniform(len(v))[0, 0]) / (1 + omega))
            return sent

    return compress, settings | {"error_feedback": feedback}


@pytest.mark.dealt
@groups
@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize("name", ["top-k", "qsgd"])
@pytest.mark.parametrize("method", ["fedavg", "local_sgda"])
@pytest.mark.parametrize("cohort", [None, 2])
def test_plain_loops_with_compression(comm, out, method, name, feedback, cohort, group):
    game, (compress, message) = prepared(Game(clients=CLIENTS), SEED), compressor(name, feedback)
    participation = {"cohort": cohort, "weights": "samples" if cohort else "uniform"}
    x, y = start_of(game, SEED)
    settings = dict(K=3, eta=0.05, eta_g=1.3) if method == "fedavg" else dataclasses.asdict(METHOD)
    of = plugin("fedavg", **settings) if method == "fedavg" else METHOD
    if method == "local_sgda":
        settings = dict(q=2, eta_x=0.05, eta_y=0.04)
    path, _ = trace(job(out, of, participation, message, rounds=5, group=group), comm)
    drawn = Participants(Participation(**participation), SEED, game)
    cohorts = [range(CLIENTS) if cohort is None else drawn.selected(r, 0) for r in range(1, 6)]
    wanted = getattr(compressed, method)(
        gradient_at(game, SEED, BATCH, NOISE), x, FIXED if method == "fedavg" else y, cohorts,
        sizes(game).tolist() if cohort else [1.0] * CLIENTS, compress, feedback, **settings,
    )  # fmt: skip
    wanted = np.array([torch.cat(point).numpy() for point in wanted])
    np.testing.assert_allclose(path, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.dealt
@groups
def test_neutral_settings_are_bitwise_identical(comm, out, group):
    plain, _ = trace(job(out, group=group), comm)
    whole = {"compression": {"name": "top-k", "ratio": 1}}
    for changes in (
        {"participation": {"availability": {"name": "bernoulli", "probability": 1}}},
        {"participation": {"availability": {"name": "bernoulli", "probability": 1, "unbiased": True}}},
        {"participation": {"availability": {"name": "weighted", "unbiased": True}, "cohort": CLIENTS}},
        {"participation": {"availability": "uniform", "dropout": 0.0, "cohort": CLIENTS}},
        {"participation": {"availability": {"name": "cyclic", "blocks": 1}}},
        {"participation": {"availability": {"name": "markov", "p_off": 0, "p_on": 0.5}}},
        {"message": whole | {"error_feedback": True}},
        {"message": whole | {"error_feedback": False}},
    ):
        np.testing.assert_array_equal(trace(job(out, group=group, **changes), comm)[0], plain)


#: Settings with many events in a few rounds.
EVENTFUL = {
    "markov": ({"availability": {"name": "markov", "p_off": 0.3, "p_on": 0.5}, "dropout": 0.2}, "qsgd"),
    "bernoulli": (
        {"availability": {"name": "bernoulli", "probability": 0.6, "unbiased": True}, "weights": "samples"},
        "top-k",
    ),
    "oversample": ({"cohort": 2, "oversample": 4, "dropout": [0.1, 0.5, 0.5, 0.1, 0.9]}, "top-k"),
    "weighted": ({"cohort": 3, "availability": "weighted"}, "qsgd"),
    "trace": ({"dropout": 0.1}, "qsgd"),
}
CLOCK = dict(
    bandwidth_down=1e3, bandwidth_up=3e2, gradients_per_second=7.0, latency=0.01, jitter=0.3, timeout=9.0
)
#: Without dropouts, the timeout has no effect and is refused.
NO_TIMEOUT = {name: value for name, value in CLOCK.items() if name != "timeout"}
COUNTED = ("bytes_up", "bytes_down", "oracle_calls", "phases", "federated_seconds")


@pytest.mark.dealt
@pytest.mark.parametrize(
    "method, group", [(METHOD, 1), (Phases(), 2), (STORED, 2)], ids=["one phase", "three phases", "variates"]
)
@pytest.mark.parametrize("name", EVENTFUL)
def test_layouts_and_resumed_runs_are_bitwise_identical(comm, out, name, method, group):
    participation, compression = EVENTFUL[name]
    if isinstance(method, Phases) and name == "bernoulli":  # of one cohort in two phases
        participation = participation | {"availability": participation["availability"] | {"unbiased": False}}
    if name == "trace":
        rows = [(1, 0), (1, 1), (1, 3), (3, 2), (3, 4), (4, 1), (5, 0), (5, 3)]
        participation = participation | {
            "availability": {"name": "trace", "file": trace_file(out, comm, rows)}
        }
    settings = dict(participation=participation, message=compressor(compression, True)[1], group=group)
    settings |= dict(rounds=6, clock=CLOCK if "dropout" in participation else NO_TIMEOUT)
    settings |= dict(checkpoint_every=2, keep=9)
    whole = run(job(f"{out}/whole", method, **settings), comm)
    if comm.rank == 0:
        alone = run(job(f"{out}/alone", method, **settings), SerialComm())
    part = resumed(comm, f"{out}/whole")
    if comm.rank == 0:
        for other in (alone, part):
            np.testing.assert_array_equal(iterates(other), iterates(whole))
            for cost in COUNTED:
                np.testing.assert_array_equal(other.costs[cost], whole.costs[cost], err_msg=cost)


def test_bytes(comm, out):
    """Of 5 clients, 4 are sampled for a cohort of 2. A client receives x and y, and sends 1 of 3 and 1 of 2
    numbers of 8 bytes with indices of 4 bytes."""
    participation = {"cohort": 2, "oversample": 4, "dropout": 0.5}
    message = compressor("top-k", True)[1]
    result = run(job(out, METHOD, participation, message, rounds=6), comm)
    drawn = Participants(Participation(**participation), SEED, prepared(Game(clients=CLIENTS), SEED))
    answered = [len(drawn.participating(r, 0, drawn.selected(r, 0))) for r in range(1, 7)]
    assert 0 not in answered and set(answered) == {1, 2}
    if comm.rank == 0:
        down = 4 * 8 * (DX + DY) * np.arange(7)
        np.testing.assert_array_equal(result.costs["bytes_down"], down)
        np.testing.assert_array_equal(result.costs["bytes_up"], np.cumsum([0, *answered]) * (12 + 12))


def test_the_base_of_a_difference_is_counted_as_download(comm, out):
    """A client that sends the change of a gradient needs the last average gradient."""

    @dataclass(frozen=True)
    class Estimate(Algorithm):
        shared = Record(x="x", y="y", g="x")
        message = Record(g="x")

        def client_round(self, now, shared, client, message, oracle):
            message.g = oracle.grad(shared.x, shared.y, oracle.sample())[0]

    counts = []
    for message in ({}, {"compression": {"name": "top-k", "ratio": 0.4}}):
        result = run(job(f"{out}/{len(counts)}", Estimate(), {"cohort": 2}, message, rounds=2), comm)
        counts.append((result.costs["bytes_up"][-1], result.costs["bytes_down"][-1]))
    if comm.rank == 0:
        sent = 2 * 2 * 8 * (DX + DY)
        assert counts == [(2 * 2 * 8 * DX, sent), (2 * 2 * 12, sent + 2 * 2 * 8 * DX)]


@pytest.mark.dealt
@groups
def test_rounds_without_clients_change_nothing(comm, out, capfd, group):
    """Rounds 1, 3 and 4 have no clients; values that are sent with the sums still arrive."""
    law = {"name": "trace", "file": trace_file(out, comm, [(2, 1), (5, 0)])}
    config = job(f"{out}/run", METHOD, {"availability": law}, rounds=6, clock=NO_TIMEOUT, group=group)
    simulation = started(config, comm=comm)
    points = [simulation.point().clone()]
    for r in range(1, 7):
        assert simulation.step(float(r)) == r * comm.size
        points.append(simulation.point().clone())
    moved = [not torch.equal(a, b) for a, b in zip(points, points[1:])]
    assert moved == [False, True, False, False, True, False]
    result = run(config, comm)
    said = capfd.readouterr().err.count("no client participates in round")
    if comm.rank == 0:
        assert said == 2  # once per run
        assert (np.diff(result.costs["phases"]) > 0).tolist() == moved
        assert (np.diff(result.costs["federated_seconds"]) > 0).tolist() == moved
        np.testing.assert_array_equal(result.costs["round"], np.arange(7))


@pytest.mark.parametrize(
    "method",
    [
        LocalSGDAPlus(q=2, S=4, eta_x=0.05, eta_y=0.04),
        CODAPlus(K=2, T=1, eta=0.05, growth=1.0),
        CDMAADA(K=2, eta_x=0.05, eta_y=0.04),
    ],
    ids=lambda method: type(method).__name__,
)
def test_methods_do_not_count_rounds_without_clients(comm, out, method):
    """Snapshots, stages and step sizes are those of a run without the rounds 1 and 3."""
    points = []
    for number, rounds in enumerate([(2, 4, 5), (1, 2, 3)]):
        everyone = [(r, k) for r in rounds for k in range(CLIENTS)]
        trace = trace_file(out, comm, everyone)
        law = {"name": "trace", "file": trace}
        settings = dict(rounds=max(rounds), oracle={"batch_size": 0})
        points.append(bits(run(job(f"{out}/{number}", method, {"availability": law}, **settings), comm)))
    np.testing.assert_array_equal(*points)


def test_runs_in_which_all_clients_drop_out(comm, out):
    result = run(job(out, METHOD, {"dropout": 1.0}, clock=CLOCK, rounds=3), comm)
    if comm.rank == 0:
        assert result.costs["oracle_calls"][-1] == result.costs["bytes_up"][-1] == 0
        assert result.costs["phases"].tolist() == [0, 1, 2, 3]  # clients were sampled
        assert result.costs["federated_seconds"].tolist() == [0, 9, 18, 27]  # and the server waited for them


def test_the_rest_of_a_round_without_clients_is_omitted(comm, out):
    """All clients drop out before the second phase: the first has changed x, the third is omitted."""
    law = {"name": "trace", "file": trace_file(out, comm, [(r, k) for r in (1, 2, 3) for k in range(5)])}
    chance = next(c for c in np.linspace(0.5, 0.99, 50) if _left(c) == [True, False])
    participation = {"availability": law, "dropout": float(chance)}
    simulation = started(job(f"{out}/run", Phases(), participation), comm=comm)
    before = simulation.point().clone()
    simulation.step()
    after = simulation.point()
    assert not torch.equal(before[:DX], after[:DX]) and torch.equal(before[DX:], after[DX:])
    assert simulation.rounds.costs.phases == 2


def _left(chance) -> list[bool]:
    """Return whether clients participate in the first and in the second phase of round 1."""
    first = [k for k in range(CLIENTS) if not dropped(k, 1, 0, chance)]
    return [bool(first), any(not dropped(k, 1, 1, chance) for k in first)]


def test_the_server_waits_for_clients_that_drop_out(comm, out):
    seconds = {}
    for name, participation in {
        "all": {},
        "dropout": {"dropout": [0.0, 0, 0, 0, 1]},
        "first": {"dropout": [0.0, 0, 0, 0, 1], "cohort": 4, "oversample": 5},
    }.items():
        clock = (CLOCK if participation else NO_TIMEOUT) | {"jitter": 0.0}
        result = run(job(f"{out}/{name}", METHOD, participation, rounds=2, clock=clock), comm)
        if comm.rank == 0:
            seconds[name] = result.costs["federated_seconds"][-1]
    if comm.rank == 0:
        assert seconds["dropout"] == 18.0  # the timeout in each round
        assert seconds["first"] < 2.0 and seconds["all"] < 2.0


def test_a_trace_that_changes_or_is_missing(comm, out):
    law = {"name": "trace", "file": trace_file(out, comm, [(1, 0), (2, 1), (3, 1)])}
    run(job(f"{out}/run", METHOD, {"availability": law}, rounds=2, checkpoint_every=1), comm)
    trace_file(out, comm, [(1, 0), (2, 1), (3, 2)])
    with pytest.raises(CollectiveError, match="data file trace has changed"):
        resume(f"{out}/run", ["rounds=3"], comm=comm)
    law["file"] = f"{out}/nowhere.csv"
    with pytest.raises(CollectiveError, match="cannot read the trace"):
        run(job(f"{out}/other", METHOD, {"availability": law}), comm)


@pytest.mark.parametrize("name", ["top-k", "qsgd"])
def test_values_that_are_not_finite_end_a_compressed_run(comm, out, name):
    method = LocalSGDA(q=2, eta_x=1e160, eta_y=0.0)
    with pytest.raises(NonFiniteError, match="client .* of `message`"):
        run(job(out, method, {}, compressor(name, True)[1], rounds=9), comm)
