"""When the watchdog bites, and what it says. Hangs of real processes are in tests/faults."""

import signal
import subprocess
import sys
import threading
import time

import pytest

from mpifed import run
from mpifed.config.job import Config
from mpifed.parallel.comm import SerialComm
from mpifed.running import runner, watchdog
from mpifed.running.checkpointing import bytes_of
from mpifed.running.watchdog import EXIT_HANG, SLACK, Watchdog
from mpifed.simulation.executor import Executor
from mpifed.simulation.simulation import Simulation

#: The threads of these watchdogs end by SystemExit, where real ones end the process.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class Ranks(SerialComm):
    """Rank ``rank`` of 4, with the answers that it gets; notes how it ends."""

    size = 4

    def __init__(self, rank=0, answers=None):
        self.rank, self.answers, self.code, self.ended = rank, answers, None, threading.Event()

    def witness(self, text, seconds):
        return None if self.answers is None else {self.rank: text, **self.answers}

    def abort(self, code):
        self.code = code
        self.ended.set()
        raise SystemExit  # ends the watchdog's thread


@pytest.fixture
def clock(monkeypatch):
    """A clock that tests set, of a process that computes all the time."""
    now = [1000.0]
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(watchdog.time, "process_time", lambda: now[0])
    return now


def bite(comm, least=0.05):
    with Watchdog(comm, least) as dog:
        dog.beat(7)
        dog.beat(8)
        assert comm.ended.wait(60), "the watchdog sleeps"
    return dog


def test_the_ranks_are_named(capfd, monkeypatch):
    comm = Ranks(0, {2: "is at loss.py:7 (step)", 3: "waits in Allreduce"})
    comm.calling = "Allreduce"
    bite(comm)
    assert comm.code == EXIT_HANG
    said = capfd.readouterr().err
    assert "in the round after round 8 (run.watchdog = 0.05). Arrived: 0, 3. Not arrived: " in said, said
    assert "Not arrived: rank 1 does not answer; rank 2 is at loss.py:7 (step)\n" in said, said
    assert "Thread" not in said  # it waits for others: its own stack says nothing


def test_a_rank_that_hangs_says_where(capfd):
    comm = Ranks(0, {})
    bite(comm)
    said = capfd.readouterr().err
    assert "Not arrived: rank 0 is at /" in said and "(wait); rank 1 does not answer" in said, (
        said
    )  # in Event.wait
    assert "most recent call first" in said and "Arrived: none" in said, said


def test_where_the_first_witness_is_silent_another_rank_ends_the_job(capfd, monkeypatch):
    """Rank 1 has heard of rank 0, which is about to end the job, and ends it itself when nothing happens."""
    monkeypatch.setattr(watchdog, "GRACE", 0.1)
    for rank, answers in ((1, {0: "waits in Bcast"}), (3, None)):
        comm = Ranks(rank, answers)
        bite(comm)
        assert comm.code == EXIT_HANG and "mpifed: no progress" in capfd.readouterr().err


def test_what_moves_is_left_alone():
    comm = Ranks()
    with Watchdog(comm, 0.2) as dog:
        for r in range(20):
            time.sleep(0.03)
            dog.beat(r)
    assert comm.code is None


def test_a_slow_first_round_and_evaluation_are_no_hangs(tmp_path, monkeypatch):
    """Each takes three times as long as run.watchdog, every time."""

    class Alone(SerialComm):
        def abort(self, code):
            raise SystemExit

    def slow(function):
        def slower(*arguments, **options):
            time.sleep(0.6)
            return function(*arguments, **options)

        return slower

    for owner, name in ((Simulation, "evaluate"), (Executor, "groups")):
        monkeypatch.setattr(owner, name, slow(getattr(owner, name)))
    result = run(
        Config.from_table(
            {
                "rounds": 2,
                "algorithm": {"name": "FGDA", "q": 1},
                "problem": {"name": "Saddle", "clients": 1, "d": 2},
                "oracle": {"batch_size": 0},
                "run": {
                    "progress": False,
                    "watchdog": 0.2,
                    "eval_every": 1,
                    "checkpoint_every": 1,
                    "out": str(tmp_path),
                },
            }
        ),
        Alone(),
    )
    assert result.stopped == "all 2 rounds done"


def test_no_watch():
    threads = threading.active_count()
    with Watchdog(Ranks(), 0) as dog:
        dog.beat(1)
        assert threading.active_count() == threads


def test_the_limit_is_ten_times_the_longest_of_its_kind(clock):
    """What has not been done before gets ten times the least; a round says nothing about an evaluation."""
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


def test_what_is_expected_to_take_some_time_gets_ten_times_as_long_at_first(clock):
    """And at least run.watchdog; from the second time on it is known."""
    with Watchdog(Ranks(), 60) as dog:
        for then, expected, limit in [("short", 1e-6, 60), ("checkpoint", 8.0, 80)]:
            dog.beat(1, then, expected)
            assert dog._limit == limit
        clock[0] += 7
        dog.beat(1)
        dog.beat(2, "checkpoint", 20.0)
        assert dog._limit == 70


@pytest.mark.parametrize("least", [float("inf"), 1e300, 1e12])
def test_a_limit_that_never_comes(least):
    with Watchdog(Ranks(), least) as dog:
        dog.beat(1)
        assert not least < float("inf") or dog._thread.is_alive()


#: Beats every 20 ms in a process of its own, with a limit of 0.4 s, until it reads a line.
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
    """A process that has begun to beat."""
    process = subprocess.Popen(
        [sys.executable, "-c", BEATS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout.readline() == "runs\n"
    return process


def test_a_process_that_was_stopped_goes_on():
    """For about the limit and for several times as long; again and again, so that some moment is an unlucky
    one.
    """
    processes = [beats() for _ in range(4)]
    for seconds in (0.7, 0.45, 0.5, 0.6, 0.8, 2.0, 0.5):
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        for process in processes:
            process.send_signal(signal.SIGCONT)
        time.sleep(0.2)
    for process in processes:
        said, _ = process.communicate("\n", timeout=60)
        assert process.returncode == 0 and said == "ends\n", said


def test_many_short_stops_are_no_hang():
    """The process runs for a tenth of the time."""
    process = beats()
    for _ in range(20):
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.18)
        process.send_signal(signal.SIGCONT)
        time.sleep(0.02)
    said, _ = process.communicate("\n", timeout=60)
    assert process.returncode == 0 and said == "ends\n", said


def test_a_process_in_which_no_python_can_run_ends_with_its_stacks():
    """``PyDLL`` calls ``sleep`` while it holds the GIL. In a process of its own, which it ends."""
    code = (
        "import ctypes; from mpifed.parallel.comm import SerialComm; from mpifed.running import watchdog\n"
        "watchdog.RESERVE = 1.0\n"
        "def hang(): ctypes.PyDLL(None).sleep(600)\n"
        "with watchdog.Watchdog(SerialComm(), 0.2): hang()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "Timeout" in done.stderr and "in hang" in done.stderr, done.stderr


def test_a_rank_that_hears_of_an_alarm_answers_before_its_own_limit(capfd):
    """Its own longest round has been longer: it would say nothing for an hour."""

    class Asked(Ranks):
        def alarmed(self):
            return True

    comm = Asked(0, {1: "waits in Bcast", 2: "waits in Bcast", 3: "is at loss.py:7 (step)"})
    with Watchdog(comm, 0.2) as dog:
        dog._longest["round"] = 360
        dog.beat(3)
        assert comm.ended.wait(60)
    assert comm.code == EXIT_HANG
    assert "Not arrived: rank 0 is at /" in (said := capfd.readouterr().err) and "rank 3 is at loss" in said


def test_a_run_says_after_every_piece_of_work_what_comes_next(tmp_path, monkeypatch):
    """What is left out counts as time without progress. Files are expected at 100 MB/s."""
    beats, seconds = [], []

    def beat(self, round, then="round", expected=None):
        beats.append((round, then))
        seconds.append(expected)

    monkeypatch.setattr(Watchdog, "beat", beat)
    monkeypatch.setattr(runner, "bytes_of", lambda simulation: 5e8)
    settings = {"out": str(tmp_path), "progress": False, "eval_every": 2, "checkpoint_every": 2}
    table = {"algorithm": {"name": "FGDA", "q": 2}, "problem": {"name": "Saddle", "d": 2}, "run": settings}
    run(Config.from_table({"rounds": 3, **table}), SerialComm())

    def done(r, *pieces):
        return [beat for piece in pieces for beat in ((r, piece), (r, "round"))]

    assert beats == [
        *done(0, "evaluation"),
        (1, "round"),
        *((2, "round"), *done(2, "evaluation", "checkpoint")),
        *((3, "round"), *done(3, "evaluation"), (3, "evaluation"), *done(3, "checkpoint")),
    ]
    assert seconds == [5.0 if then == "checkpoint" else None for _, then in beats]


def test_the_bytes_of_a_checkpoint():
    """In float32: the shared record, the point of the output, and the rows of 3 clients."""
    table = {"algorithm": {"name": "FGDA", "q": 2}, "problem": {"name": "Saddle", "d": 2, "clients": 3}}
    simulation = Simulation.from_settings(Config.from_table(table), SerialComm())
    whole = sum(len(state.buffer) for state in (simulation.shared, simulation.output))
    assert bytes_of(simulation) == 4 * (whole + 3 * simulation.row_size) and simulation.row_size > 0
