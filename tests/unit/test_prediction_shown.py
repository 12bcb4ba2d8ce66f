"""What ``mpifed scale`` shows: the table's cells and the curves are the predictions."""

import io
import json
import math

import numpy as np
import pytest
from matplotlib.figure import Figure
from rich.console import Console

from mpifed.config.job import Config, ConfigError
from mpifed.scaling import prediction
from mpifed.scaling.model import Link, Machine, Prediction, Work
from mpifed.scaling.prediction import Row, draw, print_rows, read, rows, work_of

STRONG = Prediction(2048, 16, per_rank=3, compute=4.0, allreduce=0.025, bcast=0.0)
WEAK = Prediction(2048, 16, per_rank=1, compute=1.5e-3, allreduce=2e-6, bcast=3e-9)
COLUMNS = 11
JOB = {"algorithm": {"name": "FGDA", "q": 2}, "problem": {"name": "Saddle", "d": 7, "clients": 3}}


def printed(*arguments) -> list[str]:
    text = io.StringIO()
    print_rows(*arguments, Console(file=text, width=200))
    return text.getvalue().splitlines()


def test_every_cell_of_the_table():
    lines = printed([Row(STRONG, WEAK, 0.756, 0.031)], ["where from", "and what"])
    assert lines[:3] == [
        "where from",
        "and what",
        "strong: the job's clients on all ranks; weak: one client a rank",
    ]
    cells = [cell for cell in lines[-1].split("  ") if cell.strip()]
    assert [cell.strip() for cell in cells] == [
        "2,048", "16", "25 ms", "-", "3", "4 s", "4.03 s", "75.6%", "1.5 ms", "1.5 ms", "3.1%",
    ]  # fmt: skip
    heads = " ".join(lines[3:-2])
    for head in ("ranks", "nodes", "Allreduce", "Bcast", "clients", "(strong)", "(weak)", "a rank"):
        assert head in heads
    assert heads.count("round") == heads.count("efficiency") == heads.count("compute") == 2


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0, "-"),
        (1, "1 s"),
        (0.9996, "1e+03 ms"),
        (2e-3, "2 ms"),
        (2e-6, "2 µs"),
        (2e-9, "2 ns"),
        (2e-12, "2e-06 µs"),
    ],
)
def test_a_time_has_the_largest_unit_that_it_fills(seconds, text):
    assert prediction._time(seconds) == text


@pytest.fixture
def figure(monkeypatch):
    drawn = []

    def savefig(self, path, **options):
        drawn.append((self, path, options))

    monkeypatch.setattr(Figure, "savefig", savefig)
    return drawn


@pytest.mark.parametrize("bcast", [0, 10_000])
def test_curves_are_the_predictions(figure, bcast):
    slow, near = Link(1e-4, 1e-8, 1e-8), Link(1e-6, 1e-10, 1e-10)
    machine = Machine(near, slow, 1e-11, cores=4, ranks_per_node=4)
    predicted = rows(machine, Work(64, 0.5, 0.25, ((80_000, bcast),)), [1, 4, 64])
    draw(predicted, "scale.png")
    ((one, path, options),) = figure
    assert path == "scale.png" and options == {"format": "png", "metadata": {"Software": "mpifed"}}
    strong, weak, efficiency = one.axes
    for cell, kind in ((strong, "strong"), (weak, "weak")):
        curves = {line.get_label(): line.get_xydata() for line in cell.lines}
        assert set(curves) == {"total", "compute", "allreduce"} | ({"bcast"} if bcast else set())
        for part, points in curves.items():
            values = [getattr(getattr(row, kind), part) or math.nan for row in predicted]
            np.testing.assert_array_equal(points, np.column_stack([[1, 4, 64], values]))
        assert kind in cell.get_title() and cell.get_yscale() == "log" and "seconds" in cell.get_ylabel()
    curves = {line.get_label(): line.get_ydata().tolist() for line in efficiency.lines}
    assert curves["strong"] == [row.strong_efficiency for row in predicted]
    assert curves["weak"] == [row.weak_efficiency for row in predicted]
    assert efficiency.get_ylim()[0] == 0 and 1 < efficiency.get_ylim()[1] < 1.2
    for cell in one.axes:
        assert cell.get_xscale() == "log" and cell.get_xlabel() == "ranks" and cell.get_legend() is not None
        assert cell.xaxis.get_transform().base == 2


def test_what_the_model_leaves_out_is_said_of_exact_reductions():
    here = {"machine": {"cores_per_node": 4}, "gamma": 1e-11}
    fused, exact, default = (
        Config.from_table(JOB | {"run": run}) for run in ({"reduction": "fused"}, {"reduction": "exact"}, {})
    )
    (work, said), (same, more) = (work_of(here, config, 0.5) for config in (fused, exact))
    assert work_of(here, default, 0.5) == (same, more)
    assert work == same and more[:-1] == said and "moves the partial sums of each rank" in more[-1]
    assert said[0] == "computing: 500 ms a client and round, - a rank (given)"
    assert said[1].endswith("3 clients a round; bytes: Allreduce 116, Bcast 0 (from the job)")


LINK = {"alpha": 1e-6, "beta": 1e-10, "both": 2e-10}


@pytest.mark.parametrize("link", ["intra", "inter"])
def test_a_measurement_needs_one_link_and_positive_numbers(tmp_path, link):
    path = tmp_path / "comm.json"
    sound = {"machine": {"cores_per_node": 1}, "gamma": 1e-11, link: LINK}
    path.write_text(json.dumps(sound))
    assert read(path) == sound
    for wrong in (
        {"gamma": 0.0},
        {"machine": {"cores_per_node": 0}},
        *({link: LINK | {name: 0.0}} for name in LINK),
        {link: {name: 1e-6 for name in LINK if name != "both"}},
    ):
        path.write_text(json.dumps(sound | wrong))
        with pytest.raises(ConfigError, match="no result of `mpifed bench comm`"):
            read(path)


def test_a_link_between_nodes_takes_what_is_given_and_keeps_the_rest():
    here = {"machine": {"cores_per_node": 4}, "gamma": 1e-11, "intra": LINK}
    for latency, bandwidth, link, words in (
        (None, 2e9, Link(1.5e-6, 0.5e-9, 0.5e-9), "latency by default, bandwidth given"),
        (3e-6, None, Link(3e-6, 1 / 12e9, 1 / 12e9), "latency given, bandwidth by default"),
        (3e-6, 2e9, Link(3e-6, 0.5e-9, 0.5e-9), "latency given, bandwidth given"),
    ):
        machine, lines = prediction.machine_of(here, latency, bandwidth, None, None)
        assert machine.inter == link and words in lines[1]
        assert machine.intra == Link(*LINK.values()) and machine.gamma == 1e-11
    machine, lines = prediction.machine_of(here, None, None, 64, 8)
    assert (machine.cores, machine.ranks_per_node) == (8, 64)
    assert lines[-1] == "a node: 8 cores (given), 64 ranks (given)"
    machine, lines = prediction.machine_of(here, None, None, None, 8)
    assert machine.ranks_per_node == 8 and lines[-1] == "a node: 8 cores (given), 8 ranks (one a core)"
    assert lines[2].startswith("summing: 0.01 ns/B (measured on a machine without name")
