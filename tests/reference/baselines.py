"""The methods of ``tests/plugins`` as plain loops over rounds, clients and steps, from their formulas alone.

``grad(k, x, y, (r, j))`` gives both gradients of client k on sample j = 0, 1, ... of its round r = 1, 2, ...
or, with j ``None``, on all its data. ``cohorts[r - 1]`` lists the cohorts of round r: one, or two where the
second phase has its own. ``weights`` has one number a client. All return the point after each round.
"""

from __future__ import annotations


def average(values: dict, weights):
    """Σ w_k v_k / Σ w_k over the clients in ``values``."""
    return sum(weights[k] * value for k, value in values.items()) / sum(weights[k] for k in values)


def fedavg(grad, x, y, cohorts, weights, *, K, eta, eta_g):
    path = []
    for r, (cohort,) in enumerate(cohorts, 1):
        ends = {}
        for k in cohort:
            ends[k] = x
            for j in range(K):
                ends[k] = ends[k] - eta * grad(k, ends[k], y, (r, j))[0]
        x = x + eta_g * (average(ends, weights) - x)
        path.append((x,))
    return path


def scaffold(grad, x, y, cohorts, weights, *, K, eta, eta_g):
    path, c = [], 0 * x
    own = [0 * x for _ in weights]
    for r, (cohort,) in enumerate(cohorts, 1):
        ends, step_of_c = {}, 0
        for k in cohort:
            ends[k] = x
            for j in range(K):
                ends[k] = ends[k] - eta * (grad(k, ends[k], y, (r, j))[0] - own[k] + c)
            new = own[k] - c + (x - ends[k]) / (K * eta)
            step_of_c = step_of_c + weights[k] / sum(weights) * (new - own[k])  # 1/N where all weigh the same
            own[k] = new
        x, c = x + eta_g * (average(ends, weights) - x), c + step_of_c
        path.append((x,))
    return path


def codasca(grad, x, y, cohorts, weights, *, K, eta, pull, stage, eta_g):
    path, cx, cy, ref = [], 0 * x, 0 * y, x
    own_x, own_y = [0 * x for _ in weights], [0 * y for _ in weights]
    for r, (cohort,) in enumerate(cohorts, 1):
        xs, ys, step_x, step_y = {}, {}, 0, 0
        for k in cohort:
            xs[k], ys[k] = x, y
            for j in range(K):
                gx, gy = grad(k, xs[k], ys[k], (r, j))
                xs[k] = xs[k] - eta * (gx + pull * (xs[k] - ref) - own_x[k] + cx)
                ys[k] = ys[k] + eta * (gy - own_y[k] + cy)
            new_x = own_x[k] - cx + (x - xs[k]) / (K * eta)
            new_y = own_y[k] - cy + (ys[k] - y) / (K * eta)
            share = weights[k] / sum(weights)
            step_x, step_y = step_x + share * (new_x - own_x[k]), step_y + share * (new_y - own_y[k])
            own_x[k], own_y[k] = new_x, new_y
        x, y = x + eta_g * (average(xs, weights) - x), y + eta_g * (average(ys, weights) - y)
        cx, cy = cx + step_x, cy + step_y
        if r % stage == 0:
            ref = x
        path.append((x, y))
    return path


def fed_norm_sgda(grad, x, y, cohorts, weights, *, tau, eta, gamma, decay, project=None):
    path, n = [], len(weights)
    w = [weight / sum(weights) for weight in weights]
    for r, (cohort,) in enumerate(cohorts, 1):
        step_x, step_y = 0, 0
        for k in cohort:
            xk, yk, sum_x, sum_y, sum_a = x, y, 0, 0, 0
            for j in range(tau[k]):
                a = decay**j
                gx, gy = grad(k, xk, yk, (r, j))
                xk, yk = xk - eta[0] * a * gx, yk + eta[1] * a * gy
                sum_x, sum_y, sum_a = sum_x + a * gx, sum_y + a * gy, sum_a + a
            w_tilde = w[k] * n / len(cohort)
            step_x, step_y = step_x + w_tilde * sum_x / sum_a, step_y + w_tilde * sum_y / sum_a
        tau_eff = sum(tau) / n
        x, y = x - tau_eff * gamma[0] * step_x, y + tau_eff * gamma[1] * step_y
        y = project(y) if project else y
        path.append((x, y))
    return path
