"""Limits and reports of the watchdog. Hangs of real processes are in tests/faults."""

import signal
import subprocess
import sys
import threading
import time

import pytest
import saddle_job

from mpifed import run
from mpifed.parallel.comm import SerialComm
from mpifed.running import watchdog
from mpifed.running.checkpointing import CheckpointManager
from mpifed.running.watchdog import EXIT_HANG, SLACK, Watchdog
from mpifed.simulation.executor import Executor
from mpifed.simulation.simulation import Simulation

#: The threads of these watchdogs raise SystemExit instead of ending the process.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class Ranks(SerialComm):
    """Rank ``rank`` of 4 with the answers that it receives. Records its exit code."""

    size = 4

    def __init__(self, rank=0, answers=None):
        self.rank, self.answers, self.code, self.ended = rank, answers, None, threading.Event()

    def report_hang(self, text, seconds):
        return None if self.answers is None else {self.rank: text, **self.answers}

    def abort(self, code):
        self.code = code
        self.ended.set()
        raise SystemExit  # ends the watchdog's thread


@pytest.fixture
def clock(monkeypatch):
    """A clock set by the test, for a process that is always computing."""
    now = [1000.0]
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(watchdog.time, "process_time", lambda: now[0])
    return now


def expire(comm, least=0.05):
    with Watchdog(comm, least) as dog:
        dog.beat(7)
        dog.beat(8)
        assert comm.ended.wait(60), "the watchdog has not expired"
    return dog


def test_report_of_the_ranks(capfd, monkeypatch):
    comm = Ranks(0, {2: "is at loss.py:7 (step)", 3: "waits in Allreduce"})
    comm.calling = "Allreduce"
    expire(comm)
    assert comm.code == EXIT_HANG
    said = capfd.readouterr().err
    assert "in the round after round 8 (run.watchdog = 0.05). Arrived: 0, 3. Not arrived: " in said, said
    assert "Not arrived: rank 1 does not answer; rank 2 is at loss.py:7 (step)\n" in said, said
    assert "Thread" not in said  # no stack of a rank that waits for others


def test_report_of_the_place(capfd):
    comm = Ranks(0, {})
    expire(comm)
    said = capfd.readouterr().err
    # In Event.wait.
    assert "Not arrived: rank 0 is at /" in said and "(wait); rank 1 does not answer" in said, said
    assert "most recent call first" in said and "Arrived: none" in said, said


def test_other_ranks_end_the_job_if_rank_0_does_not(capfd, monkeypatch):
    """Rank 1 ends the job if rank 0, from which it has an answer, does not."""
    monkeypatch.setattr(watchdog, "GRACE", 0.1)
    for rank, answers in ((1, {0: "waits in Bcast"}), (3, None)):
        comm = Ranks(rank, answers)
        expire(comm)
        assert comm.code == EXIT_HANG and "mpifed: no progress" in capfd.readouterr().err


def test_progress():
    comm = Ranks()
    with Watchdog(comm, 0.2) as dog:
        for r in range(20):
            time.sleep(0.03)
            dog.beat(r)
    assert comm.code is None


def test_slow_rounds_and_evaluations_are_no_hangs(tmp_path, monkeypatch):
    """Each takes three times as long as run.watchdog, every time."""

    class SingleRank(SerialComm):
        def abort(self, code):
            raise SystemExit

    def slow(function):
        def slower(*arguments, **options):
            time.sleep(0.6)
            return function(*arguments, **options)

        return slower

    for owner, name in ((Simulation, "evaluate"), (Executor, "groups")):
        monkeypatch.setattr(owner, name, slow(getattr(owner, name)))
    settings = {"watchdog": 0.2, "eval_every": 1, "checkpoint_every": 1}
    result = run(saddle_job.config(tmp_path, 2, run=settings), SingleRank())
    assert result.stopped == "all 2 rounds done"


def test_disabled():
    threads = threading.active_count()
    with Watchdog(Ranks(), 0) as dog:
        dog.beat(1)
        assert threading.active_count() == threads


def test_limit_is_ten_times_the_longest_duration_of_its_type(clock):
    """The first limit of each type is ten times the minimum."""
    with Watchdog(Ranks(), 60) as dog:
        assert dog._limit == SLACK * 60
        for seconds, r, then, limit in [
            (500, 0, "evaluation", 600),
            (30, 0, "round", 600),
            (1, 1, "round", 60),
            (9, 2, "round", 90),
            (2, 3, "evaluation", 300),
            (100, 3, "round", 90),
            (1, 4, "checkpoint", 600),
            (400, 4, "round", 90),
            (1, 5, "evaluation", 1000),
            (1, 5, "checkpoint", 4000),
        ]:
            clock[0] += seconds
            dog.beat(r, then)
            assert dog._limit == limit


def test_expected_duration_determines_the_first_limit(clock):
    with Watchdog(Ranks(), 60) as dog:
        for then, expected, limit in [("short", 1e-6, 60), ("checkpoint", 8.0, 80)]:
            dog.beat(1, then, expected)
            assert dog._limit == limit
        clock[0] += 7
        dog.beat(1)
        dog.beat(2, "checkpoint", 20.0)
        assert dog._limit == 70


@pytest.mark.parametrize("least", [float("inf"), 1e300, 1e12])
def test_limit_beyond_the_range_of_timers(least):
    with Watchdog(Ranks(), least) as dog:
        dog.beat(1)
        assert not least < float("inf") or dog._thread.is_alive()


#: Program that beats every 20 ms with a limit of 0.4 s until it reads a line.
BEATS = """
import select, sys, time
from mpifed.parallel.comm import SerialComm
from mpifed.running import watchdog
from mpifed.running.watchdog import Watchdog
watchdog.GRACE = 0.1
with Watchdog(SerialComm(), 0.4) as dog:
    for r in range(10_000):
        time.sleep(0.02)
        dog.beat(r)
        if r == 5:
            print("runs", flush=True)
        if select.select([sys.stdin], [], [], 0)[0]:
            time.sleep(0.2)
            break
    print("ends")
"""


def beats() -> subprocess.Popen:
    """Start the program and wait for its first beats."""
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    process = subprocess.Popen([sys.executable, "-c", BEATS], text=True, **pipes)
    assert process.stdout.readline() == "runs\n"
    return process


@pytest.mark.parametrize("count, stops, between", [
    (4, (0.7, 0.45, 0.5, 0.6, 0.8, 2.0, 0.5), 0.2),  # about the limit, and longer
    (1, (0.18,) * 20, 0.02),  # the process runs for a tenth of the time
])  # fmt: skip
def test_stopped_process_continues(count, stops, between):
    """Repeated and in several processes, to hit every moment of the thread's period."""
    processes = [beats() for _ in range(count)]
    for seconds in stops:
        for number, pause in ((signal.SIGSTOP, seconds), (signal.SIGCONT, between)):
            for process in processes:
                process.send_signal(number)
            time.sleep(pause)
    for process in processes:
        said, _ = process.communicate("\n", timeout=60)
        assert process.returncode == 0 and said == "ends\n", said


def test_process_that_holds_the_gil_ends_with_its_stacks():
    """``PyDLL`` calls ``sleep`` while it holds the GIL."""
    code = (
        "import ctypes; from mpifed.parallel.comm import SerialComm; from mpifed.running import watchdog\n"
        "watchdog.RESERVE = 1.0\n"
        "def hang(): ctypes.PyDLL(None).sleep(600)\n"
        "with watchdog.Watchdog(SerialComm(), 0.2): hang()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "Timeout" in done.stderr and "in hang" in done.stderr, done.stderr


def test_alarmed_rank_answers_before_its_own_limit(capfd):
    """Its own limit is an hour, because of a long round."""

    class Alarmed(Ranks):
        def hang_reported(self):
            return True

    comm = Alarmed(0, {1: "waits in Bcast", 2: "waits in Bcast", 3: "is at loss.py:7 (step)"})
    with Watchdog(comm, 0.2) as dog:
        dog._longest["round"] = 360
        dog.beat(3)
        assert comm.ended.wait(60)
    assert comm.code == EXIT_HANG
    assert "Not arrived: rank 0 is at /" in (said := capfd.readouterr().err) and "rank 3 is at loss" in said


def test_a_single_process_has_the_whole_time(clock):
    """Ranks that another rank has alarmed answer after half of the minimum. The thread wakes every 0.05 s."""
    comm = Ranks(0, {})
    with Watchdog(comm, 0.4) as dog:
        dog.beat(1)
        clock[0] += 3.5
        assert not comm.ended.wait(0.5)
        clock[0] += 1.5
        assert comm.ended.wait(60)


def test_beats_of_a_run(tmp_path, monkeypatch):
    """All types of work are reported. Files are expected to be written at 100 MB/s."""
    beats, seconds = [], []

    def beat(self, round, then="round", expected=None):
        beats.append((round, then))
        seconds.append(expected)

    monkeypatch.setattr(Watchdog, "beat", beat)
    monkeypatch.setattr(CheckpointManager, "state_bytes", 5e8)
    run(saddle_job.config(tmp_path, 3, run={"eval_every": 2}), SerialComm())

    def done(r, *types):
        return [beat for kind in types for beat in ((r, kind), (r, "round"))]

    assert beats == [
        *done(0, "evaluation"),
        (1, "round"),
        *((2, "round"), *done(2, "evaluation", "checkpoint")),
        *((3, "round"), *done(3, "evaluation"), (3, "evaluation"), *done(3, "checkpoint")),
    ]
    assert seconds == [5.0 if then == "checkpoint" else None for _, then in beats]


def test_size_of_a_checkpoint(tmp_path):
    """In float32: the shared record, the output point, and the rows of 4 clients."""
    job = saddle_job.config(tmp_path, run={"dtype": "float32"}, algorithm={"name": "FGDA", "q": 2})
    simulation = Simulation.from_settings(job, SerialComm())
    whole = sum(len(state.buffer) for state in (simulation.shared, simulation.output))
    size = simulation.client_rows().shape[1]
    manager = CheckpointManager(simulation.config.run, None, simulation, None, SerialComm())
    assert manager.state_bytes == 4 * (whole + 4 * size) and size > 0
