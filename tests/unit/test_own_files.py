"""A run's folder may hold anybody's files: none of them is removed, emptied or replaced."""

import json
import os
import shutil

import pytest
from click.testing import CliRunner
from runfiles import write

from mpifed import resume, run
from mpifed.cli.main import cli
from mpifed.config.grids import variants
from mpifed.config.job import ConfigError
from mpifed.parallel.comm import CollectiveError
from mpifed.storage.folder import Folder
from mpifed.storage.ownership import REPORT_FILES

JOB = """
rounds = 3
[algorithm]
name = "AdaFGDA"
q = 2
[problem]
name = "Saddle"
clients = 4
d = 3
[run]
eval_every = 1
checkpoint_every = 1
keep = 1
progress = false
"""


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(JOB + f'out = "{tmp_path / "run"}"\n')
    return path


@pytest.fixture
def out(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def invoke(*words):
    return CliRunner().invoke(cli, [str(word) for word in words])


def contents(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


FOREIGN = (
    "thesis.tmp.backup", "notes.tmp.1", "checkpoint-foo.h5", "checkpoint-1.h5", "checkpoint-٠٠٠٠٠٠٠١.h5",
    "run.h5.tmp.backup", "run.h5.tmp.", "checkpoint-2.h5.tmp.1", "table.csv.tmp.5", "report.html.tmp.5",
    "curves.png.tmp.5", "checkpoint-00000001.h5\n.tmp.backup", "run.h5\n", "xrun.h5.tmp.1",
)  # fmt: skip


def test_files_of_others_stay(job, out):
    """Through a run that replaces what lies there and drops old checkpoints."""
    for name in FOREIGN:
        (out / name).write_text(f"the user's {name}")
    (out / "a.tmp.1").mkdir()
    (out / "a.tmp.1" / "inside").touch()
    before = contents(out)
    run(job, overrides=["run.overwrite=true"])
    (out / "run.h5.tmp.77").mkdir()
    (out / "kept").write_text("the target of a link")
    (out / "run.h5.tmp.78").symlink_to("kept")
    run(job, overrides=["run.overwrite=true"])
    after = contents(out)
    assert all(after.get(name) == before[name] for name in before)
    assert (out / "run.h5.tmp.77").exists() and (out / "a.tmp.1" / "inside").exists()
    assert (out / "run.h5.tmp.78").is_symlink()
    assert sorted(set(after) - set(before) - {"kept", "run.h5.tmp.78"}) == [
        "checkpoint-00000003.h5", "history.bin", "mpifed-files.txt", "run.h5", "run.lock",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["checkpoint-00000001.h5", "checkpoint-00000009.h5", "history.bin", "run.h5.tmp.12", "run.lock.tmp.5"],
)
def test_a_name_that_is_taken_is_refused_and_can_be_moved_away(job, out, name):
    (out / name).write_text("mine")
    for way in ("run.overwrite=true", "rounds=4"):
        with pytest.raises(CollectiveError, match=f"{name} is a file that mpifed has not written"):
            run(job, overrides=[way])
    assert contents(out) == {name: b"mine"}
    (out / name).unlink()
    run(job)
    (out / "mpifed-files.txt").unlink()
    with pytest.raises(CollectiveError, match="is a file that mpifed has not written and would be"):
        run(job, overrides=["run.overwrite=true"])


KINDS = {
    "text": lambda path: path.write_text("mine"),
    "binary": lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n config layout" + bytes(2000)),
    "link": lambda path: path.symlink_to("target"),
    "loop": lambda path: path.symlink_to(path.name),
    "link to an empty file": lambda path: path.symlink_to("empty"),
    "link to nothing": lambda path: path.symlink_to("nowhere"),
    "folder": lambda path: path.mkdir(),
    "pipe": os.mkfifo,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["run.lock", "run.h5", *REPORT_FILES])
def test_what_is_in_the_way_is_told_before_the_work(job, out, name, kind):
    (out / "target").write_text("the target of a link")
    (out / "empty").touch()
    KINDS[kind](out / name)
    before, listed = contents(out) if kind != "pipe" else {}, os.listdir(out)
    done = invoke("run", job, "run.overwrite=true")
    what = {"text": "a file that mpifed has not written", "folder": "a folder", "link": "a symbolic link"}
    assert f"{out / name} is {what.get(kind, '')}" in str(done.exception), done.output
    assert isinstance(done.exception, CollectiveError) and "move it away" in str(done.exception)
    assert os.listdir(out) == listed and (not before or contents(out) == before)


def test_a_sweep_does_not_wait_for_a_pipe(job, out):
    job.write_text(job.read_text() + "[sweep]\nseed = [0, 1]\n")
    (out / "seed=0").mkdir()
    os.mkfifo(out / "seed=0" / "run.h5")
    os.mkfifo(out / "seed=0" / "checkpoint-00000007.h5")
    done = invoke("sweep", job)
    assert "is a file that mpifed has not written and would be" in str(done.exception), done.output


def test_a_report_does_not_replace_what_is_no_report(tmp_path):
    write(tmp_path / "a", auc=[0.5] * 5)
    write(tmp_path / "b", auc=[0.4] * 5)
    for name in REPORT_FILES:
        out = tmp_path / f"out of {name}"
        out.mkdir()
        (out / name).write_text("name,value\nmine,1\n")
        done = invoke("report", tmp_path / "a", tmp_path / "b", "--out", out)
        assert done.exit_code == 2 and f"{out / name} is a file that mpifed has not" in done.output
        assert contents(out) == {name: b"name,value\nmine,1\n"}


def test_own_files_are_known_again(tmp_path):
    write(tmp_path / "a", auc=[0.5] * 5)
    write(tmp_path / "b", auc=[0.4] * 5)
    for _ in range(2):
        done = invoke("report", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "report")
        assert done.exit_code == 0, done.output
    assert {path.name for path in (tmp_path / "report").iterdir()} == {*REPORT_FILES, "mpifed-files.txt"}


def test_a_report_that_cannot_be_written_is_one_sentence(job, out, monkeypatch):
    monkeypatch.setattr("mpifed.report.report.curves", lambda *_: (out / "no" / "where").touch())
    done = invoke("run", job)
    assert done.exit_code == 2 and "the run is done, but its report could not be written" in done.output
    assert (out / "run.h5").exists() and not list(out.glob("*.tmp.*"))


@pytest.mark.parametrize("path", ["", " "])
def test_a_folder_without_a_name(job, out, path, tmp_path, monkeypatch):
    """What an unset variable of the shell leaves; it would be the working folder."""
    monkeypatch.chdir(out)
    sweep = tmp_path / "sweep.toml"
    sweep.write_text(JOB + f'out = "{path}"\n' + "[sweep]\nseed = [0, 1]\n")
    for attempt in (
        lambda: run(job, overrides=[f'run.out="{path}"']),
        lambda: resume(path),
        lambda: Folder(path),
        lambda: variants(sweep, []),
    ):
        with pytest.raises(ConfigError, match="expected the name of a folder, got .*: is a shell"):
            attempt()
    assert os.listdir(out) == []


def test_names_that_are_unusual(job, tmp_path):
    """A newline, quotes, and as many characters as a name may have; one more is refused."""
    for name in ("two\nlines", "'\"$(x) `", "n" * 255):
        out = tmp_path / "a" / name
        run(job, overrides=[f"run.out={json.dumps(str(out))}"])
        assert resume(out).path == out / "run.h5"
        shutil.rmtree(tmp_path / "a")
    (tmp_path / "loop").symlink_to("loop")
    for name, says in (("n" * 256, "File name too long"), ("loop", ""), ("loop/run", "Too many levels of")):
        refused = str(invoke("run", job, f"run.out={tmp_path / name}").exception)
        assert refused.startswith("cannot write to run.out = ") and says in refused
    with pytest.raises(ConfigError, match="has no NUL character"):
        run(job, overrides=['run.out="a\\u0000b"'])
