"""MFCGD and AdaMFCGD (Huang n.d., Algorithm 1): STORM estimators of all parts of a composition.

h, u and v estimate the inner value g(x), its Jacobian ∇g(x) and the outer gradient ∇f(h). w = uᵀv estimates
the gradient.

Lines of Algorithm 1 in the margins of this file:

* Lines 3, 4 and 8 are the rounds. Round r covers t = (r-1) q + 1 .. r q: q - 1 local steps and the aggregated
  step.
* Line 5 is the average of the messages. Line 6 is ``refresh`` in ``mpifed.core.adaptive``, between the
  average and line 7. Line 12 is implicit: A is kept until it is recomputed.
* Lines 7 and 11 are solved in closed form: x - γ η_t A⁻¹ w, eq. 10 of the paper.
* Lines 16-20 for t = r q need the new point, so clients execute them at the start of round r + 1. ζ_{t+1} and
  ξ_{t+1} have the numbers 2 (t mod q) and 2 (t mod q) + 1 in their round; those for t = 0 are unused.
* Line 23 is a setting of the job: ``output = "uniform"`` returns the point x̄ after a random round.

Readings:

* *Estimators at a synchronisation.* h, u and v remain local and are updated at every t, after a
  synchronisation with the client's own point before averaging. Only x and w are averaged.
* *Start.* w_1 = u_1ᵀ v_1, which the paper omits.
* *Projections.* Π scales u to the Frobenius ball of radius C_g and v to the Euclidean ball of radius C_f. It
  is applied to the initial estimators only with ``project_init``.
* *Samples.* h and u use the same ζ; ξ is independent. v uses one ξ at h_{t+1} and h_t.
* *Letters.* α is the weight of h, β of u, ϱ of v. Their values at t are those of the paper at t + 1. ϑ_t, the
  decay in line 6, is a hyperparameter of the matrix.
* *Sets.* If the problem has a set, every new x is projected. The paper has no sets.
"""

from __future__ import annotations

import math

import torch
from pydantic import Field

from mpifed.base.settings import hyperparameters
from mpifed.core.adaptive import FirstMatrix, Matrix, adaptive
from mpifed.core.algorithm import Algorithm, Phase
from mpifed.core.directions import clip
from mpifed.core.records import Record
from mpifed.core.schedules import Rate, StormWeight

__all__ = ["MFCGD", "AdaMFCGD", "chain_rule"]


@hyperparameters
class AdaMFCGD(Algorithm):
    """AdaMFCGD: STORM on every level, with an adaptive matrix that is updated at every synchronisation."""

    q: int = Field(ge=1, description="steps per round: q - 1 local ones and the aggregated one")
    gamma: Rate = Field(default=0.001, description="step size γ")
    eta: Rate = Field(default=1.0, description="step η_t, multiplies γ")
    alpha: StormWeight = Field(default=0.1, description="weight α_{t+1} of the fresh value in h")
    beta: StormWeight = Field(default=0.1, description="weight β_{t+1} of the fresh Jacobian in u")
    varrho: StormWeight = Field(default=0.1, description="weight ϱ_{t+1} of the fresh gradient in v")
    C_g: float = Field(default=math.inf, gt=0, description="bound on the Frobenius norm of u")
    C_f: float = Field(default=math.inf, gt=0, description="bound on the norm of v")
    project_init: bool = Field(default=False, description="apply the bounds to the initial estimators, too")
    matrix: Matrix = Field(default="adam", description="generator of A_t")
    first_matrix: FirstMatrix = Field(
        default="rule", description="A_1: the rule applied to the averaged initial estimator, I, or ρI"
    )

    needs = {
        "project_init": ("C_g or C_f", lambda method: min(method.C_g, method.C_f) < math.inf),
    }
    source = "Huang n.d., Algorithm 1"
    cites = ("huang_nd_mfcgd",)
    family = "composition"
    paper_cost = (
        "up 2D; down D, AdaMFCGD + D; 1 phase; 2 of each of g with its Jacobian and ∇f per step"
    )
    calls_per_step = 4
    partial_participation = False
    steps = "q"
    shared = Record(x="x", A=adaptive("x", of="w"))                                         # line 6
    client = Record(x="x", h="u", u="jacobian", v="u")
    message = Record(x="x", w="x")

    @property
    def start(self) -> tuple[Phase, ...]:
        return (Phase(self.client_start, Record(w="x")),)  # the averaged w_1 only feeds A_1

    def client_start(self, now, shared, client, message, oracle):                           # line 2
        samples = [(oracle.sample(of="g"), oracle.sample(of="f")) for _ in range(self.q)]
        h, u, v = 0.0, 0.0, 0.0
        for zeta, _ in samples:
            g, J = oracle.g_and_jacobian(shared.x, zeta)
            h, u = h + g / self.q, u + J / self.q
        for _, xi in samples:
            v = v + oracle.grad_f(h, xi) / self.q
        if self.project_init:
            u, v = _bounded(u, self.C_g, 2), _bounded(v, self.C_f, 1)
        client.h, client.u, client.v = h, u.flatten(1), v
        message.w = chain_rule(u, v)

    def client_round(self, now, shared, client, message, oracle):
        x, h, v = shared.x, client.h, client.v
        u = client.u.unflatten(-1, (h.shape[-1], -1))
        zeta, xi = oracle.sample(of="g"), oracle.sample(of="f")
        if now.round > 1:  # the update at the synchronisation, from the client's point before averaging
            h, u, v = self._storm(now.step(0), oracle, zeta, xi, x, client.x, h, u, v)      # lines 16-19
        for k in range(1, self.q):                                                          # lines 8-9
            old, t = x, now.step(k)
            x = self._step(t, x, chain_rule(u, v), shared.A, now.sets)                      # lines 10-11
            zeta, xi = oracle.sample(of="g"), oracle.sample(of="f")
            h, u, v = self._storm(t, oracle, zeta, xi, x, old, h, u, v)                     # lines 16-19
        message.x, message.w = x, chain_rule(u, v)                                          # lines 20, 5
        client.x, client.h, client.u, client.v = x, h, u.flatten(1), v

    def server_round(self, now, shared, mean):
        shared.x = self._step(now.step(self.q), mean.x, mean.w, shared.A, now.sets)         # line 7

    def _step(self, t, x, w, A, sets):
        return sets.x(x - self.gamma(t) * self.eta(t) * (w / A))

    def _storm(self, t, oracle, zeta, xi, x, old, h, u, v):
        """Return h, u, v at t + 1, with the samples ζ_{t+1} and ξ_{t+1} at the points ``x`` and ``old``."""
        eta = self.eta(t)
        g, J = oracle.g_and_jacobian(x, zeta)
        old_g, old_J = oracle.g_and_jacobian(old, zeta)
        new_h = g + (1 - self.alpha(t, eta)) * (h - old_g)                                  # line 17
        u = _bounded(J + (1 - self.beta(t, eta)) * (u - old_J), self.C_g, 2)                # line 18
        kept = (1 - self.varrho(t, eta)) * (v - oracle.grad_f(h, xi))
        v = _bounded(oracle.grad_f(new_h, xi) + kept, self.C_f, 1)                          # line 19
        return new_h, u, v


def chain_rule(u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return w = uᵀv, ``[C, d]``, for u ``[C, p, d]`` and v ``[C, p]``."""
    return (v.unsqueeze(-2) @ u).squeeze(-2)


def _bounded(value: torch.Tensor, bound: float, axes: int) -> torch.Tensor:
    """Scale ``value`` to a norm over the last ``axes`` axes of at most ``bound``."""
    return value if math.isinf(bound) else clip(value, bound, tuple(range(-axes, 0)))


@hyperparameters
class MFCGD(AdaMFCGD):
    """MFCGD: AdaMFCGD with A_t = I."""

    gamma: Rate = Field(default=0.01, description="step size γ")
    matrix: Matrix = Field(default="identity", init=False)
    first_matrix: FirstMatrix = Field(default="identity", init=False)
