"""The output folder: one run at a time, in a place that can be written to."""

import errno
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from mpifed.storage import folder as module
from mpifed.storage.folder import LOCK_FILE, Folder


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.3)


def test_one_run_at_a_time(tmp_path):
    first, second = Folder(tmp_path / "run"), Folder(tmp_path / "run")
    first.open(create=True)
    with pytest.raises(ValueError) as refused:
        second.open(create=True)
    assert (
        f"run.out = {tmp_path / 'run'} is in use by process {os.getpid()} on {socket.gethostname()}, since "
        in str(refused.value)
    )
    second.close()  # must not take the lock of the first away
    with pytest.raises(ValueError, match="is in use"):
        second.open(create=False)
    (tmp_path / "run" / "run.h5").touch()
    first.close()
    second.open(create=True)
    second.close()


def test_a_job_that_is_requeued_waits_for_the_end_of_its_predecessor(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 60.0)
    first, second = Folder(tmp_path), Folder(tmp_path)
    first.open(create=True)
    threading.Timer(0.3, first.close).start()
    second.open(create=True)
    second.close()


def test_the_lock_ends_with_the_process(tmp_path):
    made = Folder(tmp_path)
    made.open(create=False)
    made.close()
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import fcntl, time; lock = open({str(tmp_path / LOCK_FILE)!r}, 'w'); "
            "fcntl.flock(lock, fcntl.LOCK_EX); print('process 1 on mars, since 1', file=lock, flush=True); "
            "print('locked', flush=True); time.sleep(100)",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout.readline() == "locked\n"
    with pytest.raises(ValueError, match="is in use by process 1 on mars, since 1"):
        Folder(tmp_path).open(create=True)
    holder.kill()
    holder.wait()
    holder.stdout.close()
    folder = Folder(tmp_path)
    folder.open(create=True)
    folder.close()


def test_a_lock_that_another_has_removed_meanwhile_is_no_lock(tmp_path, monkeypatch):
    """The folder's lock file is replaced between opening and locking: the run must hold the file that others
    find.
    """
    flock, stale = module.fcntl.flock, []

    def late(file, how):
        if not stale:
            stale.append(os.fstat(file.fileno()).st_ino)
            (tmp_path / LOCK_FILE).unlink()
            (tmp_path / "another").touch()  # takes the inode
            (tmp_path / LOCK_FILE).touch()
        return flock(file, how)

    monkeypatch.setattr(module.fcntl, "flock", late)
    folder = Folder(tmp_path)
    folder.open(create=True)
    held = os.fstat(folder._lock.fileno()).st_ino
    assert held == (tmp_path / LOCK_FILE).stat().st_ino != stale[0]
    folder.close()


def test_file_systems_without_locks(tmp_path, monkeypatch, capsys):
    def none(file, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(module.fcntl, "flock", none)
    folder = Folder(tmp_path)
    folder.open(create=True)
    folder.close()
    assert f"warning: {tmp_path} cannot be locked (No locks available)" in capsys.readouterr().err


def test_leftovers_of_a_killed_run_are_swept(tmp_path):
    folder = Folder(tmp_path)
    folder.open(create=True)
    folder.close()
    for name in ("checkpoint-00000004.h5.tmp.123", "run.h5.tmp.9", "checkpoint-00000002.h5", "notes.txt"):
        (tmp_path / name).touch()
    folder.open(create=True)
    names = {"checkpoint-00000002.h5", "notes.txt", LOCK_FILE, "mpifed-files.txt"}
    assert {path.name for path in tmp_path.iterdir()} == names
    folder.close()


def test_a_folder_made_for_a_run_that_never_began_goes(tmp_path):
    folder = Folder(tmp_path / "a" / "run")
    folder.open(create=True)
    folder.close()
    assert not (tmp_path / "a" / "run").exists()
    folder.open(create=True)
    (tmp_path / "a" / "run" / "notes.txt").touch()
    folder.close()
    assert (tmp_path / "a" / "run" / "notes.txt").exists()


def test_places_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(
            ValueError, match=f"cannot write to run.out = {place}: (Not a directory|File exists)"
        ):
            Folder(place).open(create=True)


def test_a_read_only_file_system(tmp_path):
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", tmp_path], capture_output=True
        ).returncode
    ):
        pytest.skip("mounting is not permitted here")
    try:
        begin = time.monotonic()
        for place in (tmp_path, tmp_path / "run"):
            with pytest.raises(ValueError, match=f"cannot write to run.out = {place}: Read-only file system"):
                Folder(place).open(create=True)
        assert time.monotonic() - begin < 10, "nothing to be patient about"
    finally:
        subprocess.run(["umount", tmp_path], check=True)
