"""FESS-GDA and Smoothed-GDA as the boxes of Algorithms 1 and 2 in Shen et al. 2024 print them, and FSGDA,
with plain loops.

The numbers in the right margin are the line numbers of the boxes. ``grad(i, x, y, key)`` gives client i's
stochastic gradients (1-D float64 tensors), i = 0 .. clients - 1, on the sample of local step k = 1 .. K of
round t = 0, 1, ..., whose key is t K + k. ``cohorts[t]`` lists the clients S_t of that round; all clients if it is not given.
"""

from __future__ import annotations

import torch

from .rates import at, total


def fess_gda(
    grad, clients, x1, y1, *, K, rounds, eta_xl, eta_yl, eta_xg, eta_yg, p, beta, project_x=None, project_y=None,
    cohorts=None, alternating=False,
):
    """Return (x_{t+1}, y_{t+1}, z_{t+1}) of every round; z_0 is x_0.

    The box has no set X: ``project_x`` is applied after each local step, like P_Y, and to the result of line 13.
    With ``alternating``, line 8 evaluates the gradient at the new x, on the same sample.
    """
    P_X, P_Y = project_x or _same, project_y or _same
    x, y, z = _vector(x1), _vector(y1), _vector(x1)                                                             # 1
    path = []
    for t in range(rounds):                                                                                     # 2
        S = range(clients) if cohorts is None else cohorts[t]                                                   # 3
        x_last, y_last = [], []
        for i in S:                                                                                             # 4
            x_i, y_i = x, y                                                                                     # 5
            for k in range(1, K + 1):                                                                           # 6
                gx, gy = grad(i, x_i, y_i, t * K + k)
                x_i = P_X(x_i - at(eta_xl, t * K + k) * gx)                                                     # 7
                if alternating:
                    gy = grad(i, x_i, y_i, t * K + k)[1]
                y_i = P_Y(y_i + at(eta_yl, t * K + k) * gy)                                                     # 8
            x_last.append(x_i)                                                                                  # 10
            y_last.append(y_i)                                                                                  # 10
        m = len(S)
        xg, yg, proximal = at(eta_xg, t + 1), at(eta_yg, t + 1), total(eta_xl, t + 1, K) * p * (x - z)
        x_next = x + xg * (sum(x_last) / m - x) - xg * proximal                                                 # 13
        x, y = P_X(x_next), P_Y(y + yg * (sum(y_last) / m - y))                                                 # 13, 14
        z = z + at(beta, t + 1) * (x - z)                                                                       # 15
        path.append((x, y, z))
    return path


def fsgda(
    grad, clients, x1, y1, *, K, rounds, eta_xl, eta_yl, eta_xg, eta_yg, project_x=None, project_y=None, cohorts=None,
    alternating=False,
):
    """FSGDA (Yang et al. 2022): return (x, y) after each round.

    The server steps along the average displacement of the clients. With sets, every local step and
    the server's point are projected; the latter matters only for global step sizes above 1, with which the point
    can leave a convex set. With ``alternating``, y ascends at the new x, on the same sample.
    """
    x, y, step, path = _vector(x1), _vector(y1), 0, []
    for t in range(rounds):
        cohort = range(clients) if cohorts is None else cohorts[t]
        points = dict.fromkeys(cohort, (x, y))
        for _ in range(K):
            step = step + 1
            for i in cohort:
                gx, gy = grad(i, *points[i], step)
                x_i, y_i = points[i]
                x_i = x_i - eta_xl * gx
                x_i = project_x(x_i) if project_x else x_i
                if alternating:
                    gy = grad(i, x_i, y_i, step)[1]
                y_i = y_i + eta_yl * gy
                points[i] = (x_i, project_y(y_i) if project_y else y_i)
        change_x = sum(x_i - x for x_i, y_i in points.values()) / len(cohort)
        change_y = sum(y_i - y for x_i, y_i in points.values()) / len(cohort)
        x, y = x + eta_xg * change_x, y + eta_yg * change_y
        x, y = project_x(x) if project_x else x, project_y(y) if project_y else y
        path.append((x, y))
    return path


def smoothed_gda(grad_full, x1, y1, *, rounds, eta_x, eta_y, p, beta, project_y=None):
    """Return (x_{t+1}, y_{t+1}, z_{t+1}) of every round; z_0 is x_0, ``grad_full(x, y)`` both exact
    gradients."""
    P_Y = project_y or _same
    x, y, z = _vector(x1), _vector(y1), _vector(x1)                                                             # 1
    path = []
    for _ in range(rounds):                                                                                     # 2
        gx, gy = grad_full(x, y)
        x, y = x - eta_x * (gx + p * (x - z)), P_Y(y + eta_y * gy)                                              # 3, 4
        z = z + beta * (x - z)                                                                                  # 5
        path.append((x, y, z))
    return path


def _same(point):
    return point


def _vector(value):
    return torch.as_tensor(value, dtype=torch.float64).reshape(-1)
