"""Signals to the launcher and to ranks: exit code 85 after a checkpoint, and resumed runs are bitwise
identical.

One rank is paused within a round while the others wait for it in an Allreduce; then the signals are sent.
"""

import os
import signal
import time

import launch
import numpy as np
import pytest
from processes import all_ranks, wait_until
from small_job import LIMIT, ROUNDS, STEP, command, end, final, saved

USR1, TERM, INT = signal.SIGUSR1, signal.SIGTERM, signal.SIGINT
#: Seconds in which a signal reaches a Python thread before the round continues.
DELIVERY = 0.5


class Paused:
    """A job whose last rank is paused in its ``call``-th client step, while all others wait for it."""

    def __init__(self, folder, size, call, mpi="openmpi"):
        self.place, self.call = folder / f"paused-{saved(folder)}", call
        self.place.mkdir(exist_ok=True)
        self.base = saved(folder)
        #: The current round; a new run makes one step before its first round.
        self.round = self.base + call if self.base else call - 1
        fault = f"{max(size - 1, 0)} pause:{self.place} {STEP} {call}"
        self.process = launch.start(size, command(folder, fault), mpi=mpi)
        wait_until(
            lambda: (self.place / f"arrived-{call}").exists() or self.process.poll() is not None, LIMIT
        )
        self.pids = all_ranks(self.process, size)

    def go(self) -> tuple[int, str]:
        time.sleep(DELIVERY)
        (self.place / f"go-{self.call}").touch()
        return launch.finish(self.process, LIMIT)


def send(paused, *signals):
    """Send pairs of a receiver, a rank or "launcher", and a signal one after another."""
    for receiver, number in signals:
        os.kill(paused.process.pid if receiver == "launcher" else paused.pids[receiver], number)
        time.sleep(0.1)


def stop_and_continue(folder, steps, mpi):
    """Start the same job repeatedly, stopped by other signals each time, and finish it in this process."""
    for size, signals in steps:
        paused = Paused(folder, size, 3, mpi)
        send(paused, *signals)
        code, output = paused.go()
        assert code == 85, (signals, code, output)
        assert f"stopped after round {saved(folder)}: the same command continues from there" in output, output
        # At the end of the round after the current one, or one later if a signal was delayed on a busy
        # machine
        assert saved(folder) - paused.round in (1, 2), (signals, paused.round, saved(folder), output)
        if signals[0][0] in (0, "launcher"):
            name, r = signals[0][1].name, paused.round
            notice = (
                f"{name} received in round {r}: the run writes a checkpoint and stops after round {r + 1}"
            )
            assert notice in output, output
        if paused.base:
            assert f"from round {paused.base}" in output, output
        assert "Traceback" not in output, output
    return end(folder)


def test_any_signal_to_any_ranks_under_open_mpi(tmp_path, whole):
    steps = [
        (2, [("launcher", USR1)]),
        (3, [(1, USR1), (2, TERM)]),
        (2, [(0, INT), (1, TERM), (0, USR1)]),
        (0, [(0, TERM)]),
    ]
    np.testing.assert_array_equal(stop_and_continue(tmp_path, steps, "openmpi"), whole)


def test_any_signal_to_any_ranks_under_mpich(tmp_path, whole):
    """mpiexec forwards SIGTERM and gives the ranks time to finish."""
    steps = [(3, [("launcher", USR1)]), (2, [("launcher", TERM)]), (2, [(1, INT)])]
    np.testing.assert_array_equal(stop_and_continue(tmp_path, steps, "mpich"), whole)


def test_open_mpi_kills_on_sigterm_to_the_launcher_and_the_job_resumes(tmp_path, whole):
    """mpirun gives the ranks a quarter of a second, enough for a message but not for a round."""
    paused = Paused(tmp_path, 2, 8)
    send(paused, ("launcher", TERM))
    code, output = launch.finish(paused.process, LIMIT)
    assert code != 0, output
    assert saved(tmp_path) == 6, output
    np.testing.assert_array_equal(end(tmp_path), whole)


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
def test_two_interrupts_end_all_ranks_at_once(tmp_path, mpi):
    """Also while the rank waits in an Allreduce for a paused rank."""
    paused = Paused(tmp_path, 2, 3, mpi)
    send(paused, (0, INT), (0, INT))
    code, output = launch.finish(paused.process, LIMIT)
    assert code == 130, output
    assert "second SIGINT on rank 0: ending at once" in output, output


def test_a_signal_in_the_last_round(tmp_path, whole):
    paused = Paused(tmp_path, 2, ROUNDS + 1)
    send(paused, (1, USR1))
    code, output = paused.go()
    assert code == 0 and "stopped after" not in output, output
    np.testing.assert_array_equal(final(tmp_path), whole)
