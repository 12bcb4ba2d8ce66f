"""Who holds what: the table and the figure of a job's clients."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure
from matplotlib.image import imread

from mpifed.cli.main import cli
from mpifed.config.job import Config, ConfigError
from mpifed.report.client_samples import Holdings, draw, holdings, print_holdings

JOB = """
[algorithm]
name = "LocalSGDA"
q = 2
eta_x = 0.01
eta_y = 0.01
[problem]
name = "{problem}"
clients = 4
{settings}
"""


@pytest.fixture
def job(tmp_path):
    def write(problem: str, settings: str = ""):
        path = tmp_path / "job.toml"
        path.write_text(JOB.format(problem=problem, settings=settings))
        return path

    return write


def test_counts_are_those_of_the_clients_data(job):
    config = Config.load(
        job("FairClassification", 'dataset = "digits"\npartition = { name = "dirichlet", alpha = 0.5 }')
    )
    held = holdings(config)
    assert held.counts.shape == (4, 10) and held.counts.sum() == 1438
    for client in range(4):
        labels = config.problem.client_data(client)[1].numpy()
        np.testing.assert_array_equal(held.counts[client], np.bincount(labels, minlength=10))
    assert held.title == "FairClassification, digits, dirichlet (alpha = 0.5), 4 clients, seed 0"


def test_given_positive_ratios_show_in_the_counts_and_in_the_loss(job):
    ratios = [0.05, 0.1, 0.2, 0.4]
    partition = f'partition = {{ name = "positive_ratios", ratios = {ratios} }}'
    config = Config.load(job("DeepAUC", f'dataset = "digits"\nmodel = "linear"\n{partition}'))
    held = holdings(config)
    assert held.names == [*(f"{label}-" for label in range(5)), *(f"{label}+" for label in range(5, 10))]
    found = held.counts[:, 5:].sum(axis=1) / held.counts.sum(axis=1)
    assert np.abs(found - ratios).max() < 0.005  # half a sample of the 180 negatives of a client, at least
    fair = Config.load(job("FairClassification", f'dataset = "digits"\n{partition}'))
    counts = holdings(
        fair
    ).counts  # its classes count by their share in what the clients hold, not in the files
    # torch rounds a reciprocal and a product instead of a quotient.
    assert fair.problem._inverse_share.tolist() == pytest.approx(
        (counts.sum() / counts.sum(axis=0)).tolist(), rel=1e-15
    )
    assert config.problem._ratio == held.counts[:, 5:].sum() / held.counts.sum()


def test_info_of_a_job_prints_a_table_and_writes_a_figure(job, tmp_path):
    path = job("DeepAUC", 'dataset = "digits"\nmodel = "linear"')
    done = CliRunner().invoke(
        cli, ["info", str(path), "problem.clients=3", "problem.partition.name=iid"], catch_exceptions=False
    )
    assert done.exit_code == 0 and "3 clients" in done.output
    rows = [line.split() for line in done.output.splitlines()]
    assert ["client", "samples", "0-", "1-", "2-", "3-", "4-", "5+", "6+", "7+", "8+", "9+"] in rows
    assert [row[1] for row in rows if row and row[0] in ("0", "1", "2", "all")] == [
        "480",
        "479",
        "479",
        "1438",
    ]
    assert str(tmp_path / "job.clients.png") in done.output
    image = imread(tmp_path / "job.clients.png")
    assert (
        len(np.unique(image.reshape(-1, image.shape[-1]), axis=0)) > 10
    )  # ten classes, ten colours at least
    CliRunner().invoke(cli, ["info", str(path), "--out", str(tmp_path / "other.png")], catch_exceptions=False)
    assert (tmp_path / "other.png").exists()


def test_problems_without_classes_and_without_data(job):
    held = holdings(Config.load(job("Saddle")))
    assert held.names == ["samples"] and held.counts.tolist() == [[1]] * 4
    with pytest.raises(ConfigError, match="WGAN makes its samples as it goes"):
        holdings(Config.load(job("WGAN")))
    with pytest.raises(ConfigError, match="mnist lacks a file"):
        holdings(Config.load(job("FairClassification", 'dataset = "mnist"'), ["run.data_dir=nowhere"]))


def test_info_refuses_settings_of_a_name(job):
    done = CliRunner().invoke(cli, ["info", "AdaFGDA", "q=2"])
    assert done.exit_code == 2 and "job files" in done.output


def test_many_clients_and_classes_are_summed_up_and_drawn(tmp_path, capsys):
    rng = np.random.default_rng(0)
    held = Holdings("many", rng.integers(0, 9, (500, 100)), [str(label) for label in range(100)])
    print_holdings(held)
    output = capsys.readouterr().out
    assert "..." in output and "largest class %" in output and len(output.splitlines()) < 60
    draw(held, tmp_path / "many.png")
    assert imread(tmp_path / "many.png").shape[0] > 500


def test_the_figure_says_what_it_shows(tmp_path, monkeypatch):
    """A dollar sign of a plugin's name is no formula."""
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **options: drawn.append((self, options)))
    draw(Holdings("costs $5 and $6", np.array([[3], [2]]), ["samples"]), tmp_path / "figure.png")
    ((figure, options),) = drawn
    (axes,) = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("client", "samples")
    assert axes.get_title() == r"costs \$5 and \$6"
    assert options == {"format": "png", "metadata": {"Software": "mpifed"}}
