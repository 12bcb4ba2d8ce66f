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
