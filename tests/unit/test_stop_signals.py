"""Signals in one process: the round that ends the run, its files, and the restored handlers."""

import ctypes
import os
import signal
import sys
import threading
import time
from types import SimpleNamespace

import h5py
import pytest
import saddle_job
import torch

from mpifed import run
from mpifed.parallel.comm import SerialComm
from mpifed.running import signals
from mpifed.running.run import sweep
from mpifed.running.signals import EXIT_INTERRUPTED, Stopped, StopSignals, hold_signals
from mpifed.simulation import simulation
from mpifed.simulation.executor import Executor
from mpifed.storage import checkpoint
from mpifed.storage.files import checkpoints, round_of
from mpifed.storage.options import StorageOptions
from mpifed.storage.results import End

SIGNALS = [signal.SIGUSR1, signal.SIGTERM, signal.SIGINT]


class Aborts(SerialComm):
    """Records the exit code instead of ending the process."""

    def __init__(self):
        self.code, self.ended = None, threading.Event()

    def abort(self, code):
        self.code = code
        self.ended.set()


def config(folder, **settings):
    return saddle_job.config(folder, 8, run={"checkpoint_every": 3, "eval_every": 5} | settings)


@pytest.fixture
def send(monkeypatch):
    """``send(number, owner, name, call)``: send a signal in a call of a method and wait for the handler."""
    watched = []

    class Watched(StopSignals):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            watched.append(self)

    monkeypatch.setattr("mpifed.running.loop.StopSignals", Watched)

    def arm(number, owner, name, call):
        method, calls = getattr(owner, name), []

        def arrives(self, *arguments, **options):
            calls.append(None)
            if len(calls) == call:
                os.kill(os.getpid(), number)
                end = time.monotonic() + 10
                while not watched[-1].requested:
                    assert time.monotonic() < end, "the signal is not handled"
                    time.sleep(0.001)
            return method(self, *arguments, **options)

        monkeypatch.setattr(owner, name, arrives)

    return arm


def signalled(folder, kind=Stopped, **settings):
    """Return the result of a run that is ended by a signal, from its exception."""
    with pytest.raises(kind) as stop:
        run(config(folder, **settings), SerialComm())
    assert kind is KeyboardInterrupt or stop.value.code == 85
    return stop.value.result


def point(result) -> torch.Tensor:
    return torch.cat([result.point["x"], result.point["y"]])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return point(run(config(tmp_path_factory.mktemp("whole") / "run"), SerialComm()))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_under_open_mpi_the_terminal_shows_sigterm(tmp_path, send, monkeypatch, number):
    """SIGTERM follows Ctrl-C; the launcher forwards SIGUSR1, and continues to print the output."""
    monkeypatch.setattr(signals, "TERMINAL", str(tmp_path / "terminal"))
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    send(number, Executor, "groups", 4)
    signalled(tmp_path / "run", SystemExit)
    if number == signal.SIGUSR1:
        assert not (tmp_path / "terminal").exists()
        return
    line = (tmp_path / "terminal").read_text().strip()
    assert line.endswith("checkpoint is of round 0; the same command continues from there")


@pytest.mark.parametrize("every, rounds", [(100, range(1, 9)), (0, ())])
def test_checkpoints_by_time(tmp_path, whole, every, rounds):
    options = {"checkpoint_every": every, "checkpoint_seconds": 1e-9, "keep": 9}
    assert torch.equal(point(run(config(tmp_path, **options), SerialComm())), whole)
    assert [*map(round_of, checkpoints(tmp_path))] == [*rounds]


@pytest.mark.parametrize("settings, seconds, duration, rounds", [
    ({}, 1.0, 0.0, [50, 100, 150, 200]),
    ({}, 1.0, 3.0, [50, 100, 150, 200]),
    ({}, 1.0, 8.0, [80, 160]),  # 50 and 100 are too early
    ({}, 10.0, 0.0, [30, 50, 80, 100, 130, 150, 180, 200]),  # also after 300 seconds
    ({}, 10.0, 50.0, [50, 100, 150, 200]),
    ({"checkpoint_every": 70}, 1.0, 1e9, [70, 140]),
    ({"checkpoint_every": 70, "checkpoint_seconds": 60.0}, 1.0, 1e9, [60, 70, 130, 140, 200]),
    ({"checkpoint_seconds": 60.0}, 1.0, 1e9, [60, 120, 180]),
    ({"checkpoint_every": 0, "checkpoint_seconds": 60.0}, 1.0, 0.0, []),
])  # fmt: skip
def test_rounds_with_a_checkpoint(settings, seconds, duration, rounds):
    """A default interval is at least ten times the time of a checkpoint; intervals that are set are kept."""
    options, written = StorageOptions(**settings), [0]
    for r in range(1, 201):
        if options.is_checkpoint_due(r, written[-1], (r - written[-1]) * seconds, duration):
            written.append(r)
    assert written[1:] == rounds


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_ends_the_run_after_the_next_round_and_the_same_job_continues(
    tmp_path, send, whole, capsys, number
):
    send(number, Executor, "groups", 4)  # in round 4 - 1, as the start is a phase, too
    result = signalled(tmp_path, KeyboardInterrupt if number == signal.SIGINT else SystemExit)
    assert result.unfinished and result.end == End("signal", "a signal after round 4")
    output = capsys.readouterr().err
    message = "received in round 3: the run writes a checkpoint and stops after round 4 at the latest"
    assert f"{number.name} {message}" in output, output
    assert "the newest checkpoint is of round 0" in output and "stopped after round 4" in output
    names = {path.name for path in tmp_path.glob("*.h5")}
    assert names == {"checkpoint-00000003.h5", "checkpoint-00000004.h5", "run.h5"}
    with h5py.File(tmp_path / "run.h5") as file:
        assert file.attrs["stopped"] == file.attrs["end"] == "" and file["costs/round"][-1] == 4
    again = run(config(tmp_path), SerialComm(), resume="must")
    assert not again.unfinished and "continuing" in capsys.readouterr().err
    assert torch.equal(point(again), whole)


@pytest.mark.parametrize("owner, name, call, after", [
    (sys.modules["mpifed.simulation.simulation"], "prepare", 1, 1),  # set-up
    (simulation.Simulation, "evaluate", 1, 1),  # of the starting point
    (simulation.Simulation, "evaluate", 2, 6),  # of round 5
    (checkpoint, "write", 1, 4),  # of round 3
])  # fmt: skip
def test_signals_between_rounds(tmp_path, send, whole, owner, name, call, after):
    send(signal.SIGUSR1, owner, name, call)
    assert signalled(tmp_path).stopped == f"a signal after round {after}"
    assert checkpoint.newest(tmp_path)[1]["round"] == after
    assert torch.equal(point(run(config(tmp_path), SerialComm())), whole)


LAST = [(Executor, "groups", 8), (Executor, "groups", 9), (simulation.Simulation, "evaluate", 3)]


@pytest.mark.parametrize("owner, name, call", LAST)
def test_signal_before_or_in_the_last_round_of_a_complete_run(tmp_path, send, whole, owner, name, call):
    send(signal.SIGTERM, owner, name, call)
    result = signalled(tmp_path)
    assert not result.unfinished and result.stopped == "all 8 rounds done"
    assert torch.equal(point(result), whole)


def test_checkpoint_is_written_even_if_the_settings_disable_it(tmp_path, send, whole):
    send(signal.SIGUSR1, Executor, "groups", 4)
    assert signalled(tmp_path, checkpoint_every=0).unfinished
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-00000004.h5"]
    assert torch.equal(point(run(config(tmp_path, checkpoint_every=0), SerialComm())), whole)


@pytest.mark.parametrize("call", [4, 9], ids=["in the middle of a run", "in its last round"])
def test_signal_ends_a_sweep(tmp_path, send, call):
    """The second run does not start, even if the first one is complete."""
    runs = [SimpleNamespace(name=name, config=config(tmp_path / name)) for name in ("first", "second")]
    send(signal.SIGTERM, Executor, "groups", call)
    with pytest.raises(Stopped) as stop:
        sweep(runs, SerialComm())
    assert stop.value.result.unfinished == (call == 4) and not (tmp_path / "second").exists()
    outcome = sweep(runs, SerialComm())
    assert outcome.done == 2 and outcome.before == (call == 9)


def test_handlers_are_restored(tmp_path):
    def state():
        reader = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(reader)
        return [signal.getsignal(number) for number in SIGNALS], reader

    before, threads = state(), threading.active_count()
    run(config(tmp_path), SerialComm())
    assert state() == before and threading.active_count() == threads


def test_run_in_another_thread_catches_no_signals(tmp_path, whole):
    results = []
    thread = threading.Thread(target=lambda: results.append(run(config(tmp_path), SerialComm())))
    thread.start()
    thread.join()
    assert torch.equal(point(results[0]), whole)


def test_second_interrupt_ends_the_process_even_in_c_code():
    """The main thread sleeps in C, where Python runs no handler. Other signals may be repeated."""
    comm = Aborts()
    with StopSignals(comm, lambda: "received") as signals:
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            os.kill(os.getpid(), number)
            time.sleep(0.05)
        assert signals.requested == "SIGUSR1" and comm.code is None
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        nap = ctypes.CDLL(None).usleep
        for _ in range(100):
            if comm.ended.is_set():
                break
            nap(100_000)
    assert comm.code == EXIT_INTERRUPTED


def test_signals_around_a_run():
    """The run acts on earlier signals; later signals have no effect."""
    before = [signal.getsignal(number) for number in SIGNALS]
    with hold_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        with StopSignals(SerialComm(), lambda: "received") as signals:
            end = time.monotonic() + 10
            while not signals.requested and time.monotonic() < end:
                time.sleep(0.001)
            assert signals.requested == "SIGTERM"
        os.kill(os.getpid(), signal.SIGUSR1)
    assert [signal.getsignal(number) for number in SIGNALS] == before
