"""The output folder: locks, places that cannot be written to, and folders that are lost during a run."""

import errno
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from saddle_job import table

from mpifed import resume, run
from mpifed.parallel.comm import CollectiveError
from mpifed.simulation.simulation import NonFiniteError
from mpifed.storage import folder as module
from mpifed.storage.files import LOCK_FILE
from mpifed.storage.folder import Folder

ROUNDS = 10


@pytest.fixture(autouse=True)
def short_timeout(monkeypatch):
    monkeypatch.setattr(module, "LOCK_TIMEOUT", 0.3)


def opened(path) -> Folder:
    folder = Folder(path)
    folder.open(create=True)
    return folder


def test_one_run_at_a_time(tmp_path):
    first, second = opened(tmp_path / "run"), Folder(tmp_path / "run")
    holder = f"process {os.getpid()} on {socket.gethostname()}, since "
    with pytest.raises(ValueError, match=f"run.out = {tmp_path / 'run'} is in use by {holder}"):
        second.open(create=True)
    second.close()  # does not unlock
    with pytest.raises(ValueError, match="is in use"):
        second.open(create=False)
    (tmp_path / "run" / "run.h5").touch()
    first.close()
    second.open(create=True)
    second.close()


def test_requeued_job_waits_for_its_predecessor(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOCK_TIMEOUT", 60.0)
    threading.Timer(0.3, opened(tmp_path).close).start()
    opened(tmp_path).close()


def test_lock_ends_with_the_process(tmp_path):
    opened(tmp_path).close()
    code = (
        f"import fcntl, time; lock = open({str(tmp_path / LOCK_FILE)!r}, 'w'); "
        "fcntl.flock(lock, fcntl.LOCK_EX); print('process 1 on mars, since 1', file=lock, flush=True); "
        "print('locked', flush=True); time.sleep(100)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "locked\n"
    with pytest.raises(ValueError, match="is in use by process 1 on mars, since 1"):
        opened(tmp_path)
    holder.kill()
    holder.wait()
    holder.stdout.close()
    opened(tmp_path).close()


def test_lock_file_replaced_while_it_is_locked(tmp_path, monkeypatch):
    """The run must hold the lock of the file that other processes open."""
    flock, stale = module.fcntl.flock, []

    def late(file, how):
        if not stale:
            stale.append(os.fstat(file.fileno()).st_ino)
            (tmp_path / LOCK_FILE).unlink()
            (tmp_path / "another").touch()  # takes the inode
            (tmp_path / LOCK_FILE).touch()
        return flock(file, how)

    monkeypatch.setattr(module.fcntl, "flock", late)
    folder = opened(tmp_path)
    held = os.fstat(folder._lock.fileno()).st_ino
    assert held == (tmp_path / LOCK_FILE).stat().st_ino != stale[0]
    folder.close()


def test_file_system_without_locks(tmp_path, monkeypatch, capsys):
    def missing(file, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(module.fcntl, "flock", missing)
    opened(tmp_path).close()
    assert f"warning: {tmp_path} cannot be locked (No locks available)" in capsys.readouterr().err


def test_lock_file_that_a_crash_of_the_host_left_zero(tmp_path, capsys):
    (tmp_path / LOCK_FILE).write_bytes(bytes(50))
    assert module.holder(tmp_path) == ("", False)
    opened(tmp_path).close()
    assert not capsys.readouterr().err


def test_a_parent_that_another_process_creates_now(tmp_path, monkeypatch):
    def late(path):
        (tmp_path / "trials").mkdir(exist_ok=True)
        return lexists(path)

    lexists = os.path.lexists
    monkeypatch.setattr(os.path, "lexists", late)
    opened(tmp_path / "trials/a").close()


def test_temporary_files_of_a_killed_run_are_removed(tmp_path):
    opened(tmp_path).close()
    for name in ("checkpoint-00000004.h5.tmp.123", "run.h5.tmp.9", "checkpoint-00000002.h5", "notes.txt"):
        (tmp_path / name).touch()
    opened(tmp_path).close()
    assert {*os.listdir(tmp_path)} == {"checkpoint-00000002.h5", "notes.txt", LOCK_FILE}


def test_folder_of_a_run_that_never_started_is_removed(tmp_path):
    out = tmp_path / "a" / "run"
    opened(out).close()
    assert not out.exists()
    folder = opened(out)
    (out / "notes.txt").touch()
    folder.close()
    assert (out / "notes.txt").exists()


def test_places_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("removed")
    for name, found in (("file", "a file"), ("link", "a link to removed that leads nowhere")):
        for place in (tmp_path / name, tmp_path / name / "run"):
            message = f"cannot write to run.out = {place}: {tmp_path / name} is {found}"
            with pytest.raises(ValueError, match=message):
                opened(place)


@pytest.fixture
def mounted(tmp_path):
    """A file system, and a function that makes it read-only."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "tmpfs", disk]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    yield disk, lambda: subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    subprocess.run(["umount", disk], check=True)


def test_read_only_file_system(mounted):
    disk, protect = mounted
    protect()
    start = time.monotonic()
    for place in (disk, disk / "run"):
        with pytest.raises(ValueError, match=f"cannot write to run.out = {place}: Read-only file system"):
            opened(place)
    assert time.monotonic() - start < 10, "there is nothing to wait for"


def test_complete_run_on_a_read_only_file_system(mounted):
    """It is returned, since nothing has to be written."""
    disk, protect = mounted
    first = run(table(disk / "run", 2))
    protect()
    for again in (run(table(disk / "run", 2)), resume(disk / "run")):
        assert again.round == 2 and again.point["x"].equal(first.point["x"])
    with pytest.raises(CollectiveError, match="Read-only"):
        run(table(disk / "run", 3))


def job(out, **settings) -> dict:
    return table(out, ROUNDS, run={"checkpoint_every": 3} | settings)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The point of an undisturbed run."""
    return run(job(tmp_path_factory.mktemp("whole") / "run")).point["x"].numpy()


@pytest.fixture
def out(tmp_path, monkeypatch):
    """The folder ``a/run``, which is not in the working folder."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(module, "LOCK_TIMEOUT", 0.0)
    return tmp_path / "a" / "run"


def becomes(make):
    return lambda out: (shutil.rmtree(out), make(out))


def lock_becomes(make):
    return lambda out: ((out / LOCK_FILE).unlink(), make(out / LOCK_FILE))


MARS = "process 7 on mars, since 2026-01-01 00:00:00"
LOSSES = {
    "removed": (shutil.rmtree, "No such file or directory"),
    "removed with its parent": (lambda out: shutil.rmtree(out.parent), "No such file or directory"),
    "moved": (lambda out: out.rename(out.with_name("other")), "No such file or directory"),
    "a file": (becomes(lambda out: out.write_text("text")),
     "Not a directory|the folder was replaced by another folder"),
    "a loop": (becomes(lambda out: out.symlink_to("run")), "Too many levels of symbolic links"),
    "replaced": (becomes(lambda out: out.mkdir()), "the folder was replaced by another folder"),
    "replaced by a run": (becomes(opened), "the folder was replaced by another folder"),
    "shared": (lambda out: (out / LOCK_FILE).write_text(f"{MARS}\n"), f"it is in use by {MARS}"),
    "lock is a link": (lock_becomes(lambda lock: lock.symlink_to("x")), "Too many levels of symbolic links"),
    "lock is a pipe": (lock_becomes(os.mkfifo), "not a regular file"),
}  # fmt: skip


@pytest.mark.parametrize("act, why", LOSSES.values(), ids=LOSSES)
def test_lost_folder(out, at, capsys, act, why):
    """Each checkpoint causes a warning, the end an error; no files are written elsewhere."""
    at(5, lambda: act(out))
    with pytest.raises(CollectiveError) as error:
        run(job(out))
    assert re.fullmatch(
        rf"the files of round {ROUNDS} could not be written to {out} \(.*({why}).*\); .*; make the folder "
        "writable; then the same command (continues from there|starts over)",
        str(error.value),
    ), error.value
    warnings = re.findall(
        r"warning: the files of round (\d+) could not .*; the run continues\n", capsys.readouterr().err
    )
    assert warnings == ["6", "9"]
    assert os.listdir(os.getcwd()) == [] and not list(out.parents[1].rglob("*.tmp.*"))


def test_removed_lock_file_is_created_again(out, at):
    at(5, lambda: (out / LOCK_FILE).unlink())
    at(8, lambda: pytest.raises(ValueError, Folder(out).open, create=False))
    run(job(out))
    assert os.listdir(out.parent) == ["run"]


def test_error_names_the_newest_checkpoint(out, at, whole):
    at(5, lambda: (out / LOCK_FILE).write_text("process 7 on mars, since noon"))
    with pytest.raises(CollectiveError, match=r"checkpoint is of round 3; .* continues from there"):
        run(job(out))
    np.testing.assert_array_equal(run(job(out)).point["x"].numpy(), whole)
    at(5, lambda: shutil.rmtree(out))
    with pytest.raises(CollectiveError, match=r"there is no checkpoint; .* starts over"):
        run(job(out, overwrite=True))


def test_stale_folder(out, monkeypatch, capsys):
    """The run continues if the folder cannot even be listed."""

    def stale(*_):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(Folder, "expect_held", stale)
    monkeypatch.setattr(Folder, "checkpoints", stale)
    monkeypatch.setattr(Folder, "results", lambda folder: [])
    with pytest.raises(CollectiveError, match="files of round 10 .*Stale file handle.* starts over"):
        run(job(out), resume="never")
    assert capsys.readouterr().err.count("the run continues") == 3


def test_lost_folder_without_checkpoints(out, at, capsys):
    at(5, lambda: shutil.rmtree(out))
    with pytest.raises(CollectiveError, match="there is no checkpoint"):
        run(job(out, checkpoint_every=0))
    diverging = job(out, checkpoint_every=0)
    diverging["algorithm"] = {"name": "LocalSGDA", "q": 2, "eta_x": 1e60, "eta_y": 1e60}
    at(2, lambda: shutil.rmtree(out))
    with pytest.raises(NonFiniteError):
        run(diverging)
    assert "could not be written" in capsys.readouterr().err and not out.exists()


@pytest.fixture
def disk(monkeypatch):
    """What is written to disk, in order: ("sync", inode, content) and ("replace", name)."""
    events, fsync, replace = [], os.fsync, os.replace

    def synced(descriptor):
        path = f"/proc/self/fd/{descriptor}"
        content = b"" if os.path.isdir(path) else open(path, "rb").read()
        events.append(("sync", os.fstat(descriptor).st_ino, content))
        fsync(descriptor)

    def replaced(old, new):
        events.append(("replace", os.path.basename(new)))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    return events


def test_files_are_synced_before_they_are_renamed(tmp_path, disk):
    """First the folders that were created, then each file: its bytes, its name, the folder."""
    out = tmp_path / "a" / "b" / "run"
    run(job(out, checkpoint_every=ROUNDS))
    folders = (out.parent, out.parents[1], tmp_path)
    expected = [("sync", place.stat().st_ino, b"") for place in folders]
    for name in ("history.bin", f"checkpoint-{ROUNDS:08d}.h5", "run.h5"):
        file = out / name
        expected += [("sync", file.stat().st_ino, file.read_bytes()), ("replace", file.name)]
        expected += [("sync", file.parent.stat().st_ino, b"")]
    assert disk == expected


def test_checkpoint_that_cannot_be_synced_is_removed(out, monkeypatch):
    """A full or broken disk may report its error as late as that."""
    fsync = os.fsync

    def broken(descriptor):
        if b"checkpoint-" in os.readlink(f"/proc/self/fd/{descriptor}".encode()):
            raise OSError(5, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(CollectiveError, match="Input/output error.*there is no checkpoint"):
        run(job(out))
    assert sorted(os.listdir(out)) == ["history.bin", "log", LOCK_FILE]
    assert (out / LOCK_FILE).read_text() == ""
