"""Output of commands: no escape codes if captured, and a quiet exit if closed, as in ``| head``."""

import io
import os
import subprocess
import sys

import pytest
from commands import invoke
from launch import environment, mpirun_path
from runfiles import decay, write
from small_job import LIMIT

from mpifed.cli.main import cli, main

JOB = """
rounds = 3
algorithm = { name = "FGDA", q = 2, gamma = 0.01, lam = 0.01 }
problem = { name = "Saddle", clients = 4, d = 3 }
run = { out = "run" }
[sweep]
seed = [0, 1]
"""
COMMANDS = [
    ["info", "AdaFGDA"], ["report", "a", "b"], ["status", "--follow"], ["run", "job.toml", "rnds=3"],
    ["check", "FGDA", "q=2", "gamma=0.01", "lam=0.01"], ["sweep", "sweep.toml", "run.out=swept"],
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("captured")
    (folder / "sweep.toml").write_text(JOB)
    (folder / "job.toml").write_text(JOB.partition("[sweep]")[0])
    for name, rate in (("a", 0.1), ("b", 0.2)):
        write(folder / name, auc=decay(rate), error=decay(rate))
    return folder


def captured(folder, *launcher: str, words) -> str:
    """Return the output of a command under a TERM with colours."""
    variables = {name: value for name, value in environment().items() if name != "NO_COLOR"}
    done = subprocess.run(
        [*launcher, sys.executable, "-m", "mpifed", *words],
        cwd=folder,
        env=variables | {"TERM": "xterm-256color"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == (2 if "rnds=3" in words else 0), done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_captured_output_has_no_escape_codes(folder, words):
    text = captured(folder, words=words)
    assert text and "\x1b" not in text and "\r" not in text


def test_captured_output_of_two_ranks_has_no_escape_codes(folder):
    """mpirun gives its ranks a terminal."""
    text = captured(folder, mpirun_path(), "-n", "2", words=["run", "job.toml", "run.out=two"])
    assert "error final" in text and os.path.exists(folder / "two" / "report.html") and "\x1b" not in text
    assert "FGDA: 3 of 3 [" in text and "\r" not in text


@pytest.mark.parametrize("words", [[], *([name] for name in cli.commands), ["new", "job"], ["new", "method"]])
def test_help_fits_into_80_columns(words):
    text = invoke(*words, "--help", terminal_width=80).output
    assert "Usage: " in text and max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("words", ["--help", "schema", "info run", "report a"])
def test_commands_exit_quietly_if_the_output_is_closed(folder, words):
    """The help, and what click or rich prints."""
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "mpifed", *words.split()]
    with os.fdopen(writer, "w") as closed:
        done = subprocess.run(words, cwd=folder, stdout=closed, stderr=subprocess.PIPE, timeout=LIMIT)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("words", [["info", "FGDA"], ["info", "run"], ["info", "Saddle"], ["schema"]])
def test_output_in_ascii(monkeypatch, words):
    """Other characters are printed as escape sequences."""
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setattr(sys, "argv", ["mpifed", *words])
    main()
    output.flush()
    assert "\\u" in output.buffer.getvalue().decode("ascii")
