"""Theorems in jobs: prescribed settings, sources of constants, stored tables, and invalid settings."""

import copy
import math

import numpy as np
import pytest
import torch
from oracles import prepared
from refusals import refusal

from mpifed import Config, run
from mpifed.base.errors import ConfigError
from mpifed.core.problem import as_family
from mpifed.parallel.comm import SerialComm
from mpifed.problems import PROBLEMS
from mpifed.storage.results import load
from mpifed.theory import prescribe

GAME = {
    "rounds": 20,
    "algorithm": {"name": "LESGD", "K": 5, "eta": {"name": "theorem", "of": "wang-kale-2"}},
    "problem": {"name": "AffineGame", "clients": 4, "d": 4, "radius": 3.0},
    "oracle": {"noise": {"name": "gaussian", "scale": 0.1}},
}


def changed(table, *changes):
    table = copy.deepcopy(table)
    for key, value in changes:
        *path, last = key.split(".")
        inner = table
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return table


def test_constants_come_from_job_and_problem():
    config = Config.from_table(GAME)
    problem = prepared(PROBLEMS["AffineGame"](clients=4, d=4, radius=3.0))
    said = prescribe("wang-kale-2", L=problem.L, sigma=0.1 * 2, K=5, R=20, M=4, D=3.0)
    assert config.algorithm.eta(1) == pytest.approx(said.steps["eta"], rel=1e-14)
    assert (config.theory.pop("of"), config.theory.pop("times")) == ("wang-kale-2", {"eta": 1})
    assert config.theory == pytest.approx({"L": problem.L, "sigma": 0.2, "K": 5, "R": 20, "M": 4, "D": 3.0})


def test_given_constants_take_precedence():
    table = changed(GAME, ("algorithm.eta.L", 7.0), ("theory.sigma", 0.5), ("theory.D", 2.0))
    config = Config.from_table(table)
    said = prescribe("wang-kale-2", L=7.0, sigma=0.5, K=5, R=20, M=4, D=2.0)
    assert config.algorithm.eta(1) == said.steps["eta"]


def test_theorem_as_text_with_theory_of():
    table = changed(GAME, ("algorithm.eta", "theorem"), ("theory", {"of": "wang-kale-2"}))
    assert Config.from_table(table).algorithm == Config.from_table(GAME).algorithm


@pytest.mark.parametrize("times", [20, 0.5])
def test_a_multiple_of_a_step(times):
    once, often = (Config.from_table(changed(GAME, ("algorithm.eta.times", n))) for n in (1, times))
    assert often.algorithm.eta(1) == pytest.approx(times * once.algorithm.eta(1), rel=1e-15)
    assert often.theory == once.theory | {"times": {"eta": times}}


def test_theorem_with_given_steps():
    config = Config.from_table(changed(GAME, ("algorithm.eta", 0.3), ("theory", {"of": "wang-kale-2"})))
    assert config.algorithm.eta(1) == 0.3 and config.theory["of"] == "wang-kale-2"


def test_schedules_and_several_settings():
    """FGDA's mixing step and weights are schedules; K is its number of clients, T counts steps."""
    keys = ("gamma", "lam", "eta", "alpha", "beta")
    given = {"of": "huang-2024-2", "delta_x": 0.1, "delta_y": 0.1, "gap": 2.0, "inner": 1.0}
    table = {
        "rounds": 30,
        "algorithm": {"name": "FGDA", "q": 4} | dict.fromkeys(keys, "theorem"),
        "problem": {"name": "QuadraticNCPL", "clients": 6},
        "theory": given,
    }
    config = Config.from_table(table)
    problem = prepared(PROBLEMS["QuadraticNCPL"](clients=6))
    constants = {key: value for key, value in given.items() if key != "of"}
    said = prescribe("huang-2024-2", L=problem.ell_clients, mu=0.1, sigma=0, K=6, q=4, T=120, **constants)
    assert (config.algorithm.gamma(1), config.algorithm.lam(1)) == (said.steps["gamma"], said.steps["lam"])
    assert config.algorithm.eta.offset == said.steps["eta"]["offset"]
    assert config.theory["T"] == 120
    assert config.algorithm.alpha.c == said.steps["alpha"]["c"]
    assert config.algorithm.beta.c == said.steps["beta"]["c"]


@pytest.mark.parametrize("noise, sigma", [
    (None, 0.0),
    ({"name": "gaussian", "scale": 0.3}, 0.3 * 2),
    ({"name": "student_t", "nu": 4.0, "scale": 0.3}, 0.3 * math.sqrt(2 * 4)),
])  # fmt: skip
def test_sigma_of_noise_includes_the_dimension(noise, sigma):
    table = changed(GAME, ("oracle", {"noise": noise} if noise else {}))
    assert Config.from_table(table).theory["sigma"] == pytest.approx(sigma)


def test_table_rebuilds_the_job_without_the_problem(tmp_path):
    config = Config.from_table(changed(GAME, ("run.out", str(tmp_path / "run")), ("run.progress", False)))
    table = config.table()
    assert table["algorithm"]["eta"] == config.algorithm.eta(1)
    again = Config.from_table(changed(table, ("problem.smooth", 50.0)))
    assert again.algorithm == config.algorithm and again.theory == config.theory
    assert Config.from_table(table).table() == table
    result = run(config, SerialComm())
    stored = load(result.path).config
    assert stored["theory"] == table["theory"] and stored["algorithm"]["eta"] == config.algorithm.eta(1)


def test_changed_step_is_not_attributed_to_the_theorem():
    table = Config.from_table(GAME).table()
    assert table["theory"]["times"] == {"eta": 1}
    assert "times" not in Config.from_table(changed(table, ("algorithm.eta", 0.3))).theory


def test_resumed_run_keeps_its_step(tmp_path):
    table = changed(GAME, ("run.out", str(tmp_path / "run")), ("run.progress", False))
    first = run(table, SerialComm())
    longer = run(changed(first.config, ("rounds", 25)), SerialComm())
    assert longer.config["algorithm"] == first.config["algorithm"]


@pytest.mark.parametrize("changes, words", [
    ([("algorithm.eta.of", "wang-kale-9")], "theory.of: unknown theorem 'wang-kale-9': did you mean"),
    ([("algorithm.eta", "theorem")], 'theory.of is missing, e.g. theory.of = "wang-kale-1"'),
    ([("algorithm.eta.of", "wang-kale-6")], "wang-kale-6 is about LSGD, not LESGD, whose theorems are wang"),
    ([("algorithm.gamma", 0.1)], "algorithm.gamma: wang-kale-2 is about LESGD without gamma: leave it out"),
    ([("algorithm.eta.l", 1.0)], "wang-kale-2 has no constant 'l': "),
    ([("algorithm.eta.L", "big")], "theory: wang-kale-2: L: expected a finite number >= 0, got 'big'"),
    ([("algorithm.eta.times", -1)], "algorithm.eta.times: expected a number > 0"),
    ([("algorithm.K", {"name": "theorem", "of": "wang-kale-2"})], "does not prescribe 'K': expected one of"),
    ([("theory", "wang-kale-2")],
     "[theory]: expected a table with the name of a theorem, of = ..., got 'wang"),
    ([("theory.times", 3)], "theory.times: expected a table of settings and factors, got 3"),
    ([("theory.of", "wang-kale-1")], "two values of of: 'wang-kale-1' and 'wang-kale-2'"),
    ([("algorithm.eta.of", "wang-kale-24")], "wang-kale-24 needs xi, which neither the job nor the problem"),
    ([("problem", {"name": "Bilinear", "phi": {"name": "l1", "lam": 0.1}})], "wang-kale-2 needs D, which"),
    ([("oracle.noise", {"name": "student_t", "nu": 1.5})], "wang-kale-2 needs sigma, which"),
])  # fmt: skip
def test_incomplete_theory_is_refused(changes, words):
    assert words in refusal(lambda: Config.from_table(changed(GAME, *changes)))


def test_errors_of_the_problem_are_reported(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from mpifed.problems import AffineGame\n"
        "class Mine(AffineGame):\n"
        "    def constants(self):\n"
        "        raise RuntimeError('not known')\n"
    )
    with pytest.raises(ConfigError, match="the constants of Mine cannot be computed: RuntimeError: not kn"):
        Config.from_table(changed(GAME, ("problem", {"name": f"{tmp_path / 'mine.py'}:Mine"})))


def test_theory_from_python_must_be_complete():
    config = Config.from_table(GAME)
    settings = dict(algorithm=config.algorithm, problem=config.problem)
    assert Config(**settings, theory=config.theory).theory == config.theory
    with pytest.raises(ConfigError, match="wang-kale-2 needs L"):
        Config(**settings, theory={"of": "wang-kale-2", "sigma": 1.0})


def jacobian(problem, client):
    """Of a client's gradients or operator at the start, by differences, [d, d]."""
    batch = tuple(column[None] for column in problem.client_data(client))
    game = as_family(problem, "operator")
    start = game.initial(np.random.default_rng(0))["z"].double()

    def field(z):
        if game is problem:
            return problem.operator(z[None], batch)[0]
        gx, gy = problem.gradients(*(part[None] for part in z.split(game.split)), batch)
        return torch.cat([gx[0], gy[0]])

    steps = torch.eye(len(start), dtype=torch.float64) * 1e-4
    return torch.stack([(field(start + h) - field(start - h)) / 2e-4 for h in steps], dim=1).numpy()


@pytest.mark.parametrize("name, settings, rel", [
    # Central differences of a quadratic are exact but for the rounding of numbers of 10 over 1e-4.
    *((name, {"heterogeneity": 0.5}, 1e-8) for name in ("AffineGame", "Bilinear", "L1BoxBilinear")),
    ("QuadraticNCPL", {"heterogeneity": 0.5}, 1e-8),
    ("Saddle", {"t_max": 3.0, "tau": 0.7}, 1e-8),
    ("TwoSidedPL", {"scaling": 0.5, "scale": 0.0}, 1e-6),  # the largest curvature is at 0, the start
])  # fmt: skip
def test_lipschitz_constants_of_problems(name, settings, rel):
    problem = prepared(PROBLEMS[name](clients=3, **settings), 1)
    largest = max(np.linalg.norm(jacobian(problem, client), 2) for client in range(3))
    assert problem.constants()["L"] == pytest.approx(largest, rel=rel)


def test_the_bounds_of_the_composite_game_hold_on_its_box():
    problem = prepared(PROBLEMS["L1BoxBilinear"](dx=3, dy=2, clients=2), 1)
    known = problem.constants()
    points = problem.bound * np.random.default_rng(0).choice([-1.0, 1.0], (500, 5))
    assert max(np.linalg.norm(problem.mean_operator(z)) for z in points) <= known["G"]
    assert max(np.linalg.norm(z - problem._start) for z in points) == pytest.approx(known["D"])
