"""LocalAdaSEG (Liao et al. 2024) as plain loops over rounds, clients and steps, from its formulas.

``operator(m, z, (t, j))`` is client m's stochastic operator on the sample of its j-th call in step t = 1, 2, ...
``project`` is the projection onto the problem's set. Returns one pair per round: the point, and the average of the
points of the second calls so far.
"""

from __future__ import annotations

import math


def local_adaseg(
    operator, clients, z0, *, K, rounds, G_0, D, alpha=1.0, project=lambda z: z, weights=None
):
    z, total, path, accumulated = z0, 0.0 * z0, [], [0.0] * clients
    share = [1 / clients if weights is None else float(weights[m] / sum(weights)) for m in range(clients)]

    def rate(m):
        return D * alpha / math.sqrt(G_0**2 + accumulated[m])

    for r in range(rounds):
        ends = []
        for m in range(clients):
            z_m = z
            for k in range(K):
                t, eta = r * K + k + 1, rate(m)
                half = project(z_m - eta * operator(m, z_m, (t, 0)))
                new = project(z_m - eta * operator(m, half, (t, 1)))
                accumulated[m] += float(((half - z_m) ** 2).sum() + ((half - new) ** 2).sum()) / (5 * eta**2)
                total = total + share[m] * half
                z_m = new
            ends.append(z_m)
        inverse = [share[m] / rate(m) for m in range(clients)]
        z = sum(w / sum(inverse) * end for w, end in zip(inverse, ends))
        path.append((z, total / (K * (r + 1))))
    return path
