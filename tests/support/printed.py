"""Objectives of problems with analytic gradients, as printed in the papers: f_n(x, y) of client n."""

from __future__ import annotations

import torch

from mpifed.problems import FiniteMax, QuadraticMixture, QuadraticNCPL, Saddle, TwoSidedPL

Printed = FiniteMax | QuadraticMixture | QuadraticNCPL | Saddle | TwoSidedPL


def value(problem: Printed, n: int, x, y) -> torch.Tensor:
    """f_n(x, y), differentiable."""
    if isinstance(problem, FiniteMax):  # Shen et al. 2024, section 3.2.4
        P, linear, star = (column[0] for column in problem.client_data(n))
        v = x - star
        return torch.stack([v @ Q @ v / 2 + one[:-1] @ v + one[-1] for Q, one in zip(P, linear)]) @ y
    if isinstance(problem, QuadraticMixture):
        A, g, star, c, _ = (column[0] for column in problem.client_data(n))
        v, N = x - star, problem.clients
        return N * y[n] * (v @ torch.diag(A) @ v / 2 + g @ v + c) - problem.rho / 2 * ((y - 1 / N) ** 2).sum()
    first, second = (column[0] for column in problem.client_data(n))
    if isinstance(problem, Saddle):  # Huang et al. 2024, eq. 12
        A = first * torch.eye(problem.d).double()
        return problem.tau / 2 * (x @ x) - (0.5 * (y @ y) - second @ y + y @ (A @ x))
    if isinstance(problem, QuadraticNCPL):
        P, R = first[: problem.dx, : problem.dx], first[: problem.dx, problem.dx :]
        S, (p, s) = -first[problem.dx :, problem.dx :], second.split((problem.dx, problem.dy))
        return x @ P @ x / 2 + x @ R @ y - y @ S @ y / 2 + p @ x + s @ y
    # Shen et al. 2024, section 3.2.5
    h = x**2 + 3 * torch.sin(x) ** 2 * torch.sin(y) ** 2 - 4 * y**2 - 10 * torch.sin(y) ** 2
    return first[0] * h.sum() + second @ torch.cat([x, y])
