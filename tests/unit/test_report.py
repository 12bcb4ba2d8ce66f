"""Reading run files, drawing curves, printing tables."""

from __future__ import annotations

import csv
import io
import json
import math

import h5py
import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread
from rich.console import Console

from mpifed import report

COSTS = dict(
    oracle_calls=96, phases=1, bytes_up=1000, bytes_down=3000, wire_bytes=2500,
    compute_seconds=0.3, communication_seconds=0.1, seconds=0.5, federated_seconds=0.0,
)  # fmt: skip


def write(folder, algorithm="FGDA", rounds=20, every=5, stopped="all rounds done", **metrics):
    """A run folder as the recorder writes it: costs grow by :data:`COSTS` a round, metrics are given or functions."""
    folder.mkdir(parents=True)
    r = np.arange(rounds + 1)
    taken = r[::every]
    with h5py.File(folder / "run.h5", "w") as file:
        file.attrs["config"] = json.dumps(dict(seed=0, rounds=rounds, algorithm=dict(name=algorithm)))
        file.attrs["versions"] = json.dumps(dict(torch="2.0"))
        file.attrs["layout"] = json.dumps(dict(ranks=1, device="cpu"))
        file.attrs["stopped"] = stopped
        for name, step in dict(round=1, **COSTS).items():
            file[f"costs/{name}"] = r * float(step)
        file["metrics/round"] = taken
        for name, values in metrics.items():
            file[f"metrics/{name}"] = np.asarray(values(taken) if callable(values) else values, dtype=float)
        file["final/x"] = np.zeros(3)
    return folder


def decay(rate):
    return lambda r: 10.0 * np.exp(-rate * r)


def pixels(path):
    image = imread(path)[..., :3]
    assert image.shape[0] > 300 and image.shape[1] > 1500, "readable at 150 dpi takes hundreds of pixels"
    colours = np.rint(255 * image).astype(int) @ [65536, 256, 1]
    assert len(np.unique(colours)) > 10, "an empty canvas has one colour"
    return image


def has_colour(image, colour):
    """Whether a line of that colour was drawn: 20 pixels is less than a legend's handle has."""
    return count(image, colour) > 20


def count(image, colour):
    return np.sum(np.all(np.abs(image - to_rgb(colour)) < 0.02, axis=-1))  # 0.02: five of 255 levels


@pytest.mark.parametrize("by_file", [False, True], ids=["folder", "file"])
def test_load_reads_what_was_written(tmp_path, by_file):
    folder = write(tmp_path / "a", "./my_alg.py:MyMethod", x_error=decay(0.1), stopped="")
    run = report.load(folder / "run.h5" if by_file else str(folder))
    assert run.name == "MyMethod"
    assert run.config["rounds"] == 20 and run.versions == {"torch": "2.0"} and run.stopped == ""
    assert run.costs["bytes_down"].tolist() == [3000 * r for r in range(21)]
    assert run.metric_rounds.tolist() == [0, 5, 10, 15, 20]
    assert list(run.metrics) == ["x_error"] and np.all(run.metrics["x_error"] == decay(0.1)(run.metric_rounds))


def test_every_axis_is_read_at_the_rounds_of_the_metrics(tmp_path):
    run = report.load(write(tmp_path / "a", every=10, auc=[0.5, 0.6, 0.7]))
    expected = {"rounds": [0, 10, 20], "oracle calls": [0, 960, 1920], "bytes, up + down": [0, 40_000, 80_000],
                "wall time without evaluation": [0, 5, 10], "federated wall time": [0, 0, 0]}  # fmt: skip
    assert {axis.label: axis.of(run).tolist() for axis in report.AXES} == expected
    assert [axis.scale([run])[1] for axis in report.AXES if axis.suits(run)] == [
        "rounds", "oracle calls", "bytes, up + down (kB)", "wall time without evaluation (s)",
    ]  # fmt: skip


def test_units_grow_with_the_costs(tmp_path):
    run = report.load(write(tmp_path / "a", rounds=100_000, every=50_000, auc=[0.5, 0.6, 0.7]))
    assert [axis.scale([run]) for axis in report.AXES if axis.suits(run)] == [
        (1, "rounds"),
        (1e6, "oracle calls (millions)"),  # 9.6e6
        (1e6, "bytes, up + down (MB)"),  # 4e8
        (3600, "wall time without evaluation (h)"),  # 5e4 s
    ]


def test_table_and_csv(tmp_path):
    write(tmp_path / "a", "FGDA", every=5, auc=[0.5, 0.9, 0.7, 0.95, 0.8], x_error=[5, 1, math.nan, 2, 3])
    write(tmp_path / "b", "LocalSGDA", rounds=10, stopped="", auc=[0.5, 0.25, math.nan], worst_loss=[3, 1, 2])
    rows = report.table([report.load(tmp_path / "a"), report.load(tmp_path / "b")])
    assert rows[0] == {
        "name": "FGDA", "rounds": 20, "auc final": 0.8, "auc best": 0.95, "x_error final": 3.0, "x_error best": 1.0,
        "worst_loss final": None, "worst_loss best": None, "oracle calls": 1920, "bytes": 80_000, "wire bytes": 50_000,
        "seconds": 10.0, "communication %": pytest.approx(25.0), "stopped": "all rounds done",
    }  # fmt: skip
    assert rows[1]["auc best"] == 0.5 and math.isnan(rows[1]["auc final"]) and rows[1]["stopped"] == ""
    assert rows[1]["worst_loss best"] == 1.0 and rows[1]["x_error final"] is None
    report.to_csv(rows, tmp_path / "table.csv")
    with open(tmp_path / "table.csv", newline="") as file:
        read = list(csv.DictReader(file))
    assert list(read[0]) == list(rows[0])
    assert [row["oracle calls"] for row in read] == ["1920", "960"]
    assert read[0]["worst_loss final"] == "" and read[1]["auc final"] == "nan" and read[0]["auc best"] == "0.95"
    assert float(read[0]["seconds"]) == rows[0]["seconds"]  # repr of a float reads back to the same bits


@pytest.mark.parametrize(
    ("metric", "best"),
    [("auc", 3.0), ("test_accuracy", 3.0), ("F1", 3.0), ("auc_gap", 1.0), ("x_error", 1.0), ("phi", 1.0)],
)
def test_best_is_the_largest_of_scores_only(tmp_path, metric, best):
    row, = report.table([report.load(write(tmp_path / "a", rounds=10, **{metric: [2, 3, 1]}))])
    assert row[f"{metric} best"] == best


def test_labels_tell_runs_of_one_algorithm_apart(tmp_path):
    folders = {"q1/s0": "FGDA", "q2/s0": "FGDA", "c": "FGDA", "d": "LocalSGDA"}
    for folder, algorithm in folders.items():
        write(tmp_path / folder, algorithm)
    load = {name: report.load(tmp_path / name) for name in folders}
    assert report.labels([load["c"], load["d"]]) == ["FGDA", "LocalSGDA"]
    assert report.labels([load["c"], load["q1/s0"]]) == ["FGDA (c)", "FGDA (s0)"]
    assert report.labels([load["q1/s0"], load["q2/s0"]]) == ["FGDA (q1/s0)", "FGDA (q2/s0)"]
    assert report.labels([load["d"], load["d"]]) == ["LocalSGDA (d)", "LocalSGDA (d)"]


def damage(**changes):
    """A function that replaces entries of a run file; ``None`` deletes."""

    def apply(file):
        for name, value in changes.items():
            place, key = (file.attrs, name[5:]) if name.startswith("attr_") else (file, name.replace("__", "/"))
            if key in place:
                del place[key]
            if value is not None:
                place[key] = value

    return apply


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (damage(attr_config=None), ["JSON table", "'config'", "None"]),
        (damage(attr_versions="{"), ["JSON table", "'versions'", "'{'"]),
        (damage(attr_config=json.dumps({"algorithm": "FGDA"})), ["algorithm's name", "'FGDA'"]),
        (damage(attr_stopped=3), ["'stopped'", "3"]),
        (damage(costs=None), ["group 'costs'", "final, metrics"]),
        (damage(metrics=np.zeros(3)), ["group 'metrics'"]),
        (damage(costs__wire_bytes=None), ["wire_bytes", "'costs'", "bytes_down, bytes_up, communication_seconds"]),
        (damage(metrics__round=None), ["round", "'metrics'", "auc"]),
        (damage(costs__seconds=np.zeros(3)), ["one length", "'costs'", "'seconds': 3"]),
        (damage(costs__seconds=np.full(21, np.nan)), ["finite", "'costs'"]),
        (damage(costs__round=np.zeros(21)), ["growing", "'costs/round'", "0.0, 0.0"]),
        (damage(metrics__auc=np.zeros((5, 2))), ["numbers", "'metrics/auc'", "(5, 2)"]),
        (damage(metrics__auc=["a"] * 5), ["numbers", "'metrics/auc'"]),
        (damage(metrics__round=[0, 5, 10, 15, 99]), ["'costs/round'", "99"]),
    ],
)  # fmt: skip
def test_foreign_files_are_refused_in_words(tmp_path, change, words):
    file = write(tmp_path / "a", auc=[0.5] * 5) / "run.h5"
    with h5py.File(file, "a") as opened:
        change(opened)
    with pytest.raises(ValueError, match="expected .* found ") as error:
        report.load(file)
    assert all(word in str(error.value) for word in [str(file), *words]), str(error.value)


def test_missing_and_broken_files_are_refused_in_words(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere is not a readable .* expected a run file, found no such file"):
        report.load(tmp_path / "nowhere")
    (tmp_path / "run.h5").write_text("round,auc\n0,0.5\n")
    with pytest.raises(ValueError, match=r"run\.h5 is not a readable run file: .*signature"):
        report.load(tmp_path)


@pytest.mark.parametrize("kept", [0.02, 0.3, 0.6, 0.95])
def test_a_truncated_file_is_refused(tmp_path, kept):
    file = write(tmp_path / "a", auc=[0.5] * 5) / "run.h5"
    content = file.read_bytes()
    file.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(ValueError, match=r"run\.h5 is not a readable run file"):
        report.load(file)


def test_curves_show_every_run_and_leave_matplotlib_alone(tmp_path):
    before = dict(matplotlib.rcParams)
    runs = [report.load(write(tmp_path / name, name, auc=lambda r: r / 40, x_error=decay(rate)))
            for name, rate in {"FGDA": 0.1, "CDMA": 0.5, "SAGDA": 1.0}.items()]  # fmt: skip
    report.curves(runs, tmp_path / "all.png")
    report.curves(runs[:1], tmp_path / "one.png", metric="auc")
    image, single = pixels(tmp_path / "all.png"), pixels(tmp_path / "one.png")
    assert [has_colour(image, colour) for colour in report.COLOURS[:4]] == [True, True, True, False]
    assert [has_colour(single, colour) for colour in report.COLOURS[:2]] == [True, False]
    assert single.shape[0] < 0.75 * image.shape[0], "one row of curves is lower than two"
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(
    ("values", "scale"),
    [([100, 10, 0.5], "log"), ([100, 10, 2], "linear"), ([100, 1, 0], "linear"), ([100, 1e-3, -1], "linear"),
     ([100, math.nan, 0.5], "log"), ([math.nan] * 3, "linear"), ([math.inf, 3, 1], "linear")],
)  # fmt: skip
def test_logarithmic_where_positive_and_wide(tmp_path, monkeypatch, values, scale):
    scales = []
    monkeypatch.setattr(report.Figure, "savefig", lambda fig, *_, **__: scales.extend(a.get_yscale() for a in fig.axes))
    report.curves([report.load(write(tmp_path / "a", rounds=10, x_error=values))], tmp_path / "a.png")
    assert scales == 4 * [scale]


def test_the_federated_axis_is_there_for_runs_with_a_clock_only(tmp_path, monkeypatch):
    drawn = []

    def lines(figure, *_, **__):
        drawn.append({axes.get_xlabel(): len(axes.lines) for axes in figure.axes})

    monkeypatch.setattr(report.Figure, "savefig", lines)
    without = report.load(write(tmp_path / "a", auc=decay(0.1)))
    clock = report.load(write(tmp_path / "b", auc=decay(0.2)))
    clock.costs["federated_seconds"] = 90.0 * clock.costs["round"]
    report.curves([without], tmp_path / "a.png")
    report.curves([without, clock], tmp_path / "b.png")
    assert not [label for label in drawn[0] if "federated" in label] and set(drawn[0].values()) == {1}
    assert drawn[1]["federated wall time (min)"] == 1 and sorted(drawn[1].values()) == [1, 2, 2, 2, 2]
    assert "federated seconds" not in report.table([without])[0]
    assert [row["federated seconds"] for row in report.table([without, clock])] == [None, 1800.0]


def test_curves_of_a_run_that_diverged(tmp_path):
    write(tmp_path / "a", x_error=[1e-300, 1, 1e200, 1e308, math.inf], gap=[-3, -1e9, 1e99, -1e308, 0])
    report.curves([report.load(tmp_path / "a")], tmp_path / "a.png")
    assert has_colour(pixels(tmp_path / "a.png"), report.COLOURS[0])


def test_curves_of_runs_with_different_metrics(tmp_path):
    runs = [report.load(write(tmp_path / "a", "FGDA", auc=lambda r: r / 40)),
            report.load(write(tmp_path / "b", "_My$^^$", rounds=7, every=7, vi_gap=decay(1.0)))]  # fmt: skip
    report.curves(runs, tmp_path / "curves.png")
    image = pixels(tmp_path / "curves.png")
    assert all(has_colour(image, colour) for colour in report.COLOURS[:2])
    with pytest.raises(ValueError, match=r"auc, vi_gap.* found auk"):
        report.curves(runs, tmp_path / "none.png", metric="auk")
    assert not (tmp_path / "none.png").exists()


def test_points_between_gaps_are_seen(tmp_path):
    blue = {}
    for name, values in {"dots": [0.5, math.nan, 0.7], "none": [math.nan] * 3}.items():
        report.curves([report.load(write(tmp_path / name, rounds=10, auc=values))], tmp_path / "a.png")
        blue[name] = count(pixels(tmp_path / "a.png"), report.COLOURS[0])
    assert blue["dots"] > blue["none"] + 320  # eight dots, 10 pixels wide, 40 of the 80 pixels of each for certain


def test_a_single_row_is_drawn_and_reported(tmp_path, capsys):
    write(tmp_path / "a", rounds=0, auc=[0.5])
    row, = report.table([report.load(tmp_path / "a")])
    assert math.isnan(row["communication %"]) and row["rounds"] == 0 and row["auc final"] == row["auc best"] == 0.5
    files = report.report([tmp_path / "a"], tmp_path / "out")
    assert has_colour(pixels(files[0]), report.COLOURS[0])
    assert "auc final" in capsys.readouterr().out


def printed(rows, width=100):
    report.print_table(rows, Console(file=(text := io.StringIO()), width=width))
    return text.getvalue()


def test_a_single_run_prints_as_a_list(tmp_path):
    run = report.load(write(tmp_path / "a", rounds=20_000, every=10_000, x_error=[1, 2e-9, 3e-7], stopped=""))
    cells = [line.strip().split("  ", 1) for line in printed(report.table([run])).splitlines() if line.strip()]
    assert {key: value.strip() for key, value in cells} == {
        "name": "FGDA", "rounds": "20,000", "x_error final": "3e-07", "x_error best": "2e-09",
        "oracle calls": "1,920,000", "bytes": "80.0 MB", "wire bytes": "50.0 MB", "seconds": "2:46:40",
        "communication %": "25.0", "stopped": "not finished",
    }  # fmt: skip


@pytest.mark.parametrize("width", [60, 100])
def test_several_runs_fit_the_console(tmp_path, width):
    metrics = {f"metric_number_{i}": [1.0, 2.0, 3.0] for i in range(6)}
    runs = [report.load(write(tmp_path / name, name, rounds=10, stopped="[rank 3] x is not finite", **metrics))
            for name in ("FGDA", "AMethodWithAVeryLongNameIndeedYes")]  # fmt: skip
    text = printed(report.table(runs), width)
    assert max(map(len, text.splitlines())) <= width
    assert text.count("metric_number_") == 12  # final and best of six metrics, none cut short
    assert text.count("40.0 kB") == 2 and text.count("[rank 3]") == 2 and "…" not in text


def test_report_writes_and_prints(tmp_path, capsys):
    write(tmp_path / "a", "FGDA", auc=lambda r: r / 40)
    write(tmp_path / "b", "LocalSGDA", auc=lambda r: r / 50)
    files = report.report([tmp_path / "a", str(tmp_path / "b" / "run.h5")], tmp_path / "new" / "out")
    assert files == [tmp_path / "new" / "out" / name for name in ("curves.png", "table.txt", "table.csv")]
    pixels(files[0])
    text = files[1].read_text(encoding="utf-8")
    assert "LocalSGDA" in text and "80.0 kB" in text and len(files[2].read_text().splitlines()) == 3
    assert "LocalSGDA" in capsys.readouterr().out


def test_report_without_metrics_and_without_runs(tmp_path):
    write(tmp_path / "a")
    assert [file.name for file in report.report([tmp_path / "a"], tmp_path / "out")] == ["table.txt", "table.csv"]
    with pytest.raises(ValueError, match="a metric of these runs"):
        report.curves([report.load(tmp_path / "a")], tmp_path / "none.png")
    with pytest.raises(ValueError, match="at least one run"):
        report.report([], tmp_path / "empty")
    assert not (tmp_path / "empty").exists()
