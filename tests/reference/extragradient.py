"""Minibatch ExtraSGD (Beznosikov, Samokhin & Gasnikov 2025) and extra-step Local SGD (Beznosikov et al. 2022)
with plain loops.

``operator(m, z, (t, j))`` gives client m's stochastic operator (1-D float64 tensors) on the sample of its
j-th call in step t = 1, 2, ... Both return one pair per round: the iterate z, and the output so far, the
average of the points of the second calls. ``project`` is the projection onto the problem's set. ``gamma`` is
the step size of the extrapolation, by default eta.
"""

from __future__ import annotations


def extra_sgd(operator, clients, z0, *, b, rounds, eta, gamma=None, project=lambda z: z, weights=None, cohorts=None):
    """Compute both points of a step from averages over ``b`` samples of each client; one step per round."""
    z, points, path = z0, [], []
    for t in range(1, rounds + 1):
        members = list(range(clients)) if cohorts is None else list(cohorts[t - 1])
        if not members:  # nothing moves
            path.append(path[-1] if path else None)
            continue
        share = [1.0 if weights is None else float(weights[m]) for m in members]

        def mean(at, first):
            values = [sum(operator(m, at, (t, first + j)) for j in range(b)) / b for m in members]
            return sum(w * value for w, value in zip(share, values)) / sum(share)

        x = project(z - (eta if gamma is None else gamma) * mean(z, 0))
        z = project(z - eta * mean(x, b))
        points.append(x)
        path.append((z, sum(points) / len(points)))
    return path


def extra_step_local_sgd(operator, clients, z0, *, K, rounds, eta, gamma=None, project=lambda z: z, weights=None):
    """Take K extragradient steps on every client, then average z."""
    z, total, path = z0, 0.0 * z0, []
    share = [1 / clients if weights is None else float(weights[m] / sum(weights)) for m in range(clients)]
    for r in range(rounds):
        ends = 0.0 * z0
        for m in range(clients):
            z_m = z
            for k in range(K):
                t = r * K + k + 1
                x_m = project(z_m - (eta if gamma is None else gamma) * operator(m, z_m, (t, 0)))
                z_m = project(z_m - eta * operator(m, x_m, (t, 1)))
                total = total + share[m] * x_m
            ends = ends + share[m] * z_m
        z = ends
        path.append((z, total / (K * (r + 1))))
    return path
