"""scripts/evidence/worst_case.py, which searches for the worst case of Wang & Kale's bounds.

Its steps are those of the package, and the worst cases that it finds are below the bounds.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from games import completed, configuration
from test_variational_theory import Affine

from mpifed.algorithms import LESGD, LIPPAX, LSGD
from mpifed.theory import prescribe

ROOT = Path(__file__).parents[2]
SEARCH = runpy.run_path(str(ROOT / "scripts/evidence/worst_case.py"))
METHODS = {"wang-kale-1": LESGD, "wang-kale-2": LESGD, "wang-kale-3": LIPPAX, "wang-kale-6": LSGD}


def random_game(seed, d, symmetric=False):
    numbers = np.random.default_rng(seed).standard_normal(2 * d * d + 2 * d + 1)
    return SEARCH["game"](numbers, d, symmetric)


@pytest.mark.parametrize("theorem", METHODS)
@pytest.mark.parametrize("K, R", [(1, 2), (2, 2)])
def test_a_run_equals_that_of_the_method(theorem, K, R):
    """Without noise, from z_0 = 0 on two clients; err_D also equals that of the problem."""
    one = random_game(1, 3)
    extra = {"G": 1.0, "H": SEARCH["H"]} if theorem == "wang-kale-3" else {}
    steps = prescribe(theorem, L=1.0, sigma=0, K=K, R=R, M=2, D=1.0, **extra).steps
    points, largest = SEARCH["run"](SEARCH["Case"](theorem, K, R), one, steps)
    problem = Affine(one.A, one.b, np.zeros(3), 2)
    method = METHODS[theorem](K=K, **steps, **({"H": SEARCH["H"]} if extra else {}))
    config = configuration(method, problem, "unused", rounds=R, noise=0.0, batch_size=0, group="all")
    expected = completed(config).output.z.numpy()
    np.testing.assert_allclose(
        points, expected[None], rtol=1e-12, atol=1e-14
    )  # some products in another order
    assert SEARCH["error"](one, expected) == pytest.approx(problem.error(expected, 1.0), rel=1e-12)
    assert largest >= np.linalg.norm(one.b) * (1 - 1e-15)


def test_noise_has_all_outcomes():
    """One step of LSGD, x = -η (b + σ (±1 ± 1)/2 u), has four equally likely outcomes."""
    one, case = random_game(2, 2), SEARCH["Case"]("wang-kale-6", 1, 1, 0.5)
    points, _ = SEARCH["run"](case, one, {"eta": 0.25})
    expected = [-0.25 * (one.b + 0.5 * size * one.u) for size in (-1, 0, 0, 1)]
    np.testing.assert_allclose(sorted(points.tolist()), sorted(map(list, expected)), rtol=0, atol=1e-15)
    spread = SEARCH["Walk"](one, 0.5, 1)
    noise = spread.V(spread.z) - one.b
    assert (noise**2).sum(-1) == pytest.approx(0.25 * np.ones((4, 2)))  # ‖noise‖² = σ²
    assert np.abs(noise.mean(0)).max() < 1e-16


@pytest.mark.parametrize("symmetric", [False, True])
def test_games_are_monotone_of_modulus_1(symmetric):
    for seed, d in enumerate((2, 3, 4) * 5):
        one = random_game(seed, d, symmetric)
        assert np.linalg.norm(one.A, 2) == pytest.approx(1)
        assert np.linalg.eigvalsh(one.A + one.A.T).min() > -1e-14
        assert not symmetric or np.array_equal(one.A, one.A.T)


@pytest.mark.parametrize("theorem, sigma", [*((theorem, 0.0) for theorem in METHODS), ("wang-kale-6", 1.0)])
@pytest.mark.parametrize("K", [1, 2])
def test_no_game_that_a_short_search_finds_exceeds_a_bound(theorem, K, sigma):
    case = SEARCH["Case"](theorem, K, 2 if not sigma else 1, sigma)
    first = SEARCH["worst"](case, 2, 1)[0]
    found = SEARCH["worst"](case, 2, 120)[0]
    assert first < found <= 1


def test_ten_times_the_step_exceeds_the_bound():
    case, one = SEARCH["Case"]("wang-kale-2", 2, 2), random_game(1, 2)
    points, _ = SEARCH["run"](case, one, {"eta": 10.0})
    assert SEARCH["error"](one, points[0]) > prescribe("wang-kale-2", L=1, sigma=0, K=2, R=2, M=2, D=1).bound


@pytest.mark.parametrize("theorem", METHODS)
def test_the_table_of_the_page_is_that_of_the_search(theorem):
    row = "| " + " | ".join(SEARCH["row"](theorem, 300, 3)) + " |"
    page = (ROOT / "docs/theory.md").read_text(encoding="utf-8")
    # An empty cell has one space or two.
    assert re.sub(r"\| +(?=\|)", "| ", row) in re.sub(r"\| +(?=\|)", "| ", page)
