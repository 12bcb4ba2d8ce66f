"""Fed-NSGDA-M, FedMuon-DA and FedSGDA-Clip as Zhang & Gao n.d. prints them (Algorithms 1 and 3, eq. 21), with
plain loops.

The numbers in the right margin are the line numbers of Algorithm 1. FedMuon-DA replaces line 6 by Algorithm
2, whose X_{t+1,i} is read as X_{t,i+1}; FedSGDA-Clip replaces it by (21). ``grad(n, x, y, key)`` gives client
n's stochastic gradients (1-D float64 tensors), n = 0 .. clients - 1, on the sample called key: the number t p
+ i + 1 of the local step, t and i from 0, and ("init", j) with j < p for the gradients at the start.

The box does not define u_{-1}, v_{-1}, g_{-1}. ``first_round``: "beta_one" sets them to 0 and both beta to 1 in
round 0; "zero" sets them to 0 and keeps beta; "gradient" sets every client's variate to the mean of p sampled
gradients at the start, the server's variate, u_{-1} and v_{-1} to the mean of these, and keeps beta.
"""

from __future__ import annotations

import math

import torch

from .rates import at, total


def fed_nsgda_m(
    grad, clients, x1, y1, *, p, rounds, eta_x, eta_y, gamma_x, gamma_y, beta_x, beta_y, first_round="beta_one",
    direction="normalize", shapes_x=None, shapes_y=None, norm_over="block", tau=None, svd="svd",
):
    """Return a dict per round: x, y (x_{t+1}, y_{t+1}), u, v, gx, gy of round t, and the lists gx_clients,
    gy_clients.

    The options from ``direction`` on are those of ``direction_of``; without shapes a block is one vector.
    """
    x, y = _vector(x1), _vector(y1)
    shapes_x, shapes_y = shapes_x or [x.shape], shapes_y or [y.shape]
    options = (direction, norm_over, tau, svd)
    gx_n, gy_n = _variates_before(grad, clients, x, y, p, first_round)
    gx, gy = sum(gx_n) / clients, sum(gy_n) / clients
    u, v, path = gx, gy, []
    for t in range(rounds):                                                                                     # 1
        beta_one = t == 0 and first_round == "beta_one"
        bx, by = (1.0, 1.0) if beta_one else (at(beta_x, t + 1), at(beta_y, t + 1))
        x_p, y_p, new_gx, new_gy = [], [], [], []
        for n in range(clients):                                                                                # 2
            x_n, y_n, raw_x, raw_y = x, y, [], []                                                               # 3
            for i in range(p):                                                                                  # 4
                fx, fy = grad(n, x_n, y_n, t * p + i + 1)
                u_n = bx * (fx + gx - gx_n[n]) + (1 - bx) * u                                                   # 5
                v_n = by * (fy + gy - gy_n[n]) + (1 - by) * v                                                   # 5
                x_n = x_n - at(eta_x, t * p + i + 1) * direction_of(u_n, shapes_x, *options)                    # 6
                y_n = y_n + at(eta_y, t * p + i + 1) * direction_of(v_n, shapes_y, *options)                    # 6
                raw_x.append(fx)
                raw_y.append(fy)
            x_p.append(x_n)
            y_p.append(y_n)
            new_gx.append(sum(raw_x) / p)                                                                       # 8
            new_gy.append(sum(raw_y) / p)                                                                       # 8
        gx_n, gy_n = new_gx, new_gy
        gx, gy = sum(gx_n) / clients, sum(gy_n) / clients                                                       # 10
        step_x = at(gamma_x, t + 1) / (total(eta_x, t + 1, p) * clients)
        step_y = at(gamma_y, t + 1) / (total(eta_y, t + 1, p) * clients)
        x = x + step_x * sum(x_n - x for x_n in x_p)                                                            # 11
        y = y + step_y * sum(y_n - y for y_n in y_p)                                                            # 11
        u, v = bx * gx + (1 - bx) * u, by * gy + (1 - by) * v                                                   # 12
        path.append(dict(x=x, y=y, u=u, v=v, gx=gx, gy=gy, gx_clients=gx_n, gy_clients=gy_n))
    return path


def direction_of(u, shapes, direction="normalize", norm_over="block", tau=None, svd="svd"):
    """Return the direction of line 6 for a 1-D block ``u`` that consists of tensors of the given shapes.

    "normalize": u/||u||. "clip": min(1, tau/||u||) u. Both use the norm of the block or of each tensor; 0 gives 0.
    "orthogonalize": tensor by tensor, a matrix by its polar factor (``svd``: "svd", "newton_schulz" or
    "newton_schulz_cubic"), and a vector, which is a one-column matrix, by its exact polar factor u/||u||.
    """
    assert direction in ("normalize", "clip", "orthogonalize") and norm_over in ("block", "tensor")
    if direction != "orthogonalize" and norm_over == "block":
        shapes = [u.shape]
    pieces, start = [], 0
    for shape in shapes:
        piece = u[start : start + math.prod(shape)]
        start = start + math.prod(shape)
        if direction == "clip":
            pieces.append(_clipped(piece, tau))
        elif direction == "orthogonalize" and len(shape) > 1:
            pieces.append(_orthogonal(piece.reshape(shape), svd).reshape(-1))
        else:
            pieces.append(_normalized(piece))
    assert start == len(u), f"the shapes hold {start} numbers, the block {len(u)}"
    return torch.cat(pieces)


def polar_factor(U):
    """P Q^T of the compact SVD U = P Sigma Q^T; singular values of the size of rounding errors are dropped."""
    P, sigma, Qt = torch.linalg.svd(U, full_matrices=False)
    kept = sigma > max(U.shape) * torch.finfo(U.dtype).eps * sigma[0]
    return P[:, kept] @ Qt[kept]


def newton_schulz(U, coefficients, steps=5):
    """``steps`` times X <- a X + b (X X^T) X + c (X X^T)^2 X from X = U/(||U||_F + 1e-7); a tall U is
    transposed."""
    tall = U.shape[0] > U.shape[1]
    a, b, c = coefficients
    X = (U.T if tall else U) / (torch.sqrt(torch.sum(U**2)) + 1e-7)
    for _ in range(steps):
        A = X @ X.T
        X = a * X + b * (A @ X) + c * (A @ A @ X)
    return X.T if tall else X


def _orthogonal(U, svd):
    assert U.dim() == 2, f"only vectors and matrices have a direction here, got the shape {tuple(U.shape)}"
    assert svd in ("svd", "newton_schulz", "newton_schulz_cubic"), svd
    if svd == "newton_schulz":
        return newton_schulz(U, (3.4445, -4.7750, 2.0315))
    if svd == "newton_schulz_cubic":
        return newton_schulz(U, (1.5, -0.5, 0.0))
    return polar_factor(U)


def _normalized(u):
    norm = torch.sqrt(torch.sum(u**2))
    return u / norm if norm > 0 else torch.zeros_like(u)


def _clipped(u, tau):
    norm = torch.sqrt(torch.sum(u**2))
    return tau / norm * u if norm > tau else u


def _variates_before(grad, clients, x, y, p, first_round):
    """Return g^{(n)}_{x,-1} and g^{(n)}_{y,-1} of all clients."""
    assert first_round in ("beta_one", "zero", "gradient"), first_round
    if first_round != "gradient":
        return [torch.zeros_like(x)] * clients, [torch.zeros_like(y)] * clients
    samples = [[grad(n, x, y, ("init", j)) for j in range(p)] for n in range(clients)]
    return [sum(fx for fx, fy in own) / p for own in samples], [sum(fy for fx, fy in own) / p for own in samples]


def _vector(value):
    return torch.as_tensor(value, dtype=torch.float64).reshape(-1)
