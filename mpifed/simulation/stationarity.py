"""Stationarity measures that convergence theorems bound: of f, of Φ and of its Moreau envelope.

With Φ(x) = max over y in Y of f(x, y), on all data of all clients:

================  ============================================================================================
``stationarity``  ``gradient_x`` = ‖∇_x f‖ and ``gradient_y`` = ℓ ‖P_Y(y + ∇_y f / ℓ) - y‖
                  (Shen et al. 2024, Definition 2.1)
``phi``           ``phi_gradient`` = ‖∇Φ(x)‖ = ‖∇_x f(x, y*(x))‖, by Danskin's theorem (Definition 2.2)
``nuclear_norm``  ``nuclear_norm`` of ∇Φ(x), summed over parameters, Euclidean norm for vectors (Zhang & Gao
                  n.d., proof of Theorem 2)
``moreau``        ``moreau_gradient`` = ‖∇Φ_{1/2ℓ}(x)‖ = 2ℓ ‖x - x̂‖, x̂ the minimiser of Φ(x') + ℓ‖x' - x‖²
                  (Definitions 2.3 and 2.4)
``potential``     ``potential`` V = f̂ - 2Ψ + 2P of the method's z and p: f̂ = f + (p/2)‖x - z‖², Ψ its
                  minimum over x, P the minimum over x of its maximum over y (section A)
``tail``          ``tail``, Hill's estimate of the tail index of ‖∇f_n(ξ) - ∇f_n‖ over all clients, each norm
                  divided by its client's median, with the confidence interval from ``tail_low`` to
                  ``tail_high`` (Zhang & Gao n.d., Assumption 3.3: moments of an order in (1, 2])
================  ============================================================================================

Measures that require the solution of an inner problem come with its accuracy: ``phi_residual``,
``moreau_residual`` and ``potential_residual`` are natural residuals (:mod:`mpifed.core.solvers`), the larger
one if there are two inner problems. If -f(x, ·) is μ-strongly convex and Y is the whole space, y is within
residual/μ of y*(x), and ``phi_gradient`` within L residual/μ of ‖∇Φ(x)‖, where L is the Lipschitz constant of
∇_x f in y. If f is not concave in y, y is a stationary point near the current y.
"""

from __future__ import annotations

from typing import Any

import torch

from mpifed.base.errors import ConfigError, user_code_errors
from mpifed.core.algorithm import Algorithm
from mpifed.core.metrics import Column
from mpifed.core.solvers import Budget, Solution, maximise, solve_saddle
from mpifed.parallel.comm import collective_errors
from mpifed.simulation.evaluation import EvaluatedPoint, Evaluation
from mpifed.simulation.full_data import TAIL, FullData, noise_tail
from mpifed.simulation.options import StationarityOptions

__all__ = ["Functions", "Stationarity"]


class Functions:
    """f of a minimax problem on all data, Φ, and the smoothed functions. All methods are collective.

    Attributes:
        full: the problem on all data.
        sizes: numbers of elements of x and y, 0 without y.
    """

    def __init__(self, full: FullData, budget: Budget):
        self.full, self.budget = full, budget
        self.problem: Any = full.problem
        self.sizes = tuple(full.blocks.sizes.get(block, 0) for block in "xy")
        self._x, self._y = (
            getattr(self.problem.sets, block) if block in self.problem.sets else None for block in "xy"
        )

    @property
    def is_y_constrained(self) -> bool:
        return self._y is not None

    def gradients(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return ∇_x f and ∇_y f, ``[dx]`` and ``[dy]``."""
        return self.full.gradient(torch.cat([x, y])).split(self.sizes)

    def best_response(self, x: torch.Tensor, y: torch.Tensor) -> Solution:
        """Return y*(x): in closed form if the problem has one and weights are uniform, else solved from y."""
        if not self.sizes[1]:
            return Solution(y, 0.0)
        exact = self._closed_form(x)
        if exact is not None:
            return Solution(exact, self.residual(exact, self.gradients(x, exact)[1], 1.0))
        return maximise(lambda y: self.gradients(x, y)[1], y, self.budget, self._y)

    def _closed_form(self, x: torch.Tensor) -> torch.Tensor | None:
        response = getattr(self.problem, "best_response", None)
        if response is None or self.full.weights is not None:
            return None
        with (
            collective_errors(self.full.comm, ValueError),
            user_code_errors(f"{type(self.problem).__name__}.best_response"),
        ):
            return response(self.full.blocks.unflatten("x", x.clone())).reshape(-1).to(x)

    def _project_y(self, y: torch.Tensor) -> torch.Tensor:
        return y if self._y is None else self._y(y)

    def residual(self, y: torch.Tensor, slope: torch.Tensor, ell: float) -> float:
        """Return ℓ ‖P_Y(y + slope / ℓ) - y‖."""
        return ell * float((self._project_y(y + slope / ell) - y).norm())

    def smoothed_saddle(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, p: float) -> Solution:
        """Return the saddle point (x, y) of f + (p/2)‖x - z‖², concatenated, from x and y; p > ℓ."""

        def field(point: torch.Tensor) -> torch.Tensor:
            x, y = point.split(self.sizes)
            gx, gy = self.gradients(x, y)
            return torch.cat([-gx - p * (x - z), gy])

        def project(point: torch.Tensor) -> torch.Tensor:
            x, y = point.split(self.sizes)
            return torch.cat([x if self._x is None else self._x(x), self._project_y(y)])

        constrained = self._x is not None or self._y is not None
        start = torch.cat([x, y])
        return solve_saddle(field, start, self.sizes[0], self.budget, project if constrained else None)

    def smoothed_minimiser(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, p: float) -> Solution:
        """Return the minimiser over x of f(x, y) + (p/2)‖x - z‖², from x."""
        return maximise(lambda x: -self.gradients(x, y)[0] - p * (x - z), x, self.budget, self._x)

    def smoothed_value(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, p: float) -> float:
        """Return f + (p/2)‖x - z‖²."""
        return self.full.value(torch.cat([x, y])) + p / 2 * float((x - z).norm()) ** 2


#: Names of the values of each measure.
_NAMES = {
    "stationarity": ("gradient_x", "gradient_y"),
    "phi": ("phi_gradient", "phi_residual"),
    "nuclear_norm": ("nuclear_norm", "phi_residual"),
    "moreau": ("moreau_gradient", "moreau_residual"),
    "potential": ("potential", "potential_residual"),
    "tail": TAIL,
}


class Stationarity(Evaluation):
    """The measures that a job requests.

    Raises:
        CollectiveError: a measure needs a smoothness constant, or has no use for one.
    """

    owner = "[measures]"

    def __init__(self, settings: StationarityOptions, method: Algorithm, full: FullData):
        self.settings, self.method = settings, method
        self.names = tuple(name for measure in settings.of for name in _NAMES[measure])
        self.functions = Functions(full, Budget(settings.accuracy, settings.evaluations))
        with collective_errors(full.comm, ValueError):
            constrained, ell = self.functions.is_y_constrained, self.settings.ell
            if "stationarity" in self.settings.of and constrained and ell is None:
                raise ConfigError("stationarity with a set for y needs the smoothness of f: set measures.ell")
            if ell is not None and "moreau" not in self.settings.of and not constrained:
                raise ConfigError(
                    "measures.ell has no effect without a set for y or 'moreau' in of, got ell = "
                    f"{ell:g}: leave it out"
                )

    def evaluate(self, point: EvaluatedPoint) -> dict[Column, float]:
        """Return the values, the same on all ranks; NaN if a gradient is not finite. Collective."""
        x, y = torch.cat([*point.blocks]).split(self.functions.sizes)
        values: dict[str, float] = {}
        for name in self.settings.of:
            if name == "stationarity":
                values |= self._stationarity(x, y)
            elif name == "moreau":
                values |= self._moreau(x, y)
            elif name == "potential":
                values |= self._potential(x, y, point.z)
            elif name == "tail":
                full, samples = self.functions.full, self.settings.samples
                values |= dict(zip(TAIL, noise_tail(full, point.round, samples, torch.cat([x, y]))))
        return {Column(name): value for name, value in (values | self._phi(x, y)).items()}

    def _stationarity(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
        gx, gy = self.functions.gradients(x, y)
        values = {"gradient_x": float(gx.norm())}
        if len(y):
            values["gradient_y"] = self.functions.residual(y, gy, self.settings.ell or 1.0)
        return values

    def _phi(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
        if not {"phi", "nuclear_norm"} & {*self.settings.of}:
            return {}
        best, values = self.functions.best_response(x, y), {}
        gradient = self.functions.gradients(x, best.point)[0]
        if "phi" in self.settings.of:
            values["phi_gradient"] = float(gradient.norm())
        if "nuclear_norm" in self.settings.of:
            values["nuclear_norm"] = _nuclear_norm(self.functions.full.blocks.unflatten("x", gradient))
        return values | {"phi_residual": best.residual}

    def _moreau(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
        ell = self.settings.ell
        saddle = self.functions.smoothed_saddle(x, y, x, 2 * ell)
        distance = float((x - saddle.point[: len(x)]).norm())
        return {"moreau_gradient": 2 * ell * distance, "moreau_residual": saddle.residual}

    def _potential(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> dict[str, float]:
        functions, p = self.functions, self.method.p
        low, saddle = functions.smoothed_minimiser(x, y, z, p), functions.smoothed_saddle(x, y, z, p)
        value = functions.smoothed_value(x, y, z, p)
        minimum = functions.smoothed_value(low.point, y, z, p)
        saddle_value = functions.smoothed_value(*saddle.point.split(functions.sizes), z, p)
        potential = value - 2 * minimum + 2 * saddle_value
        return {"potential": potential, "potential_residual": max(low.residual, saddle.residual)}


def _nuclear_norm(parameters: dict[str, torch.Tensor]) -> float:
    """Return the sum of the parameters' nuclear norms; further axes are flattened into the second."""
    if not all(torch.isfinite(values).all() for values in parameters.values()):
        return float("nan")
    matrices = (
        values.reshape(len(values), -1) if values.dim() > 1 else values.reshape(1, -1)
        for values in parameters.values()
    )
    return float(sum(torch.linalg.matrix_norm(matrix.double(), "nuc") for matrix in matrices))
