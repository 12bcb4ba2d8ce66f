"""The loops of ``variates`` and ``fedopt`` against numbers worked out by hand.

Two clients with f_k(x, y) = a_k x²/2 + xy - y²/2 + b_k x, a = (1, 3), b = (0, 2): gradients a_k x + y + b_k
and x - y. Steps are powers of two, so there is no rounding.
"""

import itertools

import pytest
import torch

from . import variates
from .fedopt import fedopt

A, B = (1.0, 3.0), (0.0, 2.0)
X, Y = torch.tensor([1.0], dtype=torch.float64), torch.tensor([2.0], dtype=torch.float64)
BOTH, EQUAL = [[0, 1]], [1.0, 1.0]


def grad(k, x, y, key):
    return A[k] * x + y + B[k], x - y


def numbers(path):
    return [tuple(part.item() for part in point) for point in path]


def test_sagda_by_fresh_variates():
    """At (1, 2) the gradients of x are 3 and 7, mean 5, those of y both -1: every first step goes to
    (-0.25, 1.75). There the gradients are 1.5 and 3, of y -2; corrected they are 3.5, 1 and -2."""
    settings = dict(K=2, eta_xl=0.25, eta_yl=0.25)
    path = variates.sagda(grad, X, Y, [BOTH], EQUAL, **settings)
    assert numbers(path) == [(-0.25 - 0.25 * 2.25, 1.75 - 0.25 * 2.0)]
    (half,) = numbers(variates.sagda(grad, X, Y, [BOTH], EQUAL, eta_xg=0.5, eta_yg=2.0, **settings))
    assert half == (1 + 0.5 * (-0.8125 - 1), 2 + 2 * (1.25 - 2))


def test_sagda_by_stored_variates():
    """K = 1. Round 1 has client 1 alone, to x = 1 - 7/4; c_1 = (7, -1) and c = c_1 / 2. Round 2 has both, at
    (-0.75, 1.75): raw gradients 1 and 1.5, of y -2.5; corrected 4.5 and -2, of y -3 and -2."""
    path = variates.sagda(
        grad, X, Y, [[[1]], BOTH], EQUAL, K=1, eta_xl=0.25, eta_yl=0.25, variates="stored"
    )
    assert numbers(path) == [(-0.75, 1.75), (-0.75 - 0.25 * 1.25, 1.75 - 0.25 * 2.5)]


@pytest.mark.parametrize("option", ["II", "I", "I_sample"])
def test_scaffold(option):
    """With K = 1 both options store the gradient at the round's start. At y = 2 round 1 goes from 1 to
    1 - 5/8 = 0.375, the mean step; c = 5, and with everybody the corrections cancel."""
    path = variates.scaffold(grad, X, Y, [BOTH] * 2, EQUAL, K=1, eta_l=0.125, option=option)
    # Then the gradients are 2.375 and 5.125, mean 3.75.
    assert numbers(path) == [(0.375,), (0.375 - 0.125 * 3.75,)]


def test_scaffold_with_two_steps():
    """Option I stores 3 and 7; option II the mean of two gradients, 3 and 2.25 (at 0.25), 7 and 1.75."""
    for option, own in (("I", (3.0, 7.0)), ("II", (2.625, 4.375))):
        path = variates.scaffold(grad, X, Y, [BOTH, [[0]]], EQUAL, K=2, eta_l=0.25, option=option)
        first = (1 - 0.25 * (3 + 2.25) + 1 - 0.25 * (7 + 1.75)) / 2
        bend, x = (own[1] - own[0]) / 2, first
        for _ in range(2):
            x = x - 0.25 * (x + 2 + bend)
        assert numbers(path) == [(first,), (x,)]


def test_scaffold_in_both_blocks():
    """With one client c_i = c in both rounds for every option: K steps of gradient descent ascent."""
    for option in ("II", "I"):
        path = variates.scaffold_minimax(
            grad, X, Y, [[[0]]] * 2, [1.0], K=1, eta_l=0.25, eta_g=2.0, option=option
        )
        # Gradients 3 and -1, then -0.5 + 1.5 = 1 and -2; the server goes twice as far.
        assert numbers(path) == [(-0.5, 1.5), (-1.0, 0.5)]


@pytest.mark.parametrize("reference, ref", [("last", -0.25), ("average", -0.375)])
def test_coda_plus_turns_to_its_next_stage(reference, ref):
    """Client 0 alone, 1/γ = 1, stages of 2 and then 4 rounds. Stage 1, η = 1/2 about x_ref = 1: from (1, 2) along
    3 and -1 to (-0.5, 1.5), then along 1 - 1.5 and -2 to (-0.25, 0.5). Their average is -0.375."""
    settings = dict(K=1, eta=0.5, T=2, growth=2, decay=2.0, prox=1.0, reference=reference)
    path = numbers(variates.coda_plus(grad, X, Y, [[[0]]] * 3, [1.0], **settings))
    assert path[:2] == [(-0.5, 1.5), (-0.25, 0.5)]
    assert path[2] == (-0.25 - 0.25 * (0.25 + (-0.25 - ref)), 0.5 - 0.25 * 0.75)


def test_lengths_of_stages_in_a_ratio_that_is_no_whole_number():
    """4, 4 · 1.6 = 6.4 and 4 · 1.6² = 10.24 rounds. f = x: the displacements are the stages' steps, halved."""
    settings = dict(K=1, eta=1.0, T=4, growth=1.6, decay=2.0, prox=0.0)
    path = variates.coda_plus(lambda k, x, y, key: (1.0, 0.0), 0.0, 0.0, [[[0]]] * 22, [1.0], **settings)
    xs = [0.0, *(x for x, _ in path)]
    assert [b - a for a, b in itertools.pairwise(xs)] == [-1.0] * 4 + [-0.5] * 6 + [-0.25] * 10 + [-0.125] * 2


@pytest.mark.parametrize("keep", [False, True])
def test_codasca_forgets_its_variates_in_a_new_stage(keep):
    """Stages of 1 and 3 rounds, η = 1/4 and 1/8, and a negligible proximal term. Round 1 has both: the mean step
    5/4 to -0.25, of y 1/4 to 1.75, with c_1 = (7, -1), c = (5, -1). Round 2 has client 1: gradients 3 and -2,
    minus 7 and plus 5 if the variates are kept."""
    path = variates.codasca(
        grad, X, Y, [BOTH, [[1]]], EQUAL, K=1, eta=0.25, T=1, decay=2.0, prox=0.0, keep_variates=keep
    )
    assert numbers(path) == [(-0.25, 1.75), (-0.25 - 0.125 * (1.0 if keep else 3.0), 1.75 - 0.125 * 2.0)]


@pytest.mark.parametrize(
    "server, options, points",
    [
        # Gradient x, η = 1/2, K = 1: displacements -x/2.
        ("average", dict(eta_g=1.0), (0.5, 0.25)),
        ("momentum", dict(eta_g=1.0, beta=0.5), (0.5, 0.0)),  # m = -0.5, then -0.25 - 0.25
        # v = 1 + 1/4 and m = Δ; then Δ = -x/2 with x = 1 - 0.5 / (√1.25 + 1).
        ("adagrad", dict(eta_g=1.0, tau=1.0), (1 - 0.5 / (1.25**0.5 + 1),)),
        ("adam", dict(eta_g=1.0, tau=1.0, beta_1=0.5, beta_2=0.5), (1 - 0.25 / (0.625**0.5 + 1),)),
        ("yogi", dict(eta_g=1.0, tau=1.0, beta_1=0.5, beta_2=0.5), (1 - 0.25 / (0.875**0.5 + 1),)),
        ("yogi", dict(eta_g=1.0, tau=0.25, beta_1=0.5, beta_2=0.5), (1 - 0.25 / (0.1875**0.5 + 0.25),)),
    ],
)
def test_servers(server, options, points):
    """v starts at τ²: below Δ² = 1/4 in the last row, above it in the others."""
    path = fedopt(
        lambda k, x, key: x, X, [[0]] * len(points), [1.0], K=1, eta=lambda t: 0.5, server=server, **options
    )
    assert [x.item() for x in path] == pytest.approx(points, abs=1e-15)  # a root and a division
