"""MFCGD and AdaMFCGD (003, Algorithm 1): STORM estimators of an inner value, its Jacobian and the outer gradient.

h, u and v estimate g(x), ∇g(x) and ∇f(h); w = uᵀv is the gradient estimate. A round covers q - 1 local steps and the
aggregated step, as for FGDA (000), whose conventions on rounds, matrices and samples hold here.

Readings. h, u and v stay local and are updated at every t, after a synchronisation too, from the client's own pre-average
point; only x and w are averaged. w_1 = u_1ᵀ v_1. Π scales onto the Frobenius ball (u) and the Euclidean ball (v) of radius C_g
and C_f; it leaves the initial estimators alone unless ``project_init``. v compares ∇f at h_{t+1} and h_t on one sample ξ; one ζ serves h
and u, independent of ξ. α drives h, β drives u, ϱ drives v.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field

from mpifed.core.adaptive import Identity, Matrix
from mpifed.core.algorithm import Algorithm, Phase
from mpifed.core.records import Record
from mpifed.core.schedules import Rate
from mpifed.core.settings import hyperparameters

__all__ = ["MFCGD", "AdaMFCGD"]

_START = Record(w="x")


@hyperparameters
class _MFCGD(Algorithm):
    q: int = Field(ge=1, description="steps per round: q - 1 local ones and the aggregated one")
    gamma: float = Field(default=0.1, ge=0, description="step size γ")
    eta: Rate = Field(default=1.0, validate_default=True, description="step η_t, multiplies γ")
    alpha: Rate = Field(default=0.1, validate_default=True, description="weight α_{t+1} of the fresh value in h")
    beta: Rate = Field(default=0.1, validate_default=True, description="weight β_{t+1} of the fresh Jacobian in u")
    varrho: Rate = Field(default=0.1, validate_default=True, description="weight ϱ_{t+1} of the fresh gradient in v")
    C_g: float = Field(default=math.inf, gt=0, description="bound on the Frobenius norm of u")
    C_f: float = Field(default=math.inf, gt=0, description="bound on the norm of v")
    project_init: bool = Field(default=False, description="bound the initial estimators too")

    source: ClassVar = "003, Algorithm 1"
    family: ClassVar = "composition"
    paper_cost: ClassVar = "up 2D; down D, AdaMFCGD + D; 1 phase; 2 of each of g with its Jacobian and ∇f a step"
    calls_per_step: ClassVar = 4
    partial_participation: ClassVar = False
    client: ClassVar = Record(x="x", h="u", u="jacobian", v="u")
    message: ClassVar = Record(x="x", w="x")
    coordinated: ClassVar = ("A",)
    start: ClassVar = (Phase("start", _START, down=("x",), coordinate=True),)

    @property
    def shared(self) -> Record:
        return Record(x="x", A=self.matrix.shape("x"))

    @property
    def coordinator(self) -> Record:
        return Record(a=self.matrix.fields("x"))

    @property
    def local_steps(self) -> int:
        return self.q

    def initialize(self, shared):
        shared.A = self.matrix.rho if self.first_matrix == "rho" else 1.0

    def client_start(self, r, shared, client, message, oracle):                             # line 2
        h, u, v = 0.0, 0.0, 0.0
        for j in range(self.q):
            g, J = oracle.g_and_jacobian(shared.x, oracle.sample(2 * j))
            h, u = h + g / self.q, u + J / self.q
        for j in range(self.q):
            v = v + oracle.grad_f(h, oracle.sample(2 * j + 1)) / self.q
        if self.project_init:
            u, v = _bounded(u, self.C_g, 2), _bounded(v, self.C_f, 1)
        client.h, client.u, client.v = h, u.flatten(1), v
        message.w = _gradient(u, v)

    def server_start(self, r, shared, mean, sets):
        pass  # the averaged w_1 only feeds A_1

    def client_round(self, r, shared, client, message, oracle):
        x, h, v = shared.x, client.h, client.v
        u = client.u.unflatten(-1, (h.shape[-1], -1))
        if r > 1:  # the estimators after the synchronisation, at the client's own pre-average point and the new one
            h, u, v = self._storm((r - 1) * self.q, oracle, 0, x, client.x, h, u, v)
        for k in range(1, self.q):
            old, t = x, (r - 1) * self.q + k
            x = self._step(t, x, _gradient(u, v), shared.A)                                 # lines 10-11
            h, u, v = self._storm(t, oracle, k, x, old, h, u, v)                            # lines 16-19
        message.x, message.w = x, _gradient(u, v)                                           # line 20
        client.x, client.h, client.u, client.v = x, h, u.flatten(1), v

    def coordinate(self, r, shared, coordinator, mean):
        if r == 1 and self.q == 1 and self.first_matrix == "rule":
            return {}  # the first synchronisation averages the very estimators that made A_1
        point = mean.x if r else shared.x
        coordinator.a, A = self.matrix.refresh(r, coordinator.a, mean.w, point, self.first_matrix, self.q)      # line 6
        return dict(A=A) if r > 0 or self.first_matrix == "rule" else {}

    def server_round(self, r, shared, mean, sets):
        shared.x = self._step(r * self.q, mean.x, mean.w, shared.A)                         # line 7

    def _step(self, t, x, w, A):
        return x - self.gamma * self.eta(t) * (w / A)

    def _storm(self, t, oracle, k, x, old, h, u, v):
        """h, u, v at t + 1, from the samples number k of the round."""
        eta, zeta, xi = self.eta(t), oracle.sample(2 * k), oracle.sample(2 * k + 1)
        g, J = oracle.g_and_jacobian(x, zeta)
        old_g, old_J = oracle.g_and_jacobian(old, zeta)
        new_h = g + (1 - self.alpha(t, eta)) * (h - old_g)                                  # line 17
        u = _bounded(J + (1 - self.beta(t, eta)) * (u - old_J), self.C_g, 2)                # line 18
        correction = v - oracle.grad_f(h, xi)
        v = _bounded(oracle.grad_f(new_h, xi) + (1 - self.varrho(t, eta)) * correction, self.C_f, 1)            # line 19
        return new_h, u, v


def _gradient(u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """w = uᵀv, ``[C, p, d]``, ``[C, p]`` → ``[C, d]``."""
    return (v.unsqueeze(-2) @ u).squeeze(-2)


def _bounded(value: torch.Tensor, bound: float, axes: int) -> torch.Tensor:
    """``value`` scaled to norm at most ``bound``, the norm over the last ``axes`` axes."""
    if math.isinf(bound):
        return value
    norm = torch.linalg.vector_norm(value, dim=tuple(range(-axes, 0)), keepdim=True)
    return value * (bound / norm.clamp(min=bound))


@hyperparameters
class MFCGD(_MFCGD):
    """MFCGD: Algorithm 1 of 003 with A_t = I."""

    matrix: ClassVar = Identity()
    first_matrix: ClassVar = "identity"
    coordinated: ClassVar = ()
    start: ClassVar = (Phase("start", _START, down=("x",)),)

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (Phase("round", self.message, down=("x",)),)


@hyperparameters
class AdaMFCGD(_MFCGD):
    """AdaMFCGD: Algorithm 1 of 003 with an adaptive matrix refreshed at every synchronisation."""

    matrix: Matrix = Field(default="adam", validate_default=True, description="generator of A_t")
    first_matrix: Literal["rule", "identity", "rho"] = Field(
        default="rule", description="A_1: the rule applied to the averaged initial estimator, I, or ρI"
    )
