"""Texts from files of unknown origin are printed without control characters."""

from __future__ import annotations

import io
import json
import logging
import re
import socket
import sys
import warnings
from types import SimpleNamespace

import h5py
import pytest
from runfiles import decay, write

import mpifed
from mpifed.algorithms import LocalSGDA
from mpifed.base import log
from mpifed.base.console import Console
from mpifed.base.log import LOG, escape_control
from mpifed.cli.main import main
from mpifed.problems import Saddle
from mpifed.storage.rank_log import _Formatter

#: Writes the clipboard, rings the bell, sets colours (C0 and C1), deletes, and reverses the direction.
EVIL = "E\x1b]52;c;ZXZpbA==\x07\x1b[31m\x9b32m\x7f\r\u202eX"
#: Its beginning as escaped by this package or by Python.
ESCAPED = re.compile(r"E\\(u00|x)1b\]52;c;")
#: All characters that a terminal interprets, except for newlines and tabs.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\udc80-\udc9f]")


@pytest.fixture
def command(monkeypatch, capsys):
    """Run a command in this process; check that its output has no control characters, and return it."""
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)

    def execute(*arguments) -> str:
        monkeypatch.setattr(sys, "argv", ["mpifed", *map(str, arguments)])
        try:
            main()
        except SystemExit:
            pass
        except Exception as error:  # as Python prints it
            sys.excepthook(*sys.exc_info()[:2], error.__traceback__)
        output = "".join(capsys.readouterr())
        assert not CONTROL.findall(output), (arguments, output)
        return output

    return execute


def test_messages_on_a_terminal_are_broken_between_words(monkeypatch):
    text = f"mpifed: {'word ' * 20}{'x' * 90}\n{' ' * 4}{'code ' * 20}"
    assert log.wrap_on_terminal(text) == text
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setenv("COLUMNS", "80")
    first, second, *rest = log.wrap_on_terminal(text).split("\n")
    assert len(first) <= 80 and first.endswith("word") and second.startswith("word")
    assert rest == ["x" * 90, f"{' ' * 4}{'code ' * 20}"]


def plant(folder, seed=0, stopped=EVIL, method=EVIL):
    """Write a run folder with control characters in every text."""
    config = {
        "seed": seed,
        "algorithm": {"gamma": EVIL, "name": method},
        "problem": {"name": f"./{EVIL}.py:{EVIL}", "clients": 2, "note": EVIL},
        "plugins": {"problem": {"name": EVIL, "file": EVIL, "digest": EVIL, "path": EVIL}},
        "run": {"out": EVIL, "device": EVIL},
    }
    metrics = {f"error{EVIL}": decay(0.1 + seed), "validation error": decay(0.2), "$" + EVIL: decay(0.3)}
    run = write(folder, method, config=config, stopped=stopped, **metrics)
    with h5py.File(run / "run.h5", "a") as file:
        file.attrs["versions"] = json.dumps({EVIL: EVIL})
        file.attrs["layout"] = json.dumps({"host": EVIL, "ranks": 1})
        file.attrs["data"] = json.dumps({EVIL: {"path": EVIL, "digest": EVIL}})
    (run / "run.lock").write_text(f"process 1 on {EVIL}{socket.gethostname()}, since {EVIL}\n")
    return run


@pytest.mark.parametrize("words", [
    *(["status", EVIL], ["status", "--json", EVIL], ["status", f"{EVIL}.toml"]),
    *(["report", EVIL, "--out", "out"], ["report", "--cite", EVIL]),
    *([name, f"{EVIL}/{EVIL}0"] for name in ("resume", "info")),
    ["export", f"{EVIL}/{EVIL}0", "--to", "m.safetensors"],
    *([name, f"{EVIL}.toml"] for name in ("run", "sweep", "tune", "estimate", "launch")),
    ["check", f"./{EVIL}.py:{EVIL}"],
], ids=lambda words: words[0])  # fmt: skip
def test_commands_escape_control_characters(command, tmp_path, monkeypatch, words):
    """Runs with control characters in every text, in folders and job files with such names."""
    monkeypatch.chdir(tmp_path)
    for seed in range(2):
        plant(tmp_path / EVIL / f"{EVIL}{seed}", seed)
    plant(tmp_path / EVIL / "unfinished", 3, "")
    tables = f"[algorithm]\nname = {json.dumps(EVIL)}\n[problem]\nname = {json.dumps(EVIL)}\n"
    (tmp_path / f"{EVIL}.toml").write_text(tables)
    command("--traceback", *words)
    assert "--cite" in words or ESCAPED.search(command(*words))


def test_damaged_runs_and_locks_are_escaped(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = plant(tmp_path / EVIL)
    (run / "run.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + EVIL.encode())
    for words in (["status", EVIL], ["report", EVIL], ["export", EVIL, "--to", EVIL], ["resume", EVIL]):
        assert ESCAPED.search(command(*words))


def test_the_console_of_rich_prints_its_own_colours_only():
    file = io.StringIO()
    console = Console(highlight=False, file=file, force_terminal=True, color_system="standard", width=200)
    console.print(f"[bold]{EVIL}", style="red")
    assert file.getvalue().count("E\\u001b]52;c;") == 1
    own = re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue())
    assert "\x1b[" in file.getvalue() and not CONTROL.search(own)


def test_lines_warnings_tracebacks_and_logs_are_escaped(capsys, tmp_path, command):
    log.info(EVIL)
    log.warning(EVIL)
    log.print_error(EVIL)
    command("--version")  # replaces the hooks of Python for warnings and tracebacks
    warnings.showwarning(EVIL, UserWarning, "file.py", 1)
    for _ in range(2):  # the same in two runs
        warnings.showwarning("of the package", UserWarning, log.__file__, 1)
    try:
        raise RuntimeError(EVIL)
    except RuntimeError:
        sys.excepthook(*sys.exc_info())
    shown = capsys.readouterr().err
    assert shown.count("\\u001b]52;c;") == 2 and not CONTROL.search(shown)
    assert "file.py:1: UserWarning: " in shown and shown.count("mpifed: warning: of the package\n") == 1


def test_the_log_and_the_progress_bar_of_a_run_are_escaped(tmp_path, capsys):
    """Metrics with such names are refused, but names of classes are not."""
    method = type(EVIL, (LocalSGDA,), {})(q=2, eta_x=0.01, eta_y=0.01)
    run = {"out": str(tmp_path / "run")}
    mpifed.run(mpifed.Config(algorithm=method, problem=Saddle(d=2, clients=2), rounds=2, run=run))
    LOG.addHandler(handler := logging.StreamHandler(log := io.StringIO()))
    try:
        handler.setFormatter(_Formatter())
        LOG.critical(EVIL)
    finally:
        LOG.removeHandler(handler)
    assert "\\u001b]52;c;" in log.getvalue() and not CONTROL.search(log.getvalue())
    shown = capsys.readouterr().err.replace("\r", "").replace("\x1b[A", "")  # those of the progress bar
    assert "\\u001b]52;c;" in shown and not CONTROL.search(shown)


def test_printable_characters_are_not_escaped():
    assert escape_control("a\tb\nc é ½ \\ 中") == "a\tb\nc é ½ \\ 中"
    assert escape_control("a\tb\nc\x1b\x9b\u202e\udc9b", line=True) == "a\\tb\\nc\\u001b\\u009b\\u202e\\udc9b"
    assert json.loads('"' + escape_control("\x7f\u202e") + '"') == "\x7f\u202e", "JSON remains valid"
