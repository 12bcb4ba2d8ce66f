"""Rows of runs and settings, CSV files, tables on the console."""

from __future__ import annotations

import csv
import io
import math

import pytest
from rich.console import Console
from runfiles import decay, write

from mpifed.report import tables
from mpifed.report.comparison import Rule, settings_of
from mpifed.report.labels import labels, run_names, setting_cells
from mpifed.report.page import page
from mpifed.report.statistics import Spread
from mpifed.storage.results import load
from mpifed.storage.status import status


def settings(*folders):
    return settings_of(load(folder) for folder in folders)


def test_runs_outside_their_sets_are_marked(tmp_path):
    """In the tables of runs and of settings, in the names of figures, in the page's first line, in status."""
    outside = "y is 0.3 away from its set after round 5"
    for seed in (0, 1):
        write(
            tmp_path / f"a{seed}", "Loose", config={"seed": seed}, infeasible=seed * outside, error=decay(0.1)
        )
    write(tmp_path / "b", "FGDA", error=decay(0.2))
    found = settings(*(tmp_path / name for name in ("a0", "a1", "b")))
    assert [row["infeasible"] for row in tables.run_rows(found, Rule())] == [None, outside, None]
    rows = tables.setting_rows(found, Rule(), setting_cells(found, Rule()))
    assert [row["infeasible"] for row in rows] == [1, 0]
    assert labels(found) == ["Loose (infeasible)", "FGDA"]
    assert "1 infeasible" in page(found, found, Rule())
    assert status(tmp_path / "a1").said == f"all rounds done; infeasible: {outside}"
    assert all("infeasible" not in row for row in tables.run_rows(found[1:], Rule()))


def test_rows_of_runs_and_csv(tmp_path):
    write(
        tmp_path / "a",
        "FGDA",
        every=5,
        auc=[0.5, 0.9, 0.7, 0.95, 0.8],
        x_error=[5, 1, math.nan, 2, 3],
        maximised=["auc"],
    )
    write(
        tmp_path / "b",
        "LocalSGDA",
        rounds=10,
        stopped="",
        auc=[0.5, 0.25, math.nan],
        worst_loss=[3, 1, 2],
        maximised=["auc"],
    )
    rows = tables.run_rows(settings(tmp_path / "a", tmp_path / "b"), Rule())
    assert rows[0] == {
        "name": "a", "method": "FGDA", "rounds": 20, "auc final": 0.8, "auc best": 0.95,
        "x_error final": 3.0, "x_error best": 1.0,
        "worst_loss final": None, "worst_loss best": None, "oracle calls": 1920, "bytes": 80_000,
        "wire bytes": 50_000,
        "seconds": 10.0, "communication %": pytest.approx(25.0), "stopped": "all rounds done",
    }  # fmt: skip
    assert rows[1]["auc best"] == 0.5 and math.isnan(rows[1]["auc final"]) and rows[1]["stopped"] == ""
    assert rows[1]["worst_loss best"] == 1.0 and rows[1]["x_error final"] is None
    tables.to_csv(rows, tmp_path / "table.csv")
    with open(tmp_path / "table.csv", newline="") as file:
        read = list(csv.DictReader(file))
    assert list(read[0]) == list(rows[0])
    assert [row["oracle calls"] for row in read] == ["1920", "960"]
    assert (
        read[0]["worst_loss final"] == "" and read[1]["auc final"] == "nan" and read[0]["auc best"] == "0.95"
    )
    assert float(read[0]["seconds"]) == rows[0]["seconds"]  # repr of a float reads back to the same bits


def test_best_goes_by_what_the_problem_declares(tmp_path):
    (one,) = settings(
        write(tmp_path / "a", rounds=10, my_score=[2, 3, 1], auc=[2, 3, 1], maximised=["my_score"])
    )
    (row,) = tables.run_rows([one], Rule())
    assert row["my_score best"] == 3 and row["auc best"] == 1


def test_rows_of_settings_are_means_over_seeds(tmp_path):
    lost = "non-finite value in round 9"
    for seed, last, stopped in ((0, 1.0, "all rounds done"), (1, 4.0, "")):
        write(
            tmp_path / f"a{seed}",
            config={"seed": seed, "algorithm": {"gamma": 0.1}},
            rounds=10,
            error=[9, 3, last],
            stopped=stopped,
        )
        write(
            tmp_path / f"b{seed}",
            config={"seed": seed, "algorithm": {"gamma": 0.2}},
            rounds=10,
            error=[9, 8, 7],
            stopped=stopped or lost,
        )
    found = settings(*sorted(tmp_path.iterdir()))
    rule = Rule(target=3.5)
    first, second = tables.setting_rows(found, rule, setting_cells(found, rule))
    assert first == {
        "method": "FGDA", "algorithm.gamma": 0.1, "runs": 2, "diverged": 0, "not finished": 1,
        "error final": Spread(2.5, pytest.approx(math.sqrt(4.5))), "error best": Spread(2.0,
        pytest.approx(math.sqrt(2))),
        "rounds to 3.5": Spread(5.0, 0.0), "reached by": 2,
    }  # fmt: skip
    assert (
        second["diverged"] == 1 and math.isnan(second["error final"].mean) and second["rounds to 3.5"] is None
    )
    assert [row["rounds to 3.5"] for row in tables.run_rows(found, rule)] == [5, 5, None, None]
    assert [row["seed"] for row in tables.run_rows(found, rule)] == [0, 1, 0, 1]
    tables.to_csv([first, second], tmp_path / "settings.csv")
    with open(tmp_path / "settings.csv", newline="") as file:
        read = list(csv.DictReader(file))
    assert read[0]["error final mean"] == "2.5" and float(read[0]["error final deviation"]) == pytest.approx(
        math.sqrt(4.5)
    )
    assert read[1]["rounds to 3.5 mean"] == read[1]["rounds to 3.5 deviation"] == ""
    assert (
        tables.cell("error final", first["error final"]) == "2.5 ± 2.1"
        and tables.cell("x", Spread(2.0, math.nan)) == "2"
    )


def test_one_letter_of_several_methods_is_no_column(tmp_path):
    """``eta`` is a client's step in one method and a momentum in another: no column has both."""
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
    assert tables.run_rows(found, Rule())[0]["settings"] == "q=4"
    (each, *_) = setting_cells(found, Rule(each=("q",))).values()
    assert each == {"settings": "", "algorithm.q": 4, "problem.clients": 0}, "q belongs to the task"
    alone = [one for one in found if one.name == "FGDA"]
    assert [*setting_cells(alone, Rule())[alone[0]]] == ["algorithm.eta", "problem.clients"]


def test_costs_are_means_over_seeds(tmp_path):
    for seed in range(2):
        write(
            tmp_path / str(seed),
            config={"seed": seed},
            costs={"seconds": 1 + seed, "federated_seconds": 2},
            auc=[1] * 5,
        )
    (row,) = tables.cost_rows(settings(tmp_path / "0", tmp_path / "1"))
    assert row == {
        "setting": "FGDA", "rounds": 20, "oracle calls": 1920, "phases": 20, "bytes up": 20_000,
        "bytes down": 60_000, "wire bytes": 50_000,
        "seconds": 30, "federated seconds": 40, "communication %": pytest.approx(25),
        "peak memory per rank": None,
    }  # fmt: skip


def test_runs_are_named_by_their_folders(tmp_path):
    paths = [write(tmp_path / folder) for folder in ("q1/s0", "q2/s0", "c")]
    runs = [load(path) for path in paths]
    assert run_names(runs) == ["q1/s0", "q2/s0", "c"]
    assert run_names(runs[:2]) == ["q1/s0", "q2/s0"] and run_names(runs[:1]) == ["FGDA"]


def printed(rows, width=100):
    tables.print_table(rows, Console(file=(text := io.StringIO()), width=width))
    return text.getvalue()


def test_a_single_run_prints_as_a_list(tmp_path):
    found = settings(write(tmp_path / "a", rounds=20_000, every=10_000, x_error=[1, 2e-9, 3e-7], stopped=""))
    cells = [
        line.strip().split("  ", 1)
        for line in printed(tables.run_rows(found, Rule())).splitlines()
        if line.strip()
    ]
    assert {key: value.strip() for key, value in cells} == {
        "name": "FGDA", "rounds": "20,000", "x_error final": "3e-07", "x_error best": "2e-09",
        "oracle calls": "1,920,000", "bytes": "80.0 MB", "wire bytes": "50.0 MB", "seconds": "2:46:40",
        "communication %": "25.0", "stopped": "not finished",
    }  # fmt: skip


@pytest.mark.parametrize("width", [60, 100])
def test_several_runs_fit_the_console(tmp_path, width):
    metrics = {f"metric_number_{i}": [1.0, 2.0, 3.0] for i in range(6)}
    folders = [write(tmp_path / name, "FGDA", rounds=10, stopped="[rank 3] x is not finite",
    config={"algorithm": {"q": q}}, **metrics)
               for q, name in enumerate(("FGDA", "AFolderWithAVeryLongNameIndeedYes"))]  # fmt: skip
    text = printed(tables.run_rows(settings(*folders), Rule()), width)
    assert max(map(len, text.splitlines())) <= width
    assert text.count("metric_number_") == 12  # final and best of six metrics, none cut short
    assert text.count("40.0 kB") == 2 and text.count("[rank 3]") == 2 and "…" not in text
