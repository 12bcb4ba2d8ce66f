"""Checks of the alternating loop of Smoothed-GDA: rounds worked out by hand, identities with related methods.

Tolerance: 1e-12 where both sides are the same real numbers of order 1, reached by different float64 operations.
"""

from __future__ import annotations

import pytest
import torch

from .fess_gda import smoothed_gda
from .smoothed_alternating import smoothed_alternating_gda
from .test_reference import X1, Y1, Game, ball, distance

ROUNDING = 1e-12
VISIBLE = 1e-4  # far above rounding, for what must differ
RATES = dict(rounds=6, eta_x=0.06, eta_y=0.1)


def run(game, **options):
    settings = RATES | dict(p=0.8, beta=0.3) | options
    return smoothed_alternating_gda(game.grad, len(game.F), X1, Y1, **settings)


@pytest.mark.parametrize("top", [None, 2.5])
def test_two_rounds_by_hand(top):
    """f_1 = x²/2 + 2xy and f_2 = x²/2 - y²/2 + 4y from (1, 2), weights 1 and 3; + t is added to the second ∂_y.

    Mean gradients x + y/2 and x/2 - 3y/4 + 3 + 3t/4; steps .5 and 1, p = .5, β = .25.
    """

    def grad(i, x, y, t):
        return (x + 2 * y, 2 * x) if i == 0 else (x, 4 - y + t)

    def below(y):
        return y if top is None else y.clamp(max=top)

    rates = dict(rounds=2, eta_x=0.5, eta_y=1.0, p=0.5, beta=0.25, weights=[1.0, 3.0], project_y=below)
    first, second = smoothed_alternating_gda(grad, 2, [1.0], [2.0], **rates)
    # x = 1 - .5 (1 + 1), y = 2 + (0 - 1.5 + 3 + .75), z = 1 - .25
    y = 4.25 if top is None else 2.5
    assert [float(value) for value in first] == pytest.approx([0, y, 0.75], rel=0, abs=ROUNDING)
    # x = 0 - .5 (y / 2 - .5 · .75), y ← y + x / 2 - 3 y / 4 + 3 + 1.5, z = .75 + .25 (x - .75)
    x = -0.5 * (y / 2 - 0.375)
    y_next = y / 4 + x / 2 + 4.5
    expected = [x, y_next if top is None else min(y_next, top), 0.75 * 0.75 + 0.25 * x]
    assert [float(value) for value in second] == pytest.approx(expected, rel=0, abs=ROUNDING)


def test_a_game_whose_blocks_do_not_meet_cannot_tell_the_orders_apart():
    game = Game(3, 0.0)
    game.F = [torch.diag(torch.diag(F)) for F in game.F]

    def full(x, y):
        parts = [game.grad(k, x, y, 1) for k in range(3)]
        return sum(gx for gx, _ in parts) / 3, sum(gy for _, gy in parts) / 3

    options = RATES | dict(p=0.8, beta=0.3, project_y=ball)
    assert distance(run(game, project_y=ball), smoothed_gda(full, X1, Y1, **options)) < ROUNDING
    game.F = Game(3, 0.0).F
    assert distance(run(game, project_y=ball), smoothed_gda(full, X1, Y1, **options)) > VISIBLE


@pytest.mark.parametrize("smoothing", [dict(p=0.0, beta=0.3), dict(p=0.8, beta=1.0)])
def test_without_a_pull_it_is_alternating_descent_ascent(smoothing):
    """p = 0 and β = 1 give the same x and y, as does a step of x alone followed by one of y alone."""
    game, x, y = Game(3, 0.3), X1, Y1
    for t, point in enumerate(run(game, project_x=ball, **smoothing), start=1):
        x = ball(x - 0.06 * sum(game.grad(k, x, y, t)[0] for k in range(3)) / 3)
        y = y + 0.1 * sum(game.grad(k, x, y, t)[1] for k in range(3)) / 3
        assert distance([point[:2]], [(x, y)]) < ROUNDING
    assert distance(run(game), run(game, **smoothing)) > VISIBLE


def test_equal_weights_are_no_weights():
    game = Game(3, 0.3)
    assert distance(run(game), run(game, weights=[2.0] * 3)) < ROUNDING
    assert distance(run(game), run(game, weights=[1.0, 2.0, 3.0])) > VISIBLE
