"""STEM as its box prints it, a plain loop over steps and clients.

``grad(k, x, y, (r, j))`` returns both gradients of client k on sample j of round r; y is constant, and the gradient
in x is used. Sample 0, 1, ..., I - 1 of round 0 form the start batch. Sample s mod I of round s div I + 1 is ξ_{s+1},
s = 1, 2, ... ``eta(t)`` is η_t and ``a(t)`` is a_{t+1}. ``project`` follows every step; the paper has no sets.
"""

from __future__ import annotations

from reference.minimax_baselines import average


def free(x):
    return x


def stem(grad, x, y, cohorts, weights, *, q, eta, beta, project=free):
    """All clients participate; ``q`` is the period I, and ``beta(t)`` is a_{t+1}."""
    path, clients, period, a = [], range(len(weights)), q, beta
    batch = {k: sum(grad(k, x, y, (0, j))[0] for j in range(period)) / period for k in clients}
    xs, d = dict.fromkeys(clients, x), dict.fromkeys(clients, average(batch, weights))
    for t in range(1, len(cohorts) * period + 1):
        old = xs
        if t % period == 0:
            mean_x, mean_d = average(xs, weights), average(d, weights)
            xs, d = dict.fromkeys(clients, mean_x), dict.fromkeys(clients, mean_d)
        xs = {k: project(xs[k] - eta(t) * d[k]) for k in clients}
        key = t // period + 1, t % period
        new_gradient = {k: grad(k, xs[k], y, key)[0] for k in clients}
        old_gradient = {k: grad(k, old[k], y, key)[0] for k in clients}  # the point before the average
        d = {k: new_gradient[k] + (1 - a(t)) * (d[k] - old_gradient[k]) for k in clients}
        if t % period == 0:
            path.append((xs[0],))
    return path
