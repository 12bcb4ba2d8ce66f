"""Losses of a linear network as plain loops over samples and pairs, with gradients in closed form.

The network's outputs are W u + c for a sample u. All functions return the gradient of the loss of a batch.
"""

from __future__ import annotations

import numpy as np


def cross_entropy(W, c, samples, labels, weights, smoothing):
    """(1/b) Σ_u Σ_k t_k (-log p_k), p = softmax(W u + c): return the gradients in W and c.

    The target of a sample of class y is t_k = weights[k] ((1 - smoothing) [k = y] + smoothing / K).
    """
    gW, gc, K = np.zeros_like(W), np.zeros_like(c), len(c)
    for u, y in zip(samples, labels):
        scores = [sum(W[k] * u) + c[k] for k in range(K)]
        powers = [np.exp(score - max(scores)) for score in scores]
        targets = [weights[k] * ((1 - smoothing) * (k == y) + smoothing / K) for k in range(K)]
        for k in range(K):
            slope = (sum(targets) * powers[k] / sum(powers) - targets[k]) / len(samples)
            gW[k] += slope * u
            gc[k] += slope
    return gW, gc


def auc(w, c, a, b, alpha, samples, positive, p, margin, share=None):
    """Return the gradients of the AUC loss in w, c, a, b and α.

    Args:
        positive: 1 or 0 for each sample.
        share: the fraction of positive samples of the client, if the loss is share times the mean over the
            positive samples of the batch plus 1 - share times the mean over its negative samples.
    """
    n, above = len(samples), sum(positive)
    gw, gc, ga, gb, galpha = np.zeros_like(w), 0.0, 0.0, 0.0, -2 * p * (1 - p) * alpha
    for u, is_positive in zip(samples, positive):
        h = sum(w * u) + c
        if is_positive:
            weight = (1 - p) * (1 / n if share is None else share / above)
            slope, ga = weight * (2 * (h - a) - 2 * (margin + alpha)), ga - weight * 2 * (h - a)
            galpha -= weight * 2 * h
        else:
            weight = p * (1 / n if share is None else (1 - share) / (n - above))
            slope, gb = weight * (2 * (h - b) + 2 * (margin + alpha)), gb - weight * 2 * (h - b)
            galpha += weight * 2 * h
        gw, gc = gw + slope * u, gc + slope
    return gw, gc, ga, gb, galpha


def soft_partial_auc(w, c, s, batch, margin, temperature):
    """(1/b) Σ_i v_i (s_i + λ ((1/b) Σ_j v_j exp((ℓ_ij - s_i) / λ) - 1)): return the gradients in w, c and s.

    Args:
        batch: positive samples, their coordinates of s and weights v_i, negative samples and their weights.
    """
    above, coordinates, v, below, u = batch
    gw, gs, n = np.zeros_like(w), np.zeros_like(s), len(above)
    for i in range(n):
        gs[coordinates[i]] += v[i] / n
        for j in range(n):
            gap = max(0.0, margin - (sum(w * above[i]) - sum(w * below[j])))
            power = v[i] * u[j] * np.exp((gap**2 - s[coordinates[i]]) / temperature) / n**2
            gs[coordinates[i]] -= power
            gw -= power * 2 * gap * (above[i] - below[j])
    return gw, 0.0 * c, gs
