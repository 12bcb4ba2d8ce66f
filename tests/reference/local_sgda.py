"""Local-SGDA (Deng and Mahdavi 2021): local descent in x and ascent in y, averaging after every q steps."""

from __future__ import annotations

import torch

from reference.rates import most, steps_of


def local_sgda(
    grad, clients, x1, y1, *, q, rounds, eta_x, eta_y, project=None, weights=None, cohorts=None, alternating=False
):
    """Return the averaged point after each round.

    ``grad(k, x, y, t)`` gives client k's stochastic gradients (1-D float64 tensors), k = 0 .. clients - 1, on
    the sample of step t = 1, 2, ...; ``eta_x(t)``, ``eta_y(t)`` are the step sizes of that step. ``cohorts[r]``
    lists the clients of round r = 0, 1, ...; only these clients take steps and are averaged. With ``alternating``, y
    ascends at the new x, on the same sample.
    """
    weights = [1.0] * clients if weights is None else weights
    x_bar = torch.as_tensor(x1, dtype=torch.float64).reshape(-1)
    y_bar = torch.as_tensor(y1, dtype=torch.float64).reshape(-1)
    path, t = [], 0
    for r in range(rounds):
        cohort = range(clients) if cohorts is None else cohorts[r]
        x, y = dict.fromkeys(cohort, x_bar), dict.fromkeys(cohort, y_bar)
        for j in range(most(q)):
            t = t + 1
            for k in (k for k in cohort if j < steps_of(q, k)):
                gx, gy = grad(k, x[k], y[k], t)  # both blocks at the old point, on one sample
                x[k] = x[k] - eta_x(t) * gx
                if alternating:
                    gy = grad(k, x[k], y[k], t)[1]
                y[k] = y[k] + eta_y(t) * gy
                if project is not None:
                    y[k] = project(y[k])
        total = sum(weights[k] for k in cohort)
        x_bar = sum(weights[k] * x[k] for k in cohort) / total
        y_bar = sum(weights[k] * y[k] for k in cohort) / total
        path.append((x_bar, y_bar))
    return path
