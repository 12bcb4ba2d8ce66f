"""CDMA, FedNest, FLRA and Local AMSGrad as plain loops over rounds, clients and steps, written from their formulas.

``grad(k, x, y, (r, j))`` returns both gradients of client k on sample j = 0, 1, ... of round r = 1, 2, ..., or on all
its data if j is ``None``; ``(r, j, "large")`` is a minibatch of ``large_batch`` rows. A client takes its samples of a round
in order through all phases. ``cohorts[r - 1]`` lists the cohorts of round r, one, or one per phase. ``weights`` has one
number per client. ``project`` holds the projections of x and y, applied after each local step of CDMA and FedNest. All
functions return the point after each round.
"""

from __future__ import annotations

from collections import Counter

import torch

from .minimax_baselines import average


def free(point):
    return point


FREE = (free, free)


def averages(pairs: dict, weights):
    """Return the averages of the first and of the second entries of the clients' pairs."""
    return [average({k: pair[part] for k, pair in pairs.items()}, weights) for part in (0, 1)]


def cdma_nc(grad, x, y, cohorts, weights, *, K, eta_x, eta_y, project=FREE):
    path = []
    for r, (cohort,) in enumerate(cohorts, 1):
        ends = {}
        for k in cohort:
            xk, yk = x, y
            for j in range(K):
                gx, gy = grad(k, xk, yk, (r, j))
                xk, yk = project[0](xk - eta_x * gx), project[1](yk + eta_y * gy)
            ends[k] = xk, yk
        x, y = averages(ends, weights)
        path.append((x, y))
    return path


def cdma_update(grad, x, y, r, cohort, weights, taken, u, v, K, eta_x, eta_y, project):
    """Take K corrected steps on every client from (x, y), then average."""
    ends = {}
    for k in cohort:
        xk, yk = x, y
        for _ in range(K):
            key, taken[k] = (r, taken[k]), taken[k] + 1
            here, start = grad(k, xk, yk, key), grad(k, x, y, key)
            xk = project[0](xk - eta_x * (here[0] - start[0] + u))
            yk = project[1](yk + eta_y * (here[1] - start[1] + v))
        ends[k] = xk, yk
    return averages(ends, weights)


def cdma_one(grad, x, y, cohorts, weights, *, K, eta_x, eta_y, large_batch=None, project=FREE):
    path = []
    for r, groups in enumerate(cohorts, 1):
        key = (r, 0, "large") if large_batch else (r, None)
        taken = Counter(groups[0] if large_batch else ())  # the collection takes the first sample
        u, v = averages({k: grad(k, x, y, key) for k in groups[0]}, weights)
        x, y = cdma_update(grad, x, y, r, groups[-1], weights, taken, u, v, K, eta_x, eta_y, project)
        path.append((x, y))
    return path


def sagda(grad, x, y, cohorts, weights, *, K, eta_x, eta_y, eta_g=1.0):
    """SAGDA (Yang et al. 2022) with variates that are recomputed in each round, for comparison with CDMA-ONE.

    The variate uses sample 0 of a round.
    """
    path = []
    for r, (cohort,) in enumerate(cohorts, 1):
        own = {k: grad(k, x, y, (r, 0)) for k in cohort}
        (vx, vy), ends = averages(own, weights), {}
        for k in cohort:
            xk, yk = x, y
            for j in range(K):
                gx, gy = grad(k, xk, yk, (r, j + 1))
                xk, yk = xk - eta_x * (gx - own[k][0] + vx), yk + eta_y * (gy - own[k][1] + vy)
            ends[k] = xk, yk
        mean_x, mean_y = averages(ends, weights)
        x, y = x + eta_g * (mean_x - x), y + eta_g * (mean_y - y)
        path.append((x, y))
    return path


def cdma_ada(
    grad, x, y, cohorts, weights, *, K, eta_x, eta_y, alpha, a, b=None, large_batch=None, project=FREE
):
    path, u, v, old = [], None, None, None
    for t, groups in enumerate(cohorts):
        r, rate, b_ = t + 1, 1 / (t + 1) ** a, 2 * a if b is None else b
        alpha_t = min(1, alpha / (t + 1) ** b_)
        key = (r, 0, "large") if large_batch else (r, None)
        taken = Counter(groups[0] if large_batch else ())
        new_u, new_v = averages({k: grad(k, x, y, key) for k in groups[0]}, weights)
        if t:
            old_u, old_v = averages({k: grad(k, *old, key) for k in groups[0]}, weights)
            new_u, new_v = new_u + (1 - alpha_t) * (u - old_u), new_v + (1 - alpha_t) * (v - old_v)
        u, v, old = new_u, new_v, (x, y)
        rates = rate * eta_x, rate * eta_y
        x, y = cdma_update(grad, x, y, r, groups[-1], weights, taken, u, v, K, *rates, project)
        path.append((x, y))
    return path


def fednest_call(start, slope, step, steps, project, corrected, r, cohort, weights, taken):
    """One call: local steps of one block from ``start`` by ``step`` times ``slope(k, block, key)``, averaged."""

    def next_key(k):
        taken[k] += 1
        return r, taken[k] - 1

    h = average({k: slope(k, start, next_key(k)) for k in cohort}, weights) if corrected else None
    ends = {}
    for k in cohort:
        ends[k] = start
        for _ in range(steps):
            key = next_key(k)
            change = slope(k, ends[k], key)
            if corrected:
                change = change - slope(k, start, key) + h
            ends[k] = project(ends[k] + step * change)
    return average(ends, weights)


def fednest(
    grad, x, y, cohorts, weights, *, T, tau, alpha, beta, tau_outer=None, inner="svrg", outer="svrg", project=FREE
):
    path = []
    for r, groups in enumerate(cohorts, 1):
        taken = Counter()
        groups = groups * (T + 1) if len(groups) == 1 else groups  # one for the round, or one a call
        for call in range(T):
            rest = inner == "svrg", r, groups[call], weights, taken
            y = fednest_call(y, lambda k, y, key: grad(k, x, y, key)[1], beta, tau, project[1], *rest)
        rest = outer == "svrg", r, groups[T], weights, taken
        x = fednest_call(x, lambda k, x, key: grad(k, x, y, key)[0], -alpha, tau_outer or tau, project[0], *rest)
        path.append((x, y))
    return path


def lfednest(grad, x, y, cohorts, weights, **settings):
    return fednest(grad, x, y, cohorts, weights, inner="sgd", outer="sgd", **settings)


def flra(grad, x, y, cohorts, weights, *, tau, eta_1, eta_2):
    path, own = [], [y for _ in weights]
    for r, (cohort,) in enumerate(cohorts, 1):
        ends = {}
        for k in cohort:
            ends[k] = x
            for j in range(tau):
                gx, gy = grad(k, ends[k], own[k], (r, j))
                ends[k], own[k] = ends[k] - eta_1 * gx, own[k] + eta_2 * gy
        x = average(ends, weights)
        path.append((x, average(dict(enumerate(own)), weights)))
    return path


def local_amsgrad(
    grad, x, y, cohorts, weights, *, K, eta_x, eta_y, beta_1, beta_2, epsilon, synchronised=True
):
    """``synchronised = False``: every client keeps the maximum of its own v (naive local AMSGrad)."""
    path, n = [], len(weights)
    m = [[torch.zeros_like(x), torch.zeros_like(y)] for _ in range(n)]
    v = [[torch.zeros_like(x), torch.zeros_like(y)] for _ in range(n)]
    v_hat = [[torch.full_like(x, epsilon), torch.full_like(y, epsilon)] for _ in range(n)]
    for r, _ in enumerate(cohorts, 1):
        points = [[x, y] for _ in range(n)]
        for j in range(K):
            for k in range(n):
                g = grad(k, *points[k], (r, j))
                for block in (0, 1):
                    m[k][block] = beta_1 * m[k][block] + (1 - beta_1) * g[block]
                    v[k][block] = beta_2 * v[k][block] + (1 - beta_2) * g[block] ** 2
            if j == K - 1:  # t mod K = 0
                mean_v = averages(dict(enumerate(v)), weights)
                for k in range(n):
                    new = mean_v if synchronised else v[k]
                    v_hat[k] = [torch.maximum(old, one) for old, one in zip(v_hat[k], new)]
            for k in range(n):
                for block, step in ((0, -eta_x), (1, eta_y)):
                    points[k][block] = points[k][block] + step * m[k][block] / v_hat[k][block].sqrt()
        x, y = averages(dict(enumerate(points)), weights)
        path.append((x, y))
    return path
