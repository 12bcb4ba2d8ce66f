"""Splits, metrics per client and user-defined metrics on several ranks, and points outside the problem's
sets."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from games import started
from resumed import resumed

from mpifed import Algorithm, Config, Record, load, run
from mpifed.algorithms import FedAvg, LocalSGDA
from mpifed.config.job import Stop
from mpifed.parallel.comm import CollectiveError, SerialComm, broadcast_text
from mpifed.problems import Classification, DeepAUC, FairClassification
from mpifed.simulation import feasibility
from mpifed.simulation.simulation import Simulation

pytestmark = pytest.mark.mpi


def margin(scores, labels):
    top = scores.topk(2, dim=-1).values if scores.dim() == 2 else scores[:, None].expand(-1, 2)
    return {"margin": (top[:, 0] - top[:, 1]).mean(), "share": labels.double().mean()}


def norm(point):
    return torch.cat([value.flatten() for value in point["x"].values()]).norm()


JOBS = {
    "plain": (Classification, FedAvg(K=2, eta=0.1)),
    "auc": (DeepAUC, LocalSGDA(q=2, eta_x=0.1, eta_y=0.1)),
    "fair": (FairClassification, LocalSGDA(q=2, eta_x=0.1, eta_y=0.1)),
}


def job(name, out="unused", metrics=(margin, norm), **settings) -> Config:
    kind, method = JOBS[name]
    problem = kind(dataset="digits", model="linear", clients=5, validation=0.2, **settings)
    execution = {"evaluate_on": ["train", "clients"], "out": out, "progress": False, "reduction": "exact"}
    return Config(
        algorithm=method,
        problem=problem,
        rounds=2,
        metrics=metrics,
        personalize={"step_size": 0.1, "steps": 2},
        run=execution,
    )


def found(config, comm):
    simulation = started(config, 1, comm)
    with simulation:
        return simulation.evaluate(), simulation.details


@pytest.mark.parametrize("name", JOBS)
def test_bitwise_identical_to_one_process(comm, name):
    (figures, details), (alone, own) = (found(job(name), one) for one in (comm, SerialComm()))
    assert figures == (alone if comm.rank == 0 else {})
    assert {"margin", "train_share", "client_share_worst", "personal_margin_mean", "norm"} <= alone.keys()
    assert "train_norm" not in alone and "client_norm_q10" not in alone, "a metric of the point has no splits"
    if comm.rank == 0:
        assert (details.confusion is None) == (name == "auc") and np.array_equal(
            details.confusion, own.confusion
        )
        assert [*details.clients] == [*own.clients], "the same order, also if ranks host no client"
        assert all(np.array_equal(details.clients[key], own.clients[key]) for key in own.clients)


def test_the_file_of_a_run(comm, tmp_path_factory):
    """The stored result equals the returned one; other ranks return none."""
    folder = broadcast_text(comm, str(tmp_path_factory.mktemp("run")))
    result = run(job("plain", folder), comm)
    alone = run(job("plain", f"{folder}/alone"), SerialComm()) if comm.rank == 0 else None
    if comm.rank:
        assert result.confusion is None
        return
    again = load(folder)
    assert again.confusion.equals(result.confusion) and again.confusion.equals(alone.confusion)
    assert again.clients.equals(result.clients) and again.clients.equals(alone.clients)
    assert again.confusion.to_numpy().sum() == 359 and len(again.clients) == 5
    assert again.metrics == result.metrics == alone.metrics


def unequal(metric) -> tuple[Config, list[int]]:
    """Return a job whose clients have different numbers of samples, and these numbers."""
    config = job("plain", metrics=(metric,), partition={"name": "quantity", "alpha": 0.5})
    config.problem.prepare(0)
    sizes = [config.problem.client_size(client) for client in range(5)]
    assert len(set(sizes)) == 5
    return config, sizes


def test_a_metric_that_fails_for_a_client_of_one_rank_ends_all(comm):
    hosted = Simulation.from_settings(job("plain"), comm).placement.clients_of(comm.size - 1).tolist()

    def fragile(scores, labels):
        if len(labels) == sizes[hosted[0]]:
            raise KeyError("no such bin")
        return 0.0

    config, sizes = unequal(fragile)
    with pytest.raises(CollectiveError, match=f"the metric fragile failed for client {hosted[0]}: KeyError"):
        found(config, comm)


def test_a_metric_of_one_client_is_nan_for_the_others(comm):
    def rare(scores, labels):
        return {"rows": 0.0} | ({"rare": 1.0} if len(labels) == sizes[4] else {})

    config, sizes = unequal(rare)
    _, details = found(config, comm)
    if comm.rank == 0:
        np.testing.assert_array_equal(details.clients["rare"], [np.nan] * 4 + [1.0])
        assert not np.isnan(details.clients["rows"]).any()


def test_patience_ends_all_ranks_after_the_same_round(comm, out):
    """The accuracy cannot improve by 2: the evaluations of rounds 2 and 4 are without an improvement."""
    config = fair(LocalSGDA(q=1, eta_x=0.1, eta_y=0.1), out, keep_best="mean_accuracy")
    stop = Stop(metric="mean_accuracy", patience=2, min_delta=2.0)
    result = run(config.model_copy(update={"stop": stop}), comm)
    assert (result.end.kind, result.round) == ("patience", 4)
    assert broadcast_text(comm, result.stopped) == result.stopped
    if comm.rank == 0:
        accuracy = result.history["mean_accuracy"]
        assert result.best.metrics["mean_accuracy"] == max(accuracy)
        alone = run(fair(config.algorithm, f"{out}/alone", keep_best="mean_accuracy"), SerialComm())
        assert alone.history["mean_accuracy"][:3] == accuracy


@dataclass(frozen=True)
class Loose(Algorithm):
    """Local-SGDA of one step that ignores sets."""

    shared = Record(x="x", y="y")
    message = Record(dx="x", dy="y")

    def client_round(self, now, shared, client, message, oracle):
        gx, gy = oracle.grad(shared.x, shared.y, oracle.sample())
        message.dx, message.dy = -0.1 * gx, 0.1 * gy

    def server_round(self, now, shared, mean):
        shared.x, shared.y = shared.x + mean.dx, shared.y + mean.dy


def fair(method, out, **changes) -> Config:
    problem = FairClassification(dataset="digits", model="linear", clients=5)
    execution = {
        "out": out,
        "progress": False,
        "watchdog": 0,
        "eval_every": 2,
        "checkpoint_every": 2,
        "keep": 9,
    }
    return Config(algorithm=method, problem=problem, rounds=6, run=execution | changes)


@pytest.mark.parametrize("group", [1, "all"])
def test_a_run_that_leaves_a_set_is_marked(comm, out, monkeypatch, group):
    """On all ranks, in the file and after resumption; logged once, without communication."""
    said = []
    monkeypatch.setattr(feasibility, "warning", said.append)
    result = run(fair(Loose(), out, group=group), comm)
    sentence = result.infeasible
    assert sentence.startswith("y is ") and sentence.endswith(" away from its set after round 2")
    assert len(said) == (comm.rank == 0)
    assert not said or said[0].startswith(
        f"{out}: {sentence}: Loose must project new points by oracle.sets and now.sets"
    )
    assert resumed(comm, out).infeasible == sentence and len(said) == (comm.rank == 0)
    kept = run(fair(LocalSGDA(q=1, eta_x=0.1, eta_y=0.1), f"{out}/kept", group=group), comm)
    assert kept.infeasible == "" and len(said) == (comm.rank == 0)
    if comm.rank == 0:
        assert load(out).infeasible == sentence and f"infeasible: {sentence}" in repr(load(out))
        assert run(fair(Loose(), f"{out}/alone", group=group), SerialComm()).infeasible == sentence
        for name in ("oracle_calls", "phases", "bytes_up", "bytes_down"):
            np.testing.assert_array_equal(result.costs[name], kept.costs[name])
