"""ComFedL, LocalMOML, Local-SCGD(M) and compositional FedNest as plain loops over rounds, clients and steps.

``inner(k, x, key)`` [p], ``jacobian(k, x, key)`` [p, d] and ``outer_grad(k, u, key)`` [p] evaluate client k on
the sample ``key`` = (r, j): sample j = 0, 1, ... of its round r = 1, 2, ...; round 0 is the start. The samples
of a round are numbered in the order in which the client uses them. ``cohorts[r - 1]`` lists the cohorts of
round r: one, or for FedNest one per call. ``weights`` has one number per client. All functions return x after
each round.
"""

from __future__ import annotations

import itertools

import torch

from .minimax_baselines import average


def same(v):
    """The projection if there is no set: the identity."""
    return v


def comfedl(problem, x, cohorts, weights, *, q, eta, B_g=1, B_f=1, project=same):
    inner, jacobian, outer_grad = problem
    path = []
    for r, (cohort,) in enumerate(cohorts, 1):
        ends = {}
        for k in cohort:
            ends[k] = x
            for step in range(q):
                first, t = step * (B_g + B_f), (r - 1) * q + step + 1
                zetas = [(r, first + j) for j in range(B_g)]
                xis = [(r, first + B_g + j) for j in range(B_f)]
                g = sum(inner(k, ends[k], zeta) for zeta in zetas) / B_g
                J = sum(jacobian(k, ends[k], zeta) for zeta in zetas) / B_g
                w = J.T @ (sum(outer_grad(k, g, xi) for xi in xis) / B_f)
                ends[k] = project(ends[k] - eta(t) * w)
        x = average(ends, weights)
        path.append(x)
    return path


def local_moml(problem, x, cohorts, weights, *, H, eta, beta, K_0=1, first_order=False, project=same):
    inner, jacobian, outer_grad = problem
    path = []
    for r, (cohort,) in enumerate(cohorts, 1):
        ends = {}
        for k in cohort:
            w = x
            u = sum(inner(k, w, (r, j)) for j in range(K_0)) / K_0
            for step in range(H):
                zeta, xi = (r, K_0 + 2 * step), (r, K_0 + 2 * step + 1)
                u = (1 - beta) * u + beta * inner(k, w, zeta)
                J = torch.eye(len(x), dtype=x.dtype) if first_order else jacobian(k, w, zeta)
                w = project(w - eta((r - 1) * H + step + 1) * J.T @ outer_grad(k, u, xi))
            ends[k] = w
        x = average(ends, weights)
        path.append(x)
    return path


def local_scgdm(problem, x, cohorts, weights, *, p, eta, beta, alpha=1.0, average_inner=True, project=same):
    inner, jacobian, outer_grad = problem
    path, clients = [], range(len(weights))
    X, u, m = [x for k in clients], [None for k in clients], [None for k in clients]
    for t in range(1, len(cohorts) * p + 1):
        r, j = (t - 1) // p + 1, 2 * ((t - 1) % p)
        for k in clients:
            g, J = inner(k, X[k], (r, j)), jacobian(k, X[k], (r, j))
            u[k] = g if t == 1 else (1 - beta) * u[k] + beta * g
            z = J.T @ outer_grad(k, u[k], (r, j + 1))
            m[k] = z if t == 1 else (1 - alpha) * m[k] + alpha * z
            X[k] = project(X[k] - eta(t) * m[k])
        if t % p == 0:
            for values in (X, m, u) if average_inner else (X, m):
                values[:] = [average(dict(enumerate(values)), weights)] * len(weights)
            path.append(X[0])
    return path


def fednest(
    problem, x, cohorts, weights, *, T, tau, alpha, beta, tau_outer=None, first_y="zero",
    recompute_jacobian=False, project=same,
):  # fmt: skip
    inner, jacobian, outer_grad = problem
    path, everybody = [], range(len(weights))
    y = average({k: inner(k, x, (0, 0)) for k in everybody}, weights)
    if first_y == "zero":
        y = 0 * y
    for r, given in enumerate(cohorts, 1):
        calls = given * (T + 1) if len(given) == 1 else given
        numbers = {k: itertools.count() for k in everybody}

        def sample(k):
            return r, next(numbers[k])

        for cohort in calls[:T]:
            q = average({k: y - inner(k, x, sample(k)) for k in cohort}, weights)
            ends = dict.fromkeys(cohort, y)
            for k in cohort:
                for _ in range(tau):  # the sample is in both gradients: y_k - r(x) - (y - r(x))
                    ends[k] = ends[k] - beta * ((ends[k] - y) + q)
            y = average(ends, weights)
        cohort = calls[T]
        v = average({k: outer_grad(k, y, sample(k)) for k in cohort}, weights)
        h = average({k: jacobian(k, x, sample(k)).T @ v for k in cohort}, weights)
        ends = dict.fromkeys(cohort, x)
        for k in cohort:
            for _ in range(tau_outer or tau):
                step = h
                if recompute_jacobian:
                    zeta = sample(k)
                    step = (jacobian(k, ends[k], zeta) - jacobian(k, x, zeta)).T @ v + h
                ends[k] = project(ends[k] - alpha * step)
        x = average(ends, weights)
        path.append(x)
    return path
