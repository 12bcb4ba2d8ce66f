"""Callbacks on one rank and several: their events, resumed runs, and callbacks that fail."""

import re
import signal

import numpy as np
import pytest
import torch
from resumed import bits

import mpifed
from mpifed import ConfigError
from mpifed.parallel.comm import CollectiveError
from mpifed.running import callbacks as module
from mpifed.running.recorder import Recorder
from mpifed.simulation.simulation import NonFiniteError
from mpifed.storage.results import COSTS, End


def job(folder, **run) -> dict:
    return {
        "rounds": 4,
        "record": ["x"],
        "algorithm": {"name": "LocalSGDA", "q": 2, "eta_x": 0.01, "eta_y": 0.01},
        "problem": {"name": "Saddle", "clients": 3, "d": 2},
        "oracle": {"batch_size": 0},
        "run": {"progress": False, "eval_every": 2, "checkpoint_every": 2, "out": str(folder), **run},
    }


class Diary:
    """Record the events and copies of their points."""

    def __init__(self):
        self.names, self.events, self.points = [], [], []

    def __getattr__(self, name):
        if name not in module.METHODS:
            raise AttributeError(name)
        return lambda event: self._note(name, event)

    def __dir__(self):
        return module.METHODS

    def _note(self, name, event):
        self.names.append(f"{name.removeprefix('on_')} {event.round}")
        self.events.append(event)
        self.points.append({block: values.copy() for block, values in event.point.items()})

    def of(self, name) -> list:
        return [event for event, noted in zip(self.events, self.names) if noted.startswith(name)]


FIRST = "start 0, evaluation 0, round 1, round 2, evaluation 2, round 3, round 4, evaluation 4, end 4"


@pytest.mark.mpi
def test_events_are_passed_on_rank_0_only(out, comm):
    """The results are those without callbacks."""
    diary = Diary()
    result = mpifed.run(job(out), comm, callbacks=[diary])
    without = mpifed.run(job(f"{out}/without"), comm)
    np.testing.assert_array_equal(bits(without), bits(result))
    if comm.rank:
        assert not diary.names
        return
    for name in COSTS:
        if not name.endswith("seconds"):
            np.testing.assert_array_equal(without.costs[name], result.costs[name])
    assert ", ".join(diary.names) == FIRST
    costs = {name: [event.costs[name] for event in diary.of("round")] for name in COSTS[1:]}
    assert {*diary.events[0].costs} == {*COSTS[1:]}
    for name, values in costs.items():
        np.testing.assert_array_equal(values, result.costs[name][1:])
    for name in ("error", "x_error"):
        assert [event.metrics[name] for event in diary.of("evaluation")] == result.history[name]
    rounds = [point["x"] for point, name in zip(diary.points, diary.names) if name.startswith("round")]
    np.testing.assert_array_equal(rounds, result.iterates["x"])
    last = diary.events[-1]
    assert (last.stopped, last.metrics, str(last.folder)) == (result.stopped, result.metrics, out)
    assert last.config == result.config and not any(event.stopped for event in diary.events[:-1])
    np.testing.assert_array_equal(diary.points[-1]["y"], result.point["y"])


@pytest.mark.mpi
def test_a_resumed_run_has_events_of_its_new_rounds(out, comm):
    mpifed.run(job(out), comm, callbacks=[Diary()])
    diary, nobody = Diary(), Diary()
    mpifed.resume(out, ["rounds=5"], comm, callbacks=[diary])
    mpifed.run(job(out) | {"rounds": 5}, comm, callbacks=[nobody])
    if not comm.rank:
        assert diary.names == ["start 4", "round 5", "evaluation 5", "end 5"] and not nobody.names


class Failing:
    def on_round(self, event):
        if event.round == 3:
            raise KeyError("auc")


class Leaving:
    def on_evaluation(self, event):
        raise SystemExit(7)


class Writing:
    def on_round(self, event):
        event.point["x"][0] = 1


class Zeroing:
    """Writes to memory that NumPy protects, as ``torch.from_numpy`` allows."""

    def on_round(self, event):
        torch.from_numpy(event.point["x"]).zero_()


@pytest.mark.mpi
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable:UserWarning")
def test_points_are_copies(out, comm):
    changed, without = (
        mpifed.run(job(f"{out}/{len(callbacks)}"), comm, callbacks=callbacks)
        for callbacks in ([Zeroing()], [])
    )
    np.testing.assert_array_equal(bits(changed), bits(without))


@pytest.mark.mpi
@pytest.mark.parametrize("callback, words", [
    (Failing(), "Failing.on_round failed in round 3: KeyError: 'auc'"),
    (Writing(), "Writing.on_round failed in round 1: ValueError: assignment destination is read-only"),
    (Leaving(), "Leaving.on_evaluation failed in round 0: RuntimeError: sys.exit(7) was called"),
])  # fmt: skip
def test_a_callback_that_fails_ends_all_ranks_with_its_name(out, comm, callback, words):
    with pytest.raises(CollectiveError, match=re.escape(words)):
        mpifed.run(job(out), comm, callbacks=[callback])
    if isinstance(callback, Failing):  # resumed from the checkpoint of round 2
        assert mpifed.run(job(out), comm).stopped == "all 4 rounds done"


class Full(Diary):
    """Stops the run in one of its methods."""

    def __init__(self, name, round):
        super().__init__()
        self.name, self.round = name, round

    def _note(self, name, event):
        super()._note(name, event)
        if (name, event.round) == (self.name, self.round):
            event.stop("it is enough")


@pytest.mark.mpi
@pytest.mark.parametrize("name, round", [("on_start", 0), ("on_round", 1), ("on_evaluation", 2)])
def test_a_callback_ends_the_run(out, comm, name, round):
    """The end is that of a run with fewer rounds, on all ranks and for a later call."""
    diary = Full(name, round)
    result = mpifed.run(job(out), comm, callbacks=[diary])
    assert result.end == End("callback", "stopped by Full: it is enough") and not result.unfinished
    assert result.round == round
    again = mpifed.run(job(out), comm, callbacks=[Failing()])
    assert (again.end, again.metrics) == (result.end, result.metrics)
    if comm.rank == 0:
        assert diary.names[-2:] == [f"evaluation {round}", f"end {round}"]
        assert result.history["round"] == sorted({0, round}) and result.metrics
        assert diary.events[-1].stopped == result.stopped and diary.events[-1].metrics == result.metrics
    longer = mpifed.run(job(out) | {"rounds": 5}, comm)
    assert (longer.stopped, longer.round) == ("all 5 rounds done", 5)


class Stopping(Diary):
    def _note(self, name, event):
        super()._note(name, event)
        if (name, event.round) == ("on_evaluation", 2):
            signal.raise_signal(signal.SIGUSR1)


@pytest.mark.mpi
def test_a_signal_from_a_callback_stops_the_run(out, comm):
    diary = Stopping()
    with pytest.raises(mpifed.Stopped):
        mpifed.run(job(out), comm, callbacks=[diary])
    if not comm.rank:
        assert diary.names[-2:] == ["round 3", "end 3"]
        assert diary.events[-1].stopped == "a signal after round 3" and diary.events[-1].metrics == {}


@pytest.mark.mpi
def test_a_non_finite_end_is_an_event(out, comm):
    diary, table = Diary(), job(out)
    table["algorithm"] |= {"eta_x": 1e30, "eta_y": 1e30}
    with pytest.raises(NonFiniteError):
        mpifed.run(table, comm, callbacks=[diary])
    if not comm.rank:
        assert diary.names[-1].startswith("end") and "non-finite" in diary.events[-1].stopped


class Misspelt:
    def on_rounds(self, event): ...


@pytest.mark.mpi
@pytest.mark.parametrize("callbacks, words", [
    (print, "expected a list of objects"),
    ([Diary], "expected an object, got the class Diary: call it"),
    ([Misspelt()], "Misspelt has on_rounds: did you mean 'on_round'?"),
    ([print], "has none of the methods on_start, on_round, on_evaluation, on_end"),
])  # fmt: skip
def test_invalid_callbacks_are_refused_before_the_run(out, comm, callbacks, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        mpifed.run(job(f"{out}/a"), comm, callbacks=callbacks)
    with pytest.raises(ConfigError, match=re.escape(words)):
        mpifed.resume(out, comm=comm, callbacks=callbacks)


def test_without_callbacks_nothing_is_called(out, monkeypatch):
    called, gather = [], Recorder.gather
    monkeypatch.setattr(module.Callbacks, "call", lambda self, name, *rest: called.append(name))
    monkeypatch.setattr(Recorder, "gather", lambda self: (called.append("gather"), gather(self)))
    mpifed.run(job(out, checkpoint_every=0))
    assert called == ["gather"]  # for the final files
