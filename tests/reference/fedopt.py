"""FedAvg with the servers of Reddi et al. 2021 and of Hsu et al. 2019 as plain loops, coordinate by coordinate.

``grad(k, x, (r, j))`` is the gradient of client k on sample j = 0, 1, ... of its round r = 1, 2, ...;
``cohorts[r - 1]`` the clients of round r, ``weights`` has one number per client. Returns x after each round.
"""

from __future__ import annotations

import torch

from reference.minimax_baselines import average
from reference.rates import most, steps_of
from reference.sgd import SGD


def fedopt(
    grad, x, cohorts, weights, *, K, eta, eta_g=1.0, server="average", project=lambda x: x, local=None, **options
):
    """``eta(t)`` is the local step size at step t = 1, 2, ...; ``local``: settings of the local optimiser."""
    path, d = [], len(x)
    beta, tau = options.get("beta", 0.9), options.get("tau", 1e-3)
    beta_1, beta_2 = options.get("beta_1", 0.0 if server == "adagrad" else 0.9), options.get("beta_2", 0.99)
    m, v = [0.0] * d, [tau**2] * d
    for r, cohort in enumerate(cohorts, 1):
        changes = {}
        for k in cohort:
            end, optimiser = x, SGD(**local or {})
            for j in range(steps_of(K, k)):
                step = eta((r - 1) * most(K) + j + 1)
                end = project(optimiser.step(end, grad(k, end, (r, j)), step))
            changes[k] = end - x
        delta, new = average(changes, weights).tolist(), x.tolist()
        for i in range(d):
            if server == "average":
                step = delta[i]
            elif server == "momentum":
                step = m[i] = beta * m[i] + delta[i]
            else:
                m[i] = beta_1 * m[i] + (1 - beta_1) * delta[i]
                square = delta[i] ** 2
                if server == "adagrad":
                    v[i] = v[i] + square
                elif server == "adam":
                    v[i] = beta_2 * v[i] + (1 - beta_2) * square
                elif v[i] > square:  # yogi
                    v[i] = v[i] - (1 - beta_2) * square
                elif v[i] < square:
                    v[i] = v[i] + (1 - beta_2) * square
                step = m[i] / (v[i] ** 0.5 + tau)
            new[i] += eta_g * step
        x = project(torch.tensor(new, dtype=x.dtype))
        path.append(x)
    return path
