"""MFCGD and AdaMFCGD as the box of Algorithm 1 in Huang n.d. prints them, with plain loops over steps and
clients.

The numbers in the right margin are the line numbers of the box. Three functions evaluate client m = 0 .. clients - 1 and return
float64 tensors: ``inner(m, x, key)`` [p] and ``jacobian(m, x, key)`` [p, d] on the sample zeta with this key,
and ``outer_grad(m, u, key)`` [p] on the sample xi with this key, which is independent of every zeta. Line 2
draws 2q samples with keys ("init", j), j < q: q of zeta, used by both inner and jacobian, and q of xi. The
estimators of step s >= 2 use ("zeta", s) and ("xi", s). ``eta(t)`` is eta_t; ``alpha(t)``,
``beta(t)``, ``varrho(t)`` are alpha_{t+1}, beta_{t+1}, varrho_{t+1}, the weights in h (values), u (Jacobians)
and v (outer gradients). ``matrix()`` returns the adaptive matrix; ``first_matrix`` is as in FGDA.
"""

from __future__ import annotations

import math

import torch

from .fgda import _first_matrix, _mean, _vector
from .matrices import Identity


def mfcgd(
    inner, jacobian, outer_grad, clients, x1, *, q, rounds, gamma, eta, alpha, beta, varrho, matrix=None,
    first_matrix="rule", C_g=math.inf, C_f=math.inf, weights=None,
):
    """Return the averaged point x_{t+1} of every sync t = q, 2q, ..., rounds * q."""
    M, weights = range(clients), [1.0] * clients if weights is None else weights
    A, x = (matrix or Identity)(), [_vector(x1) for m in M]                                                     # 2
    h, u, v = _initial_estimators(inner, jacobian, outer_grad, x, q)                                            # 2
    w = [u[m].T @ v[m] for m in M]
    _first_matrix(A, _mean(w, weights), _mean(x, weights), first_matrix, q)                                     # 2
    path = []
    for t in range(1, rounds * q + 1):                                                                          # 3
        x_old = x
        if t % q == 0:                                                                                          # 4
            w_bar, x_bar = _mean(w, weights), _mean(x, weights)                                                 # 5
            if t > 1 or first_matrix != "rule":  # for q = 1 the rule has already used w_1
                A.refresh(w_bar, x_bar, t)                                                                      # 6
            x_bar = x_bar - gamma * eta(t) * w_bar / A.diag                                                     # 7
            x = [x_bar for m in M]                                                                              # 7
            path.append(x_bar)
        else:  # A carries over                                                                                 # 8, 12
            x = [x[m] - gamma * eta(t) * w[m] / A.diag for m in M]                                              # 11
        for m in M:                                                                                             # 15
            zeta, xi, h_old = ("zeta", t + 1), ("xi", t + 1), h[m]                                              # 16
            h[m] = inner(m, x[m], zeta) + (1 - alpha(t)) * (h_old - inner(m, x_old[m], zeta))                   # 17
            u[m] = jacobian(m, x[m], zeta) + (1 - beta(t)) * (u[m] - jacobian(m, x_old[m], zeta))               # 18
            u[m] = _into_ball(u[m], C_g)                                                                        # 18
            v[m] = outer_grad(m, h[m], xi) + (1 - varrho(t)) * (v[m] - outer_grad(m, h_old, xi))                # 19
            v[m] = _into_ball(v[m], C_f)                                                                        # 19
            w[m] = u[m].T @ v[m]                                                                                # 10, 20
    return path


def _initial_estimators(inner, jacobian, outer_grad, x, q):
    """Return every client's h_1, u_1 and v_1: means over q samples each, where v_1 is evaluated at h_1."""
    h, u, v, samples = [], [], [], [("init", j) for j in range(q)]
    for m in range(len(x)):
        h.append(sum(inner(m, x[m], key) for key in samples) / q)
        u.append(sum(jacobian(m, x[m], key) for key in samples) / q)
        v.append(sum(outer_grad(m, h[m], key) for key in samples) / q)
    return h, u, v


def _into_ball(value, radius):
    """Return the nearest point of the ball around 0, in the Euclidean (vectors) or Frobenius (matrices) norm."""
    norm = math.sqrt(float(torch.sum(value**2)))
    return value * (radius / norm) if norm > radius else value
