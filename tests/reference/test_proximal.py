"""Checks of the plain proximal maps against brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from .proximal import ball, box, l1, nuclear, simplex, zero

ROUNDING = 1e-12  # sums of a few squares, at most some hundreds large


def of_ball(rng, count):
    direction = rng.normal(size=(count, 3))
    return 1.2 * rng.uniform(size=(count, 1)) ** 0.2 * direction / np.linalg.norm(direction, axis=1, keepdims=True)


def of_simplex(rng, count):
    return np.vstack([rng.dirichlet([0.4] * 4, size=count), np.eye(4)])


# prox, dimension, phi of points as rows, members of the set (None: the whole space), distance from the set
MAPS = {
    "zero": (zero, 3, lambda w: np.zeros(len(w)), None, None),
    "l1": (l1(0.7), 3, lambda w: 0.7 * np.abs(w).sum(axis=1), None, None),
    "nuclear": (nuclear(0.7, (2, 3)), 6, lambda w: 0.7 * np.linalg.norm(w.reshape(-1, 2, 3), "nuc", (1, 2)),
                None, None),
    "ball": (ball(1.2), 3, lambda w: np.zeros(len(w)), of_ball, lambda p: np.linalg.norm(p) - 1.2),
    "box": (box(-0.3, 0.8), 3, lambda w: np.zeros(len(w)), lambda rng, count: rng.uniform(-0.3, 0.8, size=(count, 3)),
            lambda p: max(-0.3 - p.min(), p.max() - 0.8)),
    "simplex": (simplex, 4, lambda w: np.zeros(len(w)), of_simplex, lambda p: max(-p.min(), abs(p.sum() - 1))),
}


@pytest.mark.parametrize("weight", [0.0, 0.4, 2.0])
@pytest.mark.parametrize("name", MAPS)
def test_mirror_maps_against_brute_force(name, weight):
    """No sampled point, near or far, has a smaller value than strong convexity allows."""
    prox, d, phi, members, outside = MAPS[name]
    rng = np.random.default_rng(40)
    for scale in (0.2, 1.0, 3.0):  # within the sets and the thresholds, and beyond them
        for _ in range(5):
            v = scale * rng.normal(size=d)
            p = prox(torch.tensor(v), weight).numpy()
            assert outside is None or outside(p) < ROUNDING
            others = 3 * rng.normal(size=(500, d)) if members is None else members(rng, 500)
            # The minimiser p of a 1-strongly convex function is exceeded at w by |w - p|^2 / 2 or more.
            for step in (1.0, 1e-1, 1e-2, 1e-3):
                w = np.vstack([p, p + step * (others - p)])
                value = ((w - v) ** 2).sum(axis=1) / 2 + weight * phi(w)
                assert (value - value[0] - ((w - p) ** 2).sum(axis=1) / 2).min() > -ROUNDING
