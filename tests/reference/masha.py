"""MASHA1 and MASHA2 (Beznosikov et al. 2022) as plain loops.

``value(k, z, (r, j))`` is V of client k on sample j of round r; samples of the start have round 0.
``compression(k, r, v)`` and ``server_compression(r, v)`` compress one vector. ``coin(r)`` is uniform in (0, 1), and
the reference point changes at the end of round r if it is at least τ. Both return the point after each round.
"""

from __future__ import annotations

from .minimax_baselines import average


def free(v):
    return v


def masha1(
    value, z, weights, rounds, *, gamma, tau, coin, compression, server_compression, reference="new", project=free
):
    clients, path = range(len(weights)), []
    w = z
    F_i = {k: value(k, w, (0, 0)) for k in clients}
    F = average(F_i, weights)
    for r in range(1, rounds + 1):
        step = gamma(r)
        mixed = tau * z + (1 - tau) * w
        half = project(mixed - step * F)
        sent = {k: compression(k, r, value(k, half, (r, 0)) - F_i[k]) for k in clients}
        q = server_compression(r, average(sent, weights))
        last, z = z, project(mixed - step * (F + q))
        if coin(r) >= tau:
            w = z if reference == "new" else last
            F_i = {k: value(k, w, (r, 1)) for k in clients}
            F = average(F_i, weights)
        path.append(z)
    return path


def masha2(value, z, weights, rounds, *, gamma, tau, coin, compression, server_compression, reference="new"):
    clients, path = range(len(weights)), []
    w, e, e_i = z, 0 * z, dict.fromkeys(range(len(weights)), 0 * z)
    F_i = {k: value(k, w, (0, 0)) for k in clients}
    F = average(F_i, weights)
    for r in range(1, rounds + 1):
        step, sent = gamma(r), {}
        half = tau * z + (1 - tau) * w - step * F
        for k in clients:
            wanted = step * (value(k, half, (r, 0)) - F_i[k]) + e_i[k]
            sent[k] = compression(k, r, wanted)
            e_i[k] = wanted - sent[k]
        wanted = average(sent, weights) + e
        s = server_compression(r, wanted)
        e = wanted - s
        last, z = z, half - s
        if coin(r) >= tau:
            w = z if reference == "new" else last
            F_i = {k: value(k, w, (r, 1)) for k in clients}
            F = average(F_i, weights)
        path.append(z)
    return path
