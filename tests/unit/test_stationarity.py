"""Stationarity measures against exact solutions and against differences of Φ."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from everything import problem
from games import Game, configuration, started
from scipy.optimize import minimize_scalar

import mpifed.simulation.full_data as full_data
from mpifed import Blocks, Minimisation, run
from mpifed.algorithms import FESSGDA, FSGDA, LESGD
from mpifed.base.errors import ConfigError
from mpifed.core.metrics import Column
from mpifed.core.solvers import Budget
from mpifed.core.streams import generator
from mpifed.diagnostics.assumptions import Options, estimate
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.problems import QuadraticNCPL, Saddle
from mpifed.simulation.full_data import TAIL, FullData
from mpifed.simulation.stationarity import Functions
from mpifed.storage.results import load

COMM = SerialComm()
STEPS = FSGDA(K=2, eta_xl=0.02, eta_yl=0.05)
SMOOTHED = FESSGDA(K=2, eta_xl=0.02, eta_yl=0.05, p=3.0)
EXACT = Budget(1e-11, 5000)


def simulated(problem_, of=None, algorithm=STEPS, rounds=1, batch_size=0, weights="uniform", **measures):
    measures |= {"accuracy": 1e-10} if {*(of or ())} - {"stationarity", "tail"} else {}
    sections = {"measures": {"of": of, **measures}} if of is not None else {}
    settings = dict(batch_size=batch_size, noise=0, weights=weights, sections=sections)
    return started(configuration(algorithm, problem_, "unused", **settings), rounds)


def blocks_of(simulation) -> list[torch.Tensor]:
    return list(simulation.point().split(list(simulation.problem.variables().sizes.values())))


def functions(simulation, budget=EXACT) -> Functions:
    return Functions(simulation.full_data(), budget)


def phi(simulation, x, y) -> float:
    """Φ(x), maximised from ``y``."""
    on_all_data = functions(simulation)
    return on_all_data.full.value(torch.cat([x, on_all_data.best_response(x, y).point]))


@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("ball", [None, 0.3], ids=["space", "ball"])
def test_the_gradient_of_phi_of_a_user_defined_loss(ball, weights):
    """Central differences of width 1e-5 have errors of 1e-10, and 1e-11 by rounding divided by the width."""
    simulation = simulated(Game(ball=ball), ["phi"], weights=weights)
    x, y = blocks_of(simulation)
    width = 1e-5
    differences = [
        (phi(simulation, x + width * e, y) - phi(simulation, x - width * e, y)) / (2 * width)
        for e in torch.eye(len(x), dtype=x.dtype)
    ]
    measured = simulation.evaluate()
    assert measured["phi_gradient"] == pytest.approx(np.linalg.norm(differences), rel=1e-7)
    assert measured["phi_residual"] <= 1e-10


def test_full_gradients_are_weighted():
    """The clients of the game have 5, 6 and 7 rows."""
    uniform, samples = (
        simulated(Game(), ["stationarity"], rounds=0, weights=by) for by in ("uniform", "samples")
    )
    full = samples.full_data()
    locals_ = torch.stack([full.local(place, samples.point()) for place in range(3)])
    expected = (torch.tensor([5.0, 6.0, 7.0]).double() @ locals_) / 18
    torch.testing.assert_close(full.gradient(samples.point()), expected, rtol=1e-14, atol=1e-14)
    assert not torch.allclose(uniform.full_data().gradient(uniform.point()), expected, rtol=1e-3)


def saddle_measures(simulation, ell):
    """Exact values: y* = b̄ - t̄ x, ∇Φ = τx - t̄ y*, and x̂ solves (τ + t̄² + 2ℓ) x̂ = 2ℓx + t̄ b̄."""
    [x, y], own = [part.numpy() for part in blocks_of(simulation)], simulation.problem
    t, b = own._t.mean(), own._drawn(np.arange(own.clients))[1].mean(axis=0)
    gradient = own.tau * x - t * (b - t * x)
    nearest = (2 * ell * x + t * b) / (own.tau + t**2 + 2 * ell)
    return {
        "gradient_x": np.linalg.norm(own.tau * x - t * y),
        "gradient_y": np.linalg.norm(b - y - t * x),
        "phi_gradient": np.linalg.norm(gradient),
        "moreau_gradient": 2 * ell * np.linalg.norm(x - nearest),
        "nuclear_norm": np.linalg.norm(gradient),
    }


def test_the_saddle():
    own = Saddle(clients=3, d=4, t_max=2.0, tau=3.0, centred=False)
    simulation = simulated(own, ["stationarity", "phi", "nuclear_norm", "moreau"], ell=5.0)
    measured = simulation.evaluate()
    for name, value in saddle_measures(simulation, 5.0).items():
        assert measured[name] == pytest.approx(value, rel=1e-9), name


def test_a_game_has_the_measures_of_its_minimax_problem():
    """A method for variational inequalities has one block z."""
    settings, of = dict(clients=3, d=4, t_max=2.0, centred=False), ["stationarity", "phi", "moreau"]
    game, minimax = (
        simulated(Saddle(**settings), of, algorithm, rounds=0, ell=20.0)
        for algorithm in (LESGD(K=2, eta=0.02), STEPS)
    )
    assert game.evaluate() == minimax.evaluate()


@pytest.mark.parametrize("known", [True, False], ids=["closed", "ascent"])
@pytest.mark.parametrize("heterogeneity", [0.0, 0.5])
def test_the_quadratic(monkeypatch, known, heterogeneity):
    """PL with flat directions in y; the envelope and the potential by dense linear solves."""
    if not known:
        monkeypatch.setattr(QuadraticNCPL, "best_response", None)
    own, ell = QuadraticNCPL(clients=4, dx=4, dy=5, rank=3, heterogeneity=heterogeneity), 1.5
    of = ["phi", "moreau", "potential"]
    simulation = simulated(own, of, SMOOTHED, rounds=2, ell=ell)
    measured, [x, y] = simulation.evaluate(), blocks_of(simulation)
    z, p = simulation.shared.z.numpy(), SMOOTHED.p
    zero, eye = np.zeros(own.dx), np.eye(own.dx)
    H = np.stack([own.grad_phi(e) - own.grad_phi(zero) for e in eye], axis=1)
    x = x.numpy()

    def proximal_point(center, weight):
        return np.linalg.solve(H + weight * eye, weight * center - own.grad_phi(zero))

    assert measured["phi_gradient"] == pytest.approx(measured["grad_phi"], rel=1e-9)
    nearest = proximal_point(x, 2 * ell)
    assert measured["moreau_gradient"] == pytest.approx(2 * ell * np.linalg.norm(x - nearest), rel=1e-7)
    mean, linear = own._mean
    P = mean[: own.dx, : own.dx]

    def smoothed(x, y):
        point = np.concatenate([x, y])
        return point @ mean @ point / 2 + linear @ point + p / 2 * ((x - z) ** 2).sum()

    pull = p * z - linear[: own.dx] - mean[: own.dx, own.dx :] @ y.numpy()
    least = np.linalg.solve(P + p * eye, pull)
    saddle = proximal_point(z, p)
    saddle_value = own.phi(saddle) + p / 2 * ((saddle - z) ** 2).sum()
    potential = smoothed(x, y.numpy()) - 2 * smoothed(least, y.numpy()) + 2 * saddle_value
    assert measured["potential"] == pytest.approx(potential, rel=1e-7)
    assert max(measured["moreau_residual"], measured["potential_residual"]) <= 1e-9


@pytest.mark.parametrize("name", ["DeepAUC", "TextAUC"])
def test_the_dual_of_the_auc(name):
    """With clients weighted by samples, α* is the mean of h over negatives minus the mean over positives. The
    numerical maximiser has the square root of the rounding error."""
    simulation = simulated(problem(name), ["phi"], weights="samples")
    own, own_functions, [x, y] = simulation.problem, functions(simulation), blocks_of(simulation)
    solved = own_functions.best_response(x, y)
    columns = [own.client_data(client) for client in range(own.clients)]
    positive = torch.cat([column[1] for column in columns]).bool()
    with torch.no_grad():
        named = own.variables().unflatten("x", x)
        samples = torch.cat([column[0] for column in columns])
        h = own.outputs(named, samples.to(x) if samples.is_floating_point() else samples)
    alpha = float(h[~positive].mean() - h[positive].mean())
    assert float(solved.point) == pytest.approx(alpha, abs=1e-10)
    numeric = minimize_scalar(
        lambda value: -own_functions.full.value(torch.cat([x, torch.tensor([value]).to(x)])),
        bounds=(alpha - 5, alpha + 5),
        method="bounded",
        options={"xatol": 1e-10},
    )
    assert float(solved.point) == pytest.approx(numeric.x, abs=1e-6)


def test_the_worst_class():
    """f is linear in the weights of the classes, so Φ is the largest loss of a class."""
    simulation = simulated(problem("FairClassification"), ["phi", "nuclear_norm"], weights="samples")
    own, [x, _] = simulation.problem, blocks_of(simulation)
    leaf = x.clone().requires_grad_()
    with torch.enable_grad():
        images, labels = (torch.cat(column) for column in zip(*(own.client_data(k)[:2] for k in range(3))))
        scores = own.model(own.variables().unflatten("x", leaf), images.double())
        each = F.cross_entropy(scores, labels, reduction="none")
        worst = torch.stack([each[labels == label].mean() for label in range(10)]).max()
        [gradient] = torch.autograd.grad(worst, leaf)
    measured = simulation.evaluate()
    assert measured["phi_gradient"] == pytest.approx(float(gradient.norm()), rel=1e-9)
    parts = own.variables().unflatten("x", gradient)
    nuclear = sum(np.linalg.norm(np.atleast_2d(part.numpy()), "nuc") for part in parts.values())
    assert measured["nuclear_norm"] == pytest.approx(nuclear, rel=1e-9)


def test_stationarity_on_a_set():
    """ℓ ‖P_Y(y + ∇_y f / ℓ) - y‖ on the simplex."""
    simulation = simulated(problem("FairClassification"), ["stationarity"], ell=7.0)
    [_, y], full = blocks_of(simulation), simulation.full_data()
    slope = full.gradient(simulation.point())[-10:]
    expected = 7.0 * (simulation.problem.sets.y(y + slope / 7.0) - y).norm()
    measured = simulation.evaluate()
    assert measured["gradient_y"] == pytest.approx(float(expected), rel=1e-12)


@dataclass
class Line(Minimisation):
    """Least squares on 40 rows per client; if ``centred``, the loss is not a mean over rows."""

    clients: int = 3
    centred: bool = False

    def variables(self):
        return Blocks(x={"w": (3,)})

    def client_data(self, client):
        rows = generator(0, "rows", client).standard_normal((40, 4))
        return torch.from_numpy(rows[:, :-1]), torch.from_numpy(rows[:, -1])

    def loss(self, x, batch):
        inputs, targets = batch
        errors = inputs @ x["w"] - targets - 1
        return ((errors - errors.mean()) ** 2).mean() if self.centred else (errors**2).mean()


def test_without_y_phi_is_f():
    simulation = simulated(Line(), ["stationarity", "phi"], rounds=2)
    measured = simulation.evaluate()
    assert measured["phi_gradient"] == measured["gradient_x"] > 0 and measured["phi_residual"] == 0
    assert "gradient_y" not in measured


@pytest.mark.parametrize("centred", [False, True], ids=["mean", "no-mean"])
def test_clients_in_chunks(monkeypatch, centred):
    """Means over rows are evaluated in chunks; other functions are detected and evaluated on all rows."""
    simulation = simulated(Line(centred=centred), rounds=2)
    whole = simulation.full_data()
    expected, value = whole.gradient(simulation.point()), whole.value(simulation.point())
    monkeypatch.setattr(full_data, "ROWS", 16)
    seen = []
    parts = simulation.full_data()

    def gradient(columns, point):
        seen.append(len(columns[0]))
        return FullData._gradient(parts, columns, point)

    monkeypatch.setattr(parts, "_gradient", gradient)
    torch.testing.assert_close(parts.gradient(simulation.point()), expected, rtol=1e-13, atol=1e-13)
    assert parts.value(simulation.point()) == pytest.approx(value, rel=1e-13)
    assert max(seen) == (40 if centred else 16)


def test_values_without_a_loss():
    """The integral along a segment is exact for a quadratic function with f(0) = 0."""
    simulation = simulated(QuadraticNCPL(clients=3), rounds=0)
    x, y = (part.numpy() for part in blocks_of(simulation))
    H, linear = simulation.problem._mean
    point = np.concatenate([x, y])
    value = simulation.full_data().value(simulation.point())
    assert value == pytest.approx(point @ H @ point / 2 + linear @ point, rel=1e-12)


def test_measures_do_not_change_the_run(tmp_path):
    """The points are the same, and every measure has a column."""
    plain = configuration(STEPS, Game(), tmp_path / "plain", eval_every=1)
    sections = {"measures": {"of": ["stationarity", "phi"]}}
    measured = configuration(STEPS, Game(), tmp_path / "measured", eval_every=1, sections=sections)
    results = [run(plain, COMM), run(measured, COMM)]
    assert "measures" not in plain.table()
    for block in "xy":
        np.testing.assert_array_equal(*(np.asarray(result.point[block]) for result in results))
    before, after = (set(result.metrics) for result in results)
    assert after - before == {"gradient_x", "gradient_y", "phi_gradient", "phi_residual"}
    columns = load(tmp_path / "measured").columns
    assert all(columns[name] == Column(name) for name in after - before), "they use no held-out samples"


def test_measures_are_nan_if_the_gradient_is_not_finite():
    """The run's own check ends the run."""
    simulation = simulated(Game(), ["stationarity", "phi", "nuclear_norm"])
    simulation.shared.x = torch.full_like(simulation.shared.x, torch.nan)
    measured = simulation.evaluate()
    assert all(np.isnan(measured[name]) for name in ("gradient_x", "phi_gradient", "nuclear_norm"))


def test_the_tail_of_the_noise():
    """The same values as ``mpifed estimate`` after the same round."""
    simulation = simulated(Game(), ["tail"], batch_size=2, samples=40)
    measured = simulation.evaluate()
    rows = estimate(COMM, simulation.config, Options(points=4, samples=40, of=("noise",)))["rows"]
    (row,) = [row for row in rows if row["client"] == "all" and row["round"] == 1]
    assert 0 < measured["tail_low"] < measured["tail"] < measured["tail_high"]
    assert {name: row[name] for name in TAIL} == {name: measured[name] for name in TAIL}


@pytest.mark.parametrize("name, algorithm, measures, error", [
    ("Saddle", STEPS, dict(of=["Phi"]), "measures.of"),
    ("Saddle", STEPS, dict(of=[]), "measures.of"),
    ("Saddle", STEPS, dict(of=["moreau"]), "measures.ell"),
    ("Saddle", STEPS, dict(of=["potential"]), "smoothing point z .* got FSGDA"),
    ("Saddle", FESSGDA(K=1, eta_xl=1, eta_yl=1), dict(of=["potential"]), "p > 0"),
    ("Saddle", STEPS, dict(of=["tail"]), "tail needs gradient noise: .* oracle.noise"),
    ("AffineGame", LESGD(K=1, eta=1), dict(of=["phi"]), "minimax problem, .* 'operator'"),
    ("WGAN", STEPS, dict(of=["phi"], batch_size=2), "WGAN generates its samples"),
    ("FairClassification", STEPS, dict(of=["stationarity"]), "a set for y needs .*: set measures.ell"),
    ("Saddle", STEPS, dict(of=["stationarity"], ell=3.0), "measures.ell has no effect without a set for y"),
])  # fmt: skip
def test_invalid_measures(name, algorithm, measures, error):
    with pytest.raises((ConfigError, CollectiveError), match=error):
        simulated(problem(name), algorithm=algorithm, **measures)


def refuse(x):
    raise RuntimeError("no answer")


@pytest.mark.parametrize("name, function, error", [
    ("metrics", lambda *point: {"phi_gradient": 0.0}, "measures. has a metric 'phi_gradient' already"),
    ("best_response", refuse, "Game.best_response failed: RuntimeError: no answer"),
])  # fmt: skip
def test_errors_of_user_defined_functions(name, function, error):
    game = Game()
    setattr(game, name, function)
    with pytest.raises(CollectiveError, match=error):
        simulated(game, ["phi"]).evaluate()


def test_a_user_defined_best_response():
    """It is used if clients have equal weights, and its residual shows its accuracy."""
    game = Game()
    game.best_response = lambda x: torch.zeros(2)
    assert simulated(game, ["phi"]).evaluate()["phi_residual"] > 0.1
    assert simulated(game, ["phi"], weights="samples").evaluate()["phi_residual"] <= 1e-10


def test_rounding_grows_with_the_norm():
    small = torch.tensor([0.3, 0.4], dtype=torch.float64)
    assert full_data.rounding(8 * small) == 8 * full_data.rounding(small) > 0
    assert full_data.rounding(small, least=4.0) == full_data.rounding(8 * small)
