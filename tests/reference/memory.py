"""FedVARP and MIFA as plain loops, with the tables of all clients at the server, from their formulas.

``grad(k, x, y, (r, j))`` returns both gradients of client k on sample j = 0, 1, ... of round r, 0 for the start.
``cohorts[r - 1]`` has one list, the clients of round r; ``weights`` has one number per client. ``eta(r)`` is the step
size of round r. Both return the point after each round.
"""

from __future__ import annotations

from .cross_device import averages


def displacement(grad, k, x, y, r, K, eta):
    xk, yk = x, y
    for j in range(K):
        gx, gy = grad(k, xk, yk, (r, j))
        xk, yk = xk - eta * gx, yk + eta * gy
    return xk - x, yk - y


def fedvarp(grad, x, y, cohorts, weights, *, K, eta, eta_g=1.0):
    path, table = [], dict.fromkeys(range(len(weights)), (0 * x, 0 * y))
    for r, (cohort,) in enumerate(cohorts, 1):
        fresh = {k: displacement(grad, k, x, y, r, K, eta(r)) for k in cohort}
        change = averages({k: [new - old for new, old in zip(fresh[k], table[k])] for k in cohort}, weights)
        mean = averages(table, weights)
        x, y = x + eta_g * (change[0] + mean[0]), y + eta_g * (change[1] + mean[1])
        table |= fresh
        path.append((x, y))
    return path


def mifa(grad, x, y, cohorts, weights, *, K, eta, initial_memory="updates"):
    def scaled(k, r):
        rate = eta(max(r, 1))
        return [part / rate for part in displacement(grad, k, x, y, r, K, rate)]

    path, table = [], dict.fromkeys(range(len(weights)), (0 * x, 0 * y))
    if initial_memory == "updates":
        table = {k: scaled(k, 0) for k in table}
    for r, (cohort,) in enumerate(cohorts, 1):
        table |= {k: scaled(k, r) for k in cohort}
        mean = averages(table, weights)
        x, y = x + eta(r) * mean[0], y + eta(r) * mean[1]
        path.append((x, y))
    return path
