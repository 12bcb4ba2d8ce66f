"""LSGD, LESGD, LIPPAX and SLIPPAX (Wang & Kale), and extragradient methods, for variational inequalities.

Steps are t = 1 .. K R; every K-th step is a synchronisation. LSGD is eq. 11 and LESGD eq. 4, without line
numbers. Line numbers in the margin of LIPPAX are those of Algorithm 1, with those of SLIPPAX (Algorithm 2) in
parentheses. ``x`` is the point of the second operator value and ``z`` the iterate, which the paper calls x_t
for LSGD. Minibatch ExtraSGD (Beznosikov, Samokhin & Gasnikov 2025) takes one step per round, with both points
at the server. Extra-step Local SGD (Beznosikov et al. 2022) is LESGD without averaging x.

Readings:

* *Samples.* The two operator values of a step use independent samples. ExtraSGD averages the values of b
  samples with the job's batch size.
* *Step size of the extrapolation.* x = z - γ V(z; ξ) may have its own step size γ, as in Hsieh et al. 2020.
  By default γ = η, as in the papers of these methods and in their theorems.
* *Synchronisation.* LESGD in the paper averages x_t before the second operator value of a synchronising step,
  and z_t after it, in two phases. ``sync_extrapolation = false`` averages only z_t, as do LIPPAX, SLIPPAX and
  extra-step Local SGD.
* *Budgets.* A step of ExtraSGD has two communications. R rounds of LESGD with one communication each compare
  with R/2 rounds of ExtraSGD; with b = K a round has as many operator values as one of LESGD.
* *Cohorts.* The analysis of ExtraSGD is for all clients. With a cohort, both averages are over the same
  cohort.
* *Start.* z_0 is the problem's starting point at all clients; in the paper it is 0.
* *Inner loop.* LIPPAX uses plain SGD on the regularised operator, although the text mentions LESGD steps.
  The default is γ = 1 / (η (L + 1/η)²).
* *Smoothing.* The radius δ of SLIPPAX is ησ / d^{1/4}, as in the proof and the stated rate, or ησ / √d, as in
  the theorem. The second operator value is not smoothed.
* *Output.* The average of the points x_t over clients and steps; for LSGD, of the iterates after z_0.
  ``average`` is the running average over the rounds.
* *Sets.* If the problem has a set, every new point is projected onto it. The paper has no sets.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from mpifed.base.settings import Needs, hyperparameters
from mpifed.core.algorithm import Algorithm, Phase
from mpifed.core.records import Record, not_sent, within_round
from mpifed.core.schedules import PositiveRate, Rate

__all__ = ["LSGD", "LESGD", "LIPPAX", "SLIPPAX", "ExtraSGD", "ExtraStepLocalSGD"]


@hyperparameters
class _Local(Algorithm):
    K: int = Field(ge=1, description="local steps per round")
    eta: Rate = Field(description="step size η")

    family = "operator"
    partial_participation = False
    output = "average"
    averages = {"z": "average"}
    steps = "K"
    shared = Record(z="z", average=not_sent("z"))
    message = Record(z="z", x_sum=not_sent("z"))

    def client_round(self, now, shared, client, message, oracle):
        z = shared.z
        for k in range(1, self.K + 1):                                                      # line 2
            x, z = self.step(now.step(k), z, oracle)
            message.x_sum += x                                                              # line 12 (13)
        message.z = z                                                                       # line 9 (10)

    def server_round(self, now, shared, mean):
        shared.z = now.sets.z(mean.z)
        self._average(now, shared, mean.x_sum)

    def _average(self, now, shared, x_sum):
        """Update the output, the average over all steps, with the sum over the K steps of the round."""
        shared.average += (x_sum / self.K - shared.average) / (now.step(self.K) / self.K)


@hyperparameters
class LSGD(_Local):
    """Local SGD: z ← z - η V(z; ξ). The output is the average of the iterates after z_0."""

    source = "Wang & Kale n.d., eq. 11"
    cites = ("wang_nd_slippax",)
    paper_cost = "up D; down D; 1 phase; 1 operator value per step"

    def step(self, t, z, oracle):
        z = oracle.sets.z(z - self.eta(t) * oracle.operator(z, oracle.sample()))
        return z, z


@hyperparameters
class ExtraStepLocalSGD(_Local):
    """Extra-step Local SGD: x = z - γ V(z; ξ), z ← z - η V(x; ξ'); only z is averaged."""

    gamma: Rate | None = Field(default=None, description="step size γ of the extrapolation; default: eta")

    source = "Beznosikov et al. 2022"
    cites = ("beznosikov2022extragradient",)
    paper_cost = "up D; down D; 1 phase; 2 operator values per step"
    calls_per_step = 2

    def extrapolate(self, t, z, oracle):
        gamma = self.gamma or self.eta
        return oracle.sets.z(z - gamma(t) * oracle.operator(z, oracle.sample()))

    def update(self, t, z, x, oracle):
        return oracle.sets.z(z - self.eta(t) * oracle.operator(x, oracle.sample()))

    def step(self, t, z, oracle):
        x = self.extrapolate(t, z, oracle)
        return x, self.update(t, z, x, oracle)


@hyperparameters
class LESGD(ExtraStepLocalSGD):
    """Local extra SGD: x = z - γ V(z; ξ), z ← z - η V(x; ξ'), both averaged at a synchronisation."""

    sync_extrapolation: bool = Field(
        default=True, description="average x before the second call of a synchronising step (a second phase)"
    )
    source = "Wang & Kale n.d., eq. 4"
    cites = ("wang_nd_slippax", "beznosikov2022extragradient")
    paper_cost = "up 2D; down 2D; 2 phases (1 without sync_extrapolation); 2 operator values per step"

    shared = Record(z="z", average=not_sent("z"), x="z")
    client = Record(z=within_round("z"))

    @property
    def phases(self) -> tuple[Phase, ...]:
        if not self.sync_extrapolation:
            return super().phases
        extrapolated = Record(x="z", x_sum=not_sent("z"))
        return (
            Phase(self.client_extrapolate, extrapolated, self.server_extrapolate),
            Phase(self.client_update, Record(z="z")),
        )

    def client_extrapolate(self, now, shared, client, message, oracle):
        z = shared.z
        for k in range(1, self.K):  # steps without synchronisation
            x, z = self.step(now.step(k), z, oracle)
            message.x_sum += x
        message.x, client.z = self.extrapolate(now.step(self.K), z, oracle), z
        message.x_sum += message.x

    def server_extrapolate(self, now, shared, mean):
        shared.x = now.sets.z(mean.x)
        self._average(now, shared, mean.x_sum)

    def client_update(self, now, shared, client, message, oracle):
        message.z = self.update(now.step(self.K), client.z, shared.x, oracle)


@hyperparameters
class ExtraSGD(Algorithm):
    """Minibatch extragradient: x = z - γ mean V(z; ξ), z ← z - η mean V(x; ξ'), over clients and samples."""

    eta: Rate = Field(description="step size η")
    b: int = Field(default=1, ge=1, description="number of samples per client at each of the two points")
    gamma: Rate | None = Field(default=None, description="step size γ of the extrapolation; default: eta")

    source = "Beznosikov, Samokhin & Gasnikov 2025"
    cites = ("beznosikov2025distributed",)
    family = "operator"
    paper_cost = "up 2D; down 2D; 2 phases; 2 b operator values per step, one step per round"
    output = "average"
    averages = {"z": "average"}
    projects = "server"

    shared = Record(z="z", average=not_sent("z"), x="z")
    message = Record(V="z")

    @property
    def calls_per_step(self) -> int:
        return 2 * self.b

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (
            Phase(self.client_extrapolate, self.message, self.server_extrapolate),
            Phase(self.client_update, self.message, self.server_update),
        )

    def value(self, z, oracle):
        """Return the average of V(z; ξ) over b samples."""
        return sum(oracle.operator(z, oracle.sample()) for _ in range(self.b)) / self.b

    def client_extrapolate(self, now, shared, client, message, oracle):
        message.V = self.value(shared.z, oracle)

    def server_extrapolate(self, now, shared, mean):
        gamma = self.gamma or self.eta
        shared.x = now.sets.z(shared.z - gamma(now.round) * mean.V)
        shared.average += (shared.x - shared.average) / now.round

    def client_update(self, now, shared, client, message, oracle):
        message.V = self.value(shared.x, oracle)

    def server_update(self, now, shared, mean):
        shared.z = now.sets.z(shared.z - self.eta(now.round) * mean.V)


@hyperparameters
class _ProximalPoint(_Local):
    """Base class: H inner SGD steps on V(x) + (x - z)/η, then z ← z - η V(x; ξ')."""

    eta: PositiveRate = Field(description="step size η")
    H: int = Field(ge=0, description="inner steps")
    gamma: PositiveRate | None = Field(
        default=None, description="inner step size γ of a step; default: computed from η and L"
    )
    L: float | None = Field(default=None, ge=0, description="Lipschitz constant of V, for γ")

    needs: ClassVar[Needs] = {"L": ("the default of gamma", lambda method: method.gamma is None)}
    cites = ("wang_nd_slippax",)
    paper_cost = "up D; down D; 1 phase; H + 1 operator values per step"

    def __post_init__(self):
        if self.gamma is None and self.L is None and self.H > 0:
            raise ValueError("expected gamma, or L for gamma = 1 / (eta (L + 1/eta)^2), got neither")

    @property
    def calls_per_step(self) -> int:
        return self.H + 1

    def inner_rate(self, t: int) -> float:
        """Return the inner step size γ of step t."""
        return self.gamma(t) if self.gamma else 1 / (self.eta(t) * (self.L + 1 / self.eta(t)) ** 2)

    def proximal_step(self, t, z, oracle, smoothed):
        """Return x_t and z_t, with inner operator values at ``smoothed(x)``."""
        x, eta = z, self.eta(t)                                                             # line 4
        for _ in range(self.H):                                                             # line 5
            V = oracle.operator(smoothed(x), oracle.sample())                               # line 6 (6-7)
            x = oracle.sets.z(x - self.inner_rate(t) * (V + (x - z) / eta))
        return x, oracle.sets.z(z - eta * oracle.operator(x, oracle.sample()))              # lines 8-9 (9-10)


@hyperparameters
class LIPPAX(_ProximalPoint):
    """Local inexact proximal point: H inner SGD steps on V(x) + (x - z)/η, then z ← z - η V(x; ξ')."""

    source = "Wang & Kale n.d., LIPPAX"
    example = {"L": 1.0}

    def step(self, t, z, oracle):
        return self.proximal_step(t, z, oracle, lambda x: x)


@hyperparameters
class SLIPPAX(_ProximalPoint):
    """LIPPAX with Gaussian smoothing: inner operator values at x + δ s with new s ~ N(0, I)."""

    delta: float | Literal["derived", "theorem"] = Field(
        default="derived", description="smoothing radius δ: a number, ησ/d^(1/4), or ησ/√d"
    )
    sigma: float | None = Field(default=None, ge=0, description="noise level σ, for δ")

    needs: ClassVar[Needs] = _ProximalPoint.needs | {
        "sigma": ("delta = 'derived' or 'theorem'", lambda method: isinstance(method.delta, str)),
    }
    source = "Wang & Kale n.d., SLIPPAX"
    example = {"L": 1.0, "sigma": 1.0}

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.delta, str) and self.sigma is None and self.H > 0:
            raise ValueError(f"delta = {self.delta!r} needs sigma: set sigma, or delta to a number")

    def step(self, t, z, oracle):
        def smoothed(x):
            delta = self.radius(t, x.shape[-1])
            return x + delta * oracle.normal(x.shape[-1]) if delta else x

        return self.proximal_step(t, z, oracle, smoothed)

    def radius(self, t: int, d: int) -> float:
        """Return the smoothing radius δ of step t for d variables."""
        if self.delta == "derived":
            return self.eta(t) * self.sigma / d**0.25
        if self.delta == "theorem":
            return self.eta(t) * self.sigma / d**0.5
        return self.delta
