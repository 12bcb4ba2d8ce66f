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


def fednest(grad, x, y, cohorts, weights, *, T, tau, alpha, beta):
    path = []
    for r, (cohort,) in enumerate(cohorts, 1):
        j = 0  # every phase takes the samples that follow those of the phase before
        for _ in range(T):
            q = average({k: grad(k, x, y, (r, j))[1] for k in cohort}, weights)
            ends = {}
            for k in cohort:
                ends[k] = y
                for i in range(tau):
                    key = (r, j + 1 + i)
                    ends[k] = ends[k] + beta * (grad(k, x, ends[k], key)[1] - grad(k, x, y, key)[1] + q)
            y, j = average(ends, weights), j + 1 + tau
        h = average({k: grad(k, x, y, (r, j))[0] for k in cohort}, weights)
        ends = {}
        for k in cohort:
            ends[k] = x
            for i in range(tau):
                key = (r, j + 1 + i)
                ends[k] = ends[k] - alpha * (grad(k, ends[k], y, key)[0] - grad(k, x, y, key)[0] + h)
        x = average(ends, weights)
        path.append((x, y))
    return path


def cdma_ada(grad, x, y, cohorts, weights, *, K, eta, alpha, a):
    path, u, v, old = [], None, None, None
    for r, (first, second) in enumerate(cohorts, 1):
        rates, fresh = [rate / r**a for rate in eta], min(1, alpha / r ** (2 * a))
        gx = average({k: grad(k, x, y, (r, None))[0] for k in first}, weights)
        gy = average({k: grad(k, x, y, (r, None))[1] for k in first}, weights)
        if old is not None:
            before_x = average({k: grad(k, *old, (r, None))[0] for k in first}, weights)
            before_y = average({k: grad(k, *old, (r, None))[1] for k in first}, weights)
            gx, gy = gx + (1 - fresh) * (u - before_x), gy + (1 - fresh) * (v - before_y)
        u, v, old = gx, gy, (x, y)
        xs, ys = {}, {}
        for k in second:
            xs[k], ys[k] = x, y
            for j in range(K):
                (hx, hy), (ox, oy) = grad(k, xs[k], ys[k], (r, j)), grad(k, x, y, (r, j))
                xs[k], ys[k] = xs[k] - rates[0] * (hx - ox + u), ys[k] + rates[1] * (hy - oy + v)
        x, y = average(xs, weights), average(ys, weights)
        path.append((x, y))
    return path


def flra(grad, x, y, cohorts, weights, *, K, eta_x, eta_y):
    path, own = [], [y for _ in weights]
    for r, (cohort,) in enumerate(cohorts, 1):
        ends = {}
        for k in cohort:
            ends[k] = x
            for j in range(K):
                gx, gy = grad(k, ends[k], own[k], (r, j))
                ends[k], own[k] = ends[k] - eta_x * gx, own[k] + eta_y * gy
        x = average(ends, weights)
        path.append((x, average(dict(enumerate(own)), weights)))
    return path
