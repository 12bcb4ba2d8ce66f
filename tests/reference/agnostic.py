"""AFL and DRFA as plain loops over rounds, clients and steps, from their formulas.

``loss(k, x, (r, j))`` and ``slope(k, x, (r, j))`` return ℓ_k and ∇ℓ_k on sample j = 0, 1, ... of round r = 1, 2, ...
``cohorts[r - 1]`` lists the cohorts of round r, one, or one per phase. ``weights`` has one number per client; unequal
weights change the problem. ``project_x`` is the projection of x. All functions return (x, λ) after each round.
"""

from __future__ import annotations

import math

import torch

from .minimax_baselines import average


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


def exponentiated(lam, step):
    """λ_i exp(step_i), normalised."""
    powers = [value * math.exp(one) for value, one in zip(lam.tolist(), step.tolist())]
    return torch.tensor([power / sum(powers) for power in powers], dtype=lam.dtype)


def afl(
    loss, slope, x, lam, cohorts, weights, *, gamma_x, gamma_y, mirror="euclidean", project_x=free
):
    path, N, w = [], len(weights), relative(weights)
    for r, (cohort,) in enumerate(cohorts, 1):
        gradient, values = torch.zeros_like(x), torch.zeros_like(lam)
        for k in cohort:
            gradient += N / len(cohort) * w[k] * lam[k] * slope(k, x, (r, 0))
            values[k] = N / len(cohort) * w[k] * loss(k, x, (r, 0))
        x, step = project_x(x - gamma_x * gradient), gamma_y * values
        lam = exponentiated(lam, step) if mirror == "entropy" else onto_simplex(lam + step)
        path.append((x, lam))
    return path


def drfa(
    loss, slope, x, lam, cohorts, weights, *, tau, eta, gamma, snapshot, snapshot_weights="lambda", project_x=free
):
    """``snapshot(r, k)`` is the number of local steps before the snapshot of client k in round r."""
    path, N = [], len(weights)
    for r, (members, others) in enumerate(cohorts, 1):
        ends, kept = {}, {}
        for k in members:
            xk = kept[k] = x
            for j in range(tau):
                xk = project_x(xk - eta * slope(k, xk, (r, j)))
                if j + 1 == snapshot(r, k):
                    kept[k] = xk
            ends[k] = xk
        share = {k: N * lam[k] if snapshot_weights == "lambda" else 1.0 for k in members}
        shot = project_x(x + average({k: share[k] * (kept[k] - x) for k in members}, weights))
        x = project_x(x + average({k: N * lam[k] * (ends[k] - x) for k in members}, weights))
        values = {}
        for k in others:  # its next sample of the round
            values[k] = torch.zeros_like(lam)
            values[k][k] = N * loss(k, shot, (r, tau if k in members else 0))
        lam = onto_simplex(lam + tau * gamma * average(values, weights))
        path.append((x, lam))
    return path
