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
