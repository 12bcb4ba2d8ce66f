"""Simulations from Python, the interval between evaluations, and blocks with one copy per client."""

import math
import traceback
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from games import DX, Game, configuration, started

import mpifed
from mpifed import Blocks, Minimax, generator
from mpifed.algorithms import FESSGDA, FGDA, FLRA, LESGD, SAGDA, SCAFFOLD, FedAvg, LocalSGDA
from mpifed.core.noise import OracleOptions
from mpifed.core.participation import Participation
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.problems import Saddle
from mpifed.simulation import executor, setup
from mpifed.simulation.evaluation import evaluation_interval
from mpifed.simulation.options import ExecutionOptions, StationarityOptions

COMM = SerialComm()
PACKAGE = Path(mpifed.__file__).parent
DOUBLE = {"dtype": "float64"}
METHOD = LocalSGDA(q=2, eta_x=0.01, eta_y=0.01)


def simulated(rounds, **settings) -> mpifed.Simulation:
    simulation = mpifed.Simulation(Saddle(clients=4, d=3), METHOD, **settings)
    simulation.start()
    for _ in range(rounds):
        simulation.step()
    return simulation


def test_a_simulation_computes_the_rounds_of_a_run(tmp_path):
    settings = dict(seed=3, participation={"cohort": 2})
    simulation = simulated(3, run=DOUBLE, **settings)
    run = DOUBLE | {"out": str(tmp_path / "run"), "progress": False}
    config = mpifed.Config(problem=Saddle(clients=4, d=3), algorithm=METHOD, rounds=3, run=run, **settings)
    result = mpifed.run(config, COMM)
    assert simulation.round == 3
    assert torch.equal(simulation.shared.x, torch.as_tensor(result.point["x"]).flatten())
    assert simulation.evaluate(simulation.output) == result.metrics


def test_the_number_of_cached_views_is_limited(monkeypatch):
    looped = {"dtype": "float64", "group": 1}
    many = simulated(3, run=looped)
    assert len(many.rounds.executor._views) == 4
    monkeypatch.setattr(executor, "MAX_VIEWS", 2)
    few = simulated(3, run=looped)
    assert len(few.rounds.executor._views) <= 2 and torch.equal(few.point(), many.point())


def test_five_calls_lead_from_a_run_to_a_client_function(tmp_path, monkeypatch):
    """A reader follows a run through these functions."""
    paths, plain = set(), LocalSGDA.client_round

    def watched(*arguments):
        frames = [
            frame for frame in traceback.extract_stack() if Path(frame.filename).is_relative_to(PACKAGE)
        ]
        paths.add(tuple(f"{Path(frame.filename).stem}.{frame.name}" for frame in frames))
        return plain(*arguments)

    monkeypatch.setattr(LocalSGDA, "client_round", watched)
    config = mpifed.Config(
        problem=Saddle(clients=2, d=3),
        algorithm=METHOD,
        rounds=1,
        run={"out": str(tmp_path), "progress": False},
    )
    mpifed.run(config, COMM)
    assert paths == {("run.run", "loop.execute", "simulation.step", "rounds.run", "executor.run")}


def test_the_point_concatenates_all_blocks_in_float32():
    simulation = simulated(0, oracle={"batch_size": 0})
    x, y = simulation.shared.x, simulation.shared.y
    assert torch.equal(simulation.point(), torch.cat([x, y])) and x.dtype == torch.float32


def test_sections_are_records_or_dictionaries():
    records = simulated(
        1,
        participation=Participation(cohort=2),
        oracle=OracleOptions(batch_size=2),
        run=ExecutionOptions(dtype="float64"),
    )
    tables = simulated(1, participation={"cohort": 2}, oracle={"batch_size": 2}, run=DOUBLE)
    assert torch.equal(records.point(), tables.point())


@pytest.mark.parametrize("problem, method, settings, error", [
    (Saddle, FedAvg, {}, "FedAvg solves minimisation problems, but Saddle is a minimax"),
    (Saddle, LESGD, {"participation": {"cohort": 5}}, "is more than problem.clients"),
    (Saddle, LESGD, {"run": {"keep": 3}}, r"\[run\] has no setting 'keep'"),
    (Saddle, LESGD, {"sede": 3}, "did you mean 'seed'"),

])  # fmt: skip
def test_settings_are_validated_like_a_job(problem, method, settings, error):
    with pytest.raises(mpifed.ConfigError, match=error):
        mpifed.Simulation(problem(clients=4), method(K=1, eta=0.1), **settings)


#: Number of parameters of a network that is expensive to evaluate.
LARGE = 10**8


def evaluated(folder="run", q=1, batch_size=2, cohort=None, rounds=70, **run) -> mpifed.Config:
    return mpifed.Config.from_table({
        "rounds": rounds,
        "algorithm": {"name": "LocalSGDA", "q": q, "eta_x": 0.1, "eta_y": 0.1},
        "problem": {"name": "DeepAUC", "dataset": "digits", "model": "linear", "clients": 10},
        "oracle": {"batch_size": batch_size},
        "participation": {"cohort": cohort} if cohort else {},
        "run": {"progress": False, "out": str(folder), **run},
    })  # fmt: skip


@pytest.mark.parametrize("settings, expected", [
    (dict(), 60),  # 359 held-out rows; a round's 20 gradients take the time of 60 rows, a tenth of which is 6
    (dict(q=3), 20),
    (dict(batch_size=200), 3),  # 70 rounds: 20 points
    (dict(batch_size=200, rounds=19), 1),
    (dict(batch_size=200, rounds=1000), 10),
    (dict(batch_size=20, cohort=2), 30),
    (dict(batch_size=0), 3),
    (dict(eval_every=3, batch_size=2), 3),
])  # fmt: skip
def test_the_evaluation_interval_follows_from_rounds_scored_rows_and_rows_of_gradients(settings, expected):
    assert evaluation_interval(evaluated(**settings), {"test": 359}, LARGE) == expected


@pytest.mark.parametrize("rounds, size, expected", [
    (54, 10**5, 2), (19, 10**5, 1), (70, 10**6, 3), (2000, 10**5, 60), (70, 10**7, 60),
])  # fmt: skip
def test_cheap_evaluations_give_short_runs_twenty_points(rounds, size, expected):
    """359 rows times the number of parameters are cheap up to 2e9; longer runs have more points anyway."""
    assert evaluation_interval(evaluated(rounds=rounds), {"test": 359}, size) == expected


def test_the_evaluation_interval_of_full_gradients_and_of_measures():
    # 3235 rows are scored in the time of 1079 gradients; a round has 1438, a tenth of which is 144.
    config = evaluated(batch_size=0)
    rows = {"test": 359, "train": 1438, "clients": 1438}
    assert evaluation_interval(config, rows, LARGE) == 8
    measured = config.model_copy(update={"measures": StationarityOptions(of=("phi",))})
    assert evaluation_interval(measured, {"test": 359}, 1) == 10


def test_a_run_counts_the_scored_rows(tmp_path):
    run = mpifed.run(evaluated(tmp_path / "run", rounds=1500), COMM)
    assert run.history["round"] == [*range(0, 1500, 60), 1500]


def test_the_average_of_client_blocks_is_the_iterate_before_and_after_a_restart():
    """FLRA's clients have their own y."""
    config = configuration(FLRA(tau=2, eta_1=0.05, eta_2=0.04), Game(clients=3), "unused")
    first, resumed = started(config, 2), started(config)
    point = first.point()
    torch.testing.assert_close(point[DX:], first.clients.buffer.mean(dim=0))
    assert not torch.equal(resumed.point(), point)
    resumed.load_state_dict(first.state_dict())
    assert torch.equal(resumed.point(), point) and resumed.round == 2


def test_a_simulation_continues_from_the_state_of_another():
    """With stored control variates, compression residuals, and a round in which nobody participates."""
    method = SAGDA(K=2, eta_xl=0.01, eta_yl=0.01, variates="stored")
    settings = dict(
        message={"compression": {"name": "top-k", "ratio": 0.5}},
        participation={"dropout": 0.6},
        run=DOUBLE,
    )
    first, other = (mpifed.Simulation(Saddle(clients=2, d=3), method, **settings) for _ in range(2))
    for simulation, rounds in ((first, 4), (other, 1)):
        simulation.start()
        for _ in range(rounds):
            simulation.step()
    other.load_state_dict(first.state_dict())
    for simulation in (first, other):
        for _ in range(3):
            simulation.step()
    assert first.rounds.skipped and torch.equal(first.point(), other.point()) and other.round == 7
    state, again = first.state_dict(), other.state_dict()
    assert {name: state[name] for name in ("skipped", "steps", "unsent")} == {
        name: again[name] for name in ("skipped", "steps", "unsent")
    }


@dataclass
class Shifted(Minimax):
    """Regression with a shift of the targets; ``in_place`` is the function that writes in place."""

    clients: int = 4
    in_place: str = ""
    test_rows = 6

    def variables(self):
        return Blocks(x={"w": (3,)}, y={"shift": (1,)})

    def client_data(self, client):
        rows = generator(0, "rows", client).standard_normal((20, 4))
        return torch.from_numpy(rows[:, :3]), torch.from_numpy(rows[:, 3])

    def loss(self, x, y, batch):
        inputs, targets = batch
        writes = self.in_place == "loss" or (self.in_place == "large" and len(targets) > 5)
        targets = targets.mul_(2).sub_(1) if writes else 2 * targets - 1
        return ((inputs @ x["w"] - targets - y["shift"]) ** 2).mean() - 2 * (y["shift"] ** 2).sum()

    def predict(self, x, y, rows):
        w = x["w"].add_(1) if self.in_place == "predict" else x["w"] + 1
        return self.client_data(0)[0][rows].to(w) @ w

    def metrics(self, x, y, predictions):
        norm = y["shift"].add_(1) if self.in_place == "metrics" else y["shift"] + 1
        return {"norm": float(norm), "first": float(predictions.sub_(1)[0])}


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("batch_size", [0, 5])
@pytest.mark.parametrize("method", [METHOD, FGDA(q=2, gamma=0.05, lam=0.1, alpha=0.5, beta=0.5)])
def test_a_loss_that_writes_to_its_batch_gets_copies(method, batch_size, group):
    """Full batches are used in every step, and FGDA evaluates each sample at two points."""
    points, measures = [], []
    for in_place in ("", "loss"):
        run = DOUBLE | {"group": group}
        settings = dict(oracle={"batch_size": batch_size}, run=run, measures={"of": ["stationarity"]})
        simulation = mpifed.Simulation(Shifted(in_place=in_place), method, **settings)
        simulation.start()
        simulation.step()
        measures.append(simulation.evaluate(simulation.output))
        simulation.step()
        points.append(simulation.point())
    assert torch.equal(*points) and measures[0] == measures[1]


def test_measures_of_all_data_give_copies_to_a_loss():
    """No minibatch is as large as a client's data, so the checks before a run do not see that it writes."""
    method, measured = FESSGDA(K=1, eta_xl=0.01, eta_yl=0.01, p=3.0), []
    for in_place in ("", "large"):
        settings = dict(oracle={"batch_size": 5}, run=DOUBLE, measures={"of": ["stationarity", "potential"]})
        simulation = mpifed.Simulation(Shifted(in_place=in_place), method, **settings)
        simulation.start()
        measured.append([simulation.evaluate() for _ in range(2)])
    assert measured[0] == measured[1]


def test_scores_without_an_axis_for_the_last_row():
    """An evaluation scores 250 rows at a time, so the last call gets one row."""
    problem = Shifted()
    problem.test_rows = 251
    problem.predict = lambda x, y, rows: torch.zeros(rows.stop - rows.start, 1).squeeze()
    simulation = mpifed.Simulation(problem, METHOD, run=DOUBLE)
    simulation.start()
    with pytest.raises(CollectiveError, match="use .squeeze.-1."):
        simulation.evaluate()


class Squeezing(Shifted):
    """Regression whose last client has one row, for which the loss fails."""

    def client_data(self, client):
        rows = super().client_data(client)
        return tuple(column[:1] for column in rows) if client == 3 else rows

    def loss(self, x, y, batch):
        return super().loss(x, y, (batch[0].squeeze().flatten(1), batch[1]))


@pytest.mark.parametrize(
    "method, batch_size", [(METHOD, 0), (SAGDA(K=2, eta_xl=0.01, eta_yl=0.01, full_batch=True), 5)]
)
def test_the_gradient_on_a_single_row_is_evaluated_before_the_first_round(method, batch_size):
    """Minibatches of 5 rows are drawn with replacement, but SAGDA also evaluates all rows."""
    words = "gradient of Squeezing at the starting point on its single row .use .squeeze.-1. .* for client 3"
    with pytest.raises(CollectiveError, match=words):
        mpifed.Simulation(Squeezing(), method, oracle={"batch_size": batch_size}, run=DOUBLE)


@pytest.mark.parametrize("name, parameter", [("predict", "w"), ("metrics", "shift")])
def test_an_evaluation_that_changes_the_point_is_an_error(name, parameter):
    problem = Shifted()
    simulation = mpifed.Simulation(problem, METHOD, run=DOUBLE)
    simulation.start()
    problem.in_place, before = name, simulation.point()
    with pytest.raises(CollectiveError, match=f"Shifted.{name} changes the parameter '{parameter}' in place"):
        simulation.evaluate()
    assert torch.equal(simulation.point(), before)


class Drawn(Shifted):
    """A regression whose ``prepare`` and ``initial`` draw random numbers."""

    def prepare(self, seed, data_dir=None):
        self.rows = torch.from_numpy(self.numbers(320)).reshape(4, 20, 4)

    def initial(self, rng):
        return {"x": torch.from_numpy(self.numbers(3))}

    def client_data(self, client):
        return self.rows[client, :, :3], self.rows[client, :, 3]


@pytest.mark.parametrize("seed", [0, 7])
def test_global_generators_are_seeded_for_the_data_and_the_start(seed):
    class Seeded(Drawn):
        def numbers(self, count):
            return np.random.rand(count)  # noqa: NPY002

    def start(seed):
        simulation = mpifed.Simulation(Seeded(), METHOD, run=DOUBLE, seed=seed)
        simulation.start()
        simulation.step()
        return simulation.point()

    assert torch.equal(start(seed), start(seed)) and not torch.equal(start(seed), start(seed + 1))


@pytest.mark.parametrize("function, message", [
    ("prepare", r"client_data\(0\) returns other rows when it is called again: .* also in prepare\(\)"),
    ("initial", r"initial\(\) returns another point for block 'x' when it is called again"),
    ("loss", r"loss\(\) returns values that depend on more than .* and in prepare\(\) no random numbers"),
])  # fmt: skip
def test_other_generators_must_be_seeded(monkeypatch, function, message):
    monkeypatch.setattr(setup, "FAST", math.inf)  # also on a busy machine

    class Unseeded(Drawn):
        def prepare(self, seed, data_dir=None):
            self.factor = 1 + (function == "loss") * np.random.default_rng().random()
            self.seed = None if function == "prepare" else seed
            super().prepare(seed, data_dir)
            self.seed = None if function == "initial" else seed

        def numbers(self, count):
            return np.random.default_rng(self.seed).random(count)

        def loss(self, x, y, batch):
            return self.factor * super().loss(x, y, batch)

    with pytest.raises(CollectiveError, match=message):
        mpifed.Simulation(Unseeded(), METHOD, run=DOUBLE)


def test_clients_that_may_have_changed():
    """All after a start and after a state is loaded, otherwise the members of cohorts, whose rows differ."""
    method = SCAFFOLD(K=2, eta_l=0.05)
    simulation = mpifed.Simulation(Saddle(clients=9, d=4), method, participation={"cohort": 2})
    simulation.start()
    assert simulation.changed_clients.all()
    before = simulation.clients.buffer.clone()
    simulation.changed_clients[:] = False
    members = set()
    for r in (1, 2, 3):
        simulation.step()
        members |= {*simulation.rounds.coordinator.cohort(r).members.tolist()}
    changed = simulation.changed_clients
    assert {*np.flatnonzero(changed).tolist()} == members and 2 <= len(members) < 9
    different = (simulation.clients.buffer != before).any(dim=1).numpy()
    np.testing.assert_array_equal(different, changed)
    simulation.load_state_dict(simulation.state_dict())
    assert simulation.changed_clients.all()
