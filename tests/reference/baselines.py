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


