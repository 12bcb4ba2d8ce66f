"""The log of a rank: what stands in it at which level, through ends, errors, resumptions and overwriting."""

import logging
import os
import re
import sys
import warnings

import pytest
from click.testing import CliRunner
from small_job import ROUNDS, job

import mpifed
from mpifed import Config
from mpifed.base.log import LOG, PHASES, info, warning
from mpifed.cli.main import cli
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.running.runner import Runner
from mpifed.storage import rank_log as module

COMM = SerialComm()
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} "


@pytest.fixture
def start(tmp_path):
    def run(*changes, **options):
        return mpifed.run(Config.load(job(tmp_path), changes), COMM, **options)

    return run


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "run" / "log" / "rank-0.txt"
    return lambda: path.read_text().splitlines()


@pytest.fixture
def level(request):
    LOG.setLevel(request.param)
    yield
    LOG.setLevel(logging.NOTSET)


def test_what_a_run_says_of_itself(start, log, capsys):
    handlers = [*LOG.handlers]
    start()
    title, *lines = log()
    assert re.fullmatch(
        rf"mpifed log of rank 0 of 1, process {os.getpid()} on .*, since [\d :-]{{19}}", title
    )
    assert all(re.match(TIME, line) for line in lines)
    said = "\n".join(lines)
    assert re.search("device cpu, 1 thread.*clients 0 to 5 .6 of 6., .*; set up in", said)
    assert said.count("files of round") == 7 and "the newest checkpoint is of round 3" in said
    assert f"ended: all {ROUNDS} rounds done; " in lines[-1] and not capsys.readouterr().err
    assert len(lines) == 9, "nothing is said of a round"
    assert LOG.level == logging.NOTSET and LOG.handlers == handlers


@pytest.mark.parametrize("level, rounds, phases", [
    (logging.WARNING, 0, 0), (logging.INFO, 0, 0), (logging.DEBUG, ROUNDS, 0), (PHASES, ROUNDS, ROUNDS + 1),
], indirect=["level"])  # fmt: skip
def test_levels(start, log, level, rounds, phases):
    start()
    said = "\n".join(log()[1:])
    assert len(re.findall(r" round \d+: [\d.e-]+ s$", said, re.M)) == rounds
    assert len(re.findall(r" phase \w+: [\d.e-]+ s for 6 clients, ", said)) == phases
    assert said.count("evaluation: ") == (5 if rounds else 0)
    assert bool(said) == (LOG.level < logging.WARNING)


@pytest.mark.parametrize("option, inside, outside", [
    ([], "continuing", "continuing"), (["-v"], "round 7: ", "continuing"), (["-vv"], "phase ", "continuing"),
    (["-q"], "", ""),
])  # fmt: skip
def test_options(tmp_path, log, option, inside, outside):
    path = str(job(tmp_path))
    assert CliRunner().invoke(cli, ["run", path, "rounds=6", "--no-report", "-q"]).output == ""
    before = len(log())
    changes = ["rounds=8", "run.progress=true"]
    done = CliRunner().invoke(cli, ["run", path, *changes, "--no-report", *option], catch_exceptions=False)
    assert done.exit_code == 0 and outside in done.output and bool(done.output) == bool(outside)
    assert inside in "\n".join(log()[before:]) and LOG.level == logging.NOTSET
    assert (len(log()) == before + 1) == (option == ["-q"])


def test_louder_and_quieter_at_once(tmp_path):
    done = CliRunner().invoke(cli, ["run", str(job(tmp_path)), "-v", "-q"])
    assert done.exit_code == 2 and "-v and -q exclude each other" in done.output
    assert LOG.level == logging.NOTSET


def test_a_resumption_adds_and_a_start_over_begins_anew(start, log):
    start("rounds=4")
    first = log()
    start("rounds=5")
    second = log()
    assert second[: len(first)] == first and second[len(first)].startswith("mpifed log of rank 0 of 1")
    start("rounds=5")
    assert log() == second, "what is complete is left alone"
    start("rounds=3", "run.overwrite=true")
    third = log()
    assert third[0].startswith("mpifed log") and "ended: all 3 rounds done" in third[-1]
    assert sum(line.startswith("mpifed log") for line in third) == 1


def test_logs_of_ranks_that_are_no_more_go_with_what_they_belong_to(start, tmp_path):
    start("rounds=2")
    folder = tmp_path / "run" / "log"
    (folder / "rank-7.txt").write_text("mpifed log of rank 7 of 8")
    (folder / "notes.txt").write_text("mine")
    start("rounds=3")
    assert (folder / "rank-7.txt").exists()
    start("rounds=3", "run.overwrite=true")
    assert sorted(os.listdir(folder)) == ["mpifed-files.txt", "notes.txt", "rank-0.txt"]


class Warning_:
    def on_round(self, event):
        if event.round == 2:
            warnings.warn("the moon is full", RuntimeWarning, stacklevel=1)
            warning("so it is")
            info("good night")
        if event.round == 3:
            raise KeyError("auc")


def test_warnings_and_the_error_of_the_end(start, log, capsys):
    shown = warnings.showwarning
    with warnings.catch_warnings(record=True) as caught, pytest.raises(CollectiveError):
        warnings.simplefilter("always")
        start(callbacks=[Warning_()])
    assert [str(one.message) for one in caught] == ["the moon is full"], "they are shown as well"
    said = "\n".join(log())
    assert re.search(TIME + r"warning: .*test_logs\.py:\d+: RuntimeWarning: the moon is full", said)
    assert re.search(TIME + "warning: so it is", said) and re.search(TIME + "good night", said)
    assert re.search(TIME + "critical: the run has ended on this rank with\nTraceback ", said)
    assert "KeyError: 'auc'" in said and 'raise KeyError("auc")' in said
    assert capsys.readouterr().err == "mpifed: warning: so it is\nmpifed: good night\n"
    assert warnings.showwarning is shown


def test_a_job_that_cannot_begin_leaves_no_folder(start, tmp_path):
    with pytest.raises(CollectiveError, match="there is no block 'z'"):
        start("record=['z']")
    assert not (tmp_path / "run").exists()


def test_what_is_told_before_there_is_a_file_stands_in_it(start, tmp_path, log):
    start()
    newest = tmp_path / "run" / f"checkpoint-{ROUNDS:08d}.h5"
    newest.write_bytes(newest.read_bytes()[:-10])
    start(f"rounds={ROUNDS + 1}")
    assert "warning: " in "\n".join(log()) and newest.name in "\n".join(log())


@pytest.mark.parametrize("name, make, words", [
    ("log", lambda path: path.write_text("mine"), "is no folder, and logs go there: move it away"),
    ("log", lambda path: path.symlink_to("/tmp"), "is no folder, and logs go there: move it away"),
    ("log/rank-0.txt", lambda path: path.write_text("my notes"), "is a file that mpifed has not written"),
    ("log/rank-5.txt", lambda path: path.mkdir(), "is a folder and would be replaced"),
])  # fmt: skip
def test_what_is_not_a_log_is_refused_before_the_run(start, tmp_path, name, make, words):
    path = tmp_path / "run" / name
    path.parent.mkdir(parents=True)
    make(path)
    with pytest.raises(CollectiveError, match=words):
        start()
    assert not (tmp_path / "run" / "run.h5").exists()


def test_a_log_that_cannot_be_written_costs_a_warning(start, tmp_path, monkeypatch, capsys):
    class Full(module._File):
        def flush(self):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_File", Full)
    assert start().stopped == f"all {ROUNDS} rounds done"
    assert capsys.readouterr().err.count("mpifed: warning: no more of the log ") == 1


def test_a_log_that_cannot_be_opened_costs_a_warning(start, monkeypatch, capsys):
    def full(path, flags):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_no_link", full)
    assert start().stopped == f"all {ROUNDS} rounds done"
    assert capsys.readouterr().err.count("mpifed: warning: no log: ") == 1


def test_a_round_makes_no_call_for_its_log(start, monkeypatch):
    """At the default level: between a round's last step and its end nothing of logging is entered."""
    entered, plain = [], Runner._round

    def watched(self, bar):
        sys.setprofile(lambda frame, event, _: entered.append(frame.f_code) if event == "call" else None)
        try:
            return plain(self, bar)
        finally:
            sys.setprofile(None)

    monkeypatch.setattr(Runner, "_round", watched)
    start("run.checkpoint_every=0", f"run.eval_every={ROUNDS}", f"rounds={ROUNDS - 1}")
    files = {code.co_filename for code in entered}
    assert len(entered) > ROUNDS and not [
        name for name in files if "/logging/" in name or name.endswith(("telling.py", "callbacks.py"))
    ]
