"""``mpifed status``: finished, running, stopped, killed and damaged runs; sweeps, job arrays, --follow."""

import errno
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import pytest
from commands import error_of, output_of
from launch import environment
from processes import wait_until
from runfiles import decay, write
from small_job import LIMIT, ROUNDS, command, job

from mpifed import run
from mpifed.cli import status as command_line
from mpifed.config.job import Config
from mpifed.parallel.comm import SerialComm
from mpifed.storage import folder as locks
from mpifed.storage import hdf5
from mpifed.storage import status as module
from mpifed.storage.files import PART_MAGIC, SCRIPT_HEAD, assignment_lines
from mpifed.storage.results import load
from mpifed.storage.status import Status, status

STEP = "mpifed.simulation.simulation:Simulation.step"


def lines(*arguments) -> list[list[str]]:
    """Return the printed table as cells."""
    return [line.split("  ") for line in output_of("status", *arguments).splitlines()]


def entries(*arguments) -> list[dict]:
    return json.loads(output_of("status", "--json", *arguments))


def content(folder: Path) -> dict:
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*.*")}


def child(folder: Path, *faults: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, *map(str, command(folder, *faults))], env=environment(), stderr=subprocess.PIPE
    )


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that a signal stopped in round 8: its folder, its status before, whether reading changed it."""
    folder = tmp_path_factory.mktemp("stopped")
    process = child(folder, f"0 pause:{folder} {STEP} 8")
    try:
        wait_until((folder / "arrived-8").exists, LIMIT)
        before = content(folder)
        seen, changed = status(folder / "run"), content(folder) != before
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: "SIGTERM" in (folder / "run/log/rank-0.txt").read_text(), LIMIT)
        (folder / "go-8").touch()
        assert process.wait(LIMIT) == 85
    finally:
        process.kill()
        process.communicate()
    return folder / "run", seen, changed


@pytest.fixture
def killed(stopped, tmp_path):
    """The files of a run that was killed, without the checkpoint that a signal causes."""
    folder = tmp_path / "killed"
    shutil.copytree(stopped[0], folder)
    (folder / "checkpoint-00000009.h5").unlink()
    text = f"process 1 on {locks.socket.gethostname()}, since 2026-01-01 00:00:00\n"
    (folder / locks.LOCK_FILE).write_text(text)
    return folder


def test_a_running_run(stopped):
    folder, seen, changed = stopped
    assert not changed
    assert (seen.state, seen.method, seen.problem) == ("running", "AdaFGDA", "Saddle")
    assert (seen.round, seen.rounds, seen.metric[0]) == (6, ROUNDS, "error")
    assert seen.reason.startswith("process ") and seen.age >= 0 and seen.pace > 0
    assert "unknown" not in seen.reason
    assert 0 <= seen.left <= (ROUNDS - 6) / seen.pace


def test_a_run_stopped_by_a_signal(stopped):
    seen = status(stopped[0])
    assert (seen.state, seen.round, seen.rounds) == ("stopped", 9, ROUNDS)
    assert seen.reason == f"`mpifed resume {stopped[0]}` continues from round 9"
    assert seen.pace is seen.left is None


def test_a_killed_run(killed):
    assert status(killed).reason == f"`mpifed resume {killed}` continues from round 6"
    (killed / "run.h5").unlink()
    assert status(killed).method == "AdaFGDA" and status(killed).rounds == ROUNDS  # by the checkpoint
    for path in killed.glob("checkpoint-*"):
        path.unlink()
    seen = status(killed)
    assert (seen.state, seen.reason) == (
        "failed", "it ended before its first checkpoint, or had run.checkpoint_every = 0",
    )  # fmt: skip


def test_a_finished_run_and_its_extension(tmp_path):
    config = Config.load(job(tmp_path))
    run(config, SerialComm())
    seen = status(tmp_path / "run")
    assert (seen.state, seen.round, seen.reason) == ("finished", ROUNDS, f"all {ROUNDS} rounds done")
    newest = tmp_path / "run" / f"checkpoint-{ROUNDS:08d}.h5"
    newest.rename(newest.with_name(f"checkpoint-{ROUNDS + 3:08d}.h5"))  # as after a kill during the extension
    assert status(tmp_path / "run").state == "stopped"


def test_a_diverged_run(tmp_path):
    stopped = "non-finite value in round 20\nmore"
    folder = write(tmp_path / "a", stopped=stopped, auc=[0.5] * 4 + [float("nan")])
    assert [status(folder).state, status(folder).reason] == ["failed", "non-finite value in round 20"]
    assert lines(tmp_path)[1][-1] == "non-finite value in round 20"
    (entry,) = entries(tmp_path)
    assert (entry["metric"], entry["value"], entry["folder"]) == ("auc", None, str(folder))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


SPOILT = [cut, lambda path: path.write_text("no run"), lambda path: path.write_text("")]


@pytest.mark.parametrize("spoil", SPOILT, ids=["cut", "other", "empty"])
def test_a_damaged_results_file(killed, tmp_path, spoil):
    spoil(killed / "run.h5")
    assert status(killed).state == "stopped" and "; run.h5 cannot be read: " in status(killed).reason
    folder = write(tmp_path / "a")
    spoil(folder / "run.h5")
    assert status(folder).state == "damaged" and status(folder).reason.startswith("run.h5 cannot be read: ")
    assert status(folder).age is not None


def test_files_without_permission_are_not_called_damaged(killed, monkeypatch):
    """Root may read all files, so the refusals of the system are simulated."""

    def refuse(path, *_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(hdf5, "open_file", refuse)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    for path in (killed / "checkpoint-00000006.h5", killed / "run.h5"):
        seen = status(killed)
        assert seen.state == "unreadable" and f"{path.name} cannot be " in seen.reason
        assert "Permission denied" in seen.reason
        for file in killed.glob("checkpoint-*"):
            file.unlink()


def test_a_run_without_checkpoints(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(module, "holder", lambda folder: locks.Holder("process 1", True))
    assert status(tmp_path / "run").reason == "process 1; its round is unknown before a checkpoint"


def test_damaged_checkpoints(killed):
    newest, before = sorted(killed.glob("checkpoint-*"), reverse=True)[:2]
    cut(newest)
    assert "continues from round 3; checkpoint-00000006.h5 cannot be used (its bytes" in status(killed).reason
    cut(before)
    seen = status(killed)
    assert seen.state == "damaged" and seen.reason.startswith("checkpoint-00000006.h5 cannot be used")


def test_a_large_checkpoint_is_not_read(killed, monkeypatch):
    monkeypatch.setattr(module, "MAX_READ", 0)
    monkeypatch.setattr(module, "newest", None)
    assert "continues from round 6" in status(killed).reason


def test_parts_count_for_the_size_of_a_checkpoint(killed, monkeypatch):
    large = 1 + max(path.stat().st_size for path in killed.glob("checkpoint-*.h5"))
    monkeypatch.setattr(module, "MAX_READ", large)
    (killed / "run.h5").unlink()
    assert status(killed).method == "AdaFGDA"  # by the checkpoint
    (killed / "checkpoint-00000006-part-0.h5").write_bytes(PART_MAGIC + bytes(large))
    assert "continues from round 6" in status(killed).reason and status(killed).method == ""


def test_locks_that_cannot_be_tested(killed, monkeypatch):
    (killed / locks.LOCK_FILE).write_text("process 1 on mars, Slurm job 7, since 2026-01-01 00:00:00\n")
    seen = status(killed)
    assert seen.state == "running?"
    assert seen.reason.endswith("unless it was killed") and "job 7" in seen.reason

    def none(file, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(locks.fcntl, "flock", none)
    assert status(killed).state == "running?"


def test_status_neither_locks_nor_writes(killed, monkeypatch):
    before, opened = content(killed), os.open

    def reading(path, flags, *more, **options):
        assert not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        return opened(path, flags, *more, **options)

    with monkeypatch.context() as patches:
        patches.setattr(os, "open", reading)
        status(killed)
    assert content(killed) == before
    monkeypatch.setattr(locks, "LOCK_TIMEOUT", 0)
    holder = locks.Folder(killed)
    holder.open(create=False)
    assert status(killed).state == "running"
    holder.close()


def test_time_left_is_counted_from_the_last_record(tmp_path, monkeypatch):
    """The run does 2 rounds per second and has done 10 of 20; for a resumed run, the resumption counts."""
    folder = write(tmp_path / "a", stopped="", rounds=20, config={"rounds": 30, "stop": {"seconds": None}})
    monkeypatch.setattr(module, "holder", lambda folder: locks.Holder("process 1", True))
    now = os.path.getmtime(folder / "run.h5") + 1000
    monkeypatch.setattr(module.time, "time", lambda: now)
    assert (status(folder).pace, status(folder).left, status(folder).age) == (2.0, 0.0, 1000.0)
    (folder / locks.LOCK_FILE).touch()
    os.utime(folder / locks.LOCK_FILE, (now - 3, now - 3))
    assert (status(folder).left, status(folder).age) == (10 / 2 - 3, 1000.0)
    with h5py.File(folder / "run.h5", "a") as file:
        config = json.loads(file.attrs["config"])
        file.attrs["config"] = json.dumps(config | {"stop": {"seconds": 14}})  # 10 seconds are used
    assert status(folder).left == 14 - 10 - 3


def test_the_runs_of_a_sweep(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("sweep.toml").write_text(
        "rounds = 2\nalgorithm = { name = 'FGDA', q = 2 }\nproblem = { name = 'Saddle', clients = 3 }\n"
        "run = { progress = false }\n[sweep]\nseed = [0, 1, 2]\n"
    )
    output_of("sweep", "sweep.toml", "--part", "1/2")
    head, *rows, total = lines()
    assert not rows and total[0] == "runs/sweep/seed=1"
    head, *rows, total = lines("sweep.toml")
    assert [row[0].strip() for row in rows] == [f"runs/sweep/seed={seed}" for seed in (0, 1, 2)]
    assert total == ["3 runs: 2 not begun, 1 finished"]
    Path("one.toml").write_text(Path("sweep.toml").read_text().partition("[sweep]")[0])
    (entry,) = entries("one.toml")
    assert (entry["state"], entry["method"], entry["rounds"]) == ("not begun", "FGDA", 2)


def test_the_validation_metric(tmp_path):
    write(tmp_path / "a", auc=decay(0.1), validation_auc=[0.25] * 5)
    assert " validation" in lines(tmp_path)[0] and "validation_auc 0.25" in lines(tmp_path)[1]
    (entry,) = entries(tmp_path)
    assert (entry["validation"], entry["metric"]) == (0.25, "auc")
    write(tmp_path / "b", auc=decay(0.1))
    assert entries(tmp_path / "b")[0]["validation"] is None and " validation" not in lines(tmp_path / "b")[0]


def test_the_best_evaluation(tmp_path):
    """On the validation split if there is one; the value is that of the metric itself."""
    values = [0.1, 0.9, float("nan"), 0.5, 0.4]
    write(tmp_path / "a", auc=values, maximised=["auc"])
    write(tmp_path / "b", auc=values, validation_auc=[0.3, 0.1, 0.2, 0.4, 0.0], maximised=["validation_auc"])
    write(tmp_path / "c", auc=[float("nan")] * 5)
    rounds = load(tmp_path / "a").metric_rounds.tolist()
    assert [entry["best"] for entry in entries(tmp_path)] == [[rounds[1], 0.9], [rounds[3], 0.5], None]
    assert f"0.9 (round {rounds[1]})" in lines(tmp_path / "a")[1]


SWEPT = (
    "rounds = 2\nalgorithm = { name = 'FGDA', q = 2 }\nproblem = { name = 'Saddle', clients = 3 }\n"
    "[sweep]\nseed = [0, 1, 2, 3, 4, 5, 6]\n"
)


@pytest.mark.parametrize("many", ["--array seed=0,1,2,3,4,5,6", "--parts 7"], ids=["array", "sweep"])
def test_a_job_array_and_its_elements(tmp_path, monkeypatch, killed, many):
    monkeypatch.chdir(tmp_path)
    Path("job.toml").write_text(SWEPT if "--parts" in many else SWEPT.partition("[sweep]")[0])
    output_of("launch", "job.toml", "run.out=out", *many.split(), "--no-submit")
    assert lines("out")[-2:] == [["out/job.sbatch, 7 element(s): 7 waiting (0-6)"], ["7 runs: 7 not begun"]]
    for seed in (0, 2, 3):
        write(tmp_path / "out" / f"seed={seed}", auc=decay(0.1))
    write(tmp_path / "out" / "seed=4", stopped="non-finite value in round 20")
    shutil.copytree(killed, tmp_path / "out" / "seed=1")
    holder = locks.Folder(tmp_path / "out" / "seed=5")
    holder.open(create=True)
    try:
        (*rows, array, total) = lines("out")
        assert array == [
            "out/job.sbatch, 7 element(s): 3 done (0,2-3), 1 stopped (1), 1 failed (4), 1 running (5), "
            "1 waiting (6)"
        ]
        assert rows[-1][0].strip() == "out/seed=6" and total[0].startswith("7 runs: 3 finished")
        by_folder = {entry["folder"]: entry for entry in entries("out")}
        assert [by_folder[f"out/seed={seed}"]["element"] for seed in range(7)] == [*range(7)]
        assert by_folder["out/seed=5"]["script"] == "out/job.sbatch"
    finally:
        holder.close()
    shutil.move("out", "elsewhere")  # as after copying from a cluster
    assert "3 done (0,2-3)" in lines("elsewhere")[-2][0] and "element" not in str(lines("elsewhere/seed=0"))


@pytest.mark.parametrize(
    "section", ["", "[tune]\nmethods = [{ name = 'FGDA', q = [2, 3] }]\n"], ids=["run", "tune"]
)
def test_a_job_that_waits_in_the_queue(tmp_path, monkeypatch, section):
    """Its folder contains only the batch script, which names no elements."""
    monkeypatch.chdir(tmp_path)
    Path("job.toml").write_text(SWEPT.partition("[sweep]")[0] + section)
    output_of("launch", "job.toml", "run.out=out", "--no-submit")
    for place in ("out", "."):
        (entry,) = entries(place)
        assert (entry["folder"], entry["state"]) == ("out", "not begun")
        assert entry["reason"] == "out/job.sbatch has not written anything yet"
    shutil.copytree(write(tmp_path / "trial"), tmp_path / "out" / "trial")
    assert [entry["state"] for entry in entries("out")] == ["finished"]


def test_tasks_with_several_runs(tmp_path):
    runs = ["a", "b"], ["c", "d"], ["e", "f"], ["g"]
    comments = "\n".join(assignment_lines(runs))
    (tmp_path / "job.sbatch").write_text(f"{SCRIPT_HEAD}\n{comments}\n# runs 9: [")
    for name in "acdf":
        write(tmp_path / name)
    write(tmp_path / "e", stopped="non-finite value in round 20", auc=[float("nan")] * 5)
    assert "4 element(s): 1 stopped (0), 1 done (1), 1 failed (2), 1 waiting (3)" in str(lines(tmp_path))
    (tmp_path / "job.sbatch").write_text(comments)  # not a script of mpifed launch
    assert "element" not in str(lines(tmp_path))


def test_runs_are_listed_once_and_by_default_below_the_current_folder(tmp_path, monkeypatch):
    for name in ("b", "a/deep"):
        write(tmp_path / name, auc=decay(0.1))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / locks.LOCK_FILE).touch()  # of a run that never began
    monkeypatch.chdir(tmp_path)
    folders = [entry["folder"] for entry in entries()]
    assert folders == ["a/deep", "b"]
    assert [entry["folder"] for entry in entries("b", tmp_path)] == ["b", str(tmp_path / "a/deep")]
    assert lines()[0][0] == "run" and lines()[-1] == ["2 runs: 2 finished"]


def test_unreadable_folders(tmp_path, monkeypatch):
    for name in ("a", "b"):
        write(tmp_path / name)

    def closed(whole):
        def look(path="."):
            if Path(path).name == "b":
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return whole(path)

        return look

    monkeypatch.setattr(os, "listdir", closed(os.listdir))
    monkeypatch.setattr(os, "scandir", closed(os.scandir))
    _, other = entries(tmp_path)
    assert (other["state"], other["reason"]) == ("unreadable", "Permission denied")


@pytest.mark.parametrize("place, words", [
    ("empty", "expected a run in empty or below, found none"),
    ("nowhere", "expected a folder nowhere, found none"),
    ("file", "expected a folder file, found a file"),
])  # fmt: skip
def test_places_without_runs(tmp_path, monkeypatch, place, words):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("file").touch()
    assert words in error_of("status", place)


# --follow


def test_following_a_run_that_is_killed(tmp_path):
    process = child(tmp_path, f"0 pause:{tmp_path} {STEP} 8")
    watch = None
    try:
        wait_until((tmp_path / "arrived-8").exists, LIMIT)
        words = [sys.executable, "-m", "mpifed", "status", str(tmp_path), "--follow", "--interval", "0.2"]
        watch = subprocess.Popen(words, env=environment(), text=True, stdout=subprocess.PIPE)
        first = watch.stdout.readline()
        process.kill()
        process.communicate(timeout=LIMIT)
        rest, _ = watch.communicate(timeout=LIMIT)
    finally:
        for running in filter(None, (watch, process)):
            running.kill()
    assert watch.returncode == 0 and "\x1b" not in first + rest
    assert f"6 of {ROUNDS}  running  error" in first and rest.count("\n") == 1
    assert f"6 of {ROUNDS}  stopped" in rest


def runs(tmp_path, count=3, state="finished") -> list[Status]:
    return [
        Status(tmp_path / f"run-{number}", state, "why", "FGDA", "Saddle", 2, 4) for number in range(count)
    ]


@pytest.fixture
def shown(monkeypatch):
    """Records the printed texts and the intervals."""
    said = []
    monkeypatch.setattr(command_line.click, "echo", lambda text, nl=True, err=False: said.append(text))
    monkeypatch.setattr(command_line.time, "sleep", lambda seconds: said.append(seconds))
    return said


def follow(*looks: list[Status], interval=1.0) -> int:
    """Follow the runs, of which each look finds the next list; return the number of looks."""
    left = [*looks]
    command_line.follow(lambda: left.pop(0), interval)
    return len(looks) - len(left)


def test_captured_output_has_one_line_per_change(tmp_path, shown):
    follow(runs(tmp_path, 2, "running"), runs(tmp_path, 2, "running"), runs(tmp_path), interval=7.0)
    line = f"{tmp_path}/run-%d  FGDA  Saddle  2 of 4  %s  why"
    assert shown == [
        *(line % (number, "running") for number in (0, 1)), 7.0, 7.0,
        *(line % (number, "finished") for number in (0, 1, 2)),
    ]  # fmt: skip


def test_columns_of_time_are_not_changes(tmp_path, shown):
    changing = [Status(tmp_path, "running", age=float(age), pace=1.0 + age, left=9.0 - age) for age in (1, 2)]
    follow(*([run] for run in changing), [Status(tmp_path, "stopped")])
    assert [type(said) for said in shown] == [str, float, float, str]
    assert shown[0].endswith("  8 s left") and "left" not in shown[-1]


def test_columns_on_a_narrow_terminal(tmp_path):
    """The estimated time is kept, and reasons follow the table."""
    metrics = {"metric": ("auc", 0.5), "validation": ("validation_auc", 0.5), "age": 9.0}
    names = "AdaFGDA", "DeepAUC", 2, 4
    going = Status(Path("runs/a"), "running", "process 7", *names, pace=1, left=7, **metrics)
    ended = Status(Path("long/" * 20, "b"), "stopped", "resume it", *names)
    whole, cut = (command_line.table([going, ended], width=width) for width in (None, 80))
    assert whole[0].endswith("why") and len(whole[0]) > 80 and whole[2].startswith("long/")
    assert "left" in cut[0] and "7 s" in cut[1] and max(map(len, cut)) <= 80
    assert cut[1].startswith("runs/a  ") and cut[2].startswith("...") and "/b  " in cut[2]
    assert cut[3].endswith("long/b: resume it")


@pytest.mark.parametrize("state, active", [
    ("running", True), ("running?", True), ("not begun", True), ("finished", False), ("stopped", False),
    ("failed", False), ("damaged", False), ("unreadable", False),
])  # fmt: skip
def test_states_that_are_followed(tmp_path, shown, state, active):
    assert follow(runs(tmp_path, 1, state), runs(tmp_path)) == 1 + active


def test_ctrl_c(tmp_path, monkeypatch):
    write(tmp_path / "a", auc=decay(0.1), stopped="")

    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(command_line, "ACTIVE", ("failed",))
    monkeypatch.setattr(command_line.time, "sleep", interrupt)
    assert output_of("status", tmp_path, "--follow").count("\n") == 1


def test_a_terminal_is_updated_in_place(tmp_path, shown, monkeypatch):
    monkeypatch.setattr(command_line, "_is_terminal", lambda: True)
    monkeypatch.setattr(command_line.shutil, "get_terminal_size", lambda: os.terminal_size((60, 24)))
    follow(runs(tmp_path, 2, "running"), runs(tmp_path, 2))
    first, _, second = shown
    assert not first.startswith("\x1b[") and second.startswith("\x1b[4F")  # heading, two runs, counts
    text = second[4:].replace("\x1b[K", "").replace("\x1b[J", "")
    assert max(map(len, text.splitlines())) <= 59
    assert "2 runs: 2 finished" in second and second.endswith("\x1b[J")


def test_more_runs_than_lines_of_the_terminal(tmp_path, shown, monkeypatch):
    monkeypatch.setattr(command_line, "_is_terminal", lambda: True)
    monkeypatch.setattr(command_line.shutil, "get_terminal_size", lambda: os.terminal_size((300, 8)))
    many = [*runs(tmp_path, 30), Status(tmp_path / "last", "running")]
    for going, height in ((many, 3), ([*many, *runs(tmp_path, 30, "running")], 7)):
        follow(going, runs(tmp_path))
        assert shown[0].count("\n") == height and f"{len(going)} runs: 30 finished" in shown[0]
        shown.clear()


def test_a_real_terminal_and_a_dumb_one(tmp_path):
    write(tmp_path / "a", auc=decay(0.1))
    for kind, expected in (("ansi", True), ("xterm", True), ("dumb", False)):
        mine, theirs = pty.openpty()
        words = [sys.executable, "-m", "mpifed", "status", "--follow"]
        options = {"env": environment() | {"TERM": kind}, "cwd": tmp_path}
        process = subprocess.Popen(words, stdout=theirs, stderr=theirs, **options)
        os.close(theirs)
        said = b""
        try:
            while part := os.read(mine, 10000):
                said += part
        except OSError:  # the end of a terminal on Linux
            pass
        assert process.wait(LIMIT) == 0 and b"finished" in said and (b"\x1b[" in said) == expected
        os.close(mine)


def test_options_that_exclude_following(tmp_path):
    write(tmp_path / "a")
    for words, said in ((["--json"], "cannot be combined"), (["--interval", "0"], "x>=0.1")):
        assert said in error_of("status", tmp_path, "--follow", *words)
