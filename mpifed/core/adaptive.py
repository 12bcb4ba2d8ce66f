"""Adaptive matrices A and B, computed from averaged estimators.

A matrix is a pure function of its moments and of the averages of a synchronisation::

    moments, A = matrix(moments, w, x, t)      # then x -= gamma * eta * w / A

* A is a diagonal ``[d]``, or a multiple of the identity ``[1]``; always A ⪰ ρ I.
* ``moments`` is a tuple that starts at zero. ``state`` gives the type of each: "block" (the shape of x), or
  "scalar".
* ``matrix.set_reference(moments, w, x)`` is for rules that compare w or x with the previous synchronisation.
  It stores the averaged estimator w and point x at the start of the run as the reference for the first
  synchronisation, and changes no average. It is called after the rule has computed A_1 from w and x.

Sources: Huang et al. 2024, Algorithm 1, line 6, and the example in the text below it; Huang, Algorithm 1,
line 6, and eq. 6. Both count t in steps but compute matrices at synchronisations only, so a_{t-1} is the
moment of the previous synchronisation. The papers use no bias correction: the first matrices are smaller than
corrected ones by a factor of about (1 - ϱ)^(1/2), and the first steps are larger.

The decays ϱ and ϑ_t are numbers or schedules of t, the step of a synchronisation: r q after round r of q
steps, and 1 if the rule computes A_1 from the initial estimators. Huang suggests ϑ_t = c η_{t-1}²; for η_t
with exponent 1/3 this is a ``power`` schedule with exponent 2/3.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import AfterValidator, Field

from mpifed.base.errors import short_repr
from mpifed.base.settings import choice, hyperparameters
from mpifed.core.records import adaptive
from mpifed.core.schedules import Constant, Rate, largest

__all__ = [
    "MATRICES", "AMSGrad", "AdaBelief", "AdaGradNorm", "Adam", "BarzilaiBorwein", "Decay", "FirstMatrix",
    "Identity", "Matrix", "Norm", "adaptive", "updates_matrix", "initial_diagonal", "refresh",
]  # fmt: skip

Moments = tuple[torch.Tensor, ...]


def _decay(rate):
    """Check that a number or a schedule is below 1."""
    if (value := largest(rate)) >= 1:
        raise ValueError(f"expected a decay below 1 at every step, got {short_repr(value)}")
    return rate.value if isinstance(rate, Constant) and not rate.warmup else rate


#: A decay ϱ_t or ϑ_t: a number or a schedule with values from 0 to below 1.
Decay: Any = Annotated[Rate, AfterValidator(_decay), Field(title="number or schedule, ≥ 0, < 1")]


def _at(decay, t: int) -> float:
    return decay(t) if callable(decay) else decay


class _Matrix:
    """Base class of the rules of adaptive matrices."""

    #: Type of each moment: "block" or "scalar".
    state: ClassVar[tuple[str, ...]] = ("block",)
    #: Type of the matrix: "block" for a diagonal, "scalar" for a multiple of the identity.
    matrix_type: ClassVar[str] = "block"
    #: False if A is the same in every round.
    adapts: ClassVar[bool] = True

    def fields(self, block: str) -> tuple[str, ...]:
        """Return the types of the record fields with the moments of a block's matrix."""
        return tuple(block if moment == "block" else "scalar" for moment in self.state)

    def shape(self, block: str) -> str:
        """Return the type of the record field with the matrix of a block."""
        return block if self.matrix_type == "block" else "scalar"

    def set_reference(self, moments: Moments, w: torch.Tensor, x: torch.Tensor) -> Moments:
        """Return the moments with ``w`` and ``x`` as the reference for the first synchronisation."""
        return moments


@hyperparameters
class Identity(_Matrix):
    """A = I: FGDA, MFCGD."""

    state = ()
    matrix_type = "scalar"
    adapts = False
    rho: ClassVar[float] = 1.0

    def __call__(self, moments: Moments, w, x, t):
        return moments, w.new_ones(1)


@hyperparameters
class Adam(_Matrix):
    """a ← ϱ a + (1 - ϱ) w², A = diag(√a + ρ) (Huang et al. 2024, line 6).

    ``bias_correction`` divides a by 1 - ϱⁿ after n synchronisations, which the papers do not; it requires a
    constant ϱ.
    """

    varrho: Decay = Field(default=0.9, description="decay ϱ_t of the second moment")
    rho: float = Field(default=0.1, ge=0, description="offset ρ: A ⪰ ρ I")
    bias_correction: bool = Field(default=False, description="divide the moment by 1 - ϱ^n")
    state = ("block", "scalar")

    def __post_init__(self):
        if self.bias_correction and callable(self.varrho):
            raise ValueError("bias_correction divides by 1 - ϱ^n: expected a constant varrho, got a schedule")

    def __call__(self, moments: Moments, w, x, t):
        (a, n), varrho = moments, _at(self.varrho, t)
        a, n = varrho * a + (1 - varrho) * w**2, n + 1
        corrected = a / (1 - varrho**n) if self.bias_correction else a
        return (a, n), corrected.sqrt() + self.rho


@hyperparameters
class AdaBelief(_Matrix):
    """a ← ϱ a + (1 - ϱ)(w - w')², A = diag(√a + ρ) (Huang et al. 2024, below Algorithm 1).

    w' is the average at the previous synchronisation. The paper prints ρ for ϱ, and does not specify w' at
    the first synchronisation; ``belief_reference`` selects it. A_1, computed from the averaged initial
    estimators, uses w' = 0 in both cases, because w' = w_1 would give ρ I.
    """

    varrho: Decay = Field(default=0.9, description="decay ϱ_t of the belief")
    rho: float = Field(default=0.1, ge=0, description="offset ρ: A ⪰ ρ I")
    belief_reference: Literal["zero", "initial"] = Field(
        default="zero", description="w' at the first synchronisation: 0, or the averaged initial estimator"
    )
    state = ("block", "block")

    def __call__(self, moments: Moments, w, x, t):
        (a, reference), varrho = moments, _at(self.varrho, t)
        a = varrho * a + (1 - varrho) * (w - reference) ** 2
        return (a, w), a.sqrt() + self.rho

    def set_reference(self, moments: Moments, w, x):
        a, reference = moments
        return a, w if self.belief_reference == "initial" else torch.zeros_like(w)


@hyperparameters
class AMSGrad(_Matrix):
    """The running maximum of Adam's moment: â ← max(â, a), A = diag(√â + ρ)."""

    varrho: Decay = Field(default=0.9, description="decay ϱ_t of the second moment")
    rho: float = Field(default=0.1, ge=0, description="offset ρ: A ⪰ ρ I")
    state = ("block", "block")

    def __call__(self, moments: Moments, w, x, t):
        (a, largest), varrho = moments, _at(self.varrho, t)
        a = varrho * a + (1 - varrho) * w**2
        largest = torch.maximum(largest, a)
        return (a, largest), largest.sqrt() + self.rho


@hyperparameters
class Norm(_Matrix):
    """a ← ϑ a + (1 - ϑ)‖w‖, A = (a + ρ) I (Huang, eq. 6, literally).

    ``root`` averages ‖w‖² instead and uses the square root of the average.
    """

    vartheta: Decay = Field(default=0.9, description="decay ϑ_t of the norm")
    rho: float = Field(default=0.1, ge=0, description="offset ρ: A ⪰ ρ I")
    root: bool = Field(default=False, description="average the squared norm and use its square root")
    state = ("scalar",)
    matrix_type = "scalar"

    def __call__(self, moments: Moments, w, x, t):
        (a,), vartheta = moments, _at(self.vartheta, t)
        norm = torch.linalg.vector_norm(w)
        a = vartheta * a + (1 - vartheta) * (norm**2 if self.root else norm)
        return (a,), (a.sqrt() if self.root else a) + self.rho


@hyperparameters
class AdaGradNorm(_Matrix):
    """a ← a + ‖w‖², A = (√a + ρ) I: non-decreasing."""

    rho: float = Field(default=0.1, ge=0, description="offset ρ: A ⪰ ρ I")
    state = ("scalar",)
    matrix_type = "scalar"

    def __call__(self, moments: Moments, w, x, t):
        (a,) = moments
        a = a + torch.linalg.vector_norm(w) ** 2
        return (a,), a.sqrt() + self.rho


@hyperparameters
class BarzilaiBorwein(_Matrix):
    """A = (|⟨Δw, Δx⟩| / ‖Δx‖² + ρ) I with the changes Δw and Δx since the previous synchronisation.

    The first synchronisation is compared with the starting point and the averaged initial estimators. A_1,
    and matrices after Δx that is zero up to rounding, keep the previous quotient, which is 0 at first.
    """

    rho: float = Field(default=0.1, ge=0, description="offset ρ: A ⪰ ρ I")
    state = ("block", "block", "scalar", "scalar")
    matrix_type = "scalar"

    def __call__(self, moments: Moments, w, x, t):
        last_w, last_x, a, has_last = moments  # has_last: 0 at the first synchronisation, then 1
        dw, dx = w - last_w, x - last_x
        square = dx @ dx
        rounding = 8 * torch.finfo(x.dtype).eps  # difference between averages of equal points
        moved = (has_last > 0) & (square > rounding**2 * (x @ x))
        a = torch.where(moved, (dw @ dx).abs() / torch.where(moved, square, 1.0), a)
        return (w, x, a, torch.ones_like(has_last)), a + self.rho

    def set_reference(self, moments: Moments, w, x):
        return w, x, moments[2], torch.ones_like(moments[3])


MATRICES = {
    "identity": Identity,
    "adam": Adam,
    "adabelief": AdaBelief,
    "amsgrad": AMSGrad,
    "norm": Norm,
    "adagrad_norm": AdaGradNorm,
    "barzilai_borwein": BarzilaiBorwein,
}

#: An adaptive matrix by name, table or instance.
Matrix = choice("matrix", MATRICES)
#: The matrices of the first round: the rule applied to the averaged initial estimators, I, or ρI.
FirstMatrix = Literal["rule", "identity", "rho"]


def initial_diagonal(method) -> float:
    """Return the value of the diagonal of a method's matrices before they are first computed."""
    return method.matrix.rho if getattr(method, "first_matrix", "identity") == "rho" else 1.0


def updates_matrix(method, steps: int, round: int) -> bool:
    """Return whether a round computes new matrices.

    Round 0 does so for ``first_matrix = "rule"``. Round 1 then does not if it has one step: it averages the
    same estimators, from which A_1 has been computed.
    """
    rule = getattr(method, "first_matrix", "") == "rule"
    return round > 1 or (rule if round == 0 else not (rule and steps == 1))


def refresh(method, steps: int, round: int, moments: Moments, w: torch.Tensor, x: torch.Tensor, t: int = 1):
    """Return the moments and the matrix after a round (line 6); ``None`` if the matrix does not change.

    Args:
        steps: local steps per round.
        w, x: averaged estimator and averaged point, ``[d]``.
        t: number of local steps of the run up to the end of this round, at least 1.
    """
    matrix, new = method.matrix, None
    if updates_matrix(method, steps, round):
        moments, new = matrix(moments, w, x, t)
    if round == 0 and not (new is not None and steps == 1):  # the start is not a synchronisation
        moments = matrix.set_reference(moments, w, x)
    return moments, new
