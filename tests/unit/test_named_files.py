"""A figure that a user names: written as a whole or not at all, and only over another such figure."""

import os

import pytest
from click.testing import CliRunner

from mpifed.base.errors import ConfigError
from mpifed.cli.main import cli
from mpifed.parallel.comm import CollectiveError

JOB = """
[algorithm]
name = "MFCGD"
q = 2
[problem]
name = "LinearMAML"
clients = 3
d = 4
"""
NAME = "job.clients.png"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(JOB)
    return tmp_path


def invoke(out):
    return CliRunner().invoke(cli, ["info", "job.toml", "--out", str(out)])


KINDS = {
    "text": lambda path: path.write_text("mine"),
    "another PNG": lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n tEXtSoftware\0Photos"),
    "link": lambda path: path.symlink_to("target"),
    "link to nothing": lambda path: path.symlink_to("nowhere"),
    "pipe": os.mkfifo,
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_of_their_kind_stays(place, kind):
    (place / "target").write_text("the target of a link")
    KINDS[kind](place / NAME)
    before = os.lstat(place / NAME)
    done = invoke(NAME)
    what = "a symbolic link" if "link" in kind else "a file that mpifed has not written"
    assert isinstance(done.exception, ConfigError | CollectiveError), done.output
    assert f"{NAME} is {what} and would be replaced: move it away" in str(done.exception)
    after = os.lstat(place / NAME)
    assert (before.st_ino, before.st_size, before.st_mtime_ns) == (
        after.st_ino, after.st_size, after.st_mtime_ns,
    )  # fmt: skip
    assert (place / "target").read_text() == "the target of a link"
    assert {path.name for path in place.iterdir()} == {"job.toml", "target", NAME}


def test_their_own_kind_and_empty_files_are_replaced(place):
    (place / NAME).touch()
    for _ in range(2):
        done = invoke(NAME)
        assert done.exit_code == 0, done.exception
        assert (place / NAME).stat().st_size > 50
        os.utime(place / NAME, (0, 0))
    assert invoke(NAME).exit_code == 0 and (place / NAME).stat().st_mtime > 0
    assert not list(place.glob("*.tmp.*"))


def test_a_place_that_cannot_be_written_to(place, monkeypatch):
    """Told before the work where there is no folder, afterwards where the disk is full."""
    with monkeypatch.context() as patches:
        patches.setattr("mpifed.report.client_samples.holdings", lambda *_: pytest.fail("the work was done"))
        done = invoke("none/file")
        assert "cannot write none/file: there is no folder none" in str(done.exception), done.output

    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mpifed.storage.atomic.sync", full)
    done = invoke(NAME)
    assert isinstance(done.exception, ConfigError), done.output
    assert str(done.exception) == f"cannot write {NAME}: No space left on device"
    assert not (place / NAME).exists() and not list(place.glob("*.tmp.*"))
