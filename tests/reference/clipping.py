"""FAT-Clipping and Bi²Clip as plain loops over rounds, clients and steps, from their formulas.

``grad(k, x, y, (r, j))`` returns both gradients of client k on sample j = 0, 1, ... of round r = 1, 2, ...
``cohorts[r - 1]`` has one list, the clients of round r; ``weights`` has one number per client. ``lam(r)`` is the
threshold of round r, ``eta(t)`` the rate of step t. ``project`` acts after each local step and at the server. All return
the point after each round.
"""

from __future__ import annotations

import math

import torch

from .cross_device import FREE, averages, free
from .minimax_baselines import average


def clip(v, lam):
    norm = math.sqrt(sum(float(one) ** 2 for one in v))
    return v * min(1.0, lam / norm) if norm else v


def fat_clipping(
    grad, x, y, cohorts, weights, *, K, eta_xl, eta_yl, lam, eta_xg=1.0, eta_yg=1.0, per="iteration", project=FREE
):
    path = []
    for r, (cohort,) in enumerate(cohorts, 1):
        sums = {}
        for k in cohort:
            xk, yk, sum_x, sum_y = x, y, 0 * x, 0 * y
            for j in range(K):
                gx, gy = grad(k, xk, yk, (r, j))
                if per == "iteration":
                    gx, gy = clip(gx, lam(r)), clip(gy, lam(r))
                t = (r - 1) * K + j + 1
                new_x, new_y = project[0](xk - eta_xl(t) * gx), project[1](yk + eta_yl(t) * gy)
                # The gradients if there are no sets.
                sum_x, sum_y = sum_x + (xk - new_x) / eta_xl(t), sum_y + (new_y - yk) / eta_yl(t)
                xk, yk = new_x, new_y
            steps = range((r - 1) * K + 1, r * K + 1)
            mean_eta_x, mean_eta_y = (sum(map(eta, steps)) / K for eta in (eta_xl, eta_yl))
            sums[k] = (x - xk, yk - y)
            if per == "round":
                sums[k] = (mean_eta_x * clip(sum_x, lam(r)), mean_eta_y * clip(sum_y, lam(r)))
        mean_x, mean_y = averages(sums, weights)
        x, y = project[0](x - eta_xg * mean_x), project[1](y + eta_yg * mean_y)
        path.append((x, y))
    return path


def bi_clip(v, d, u):
    result = []
    for one in v.tolist():
        size = d if abs(one) <= d else u if abs(one) >= u else abs(one)
        result.append(0.0 if one == 0 else math.copysign(size, one))
    return torch.tensor(result, dtype=v.dtype)


def bi2_clip(grad, x, y, cohorts, weights, *, K, eta, u, u_g, d=0.0, d_g=0.0, eta_g=1.0, project=free):
    """``y`` is the point at which the gradients of x are evaluated."""
    path = []
    for r, (cohort,) in enumerate(cohorts, 1):
        ends = {}
        for k in cohort:
            ends[k] = x
            for j in range(K):
                g = bi_clip(grad(k, ends[k], y, (r, j))[0], d, u)
                ends[k] = project(ends[k] - eta((r - 1) * K + j + 1) * g)
        x = project(x + eta_g * bi_clip(average(ends, weights) - x, d_g, u_g))
        path.append((x,))
    return path
