"""``mpifed estimate`` on problems with known constants and noise distributions."""

import csv
import json
import math
from functools import partial

import commands
import numpy as np
import pytest
import torch
from baselines import Quadratic
from games import Game, configuration
from matplotlib.figure import Figure

from mpifed.algorithms import FSGDA, LSGD
from mpifed.core.estimates import hill, lipschitz, top_values
from mpifed.core.noise import AlphaStable, Gaussian, Pareto, StudentT
from mpifed.core.streams import generator
from mpifed.diagnostics.assumptions import ALL, Options, estimate
from mpifed.diagnostics.output import finish_panel
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.problems import WGAN, AffineGame, FairClassification, QuadraticNCPL, Saddle

COMM = SerialComm()
STEPS = FSGDA(K=2, eta_xl=0.02, eta_yl=0.05)


def metered(problem, noise=None, rounds=2, algorithm=STEPS, batch_size=0, weights="uniform", **options):
    """Return ``rows[round, client]`` of a job, and its prepared problem."""
    config = configuration(
        algorithm, problem, "unused", rounds=rounds, noise=noise or 0, batch_size=batch_size, weights=weights
    )
    rows = estimate(COMM, config, Options(**{"points": 2, "samples": 20} | options))["rows"]
    return {(row["round"], row["client"]): row for row in rows}, config.problem


def test_hill_estimator():
    """The largest two of 1, 2, 4, 8 over the third largest: 2 / (log 2 + log 4)."""
    lengths = np.array([4.0, 1.0, 8.0, 2.0])
    assert hill(lengths, 2).estimate == hill(lengths).estimate == pytest.approx(2 / math.log(8))


def test_coverage_of_the_hill_interval():
    """95 % of 400 intervals cover the index, up to 3 standard deviations: 92 to 98 %."""
    rng = np.random.default_rng(0)
    tails = [hill(rng.pareto(1.5, 400) + 1) for _ in range(400)]
    covered = np.mean([tail.low <= 1.5 <= tail.high for tail in tails])
    assert 0.92 <= covered <= 0.98
    # The mean of the estimate from k = 20 values is k / (k - 1) times the index.
    assert np.mean([tail.estimate for tail in tails]) == pytest.approx(1.5 * 20 / 19, rel=0.04)


@pytest.mark.parametrize("lengths", [np.zeros(50), np.ones(50), np.full(50, np.nan), np.ones(2)], ids=str)
def test_no_tail(lengths):
    assert all(map(math.isnan, hill(lengths, 5)))


def test_the_number_of_largest_values():
    assert [top_values(count) for count in (10, 1000, 8000)] == [3, 31, 89]


def test_the_norm_of_a_hessian():
    """Each power iteration contracts the squared angle by (4/5)²."""
    H = torch.diag(torch.tensor([1.0, -4.0, 5.0])).double()
    norm = lipschitz(lambda z: H @ z, torch.ones(3).double(), torch.ones(3).double(), 100)
    assert norm == pytest.approx(5, rel=1e-5) and norm <= 5 * (1 + 1e-9)


def test_a_zero_direction():
    assert lipschitz(lambda z: 3 * z, torch.zeros(2).double(), torch.zeros(2).double(), 5) == pytest.approx(3)


def test_the_saddle():
    """L of client k is the norm of ((τ, -t), (-t, -1)), -f is 1-strongly convex in y, and δ is known."""
    rows, own = metered(Saddle(clients=4, d=3, t_max=2.0, tau=3.0), iterations=200, rounds=3)
    t = own._t
    for client in range(4):
        norm = np.linalg.norm([[3.0, -t[client]], [-t[client], -1.0]], 2)
        assert rows[0, client]["L"] == pytest.approx(norm, rel=1e-4)
        assert rows[0, client]["L"] <= norm * (1 + 1e-8)
    mean = np.linalg.norm([[3.0, -t.mean()], [-t.mean(), -1.0]], 2)
    for r in (0, 3):
        assert rows[r, "all"]["L"] == pytest.approx(mean, rel=1e-4)
        assert rows[r, "all"]["pl"] == pytest.approx(1, rel=1e-9) and rows[r, "all"]["pl_residual"] <= 1e-9
    x, y = (part.numpy() for part in own.initial(generator(1, "initial")).values())
    for client in range(4):
        assert rows[0, client]["delta_x"] == pytest.approx(np.linalg.norm((t[client] - t.mean()) * y))
        away = own.client_data(client)[1][0].numpy() - (t[client] - t.mean()) * x
        assert rows[0, client]["delta_y"] == pytest.approx(np.linalg.norm(away))
    deltas = [rows[0, client]["delta_y"] for client in range(4)]
    assert rows[0, "all"]["delta_y"] == pytest.approx(np.sqrt(np.mean(np.square(deltas))))


def test_no_noise():
    """With full batches σ is 0, and there is no tail index."""
    rows, _ = metered(Game())
    assert all(row["sigma_x"] == row["sigma_y"] == 0 and math.isnan(row["tail"]) for row in rows.values())


def test_the_quadratic():
    """L is the largest norm of a client's Hessian, and pl is between μ and L."""
    own = QuadraticNCPL(clients=3, dx=4, dy=4, rank=3, heterogeneity=0.5, shared_hessian=True)
    rows, own = metered(own, iterations=300)
    assert rows[0, "all"]["L"] == pytest.approx(own.ell, rel=1e-3)
    assert all(own.mu * (1 - 1e-6) <= rows[r, "all"]["pl"] <= own.ell for r in (0, 2))


def test_an_operator():
    """For V = Jz + c with a normal matrix J, the estimate is the norm of J."""
    own = AffineGame(clients=3, d=4, strong=0.5, smooth=0.5, skew=2.0)
    rows, own = metered(own, algorithm=LSGD(K=2, eta=0.01), noise=Gaussian(scale=0.5), samples=500)
    assert rows[0, "all"]["L"] == pytest.approx(np.linalg.norm(own._J, 2), rel=1e-3)
    assert "pl" in rows[0, "all"] and math.isnan(rows[0, "all"]["pl"])
    # The mean of 2,000 squared normal numbers, up to 5 standard deviations.
    assert rows[0, 0]["sigma_z"] == pytest.approx(0.5 * math.sqrt(4), rel=0.08)


def test_gaussian_noise():
    """σ of d coordinates is scale √d; 5 standard deviations of the mean of 6,000 squares are 5 %. Light
    tails have a large index."""
    rows, _ = metered(Saddle(clients=3, d=3), Gaussian(scale=0.3), samples=2000)
    for r, client in ((0, 0), (0, 2), (2, 1), (2, "all")):
        assert rows[r, client]["sigma_x"] == pytest.approx(0.3 * math.sqrt(3), rel=0.05)
        assert rows[r, client]["sigma_y"] == pytest.approx(0.3 * math.sqrt(3), rel=0.05)
        assert rows[r, client]["tail_low"] > 4


LAWS = {
    "pareto": (Pareto(tail=1.5, scale=0.1), 1.5),
    "stable": (AlphaStable(alpha=1.5, scale=0.1), 1.5),
    "student": (StudentT(nu=2.0), 2.0),
}


@pytest.mark.parametrize("law", LAWS)
def test_the_tail_index_of_the_noise(law):
    """At least 6 of 8 intervals of 95 % cover the index (fewer do with probability 1/170); the estimate from
    all clients, k = 89 values, is within 3 standard deviations."""
    noise, index = LAWS[law]
    rows, _ = metered(Saddle(clients=8, d=1), noise, samples=1000, points=1, iterations=1)
    clients = [rows[0, client] for client in range(8)]
    assert sum(row["tail_low"] <= index <= row["tail_high"] for row in clients) >= 6
    assert rows[0, "all"]["tail"] == pytest.approx(index, rel=3 / math.sqrt(89))


def test_minibatches_and_weights():
    """σ² of batches with replacement is the variance of one row's gradient over the batch size; the row "all"
    weights clients by samples. Ratios of two means of 500 squares have an error of up to 20 %."""
    rows, own = metered(Game(), batch_size=2, weights="samples", samples=500, points=1)
    weights = np.array([len(part) for part in own.rows], dtype=float)
    sigmas = np.array([rows[0, client]["sigma_x"] for client in range(3)])
    assert rows[0, "all"]["sigma_x"] == pytest.approx(np.sqrt(np.average(sigmas**2, weights=weights)))
    twice, _ = metered(Game(), batch_size=8, weights="samples", samples=500, points=1)
    assert [twice[0, k]["sigma_x"] for k in range(3)] == pytest.approx(sigmas / 2, rel=0.2)


def test_without_y():
    rows, own = metered(Quadratic(clients=2), iterations=200)
    for client, A in ((0, own.A[0]), (1, own.A[1]), ("all", (own.A[0] + own.A[1]) / 2)):
        assert rows[2, client]["L"] == pytest.approx(np.linalg.norm(A, 2), rel=1e-6)
    assert math.isnan(rows[2, "all"]["pl"]) and "sigma_y" not in rows[0, 0]


def test_a_set_of_y_has_no_pl_ratio():
    rows, _ = metered(FairClassification(clients=2, dataset="digits"), points=1, samples=10, iterations=1)
    assert math.isnan(rows[0, "all"]["pl"])


def test_at_the_best_response_there_is_no_ratio():
    """The run starts at the saddle point of the mean over clients."""
    rows, _ = metered(Saddle(clients=3, d=2, start="zero"), points=1)
    assert math.isnan(rows[0, "all"]["pl"]) and rows[0, "all"]["pl_residual"] <= 1e-12


@pytest.mark.parametrize("of, computed", [("L", {"L"}), ("pl", {"pl"}), ("noise", {"sigma_x", "tail"})])
def test_selected_estimates(of, computed):
    """The selected columns have the same values as without a selection; δ is always computed."""
    measured = [metered(Game(), Gaussian(scale=0.5), batch_size=2, of=which)[0] for which in ((of,), ALL)]
    for column in ("L", "pl", "sigma_x", "tail", "delta_x"):
        own, every = (rows[2, "all"][column] for rows in measured)
        assert not math.isnan(every)
        assert own == every if column in computed | {"delta_x"} else math.isnan(own)


def test_points_of_a_short_run():
    """No round occurs twice, and the first and the last are included."""
    rows, _ = metered(Game(), rounds=2, points=9)
    assert sorted({r for r, _ in rows}) == [0, 1, 2]


def test_a_problem_without_data():
    with pytest.raises(CollectiveError, match="WGAN generates its samples"):
        metered(WGAN(clients=2), batch_size=2)


JOB = """
rounds = 2
algorithm = { name = "FSGDA", K = 2, eta_xl = 0.02, eta_yl = 0.05 }
problem = { name = "Saddle", clients = 25, d = 2 }
oracle = { batch_size = 0, noise = { name = "gaussian", scale = 0.1 } }
[run]
dtype = "float64"
"""


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(JOB + 'out = "runs/one"\n')
    words = ["estimate", "job.toml", "--points", "2", "--samples", "12", "--iterations", "2"]
    return partial(commands.invoke, *words, standalone_mode=False)


def test_the_command(invoke, tmp_path):
    result = invoke()
    assert result.exit_code == 0, result.exception
    folder = tmp_path / "runs" / "one"
    assert {path.name for path in folder.iterdir()} == {
        f"assumptions.{kind}" for kind in ("csv", "json", "png")
    }
    for word in ("FSGDA on Saddle: all clients", "L ≥", "μ ≤", "σ_x", "δ_y", "tail index", "after round 2"):
        assert word in result.output
    rows = [line.split()[0] for line in result.output.splitlines() if line.split()]
    assert {"0", "2", "19"} <= {*rows} and "20" not in rows  # rounds, and clients
    assert "5 more clients" in result.output and "the largest 3 of 12 noise norms" in result.output
    with open(folder / "assumptions.csv", newline="") as file:
        table = list(csv.DictReader(file))
    stored = json.loads((folder / "assumptions.json").read_text())
    assert len(table) == len(stored["rows"]) == 2 * 26
    for row, other in zip(table, stored["rows"]):
        assert row["client"] == str(other["client"]) and float(row["L"]) == other["L"]
    assert stored["samples"] == 12 and stored["top"] == 3
    assert invoke().exit_code == 0  # files of this command are replaced
    noise = invoke("--of", "noise").output
    assert "σ_x" in noise and "Tail index" in noise and "L" not in noise and "μ" not in noise


@pytest.mark.parametrize("values, scale", [([0.01, 0.5], "log"), ([0.3, 0.5], "linear"), ([0.0], "linear")])
def test_values_of_several_orders_of_magnitude_have_a_logarithmic_axis(values, scale):
    axes = Figure().subplots()
    axes.plot(values)
    finish_panel(axes, "L", values)
    assert axes.get_yscale() == scale


def test_other_files_are_not_replaced(invoke, tmp_path):
    folder = tmp_path / "runs" / "one"
    folder.mkdir(parents=True)
    (folder / "assumptions.csv").write_text("mine\n")
    result = invoke()
    assert "assumptions.csv is a file that mpifed has not written" in str(result.exception)
    assert (folder / "assumptions.csv").read_text() == "mine\n"
    assert not (folder / "assumptions.json").exists()


@pytest.mark.parametrize("options, message", [
    (["--top", "12"], "expected --top below --samples = 12, got 12"),
    (["problem.d=0"], "problem.d"),
    (["--samples", "3"], "3"),
    (["--points", "0"], "0"),
    (["run.out=job.toml/x"], "cannot write to run.out"),
])  # fmt: skip
def test_bad_input(invoke, options, message):
    assert message in str(invoke(*options).exception)
