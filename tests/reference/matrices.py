"""Plain adaptive matrices of AdaFGDA (Huang et al. 2024, Algorithm 1 line 6 and section 4), each kept as its
diagonal ``diag``.

The protocol is the same for all: ``start`` receives the averaged initial estimator and the starting point, sets a_0
= 0 and stores what a later refresh needs; ``refresh`` computes the matrix from an averaged estimator (1-D) and
the averaged point at which it was computed, at step t. ``first`` is True only for the refresh that computes
A_1 from the averages passed to ``start``; ``at_sync`` is False if that step is not a synchronisation (q > 1). A decay is
a number or a function of t.
"""

from __future__ import annotations

import torch


def _at(decay, t):
    return decay(t) if callable(decay) else decay


class Identity:
    """A = I: FGDA."""

    rho = 1.0

    def start(self, w, point):
        self.diag = torch.ones_like(w)

    def refresh(self, w, point, t, at_sync=True, first=False):
        pass


class Adam:
    """a <- decay a + (1 - decay) w^2, A = diag(sqrt(a) + rho); bias correction divides a by 1 - decay^n in
    A."""

    def __init__(self, rho, decay, bias_correction=False):
        self.rho, self.decay, self.bias_correction = rho, decay, bias_correction

    def start(self, w, point):
        self.a = torch.zeros_like(w)
        self.n = 0

    def refresh(self, w, point, t, at_sync=True, first=False):
        self.n = self.n + 1
        decay = _at(self.decay, t)
        self.a = decay * self.a + (1 - decay) * w**2
        moment = self.a / (1 - self.decay**self.n) if self.bias_correction else self.a
        self.diag = torch.sqrt(moment) + self.rho


class AdaBelief:
    """a <- decay a + (1 - decay) (w - w')^2, A = diag(sqrt(a) + rho), with w' the average at the previous
    synchronisation.

    At the first synchronisation w' is 0 (``reference="zero"``) or the averaged initial estimator (``"initial"``). For A_1, w' = 0.
    """

    def __init__(self, rho, decay, reference="zero"):
        assert reference in ("zero", "initial"), reference
        self.rho, self.decay, self.option = rho, decay, reference

    def start(self, w, point):
        self.a = torch.zeros_like(w)
        self.reference = torch.zeros_like(w) if self.option == "zero" else w

    def refresh(self, w, point, t, at_sync=True, first=False):
        reference = torch.zeros_like(w) if first else self.reference
        decay = _at(self.decay, t)
        self.a = decay * self.a + (1 - decay) * (w - reference) ** 2
        self.diag = torch.sqrt(self.a) + self.rho
        if at_sync:
            self.reference = w


class Norm:
    """a <- decay a + (1 - decay) ||w||, A = (a + rho) I; with ``root`` a averages ||w||^2 and A = (sqrt(a) +
    rho) I."""

    def __init__(self, rho, decay, root=False):
        self.rho, self.decay, self.root = rho, decay, root

    def start(self, w, point):
        self.a = torch.zeros((), dtype=w.dtype)

    def refresh(self, w, point, t, at_sync=True, first=False):
        decay = _at(self.decay, t)
        if self.root:
            self.a = decay * self.a + (1 - decay) * torch.sum(w**2)
            self.diag = (torch.sqrt(self.a) + self.rho) * torch.ones_like(w)
        else:
            self.a = decay * self.a + (1 - decay) * torch.sqrt(torch.sum(w**2))
            self.diag = (self.a + self.rho) * torch.ones_like(w)


class AdaGradNorm:
    """a <- a + ||w||^2, A = (sqrt(a) + rho) I."""

    def __init__(self, rho):
        self.rho = rho

    def start(self, w, point):
        self.a = torch.zeros((), dtype=w.dtype)

    def refresh(self, w, point, t, at_sync=True, first=False):
        self.a = self.a + torch.sum(w**2)
        self.diag = (torch.sqrt(self.a) + self.rho) * torch.ones_like(w)


class AMSGrad:
    """a as in Adam, largest <- max(largest, a), A = diag(sqrt(largest) + rho)."""

    def __init__(self, rho, decay):
        self.rho, self.decay = rho, decay

    def start(self, w, point):
        self.a = torch.zeros_like(w)
        self.largest = torch.zeros_like(w)

    def refresh(self, w, point, t, at_sync=True, first=False):
        decay = _at(self.decay, t)
        self.a = decay * self.a + (1 - decay) * w**2
        self.largest = torch.maximum(self.largest, self.a)
        self.diag = torch.sqrt(self.largest) + self.rho


class BarzilaiBorwein:
    """A = (a + rho) I, a = |<w - w', p - p'>| / ||p - p'||^2, with w', p' the estimator and point one refresh
    earlier.

    If p = p', the quotient is undefined and a keeps its value, which is 0 at first. At the start p' = p, so
    a first matrix computed by this rule is rho I.
    """

    def __init__(self, rho):
        self.rho = rho

    def start(self, w, point):
        self.a = torch.zeros((), dtype=w.dtype)
        self.earlier_w, self.earlier_point = w, point

    def refresh(self, w, point, t, at_sync=True, first=False):
        change, move = w - self.earlier_w, point - self.earlier_point
        if torch.sum(move**2) > 0:
            self.a = torch.abs(torch.sum(change * move)) / torch.sum(move**2)
        self.diag = (self.a + self.rho) * torch.ones_like(w)
        self.earlier_w, self.earlier_point = w, point
