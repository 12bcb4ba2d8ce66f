"""AFL (Mohri, Sivek & Suresh 2019): agnostic federated learning."""

from __future__ import annotations

from mpifed.algorithms.fed_norm import FedNormSGDA
from mpifed.base.settings import Preset

__all__ = ["AFL"]

AFL = Preset(
    "AFL",
    FedNormSGDA,
    """AFL: one step of x and of the clients' weights λ (block y) per round, projected at the server.

    AFL is Fed-Norm-SGDA with one local step, on a mixture of the clients' losses such as ``ClientMixture``.
    γ_w and γ_λ are ``gamma_x`` and ``gamma_y``. With a cohort S, the gradient in λ is estimated by
    (N/|S|) ℓ_i for the clients i of S.

    Readings:

    * *Samples.* The gradients in x and in λ have the same sample.
    * *Draw of a domain.* A variant of the paper draws one client by λ for the gradient in x. Here, every
      client of the cohort computes a gradient, which is weighted by λ.
    * *Output.* As in the paper, the averages of x and λ over the rounds.
    * *Other implementations* bound λ from below by .001, reduce γ_λ by a constant factor per round, or use
      multiplicative weights. None of this is part of the paper.""",
    about={
        "source": "Mohri, Sivek & Suresh 2019",
        "cites": ("mohri2019afl",),
        "paper_cost": "up |x| and 1 number; down |x| and |λ|; 1 phase; 1 gradient per round",
        "output": "average",
        "example": {},
    },
    tau=1,
    eta_x=0.0,
    eta_y=0.0,
    a=1.0,
    tau_eff=None,
)
