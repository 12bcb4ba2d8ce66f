"""Launchers that die or send signals early, and scripts that initialise MPI themselves."""

import os
import signal
from pathlib import Path

import launch
import pytest
from processes import all_ranks, descendants, wait_for_the_end, wait_until
from small_job import LIMIT, STEP, command, job

SUPPORT = Path(__file__).parents[1] / "support"
EARLY, OWN_MPI = SUPPORT / "early.py", SUPPORT / "own_mpi.py"
#: Seconds between the death of a launcher and of its last rank: one second, more on a busy machine.
PATIENCE = 60


def wait_for(process, path: Path) -> None:
    wait_until(lambda: path.exists() or process.poll() is not None, LIMIT)
    assert path.exists(), launch.finish(process, LIMIT)


@pytest.mark.parametrize(
    "mpi, victim", [("openmpi", "mpirun"), ("mpich", "mpirun"), ("mpich", "hydra_pmi_proxy")]
)
def test_ranks_end_with_their_launcher(tmp_path, mpi, victim):
    """One rank is paused in a client's step, the other waits, and neither is notified of the death."""
    process = launch.start(2, command(tmp_path, f"1 pause:{tmp_path} {STEP} 5"), mpi=mpi)
    wait_for(process, tmp_path / "arrived-5")
    pids, family = all_ranks(process, 2), {process.pid, *descendants(process.pid)}
    proxies = (pid for pid in family if victim in Path(f"/proc/{pid}/cmdline").read_text())
    os.kill(process.pid if victim == "mpirun" else next(proxies), signal.SIGKILL)
    assert wait_for_the_end(pids.values(), PATIENCE), "a rank has outlived its launcher"
    code, output = launch.finish(process, LIMIT)
    assert code != 0 and "Traceback" not in output, output


@pytest.mark.parametrize(
    "ranks, mpi, number",
    [(2, "openmpi", signal.SIGTERM), (2, "mpich", signal.SIGUSR1), (0, "", signal.SIGINT)],
)
def test_a_signal_while_a_rank_is_loading(tmp_path, ranks, mpi, number):
    """The signal reaches the last rank only, while it imports and the others wait for it in MPI_Init."""
    last = max(ranks - 1, 0)
    arguments = [EARLY, tmp_path, last, "run", job(tmp_path), "--no-report"]
    process = launch.start(ranks, arguments, mpi=mpi or "openmpi")
    wait_for(process, tmp_path / "arrived")
    os.kill(all_ranks(process, ranks)[last], number)
    (tmp_path / "go").touch()
    code, output = launch.finish(process, LIMIT)
    said = f"mpifed: {number.name} arrived before the run began: start it with the same command\n"
    assert code == 85 and output.count(said) == 1 and "Traceback" not in output, output
    assert not (tmp_path / "run").exists()


def test_signals_while_a_command_is_loading_that_has_nothing_to_save(tmp_path):
    """A second Ctrl-C ends the command at once; SIGTERM has the same effect as after loading."""
    for numbers, code in (([signal.SIGINT, signal.SIGINT], 130), ([signal.SIGTERM], -signal.SIGTERM)):
        folder = tmp_path / str(len(numbers))
        folder.mkdir()
        process = launch.start(0, [EARLY, folder, 0, "list"])
        wait_for(process, folder / "arrived")
        for number in numbers:
            os.kill(process.pid, number)
            if number == signal.SIGINT:  # two pending signals of one type are merged
                wait_until(lambda: not pending(process.pid, number) or process.poll() is not None)
        if code < 0:
            (folder / "go").touch()
        assert launch.finish(process, LIMIT)[0] == code


def pending(pid: int, number: int) -> bool:
    """Return whether a signal has not yet been delivered to the process."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    sets = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd:", "ShdPnd:"))]
    return any(one >> (number - 1) & 1 for one in sets)


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
def test_a_script_that_initialises_mpi(tmp_path, mpi):
    """MPI is initialised late and for one thread, runs use subsets of the ranks, and MPI is usable
    afterwards."""
    code, output = launch.launch(2, [OWN_MPI, tmp_path], LIMIT, mpi=mpi)
    assert code == 0, output
    assert output.count("refused: MPI is not initialised: ") == 2, output
    assert output.count("refused: expected a communicator of mpi4py, got int") == 2, output
    assert output.count("the sum of ranks is 1") == 2, output
    assert output.count("refused: MPI has been finalised: ") == 2, output


def test_a_script_that_fails_on_one_rank_after_a_run(tmp_path):
    code, output = launch.launch(2, [OWN_MPI, tmp_path, "raise"], LIMIT)
    assert code == 1 and "rank 1 of 2 failed:" in output and "ValueError: after the run" in output, output
