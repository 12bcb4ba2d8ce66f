"""Plain proximal maps: prox(v, weight) minimises |w - v|^2 / 2 + weight * phi(w) over w, with v 1-D.

This is the mirror map of h + weight * phi for h = |.|^2 / 2 (Wang & Kale n.d., section 5), the gradient of
its convex conjugate. The maps of sets are projections for every weight, also for 0.
"""

from __future__ import annotations

import math

import torch


def zero(v, weight):
    """phi = 0."""
    return v


def l1(lam):
    """phi = lam * sum |v_i|: every coordinate moves towards 0 by weight * lam, but not beyond 0."""

    def prox(v, weight):
        return torch.sign(v) * torch.clamp(torch.abs(v) - weight * lam, min=0)

    return prox


def nuclear(lam, shape):
    """phi = lam * (sum of the singular values of v as a matrix of this shape)."""

    def prox(v, weight):
        left, values, right = torch.linalg.svd(v.reshape(shape), full_matrices=False)
        return (left @ torch.diag(torch.clamp(values - weight * lam, min=0)) @ right).reshape(-1)

    return prox


def ball(radius):
    """phi = 0 where |v| <= radius, infinite elsewhere."""

    def prox(v, weight):
        norm = torch.sqrt(torch.sum(v**2))
        return v * (radius / norm) if norm > radius else v

    return prox


def box(low, high):
    """phi = 0 where low <= v_i <= high for every i, infinite elsewhere."""

    def prox(v, weight):
        return torch.clamp(v, low, high)

    return prox


def simplex(v, weight):
    """phi = 0 where v_i >= 0 and sum v_i = 1, infinite elsewhere: max(v_i - theta, 0), with theta such that the sum is 1."""
    total, theta = 0.0, 0.0
    for count, value in enumerate(sorted(v.tolist(), reverse=True), start=1):
        total = total + value
        if value > (total - 1) / count:  # this coordinate stays positive
            theta = (total - 1) / count
    return torch.clamp(v - theta, min=0)


def l1_ball(v, radius):
    """The projection onto sum |v_i| <= radius: sign(v_i) max(|v_i| - theta, 0), with theta such that the sum is radius."""
    if sum(abs(value) for value in v.tolist()) <= radius:
        return v
    return torch.sign(v) * radius * simplex(torch.abs(v) / radius, 0.0)


def entropy(total):
    """The mirror map of h = total * sum v_i log v_i on the simplex of this total, in place of |.|^2 / 2."""

    def mirror(v, weight):
        top = max(v.tolist())
        powers = [math.exp((value - top) / total) for value in v.tolist()]
        return torch.tensor([total * power / sum(powers) for power in powers], dtype=v.dtype)

    return mirror


def separate(size, first, second):
    """Apply ``first`` to the leading coordinates and ``second`` to the others."""

    def mirror(v, weight):
        return torch.cat([first(v[:size], weight), second(v[size:], weight)])

    return mirror
