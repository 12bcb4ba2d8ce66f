"""Output of commands: no escape codes if captured, and exit code 141 if closed, as in ``| head``."""

import io
import os
import runpy
import subprocess
import sys
from pathlib import Path

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


#: All Python programs among the scripts.
SCRIPTS = [
    path
    for path in sorted((Path(__file__).parents[2] / "scripts").rglob("*"))
    if path.suffix in ("", ".py") and path.is_file() and 'if __name__ == "__main__"' in path.read_text()
]
#: Script → arguments with which it prints.
PRINTING = {"reproduce.py": [], "mutate": ["--help"]}


def code_of(monkeypatch, program, *words) -> int:
    """Return the exit code of a program whose standard output is a closed pipe."""
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(sys, "argv", [str(word) for word in words])
    with os.fdopen(writer, "w") as stdout, open(os.devnull, "w") as stderr:
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setattr(sys, "stderr", stderr)
        with pytest.raises(SystemExit) as leaving:
            program()
    return leaving.value.code


@pytest.mark.parametrize(
    "words", ["--help", "list", "schema", "status", "info run", "report a --cite", "report a"]
)
def test_commands_exit_quietly_if_the_output_is_closed(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a", auc=decay(0.1), config={"algorithm": {"name": "AdaFGDA"}})
    assert code_of(monkeypatch, main, "mpifed", *words.split()) == 141


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_exit_quietly_if_the_output_is_closed(monkeypatch, script):
    monkeypatch.syspath_prepend(str(script.parent))
    words = PRINTING.get(script.name, ["--help"])

    def program():
        runpy.run_path(str(script), run_name="__main__")

    assert code_of(monkeypatch, program, script, *words) == 141


@pytest.mark.parametrize("words", [["info", "FGDA"], ["info", "run"], ["info", "Saddle"], ["schema"]])
def test_output_in_ascii(monkeypatch, words):
    """Other characters are printed as escape sequences."""
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setattr(sys, "argv", ["mpifed", *words])
    main()
    output.flush()
    assert "\\u" in output.buffer.getvalue().decode("ascii")
