"""Checks of the loops for Shen et al. 2024: rounds worked out by hand, identities, and the limit without
noise.

Tolerance: 1e-12 where both sides are the same real numbers of order 1 reached by different float64
operations.
"""

from __future__ import annotations

import pytest
import torch

from .fess_gda import fess_gda, fsgda, smoothed_gda
from .local_sgda import local_sgda
from .test_reference import X1, Y1, Game, ball, clamp, local_gda_limit, scalar_grad

ROUNDING = 1e-12
VISIBLE = 1e-4  # far above rounding, for what must differ
LOCAL = dict(eta_xl=0.06, eta_yl=0.1)
COHORTS = [[0], [2, 1], [0, 1, 2], [2], [1, 0], [1]]
RATES = dict(K=3, rounds=6, eta_xg=1.3, eta_yg=1.7, **LOCAL)


def fess(game, **options):
    return fess_gda(game.grad, len(game.F), X1, Y1, **(RATES | dict(p=0.8, beta=0.3) | options))


def fs(game, **options):
    return fsgda(game.grad, len(game.F), X1, Y1, **(RATES | options))


def distance(left, right):
    """The largest coordinate difference of x and y in any round."""
    assert len(left) == len(right)
    gaps = [(a - b).abs().max() for one, other in zip(left, right) for a, b in zip(one[:2], other[:2])]
    return float(torch.stack(gaps).max())


# By hand: two clients, scalars, start (1, 2), K = 2, local rates .1, .2, server rates 1.5, 2, p = .5, beta =
# .25


def by_hand(rounds=1, **options):
    rates = dict(K=2, eta_xl=0.1, eta_yl=0.2, eta_xg=1.5, eta_yg=2.0, p=0.5, beta=0.25)
    path = fess_gda(scalar_grad, 2, [1.0], [2.0], rounds=rounds, **(rates | options))
    return [pytest.approx(tuple(float(value) for value in point), rel=0, abs=ROUNDING) for point in path]


def test_two_rounds_by_hand():
    # Step 1: x = (1 - .32, 1 - .11) = (.68, .89), y = (2 - .16, 2 - .98) = (1.84, 1.02)
    # Step 2: x = (.68 - .302, .89 - .135) = (.378, .755), y = (1.84 - .132, 1.02 - .646) = (1.708, .374)
    # Server: 1 + 1.5 (.5665 - 1), 2 + 2 (1.041 - 2), 1 + .25 (.34975 - 1)
    x, y, z = 0.34975, 0.082, 0.8374375
    # Step 3: (x + y - .4, x - y - .4) and (3 x - y + .2, -x - 2 y + .2)
    x0, y0 = x - 0.1 * (0.43175 - 0.4), y + 0.2 * (0.26775 - 0.4)
    x1, y1 = x - 0.1 * (0.96725 + 0.2), y + 0.2 * (-0.51375 + 0.2)
    # Step 4: samples .6 and -.1
    x0, y0 = x0 - 0.1 * (x0 + y0 + 0.6), y0 + 0.2 * (x0 - y0 + 0.6)
    x1, y1 = x1 - 0.1 * (3 * x1 - y1 - 0.1), y1 + 0.2 * (-x1 - 2 * y1 - 0.1)
    x_next = x + 1.5 * ((x0 + x1) / 2 - x) - 0.1 * 1.5 * 2 * 0.5 * (x - z)
    y_next = y + 2.0 * ((y0 + y1) / 2 - y)
    assert by_hand(rounds=2) == [(x, y, z), (x_next, y_next, 0.75 * z + 0.25 * x_next)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # Client 1 alone: (.755, .374)
        ({"cohorts": [[1]]}, (1 - 1.5 * 0.245, 2 - 2 * 1.626, 1 - 0.25 * 1.5 * 0.245)),
        # y = (1.5, 1.2); step 2: x = (.68 - .268, .89 - .117), y = (1.5 - .064, .482 -> 1.2); y_1 = .636 ->
        # 1.2
        ({"project_y": clamp}, (1 - 1.5 * 0.4075, 1.2, 1 - 0.25 * 1.5 * 0.4075)),
        # The same with the server rate .5: y_1 = 1.659 -> 1.5, as the start lies outside
        ({"project_y": clamp, "eta_yg": 0.5}, (1 - 1.5 * 0.4075, 1.5, 1 - 0.25 * 1.5 * 0.4075)),
        # x >= .8: x = (.8, .89), y = (1.84, 1.02); step 2: x = (.486 -> .8, .755 -> .8), y = (1.84 - .108,
        # .374); x_1 = .7 -> .8
        ({"project_x": lambda x: x.clamp(min=0.8)}, (0.8, 2 + 2 * (1.053 - 2), 0.95)),
    ],
)
def test_cohort_and_projections_by_hand(options, expected):
    assert by_hand(**options) == [expected]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (0.34975, 0.082)),
        ({"cohorts": [[1]]}, (1 - 1.5 * 0.245, 2 - 2 * 1.626)),
        ({"project_y": clamp}, (1 - 1.5 * 0.4075, 1.2)),
    ],
)
def test_fsgda_round_by_hand(options, expected):
    rates = dict(eta_xl=0.1, eta_yl=0.2, eta_xg=1.5, eta_yg=2.0)
    ((x, y),) = fsgda(scalar_grad, 2, [1.0], [2.0], K=2, rounds=1, **rates, **options)
    assert (float(x), float(y)) == pytest.approx(expected, rel=0, abs=ROUNDING)


def test_smoothed_gda_by_hand():
    # Gradients (x + y, x - y); x_1 = 1 - .1 * 3, y_1 = 2 - .2, z_1 = 1 - .25 * .3;
    # x_2 = .7 - .1 (2.5 + .5 (.7 - .925)), y_2 = 1.8 + .2 (.7 - 1.8), z_2 = .925 + .25 (x_2 - .925)
    rates = dict(rounds=2, eta_x=0.1, eta_y=0.2, p=0.5, beta=0.25)
    path = smoothed_gda(lambda x, y: (x + y, x - y), [1.0], [2.0], **rates)
    expected = [0.7, 1.8, 0.925, 0.46125, 1.58, 0.8090625]
    assert torch.cat([torch.cat(point) for point in path]).tolist() == pytest.approx(expected, rel=0, abs=ROUNDING)
    path = smoothed_gda(lambda x, y: (x + y, x - y), [1.0], [2.0], project_y=clamp, **rates)
    assert [float(y) for x, y, z in path] == pytest.approx([1.5, 1.34], rel=0, abs=ROUNDING)  # 1.5 + .2 (.7 - 1.5)


# Identities


@pytest.mark.parametrize("sets", [{}, {"project_y": ball}, {"project_x": ball, "project_y": ball}])
@pytest.mark.parametrize("cohorts", [None, COHORTS])
def test_without_a_proximal_term_fess_gda_is_fsgda(sets, cohorts):  # A1, A4
    game, options = Game(3, 0.3), dict(cohorts=cohorts, **sets)
    right = fs(game, **options)
    assert distance(fess(game, p=0.0, **options), right) < ROUNDING
    assert distance(fess(game, **options), right) > VISIBLE
    path = fess(game, beta=1.0, **options)
    assert distance(path, right) < ROUNDING
    assert max(float((x - z).abs().max()) for x, y, z in path) < ROUNDING


@pytest.mark.parametrize("sets", [{}, {"project_y": ball}])
@pytest.mark.parametrize("cohorts", [None, COHORTS])
def test_without_server_rates_it_is_local_sgda(sets, cohorts):  # A2
    game, project = Game(3, 0.3), sets.get("project_y")
    rates = dict(q=3, rounds=6, eta_x=lambda t: 0.06, eta_y=lambda t: 0.1)
    right = local_sgda(game.grad, 3, X1, Y1, project=project, cohorts=cohorts, **rates)
    options = dict(eta_xg=1.0, eta_yg=1.0, cohorts=cohorts, **sets)
    assert distance(fess(game, p=0.0, **options), right) < ROUNDING
    assert distance(fs(game, **options), right) < ROUNDING
    assert distance(fs(game, **(options | dict(eta_yg=0.7))), right) > VISIBLE


@pytest.mark.parametrize("project", [None, ball])
def test_one_client_and_step_is_smoothed_gda(project):  # A3, A3c, A3d
    game = Game(1, 0.0)
    common = dict(rounds=6, p=0.8, beta=0.3, project_y=project)

    def both(eta_yg):
        right = smoothed_gda(
            lambda x, y: game.grad(0, x, y, 0), X1, Y1, eta_x=0.5 * 0.4, eta_y=0.6 * eta_yg, **common
        )
        rates = dict(eta_xl=0.5, eta_yl=0.6, eta_xg=0.4, eta_yg=eta_yg)
        return fess(game, K=1, **rates, **common), right

    left, right = both(1.0)
    assert distance(left, right) < ROUNDING
    assert max(float((p[2] - s[2]).abs().max()) for p, s in zip(left, right)) < ROUNDING
    gap = distance(*both(0.5))
    assert gap < ROUNDING if project is None else gap > VISIBLE


def test_smoothing_off_is_gda():
    game, rates = Game(1, 0.0), dict(rounds=6, eta_x=0.06, eta_y=0.1)
    right = fs(game, K=1, eta_xg=1.0, eta_yg=1.0)
    for p, beta in [(0.0, 0.3), (0.8, 1.0)]:
        path = smoothed_gda(lambda x, y: game.grad(0, x, y, 0), X1, Y1, p=p, beta=beta, **rates)
        assert distance(path, right) < ROUNDING


def test_projected_points_stay_in_their_sets():
    """A coefficient eta_xl eta_xg K p above 1 overshoots z; only a projection afterwards keeps x in X."""
    path = fess(Game(3, 0.3), p=8.0, project_x=ball, project_y=ball)
    norms = [float(torch.linalg.vector_norm(value)) for point in path for value in point[:2]]
    assert max(norms) < 0.5 + ROUNDING


@pytest.mark.parametrize(("p", "beta", "server"), [(0.0, 0.5, 1.0), (0.8, 0.3, 1.0), (2.0, 0.9, 1.4)])
def test_limit_does_not_depend_on_smoothing_or_server_rates(p, beta, server):
    """At a fixed point z = x, and x is the fixed point of the average of the local maps, as in local GDA."""
    game = Game(3, 0.0)
    path = fess(game, rounds=400, p=p, beta=beta, eta_xg=server, eta_yg=server)
    limit = local_gda_limit(game, 3, LOCAL["eta_xl"], LOCAL["eta_yl"])
    assert float((torch.cat(path[-1][:2]) - limit).norm()) < 1e-10  # 400 contracting rounds leave rounding only
    assert float((limit - game.saddle()).norm()) > 1e-2  # the drift of these clients is visible at this step size
