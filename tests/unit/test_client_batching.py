"""``run.group``: the loop or vectorised clients, by the job alone; logged, stored, kept by a resumed run."""

from dataclasses import dataclass

import pytest
import torch
from fields import Chain, Field
from games import started

from mpifed import Blocks, Config, resume, run
from mpifed.algorithms import SAGDA, FedGDAGT, LocalSGDA
from mpifed.base.errors import ConfigError
from mpifed.core.oracle import Oracle
from mpifed.core.problem import Game, Minimax, Minimisation
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.problems import LinearMAML, Saddle
from mpifed.simulation import client_batching
from mpifed.simulation.client_batching import Limits, reason_for_loop
from mpifed.simulation.executor import _split, capacity
from mpifed.storage import checkpoint
from mpifed.storage.results import load

COMM = SerialComm()


@dataclass
class Squares(Minimisation):
    """Least squares; client k has 4 rows and, with ``uneven``, k more."""

    clients: int = 40
    shape: tuple[int, ...] = (3,)
    uneven: bool = False
    branches: bool = False

    def variables(self):
        return Blocks(x={"w": self.shape})

    def client_data(self, k):
        rows = torch.arange(4.0 + k * self.uneven)
        return rows[:, None] * torch.tensor([1.0, 0.5, -1.0]), rows + k

    def loss(self, x, batch):
        value = ((batch[0] @ x["w"].reshape(-1)[:3] - batch[1]) ** 2).mean()
        return value / 2 if not self.branches or value > 0 else value


def job(problem, folder="unused", cohort=None, rounds=3, batch_size=2, **settings) -> Config:
    return Config(
        algorithm=LocalSGDA(q=2, eta_x=0.01, eta_y=0.01),
        problem=problem,
        rounds=rounds,
        oracle={"batch_size": batch_size},
        participation={"cohort": cohort},
        run={"progress": False, "out": str(folder), "checkpoint_every": 1, **settings},
    )


@pytest.mark.parametrize("problem, cohort, reason", [
    (Squares(clients=32), None, ""),
    (Squares(clients=31), None, "a cohort of 31, less than 32"),
    (Squares(clients=100), 31, "a cohort of 31, less than 32"),
    (Squares(clients=32, shape=(32_768,)), None, ""),
    (Squares(clients=32, shape=(32_769,)), None, "32,769 parameters per client, more than 32,768"),
    (Squares(clients=32, shape=(3, 1, 1)), None, "convolutions"),
    (Saddle(clients=8, d=8192), None, ""),
    (Saddle(clients=7), None, "a cohort of 7, less than 8"),
    (Saddle(clients=8, d=8193), None, "16,386 parameters per client, more than 16,384"),
    (Field(clients=8), None, ""),
    (Chain(clients=31), None, "a cohort of 31, less than 32"),
    (Game(Squares(clients=31)), None, "a cohort of 31, less than 32"),
    (Game(Saddle(clients=8)), None, ""),
    (LinearMAML(clients=32, d=3), None, ""),
    (LinearMAML(clients=32, d=800), None, "641,600 parameters per client, more than 32,768"),
])  # fmt: skip
def test_the_loop_or_vectorised_clients_by_the_job(problem, cohort, reason):
    assert reason_for_loop(job(Squares(), cohort=cohort), problem) == reason


def test_exact_loops_over_clients_on_a_gpu():
    reasons = [
        reason_for_loop(job(Squares(), reduction=reduction), Saddle(clients=9), on_gpu=True)
        for reduction in ("fused", "exact")
    ]
    assert reasons == ["", "on a GPU, the bits of vectorised clients may depend on the size of a group"]


@pytest.mark.parametrize("shape, reason", [((3, 1, 1), "convolutions"), ((3, 1), "")])
def test_convolutions_are_looped_over_on_a_gpu(shape, reason):
    problem = Squares(clients=8, shape=shape)
    assert reason_for_loop(job(Squares(), reduction="fused"), problem, on_gpu=True) == reason


@pytest.mark.parametrize("count, size, groups", [
    (0, 4, []), (1, 4, [1]), (3, 1, [1, 1, 1]), (9, 4, [3, 3, 3]), (5, 4, [3, 2]), (7, 3, [3, 2, 2]),
    (5, 2, [2, 2, 1]), (8, 9, [8]),
])  # fmt: skip
def test_members_are_split_evenly(count, size, groups):
    slices = _split(count, size)
    assert [group.stop - group.start for group in slices] == groups
    assert [k for group in slices for k in range(group.start, group.stop)] == list(range(count))


def test_a_single_member_is_stepped_with_a_copy():
    assert capacity("all", 1) == capacity(4, 1) == 2
    assert (capacity("all", 5), capacity(4, 5), capacity(1, 5)) == (5, 4, 1)


@dataclass
class Hooked(Squares):
    """Squares with a hook that changes the gradient."""

    def loss(self, x, batch):
        errors = batch[0] @ x["w"] - batch[1]
        if errors.requires_grad:
            errors.register_hook(torch.neg)
        return (errors**2).mean()


def choice_of(config) -> client_batching.GroupChoice:
    simulation = started(config, 1)
    assert simulation.rounds.executor.capacity == capacity(simulation.rounds.choice.group, 40)
    return simulation.rounds.choice


@pytest.mark.parametrize("problem, settings, group, note", [
    (Squares(), {}, 40, "clients are vectorised, all of a rank at a time"),
    (Squares(), {"group": 3}, 3, ""),
    (Squares(clients=3), {}, 1, ""),
    (Squares(branches=True), {}, 1, "their functions cannot be mapped over clients: RuntimeError"),
    (Hooked(), {}, 1, "vectorised clients would have other results"),
    (Hooked(), {"group": 3, "reduction": "fused"}, 1, "vectorised clients would have other results"),
    (Squares(uneven=True), {}, 40, "clients are vectorised"),
    (Squares(uneven=True), {"batch_size": 0}, 1, ""),
    (Squares(), {"batch_size": 0}, 40, "clients are vectorised"),
    (Squares(shape=(20_000,)), {}, 13, "clients are vectorised, 13 at a time"),
])  # fmt: skip
def test_the_choice_and_its_note(problem, settings, group, note):
    choice = choice_of(job(problem, **settings))
    assert choice.group == group and note in choice.note and bool(choice.note) == bool(note)


@pytest.mark.parametrize("settings, error", [
    (dict(batch_size=0, group="all"),
     "vectorised full batches need clients of one size, got 4 to 43 rows: set .* or run.group = 1"),
    *((dict(group=value), 'run.group: expected "auto", "all" or an integer >= 1, got')
      for value in (0, -1, 2.0, True, "4", "none")),
])  # fmt: skip
def test_invalid_groups(settings, error):
    with pytest.raises((ConfigError, CollectiveError), match=error):
        choice_of(job(Squares(uneven=True), **settings))


def test_the_choice_is_stored_and_kept_by_a_resumed_run(tmp_path, monkeypatch, capsys):
    config = job(Saddle(clients=9), tmp_path, reduction="exact")
    run(config, COMM)
    assert "mpifed: clients are vectorised, all of a rank at a time (run.group)" in capsys.readouterr().err
    assert checkpoint.newest(tmp_path)[1]["group"] == load(tmp_path).layout["group"] == 9
    monkeypatch.setattr(client_batching, "ANALYTIC", Limits(10, 2**17))  # a new run would choose the loop
    monkeypatch.setattr(client_batching, "_evaluation_error", None)
    resume(tmp_path, ["rounds=4"], COMM)
    assert checkpoint.newest(tmp_path)[1]["group"] == 9
    resume(tmp_path, ["rounds=5", "run.group=2"], COMM)
    assert load(tmp_path).layout["group"] == 2


def test_a_resumed_run_keeps_the_loop_or_vectorised_clients_with_any_size(tmp_path, monkeypatch, capsys):
    """The size of groups may depend on the ranks, and changes no bits."""
    results = {}
    for name, rounds in (("whole", 5), ("parts", 2), ("loop", 2)):
        with monkeypatch.context() as patches:
            patches.setattr(client_batching, "ANALYTIC", Limits(8, 100))  # two clients of 2 * 20 parameters
            patches.setattr(client_batching, "LEAST", 10 if name == "loop" else 1)
            config = job(Saddle(clients=9, d=20), tmp_path / name, reduction="exact", rounds=rounds)
            results[name] = run(config, COMM)
    capsys.readouterr()
    with monkeypatch.context() as patches:
        patches.setattr(client_batching, "ANALYTIC", Limits(8, 200))
        resume(tmp_path / "parts", ["rounds=4"], COMM)
        resume(tmp_path / "loop", ["rounds=4"], COMM)
    assert "clients are vectorised, 5 at a time (run.group)" in capsys.readouterr().err
    assert [load(tmp_path / name).layout["group"] for name in results] == [2, 5, 1]
    parts = resume(tmp_path / "parts", ["rounds=5"], COMM)
    for block, point in results["whole"].point.items():
        assert torch.equal(point, parts.point[block])


@dataclass
class Rows(Minimax):
    """mean_j a_j (‖x‖²/2 + xᵀy - ‖y‖²/2); client k has 3 rows and, with ``uneven``, k more."""

    clients: int = 4
    uneven: bool = False

    def variables(self):
        return Blocks(x={"x": (2,)}, y={"y": (2,)})

    def client_data(self, k):
        return (torch.arange(1.0, 4 + k * self.uneven),)

    def initial(self, rng):
        return {block: torch.ones(2) for block in "xy"}

    def gradients(self, x, y, batch):
        a = batch[0].mean(1, keepdim=True)
        return a * (x + y), a * (x - y)


@pytest.mark.parametrize("uneven, minibatch, loops", [(False, False, 0), (True, False, 1), (False, True, 0)])
def test_full_batches_of_one_size_are_evaluated_together(tmp_path, monkeypatch, uneven, minibatch, loops):
    """They equal those of the loop; clients of different sizes are looped over."""
    calls, loop = [], Oracle._stack_over_clients
    monkeypatch.setattr(Oracle, "_stack_over_clients", lambda *args: calls.append(1) or loop(*args))
    method = (SAGDA if minibatch else FedGDAGT)(K=3, eta_xl=0.02, eta_yl=0.03)
    points = {}
    for group in ("all", 1):
        config = job(Rows(uneven=uneven), tmp_path / str(group), group=group, dtype="float64")
        points[group] = run(Config(**vars(config) | {"algorithm": method}), COMM).point
        calls = calls[len(client_batching.DISTANCES) :] if group == "all" and not loops else calls
        assert bool(calls) == (loops if group == "all" else not minibatch)
        calls.clear()
    for block, point in points["all"].items():
        torch.testing.assert_close(point, points[1][block], rtol=1e-13, atol=0)  # the rounding of 9 steps
