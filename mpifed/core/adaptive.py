"""Adaptive matrices: how the averaged estimators become the matrices A and B of the adaptive methods.

A matrix is a pure function of its moments and of the averages of a synchronisation::

    moments, A = matrix(moments, w, x, t)      # then x -= gamma * eta * w / A

* A is a diagonal, shape ``[d]``, or a multiple of the identity, shape ``[1]``; always A ⪰ ρ I.
* ``moments`` is a tuple that starts as zeros. ``state`` names the kind of each: "block" like x, or "scalar".
* ``matrix.refer(moments, w, x)`` is for rules that compare with the previous synchronisation. It sets the
  reference of the first synchronisation, the averaged estimator and the point at the common start, and
  accumulates nothing. The matrix that the rule computes from these averages comes before it.

Sources: Huang et al. 2024, Algorithm 1, line 6, and the example below it in the text; Huang, Algorithm 1,
line 6, and eq. 6. Both count t in steps, but make matrices at synchronisations only: their a_{t-1} is the
moment of the one before. The papers use no bias correction, so the first matrices are about (1 - ϱ)^(-1/2)
smaller than corrected ones, and the first steps that much larger.

Decays ϱ and ϑ_t are numbers or schedules of t. A synchronisation's t is that of its aggregated step, r q
after round r of q steps; it is 1 where the rule makes A_1 of the initial estimators. α_t = c η_{t-1}², which
Huang suggests for ϑ_t, is a ``power`` of exponent 2/3 where η_t is one of exponent 1/3.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import AfterValidator, Field

from mpifed.base.errors import short_repr
from mpifed.base.settings import choice, hyperparameters
from mpifed.core.records import Adaptive
from mpifed.core.schedules import Constant, Rate, Squared

__all__ = [
    "MATRICES",
    "AMSGrad",
    "AdaBelief",
    "AdaGradNorm",
    "Adam",
    "BarzilaiBorwein",
    "Decay",
    "FirstMatrix",
    "Identity",
    "Matrix",
    "Norm",
    "adaptive",
    "due",
    "first",
    "refresh",
]

Moments = tuple[torch.Tensor, ...]


def _decay(rate):
    """A number or a schedule, below 1 at every t: a schedule is monotone, so its first and last values
    suffice."""
    if isinstance(rate, Squared):
        raise ValueError("'squared' follows a step size η, which a matrix does not have: take 'power'")
    for value in (rate(1), rate(2**53)):
        if value >= 1:
            raise ValueError(f"expected a decay below 1, or a schedule of such, got {short_repr(value)}")
    return rate.value if isinstance(rate, Constant) else rate


#: A decay ϱ_t or ϑ_t: a number or a schedule with values from 0 to below 1.
Decay: Any = Annotated[Rate, AfterValidator(_decay), Field(title="number or schedule, < 1")]


def _at(decay, t: int) -> float:
    return decay(t) if callable(decay) else decay


class _Matrix:
    state: ClassVar[tuple[str, ...]] = ("block",)
    kind: ClassVar[str] = "block"
    #: False where A is the same in every round.
    adapts: ClassVar[bool] = True

    def fields(self, block: str) -> tuple[str, ...]:
        """The kinds of the moments for this block of variables, as a record wants them."""
        return tuple(block if kind == "block" else "scalar" for kind in self.state)

    def shape(self, block: str) -> str:
        """The kind of the matrix itself for this block."""
        return block if self.kind == "block" else "scalar"

    def refer(self, moments: Moments, w: torch.Tensor, x: torch.Tensor) -> Moments:
        """The moments once the common starting point is known."""
        return moments


@hyperparameters
class Identity(_Matrix):
    """A = I: FGDA, MFCGD."""

    state = ()
    kind = "scalar"
    adapts = False
    rho: ClassVar[float] = 1.0

    def __call__(self, moments: Moments, w, x, t):
        return moments, w.new_ones(1)


@hyperparameters
class Adam(_Matrix):
    """a ← ϱ a + (1 - ϱ) w², A = diag(√a + ρ) (Huang et al. 2024, line 6).

    ``bias_correction`` divides a by 1 - ϱⁿ after n synchronisations, which no paper does; ϱ is constant then.
    """

    varrho: Decay = Field(default=0.9, description="decay ϱ_t of the second moment")
    rho: float = Field(default=0.01, ge=0, description="offset ρ: A ⪰ ρ I")
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

    w' is the average at the synchronisation before. The paper prints ρ for ϱ, and leaves w' open at the first
    synchronisation: ``belief_reference``. The matrix that the rule makes of the averaged initial estimators
    themselves has w' = 0 in both readings; compared with itself, w_1 would make it ρ I.
    """

    varrho: Decay = Field(default=0.9, description="decay ϱ_t of the belief")
    rho: float = Field(default=0.01, ge=0, description="offset ρ: A ⪰ ρ I")
    belief_reference: Literal["zero", "initial"] = Field(
        default="zero", description="w' at the first synchronisation: 0, or the averaged initial estimator"
    )
    state = ("block", "block")

    def __call__(self, moments: Moments, w, x, t):
        (a, reference), varrho = moments, _at(self.varrho, t)
        a = varrho * a + (1 - varrho) * (w - reference) ** 2
        return (a, w), a.sqrt() + self.rho

    def refer(self, moments: Moments, w, x):
        a, reference = moments
        return a, w if self.belief_reference == "initial" else torch.zeros_like(w)


@hyperparameters
class AMSGrad(_Matrix):
    """Adam's moment with its running maximum: â ← max(â, a), A = diag(√â + ρ)."""

    varrho: Decay = Field(default=0.9, description="decay ϱ_t of the second moment")
    rho: float = Field(default=0.01, ge=0, description="offset ρ: A ⪰ ρ I")
    state = ("block", "block")

    def __call__(self, moments: Moments, w, x, t):
        (a, largest), varrho = moments, _at(self.varrho, t)
        a = varrho * a + (1 - varrho) * w**2
        largest = torch.maximum(largest, a)
        return (a, largest), largest.sqrt() + self.rho


@hyperparameters
class Norm(_Matrix):
    """a ← ϑ a + (1 - ϑ)‖w‖, A = (a + ρ) I (Huang, eq. 6, literally).

    ``root`` averages ‖w‖² instead and takes the root of the average.
    """

    vartheta: Decay = Field(default=0.9, description="decay ϑ_t of the norm")
    rho: float = Field(default=0.01, ge=0, description="offset ρ: A ⪰ ρ I")
    root: bool = Field(default=False, description="average the squared norm and take the root")
    state = ("scalar",)
    kind = "scalar"

    def __call__(self, moments: Moments, w, x, t):
        (a,), vartheta = moments, _at(self.vartheta, t)
        norm = torch.linalg.vector_norm(w)
        a = vartheta * a + (1 - vartheta) * (norm**2 if self.root else norm)
        return (a,), (a.sqrt() if self.root else a) + self.rho


@hyperparameters
class AdaGradNorm(_Matrix):
    """a ← a + ‖w‖², A = (√a + ρ) I: non-decreasing."""

    rho: float = Field(default=0.01, ge=0, description="offset ρ: A ⪰ ρ I")
    state = ("scalar",)
    kind = "scalar"

    def __call__(self, moments: Moments, w, x, t):
        (a,) = moments
        a = a + torch.linalg.vector_norm(w) ** 2
        return (a,), a.sqrt() + self.rho


@hyperparameters
class BarzilaiBorwein(_Matrix):
    """A = (|⟨Δw, Δx⟩| / ‖Δx‖² + ρ) I from the last two synchronisations.

    While there is one only, or Δx is zero to rounding, the last quotient stays (0 at first, so that A = ρ I).
    """

    rho: float = Field(default=0.01, ge=0, description="offset ρ: A ⪰ ρ I")
    state = ("block", "block", "scalar", "scalar")
    kind = "scalar"

    def __call__(self, moments: Moments, w, x, t):
        last_w, last_x, a, known = moments
        dw, dx = w - last_w, x - last_x
        square = dx @ dx
        rounding = 8 * torch.finfo(x.dtype).eps  # averages of equal points differ by it
        moved = (known > 0) & (square > rounding**2 * (x @ x))
        a = torch.where(moved, (dw @ dx).abs() / torch.where(moved, square, 1.0), a)
        return (w, x, a, torch.ones_like(known)), a + self.rho

    def refer(self, moments: Moments, w, x):
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
#: How the matrices begin: by their rule from the averaged initial estimators, as I, or as ρI.
FirstMatrix = Literal["rule", "identity", "rho"]


def adaptive(block: str, of: str) -> Adaptive:
    """A field of ``shared`` with the adaptive matrix of ``block``, computed by the method's ``matrix``.

    Rank 0 refreshes it once per round, after the first phase whose messages contain ``of``. It is computed
    from the average of that field and from the averaged ``block``, or ``shared``'s if the messages have no
    such block. In a method with a start phase that contains ``of``, ``first_matrix`` selects the matrices
    before the first round.
    """
    return Adaptive(block, of)


def first(method) -> float:
    """The diagonal of a method's matrices before the first average."""
    return method.matrix.rho if getattr(method, "first_matrix", "identity") == "rho" else 1.0


def due(method, steps: int, round: int) -> bool:
    """Whether ``round`` computes new matrices.

    With rounds of one step and the rule at the start, the start is the first synchronisation. Round 1 then
    averages the same estimators that gave A_1, and changes nothing.
    """
    rule = getattr(method, "first_matrix", "") == "rule"
    return round > 1 or (rule if round == 0 else not (rule and steps == 1))


def refresh(method, steps: int, round: int, moments: Moments, w: torch.Tensor, x: torch.Tensor):
    """Line 6 of the boxes: the moments and the matrix after ``round``, ``None`` for one that stays as it is.

    Args:
        steps: local steps of a round.
        w, x: the averaged estimator and the averaged point, ``[d]``.
    """
    matrix, new = method.matrix, None
    if due(method, steps, round):
        moments, new = matrix(moments, w, x, max(1, round * steps))
    if round == 0 and not (new is not None and steps == 1):  # the start is no synchronisation
        moments = matrix.refer(moments, w, x)
    return moments, new
