"""Reports of runs whose jobs name a theorem: its bound and its step sizes compared with the runs."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from mpifed import run
from mpifed.parallel.comm import SerialComm
from mpifed.report.comparison import Rule, best, settings_of
from mpifed.report.figures import AXES, BOUND, draw
from mpifed.report.page import page
from mpifed.report.report import report
from mpifed.report.statistics import MeanStd
from mpifed.report.tables import theory_rows
from mpifed.storage.results import find_runs, load
from mpifed.theory import prescribe


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """LESGD with three step sizes, two from the theorem, and LSGD without a theorem, for two seeds."""
    folder = tmp_path_factory.mktemp("runs")
    theorem = {"name": "theorem", "of": "wang-kale-2"}
    steps = {"prescribed": theorem, "times": theorem | {"times": 20}, "own": 0.3}
    for seed in (1, 2):
        for name, eta in {**steps, "none": 0.1}.items():
            table = {
                "rounds": 4,
                "seed": seed,
                "algorithm": {"name": "LSGD" if name == "none" else "LESGD", "K": 2, "eta": eta},
                "problem": {"name": "AffineGame", "clients": 2, "d": 3, "heterogeneity": 0.3},
                "run": {"out": str(folder / f"{name}-{seed}"), "progress": False, "eval_every": 2},
            }
            if name == "own":
                table["theory"] = {"of": "wang-kale-2"}
            run(table, SerialComm())
    return folder


@pytest.fixture(scope="module")
def settings(folder):
    return settings_of(load(path) for path in find_runs([folder]))


def named(settings, eta):
    return next(setting for setting in settings if setting.settings["algorithm.eta"] == eta)


def prescribed(run):
    constants = {key: value for key, value in run.config["theory"].items() if key not in ("of", "times")}
    return prescribe("wang-kale-2", **constants)


def test_runs_with_a_theorems_step_size_are_one_setting(settings):
    """The step size depends on the seed, because the constants of the game do."""
    etas = [setting.settings["algorithm.eta"] for setting in settings]
    assert {*etas} == {"wang-kale-2", "20 x wang-kale-2", 0.1, 0.3}
    assert [len(setting.runs) for setting in settings] == [2] * 4
    steps = [run.config["algorithm"]["eta"] for run in named(settings, "wang-kale-2").runs]
    assert steps[0] != steps[1]


def test_used_and_prescribed_step_sizes(settings):
    rows = theory_rows(settings)
    assert [(row["theorem"], row["step"]) for row in rows] == [("wang-kale-2", "eta")] * 3
    by_setting = dict(zip([setting for setting in settings if setting.name == "LESGD"], rows))
    first, often, other = (
        by_setting[named(settings, eta)] for eta in ("wang-kale-2", "20 x wang-kale-2", 0.3)
    )
    assert first["used / prescribed"] == MeanStd(1.0, 0.0)
    assert often["used / prescribed"][:2] == pytest.approx((20, 0), abs=1e-12)
    ratio = np.mean([0.3 / prescribed(run).steps["eta"] for run in named(settings, 0.3).runs])
    assert other["used / prescribed"].mean == pytest.approx(ratio)
    runs = named(settings, "wang-kale-2").runs
    assert first["bound"].mean == pytest.approx(np.mean([prescribed(run).bound for run in runs]))
    assert first["measured"].mean == np.mean([run.metrics["err_D"][-1] for run in runs])


def test_a_bound_is_a_horizontal_line_in_the_figure_of_its_metric(settings):
    for metric, levels in (("err_D", 3), ("residual", 0)):
        cell = Figure().subplots()
        draw(cell, settings, metric, AXES[0])
        dotted = [line for line in cell.lines if line._unscaled_dash_pattern == BOUND]
        assert len(dotted) == levels
        for line, setting in zip(dotted, [setting for setting in settings if setting.name == "LESGD"]):
            assert set(line.get_ydata()) == {setting.bound(metric)}
            assert line.get_color() == cell.lines[cell.lines.index(line) - 1].get_color()
    assert named(settings, 0.1).bound("err_D") is None


def test_pages_and_tables_show_the_theorem(folder, settings, tmp_path, capsys):
    text = page(settings, best(settings, Rule()), Rule())
    for words in ("<h2>Theory</h2>", "wang-kale-2", "used / prescribed", "ratio of the two step sizes"):
        assert words in text
    report([folder], tmp_path / "report")
    assert "wang-kale-2" in capsys.readouterr().out
    assert "wang-kale-2" in (tmp_path / "report" / "table.txt").read_text()


def test_without_a_theorem_there_is_no_table(folder, settings):
    alone = [named(settings, 0.1)]
    assert theory_rows(alone) == [] and "<h2>Theory</h2>" not in page(alone, alone, Rule())


def test_a_run_prints_the_prescription_of_its_theorem(tmp_path, capfd):
    table = {
        "rounds": 1,
        "algorithm": {"name": "LESGD", "K": 2, "eta": {"name": "theorem", "of": "wang-kale-2", "L": 2.0}},
        "problem": {"name": "AffineGame", "clients": 2},
        "run": {"out": str(tmp_path / "run"), "progress": False},
    }
    run(table, SerialComm())
    assert "wang-kale-2 prescribes eta = 0.5; E err_D of the output is at most 200" in capfd.readouterr().err
