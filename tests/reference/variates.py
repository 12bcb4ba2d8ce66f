"""SAGDA, FedGDA-GT, K-GT-Minimax, SCAFFOLD, CODA+ and CODASCA as plain loops over rounds, clients and steps.

``grad(k, x, y, (r, j))`` returns both gradients of client k on sample j = 0, 1, ... of its round r = 1, 2, ... or, if j
is ``None``, on all its data. ``cohorts[r - 1]`` lists the cohorts of round r, of which there is one. ``weights`` has one
number per client. ``project`` has the projections of x and of y, which are applied after each local step and after the
server's step. All functions return the point after each round.
"""

from __future__ import annotations

from reference.minimax_baselines import average
from reference.rates import at, most, steps_of, total


def free(point):
    return point


FREE = (free, free)


def fedgda_gt(grad, x, y, cohorts, weights, *, K, eta_xl, eta_yl, project=FREE):
    """Exact gradients everywhere; the sets are for the server alone."""
    path = []
    for r, (cohort,) in enumerate(cohorts, 1):
        start = {k: grad(k, x, y, (r, None)) for k in cohort}
        u, v = (average({k: pair[b] for k, pair in start.items()}, weights) for b in (0, 1))
        xs, ys = {}, {}
        for k in cohort:
            xs[k], ys[k] = x, y
            for _ in range(K):
                gx, gy = grad(k, xs[k], ys[k], (r, None))
                xs[k] = xs[k] - eta_xl * (gx - start[k][0] + u)
                ys[k] = ys[k] + eta_yl * (gy - start[k][1] + v)
        x, y = project[0](average(xs, weights)), project[1](average(ys, weights))
        path.append((x, y))
    return path


def kgt_minimax(
    grad, x, y, cohorts, weights, *, K, eta_xl, eta_yl, eta_xg=1.0, eta_yg=1.0, project=FREE
):
    """With the mixing matrix (1/N) 11ᵀ. All clients participate; ``cohorts`` only has the number of rounds."""
    path, clients = [], range(len(weights))
    first = [grad(k, x, y, (0, 0)) for k in clients]
    cx, cy = (
        {k: -first[k][b] + average({j: first[j][b] for j in clients}, weights) for k in clients} for b in (0, 1)
    )
    for r in range(1, len(cohorts) + 1):
        zx, zy = {}, {}
        for k in clients:
            xk, yk = x, y
            for j in range(K):
                gx, gy = grad(k, xk, yk, (r, j))
                xk = project[0](xk - eta_xl * (gx + cx[k]))
                yk = project[1](yk + eta_yl * (gy + cy[k]))
            zx[k], zy[k] = (x - xk) / (K * eta_xl), (yk - y) / (K * eta_yl)
        mean_x, mean_y = average(zx, weights), average(zy, weights)
        cx = {k: cx[k] - zx[k] + mean_x for k in clients}
        cy = {k: cy[k] - zy[k] + mean_y for k in clients}
        x = project[0](x - K * eta_xg * eta_xl * mean_x)
        y = project[1](y + K * eta_yg * eta_yl * mean_y)
        path.append((x, y))
    return path


def sagda(
    grad, x, y, cohorts, weights, *, K, eta_xl, eta_yl, eta_xg=1.0, eta_yg=1.0, variates="fresh", full_batch=False,
    projection="clients", project=FREE,
):
    local = project if projection == "clients" else FREE
    path, cx, cy = [], 0 * x, 0 * y
    own_x, own_y = [0 * x for _ in weights], [0 * y for _ in weights]
    for r, (cohort,) in enumerate(cohorts, 1):
        first = 0
        if variates == "fresh":
            first = 1
            for k in cohort:
                own_x[k], own_y[k] = grad(k, x, y, (r, None if full_batch else 0))
            cx = average({k: own_x[k] for k in cohort}, weights)
            cy = average({k: own_y[k] for k in cohort}, weights)
        xs, ys = {}, {}
        for k in cohort:
            xs[k], ys[k] = x, y
            for j in range(K):
                gx, gy = grad(k, xs[k], ys[k], (r, None if full_batch else first + j))
                xs[k] = local[0](xs[k] - eta_xl * (gx - own_x[k] + cx))
                ys[k] = local[1](ys[k] + eta_yl * (gy - own_y[k] + cy))
        if variates == "stored":
            old_x, old_y = list(own_x), list(own_y)
            for k in cohort:
                own_x[k] = old_x[k] - cx + (x - xs[k]) / (K * eta_xl)
                own_y[k] = old_y[k] - cy + (ys[k] - y) / (K * eta_yl)
            cx, cy = renewed(cx, own_x, old_x, weights), renewed(cy, own_y, old_y, weights)
        x = project[0](x + eta_xg * (average(xs, weights) - x))
        y = project[1](y + eta_yg * (average(ys, weights) - y))
        path.append((x, y))
    return path


def renewed(c, new, old, weights):
    """c + (1/N) Σ (c_i⁺ - c_i), with the clients' weights instead of 1/N; absent clients add nothing."""
    return c + sum(w * (one - other) for w, one, other in zip(weights, new, old)) / sum(weights)


def scaffold(grad, x, y, cohorts, weights, *, K, eta_l, eta_g=1.0, option="II", project=FREE):
    """For problems without a block y: gradients are evaluated at the fixed ``y``."""
    path, c = [], 0 * x
    own = [0 * x for _ in weights]
    for r, (cohort,) in enumerate(cohorts, 1):
        ends, old = {}, list(own)
        for k in cohort:
            ends[k] = x
            for j in range(steps_of(K, k)):
                ends[k] = project[0](ends[k] - eta_l * (grad(k, ends[k], y, (r, j))[0] - old[k] + c))
            if option == "II":
                own[k] = old[k] - c + (x - ends[k]) / (steps_of(K, k) * eta_l)
            else:
                own[k] = grad(k, x, y, (r, None if option == "I" else K))[0]
        x = project[0](x + eta_g * (average(ends, weights) - x))
        c = renewed(c, own, old, weights)
        path.append((x,))
    return path


def scaffold_minimax(grad, x, y, cohorts, weights, *, K, eta_l, eta_g=1.0, option="II", project=FREE):
    path, c = [], (0 * x, 0 * y)
    own = [(0 * x, 0 * y) for _ in weights]
    for r, (cohort,) in enumerate(cohorts, 1):
        ends, old = {}, list(own)
        for k in cohort:
            xk, yk = x, y
            for j in range(steps_of(K, k)):
                gx, gy = grad(k, xk, yk, (r, j))
                eta = at(eta_l, (r - 1) * most(K) + j + 1)
                xk = project[0](xk - eta * (gx - old[k][0] + c[0]))
                yk = project[1](yk + eta * (gy - old[k][1] + c[1]))
            ends[k] = xk, yk
            if option == "II":
                of_x = old[k][0] - c[0] + (x - xk) / total(eta_l, r, K, k)
                of_y = old[k][1] - c[1] + (yk - y) / total(eta_l, r, K, k)
                own[k] = of_x, of_y
            else:
                own[k] = grad(k, x, y, (r, None if option == "I" else K))
        c = tuple(renewed(c[b], [one[b] for one in own], [one[b] for one in old], weights) for b in (0, 1))
        eta = at(eta_g, r)
        x = project[0](x + eta * (average({k: end[0] for k, end in ends.items()}, weights) - x))
        y = project[1](y + eta * (average({k: end[1] for k, end in ends.items()}, weights) - y))
        path.append((x, y))
    return path


def coda_plus(
    grad, x, y, cohorts, weights, *, K, eta, T, growth=3, decay=3.0, prox=0.002, reference="last", project=FREE
):
    path, left, length, stage, ref = [], [cohort for (cohort,) in cohorts], T, 0, x
    while left:
        ends = []
        for cohort in left[:length]:
            r, xs, ys = len(path) + 1, {}, {}
            for k in cohort:
                xs[k], ys[k] = x, y
                for j in range(K):
                    gx, gy = grad(k, xs[k], ys[k], (r, j))
                    xs[k] = project[0](xs[k] - eta * (gx + prox * (xs[k] - ref)))
                    ys[k] = project[1](ys[k] + eta * gy)
            x, y = average(xs, weights), average(ys, weights)
            ends.append(x)
            path.append((x, y))
        ref = x if reference == "last" else sum(ends) / len(ends)
        left, stage, eta = left[length:], stage + 1, eta / decay
        length = round(T * growth**stage)
    return path


def codasca(
    grad, x, y, cohorts, weights, *, K, eta, T, growth=3, decay=3.0, prox=0.002, reference="last",
    eta_g=1.0, keep_variates=False, project=FREE,
):  # fmt: skip
    path, left, length, stage, ref = [], [cohort for (cohort,) in cohorts], T, 0, x
    cx, cy, own_x, own_y = 0 * x, 0 * y, [0 * x for _ in weights], [0 * y for _ in weights]
    while left:
        ends = []
        for cohort in left[:length]:
            r, xs, ys, old_x, old_y = len(path) + 1, {}, {}, list(own_x), list(own_y)
            for k in cohort:
                xs[k], ys[k] = x, y
                for j in range(K):
                    gx, gy = grad(k, xs[k], ys[k], (r, j))
                    xs[k] = project[0](xs[k] - eta * (gx + prox * (xs[k] - ref) - old_x[k] + cx))
                    ys[k] = project[1](ys[k] + eta * (gy - old_y[k] + cy))
                own_x[k] = old_x[k] - cx + (x - xs[k]) / (K * eta)
                own_y[k] = old_y[k] - cy + (ys[k] - y) / (K * eta)
            x = project[0](x + eta_g * (average(xs, weights) - x))
            y = project[1](y + eta_g * (average(ys, weights) - y))
            cx, cy = renewed(cx, own_x, old_x, weights), renewed(cy, own_y, old_y, weights)
            ends.append(x)
            path.append((x, y))
        ref = x if reference == "last" else sum(ends) / len(ends)
        left, stage, eta = left[length:], stage + 1, eta / decay
        length = round(T * growth**stage)
        if not keep_variates:
            cx, cy, own_x, own_y = 0 * x, 0 * y, [0 * x for _ in weights], [0 * y for _ in weights]
    return path
