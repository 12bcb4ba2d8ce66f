"""A disk that fills up, on a small file system in memory; and two starts of one job at a time."""

import os
import re
import signal
import socket
import subprocess

import launch
import numpy as np
import pytest
from processes import all_ranks, wait_until
from small_job import LIMIT, STEP, command, end, final, saved

WRITE = "mpifed.storage.checkpoint:write"


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 8 MB at ``tmp_path/run``."""
    place = tmp_path / "run"
    place.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place], capture_output=True
        ).returncode
    ):
        pytest.skip("mounting is not permitted here")
    yield tmp_path
    subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("size, check", [(0, True), (2, False)])
def test_the_disk_is_full_for_a_while(small_disk, whole, size, check):
    """Found out before writing (check), or by HDF5 half way. The checkpoints of rounds 6 to 12 are lost, the
    run goes on.
    """
    ballast = small_disk / "run" / "ballast"
    faults = [f"0 fill:{ballast} {WRITE} 2", f"0 free:{ballast} {WRITE} 5"] + [
        "0 skip mpifed.storage.checkpoint:_room 1"
    ] * (not check)
    code, output = launch.launch(size, command(small_disk, *faults), LIMIT)
    assert code == 0 and "Traceback" not in output, output
    warnings = re.findall(
        r"mpifed: warning: the files of round (\d+) could not be written to .* \((.*)\); the newest "
        r"checkpoint is of round 3; the run goes on\n",
        output,
    )
    assert [round for round, _ in warnings] == ["6", "9", "12"], output
    assert all(
        ("bytes needed" in why) == check and "No space left on device" in why for _, why in warnings
    ), output
    np.testing.assert_array_equal(final(small_disk), whole)
    assert saved(small_disk) == 20 and not list((small_disk / "run").glob("*.tmp.*"))


@pytest.mark.parametrize("size, check", [(2, True), (0, False)])
def test_the_disk_stays_full(small_disk, whole, size, check):
    """The last files must be written: an error, the old checkpoint sound, and the job resumes when there is
    room.
    """
    ballast = small_disk / "run" / "ballast"
    faults = [f"0 fill:{ballast} {WRITE} 5"] + ["0 skip mpifed.storage.checkpoint:_room 1"] * (not check)
    code, output = launch.launch(size, command(small_disk, *faults), LIMIT)
    assert code == 2 and "Traceback" not in output, output
    assert re.search(
        r"mpifed: the files of round 20 could not be written to .*No space left on device.*is of round 12\n",
        output,
    ), output
    ballast.unlink()
    np.testing.assert_array_equal(end(small_disk), whole)


def test_two_runs_never_share_a_folder(tmp_path, whole):
    """The second start is refused; killing the first frees the folder."""
    process = launch.start(2, command(tmp_path, f"1 pause:{tmp_path} {STEP} 5"))
    wait_until(lambda: (tmp_path / "arrived-5").exists(), LIMIT)
    pids = all_ranks(process, 2)
    code, output = launch.launch(0, command(tmp_path), LIMIT)
    assert code == 2 and "Traceback" not in output, output
    holder = f"run.out = {tmp_path / 'run'} is in use by process {pids[0]} on {socket.gethostname()}, since "
    assert output.count(holder) == 1, output
    os.kill(pids[0], signal.SIGKILL)
    code, _ = launch.finish(process, LIMIT)
    assert code != 0
    np.testing.assert_array_equal(end(tmp_path), whole)
