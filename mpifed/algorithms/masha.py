"""MASHA1 and MASHA2 (Beznosikov et al. 2022): extragradient steps with compression in both directions.

Clients know F = (1/N) Σ F_i, where F_i = V_i(w) is their operator at a reference point w. They send the
compressed change of their operator, and the server sends the compressed mean q of these::

    z̄ = τ z + (1 - τ) w    z½ = prox_γφ(z̄ - γ F)    q = Q_s(mean of Q(V_i(z½) - F_i))
    z ← prox_γφ(z̄ - γ (F + q))

With probability 1 - τ, z becomes the reference point and all F_i are exchanged uncompressed. The compressed
changes vanish at the solution, so the limit is exact with constant step sizes, unlike that of an
extragradient method that compresses V_i. This is MASHA1, for unbiased compressions such as rand-k. MASHA2 has
error feedback and is for contractions such as top-k::

    s_i = C(γ (V_i(z½) - F_i) + e_i)    e_i ← γ (V_i(z½) - F_i) + e_i - s_i
    s = C_s(mean of s_i + e)    e ← mean of s_i + e - s    z ← z½ - s

Readings:

* *Operators.* The paper's values V_i are exact. Here they are values of samples, exact with
  ``oracle.batch_size = 0`` and without noise; otherwise the limit has an error.
* *Reference point.* w becomes the new point z (``reference = "new"``) or the point before the step
  (``"old"``).
* *Coin.* All clients draw the coin of a round from the same stream, so no bit is sent.
* *Start.* w is the starting point, and all F_i are exchanged once before the first round.
* *Server.* Clients compute z from q, so a download of z takes the bytes of a compressed vector.
* *Error feedback of MASHA2.* The residuals contain γ, as the compressed vectors do. Random compressions are
  used as contractions: rand-k without its factor d/k, QSGD divided by 1 + ω.
* *Sets.* MASHA1 takes sets as part of φ. MASHA2 is defined without sets and φ.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mpifed.base.settings import hyperparameters
from mpifed.core.algorithm import Algorithm, Phase
from mpifed.core.compression import Compression, compress
from mpifed.core.records import Record, compressed, not_sent
from mpifed.core.schedules import Rate

__all__ = ["MASHA1", "MASHA2"]

_SHARED = Record(z=compressed("z", by="server_compression"), w=not_sent("z"), F="z")


@hyperparameters
class _Masha(Algorithm):
    """Base class: the settings, the points, and the reference point with the coin that changes it."""

    gamma: Rate = Field(description="step size γ, evaluated at the round")
    tau: float = Field(
        ge=0, lt=1, description="weight τ of z; with probability 1 - τ the reference point changes in a round"
    )
    compression: Compression | None = Field(
        default=None, description="compression of the clients' messages; default: none"
    )
    server_compression: Compression | None = Field(
        default=None, description="compression of the server's message; default: none"
    )
    reference: Literal["new", "old"] = Field(
        default="new", description="the new reference point: z after the step or before it"
    )

    cites = ("beznosikov2022masha",)
    family = "operator"
    example = {"tau": 0.75}
    paper_cost = (
        "up and down a compressed vector, and D with probability 1 - tau; 1 or 2 phases; "
        "1 operator value, and 1 with probability 1 - tau"
    )
    partial_participation = False

    @property
    def start(self) -> tuple[Phase, ...]:
        return (Phase(self.client_start, Record(F="z")),)

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (
            Phase(self.client_change, self.message, self.server_step),
            Phase(self.client_reference, Record(F="z"), when=self.changes_reference),
        )

    def initialize(self, shared):
        shared.w = shared.z

    def client_start(self, now, shared, client, message, oracle):
        message.F = client.F = oracle.operator(shared.z, oracle.sample())

    def changes_reference(self, now) -> bool:
        """Return whether the reference point changes at the end of this round."""
        return now.stream("reference").uniform().item() >= self.tau

    def step(self, now, shared, V, prox):
        """Return the point after a step from z̄ along V."""
        z_bar, gamma = self.tau * shared.z + (1 - self.tau) * shared.w, self.gamma(now.round)
        return prox(z_bar - gamma * V, gamma)

    def move(self, now, shared, z):
        """Replace z, and the reference point if it changes."""
        if self.changes_reference(now):
            shared.w = z if self.reference == "new" else shared.z
        shared.z = z

    def client_reference(self, now, shared, client, message, oracle):
        message.F = client.F = oracle.operator(shared.w, oracle.sample())


@hyperparameters
class MASHA1(_Masha):
    """MASHA1: extragradient with unbiased compressions of changes of the operator."""

    source = "Beznosikov et al. 2022, MASHA1"
    composite = True
    projects = "server"
    shared = _SHARED
    client = Record(F="z")
    message = Record(q=compressed("z", by="compression"))

    def __post_init__(self):
        for name in ("compression", "server_compression"):
            rule = getattr(self, name)
            if rule is not None and not rule.unbiased:
                raise ValueError(
                    f"{name}: expected an unbiased compression such as rand-k, got {rule.choice_name}; "
                    "MASHA2 is for contractions such as top-k"
                )

    def client_change(self, now, shared, client, message, oracle):
        z_half = self.step(now, shared, shared.F, oracle.prox)
        change = oracle.operator(z_half, oracle.sample()) - client.F
        message.q = compress(self.compression, change, now.stream("client", oracle.client))

    def server_step(self, now, shared, mean):
        q = compress(self.server_compression, mean.q, now.stream("server"))
        self.move(now, shared, self.step(now, shared, shared.F + q, now.prox))


@hyperparameters
class MASHA2(_Masha):
    """MASHA2: MASHA1 with error feedback on both sides, for contractive compressions."""

    source = "Beznosikov et al. 2022, MASHA2"
    constrained = False
    shared = _SHARED | Record(e=not_sent("z"))
    client = Record(F="z", e="z")
    message = Record(s=compressed("z", by="compression"))

    def client_change(self, now, shared, client, message, oracle):
        z_half = self.step(now, shared, shared.F, oracle.prox)
        change = self.gamma(now.round) * (oracle.operator(z_half, oracle.sample()) - client.F) + client.e
        message.s = compress(self.compression, change, now.stream("client", oracle.client), contract=True)
        client.e = change - message.s

    def server_step(self, now, shared, mean):
        change = mean.s + shared.e
        s = compress(self.server_compression, change, now.stream("server"), contract=True)
        shared.e = change - s
        self.move(now, shared, self.step(now, shared, shared.F, now.prox) - s)
