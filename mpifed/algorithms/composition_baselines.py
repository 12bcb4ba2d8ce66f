"""ComFedL, LocalMOML, Local-SCGD(M) and compositional FedNest, the baselines of MFCGD in Huang n.d.

The objective is F(x) = (1/N) Σ_n f_n(g_n(x)). FedNest has the mean inner value of all clients instead:
F(x) = (1/N) Σ_n f_n((1/N) Σ_m g_m(x)). The objectives are equal if all g_n are.

Readings:

* *Samples.* In every step, g with its Jacobian and ∇f are evaluated on different samples, in this order.
  ``B_g``, ``B_f`` and ``K_0`` are numbers of samples with the job's batch size that are averaged.
* *ComFedL.* The source does not specify the local schedule; here q steps are taken between averages.
* *LocalMOML.* u is restarted in every round as the mean over K_0 samples at the round's point.
* *Local-SCGDM.* α is the weight of the fresh gradient in the momentum and not a factor of the step size. At t
  = 1, u and m are the first values.
* *FedNest.* Step sizes are not divided by τ. The gradient of ½‖y - g_n(x; ζ)‖² in y depends on the sample
  only through a constant, which cancels in the variance-reduced local steps, so these need no evaluations.
* *Sets.* If the problem has a set, every new x is projected. The papers have no sets.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mpifed.algorithms.composition import chain_rule
from mpifed.algorithms.fednest import in_sequence
from mpifed.base.errors import ContractError
from mpifed.base.settings import hyperparameters
from mpifed.core.algorithm import Algorithm, Phase
from mpifed.core.records import Record
from mpifed.core.schedules import Constant, Rate, Weight

__all__ = ["ComFedL", "FedNestComposition", "LocalMOML", "LocalSCGD", "LocalSCGDM"]


@hyperparameters
class ComFedL(Algorithm):
    """ComFedL: local steps along the biased plug-in gradient J(x)ᵀ∇f(g(x)) on fresh samples."""

    q: int = Field(ge=1, description="local steps per round")
    eta: Rate = Field(description="step size η_t")
    B_g: int = Field(default=1, ge=1, description="samples of g and its Jacobian that are averaged")
    B_f: int = Field(default=1, ge=1, description="samples of ∇f that are averaged")

    source = "Huang et al. 2021, ComFedL"
    cites = ("huang2021comfedl",)
    family = "composition"
    paper_cost = "up D; down D; 1 phase; B_g of g with its Jacobian and B_f of ∇f per step"
    partial_participation = False
    steps = "q"
    shared = Record(x="x")
    message = Record(x="x")

    @property
    def calls_per_step(self) -> int:
        return self.B_g + self.B_f

    def client_round(self, now, shared, client, message, oracle):
        x = shared.x
        for k in range(1, self.q + 1):
            g, J, slope = 0.0, 0.0, 0.0
            for _ in range(self.B_g):
                value, jacobian = oracle.g_and_jacobian(x, oracle.sample(of="g"))
                g, J = g + value / self.B_g, J + jacobian / self.B_g
            for _ in range(self.B_f):
                slope = slope + oracle.grad_f(g, oracle.sample(of="f")) / self.B_f
            x = oracle.sets.x(x - self.eta(now.step(k)) * chain_rule(J, slope))
        message.x = x


@hyperparameters
class LocalMOML(Algorithm):
    """LocalMOML: local steps with a moving average u of the client's inner value, restarted every round."""

    H: int = Field(ge=1, description="local steps per round")
    eta: Rate = Field(description="step size η_t")
    beta: Weight = Field(default=0.9, description="weight β of the fresh value in u")
    K_0: int = Field(default=1, ge=1, description="samples of the first value of u in a round")
    first_order: bool = Field(
        default=False, description="replace the Jacobian by the identity, as in first-order meta-learning"
    )

    source = "Wang et al. 2021, LocalMOML"
    cites = ("wang2021localmoml",)
    family = "composition"
    paper_cost = "up D; down D; 1 phase; 1 of g with its Jacobian and 1 of ∇f per step, K_0 of g per round"
    calls_per_step = 2
    steps = "H"
    shared = Record(x="x")
    message = Record(x="x")

    def client_round(self, now, shared, client, message, oracle):
        x, u = shared.x, 0.0
        for _ in range(self.K_0):
            u = u + oracle.g(x, oracle.sample(of="g")) / self.K_0
        if self.first_order and u.shape[-1] != x.shape[-1]:
            raise ContractError(
                "first_order replaces the Jacobian of g by the identity: expected as many inner values as "
                f"variables, got {u.shape[-1]} and {x.shape[-1]}"
            )
        for k in range(1, self.H + 1):
            zeta = oracle.sample(of="g")
            if self.first_order:
                g = oracle.g(x, zeta)
            else:
                g, J = oracle.g_and_jacobian(x, zeta)
            beta = self.beta(now.step(k))
            u = (1 - beta) * u + beta * g
            gradient = oracle.grad_f(u, oracle.sample(of="f"))
            if not self.first_order:
                gradient = chain_rule(J, gradient)
            x = oracle.sets.x(x - self.eta(now.step(k)) * gradient)
        message.x = x


@hyperparameters
class LocalSCGDM(Algorithm):
    """Local-SCGDM: local momentum steps with a moving average u of the inner value."""

    p: int = Field(ge=1, description="local steps per round")
    eta: Rate = Field(description="step size η_t")
    beta: Weight = Field(default=0.3, description="weight β of the fresh value in u")
    alpha: Weight = Field(
        default=0.2, description="weight α of the fresh gradient in the momentum; 1: no momentum"
    )
    average_inner: bool = Field(
        default=True, description="average u at a synchronisation; false: u remains local"
    )

    source = "Gao et al. 2022, Local-SCGDM"
    cites = ("gao2022localscgdm",)
    family = "composition"
    paper_cost = (
        "up and down 2D + p (p = size of g; 2D without average_inner); 1 phase; 1 of g with its Jacobian and "
        "1 of ∇f per step"
    )
    calls_per_step = 2
    partial_participation = False
    steps = "p"

    @property
    def message(self) -> Record:
        momentum = Record(m="x") if self.has_momentum else Record()
        inner = Record(u="u") if self.average_inner else Record()
        return Record(x="x") | momentum | inner

    @property
    def has_momentum(self) -> bool:
        """Whether the momentum differs from the fresh gradient."""
        return self.alpha != Constant(1.0)

    @property
    def shared(self) -> Record:
        return self.message

    @property
    def client(self) -> Record:
        return Record() if self.average_inner else Record(u="u")

    def client_round(self, now, shared, client, message, oracle):
        x = shared.x
        u = shared.u if self.average_inner else client.u
        m = shared.m if self.has_momentum else 0.0
        for k in range(1, self.p + 1):
            t = now.step(k)
            beta, alpha = (1.0, 1.0) if t == 1 else (self.beta(t), self.alpha(t))
            g, J = oracle.g_and_jacobian(x, oracle.sample(of="g"))
            u = (1 - beta) * u + beta * g
            slope = oracle.grad_f(u, oracle.sample(of="f"))
            m = (1 - alpha) * m + alpha * chain_rule(J, slope)
            x = oracle.sets.x(x - self.eta(t) * m)
        message.x = x
        if self.has_momentum:
            message.m = m
        if self.average_inner:
            message.u = u
        else:
            client.u = u


@hyperparameters
class LocalSCGD(LocalSCGDM):
    """Local-SCGD: Local-SCGDM without momentum, α = 1."""

    alpha: Weight = Field(default=1.0, init=False)

    source = "Gao et al. 2022, Local-SCGD"
    paper_cost = (
        "up and down D + p (p = size of g; D without average_inner); 1 phase; 1 of g with its Jacobian and "
        "1 of ∇f per step"
    )


@hyperparameters
class FedNestComposition(Algorithm):
    """Compositional FedNest: T inner calls move y to the mean inner value, then x descends along Jᵀ∇f(y)."""

    T: int = Field(ge=1, description="calls of the inner solver per round")
    tau: int = Field(ge=1, description="local steps τ of each call")
    alpha: Rate = Field(description="step size α of x in a round")
    beta: Rate = Field(description="step size β of y in a round; β = τ = 1 gives the mean inner value")
    tau_outer: int | None = Field(default=None, ge=1, description="local steps of x; default: tau")
    first_y: Literal["zero", "mean"] = Field(
        default="zero", description="y before the first round: 0, or the mean inner value at the start"
    )
    recompute_jacobian: bool = Field(
        default=False, description="compute variance-reduced gradients at the point of each local step of x"
    )
    fresh_cohort: bool = Field(default=False, description="sample a new cohort for every call and for x")

    source = "Tarzanagh et al. 2022, FedNest for compositions"
    cites = ("tarzanagh2022fednest",)
    example = {"T": 1, "tau": 1, "beta": 1.0}
    family = "composition"
    paper_cost = "up and down 2 T p + p + 2D (p = size of g); 2 T + 3 phases; T + 2 evaluations per round"
    shared = Record(x="x", y="u", q="u", v="u", h="x")

    @property
    def start(self) -> tuple[Phase, ...]:
        return (Phase(self.client_start, Record(y="u")),) if self.first_y == "mean" else ()

    @property
    def phases(self) -> tuple[Phase, ...]:
        inner = (Phase(self.client_residual, Record(q="u")), Phase(self.client_inner, Record(y="u")))
        outer = (
            Phase(self.client_outer, Record(v="u")),
            Phase(self.client_gradient, Record(h="x")),
            Phase(self.client_descent, Record(x="x")),
        )
        return in_sequence([*[inner] * self.T, outer], self.fresh_cohort)

    def client_start(self, now, shared, client, message, oracle):
        message.y = oracle.g(shared.x, oracle.sample(of="g"))

    def client_residual(self, now, shared, client, message, oracle):
        message.q = shared.y - oracle.g(shared.x, oracle.sample(of="g"))

    def client_inner(self, now, shared, client, message, oracle):
        y = shared.y
        for _ in range(self.tau):
            y = y - self.beta(now.round) * ((y - shared.y) + shared.q)
        message.y = y

    def client_outer(self, now, shared, client, message, oracle):
        message.v = oracle.grad_f(shared.y, oracle.sample(of="f"))

    def client_gradient(self, now, shared, client, message, oracle):
        message.h = self._gradient(shared.x, shared.v, oracle.sample(of="g"), oracle)

    def client_descent(self, now, shared, client, message, oracle):
        x = shared.x
        for _ in range(self.tau_outer or self.tau):
            h = shared.h
            if self.recompute_jacobian:
                zeta = oracle.sample(of="g")
                before = self._gradient(shared.x, shared.v, zeta, oracle)
                h = self._gradient(x, shared.v, zeta, oracle) - before + h
            x = oracle.sets.x(x - self.alpha(now.round) * h)
        message.x = x

    def _gradient(self, x, v, zeta, oracle):
        """Return J(x; ζ)ᵀv for v ``[p]``."""
        _, J = oracle.g_and_jacobian(x, zeta)
        return chain_rule(J, v.expand(len(J), -1))
