"""The files of a run whose folder goes away under it, in one process."""

import os
import re
import shutil

import numpy as np
import pytest

from mpifed import run
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.parallel.placement import Placement
from mpifed.simulation.simulation import NonFiniteError
from mpifed.storage import checkpoint, folder
from mpifed.storage.folder import Folder
from mpifed.storage.ownership import LOCK_FILE, MARKER
from mpifed.storage.results import load

ROUNDS = 10


def table(out, **settings):
    base = {"progress": False, "dtype": "float64", "checkpoint_every": 3, "out": str(out)}
    return {
        "rounds": ROUNDS,
        "algorithm": {"name": "AdaFGDA", "q": 2},
        "problem": {"name": "Saddle", "clients": 4, "d": 3},
        "oracle": {"batch_size": 0, "noise": {"name": "gaussian", "scale": 0.1}},
        "run": base | settings,
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The point of the run when nothing goes wrong."""
    return run(table(tmp_path_factory.mktemp("whole") / "run")).point["x"].numpy()


@pytest.fixture
def out(tmp_path, monkeypatch):
    """``a/run`` below a working folder of the test's own; no patience with locks."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(folder, "PATIENCE", 0.0)
    return tmp_path / "a" / "run"


def becomes_a_file(out):
    shutil.rmtree(out)
    out.write_text("not a folder")


def is_taken(out):
    """Removed, and another run starts there."""
    shutil.rmtree(out)
    other = Folder(out)
    other.open(create=True)
    return other


def is_written_to(out):
    """By a run on a host that does not see the lock."""
    (out / LOCK_FILE).write_text("process 7 on mars, since 2026-01-01 00:00:00\n")


def becomes_another(out):
    shutil.rmtree(out)
    out.mkdir()


LOSSES = {
    "removed": (shutil.rmtree, "No such file or directory"),
    "removed with its parent": (lambda out: shutil.rmtree(out.parent), "No such file or directory"),
    "moved": (lambda out: out.rename(out.with_name("other")), "No such file or directory"),
    "a file": (becomes_a_file, "Not a directory|another folder has taken its place"),
    "a loop": (lambda out: (shutil.rmtree(out), out.symlink_to("run")), "Too many levels of symbolic links"),
    "another": (becomes_another, "another folder has taken its place"),
    "taken": (is_taken, "another folder has taken its place"),
    "shared": (is_written_to, "it is in use by process 7 on mars, since 2026-01-01 00:00:00"),
    "lock is a link": (
        lambda out: ((out / LOCK_FILE).unlink(), (out / LOCK_FILE).symlink_to("x")),
        "Too many levels of symbolic links",
    ),
    "lock is a pipe": (
        lambda out: ((out / LOCK_FILE).unlink(), os.mkfifo(out / LOCK_FILE)),
        "another run has used it meanwhile",
    ),
}  # fmt: skip


@pytest.mark.parametrize("loss", LOSSES)
def test_the_folder_is_lost(out, at, capsys, loss):
    """From round 5 on. Each checkpoint warns; the run ends with an error, and other places stay empty."""
    act, why = LOSSES[loss]
    at(5, lambda: act(out))
    with pytest.raises(CollectiveError) as fault:
        run(table(out))
    assert re.fullmatch(
        rf"the files of round {ROUNDS} could not be written to {out} \(.*({why}).*\); .*; when the folder "
        "can be written to again, the same command (continues from there|starts over)",
        str(fault.value),
    ), fault.value
    warnings = re.findall(
        r"warning: the files of round (\d+) could not .*; the run continues\n", capsys.readouterr().err
    )
    assert warnings == ["6", "9"]
    assert os.listdir(os.getcwd()) == [] and not list(out.parents[1].rglob("*.tmp.*"))


def test_the_folder_comes_back(out, at, whole, capsys):
    """Then the files lie there again, and nowhere else."""
    away = out.with_name("away")
    at(5, lambda: out.rename(away))
    at(8, lambda: away.rename(out))
    np.testing.assert_array_equal(run(table(out)).point["x"].numpy(), whole)
    assert os.listdir(out.parent) == ["run"] and load(out).stopped == f"all {ROUNDS} rounds done"
    assert capsys.readouterr().err.count("could not be written") == 1


def test_a_lock_that_somebody_has_removed_is_made_again(out, at):
    at(5, lambda: (out / LOCK_FILE).unlink())
    at(8, lambda: pytest.raises(ValueError, Folder(out).open, create=False))
    run(table(out))
    assert os.listdir(out.parent) == ["run"]


def test_the_newest_checkpoint_is_named(out, at, whole):
    at(5, lambda: (out / LOCK_FILE).write_text("process 7 on mars, since noon"))
    with pytest.raises(CollectiveError, match=r"checkpoint is of round 3; .* continues from there"):
        run(table(out))
    np.testing.assert_array_equal(run(table(out)).point["x"].numpy(), whole)
    at(5, lambda: shutil.rmtree(out))
    with pytest.raises(CollectiveError, match=r"there is no checkpoint; .* starts over"):
        run(table(out, overwrite=True))


def only_logs(folder) -> bool:
    """Whether a run has left only its logs, its history, and the lock that it has let go."""
    return (
        sorted(os.listdir(folder)) == ["history.bin", "log", "mpifed-files.txt", "run.lock"]
        and (folder / "run.lock").read_text() == ""
    )


def test_results_without_checkpoints_and_runs_that_diverge(out, at, capsys):
    at(5, lambda: shutil.rmtree(out))
    with pytest.raises(CollectiveError, match="there is no checkpoint"):
        run(table(out, checkpoint_every=0))
    wild = table(out, checkpoint_every=0)
    wild["algorithm"] = {"name": "LocalSGDA", "q": 2, "eta_x": 1e60, "eta_y": 1e60}
    at(2, lambda: shutil.rmtree(out))
    with pytest.raises(NonFiniteError):
        run(wild)
    assert "could not be written" in capsys.readouterr().err and not out.exists()


class Rows(SerialComm):
    """Rank 0 of three, whose others have sent their rows: counts what is fetched."""

    size, fetched = 3, 0

    def receive(self, array, source):
        self.fetched += len(array)


@pytest.mark.parametrize("fails", ["_room", "_fill", "replacing"])
def test_the_ranks_are_heard_out_when_the_disk_is_full(tmp_path, monkeypatch, fails):
    """They wait until their rows are fetched: without that, a large checkpoint hangs them for ever."""

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, fails, full)
    monkeypatch.setattr(checkpoint, "BLOCK", 48)  # two rows
    comm, placement = Rows(), Placement(15, 3)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.write(tmp_path, 3, {"round": 1}, {}, np.zeros((5, 3)), comm, placement)
    assert comm.fetched == 10 and os.listdir(tmp_path) == []


@pytest.fixture
def disk(monkeypatch):
    """What reaches the disk, in order: ("sync", inode, content) and ("replace", name)."""
    events, fsync, replace = [], os.fsync, os.replace

    def synced(descriptor):
        stat = os.fstat(descriptor)
        content = (
            b""
            if os.path.isdir(f"/proc/self/fd/{descriptor}")
            else open(f"/proc/self/fd/{descriptor}", "rb").read()
        )
        events.append(("sync", stat.st_ino, content))
        fsync(descriptor)

    def replaced(old, new):
        events.append(("replace", os.path.basename(new)))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    return events


def test_files_are_on_the_disk_before_they_take_their_names(tmp_path, disk):
    """The bytes of the history, then its name, then the name on the disk; the same for the checkpoint and
    for the results; and the folders that were made.
    """
    out = tmp_path / "a" / "b" / "run"
    run(table(out, checkpoint_every=ROUNDS))
    made, files = disk[:3], disk[3:]
    assert made == [("sync", place.stat().st_ino, b"") for place in (out.parent, out.parents[1], tmp_path)]
    expected = []
    for file in (out / MARKER, out / "log" / MARKER):
        expected += [("sync", file.stat().st_ino, file.read_bytes()), ("replace", MARKER)]
    for name in ("history.bin", f"checkpoint-{ROUNDS:08d}.h5", "run.h5"):
        file = out / name
        expected += [("sync", file.stat().st_ino, file.read_bytes()), ("replace", name)]
        expected += [("sync", out.stat().st_ino, b"")]
    assert files == expected


def test_a_checkpoint_that_does_not_reach_the_disk_is_none(out, monkeypatch):
    """The error of fsync, which a full or broken disk may give as late as that."""
    fsync = os.fsync

    def broken(descriptor):
        if b"checkpoint-" in os.readlink(f"/proc/self/fd/{descriptor}".encode()):
            raise OSError(5, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(CollectiveError, match="Input/output error.*there is no checkpoint"):
        run(table(out))
    assert only_logs(out), "made for a run that has left nothing else"
