"""Output whose reader has gone, as in ``| head``: no traceback, and the exit code of SIGPIPE."""

import os
import runpy
import sys
from pathlib import Path

import pytest
from runfiles import decay, write

from mpifed.cli.main import main

#: All scripts that are programs in Python.
SCRIPTS = [
    path
    for path in sorted((Path(__file__).parents[2] / "scripts").rglob("*"))
    if path.suffix in ("", ".py") and path.is_file() and 'if __name__ == "__main__"' in path.read_text()
]
#: Arguments with which a script prints at once.
PRINTING = {"reproduce.py": [], "mutate": ["--help"]}


def code_of(monkeypatch, program, *words) -> int:
    """The exit code of a program whose standard output is a pipe that nobody reads."""
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
def test_commands(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a", auc=decay(0.1), config={"algorithm": {"name": "AdaFGDA"}})
    assert code_of(monkeypatch, main, "mpifed", *words.split()) == 141


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts(monkeypatch, script):
    monkeypatch.syspath_prepend(str(script.parent))
    words = PRINTING.get(script.name, ["--help"])
    assert (
        code_of(monkeypatch, lambda: runpy.run_path(str(script), run_name="__main__"), script, *words) == 141
    )
