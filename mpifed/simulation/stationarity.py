"""The figures that convergence theorems bound, off the clock: stationarity of f, of Φ and of its envelope.

With Φ(x) = max over y in Y of f(x, y), on all data of all clients:

================  ============================================================================================
``stationarity``  ``gradient_x`` = ‖∇_x f‖ and ``gradient_y`` = ℓ ‖P_Y(y + ∇_y f / ℓ) - y‖
                  (Shen et al. 2024, Definition 2.1)
``phi``           ``phi_gradient`` = ‖∇Φ(x)‖ = ‖∇_x f(x, y*(x))‖, by Danskin's theorem (Definition 2.2)
``nuclear_norm``  ``nuclear_norm`` of ∇Φ(x), the sum over its matrices, of vectors the Euclidean norm (Zhang &
                  Gao n.d., proof of Theorem 2)
``moreau``        ``moreau_gradient`` = ‖∇Φ_{1/2ℓ}(x)‖ = 2ℓ ‖x - x̂‖, x̂ the minimiser of Φ(x') + ℓ‖x' - x‖²
                  (Definitions 2.3 and 2.4)
``potential``     ``potential`` V = f̂ - 2Ψ + 2P of the method's z and p: f̂ = f + (p/2)‖x - z‖², Ψ its
                  minimum over x, P that of its maximum over y (section A)
``tail``          ``tail``, Hill's estimate of the tail index of ‖∇f_n(ξ) - ∇f_n‖ over all clients, each over
                  its client's median, and its interval, ``tail_low`` to ``tail_high`` (Zhang & Gao n.d.,
                  Assumption 3.3: moments of an order in (1, 2])
================  ============================================================================================

Each that needs an inner problem solved tells how well that is done: ``phi_residual`` and its like are the
natural residuals of :mod:`mpifed.core.numerics`, the larger one where there are two problems. Where -f(x, ·)
is μ-strongly convex and Y is the whole space, y is within residual/μ of y*(x), and ``phi_gradient`` within
L residual/μ of ‖∇Φ(x)‖, L the Lipschitz constant of ∇_x f in y. Where f is not concave in y, what is told is
a stationary point near the present y.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import Field

from mpifed.base.errors import ConfigError, user_code_errors
from mpifed.base.settings import Section
from mpifed.core.numerics import Budget, Solved, maximise, solve_saddle
from mpifed.parallel.comm import collective_errors
from mpifed.simulation.full_data import FullData
from mpifed.simulation.gradient_noise import TAIL, tail

if TYPE_CHECKING:
    from mpifed.simulation.simulation import Simulation

__all__ = ["Functions", "MeasureEvaluator", "Measures"]


class Measures(Section):
    """[measures]: stationarity measures on all data, recorded at every evaluation."""

    of: tuple[Literal["stationarity", "phi", "nuclear_norm", "moreau", "potential", "tail"], ...] = Field(
        min_length=1,
        description="stationarity: ‖∇_x f‖ and ℓ‖P_Y(y + ∇_y f/ℓ) - y‖; phi: ‖∇Φ‖; nuclear_norm: nuclear "
        "norm of ∇Φ; moreau: ‖∇Φ_{1/2ℓ}‖; potential: V of FESSGDA and SmoothedGDA; tail: tail index of the "
        "noise",
    )
    ell: float | None = Field(
        None, gt=0, description="smoothness constant ℓ of f, for moreau, and for stationarity if y has a set"
    )
    accuracy: float = Field(
        1e-6, ge=0, description="natural residual at which inner problems are considered solved"
    )
    evaluations: int = Field(1000, ge=1, description="maximum number of full gradients per inner problem")
    samples: int = Field(100, ge=10, description="stochastic gradients per client and evaluation, for tail")


class Functions:
    """Φ and what is made of it, of a minimax problem on all data.

    Attributes:
        full: the problem on all data; ``sizes``: the lengths of x and y, 0 without y.
    """

    def __init__(self, full: FullData, budget: Budget):
        self.full, self.budget = full, budget
        self.problem: Any = full.problem
        self.sizes = tuple(full.blocks.sizes.get(block, 0) for block in "xy")
        bounded = set(self.problem.sets)
        self._x = self.problem.sets.x if "x" in bounded else None
        self._y = self.problem.sets.y if "y" in bounded else None

    @property
    def bounded(self) -> bool:
        """Whether y has a set."""
        return self._y is not None

    def gradients(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """∇_x f and ∇_y f, ``[dx]`` and ``[dy]``. Collective, as all that follows."""
        return self.full.gradient(torch.cat([x, y])).split(self.sizes)

    def best_response(self, x: torch.Tensor, y: torch.Tensor) -> Solved:
        """y*(x): the problem's closed form, if it has one and weights are uniform, else computed from y."""
        if not self.sizes[1]:
            return Solved(y, 0.0)
        known = self._known(x)
        if known is not None:
            residual = self._inside(known + self.gradients(x, known)[1]) - known
            return Solved(known, float(residual.norm()))
        return maximise(lambda y: self.gradients(x, y)[1], y, self.budget, self._y)

    def _known(self, x: torch.Tensor) -> torch.Tensor | None:
        response = getattr(self.problem, "best_response", None)
        if response is None or self.full.weights is not None:
            return None
        with (
            collective_errors(self.full.comm, ValueError),
            user_code_errors(f"{type(self.problem).__name__}.best_response"),
        ):
            return response(self.full.blocks.unflatten("x", x)).reshape(-1).to(x)

    def _inside(self, y: torch.Tensor) -> torch.Tensor:
        return y if self._y is None else self._y(y)

    def residual(self, y: torch.Tensor, slope: torch.Tensor, ell: float) -> float:
        """ℓ ‖P_Y(y + slope / ℓ) - y‖."""
        return ell * float((self._inside(y + slope / ell) - y).norm())

    def pulled(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, p: float) -> Solved:
        """The saddle of f + (p/2)‖x - z‖², x and y end to end, from x and y; p above ℓ."""

        def gains(point: torch.Tensor) -> torch.Tensor:
            x, y = point.split(self.sizes)
            gx, gy = self.gradients(x, y)
            return torch.cat([-gx - p * (x - z), gy])

        def inside(point: torch.Tensor) -> torch.Tensor:
            x, y = point.split(self.sizes)
            return torch.cat([x if self._x is None else self._x(x), self._inside(y)])

        bounded = self._x is not None or self._y is not None
        start = torch.cat([x, y])
        return solve_saddle(gains, start, self.sizes[0], self.budget, inside if bounded else None)

    def lowest(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, p: float) -> Solved:
        """The minimiser over x of f(x, y) + (p/2)‖x - z‖², from x."""
        return maximise(lambda x: -self.gradients(x, y)[0] - p * (x - z), x, self.budget, self._x)

    def value(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, p: float) -> float:
        """f + (p/2)‖x - z‖²."""
        return self.full.value(torch.cat([x, y])) + p / 2 * float((x - z).norm()) ** 2


class MeasureEvaluator:
    """The measures that a job asks for."""

    def __init__(self, simulation: Simulation):
        self.settings: Any = simulation.config.measures
        self.method: Any = simulation.config.algorithm
        budget = Budget(self.settings.accuracy, self.settings.evaluations)
        self.functions = Functions(FullData(simulation), budget)
        self.counts = simulation.placement.counts
        with collective_errors(simulation.comm, ValueError):
            if "stationarity" in self.settings.of and self.functions.bounded and self.settings.ell is None:
                raise ConfigError("stationarity needs the smoothness of f where y has a set: measures.ell")

    def __call__(self, point: Sequence[torch.Tensor], z: torch.Tensor | None, r: int) -> dict[str, float]:
        """Figures by name, the same on all ranks; NaN where they are not finite. Collective.

        Args:
            point: the blocks of the method's problem, flat.
            z: the method's smoothing point, where it has one.
            r: the round before, which the samples of the noise belong to.
        """
        x, y = torch.cat(list(point)).split(self.functions.sizes)
        figures: dict[str, float] = {}
        for name in self.settings.of:
            if name == "stationarity":
                figures |= self._stationarity(x, y)
            elif name == "moreau":
                figures |= self._moreau(x, y)
            elif name == "potential":
                figures |= self._potential(x, y, z)
            elif name == "tail":
                found = tail(self.functions.full, self.counts, r, self.settings.samples, torch.cat([x, y]))
                figures |= dict(zip(TAIL, found))
        return figures | self._of_phi(x, y)

    def _stationarity(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
        gx, gy = self.functions.gradients(x, y)
        figures = {"gradient_x": float(gx.norm())}
        if len(y):
            figures["gradient_y"] = self.functions.residual(y, gy, self.settings.ell or 1.0)
        return figures

    def _of_phi(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
        asked = [name for name in self.settings.of if name in ("phi", "nuclear_norm")]
        if not asked:
            return {}
        best, figures = self.functions.best_response(x, y), {}
        gradient = self.functions.gradients(x, best.point)[0]
        if "phi" in asked:
            figures["phi_gradient"] = float(gradient.norm())
        if "nuclear_norm" in asked:
            figures["nuclear_norm"] = _nuclear_norm(self.functions.full.blocks.unflatten("x", gradient))
        return figures | {"phi_residual": best.residual}

    def _moreau(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
        ell = self.settings.ell
        solved = self.functions.pulled(x, y, x, 2 * ell)
        distance = float((x - solved.point[: len(x)]).norm())
        return {"moreau_gradient": 2 * ell * distance, "moreau_residual": solved.residual}

    def _potential(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> dict[str, float]:
        functions, p = self.functions, self.method.p
        low, saddle = functions.lowest(x, y, z, p), functions.pulled(x, y, z, p)
        at_saddle = functions.value(*saddle.point.split(functions.sizes), z, p)
        potential = functions.value(x, y, z, p) - 2 * functions.value(low.point, y, z, p) + 2 * at_saddle
        return {"potential": potential, "potential_residual": max(low.residual, saddle.residual)}


def _nuclear_norm(named: dict[str, torch.Tensor]) -> float:
    """Summed over parameters; one with more than two axes is a matrix of its first by the others."""
    if not all(torch.isfinite(part).all() for part in named.values()):
        return float("nan")
    matrices = (
        part.reshape(len(part), -1) if part.dim() > 1 else part.reshape(1, -1) for part in named.values()
    )
    return float(sum(torch.linalg.matrix_norm(one.double(), "nuc") for one in matrices))
