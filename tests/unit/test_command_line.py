"""The command line: a run with resumption and report, info, list and the marker of batch jobs."""

import contextlib
import gc
import json
import sys

import click
import pytest
import small_job
from commands import invoke, output_of

from mpifed import run
from mpifed.cli.catalogue import catalogue
from mpifed.cli.errors import report_and_exit
from mpifed.cli.main import main
from mpifed.cli.options import importing
from mpifed.config.job import Config
from mpifed.parallel.comm import SerialComm


@pytest.fixture
def job(tmp_path):
    return small_job.job(tmp_path)


@pytest.mark.parametrize(
    "name", ["\U0001f600", "é ü", "\udcff", "7", "true", '"x"', "a\nb", "\x7f", "a=b", "[1]", "1,2"]
)
def test_a_data_folder_may_have_any_name(job, name, monkeypatch):
    """Bytes that are not UTF-8 are surrogates in Python."""
    seen = []
    monkeypatch.setattr("mpifed.running.run.run", lambda config, *_: seen.append(config) or sys.exit(3))
    done = invoke("run", job, "--data-dir", name)
    assert [config.run.data_dir for config in seen] == [name], done.exception


def test_run_resume_report(job, tmp_path):
    """Run a job, start it again, resume it with more rounds, and write a report."""
    out, words = tmp_path / "run", ["run", job, "rounds=3", "run.checkpoint_every=2"]
    output = output_of(*words)
    assert "AdaFGDA" in output and "error final" in output
    files = "run.h5 run.lock history.bin checkpoint-00000002.h5 checkpoint-00000003.h5 log"
    report = "report.html curves.png table.txt table.csv"
    assert {path.name for path in out.iterdir()} == {*files.split(), *report.split()}
    written = {path: path.stat().st_mtime_ns for path in out.glob("*.h5")}
    assert f"mpifed: {out} is complete: all 3 rounds done" in output_of(*words)
    assert written == {path: path.stat().st_mtime_ns for path in out.glob("*.h5")}
    assert "continuing" in output_of("resume", out, "rounds=5")
    assert (out / "checkpoint-00000005.h5").exists()
    output_of("report", out, out, "--out", tmp_path / "report")
    assert (tmp_path / "report" / "curves.png").exists()


def test_a_wall_time_budget_stops_the_run(job):
    result = run(Config.load(job, ["rounds=1000", "stop.seconds=1e-9"]), SerialComm())
    assert "wall-time budget" in result.stopped and result.costs["round"][-1] <= 1


def test_info_of_everything():
    """Every name is explained; methods show their costs and the costs in the papers."""
    for group, members in catalogue().items():
        for name in members:
            output = output_of("info", name)
            assert group != "methods" or "in the papers" in output, name


def test_list():
    table = json.loads(output_of("list", "--json"))
    assert {"AdaFGDA", "FGDA", "LocalSGDA"} <= {*table["methods"]}
    assert {"Saddle", "DeepAUC"} <= {*table["problems"]}
    assert all(description for members in table.values() for description in members.values())
    assert "barzilai_borwein" in output_of("list")
    assert {*json.loads(output_of("list", "DIRICHLET", "--json"))} == {"partitions"}


def test_tables_fit_into_the_columns_of_the_environment(monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    for words in (["info", "message"], ["list", "bernoulli"]):
        lines = output_of(*words).splitlines()
        assert 50 < max(map(len, lines)) <= 70


def test_a_long_list_is_paged(monkeypatch):
    paged = []
    monkeypatch.setattr("click.echo_via_pager", paged.append)
    monkeypatch.setenv("LINES", "20")
    monkeypatch.setenv("COLUMNS", "80")
    assert "bernoulli" in output_of("list", "Bernoulli") and not paged
    assert not output_of("list") and "barzilai_borwein" in paged[0]


@pytest.mark.parametrize("words", [["list"], ["list", "--help"]])
def test_a_successful_command_removes_the_marker_of_the_batch_script(tmp_path, monkeypatch, capsys, words):
    """A marker that cannot be removed, or could not be created, does not turn success into failure."""
    mark = tmp_path / "mark"
    monkeypatch.setattr(sys, "argv", ["mpifed", *words])
    monkeypatch.setenv("MPIFED_UNFINISHED", str(mark))
    for there, message in (
        (True, ""),
        (False, f"warning: {mark} cannot be removed (No such file or directory)"),
    ):
        mark.touch() if there else None
        main()
        assert not mark.exists()
        text = capsys.readouterr().err
        assert message in text if message else not text
    monkeypatch.setenv("MPIFED_UNFINISHED", "")
    main()
    assert not capsys.readouterr().err
    mark.touch()
    monkeypatch.setenv("MPIFED_UNFINISHED", str(mark))
    monkeypatch.setattr(sys, "argv", ["mpifed", "info", "nothing"])
    with pytest.raises(SystemExit):
        main()
    monkeypatch.setattr(sys, "argv", ["mpifed", *words])
    monkeypatch.setenv("PMIX_RANK", "1")
    main()
    assert mark.exists()


def test_closed_streams(monkeypatch):
    """``2>&-`` in a shell closes standard error, which then is None in Python."""
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    monkeypatch.setattr(sys, "argv", ["mpifed", "list"])
    main()


def test_the_output_is_a_file_on_a_full_disk(monkeypatch, capsys):
    full = open("/dev/full", "w")
    monkeypatch.setattr(sys, "stdout", full)
    monkeypatch.setattr(sys, "argv", ["mpifed", "info", "settings"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and capsys.readouterr().err == "mpifed: No space left on device\n"
    with contextlib.suppress(OSError):
        full.close()


def test_the_current_folder_was_removed(tmp_path, monkeypatch):
    (tmp_path / "removed").mkdir()
    monkeypatch.chdir(tmp_path / "removed")
    (tmp_path / "removed").rmdir()
    done = invoke("list")
    assert done.exit_code == 2 and "the current folder was removed" in done.output


def test_ctrl_c_during_the_import_of_torch(monkeypatch, capsys):
    """Another import of a module that is partially imported fails, or crashes."""
    monkeypatch.setitem(sys.modules, "mpifed.simulation.simulation", None)
    with pytest.raises(SystemExit) as ended:
        report_and_exit(click.exceptions.Abort())
    assert ended.value.code == 130 and capsys.readouterr().err == "mpifed: interrupted\n"


def test_imports_are_not_interrupted_by_collections():
    before = gc.get_freeze_count()
    try:
        with importing():
            assert not gc.isenabled()
        assert gc.isenabled() and gc.get_freeze_count() > before
    finally:
        gc.unfreeze()
