"""Reports: files, printed tables, the command, the report of a run; scalars for TensorBoard."""

from __future__ import annotations

import base64
import csv
import struct
import sys

import numpy as np
import pytest
from commands import error_of, output_of
from matplotlib.image import imread
from runfiles import write

from mpifed.config.job import Config
from mpifed.parallel.comm import SerialComm
from mpifed.report import report as reports
from mpifed.report.client_samples import class_counts
from mpifed.report.comparison import Rule
from mpifed.report.figures import plot
from mpifed.report.report import Paper, report
from mpifed.running.run import resume, run
from mpifed.storage.results import COSTS, load

JOB = """
rounds = 4
[algorithm]
name = "LocalSGDA"
q = 2
eta_x = 0.01
eta_y = 0.01
[problem]
name = "DeepAUC"
dataset = "digits"
model = "linear"
clients = 3
[run]
progress = false
eval_every = 2
checkpoint_every = 2
out = "FOLDER/run"
"""


def test_names_with_tex_commands_are_drawn_unchanged(tmp_path):
    """Unpaired dollars and invalid TeX in names of metrics, methods and classes."""
    names = (r"$\frac$", "a$x_", r"$x^$ b", "\x1b]52;c;ZQ==\x07", r"\$a$")
    for seed in range(2):
        for number, method in enumerate(names):
            config = {"seed": seed, "problem": {"name": "DeepAUC", "clients": 2, "note": method}}
            metrics = {f"0{one}": lambda r: 10 - r / 40 for one in names}
            write(tmp_path / f"runs/{number}{seed}", method, config=config, **metrics)
    paper = Paper(tmp_path / "fig.pdf", tmp_path / "t.tex")
    rule = Rule(metric="0" + names[0])
    files = report([tmp_path / "runs"], tmp_path / "out", rule, paper)
    assert len(files) == 7 and all(file.stat().st_size for file in files)
    plot([tmp_path / "runs"], "0" + names[1]).figure.savefig(tmp_path / "plot.png")
    table = (tmp_path / "t.tex").read_text().partition(r"\begin")[2]
    assert r"0\$\textbackslash{}frac\$" in table and r"\frac" not in table
    assert r"\textbackslash{}u001b]52" in table


def test_files_that_cannot_be_written_are_reported_at_the_end(tmp_path, monkeypatch, capsys):
    def fails(*_):
        raise RuntimeError("no such glyph")

    write(tmp_path / "a", "FGDA", auc=lambda r: r / 40)
    monkeypatch.setattr(reports, "curves", fails)
    with pytest.raises(ValueError, match="curves.png: RuntimeError: no such glyph; .*other 3 files were"):
        report([tmp_path / "a"], tmp_path / "out")
    files = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert files == ["report.html", "table.csv", "table.txt"]
    assert "auc" in capsys.readouterr().out


def test_two_methods_are_written_and_printed(tmp_path, capsys):
    write(tmp_path / "a", "FGDA", auc=lambda r: r / 40)
    write(tmp_path / "b", "LocalSGDA", auc=lambda r: r / 50)
    out = tmp_path / "new" / "out"
    files = report([tmp_path / "a", str(tmp_path / "b" / "run.h5")], out)
    names = ("report.html", "curves.png", "table.txt", "table.csv", "settings.csv")
    assert files == [out / name for name in names]
    assert imread(files[1]).shape[1] > 1500
    assert base64.b64encode(files[1].read_bytes()).decode() in files[0].read_text(encoding="utf-8")
    text = files[2].read_text(encoding="utf-8")
    assert "LocalSGDA" in text and "80.0 kB" in text and len(files[3].read_text().splitlines()) == 3
    printed = capsys.readouterr().out
    assert "LocalSGDA" in printed and "best setting" not in printed, "there is one setting per method"


def test_a_folder_whose_name_is_not_utf8(tmp_path):
    """As a name in Latin-1 from another system: Python reads its byte as a lone surrogate."""
    for name in ("M\udcfcller", "b"):
        write(tmp_path / name, config={"note": name}, auc=lambda r: r / 40)
    out = tmp_path / "out"
    out.mkdir()
    report([tmp_path], out, paper=Paper(latex=out / "table.tex"))
    for name in ("report.html", "table.txt", "table.csv", "table.tex"):
        assert (out / name).stat().st_size
    assert "M\\udcfcller" in (out / "table.csv").read_text(encoding="utf-8")


def test_a_sweep_is_averaged_over_the_seeds(tmp_path):
    for seed in range(2):
        for gamma in (0.1, 0.2):
            config = {"seed": seed, "algorithm": {"gamma": gamma}}
            metrics = dict(error=[1, 1, 1, 1, gamma + seed], auc=[gamma] * 5, maximised=["auc"])
            write(tmp_path / "sweep" / f"seed={seed}" / f"{gamma}", config=config, **metrics)
    output = output_of("report", tmp_path / "sweep", "--out", tmp_path / "out", "--target", 0.3)
    words = " ".join(output.split())
    for text in ("4 runs, 2 settings.", "smallest final error", "0.6 ± 0.71"):
        assert text in words
    assert "0.7 ±" not in words
    with open(tmp_path / "out" / "settings.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["algorithm.gamma"], row["reached by"]) for row in rows] == [("0.1", "1"), ("0.2", "1")]
    assert "0.7 ± 0.71" not in (tmp_path / "out" / "table.txt").read_text(encoding="utf-8")
    words = ("--out", tmp_path / "out", "--metric", "auc", "--best", "best")
    other = output_of("report", tmp_path / "sweep", *words)
    assert "largest best auc" in " ".join(other.split()) and "0.7 ± 0.71" in other


def test_errors_are_found_before_anything_is_written(tmp_path):
    write(tmp_path / "a", auc=[0.5] * 5)
    (tmp_path / "empty").mkdir()
    for words, message in [
        ([tmp_path / "nowhere"], "no such file"), ([tmp_path / "empty"], "expected a run file run.h5"),
        ([tmp_path / "a", "--metric", "acu"], "did you mean 'auc'"), ([], "Missing argument"),
    ]:  # fmt: skip
        assert message in error_of("report", *words, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_runs_without_metrics_and_of_one_row(tmp_path, capsys):
    files = report([write(tmp_path / "a")], tmp_path / "out")
    assert [file.name for file in files] == ["report.html", "table.txt", "table.csv"]
    files = report([write(tmp_path / "b", rounds=0, auc=[0.5])], tmp_path / "out")
    assert imread(files[1]).shape[1] > 1500 and "auc final" in capsys.readouterr().out


def test_a_run_writes_its_report(job, tmp_path):
    write(tmp_path / "run" / "other", auc=[0.5])  # another run in the folder of the run
    output_of("run", job)
    assert len((tmp_path / "run" / "table.csv").read_text().splitlines()) == 2
    assert (tmp_path / "run" / "report.html").exists()
    found, expected = load(tmp_path / "run"), class_counts(Config.load(job))
    np.testing.assert_array_equal(found.class_counts, expected.counts)
    assert found.classes == expected.names and found.maximises("auc") and found.layout["ranks"] == 1


def scalars(folder):
    """Scalars in event files, ``{name: {step: value}}``; a later file replaces those from its first step."""
    from tensorboardX.proto.event_pb2 import Event

    found = {}
    for file in sorted(folder.glob("events.*"), key=lambda file: file.stat().st_mtime_ns):
        content = file.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            event, content = Event.FromString(content[12 : 12 + length]), content[16 + length :]
            if event.HasField("session_log"):
                for name, values in found.items():
                    found[name] = {step: value for step, value in values.items() if step < event.step}
            for value in event.summary.value:
                found.setdefault(value.tag, {})[event.step] = value.simple_value
    return found


def test_scalars_agree_with_the_results_after_a_resumption(job, tmp_path):
    config = Config.load(job, ["run.tensorboard=true"])
    run(config, SerialComm())
    assert list(scalars(tmp_path / "run" / "tensorboard")["metrics/auc"]) == [0, 2, 4]
    (tmp_path / "run" / "checkpoint-00000004.h5").unlink()
    resume(tmp_path / "run", ["rounds=6"], SerialComm())
    written, results = scalars(tmp_path / "run" / "tensorboard"), load(tmp_path / "run")
    assert set(written) == {"metrics/auc", *(f"costs/{name}" for name in COSTS[1:])}
    assert list(written["metrics/auc"]) == [0, 2, 4, 6]
    # Event files store float32.
    assert [*written["metrics/auc"].values()] == pytest.approx(results.metrics["auc"], rel=1e-6)
    for name in COSTS[1:]:
        expected = pytest.approx(results.costs[name][[0, 2, 4, 6]], rel=1e-6)
        assert [*written[f"costs/{name}"].values()] == expected, name


def test_scalars_that_cannot_be_written_do_not_end_the_run(job, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tensorboard").write_text("in the way")
    assert run(Config.load(job, ["run.tensorboard=true"]), SerialComm()).stopped == "all 4 rounds done"
    assert capsys.readouterr().err.count("cannot write scalars for TensorBoard") == 1


def test_scalars_without_tensorboardx_are_rejected_before_the_run(job, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.delitem(sys.modules, "tensorboardX.event_file_writer", raising=False)
    output = error_of("run", job, "run.tensorboard=true")
    assert "(not installed: tensorboardX): pip install 'mpifed[tensorboard]'" in output
    assert not (tmp_path / "run").exists()
