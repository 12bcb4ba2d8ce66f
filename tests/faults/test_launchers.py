"""What launchers and scripts do to a run: they die, they send signals too early, they have begun with MPI."""

import os
import signal
from pathlib import Path

import launch
import pytest
from processes import all_ranks, descendants, wait_for_the_end, wait_until
from small_job import LIMIT, STEP, command, job

SUPPORT = Path(__file__).parents[1] / "support"
EARLY, OWN_MPI = SUPPORT / "early.py", SUPPORT / "own_mpi.py"
#: Seconds from the death of a launcher to that of its last rank: a second, and room for a busy machine.
PATIENCE = 60


def wait_for(process, path: Path) -> None:
    wait_until(lambda: path.exists() or process.poll() is not None, LIMIT)
    assert path.exists(), launch.finish(process, LIMIT)


@pytest.mark.parametrize(
    "mpi, victim", [("openmpi", "mpirun"), ("mpich", "mpirun"), ("mpich", "hydra_pmi_proxy")]
)
def test_ranks_go_with_their_launcher(tmp_path, mpi, victim):
    """One rank stands still in a client's step, the other waits, and nobody tells them of the death."""
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
    """To the last rank only, while it imports and the others wait for it in MPI_Init."""
    last = max(ranks - 1, 0)
    arguments = [EARLY, tmp_path, last, "run", job(tmp_path), "--no-report"]
    process = launch.start(ranks, arguments, mpi=mpi or "openmpi")
    wait_for(process, tmp_path / "arrived")
    os.kill(all_ranks(process, ranks)[last], number)
    (tmp_path / "go").touch()
    code, output = launch.finish(process, LIMIT)
    said = f"mpifed: {number.name} before the run began: nothing was done, the same command begins it\n"
    assert code == 85 and output.count(said) == 1 and "Traceback" not in output, output
    assert not (tmp_path / "run").exists()


def test_signals_while_a_command_is_loading_that_has_nothing_to_save(tmp_path):
    """A second Ctrl-C ends it at once; SIGTERM ends it as if it came after the loading."""
    for numbers, code in (([signal.SIGINT, signal.SIGINT], 130), ([signal.SIGTERM], -signal.SIGTERM)):
        folder = tmp_path / str(len(numbers))
        folder.mkdir()
        process = launch.start(0, [EARLY, folder, 0, "list"])
        wait_for(process, folder / "arrived")
        for number in numbers:
            os.kill(process.pid, number)
            if number == signal.SIGINT:  # two of a kind that are pending are one
                wait_until(lambda: not pending(process.pid, number) or process.poll() is not None)
        if code < 0:
            (folder / "go").touch()
        assert launch.finish(process, LIMIT)[0] == code


def pending(pid: int, number: int) -> bool:
    """Whether a signal has not reached the process yet."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    sets = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd:", "ShdPnd:"))]
    return any(one >> (number - 1) & 1 for one in sets)


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
def test_a_script_with_mpi_in_its_own_hands(tmp_path, mpi):
    """Initialised for one thread, by hand and late; on parts of the ranks; and MPI is usable afterwards."""
    code, output = launch.launch(2, [OWN_MPI, tmp_path], LIMIT, mpi=mpi)
    assert code == 0, output
    assert output.count("refused: MPI is not initialised: ") == 2, output
    assert output.count("refused: expected a communicator of mpi4py, got int") == 2, output
    assert output.count("the sum of ranks is 1") == 2, output
    assert output.count("refused: MPI has been finalised: ") == 2, output


def test_a_script_that_fails_on_one_rank_after_a_run(tmp_path):
    code, output = launch.launch(2, [OWN_MPI, tmp_path, "raise"], LIMIT)
    assert code == 1 and "rank 1 of 2 failed:" in output and "ValueError: after the run" in output, output
