"""FedDualAvg (Yuan, Zaheer & Reddi 2021) and FeDualEx (Bai & Bullins 2024) with plain loops over rounds,
clients and steps.

``operator(m, z, (t, j))`` gives client m's stochastic operator (1-D float64 tensors) on the sample of its
j-th call in step t = r K + k + 1; rounds r and steps k count from 0. ``mirror(dual, weight)`` minimises
h(u) + weight * psi(u) - <dual, u>. ``dual0`` is the gradient of h at the starting point. ``weights`` are the
clients' (equal by default), ``cohorts[r]`` the clients of round r (all by default). A round without clients leaves the state as it is;
only the numbers of its samples are used up.
"""

from __future__ import annotations


def fed_dual_avg(operator, clients, dual0, *, K, rounds, eta_c, eta_s, mirror, weights=None, cohorts=None):
    """The server's primal point after every round."""
    mu, path, point, done = dual0, [], None, 0
    for r in range(rounds):
        ends = {}
        for m in _members(clients, cohorts, r):
            mu_m = mu
            for k in range(K):
                eta = eta_c * (eta_s * done * K + k)
                w = mirror(mu_m, eta)
                mu_m = mu_m - eta_c * operator(m, w, (r * K + k + 1, 0))
            ends[m] = mu_m - mu
        if ends:
            done += 1
            mu = mu + eta_s * _mean(ends, weights)
            point = mirror(mu, eta_s * eta_c * K * done)
        path.append(point)
    return path


def fedualex(
    operator, clients, dual0, *, K, rounds, eta_c, eta_s, mirror, weights=None, shadow=True, cohorts=None
):
    """After every round the server's primal point, and the output so far.

    The output is the average over the steps of the mirror image of the mean half-step dual; without ``shadow``
    it is the average over steps and clients of the mirror images of the clients' half-step duals.
    """
    origin, varsigma, path, outputs, done = dual0, 0.0 * dual0, [], [], 0
    for r in range(rounds):
        own = dict.fromkeys(_members(clients, cohorts, r), varsigma)
        if not own:
            path.append(path[-1] if path else None)
            continue
        for k in range(K):
            level, t, halves, points = (eta_s * done * K + k) * eta_c, r * K + k + 1, {}, {}
            for m in own:
                z = mirror(origin - own[m], level)
                halves[m] = origin - own[m] - eta_c * operator(m, z, (t, 0))
                points[m] = mirror(halves[m], level + eta_c)
                own[m] = own[m] + eta_c * operator(m, points[m], (t, 1))
            shadows = mirror(_mean(halves, weights), level + eta_c)
            outputs.append(shadows if shadow else _mean(points, weights))
        varsigma = varsigma + eta_s * _mean({m: own[m] - varsigma for m in own}, weights)
        done += 1
        path.append((mirror(origin - varsigma, eta_s * eta_c * K * done), sum(outputs) / len(outputs)))
    return path


def _members(clients, cohorts, r):
    return range(clients) if cohorts is None else cohorts[r]


def _mean(values, weights):
    """Return the weighted mean of a dictionary from client to value."""
    shares = {m: 1.0 if weights is None else float(weights[m]) for m in values}
    return sum(shares[m] * value for m, value in values.items()) / sum(shares.values())
