"""Exceptions in user-defined functions under ``mpifed run``: exit code 2, a short message, no deadlock."""

import sys

import pytest
from launch import launch
from user_code import JOB, PLUGIN, REPORTED

from mpifed.cli.main import main


@pytest.fixture
def job(tmp_path):
    """``job(fault, ranks)``: a job whose function ``fault`` raises an exception on these ranks."""

    def make(fault: str, ranks: str = "01", plugin: str = PLUGIN):
        (tmp_path / "faulty.py").write_text(plugin.format(fault=fault, ranks=ranks))
        path = tmp_path / "job.toml"
        path.write_text(JOB.format(folder=tmp_path))
        return path

    return make


@pytest.fixture
def run(monkeypatch, capsys):
    """``run(job, *words)``: exit code and standard error of one process."""

    def carry_out(path, *words: str) -> tuple[int, str]:
        monkeypatch.setattr("mpifed.cli.errors.signal.signal", lambda *arguments: None)
        monkeypatch.setattr(sys, "argv", ["mpifed", *words, "run", str(path), "--no-report"])
        try:
            main()
        except SystemExit as end:
            return end.code, capsys.readouterr().err
        return 0, capsys.readouterr().err

    return carry_out


def test_without_an_exception(job, run):
    code, screen = run(job("none"))
    assert code == 0, screen


def is_reported(screen: str, words: str) -> bool:
    """Return whether the message is printed once, with the line of the user."""
    sentence = f"mpifed: {words}ZeroDivisionError: on purpose"
    return screen.count(sentence) == 1 and screen.count("# in the user's file") == 1 and "faulty.py" in screen


@pytest.mark.parametrize("fault, words", REPORTED.items(), ids=REPORTED)
def test_every_function(fault, words, job, run):
    path = job(fault)
    code, screen = run(path)
    assert code == 2 and is_reported(screen, words), screen
    assert "Traceback" not in screen and len(screen.splitlines()) < 15, screen
    code, whole = run(path, "--traceback")
    assert code == 2 and whole.endswith(screen), whole
    assert "Traceback" in whole and "mpifed/cli/main.py" in whole, whole


@pytest.mark.parametrize(
    "fault, ranks", [("client", "1"), ("server", "01"), ("initialize", "1"), ("matrix", "0")]
)
def test_some_ranks(fault, ranks, job):
    """The other ranks wait in a collective, but the job ends, and the first rank that fails reports it.
    Functions outside of rounds are in test_failures_on_one_rank.py."""
    code, output = launch(2, ["-m", "mpifed", "run", job(fault, ranks), "--no-report"], limit=120)
    words = REPORTED[fault] if "0" in ranks else REPORTED[fault].replace("client 0", "client 2")
    assert code == 2, output
    assert f"{words}ZeroDivisionError: on purpose" in output and "Traceback" not in output, output
    assert output.count("# in the user's file") == 1, output


def test_an_error_in_a_later_round_keeps_earlier_checkpoints(job, run):
    path = job("late loss")
    code, screen = run(path)
    assert code == 2 and is_reported(screen, "Method.client_round failed in round 2 for client 0: "), screen
    assert "in round 2, client 0, phase 'round'" in screen
    assert (path.parent / "run" / "checkpoint-00000001.h5").exists()


def test_an_invalid_class(job, run):
    """The message has the line of the file."""
    plugin = PLUGIN.replace("    shared = Record", "    shared: Record = Record")
    code, screen = run(job("none", plugin=plugin))
    assert code == 2 and "a hyperparameter cannot be called 'shared'" in screen, screen
    assert "class Method(Algorithm)" in screen and "Traceback" not in screen, screen
