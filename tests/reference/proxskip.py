"""ProxSkip-VIP-FL and ProxSkip-L-SVRGDA-FL (Zhang et al. 2024) as plain loops over steps with coins, from the box.

``value(k, z, (r, j))`` is V of client k on sample j = 0, 1, ... of round r = 1, 2, ...; on all its data with j ``None``,
and on a minibatch of ``large_batch`` rows with ``(r, j, "large")``. ``length(r)`` is the number of steps up to and with
the r-th coin that is 1. ``refreshes(k, r, j)`` is the number that client k compares with q in step j of round r.
``prox(z, weight)`` is the proximal map of the problem's φ, or the projection onto its set. Both return the point after
each round.
"""

from __future__ import annotations

from collections import Counter

from .minimax_baselines import average


def free(z, weight):
    return z


def proxskip_vip(value, z, weights, rounds, *, gamma, p, period="random", length=None, prox=free):
    return proxskip(value, z, weights, rounds, gamma, p, period, length, prox)


def proxskip_l_svrgda(
    value, z, weights, rounds, *, gamma, p, refreshes, q, large_batch=None, period="random", length=None, prox=free
):
    """``q(k)`` is client k's probability."""
    taken, w, full = Counter(), {}, {}

    def next_key(k, r, *size):
        taken[k, r] += 1
        return r, taken[k, r] - 1, *size

    def exact(k, x, r):
        return value(k, x, next_key(k, r, "large") if large_batch else (r, None))

    def estimate(k, x, key):
        r, j = key
        if k not in w:
            w[k], full[k] = x, exact(k, x, r)
        xi = next_key(k, r)
        g = value(k, x, xi) - value(k, w[k], xi) + full[k]
        if refreshes(k, r, j) < q(k):
            w[k], full[k] = x, exact(k, x, r)
        return g

    return proxskip(estimate, z, weights, rounds, gamma, p, period, length, prox)


def proxskip(estimate, z, weights, rounds, gamma, p, period, length, prox):
    clients, path = range(len(weights)), []
    x, h = dict.fromkeys(clients, z), dict.fromkeys(clients, 0 * z)
    for r in range(1, rounds + 1):
        steps = round(1 / p) if period == "fixed" else length(r)
        for j in range(steps):
            hat, sent = {}, {}
            for k in clients:
                hat[k] = x[k] - gamma * (estimate(k, x[k], (r, j)) - h[k])
                sent[k] = hat[k] - gamma / p * h[k]
            mean = prox(average(sent, weights), gamma / p)
            for k in clients:
                x[k] = mean if j == steps - 1 else hat[k]  # the coin of the last step is 1
                h[k] = h[k] + p / gamma * (x[k] - hat[k])
        path.append(x[0])
    return path
