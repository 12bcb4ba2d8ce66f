"""Number of samples per client and class of a job: table and figure."""

from __future__ import annotations

import numpy as np
import pytest
from commands import error_of, output_of
from matplotlib.figure import Figure
from matplotlib.image import imread

from mpifed.config.job import Config, ConfigError
from mpifed.core.problem import listed_clients
from mpifed.report.client_samples import ClassCounts, class_counts, draw_class_counts, print_counts
from mpifed.running.run import run
from mpifed.storage.results import load

DIGITS = {"dataset": "digits"}
JOB = """
algorithm = { name = "LocalSGDA", q = 2, eta_x = 0.01, eta_y = 0.01 }
problem = { name = "DeepAUC", dataset = "digits", model = "linear", clients = 4 }
"""


def config_of(problem: str, **settings) -> Config:
    algorithm = {"name": "LocalSGDA", "q": 2, "eta_x": 0.01, "eta_y": 0.01}
    problem = {"name": problem, "clients": 4, **settings}
    return Config.from_table({"algorithm": algorithm, "problem": problem, "run": {"data_dir": "nowhere"}})


def test_counts_agree_with_the_clients_data():
    config = config_of("FairClassification", partition={"name": "dirichlet", "alpha": 0.5}, **DIGITS)
    samples = class_counts(config)
    assert samples.counts.shape == (4, 10) and samples.counts.sum() == 1438
    for client in range(4):
        labels = config.problem.client_data(client)[1].numpy()
        np.testing.assert_array_equal(samples.counts[client], np.bincount(labels, minlength=10))
    assert samples.title == "FairClassification, digits, dirichlet (alpha = 0.5), 4 clients, seed 0"


def test_positive_ratios_determine_the_counts_and_the_weights_of_the_loss():
    ratios = [0.05, 0.1, 0.2, 0.4]
    settings = {"partition": {"name": "positive_ratios", "ratios": ratios}, **DIGITS}
    config = config_of("DeepAUC", model="linear", **settings)
    samples = class_counts(config)
    assert samples.names == [*(f"{label}-" for label in range(5)), *(f"{label}+" for label in range(5, 10))]
    positive = samples.counts[:, 5:].sum(axis=1)
    # Half a sample of a client's 180 negatives, at least.
    assert np.abs(positive / samples.counts.sum(axis=1) - ratios).max() < 0.005
    assert config.problem._ratio == positive.sum() / samples.counts.sum()
    fair = config_of("FairClassification", **settings)
    counts = class_counts(fair).counts  # classes are weighted by their share in the clients' data
    # torch multiplies by a rounded reciprocal instead of dividing.
    weights = pytest.approx((counts.sum() / counts.sum(axis=0)).tolist(), rel=1e-15)
    assert fair.problem._inverse_share.tolist() == weights


def test_info_of_a_job_prints_a_table_and_writes_a_figure(job, tmp_path):
    output = output_of("info", job, "problem.clients=3", "problem.partition.name=iid")
    assert "3 clients" in output
    rows = [line.split() for line in output.partition("checkpoint:")[2].splitlines()]
    assert ["client", "samples", "0-", "1-", "2-", "3-", "4-", "5+", "6+", "7+", "8+", "9+"] in rows
    *clients, every = ([*map(int, row[1:])] for row in rows if row and row[0] in ("0", "1", "2", "all"))
    assert [row[0] for row in clients] == [480, 479, 479] and all(sum(row[1:]) == row[0] for row in clients)
    assert every == np.sum(clients, axis=0).tolist()
    assert str(tmp_path / "job.clients.png") in output
    image = imread(tmp_path / "job.clients.png")
    assert len(np.unique(image.reshape(-1, image.shape[-1]), axis=0)) > 10, "at least one colour per class"
    output_of("info", job, "--out", tmp_path / "other.png")
    assert (tmp_path / "other.png").exists()
    assert "job files" in error_of("info", "AdaFGDA", "q=2")


def test_clients_of_a_table_have_names(job, tmp_path):
    rows = [f"{k},{'yes' if k % 2 else 'no'},{'north wing' if k < 8 else 'east'}" for k in range(20)]
    (tmp_path / "rows.csv").write_text("\n".join(["a,label,ward", *rows, ""]))
    table = f'{{ name = "table", file = "{tmp_path}/rows.csv", test = 0.2, client = "ward" }}'
    changes = [f"problem.dataset={table}", "problem.partition=natural", "problem.clients=2"]
    table = output_of("info", job, *changes).partition("checkpoint:")[2]
    rows = [line.split() for line in table.splitlines()]
    assert {tuple(row[:2]) for row in rows if row and row[0] in ("0", "1")} == {("0", "east"), ("1", "north")}


def test_problems_without_classes_and_without_data():
    samples = class_counts(config_of("Saddle"))
    assert samples.names == ["samples"] and samples.counts.tolist() == [[1]] * 4
    assert class_counts(config_of("WGAN")) is None
    with pytest.raises(ConfigError, match="mnist lacks a file"):
        class_counts(config_of("FairClassification", dataset="mnist"))


def test_many_clients_and_classes_are_summarised(tmp_path, capsys):
    counts = np.random.default_rng(0).integers(0, 9, (500, 100))
    samples = ClassCounts("many", counts, [str(label) for label in range(100)], 500)
    print_counts(samples)
    output = capsys.readouterr().out
    assert "..." in output and "largest class %" in output and len(output.splitlines()) < 60
    draw_class_counts(samples, tmp_path / "many.png")
    assert imread(tmp_path / "many.png").shape[0] > 500


@pytest.mark.parametrize("counted", [1000, 2999])
def test_evenly_spaced_clients_are_drawn(counted, monkeypatch):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **options: drawn.append(self))
    draw_class_counts(ClassCounts("many", np.arange(counted)[:, None], ["samples"], 2999), "figure.png")
    (axes,) = drawn[0].axes
    assert axes.get_xlabel() == "client (1,000 of 2,999, evenly spaced)"
    corners = np.array([path.vertices[:4] for path in axes.collections[0].get_paths()])
    centres, heights = corners[:, ::2, 0].mean(axis=1), corners[:, 1, 1]
    assert len(centres) == 1000 and centres[[0, 1, -1]] == pytest.approx([0, 3, 2998])
    assert heights[[0, 1, -1]].tolist() == [0, 1 if counted == 1000 else 3, counted - 1]


def test_results_of_many_clients_have_the_counts_of_some(tmp_path):
    settings = {"dataset": "digits", "clients": 1200}
    config = config_of("FairClassification", **settings)
    changes = {"rounds": 1, "run": {"out": str(tmp_path / "run"), "progress": False}}
    run(Config.from_table(config.table() | changes))
    every, stored = class_counts(config), load(tmp_path / "run")
    assert stored.classes == every.names and stored.class_counts.shape == (1000, 10)
    np.testing.assert_array_equal(stored.class_counts, every.counts[listed_clients(1200)])
    assert listed_clients(7).tolist() == [*range(7)] and listed_clients(1, 5).tolist() == [0]


def test_labels_of_the_figure(tmp_path, monkeypatch):
    """Dollars in names do not start mathematics."""
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **options: drawn.append((self, options)))
    counts = ClassCounts("costs $5 and $6", np.array([[3], [2]]), ["samples"], 2)
    draw_class_counts(counts, tmp_path / "figure.png")
    ((figure, options),) = drawn
    (axes,) = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("client", "samples")
    assert axes.get_title() == r"costs \$5 and \$6"
    assert options == {"format": "png", "metadata": {"Software": "mpifed"}}
