"""Files of the user, in the folder of a run and elsewhere, are never removed, emptied or replaced."""

import json
import os
import shutil
import subprocess

import pytest
from commands import error_of, output_of
from runfiles import write

from mpifed import resume, run
from mpifed.base.errors import ConfigError
from mpifed.config.grids import variants
from mpifed.storage.files import (
    ASSUMPTION_FILES,
    CHECKPOINT_MAGIC,
    HISTORY_MAGIC,
    REPORT_FILES,
    expect_own,
    is_paper,
    replacing,
)
from mpifed.storage.folder import Folder

JOB = """
rounds = 3
algorithm = { name = "AdaFGDA", q = 2 }
problem = { name = "Saddle", clients = 4, d = 3 }
run = { eval_every = 1, checkpoint_every = 1, keep = 1, progress = false, out = "FOLDER/run" }
"""


@pytest.fixture
def out(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def contents(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


RUN_NAMES = ("run.lock", "run.h5", "history.bin", "checkpoint-00000001.h5", "checkpoint-123456789.h5")
FOREIGN = (
    "thesis.tmp.backup", "notes.tmp.1", "checkpoint-foo.h5", "checkpoint-1.h5", "checkpoint-٠٠٠٠٠٠٠١.h5",
    "run.h5.tmp.backup", "run.h5.tmp.", "checkpoint-2.h5.tmp.1", "table.csv.tmp.5", "report.html.tmp.5",
    "curves.png.tmp.5", "run.h5.tmp.12", "run.lock.tmp.5", "checkpoint-00000001.h5\n.tmp.backup", "run.h5\n",
    "xrun.h5.tmp.1", "history-notes.bin", "history.bin.tmp.old",
)  # fmt: skip


def test_files_of_the_user_remain(job, out):
    """In a run that replaces another run and removes old checkpoints."""
    for name in FOREIGN:
        (out / name).write_text(f"the user's {name}")
    (out / "a.tmp.1").mkdir()
    (out / "a.tmp.1" / "inside").touch()
    before = contents(out)
    run(job, overrides=["run.overwrite=true"])
    (out / "run.h5.tmp.77").mkdir()
    (out / "target").write_text("the target of a link")
    (out / "run.h5.tmp.78").symlink_to("target")
    (out / "history.bin.tmp.8").write_bytes(HISTORY_MAGIC[:10])  # left by a killed run
    run(job, overrides=["run.overwrite=true"])
    after = contents(out)
    assert all(after.get(name) == before[name] for name in before)
    assert (out / "run.h5.tmp.77").exists() and (out / "a.tmp.1" / "inside").exists()
    assert (out / "run.h5.tmp.78").is_symlink()
    assert sorted(set(after) - set(before) - {"target", "run.h5.tmp.78"}) == [
        "checkpoint-00000003.h5", "history.bin", "run.h5", "run.lock",
    ]  # fmt: skip


TYPES = {
    "text": lambda path: path.write_text("mine"),
    "HDF5": lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n config layout" + bytes(2000)),
    "other PNG": lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n tEXtSoftware\0Photos"),
    "link": lambda path: path.symlink_to("target"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to an empty file": lambda path: path.symlink_to("empty"),
    "link to nothing": lambda path: path.symlink_to("nowhere"),
    "folder": lambda path: path.mkdir(),
    "pipe": os.mkfifo,
}


@pytest.mark.parametrize("kind", TYPES)
def test_what_is_foreign(out, kind):
    (out / "target").write_text("mpifed report")
    (out / "empty").touch()
    described = "a symbolic link" if "link" in kind else "a file that mpifed has not written"
    described = "a folder" if kind == "folder" else described
    for name in (*RUN_NAMES, *REPORT_FILES, *ASSUMPTION_FILES):
        TYPES[kind](out / name)
        with pytest.raises(ConfigError, match=f"{name} is {described} and would be replaced: move it away"):
            expect_own([out / name])


def test_a_file_that_another_run_removes_meanwhile_is_not_foreign(out, monkeypatch):
    """A requeued job starts while its predecessor removes old checkpoints."""
    (out / "checkpoint-00000001.h5").write_bytes(CHECKPOINT_MAGIC)

    def removed(path, flags):
        os.unlink(path)
        return os.open(path, flags)

    monkeypatch.setattr("mpifed.storage.files._no_link", removed)
    expect_own([out / "checkpoint-00000001.h5"])


@pytest.mark.parametrize("name", [*RUN_NAMES, *REPORT_FILES])
def test_foreign_files_are_reported_before_the_run(job, out, name):
    (out / name).write_text("name,value\nmine,1\n")
    for change in ("run.overwrite=true", "rounds=4"):
        assert f"{out / name} is a file that mpifed has not written" in error_of("run", job, change)
    assert contents(out) == {name: b"name,value\nmine,1\n"}


def test_sweep_does_not_wait_for_a_pipe(job, out):
    job.write_text(job.read_text() + "[sweep]\nseed = [0, 1]\n")
    (out / "seed=0").mkdir()
    os.mkfifo(out / "seed=0" / "run.h5")
    os.mkfifo(out / "seed=0" / "checkpoint-00000007.h5")
    assert "is a file that mpifed has not written and would be" in error_of("sweep", job)


def test_report_replaces_its_own_files(tmp_path):
    runs = write(tmp_path / "a", auc=[0.5] * 5), write(tmp_path / "b", auc=[0.4] * 5)
    for _ in range(2):
        output_of("report", *runs, "--out", tmp_path / "report")
    assert {*os.listdir(tmp_path / "report")} == {*REPORT_FILES}


def test_report_that_cannot_be_written(job, out, monkeypatch):
    monkeypatch.setattr("mpifed.report.report.curves", lambda *_: (out / "no" / "where").touch())
    assert "but its report could not be written" in error_of("run", job)
    assert (out / "run.h5").exists() and not list(out.glob("*.tmp.*"))


@pytest.mark.parametrize("path", ["", " "])
def test_folder_without_a_name(job, out, path, tmp_path, monkeypatch):
    """An unset shell variable gives "", which would be the working folder."""
    monkeypatch.chdir(out)
    sweep = tmp_path / "sweep.toml"
    sweep.write_text(JOB.replace("FOLDER/run", path) + "[sweep]\nseed = [0, 1]\n")
    for attempt in (
        lambda: run(job, overrides=[f'run.out="{path}"']),
        lambda: resume(path),
        lambda: Folder(path),
        lambda: variants(sweep, []),
    ):
        with pytest.raises(ConfigError, match="expected the name of a folder, got .*: is a shell"):
            attempt()
    assert os.listdir(out) == []


def test_unusual_folder_names(job, tmp_path):
    """A newline, quotes, and the maximum number of characters."""
    for name in ("two\nlines", "'\"$(x) `", "n" * 255):
        out = tmp_path / "a" / name
        run(job, overrides=[f"run.out={json.dumps(str(out))}"])
        assert resume(out).path == out / "run.h5"
        shutil.rmtree(tmp_path / "a")
    (tmp_path / "loop").symlink_to("loop")
    for name, reason in (
        ("n" * 256, "File name too long"),
        ("loop", "leads nowhere"),
        ("loop/run", "leads nowhere"),
    ):
        error = error_of("run", job, f"run.out={tmp_path / name}")
        assert "cannot write to run.out = " in error and reason in error
    with pytest.raises(ConfigError, match="without NUL characters"):
        run(job, overrides=['run.out="a\\u0000b"'])


FIGURE = "job.clients.png"


@pytest.fixture
def working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    problem = '{ name = "LinearMAML", clients = 3, d = 4 }'
    (tmp_path / "job.toml").write_text(f'algorithm = {{ name = "MFCGD", q = 2 }}\nproblem = {problem}\n')
    return tmp_path


DRAW = ("info", "job.toml", "--out")


def test_figure_does_not_replace_files_of_the_user(working_folder):
    TYPES["other PNG"](working_folder / FIGURE)
    before = contents(working_folder)
    assert f"{FIGURE} is a file that mpifed has not written and would be replaced" in error_of(*DRAW, FIGURE)
    assert contents(working_folder) == before


def test_figure_replaces_figures_and_empty_files(working_folder):
    (working_folder / FIGURE).touch()
    for _ in range(2):
        output_of(*DRAW, FIGURE)
        assert os.path.getsize(FIGURE) > 50
        os.utime(FIGURE, (0, 0))
    output_of(*DRAW, FIGURE)
    assert os.path.getmtime(FIGURE) > 0
    assert not list(working_folder.glob("*.tmp.*"))


def test_figure_that_cannot_be_written(working_folder, monkeypatch):
    """A missing folder is reported before the computation, a full disk at the end."""
    with monkeypatch.context() as patches:
        patches.setattr("mpifed.cli.expected_costs.print_costs", pytest.fail)
        assert "cannot write none/file: there is no folder none" in error_of(*DRAW, "none/file")

    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mpifed.storage.files.sync", full)
    assert f"cannot write {FIGURE}: No space left on device" in error_of(*DRAW, FIGURE)
    assert not (working_folder / FIGURE).exists() and not list(working_folder.glob("*.tmp.*"))


@pytest.fixture
def ended() -> int:
    """Return the number of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_temporary_files_of_killed_commands_are_removed(tmp_path, ended):
    """Those that begin like the file that is written, or are empty; not those of a process that is running,
    of another name, or of the user."""
    removed = {
        f"table.txt.tmp.{ended}": b"mpifed report", f"figure.pdf.tmp.{ended}": b"% mpifed report",
        f"table.tex.tmp.{ended}": b"",
    }  # fmt: skip
    kept = {
        f"table.txt.tmp.{os.getppid()}": b"mpifed report", f"run.h5.tmp.{ended}": b"mpifed run file 2",
        f"other.pdf.tmp.{ended}": b"% mpifed report", f"table.tex.tmp.{ended}0": b"the user's",
    }  # fmt: skip
    for name, content in (removed | kept).items():
        (tmp_path / name).write_bytes(content)
    for name, signature in (("figure.pdf", is_paper), ("table.tex", is_paper), ("table.txt", None)):
        with replacing(tmp_path / name, signature) as path:
            path.touch()
    assert {path.name for path in tmp_path.glob("*.tmp.*")} == {*kept}


@pytest.mark.parametrize("lock", [b"", bytes(50), b"process 7 on host, since 2026-01-01 00:00:00\n"])
def test_killed_run_is_continued(job, out, lock):
    run(job)
    (out / "run.lock").write_bytes(lock)
    (out / "history.bin").write_bytes(bytes(1000))  # as a crash of the machine leaves files
    (out / "log/rank-0.txt").write_bytes(b"")  # as a full disk leaves it
    (out / "checkpoint-00000009.h5.tmp.12").write_bytes(CHECKPOINT_MAGIC + bytes(500) + b"\x89HDF\r\n\x1a\n")
    (out / "history.bin.tmp.12").touch()
    assert resume(out, ["rounds=4"]).round == 4 and not list(out.glob("*.tmp.*"))
