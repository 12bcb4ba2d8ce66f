"""``mpifed status --follow``: real runs that end and that are killed, a terminal, and what is captured."""

import os
import pty
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner
from launch import environment, finish, start
from processes import wait_until
from runfiles import decay, write
from small_job import LIMIT, ROUNDS, command

from mpifed.cli import status as module
from mpifed.cli.main import cli
from mpifed.storage.status import Status

STEP = "mpifed.simulation.simulation:Simulation.step"


def following(folder, **options) -> subprocess.Popen:
    words = [sys.executable, "-m", "mpifed", "status", str(folder), "--follow", "--interval", "0.2"]
    return subprocess.Popen(words, env=environment(), text=True, stdout=subprocess.PIPE, **options)


@pytest.mark.parametrize("end", ["done", "killed"])
def test_a_run_of_two_ranks_is_followed_to_its_end(tmp_path, end):
    faults = [f"{rank} pause:{tmp_path} {STEP} 8" for rank in (0, 1)]
    job = start(2, command(tmp_path, *faults))
    watch = None
    try:
        wait_until((tmp_path / "arrived-8").exists, LIMIT)
        watch = following(tmp_path)
        first = [watch.stdout.readline() for _ in range(1)]
        (tmp_path / "go-8").touch() if end == "done" else os.killpg(job.pid, signal.SIGKILL)
        finish(job, LIMIT)
        said, _ = watch.communicate(timeout=LIMIT)
    finally:
        for process in filter(None, (watch, job)):
            process.kill()
    lines = [*first, *said.splitlines()]
    assert watch.returncode == 0 and "\x1b" not in said
    assert f"6 of {ROUNDS}  running  error" in lines[0]
    last = f"{ROUNDS} of {ROUNDS}  finished" if end == "done" else f"6 of {ROUNDS}  stopped"
    assert last in lines[-1] and len(lines) == len({*lines})


def runs(tmp_path, count=3, state="finished") -> list[Status]:
    return [
        Status(tmp_path / f"run-{number}", state, "why", "FGDA", "Saddle", 2, 4) for number in range(count)
    ]


@pytest.fixture
def shown(monkeypatch):
    """Looks at what is prepared, one after another; what is printed."""
    said = []
    monkeypatch.setattr(module.click, "echo", lambda text, nl=True, err=False: said.append(text))
    monkeypatch.setattr(module.time, "sleep", lambda seconds: said.append(seconds))
    return said


def test_what_is_captured_gets_a_line_a_change(tmp_path, shown):
    looks = [runs(tmp_path, 2, "running"), runs(tmp_path, 2, "running"), runs(tmp_path)]
    module.follow(lambda: looks.pop(0), 7.0)
    line = f"{tmp_path}/run-%d  FGDA  Saddle  2 of 4  %s  why"
    assert shown == [
        *(line % (number, "running") for number in (0, 1)), 7.0, 7.0,
        *(line % (number, "finished") for number in (0, 1, 2)),
    ]  # fmt: skip


def test_clocks_are_no_changes(tmp_path, shown):
    changing = [Status(tmp_path, "running", age=float(age), pace=1.0 + age, left=9.0 - age) for age in (1, 2)]
    looks = [*([run] for run in changing), [Status(tmp_path, "stopped")]]
    module.follow(lambda: looks.pop(0), 1.0)
    assert [type(said) for said in shown] == [str, float, float, str]


@pytest.mark.parametrize("state, goes_on", [
    ("running", True), ("running?", True), ("not begun", True), ("finished", False), ("stopped", False),
    ("failed", False), ("damaged", False), ("unreadable", False),
])  # fmt: skip
def test_what_is_waited_for(tmp_path, shown, state, goes_on):
    looks = [runs(tmp_path, 1, state), runs(tmp_path)]
    module.follow(lambda: looks.pop(0), 1.0)
    assert len(looks) == (not goes_on)


def test_ctrl_c_ends_it_quietly(tmp_path, monkeypatch):
    write(tmp_path / "a", auc=decay(0.1), stopped="")

    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "GOING", ("failed",))
    monkeypatch.setattr(module.time, "sleep", interrupt)
    done = CliRunner().invoke(cli, ["status", str(tmp_path), "--follow"])
    assert done.exit_code == 0 and done.output.count("\n") == 1


def test_a_terminal_is_written_over(tmp_path, shown, monkeypatch):
    monkeypatch.setattr(module, "_is_terminal", lambda: True)
    monkeypatch.setattr(module.shutil, "get_terminal_size", lambda: os.terminal_size((60, 24)))
    looks = [runs(tmp_path, 2, "running"), runs(tmp_path, 2)]
    module.follow(lambda: looks.pop(0), 1.0)
    first, _, second = shown
    assert not first.startswith("\x1b[") and second.startswith("\x1b[4F")  # the head, two runs, the counts
    assert all(
        len(line) <= 59 for line in second[4:].replace("\x1b[K", "").replace("\x1b[J", "").splitlines()
    )
    assert "2 runs: 2 finished" in second and second.endswith("\x1b[J")


def test_more_runs_than_lines(tmp_path, shown, monkeypatch):
    monkeypatch.setattr(module, "_is_terminal", lambda: True)
    monkeypatch.setattr(module.shutil, "get_terminal_size", lambda: os.terminal_size((300, 8)))
    many = [*runs(tmp_path, 30), Status(tmp_path / "last", "running")]
    for going, height in ((many, 3), ([*many, *runs(tmp_path, 30, "running")], 7)):
        looks = [going, runs(tmp_path)]
        module.follow(lambda: looks.pop(0), 1.0)
        assert shown[0].count("\n") == height and f"{len(going)} runs: 30 finished" in shown[0]
        shown.clear()


def test_a_real_terminal_and_a_dumb_one(tmp_path):
    write(tmp_path / "a", auc=decay(0.1))
    for kind, expected in (("xterm", True), ("dumb", False)):
        mine, theirs = pty.openpty()
        words = [sys.executable, "-m", "mpifed", "status", "--follow"]
        options = {"env": environment() | {"TERM": kind}, "cwd": tmp_path}
        process = subprocess.Popen(words, stdout=theirs, stderr=theirs, **options)
        os.close(theirs)
        said = b""
        try:
            while part := os.read(mine, 10000):
                said += part
        except OSError:  # Linux's word for the end of a terminal
            pass
        assert process.wait(LIMIT) == 0 and b"finished" in said and (b"\x1b[" in said) == expected
        os.close(mine)


def test_what_does_not_go_with_following(tmp_path):
    write(tmp_path / "a")
    for words, said in ((["--json"], "cannot be combined"), (["--interval", "0"], "x>=0.1")):
        done = CliRunner().invoke(cli, ["status", str(tmp_path), "--follow", *words])
        assert done.exit_code == 2 and said in done.output
