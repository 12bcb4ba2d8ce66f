"""AFL as a plain loop over rounds and clients, from its formulas.

``loss(k, x, (r, j))`` and ``slope(k, x, (r, j))`` return ℓ_k and ∇ℓ_k on sample j = 0, 1, ... of round r = 1, 2, ...
``cohorts[r - 1]`` lists the cohorts of round r, one, or one per phase. ``weights`` has one number per client; unequal
weights w_k multiply ℓ_k by N w_k / Σ w. ``project_x`` is the projection of x. All functions return (x, λ) after each
round.
"""

from __future__ import annotations

import torch


def free(x):
    return x


def onto_simplex(v):
    """Projection onto the simplex by bisection of the multiplier m in Σ max(v - m, 0) = 1."""
    low, high = v.max() - 1, v.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if (v - middle).clamp(min=0).sum() > 1 else (low, middle)
    return (v - high).clamp(min=0)


def relative(weights):
    return [len(weights) * weight / sum(weights) for weight in weights]


def afl(loss, slope, x, lam, cohorts, weights, *, gamma_x, gamma_y, project_x=free):
    path, N, w = [], len(weights), relative(weights)
    for r, (cohort,) in enumerate(cohorts, 1):
        gradient, values = torch.zeros_like(x), torch.zeros_like(lam)
        for k in cohort:
            gradient += N / len(cohort) * w[k] * lam[k] * slope(k, x, (r, 0))
            values[k] = N / len(cohort) * w[k] * loss(k, x, (r, 0))
        x, lam = project_x(x - gamma_x * gradient), onto_simplex(lam + gamma_y * values)
        path.append((x, lam))
    return path
