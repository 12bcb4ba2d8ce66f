"""A full disk, on a small file system in memory, and two simultaneous starts of one job."""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys

import launch
import numpy as np
import pytest
from processes import all_ranks, wait_until
from small_job import LIMIT, STEP, command, end, final, saved

WRITE = "mpifed.storage.checkpoint:write"


@pytest.fixture
def small_disk(tmp_path):
    """Mount a file system of 8 MB at ``tmp_path/run``."""
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
    """The full disk is found before writing (check) or by HDF5 while writing. The files of rounds 6 to 12
    are not written; the run continues and writes again when there is space.
    """
    ballast = small_disk / "run" / "ballast"
    faults = [f"0 fill:{ballast} {WRITE} 2", f"0 free:{ballast} {WRITE} 5"] + [
        "0 skip mpifed.storage.checkpoint:_expect_space 1"
    ] * (not check)
    code, output = launch.launch(size, command(small_disk, *faults), LIMIT)
    assert code == 0 and "Traceback" not in output, output
    warnings = re.findall(
        r"mpifed: warning: the files of round (\d+) could not be written to .* \((.*)\); "
        r"the newest checkpoint is of round 3; the run continues\n",
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
    """The error names the newest checkpoint, which is intact; the job is resumed when there is space."""
    ballast = small_disk / "run" / "ballast"
    faults = [f"0 fill:{ballast} {WRITE} 5"]
    if not check:
        faults.append("0 skip mpifed.storage.checkpoint:_expect_space 1")
    code, output = launch.launch(size, command(small_disk, *faults), LIMIT)
    assert code == 2 and "Traceback" not in output, output
    assert re.search(
        "^mpifed: the files of round 20 could not be written to .*No space left on device.*; the newest "
        "checkpoint is of round 12; .* continues from there$", output, re.M,
    ), output  # fmt: skip
    assert saved(small_disk) == 12
    ballast.unlink()
    np.testing.assert_array_equal(end(small_disk), whole)


@pytest.mark.parametrize("size", [0, 3])
def test_the_folder_is_removed(tmp_path, size):
    """When the folder is removed in round 5, all ranks continue and end with an error."""
    process = launch.start(size, command(tmp_path, f"0 pause:{tmp_path} {STEP} 5"))
    wait_until(lambda: (tmp_path / "arrived-5").exists(), LIMIT)
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "go-5").touch()
    code, output = launch.finish(process, LIMIT)
    assert code == 2 and "Traceback" not in output and not (tmp_path / "run").exists(), output
    assert "mpifed: the files of round 20 could not be written" in output, output


def in_another_world(arguments: list, host: str) -> list[str]:
    """Return a command that runs under another host name with separate file system mounts."""
    words = shlex.join(map(str, [sys.executable, *arguments]))
    return ["unshare", "--uts", "--mount", "sh", "-c", f"hostname {host} && exec {words}"]


def test_two_hosts_share_a_folder(tmp_path):
    """Two hosts exclude each other by the lock of their common file system, or by its text where locks are
    not shared."""
    probe = subprocess.run(in_another_world(["-c", "pass"], "mars"), capture_output=True)
    if probe.returncode:
        pytest.skip("hosts of their own are not permitted here")
    environment = launch.environment()
    fault = f"0 pause:{tmp_path} {STEP} 5"
    first = subprocess.Popen(
        in_another_world(command(tmp_path, fault, settings=["run.watchdog=0"]), "mars"), env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        wait_until(lambda: (tmp_path / "arrived-5").exists(), LIMIT)
        words = {"capture_output": True, "text": True, "timeout": LIMIT, "env": environment}
        second = subprocess.run(in_another_world(command(tmp_path), "venus"), **words)
        assert second.returncode == 2 and f"is in use by process {first.pid} on mars, since" in second.stderr
        blind = command(
            tmp_path, "0 skip mpifed.storage.folder:fcntl.flock 1", settings=["run.overwrite=true"]
        )
        third = subprocess.run(in_another_world(blind, "venus"), **words)
        assert third.returncode == 0 and f"process {first.pid} on mars, since " in third.stderr, third.stderr
        assert "is still locked by" in third.stderr
        (tmp_path / "go-5").touch()
        code, output = launch.finish(first, LIMIT)
        assert code == 2 and "(another run has used it in the meantime); " in output, output
    finally:
        if first.poll() is None:
            os.killpg(first.pid, signal.SIGKILL)


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
