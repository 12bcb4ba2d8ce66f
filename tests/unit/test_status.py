"""``mpifed status``: where runs stand that have finished, run, were stopped, died, or are damaged."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import pytest
from click.testing import CliRunner
from launch import environment
from processes import wait_until
from runfiles import decay, write
from small_job import LIMIT, ROUNDS, command, job

from mpifed import run
from mpifed.cli.main import cli
from mpifed.config.job import Config
from mpifed.parallel.comm import SerialComm
from mpifed.storage import folder as locks
from mpifed.storage import slurm_array
from mpifed.storage import status as module
from mpifed.storage.status import status

STEP = "mpifed.simulation.simulation:Simulation.step"


def lines(*arguments) -> list[list[str]]:
    """The table of the command, in cells."""
    done = CliRunner().invoke(cli, ["status", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return [line.split("  ") for line in done.output.splitlines()]


def entries(*arguments) -> list[dict]:
    done = CliRunner().invoke(cli, ["status", "--json", *map(str, arguments)], catch_exceptions=False)
    return json.loads(done.output)


def content(folder: Path) -> dict:
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*.*")}


def child(folder: Path, *faults: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, *map(str, command(folder, *faults))], env=environment(), stderr=subprocess.PIPE
    )


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that was seen in round 8 and stopped by a signal then: its folder, what was said, and what a
    look has changed.
    """
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
    """The files of a run that has died without a word: the signal's last ones are not there."""
    folder = tmp_path / "killed"
    shutil.copytree(stopped[0], folder)
    (folder / "checkpoint-00000009.h5").unlink()
    text = f"process 1 on {locks.socket.gethostname()}, since 2026-01-01 00:00:00\n"
    (folder / locks.LOCK_FILE).write_text(text)
    return folder


def test_a_run_that_runs(stopped):
    folder, seen, changed = stopped
    assert not changed
    assert (seen.state, seen.method, seen.problem) == ("running", "AdaFGDA", "Saddle")
    assert (seen.round, seen.rounds, seen.metric[0]) == (6, ROUNDS, "error")
    assert seen.said.startswith("process ") and seen.age >= 0 and seen.pace > 0
    assert 0 <= seen.left <= (ROUNDS - 6) / seen.pace


def test_a_run_that_a_signal_has_stopped(stopped):
    seen = status(stopped[0])
    assert (seen.state, seen.round, seen.rounds) == ("stopped", 9, ROUNDS)
    assert seen.said == f"`mpifed resume {stopped[0]}` goes on from round 9"
    assert seen.pace is seen.left is None


def test_a_run_that_was_killed(killed):
    assert status(killed).said == f"`mpifed resume {killed}` goes on from round 6"
    (killed / "run.h5").unlink()
    assert status(killed).method == "AdaFGDA" and status(killed).rounds == ROUNDS  # by the checkpoint
    for path in killed.glob("checkpoint-*"):
        path.unlink()
    seen = status(killed)
    assert (seen.state, seen.said) == ("failed", "it ended before its first checkpoint")


def test_a_run_that_is_seen_before_its_first_checkpoint_and_killed(tmp_path):
    process = child(tmp_path, f"0 pause:{tmp_path} {STEP} 2")
    try:
        wait_until((tmp_path / "arrived-2").exists, LIMIT)
        assert lines(tmp_path)[1][0] == str(tmp_path / "run") and status(tmp_path / "run").state == "running"
    finally:
        process.kill()
        process.communicate()
    assert lines(tmp_path)[1][-1] == "it ended before its first checkpoint"


def test_a_run_that_has_finished_and_one_that_is_made_longer(tmp_path):
    config = Config.load(job(tmp_path))
    run(config, SerialComm())
    seen = status(tmp_path / "run")
    assert (seen.state, seen.round, seen.said) == ("finished", ROUNDS, f"all {ROUNDS} rounds done")
    newest = tmp_path / "run" / f"checkpoint-{ROUNDS:08d}.h5"
    newest.rename(newest.with_name(f"checkpoint-{ROUNDS + 3:08d}.h5"))  # as after a kill on the way
    assert status(tmp_path / "run").state == "stopped"


def test_a_run_that_has_diverged(tmp_path):
    folder = write(
        tmp_path / "a", stopped="non-finite value in round 20\nmore", auc=[0.5] * 4 + [float("nan")]
    )
    assert [status(folder).state, status(folder).said] == ["failed", "non-finite value in round 20"]
    assert lines(tmp_path)[1][-1] == "non-finite value in round 20"
    (entry,) = entries(tmp_path)
    assert (entry["metric"], entry["value"], entry["folder"]) == ("auc", None, str(folder))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    "spoil", [cut, lambda path: path.write_text("no run"), lambda path: path.write_text("")]
)
def test_a_results_file_that_is_damaged(killed, tmp_path, spoil):
    spoil(killed / "run.h5")
    assert status(killed).state == "stopped" and "; run.h5 cannot be read: " in status(killed).said
    folder = write(tmp_path / "a")
    spoil(folder / "run.h5")
    assert status(folder).state == "damaged" and status(folder).said.startswith("run.h5 cannot be read: ")
    assert status(folder).age is not None


@pytest.mark.parametrize("place, value", [
    ("costs/round", None), ("costs/round", []), ("costs/seconds", [float("nan")]), ("metrics", None),
    ("metrics/auc", [[1.0]]), ("metrics/auc", ["a"]),
])  # fmt: skip
def test_a_results_file_that_holds_something_else(tmp_path, place, value):
    folder = write(tmp_path / "a", auc=decay(0.1))
    with h5py.File(folder / "run.h5", "a") as file:
        del file[place]
        if value is not None:
            file[place] = value
    assert status(folder).state == "damaged" and "expected " in status(folder).said


def test_settings_that_are_none(tmp_path):
    config = {"problem": 3, "stop": [], "rounds": "many", "algorithm": {"name": 3}}
    seen = status(write(tmp_path / "a", config=config))
    assert (seen.method, seen.problem, seen.rounds) == ("", "", None) and lines(tmp_path)[1]


def test_checkpoints_that_are_damaged(killed):
    newest, before = sorted(killed.glob("checkpoint-*"), reverse=True)[:2]
    cut(newest)
    assert "goes on from round 3; checkpoint-00000006.h5 cannot be used (its bytes" in status(killed).said
    cut(before)
    seen = status(killed)
    assert seen.state == "damaged" and seen.said.startswith("checkpoint-00000006.h5 cannot be used")


def test_a_large_checkpoint_is_not_read(killed, monkeypatch):
    monkeypatch.setattr(module, "READ", 0)
    monkeypatch.setattr(module, "newest", None)
    assert "goes on from round 6" in status(killed).said


def test_a_lock_of_another_host_or_one_that_cannot_be_tested(killed, monkeypatch):
    (killed / locks.LOCK_FILE).write_text("process 1 on mars, Slurm job 7, since 2026-01-01 00:00:00\n")
    seen = status(killed)
    assert (
        seen.state == "running?" and seen.said.endswith("unless it has died there") and "job 7" in seen.said
    )

    def none(file, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(locks.fcntl, "flock", none)
    assert status(killed).state == "running?"


def test_a_look_takes_no_folder_and_writes_nothing(killed, monkeypatch):
    before, opened = content(killed), os.open

    def reading(path, flags, *more, **options):
        assert not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        return opened(path, flags, *more, **options)

    with monkeypatch.context() as patches:
        patches.setattr(os, "open", reading)
        status(killed)
    assert content(killed) == before
    monkeypatch.setattr(locks, "PATIENCE", 0)
    holder = locks.Folder(killed)
    holder.open(create=False)
    assert status(killed).state == "running"
    holder.close()


def test_time_that_is_left_counts_from_the_last_word(tmp_path, monkeypatch):
    """2 rounds a second, and 10 of 20 are done; a run that was resumed counts from then."""
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
        file.attrs["config"] = json.dumps(config | {"stop": {"seconds": 14}})  # 10 of them are used
    assert status(folder).left == 14 - 10 - 3


def test_a_sweep_and_what_of_it_is_left(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("sweep.toml").write_text(
        "rounds = 2\nalgorithm = { name = 'FGDA', q = 2 }\nproblem = { name = 'Saddle', clients = 3 }\n"
        "run = { progress = false }\n[sweep]\nseed = [0, 1, 2]\n"
    )
    assert CliRunner().invoke(cli, ["sweep", "sweep.toml", "--part", "1/2"]).exit_code == 0
    head, *rows, total = lines()
    assert not rows and total[0] == "runs/sweep/seed=1"
    head, *rows, total = lines("sweep.toml")
    assert [row[0].strip() for row in rows] == [f"runs/sweep/seed={seed}" for seed in (0, 1, 2)]
    assert total == ["3 runs: 2 not begun, 1 finished"]
    Path("one.toml").write_text(Path("sweep.toml").read_text().partition("[sweep]")[0])
    (entry,) = entries("one.toml")
    assert (entry["state"], entry["method"], entry["rounds"]) == ("not begun", "FGDA", 2)


def test_the_validation_metric_stands_beside_the_first(tmp_path):
    write(tmp_path / "a", auc=decay(0.1), validation_auc=[0.25] * 5)
    assert " validation" in lines(tmp_path)[0] and "validation_auc 0.25" in lines(tmp_path)[1]
    (entry,) = entries(tmp_path)
    assert (entry["validation"], entry["metric"]) == (0.25, "auc")
    write(tmp_path / "b", auc=decay(0.1))
    assert entries(tmp_path / "b")[0]["validation"] is None and " validation" not in lines(tmp_path / "b")[0]


SWEPT = (
    "rounds = 2\nalgorithm = { name = 'FGDA', q = 2 }\nproblem = { name = 'Saddle', clients = 3 }\n"
    "[sweep]\nseed = [0, 1, 2, 3, 4, 5, 6]\n"
)


@pytest.mark.parametrize(
    "many", [["--array", "seed=0,1,2,3,4,5,6"], ["--parts", "7"]], ids=["array", "sweep"]
)
def test_a_job_array_and_its_elements(tmp_path, monkeypatch, killed, many):
    monkeypatch.chdir(tmp_path)
    Path("job.toml").write_text(SWEPT if "--parts" in many else SWEPT.partition("[sweep]")[0])
    launched = CliRunner().invoke(cli, ["launch", "job.toml", "run.out=out", *many, "--no-submit"])
    assert launched.exit_code == 0, launched.output
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
        found = {entry["folder"]: entry for entry in entries("out")}
        assert [found[f"out/seed={seed}"]["element"] for seed in range(7)] == [*range(7)]
        assert found["out/seed=5"]["script"] == "out/job.sbatch"
    finally:
        holder.close()
    shutil.move("out", "elsewhere")  # what is copied from a cluster
    assert "3 done (0,2-3)" in lines("elsewhere")[-2][0] and "element" not in str(lines("elsewhere/seed=0"))


@pytest.mark.parametrize(
    "section", ["", "[tune]\nmethods = [{ name = 'FGDA', q = [2, 3] }]\n"], ids=["run", "tune"]
)
def test_a_launched_job_that_waits_in_the_queue(tmp_path, monkeypatch, section):
    """Its folder holds the batch script alone, which names no elements."""
    monkeypatch.chdir(tmp_path)
    Path("job.toml").write_text(SWEPT.partition("[sweep]")[0] + section)
    launched = CliRunner().invoke(cli, ["launch", "job.toml", "run.out=out", "--no-submit"])
    assert launched.exit_code == 0, launched.output
    for place in ("out", "."):
        (entry,) = entries(place)
        assert (entry["folder"], entry["state"]) == ("out", "not begun")
        assert entry["said"] == "out/job.sbatch is launched, and has written nothing yet"
    shutil.copytree(write(tmp_path / "trial"), tmp_path / "out" / "trial")
    assert [entry["state"] for entry in entries("out")] == ["finished"]


def test_runs_that_share_an_element_make_its_state(tmp_path):
    runs = ["a", "b"], ["c", "d"], ["e", "f"], ["g"]
    comments = "\n".join(slurm_array.share_lines(runs))
    (tmp_path / "job.sbatch").write_text(f"{slurm_array.HEAD}\n{comments}\n# runs 9: [")
    for name in "acdf":
        write(tmp_path / name)
    write(tmp_path / "e", stopped="non-finite value in round 20", auc=[float("nan")] * 5)
    assert "4 element(s): 1 stopped (0), 1 done (1), 1 failed (2), 1 waiting (3)" in str(lines(tmp_path))
    (tmp_path / "job.sbatch").write_text(comments)  # somebody else's
    assert "element" not in str(lines(tmp_path))


def test_runs_are_found_once_and_by_default_here(tmp_path, monkeypatch):
    for name in ("b", "a/deep"):
        write(tmp_path / name, auc=decay(0.1))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / locks.LOCK_FILE).touch()  # let go by a run that never began
    monkeypatch.chdir(tmp_path)
    found = [entry["folder"] for entry in entries()]
    assert found == ["a/deep", "b"] and [entry["folder"] for entry in entries("b", tmp_path)] == [
        "b", str(tmp_path / "a/deep")
    ]  # fmt: skip
    assert lines()[0][0] == "run" and lines()[-1] == ["2 runs: 2 finished"]


def test_folders_that_cannot_be_looked_into(tmp_path, monkeypatch):
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
    assert [(one["state"], one["said"]) for one in entries(tmp_path)][1:] == [
        ("unreadable", "Permission denied")
    ]


@pytest.mark.parametrize("place, words", [
    ("empty", "expected a run in empty or below, found none"),
    ("nowhere", "expected a folder nowhere, found none"),
    ("file", "expected a folder file, found a file"),
])  # fmt: skip
def test_places_without_runs(tmp_path, monkeypatch, place, words):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("file").touch()
    done = CliRunner().invoke(cli, ["status", place])
    assert done.exit_code == 2 and words in done.output
