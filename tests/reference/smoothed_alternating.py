"""Smoothed-GDA with alternating steps (Zhang, Xiao, Sun & Luo 2020): plain loops over rounds and clients.

Algorithm 2 of Shen et al., "Stochastic Smoothed Gradient Descent Ascent for Federated Minimax Optimization",
with one change: line 4 evaluates the gradient in y at x_{t+1} instead of x_t. The numbers in the margin are the
lines of that box.

``grad(i, x, y, t)`` gives client i's stochastic gradients (1-D float64 tensors), i = 0 .. clients - 1, on its sample of round t = 1, 2, ...; both gradients of a round use the same sample.
"""

from __future__ import annotations

import torch


def smoothed_alternating_gda(
    grad, clients, x1, y1, *, rounds, eta_x, eta_y, p, beta, project_x=None, project_y=None, weights=None,
):
    """Return (x_{t+1}, y_{t+1}, z_{t+1}) of every round; z_0 is x_0.

    The box has no set X: ``project_x`` is applied to the result of line 3, before z is updated.
    ``weights`` are the weights of the clients in the mean of the gradients, by default equal.
    """
    weights = [1.0] * clients if weights is None else weights
    total = sum(weights)
    x, y, z = _vector(x1), _vector(y1), _vector(x1)                                                 # 1
    path = []
    for t in range(1, rounds + 1):                                                                  # 2
        gx = sum(c * grad(i, x, y, t)[0] for i, c in enumerate(weights)) / total
        x_next = x - eta_x * (gx + p * (x - z))                                                     # 3
        if project_x is not None:
            x_next = project_x(x_next)
        gy = sum(c * grad(i, x_next, y, t)[1] for i, c in enumerate(weights)) / total               # 4
        y_next = y + eta_y * gy                                                                     # 4
        if project_y is not None:
            y_next = project_y(y_next)                                                              # 4
        z = z + beta * (x_next - z)                                                                 # 5
        x, y = x_next, y_next
        path.append((x, y, z))
    return path


def _vector(value):
    return torch.as_tensor(value, dtype=torch.float64).reshape(-1)
