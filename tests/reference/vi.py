"""The methods of Wang & Kale n.d. as printed, with plain loops over steps and machines: LSGD (eq. 11), LESGD
(eq. 4), LIPPAX and SLIPPAX (Algorithms 1 and 2) and local dual extrapolation (eq. 13).

``operator(m, z, (t, j))`` gives machine m's stochastic operator (1-D float64 tensors) on the sample of its
j-th oracle call in step t; m = 0 .. clients - 1, t = 1 .. rounds * K, j = 0, 1, ... Every method returns one
pair per round, after its synchronisation t = K, 2K, ...: the averaged point z_t, and the output so far, which
is the mean over the machines and the steps 1 .. t of the method's output sequence (at a synchronisation, of
its average).
"""

from __future__ import annotations

import math

import torch

from .rates import at


def lsgd(operator, clients, z0, *, K, rounds, eta):
    """Output sequence: the iterates after z_0, written x_t in eq. (11)."""

    def step(t, z):
        z = [z[m] - eta * operator(m, z[m], (t, 0)) for m in range(clients)]                                    # (11)
        if t % K == 0:
            z = _averaged(z)
        return z, z

    return _rounds(step, clients, z0, K, rounds)


def lesgd(operator, clients, z0, *, K, rounds, eta, gamma=None, sync_extrapolation=True):
    """Output sequence: x_t. Without ``sync_extrapolation`` only z_t is averaged. ``gamma`` is the step size of the
    extrapolation, by default eta."""

    def step(t, z):
        x = [z[m] - (eta if gamma is None else gamma) * operator(m, z[m], (t, 0)) for m in range(clients)]                                    # (4)
        if t % K == 0 and sync_extrapolation:
            x = _averaged(x)
        z = [z[m] - eta * operator(m, x[m], (t, 1)) for m in range(clients)]
        if t % K == 0:
            z = _averaged(z)
        return z, x

    return _rounds(step, clients, z0, K, rounds)


def lippax(operator, clients, z0, *, K, rounds, eta, H, gamma=None, L=None):
    """Output sequence: x_t. Takes gamma, or L for the gamma of the theorems; line 9 uses the sample (t, H)."""

    def step(t, z):                                                                                             # 2
        now = at(eta, t)
        inner = inner_step_size(now, L) if gamma is None else at(gamma, t)
        x, z_next = [], []
        for m in range(clients):                                                                                # 3
            x_m = z[m]                                                                                          # 4
            for j in range(H):                                                                                  # 5
                x_m = x_m - inner * (operator(m, x_m, (t, j)) + (x_m - z[m]) / now)                             # 6
            x.append(x_m)                                                                                       # 8
            z_next.append(z[m] - now * operator(m, x_m, (t, H)))                                                # 9
        if t % K == 0:
            z_next = _averaged(z_next)                                                                          # 9
        return z_next, x

    return _rounds(step, clients, z0, K, rounds)                                                                # 12


def slippax(operator, clients, z0, *, K, rounds, eta, H, delta, smooth, gamma=None, L=None):
    """As LIPPAX, with inner calls at x + delta * s where ``smooth(m, t, j)`` is the Gaussian s of the j-th call."""
    gamma = inner_step_size(eta, L) if gamma is None else gamma

    def step(t, z):                                                                                             # 2
        x, z_next = [], []
        for m in range(clients):                                                                                # 3
            x_m = z[m]                                                                                          # 4
            for j in range(H):                                                                                  # 5
                s = smooth(m, t, j)                                                                             # 6
                x_m = x_m - gamma * (operator(m, x_m + delta * s, (t, j)) + (x_m - z[m]) / eta)                 # 7
            x.append(x_m)                                                                                       # 9
            z_next.append(z[m] - eta * operator(m, x_m, (t, H)))                                                # 10
        if t % K == 0:
            z_next = _averaged(z_next)                                                                          # 10
        return z_next, x

    return _rounds(step, clients, z0, K, rounds)                                                                # 13


def local_dual_extrapolation(
    operator, clients, z0, *, K, rounds, eta, prox, sync_extrapolation=True, t0_mirror="prox", point=None,
):
    """Output sequence: v_t. Here z_0, and z_t in the result, are dual points.

    ``prox(dual, weight)`` is the mirror map of |.|^2 / 2 + weight * phi. ``t0_mirror`` chooses u_0:
    prox(z_0, 0), which is a projection if phi is an indicator function, or the starting
    point ``point`` ("identity"), by default z_0. Without ``sync_extrapolation`` only z_t is averaged.
    """
    assert t0_mirror in ("prox", "identity"), t0_mirror
    point = torch.as_tensor(z0 if point is None else point, dtype=torch.float64)

    def step(t, z):
        identity = t == 1 and t0_mirror == "identity"
        u = [point if identity else prox(z[m], (t - 1) * eta) for m in range(clients)]
        x = [z[m] - eta * operator(m, u[m], (t, 0)) for m in range(clients)]                                    # (13)
        if t % K == 0 and sync_extrapolation:
            x = _averaged(x)
        v = [prox(x[m], t * eta) for m in range(clients)]
        z = [z[m] - eta * operator(m, v[m], (t, 1)) for m in range(clients)]
        if t % K == 0:
            z = _averaged(z)
        return z, v

    return _rounds(step, clients, z0, K, rounds)


def inner_step_size(eta, L):
    """gamma of Theorems 3 to 5, for an L-smooth operator."""
    return 1 / (eta * (L + 1 / eta) ** 2)


def smoothing_radius(eta, sigma, d, theorem=False):
    """delta of SLIPPAX in d dimensions at noise level sigma: as in the proof, or as printed in Theorem 5."""
    return eta * sigma / (math.sqrt(d) if theorem else d**0.25)


def _rounds(step, clients, z0, K, rounds):
    """``step(t, z)`` returns z_t and the element t of the output sequence, for all machines."""
    z = [torch.as_tensor(z0, dtype=torch.float64).reshape(-1) for m in range(clients)]
    path, total = [], 0.0
    for t in range(1, rounds * K + 1):
        z, output = step(t, z)
        total = total + sum(output) / clients
        if t % K == 0:
            path.append((z[0], total / t))  # the machines agree now
    return path


def _averaged(values):
    return [sum(values) / len(values) for m in values]
