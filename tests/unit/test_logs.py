"""The logs of the ranks: content by level, resumed and replaced runs, errors, and full disks."""

import errno
import gc
import logging
import os
import re
import sys
import warnings

import pytest
from commands import error_of, output_of
from small_job import ROUNDS, job

import mpifed
from mpifed import Config
from mpifed.base.log import LOG, PHASES, info, warning
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.running.loop import _first_metrics, _Run
from mpifed.simulation.simulation import Simulation
from mpifed.storage import rank_log as module

COMM = SerialComm()
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} "


def no_space(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def start(tmp_path):
    return lambda *changes, **options: mpifed.run(Config.load(job(tmp_path), changes), COMM, **options)


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "run" / "log" / "rank-0.txt"
    return lambda: path.read_text().splitlines()


@pytest.fixture
def level(request):
    LOG.setLevel(request.param)
    yield
    LOG.setLevel(logging.NOTSET)


def test_content_of_a_log(start, log, capsys):
    handlers = [*LOG.handlers]
    start()
    title, *lines = log()
    process = rf"mpifed log of rank 0 of 1, process {os.getpid()} on .*, since [\d :-]{{19}}"
    assert re.fullmatch(process, title) and all(re.match(TIME, line) for line in lines)
    text = "\n".join(lines)
    assert re.search("device cpu, 1 thread.*clients 0 to 5 .6 of 6., .*; set up in", text)
    assert text.count("files of round") == 7 and "the newest checkpoint is of round 3" in text
    assert f"ended: all {ROUNDS} rounds done; " in lines[-1] and not capsys.readouterr().err
    assert len(lines) == 9, "rounds are not logged"
    assert LOG.level == logging.NOTSET and LOG.handlers == handlers


@pytest.mark.parametrize("level, rounds, phases", [
    (logging.WARNING, 0, 0), (logging.INFO, 0, 0), (logging.DEBUG, ROUNDS, 0), (PHASES, ROUNDS, ROUNDS + 1),
], indirect=["level"])  # fmt: skip
def test_levels(start, log, level, rounds, phases):
    start()
    text = "\n".join(log()[1:])
    assert len(re.findall(r" round \d+: [\d.e-]+ s$", text, re.M)) == rounds
    assert len(re.findall(r" phase \w+: [\d.e-]+ s for 6 clients, ", text)) == phases
    assert text.count("evaluation: ") == (5 if rounds else 0)
    assert bool(text) == (LOG.level < logging.WARNING)


@pytest.mark.parametrize("option, inside, outside", [
    ([], "continuing", "continuing"), (["-v"], "round 7: ", "continuing"), (["-vv"], "phase ", "continuing"),
    (["-q"], "", ""),
])  # fmt: skip
def test_options(tmp_path, log, option, inside, outside):
    path = job(tmp_path)
    assert output_of("run", path, "rounds=6", "-q") == ""
    before = len(log())
    changes = ["rounds=8", "run.progress=true"]
    output = output_of("run", path, *changes, "--no-report", *option)
    assert outside in output and bool(output) == bool(outside)
    assert inside in "\n".join(log()[before:]) and LOG.level == logging.NOTSET
    assert (len(log()) == before + 1) == (option == ["-q"])
    assert "-v and -q exclude each other" in error_of("run", path, "-v", "-q")
    assert LOG.level == logging.NOTSET


def test_metrics_next_to_the_progress_bar():
    metrics = {"accuracy": 0.59334, "perturbed_accuracy": 0.5, "loss": 1.0}
    assert _first_metrics(metrics, 80) == "accuracy=0.5933"
    assert _first_metrics(metrics, None) == "accuracy=0.5933, perturbed_accuracy=0.5, loss=1"
    assert _first_metrics({"a" * 99: 1.0}, 80) == "a" * 99 + "=1" and _first_metrics({}, 80) == ""


def test_resumed_run_appends_and_overwriting_run_replaces(start, log):
    start("rounds=4")
    first = log()
    start("rounds=5")
    second = log()
    assert second[: len(first)] == first and second[len(first)].startswith("mpifed log of rank 0 of 1")
    start("rounds=5")
    assert log() == second, "a complete run is not touched"
    start("rounds=3", "run.overwrite=true")
    third = log()
    assert third[0].startswith("mpifed log") and "ended: all 3 rounds done" in third[-1]
    assert sum(line.startswith("mpifed log") for line in third) == 1


def test_logs_of_missing_ranks_are_removed_with_their_run(start, tmp_path):
    start("rounds=2")
    folder = tmp_path / "run" / "log"
    (folder / "rank-7.txt").write_text("mpifed log of rank 7 of 8")
    (folder / "notes.txt").write_text("mine")
    start("rounds=3")
    assert (folder / "rank-7.txt").exists()
    start("rounds=3", "run.overwrite=true")
    assert sorted(os.listdir(folder)) == ["notes.txt", "rank-0.txt"]


class Warns:
    def on_round(self, event):
        if event.round == 2:
            warnings.warn("the moon is full", RuntimeWarning, stacklevel=1)
            warning("a warning of mpifed")
            info("a line")
        if event.round == 3:
            raise KeyError("auc")


class Many(SerialComm):
    """A rank of 100 on two nodes."""

    def __init__(self, rank):
        self.rank, self.size, self.node = rank, 100, rank // 50 * 50


@pytest.mark.parametrize("rank, has_file", [(0, True), (50, True), (3, False)])
@pytest.mark.parametrize("warns", [False, True])
def test_of_many_ranks_those_with_warnings_have_a_log(tmp_path, monkeypatch, rank, has_file, warns):
    """And the first of each node. The messages before the warning are in the log."""
    monkeypatch.setattr(module, "KEPT", 5)
    (tmp_path / "log").mkdir()
    path = tmp_path / f"log/rank-{rank}.txt"
    path.write_text(f"{module.LOG_MAGIC.decode()}{rank} of 100, an earlier run\n")
    with module.RankLog(Many(rank), tmp_path) as log:
        log.open()
        log.remove_previous()
        for number in range(9):
            LOG.info("message %d", number)
        if warns:
            LOG.warning("a warning")
            LOG.info("after it")
    written = path.read_text() if path.exists() else ""
    assert "earlier" not in written and path.exists() == (has_file or warns)
    assert ("message 3" in written) == has_file and ("message 8" in written) == (has_file or warns)
    assert written.count("a warning") == written.count("after it") == warns


def test_the_disk_is_full_when_a_rank_of_many_warns(tmp_path, monkeypatch, capsys):
    def full(self, record):
        self.handleError(record)

    monkeypatch.setattr(module._File, "emit", full)
    (tmp_path / "log").mkdir()
    with module.RankLog(Many(3), tmp_path) as log:
        log.open()
        LOG.info("a message")
        for _ in range(3):
            LOG.warning("a warning")
    assert capsys.readouterr().err.count("the run continues without it") == 1


def test_warnings_and_the_error_that_ends_a_run(start, log, capsys):
    show = warnings.showwarning
    with warnings.catch_warnings(record=True) as caught, pytest.raises(CollectiveError):
        warnings.simplefilter("always")
        start(callbacks=[Warns()])
    assert [str(shown.message) for shown in caught] == ["the moon is full"], "it is also shown"
    text = "\n".join(log())
    assert re.search(TIME + r"warning: .*test_logs\.py:\d+: RuntimeWarning: the moon is full", text)
    assert re.search(TIME + "warning: a warning of mpifed", text) and re.search(TIME + "a line", text)
    assert re.search(TIME + "critical: the run has ended on this rank with an error:\nTraceback ", text)
    assert "KeyError: 'auc'" in text and 'raise KeyError("auc")' in text
    assert capsys.readouterr().err == "mpifed: warning: a warning of mpifed\nmpifed: a line\n"
    assert warnings.showwarning is show


def test_messages_before_the_log_is_opened(start, tmp_path, log):
    with pytest.raises(CollectiveError, match="there is no block 'z'"):
        start("record=['z']")
    assert not (tmp_path / "run").exists()
    start()
    newest = tmp_path / "run" / f"checkpoint-{ROUNDS:08d}.h5"
    newest.write_bytes(newest.read_bytes()[:-10])
    start(f"rounds={ROUNDS + 1}")
    assert "warning: " in "\n".join(log()) and newest.name in "\n".join(log())


@pytest.mark.parametrize("name, make, words", [
    ("log", lambda path: path.write_text("mine"), "expected a folder for the logs, found a file or a link"),
    ("log", lambda path: path.symlink_to("/tmp"), "expected a folder for the logs, found a file or a link"),
    ("log/rank-0.txt", lambda path: path.write_text("my notes"), "is a file that mpifed has not written"),
    ("log/rank-5.txt", lambda path: path.mkdir(), "is a folder and would be replaced"),
])  # fmt: skip
def test_foreign_files_are_reported_before_the_run(start, tmp_path, name, make, words):
    path = tmp_path / "run" / name
    path.parent.mkdir(parents=True)
    make(path)
    with pytest.raises(CollectiveError, match=words):
        start()
    assert not (tmp_path / "run" / "run.h5").exists()


@pytest.mark.parametrize("fails", [
    lambda patch: patch(module, "_File", type("Full", (module._File,), {"flush": no_space})),
    lambda patch: patch(module, "open_file", no_space),
], ids=["write", "open"])  # fmt: skip
def test_errors_of_a_log_do_not_end_the_run(start, monkeypatch, capsys, fails):
    fails(monkeypatch.setattr)
    assert start().stopped == f"all {ROUNDS} rounds done"
    assert capsys.readouterr().err.count("mpifed: warning: cannot write the log ") == 1


def test_a_round_calls_no_logging_at_the_default_level(start, monkeypatch):
    entered, step, finish = [], Simulation.step, _Run.finish

    def watched(self, control):
        sys.setprofile(lambda frame, event, _: entered.append(frame.f_code) if event == "call" else None)
        return step(self, control)

    def ended(self, end):
        sys.setprofile(None)
        return finish(self, end)

    monkeypatch.setattr(Simulation, "step", watched)
    monkeypatch.setattr(_Run, "finish", ended)
    gc.collect()  # the handlers of other tests, whose removal calls logging
    start("run.checkpoint_every=0", f"run.eval_every={ROUNDS}", f"rounds={ROUNDS - 1}")
    files = {code.co_filename for code in entered}
    logging_files = [
        name for name in files if "/logging/" in name or name.endswith(("/log.py", "callbacks.py"))
    ]
    assert len(entered) > ROUNDS and not logging_files


def test_disk_that_is_full_when_the_folder_is_created(start, tmp_path, monkeypatch, capsys):
    """The same command works when there is space, also after an empty log was left."""
    with monkeypatch.context() as full:
        full.setattr(
            module.Path, "mkdir", lambda path, **_: no_space() if path.name == "log" else os.mkdir(path)
        )
        start()
    assert "cannot write the logs in" in capsys.readouterr().err and not (tmp_path / "run" / "log").exists()
    (tmp_path / "run" / "log").mkdir()
    (tmp_path / "run" / "log" / "rank-0.txt").touch()
    start("run.overwrite=true")
    assert (tmp_path / "run" / "log" / "rank-0.txt").read_text().startswith("mpifed log of rank 0 of 1, ")
