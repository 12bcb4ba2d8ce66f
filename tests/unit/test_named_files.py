"""Files that a user names: written as a whole or not at all, over nothing but their own kind."""

import json
import os

import pytest
from click.testing import CliRunner

from mpifed.cli.main import cli
from mpifed.core.errors import ConfigError
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
LINK = {"alpha": 1e-6, "beta": 1e-9, "both": 1e-9}
MEASURED = {"machine": {"cores_per_node": 2}, "intra": LINK, "gamma": 1e-9}
#: File → the command that writes it.
COMMANDS = {
    "comm.json": ("bench", "comm", "--out"),
    "scale.png": (*("scale", "job.toml", "--comm", "measured.json"), *("--client-seconds", "1", "--out")),
    "job.clients.png": ("info", "job.toml", "--out"),
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The working folder; what two processes would measure is known."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "measured.json").write_text(json.dumps(MEASURED))
    monkeypatch.setattr("mpifed.scaling.measurement.measure", lambda *_: MEASURED)
    monkeypatch.setattr("mpifed.scaling.measurement.print_measurement", lambda *_: None)
    return tmp_path


def invoke(name: str, out):
    return CliRunner().invoke(cli, [*COMMANDS[name], str(out)])


KINDS = {
    "text": lambda path: path.write_text("mine"),
    "another PNG": lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n tEXtSoftware\0Photos"),
    "another JSON": lambda path: path.write_text('{"gamma": 1, "machine": "mine"}'),
    "link": lambda path: path.symlink_to("target"),
    "link to nothing": lambda path: path.symlink_to("nowhere"),
    "pipe": os.mkfifo,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_not_of_their_kind_stays(place, name, kind):
    (place / "target").write_text("the target of a link")
    KINDS[kind](place / name)
    before = os.lstat(place / name)
    done = invoke(name, name)
    what = "a symbolic link" if "link" in kind else "a file that mpifed has not written"
    assert isinstance(done.exception, ConfigError | CollectiveError), done.output
    assert f"{name} is {what} and would be replaced: move it away" in str(done.exception)
    after = os.lstat(place / name)
    assert (before.st_ino, before.st_size, before.st_mtime_ns) == (
        after.st_ino, after.st_size, after.st_mtime_ns,
    )  # fmt: skip
    assert (place / "target").read_text() == "the target of a link"
    assert {path.name for path in place.iterdir()} == {"job.toml", "measured.json", "target", name}


@pytest.mark.parametrize("name", COMMANDS)
def test_their_own_kind_and_empty_files_are_replaced(place, name):
    (place / name).touch()
    for _ in range(2):
        done = invoke(name, name)
        assert done.exit_code == 0, done.exception
        assert (place / name).stat().st_size > 50
        os.utime(place / name, (0, 0))
    assert invoke(name, name).exit_code == 0 and (place / name).stat().st_mtime > 0
    assert not list(place.glob("*.tmp.*"))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_place_that_cannot_be_written_to(place, name, monkeypatch):
    """Told before the work where there is no folder, afterwards where the disk is full."""
    with monkeypatch.context() as patches:
        for work in ("measurement.measure", "prediction.rows"):
            patches.setattr(f"mpifed.scaling.{work}", lambda *_: pytest.fail("the work was done"))
        done = invoke(name, "none/file")
        assert "cannot write none/file: there is no folder none" in str(done.exception), done.output

    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mpifed.storage.atomic.sync", full)
    done = invoke(name, name)
    assert isinstance(done.exception, ConfigError), done.output
    assert str(done.exception) == f"cannot write {name}: No space left on device"
    assert not (place / name).exists() and not list(place.glob("*.tmp.*"))
