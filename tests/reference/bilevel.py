"""SimFBO, ShroFBO, and FedNest and LFedNest for bilevel problems as plain loops over rounds, clients and steps.

``problem`` has three functions of client k on the sample ``key`` = (r, j), the j-th = 0, 1, ... that the
client uses in round r: ``upper(k, x, y, key)``, the pair (∇_x f, ∇_y f); ``lower(k, x, y, key)``, ∇_y g; and
``products(k, x, y, v, key)``, the pair (∇²_xy g v, ∇²_yy g v). ``cohorts[r - 1]`` lists the cohorts of round
r: one, or for FedNest one per call and for the series. ``weights`` has one number per client. The methods
return (x, y) after each round.
"""

from __future__ import annotations

import itertools

import torch

from .minimax_baselines import average


def simfbo(
    problem, x, y, cohorts, weights, *, tau, eta_x, eta_y, eta_z, gamma_x, gamma_y, gamma_z, radius=None,
    normalized=False,
):  # fmt: skip
    """``tau``, one number per client; the mean of the ``tau`` is τ_eff."""
    upper, lower, products = problem
    z, path = torch.zeros_like(y), []
    total = sum(weights)
    for r, (cohort,) in enumerate(cohorts, 1):
        sums = [torch.zeros_like(one) for one in (x, y, z)]
        for k in cohort:
            xk, yk, zk, own = x, y, z, [torch.zeros_like(one) for one in (x, y, z)]
            for step in range(tau[k]):
                zeta, xi = (r, 2 * step), (r, 2 * step + 1)
                mixed, square = products(k, xk, yk, zk, zeta)
                fx, fy = upper(k, xk, yk, xi)
                directions = fx - mixed, lower(k, xk, yk, zeta), square - fy
                xk, yk, zk = xk - eta_x * directions[0], yk - eta_y * directions[1], zk - eta_z * directions[2]
                own = [one + direction for one, direction in zip(own, directions)]
            scale = sum(tau) / len(tau) / tau[k] if normalized else 1.0
            p = weights[k] / total * len(weights) / len(cohort)
            sums = [one + p * scale * h for one, h in zip(sums, own)]
        x, y, z = x - gamma_x * sums[0], y - gamma_y * sums[1], z - gamma_z * sums[2]
        if radius is not None and z.norm() > radius:
            z = z * radius / z.norm()
        path.append((x, y))
    return path


def fednest(
    problem, x, y, cohorts, weights, *, T, tau, alpha, beta, J, ell, tau_outer=None, inner="svrg",
    outer="svrg", separate=False, truncation="sum", term=None,
):  # fmt: skip
    """``term(r)``: the number N' of the term of the series that is used with ``truncation = "random"``."""
    upper, lower, products = problem
    path = []
    for r, given in enumerate(cohorts, 1):
        calls = given * (T + 2) if len(given) == 1 else given
        numbers = {k: itertools.count() for k in range(len(weights))}

        def sample(k):
            return r, next(numbers[k])

        def h(k, u, p, xi, zeta):
            return upper(k, u, y, xi)[0] - products(k, u, y, p, zeta)[0]

        for cohort in calls[:T]:
            if inner == "svrg":
                q = average({k: lower(k, x, y, sample(k)) for k in cohort}, weights)
            ends = dict.fromkeys(cohort, y)
            for k in cohort:
                for _ in range(tau):
                    zeta = sample(k)
                    direction = lower(k, x, ends[k], zeta)
                    if inner == "svrg":
                        direction = direction - lower(k, x, y, zeta) + q
                    ends[k] = ends[k] - beta * direction
            y = average(ends, weights)
        cohort, steps = calls[T], range(tau_outer or tau)
        if separate:
            ends = dict.fromkeys(cohort, x)
            for k in cohort:
                c = upper(k, x, y, sample(k))[1]
                p = ell * c
                for _ in range(J):
                    c = c - ell * products(k, x, y, c, sample(k))[1]
                    p = p + ell * c
                for _ in steps:
                    xi, zeta = sample(k), sample(k)
                    ends[k] = ends[k] - alpha * h(k, ends[k], p, xi, zeta)
            x = average(ends, weights)
            path.append((x, y))
            continue
        c = average({k: upper(k, x, y, sample(k))[1] for k in cohort}, weights)
        terms = [c]
        for _ in range(J):
            c = average({k: c - ell * products(k, x, y, c, sample(k))[1] for k in cohort}, weights)
            terms.append(c)
        p = ell * sum(terms) if truncation == "sum" else (J + 1) * ell * terms[term(r)]
        cohort = calls[T + 1]
        if outer == "svrg":
            mean = average({k: h(k, x, p, sample(k), sample(k)) for k in cohort}, weights)
        ends = dict.fromkeys(cohort, x)
        for k in cohort:
            for _ in steps:
                xi, zeta = sample(k), sample(k)
                direction = h(k, ends[k], p, xi, zeta)
                if outer == "svrg":
                    direction = direction - h(k, x, p, xi, zeta) + mean
                ends[k] = ends[k] - alpha * direction
        x = average(ends, weights)
        path.append((x, y))
    return path
