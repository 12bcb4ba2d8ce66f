"""Tables of runs and settings: rows, CSV files, the console."""

from __future__ import annotations

import csv
import io
import math

import pytest
from rich.console import Console
from runfiles import decay, write

from mpifed.base.log import escape_cell
from mpifed.report import tables
from mpifed.report.comparison import Rule, settings_of
from mpifed.report.labels import labels, run_names, setting_cells, whole_setting_cells
from mpifed.report.page import page
from mpifed.report.statistics import MeanStd
from mpifed.storage.results import load
from mpifed.storage.status import status
from mpifed.tuning.trials import _outcome


def settings(*folders):
    return settings_of(load(folder) for folder in folders)


def read(rows, path):
    tables.to_csv(rows, path)
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_infeasible_runs_are_marked_everywhere(tmp_path):
    """In tables of runs and settings, labels, the page and the status."""
    outside = "y is 0.3 away from its set after round 5"
    for seed, infeasible in enumerate(("", outside)):
        config = {"seed": seed}
        write(tmp_path / f"a{seed}", "Loose", config=config, infeasible=infeasible, error=decay(0.1))
    write(tmp_path / "b", "FGDA", error=decay(0.2))
    found = settings(*(tmp_path / name for name in ("a0", "a1", "b")))
    assert [row["infeasible"] for row in tables.run_rows(found, Rule())] == [None, outside, None]
    rows = tables.setting_rows(found, Rule(), setting_cells(found, Rule()))
    assert [row["infeasible"] for row in rows] == [1, 0]
    assert labels(found) == ["Loose (infeasible)", "FGDA"]
    assert "1 infeasible" in page(found, found, Rule())
    assert status(tmp_path / "a1").reason == f"all rounds done; infeasible: {outside}"
    assert all("infeasible" not in row for row in tables.run_rows(found[1:], Rule()))


def test_a_run_that_left_the_sets_is_not_the_best(tmp_path):
    """Its smaller error is not that of a solution; rounds before it left the sets count in a search."""
    outside = "y is 0.3 away from its set after round 10"
    write(tmp_path / "a", "Loose", infeasible=outside, error=decay(0.3))
    write(tmp_path / "b", "FGDA", error=decay(0.1))
    assert [one.name for one in sorted(settings(tmp_path / "a", tmp_path / "b"), key=Rule().rank)] == [
        "FGDA",
        "Loose",
    ]
    loose, feasible = load(tmp_path / "a"), load(tmp_path / "b")
    assert math.isnan(_outcome(loose, 10, "error").value) and math.isfinite(_outcome(loose, 5, "error").value)
    assert math.isfinite(_outcome(feasible, 20, "error").value)


def test_rows_of_runs_and_csv(tmp_path):
    first = dict(auc=[0.5, 0.9, 0.7, 0.95, 0.8], error=[5, 1, math.nan, 2, 3])
    second = dict(auc=[0.5, 0.25, math.nan], loss=[3, 1, 2])
    write(tmp_path / "a", "FGDA", maximised=["auc"], **first)
    write(tmp_path / "b", "LocalSGDA", 10, stopped="", maximised=["auc"], **second)
    rows = tables.run_rows(settings(tmp_path / "a", tmp_path / "b"), Rule())
    assert rows[0] == {
        "name": "a", "method": "FGDA", "rounds": 20, "auc final": 0.8, "auc best": 0.95, "error final": 3.0,
        "error best": 1.0, "loss final": None, "loss best": None, "oracle calls": 1920, "bytes": 80_000,
        "wire bytes": 50_000, "seconds": 10.0, "communication %": pytest.approx(25.0),
        "stopped": "all rounds done",
    }  # fmt: skip
    assert rows[1]["auc best"] == 0.5 and math.isnan(rows[1]["auc final"]) and rows[1]["stopped"] == ""
    assert rows[1]["loss best"] == 1.0 and rows[1]["error final"] is None
    found = read(rows, tmp_path / "table.csv")
    assert list(found[0]) == list(rows[0])
    assert [row["oracle calls"] for row in found] == ["1920", "960"]
    assert (found[0]["loss final"], found[1]["auc final"], found[0]["auc best"]) == ("", "nan", "0.95")
    assert float(found[0]["seconds"]) == rows[0]["seconds"], "floats are written with full precision"


def test_rows_of_settings_are_means_over_seeds(tmp_path):
    diverged = "non-finite value in round 9"
    for seed, last, stopped in ((0, 1.0, "all rounds done"), (1, 4.0, "")):
        for gamma, error, end in ((0.1, [9, 3, last], stopped), (0.2, [9, 8, 7], stopped or diverged)):
            config = {"seed": seed, "algorithm": {"gamma": gamma}}
            write(tmp_path / f"{gamma}{seed}", rounds=10, stopped=end, config=config, error=error)
    found, rule = settings(*sorted(tmp_path.iterdir())), Rule(target=3.5)
    first, second = tables.setting_rows(found, rule, setting_cells(found, rule))
    assert first == {
        "method": "FGDA", "algorithm.gamma": 0.1, "runs": 2, "diverged": 0, "not finished": 1,
        "error final": MeanStd(2.5, pytest.approx(math.sqrt(4.5))),
        "error best": MeanStd(2.0, pytest.approx(math.sqrt(2))),
        "rounds to 3.5": MeanStd(5.0, 0.0), "reached by": 2,
    }  # fmt: skip
    assert second["diverged"] == 1 and math.isnan(second["error final"].mean)
    assert second["rounds to 3.5"] is None
    rows = tables.run_rows(found, rule)
    assert [(row["rounds to 3.5"], row["seed"]) for row in rows] == [(5, 0), (5, 1), (None, 0), (None, 1)]
    one, other = read([first, second], tmp_path / "settings.csv")
    assert one["error final mean"] == "2.5" and float(one["error final deviation"]) == first["error final"][1]
    assert other["rounds to 3.5 mean"] == other["rounds to 3.5 deviation"] == ""
    assert tables.cell("error final", first["error final"]) == "2.5 ± 2.1"
    assert tables.cell("x", MeanStd(2.0, math.nan)) == "2"


def test_equal_names_of_settings_in_several_methods_share_no_column(tmp_path):
    """``eta`` can be a client's step size in one method and a momentum in another."""
    for method, etas, q in (("FGDA", (0.1, 0.2), 4), ("CDMA", (3, 3), 4), ("CDMA", (3, 3), 8)):
        for number, eta in enumerate(etas):
            config = {"algorithm": {"eta": eta, "q": q}, "problem": {"name": "Saddle", "clients": number}}
            write(tmp_path / f"{method}{number}{q}", method, config=config)
    found = settings(*sorted(tmp_path.iterdir()))
    cells = setting_cells(found, Rule())
    assert [cells[one] for one in found] == [
        {"settings": words, "problem.clients": clients}
        for words, clients in (("q=4", 0), ("q=8", 0), ("q=4", 1), ("q=8", 1), ("eta=0.1", 0), ("eta=0.2", 1))
    ]
    first, *_ = tables.run_rows(found, Rule())
    assert first["settings"] == "q=4" and first["problem.clients"] == 0
    (each, *_) = setting_cells(found, Rule(each=("q",))).values()
    assert each == {"settings": "", "algorithm.q": 4, "problem.clients": 0}, "q belongs to the task"
    alone = [one for one in found if one.name == "FGDA"]
    assert [*setting_cells(alone, Rule())[alone[0]]] == ["algorithm.eta", "problem.clients"]


def test_the_best_setting_of_a_method_has_all_of_its_hyperparameters(tmp_path):
    """A comparison of tuned methods has one setting per method, in which no hyperparameter varies."""
    constant, cosine = {"name": "constant", "value": 0.5}, {"name": "cosine", "scale": 0.1}
    for method, algorithm in {
        "FGDA": {"q": 4, "eta": constant, "matrix": {"name": "adam", "rho": 0.1}},
        "CDMA": {"eta": cosine, "p": None},
    }.items():
        for seed in range(2):
            config = {"seed": seed, "algorithm": algorithm}
            write(tmp_path / f"{method}{seed}", method, config=config, error=decay(0.1))
    found = settings(*sorted(tmp_path.iterdir()))
    texts = ["eta=cosine, eta.scale=0.1", "q=4, eta=0.5, matrix=adam, matrix.rho=0.1"]
    assert [cells["settings"] for cells in whole_setting_cells(found, Rule()).values()] == texts
    text = page(found, found, Rule())
    assert all(f">{words}</td>" in text for words in texts)


def test_costs_are_means_over_seeds(tmp_path):
    for seed in range(2):
        costs = {"seconds": 1 + seed, "federated_seconds": 2}
        write(tmp_path / str(seed), config={"seed": seed}, costs=costs, auc=[1] * 5)
    (row,) = tables.cost_rows(settings(tmp_path / "0", tmp_path / "1"))
    assert row == {
        "setting": "FGDA", "rounds": 20, "oracle calls": 1920, "phases": 20, "bytes up": 20_000,
        "bytes down": 60_000, "wire bytes": 50_000, "seconds": 30, "federated seconds": 40,
        "communication %": pytest.approx(25), "peak memory per rank": None,
    }  # fmt: skip


def test_runs_are_named_by_their_folders(tmp_path):
    runs = [load(write(tmp_path / folder)) for folder in ("q1/s0", "q2/s0", "c")]
    assert run_names(runs) == ["q1/s0", "q2/s0", "c"]
    assert run_names(runs[:2]) == ["q1/s0", "q2/s0"] and run_names(runs[:1]) == ["FGDA"]


def printed(rows, width=100):
    tables.print_table(rows, Console(file=(text := io.StringIO()), width=width))
    return text.getvalue()


def test_a_single_run_is_printed_as_a_list(tmp_path):
    found = settings(write(tmp_path / "a", rounds=20_000, every=10_000, x_error=[1, 2e-9, 3e-7], stopped=""))
    lines = filter(None, map(str.strip, printed(tables.run_rows(found, Rule())).splitlines()))
    assert {key: value.strip() for key, value in (line.split("  ", 1) for line in lines)} == {
        "name": "FGDA", "rounds": "20,000", "x_error final": "3e-07", "x_error best": "2e-09",
        "oracle calls": "1,920,000", "bytes": "80.0 MB", "wire bytes": "50.0 MB", "seconds": "2:46:40",
        "communication %": "25.0", "stopped": "not finished",
    }  # fmt: skip


@pytest.mark.parametrize("width", [60, 100])
def test_several_runs_fit_the_console(tmp_path, width):
    metrics = {f"metric_number_{i}": [1.0, 2.0, 3.0] for i in range(6)}
    for q, name in enumerate(("FGDA", "AFolderWithAVeryLongNameIndeedYes")):
        config = {"algorithm": {"q": q}}
        write(tmp_path / name, "FGDA", 10, stopped="[rank 3] x is not finite", config=config, **metrics)
    text = printed(tables.run_rows(settings(*sorted(tmp_path.iterdir())), Rule()), width)
    assert max(map(len, text.splitlines())) <= width
    assert text.count("metric_number_") == 12, "final and best of six metrics, none truncated"
    assert text.count("40.0 kB") == 2 and text.count("[rank 3]") == 2 and "…" not in text


@pytest.mark.parametrize(
    ("width", "parts"),
    [(200, ["one two three four"]), (34, ["one two", "three four"]), (20, ["one", "two", "three", "four"])],
)
def test_a_wide_table_is_printed_in_parts_with_as_many_columns_as_fit(width, parts):
    names = ["run", "one", "two", "three", "four"]
    rows = [dict(zip(names, ["a" if row else "b", *[10_000_000 + row] * 4])) for row in range(2)]
    heads = [line.split() for line in printed(rows, width).splitlines() if line.split()[:1] == ["run"]]
    assert [" ".join(head[1:]) for head in heads] == parts


@pytest.mark.parametrize("text, expected", [
    ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"), ("+a", "'+a"), ("-a", "'-a"), ("@a", "'@a"),
    ("  =a", "'  =a"),
    ("\uff1da", "'\uff1da"), ("\t=a", "\\t=a"), ("\r=a", "\\u000d=a"), ("\x1b[2J", "\\u001b[2J"),
    ("a=b", "a=b"), ("a-b", "a-b"),
    ("-1.5", "-1.5"), ("+2e-3", "+2e-3"), ("-inf", "-inf"), ("", ""), (-1.5, -1.5), (None, None),
])  # fmt: skip
def test_texts_in_csv_files_are_neither_formulas_nor_control_characters(text, expected, tmp_path):
    assert escape_cell(text) == expected
    tables.to_csv([{"x": text, str(text): 1}], tmp_path / "a.csv")
    with open(tmp_path / "a.csv", newline="", encoding="utf-8") as file:
        head, row = csv.reader(file)
    assert head[1] == str(escape_cell(str(text))) and row[0] == ("" if expected is None else str(expected))
