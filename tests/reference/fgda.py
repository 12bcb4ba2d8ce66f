"""FGDA and AdaFGDA as the box of Algorithm 1 in Huang et al. 2024 prints them, with plain loops over steps
and clients.

The numbers in the right margin are the line numbers of the box. ``grad(k, x, y, key)`` gives client k's
stochastic gradients (1-D float64 tensors), k = 0 .. clients - 1, on the sample called key: ("init", j) with j
< q in line 2, and the step number s >= 2 for the sample from which v_s and w_s are computed. ``eta(t)`` is eta_t;
``alpha(t)``, ``beta(t)`` are alpha_{t+1}, beta_{t+1}. ``matrix()`` returns a new adaptive matrix; it is called twice, for A and for B.
"""

from __future__ import annotations

import torch

from .matrices import Identity


def fgda(
    grad, clients, x1, y1, *, q, rounds, gamma, lam, eta, alpha, beta, matrix=None, sync_estimator="stem",
    first_matrix="rule", first_estimators="local", project=None, project_where="mixed", weights=None,
):
    """Return the averaged point (x_{t+1}, y_{t+1}) of every sync t = q, 2q, ..., rounds * q."""
    assert sync_estimator in ("stem", "local", "mean_after", "box"), sync_estimator
    K, weights = range(clients), [1.0] * clients if weights is None else weights
    A, B = (matrix or Identity)(), (matrix or Identity)()
    x, y = [_vector(x1) for k in K], [_vector(y1) for k in K]                                                   # 2
    w, v = _initial_estimators(grad, x, y, q)                                                                   # 2
    if first_estimators == "average":
        w, v = [_mean(w, weights) for k in K], [_mean(v, weights) for k in K]
    _first_matrix(A, _mean(w, weights), _mean(x, weights), first_matrix, q)                                     # 2
    _first_matrix(B, _mean(v, weights), _mean(y, weights), first_matrix, q)                                     # 2
    path = []
    for t in range(1, rounds * q + 1):                                                                          # 3
        sync = t % q == 0                                                                                       # 4
        x_old, y_old, w_old, v_old = x, y, w, v
        if sync:
            v_bar, w_bar, y_bar, x_bar = (_mean(values, weights) for values in (v, w, y, x))                    # 5
            if t > 1 or first_matrix != "rule":  # for q = 1 the rule has already used w_1, v_1
                A.refresh(w_bar, x_bar, t)                                                                      # 6
                B.refresh(v_bar, y_bar, t)                                                                      # 6
            y_bar = _y_step(y_bar, v_bar, B, lam, eta(t), project, project_where)                               # 7, 8
            x_bar = _x_step(x_bar, w_bar, A, gamma, eta(t))                                                     # 7, 8
            x, y = [x_bar for k in K], [y_bar for k in K]                                                       # 8
            path.append((x_bar, y_bar))
            if sync_estimator in ("stem", "box"):
                w_old, v_old = [w_bar for k in K], [v_bar for k in K]
        else:  # A and B carry over                                                                             # 9, 13
            y = [_y_step(y[k], v[k], B, lam, eta(t), project, project_where) for k in K]                        # 10-12
            x = [_x_step(x[k], w[k], A, gamma, eta(t)) for k in K]                                              # 10-12
        if sync and sync_estimator == "box":
            w, v = w_old, v_old
        else:
            w, v = _storm(grad, t + 1, x, y, x_old, y_old, w_old, v_old, alpha(t), beta(t))                     # 14-16
        if sync and sync_estimator == "mean_after":
            w, v = [_mean(w, weights) for k in K], [_mean(v, weights) for k in K]
    return path


def _initial_estimators(grad, x, y, q):
    """Return w_1^k and v_1^k, the means of each client over its q samples."""
    w, v = [], []
    for k in range(len(x)):
        samples = [grad(k, x[k], y[k], ("init", j)) for j in range(q)]
        w.append(sum(gx for gx, gy in samples) / q)
        v.append(sum(gy for gx, gy in samples) / q)
    return w, v


def _first_matrix(M, estimator, point, first_matrix, q):
    M.start(estimator, point)
    if first_matrix == "rule":
        M.refresh(estimator, point, 1, at_sync=q == 1, first=True)
    elif first_matrix == "identity":
        M.diag = torch.ones_like(estimator)
    elif first_matrix == "rho":
        M.diag = M.rho * torch.ones_like(estimator)
    else:
        raise ValueError(f"first_matrix: expected rule, identity or rho, got {first_matrix!r}")


def _x_step(x, w, A, gamma, eta_t):
    x_hat = x - gamma * w / A.diag                                                                              # 7, 11
    return x + eta_t * (x_hat - x)                                                                              # 8, 12


def _y_step(y, v, B, lam, eta_t, project, project_where):
    assert project_where in ("mixed", "step"), project_where
    y_hat = y + lam * v / B.diag                                                                                # 7, 11
    if project is not None and project_where == "step":
        y_hat = project(y_hat)
    y_next = y + eta_t * (y_hat - y)                                                                            # 8, 12
    if project is not None and project_where == "mixed":
        y_next = project(y_next)
    return y_next


def _storm(grad, s, x, y, x_old, y_old, w_old, v_old, alpha_s, beta_s):
    """w_s^k, v_s^k for all clients: one sample per client, used at the new and at the old point."""
    w, v = [], []
    for k in range(len(x)):
        gx, gy = grad(k, x[k], y[k], s)                                                                         # 14
        gx_old, gy_old = grad(k, x_old[k], y_old[k], s)
        v.append(gy + (1 - alpha_s) * (v_old[k] - gy_old))                                                      # 15
        w.append(gx + (1 - beta_s) * (w_old[k] - gx_old))                                                       # 16
    return w, v


def _mean(values, weights):
    return sum(c * value for c, value in zip(weights, values)) / sum(weights)


def _vector(value):
    return torch.as_tensor(value, dtype=torch.float64).reshape(-1)
