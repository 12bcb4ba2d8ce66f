"""FedAvg and Local-SGDA with compressed messages and error feedback (Seide et al. 2014, Stich et al. 2018), as
plain loops; top-k and QSGD (Alistarh et al. 2017) coordinate by coordinate."""

from __future__ import annotations

import math

import torch


def top_k(v, k):
    """Keep the k entries of largest absolute value; the first ones if several are equal."""
    kept, left = torch.zeros_like(v), list(range(len(v)))
    for _ in range(k):
        best = left[0]
        for place in left:
            if abs(v[place]) > abs(v[best]):
                best = place
        kept[best] = v[best]
        left.remove(best)
    return kept


def rand_k(v, k, u):
    """Keep the k entries whose numbers u are the largest, times d/k."""
    kept = torch.zeros_like(v)
    for place in sorted(range(len(v)), key=lambda one: -u[one])[:k]:
        kept[place] = len(v) / k * v[place]
    return kept


def qsgd(v, s, u):
    """Divide each entry by the norm, multiply it by s, and round it up if u is below its fractional part."""
    norm, sent = math.sqrt(sum(float(value) ** 2 for value in v)), torch.zeros_like(v)
    for place, value in enumerate(v.tolist()):
        level = s * abs(value) / norm
        level = math.floor(level) + (u[place] < level - math.floor(level))
        sent[place] = math.copysign(norm * level / s, value)
    return sent


def fedavg(grad, x, y, cohorts, weights, compress, feedback, *, K, eta, eta_g):
    """``compress(k, r, [v])`` gives the compressed vectors of client k's message of round r."""
    path, e = [], {}
    for r, cohort in enumerate(cohorts, 1):
        step = torch.zeros_like(x)
        for k in cohort:
            end = x
            for j in range(K):
                end = end - eta * grad(k, end, y, (r, j))[0]
            wanted = end - x + (e.get(k, 0) if feedback else 0)
            (sent,) = compress(k, r, [wanted])
            e[k] = wanted - sent
            step = step + weights[k] / sum(weights[i] for i in cohort) * sent
        x = x + eta_g * step
        path.append((x,))
    return path


def local_sgda(grad, x, y, cohorts, weights, compress, feedback, *, q, eta_x, eta_y):
    """Clients send models; the differences to x and to y are compressed separately."""
    path, e = [], {}
    for r, cohort in enumerate(cohorts, 1):
        step_x, step_y = torch.zeros_like(x), torch.zeros_like(y)
        for k in cohort:
            own_x, own_y = x, y
            for j in range(q):
                gx, gy = grad(k, own_x, own_y, (r, j))
                own_x, own_y = own_x - eta_x * gx, own_y + eta_y * gy
            ex, ey = e.get(k, (0, 0)) if feedback else (0, 0)
            sent = compress(k, r, [own_x - x + ex, own_y - y + ey])
            e[k] = own_x - x + ex - sent[0], own_y - y + ey - sent[1]
            weight = weights[k] / sum(weights[i] for i in cohort)
            step_x, step_y = step_x + weight * sent[0], step_y + weight * sent[1]
        x, y = x + step_x, y + step_y
        path.append((x, y))
    return path
