"""Checks of derivatives and of monotonicity, a part of the contract of problems that ``mpifed check`` tests.

Derivatives are compared with central differences in float64. With a step h, these have errors of order h²
from the third derivatives and of order 1e-16 / h from rounding; with h = 1e-5 both are far below
:data:`TOLERANCE`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from mpifed.base.errors import ContractError
from mpifed.core.problem import defines
from mpifed.core.sets import Box
from mpifed.core.streams import generator
from mpifed.core.validation import SINGLE, Case, Check, NotChecked, Probe, address, samples_of
from mpifed.core.writes import tensors_of

__all__ = ["DERIVATIVES", "difference", "probe_of"]

#: Step of the differences, for points of norm about 1, and accepted relative error of a derivative.
STEP, TOLERANCE = 1e-5, 1e-5
#: Accepted relative error of values that differ by rounding only.
ROUNDING = 1e-9
#: Rows of a minibatch.
ROWS = 4
#: Distances from the start, in random directions of norm √d, at which points outside of a set are searched.
DISTANCES = (1.0, 10.0, 100.0, 1000.0)
#: Maximum number of coordinates of points and values that are compared, and number of pairs of points.
COORDINATES, PAIRS = 32, 10
#: Function of one client → its analytic derivative.
ANALYTIC = {"loss": "gradients", "inner": "jacobian", "outer": "outer_gradient", "upper": "", "lower": ""}

Vector = torch.Tensor


def probe_of(case: Case, client: int, rows: int = ROWS) -> Probe:
    """Return a probe of one client at a random feasible point near the start; 0 rows are all rows."""
    rng, point = generator(client, "check"), []
    for block, start in zip(case.problem.variables(), case.start):
        moved = start + 0.2 * torch.from_numpy(rng.standard_normal(len(start))).to(start)
        point.append((start + getattr(case.problem.sets, block)(moved)) / 2)
    return Probe(case.problem, [client], point, rows)


def difference(values: torch.Tensor, expected: torch.Tensor, what: str, tolerance: float) -> list[str]:
    """Return a message if two tensors differ by more than ``tolerance`` times max(1, ‖expected‖∞)."""
    largest = float((values - expected).abs().max())
    is_small = largest <= tolerance * max(1.0, float(expected.abs().max()))
    return [] if is_small else [f"{what} differ by up to {largest:.3g}"]


def _probes(case: Case, rows: int = ROWS) -> list[Probe]:
    return [probe_of(case, client, rows) for client in sorted({0, case.problem.clients - 1})]


def _derivatives(name: str, case: Case) -> Iterator[str]:
    """Compare the derivatives of a function of one client, such as ``loss``, with finite differences."""
    if defines(case.problem, name):
        for probe in _probes(case):
            yield from _wrong_derivative(name, probe)
    elif name != "loss":
        raise NotChecked(f"the problem defines no {name}")
    elif errors := [error for probe in _probes(case) for error in _asymmetric(probe)]:
        yield from errors
    else:
        raise NotChecked("the problem defines no loss; its gradients have symmetric derivatives")


def _wrong_derivative(name: str, probe: Probe) -> Iterator[str]:
    """Report the worst entry of the first block in which a derivative is wrong.

    The derivatives are analytic if the problem defines them, otherwise computed by autograd. The value that
    an analytic Jacobian returns is compared with ``inner``, too.
    """
    point = [probe.u] if name == "outer" else probe.point
    blocks = {"u": {"u": probe.u.shape}} if name == "outer" else probe.blocks
    values: Any = [None] * len(point)
    if defines(probe.problem, ANALYTIC[name]):
        values = probe.several(ANALYTIC[name], *(flat[None] for flat in point))
        values = values if isinstance(values, tuple | list) else (values,)
        if name == "inner":
            u, *values = values
            what = "the value u that jacobian() returns and the value of inner()"
            yield from difference(u, probe.u, what, ROUNDING)
    for k, (block, flat) in enumerate(zip(blocks, point)):
        J = None if values[k] is None else values[k].reshape(-1, len(flat))
        if worst := _disagreement(_of_block(partial(probe.single, name), point, k), flat, J):
            row, column, expected, got = worst
            shapes = blocks[block].items()
            labels = [f"{part}[{j}]" for part, shape in shapes for j in range(math.prod(shape))]
            along = labels[column] if column is not None else "a random direction"
            output = f"[{'random' if row is None else row}]" if name == "inner" else ""
            yield (
                f"∂{name}{output}/∂{block} of client {probe.clients[0]} along {along}: expected "
                f"{expected:.6g} by finite differences, got {got:.6g}"
            )
            return


def _of_block(function: Callable, point: list[Vector], k: int) -> Callable[[Vector], Any]:
    """Return a function of a point as a function of block ``k``; the other blocks are fixed."""
    return lambda v: function(*point[:k], v, *point[k + 1 :])


def _disagreement(function: Callable, flat: Vector, J: torch.Tensor | None) -> tuple | None:
    """Compare a Jacobian ``[p, d]``, by default the result of autograd, with finite differences.

    Returns:
        ``None`` if they agree; otherwise row, column, expected value and value of the worst entry. A row or
        column ``None`` is a random combination, which is named only if no other entry is wrong.
    """
    value = function(flat).detach().reshape(-1)
    if not torch.isfinite(value).all():
        raise ContractError(f"expected finite function values near the start, got {value.tolist()}")
    (rows, left), (columns, right) = _projection(len(value)), _projection(len(flat))
    zero = torch.zeros(len(columns), dtype=flat.dtype)

    def moved(steps: Vector) -> Vector:
        return function(flat + right @ steps).reshape(-1) @ left

    J = torch.autograd.functional.jacobian(moved, zero) if J is None else left.T @ J.detach() @ right
    differences = [(moved(step) - moved(-step)).detach() for step in STEP * torch.eye(len(zero)).to(zero)]
    numerical = torch.stack(differences, dim=1) / (2 * STEP)
    # A value f is rounded by 1e-16 |f|, which the difference divides by the step.
    allowed = TOLERANCE * float(J.abs().max()) + ROUNDING * float((value @ left).abs().max())
    errors = (numerical - J).abs()
    # Beyond the boundary of a set, a function need not be defined.
    is_wrong = ~(errors <= allowed + TOLERANCE * numerical.abs()) & numerical.isfinite()
    if not is_wrong.any():
        return None
    if is_wrong[:-1, :-1].any():
        errors = errors[:-1, :-1]
    row, column = divmod(int(errors.argmax()), errors.shape[1])
    return rows[row], columns[column], float(numerical[row, column]), float(J[row, column])


def _projection(size: int) -> tuple[list[int | None], torch.Tensor]:
    """Return some coordinates and ``None``, and a matrix that selects them and a random unit vector."""
    rng = generator(0, "directions")
    entries, random = rng.permutation(size)[:COORDINATES].tolist(), rng.standard_normal(size)
    matrix = torch.zeros(size, len(entries) + 1, dtype=torch.float64)
    matrix[entries, range(len(entries))] = 1
    matrix[:, -1] = torch.from_numpy(random / np.linalg.norm(random))
    return [*entries, None], matrix


def _asymmetric(probe: Probe) -> Iterator[str]:
    """Report derivatives of analytic gradients that are not symmetric, as second derivatives are."""
    point, names, rng = probe.point, list(probe.blocks), generator(0, "pairs")

    def gradient(a: int, b: int) -> Callable[[Vector], Vector]:
        """Return the gradient of block ``a`` as a function of block ``b``."""

        def of(*point: Vector) -> Vector:
            values = probe.several("gradients", *(flat[None] for flat in point))
            return (values if isinstance(values, tuple | list) else (values,))[a][0]

        return _of_block(of, point, b)

    for a, b in itertools.combinations_with_replacement(range(len(point)), 2):
        u = torch.from_numpy(rng.standard_normal(len(point[a])))
        u /= u.norm()
        ahead, back = (gradient(b, a)(point[a] + step * u) for step in (STEP, -STEP))
        # uᵀ (∂g_a/∂b) is the derivative of uᵀ g_a, and (∂g_b/∂a) u is a difference.
        if _disagreement(lambda v: u @ gradient(a, b)(v), point[b], ((ahead - back) / (2 * STEP))[None]):
            yield (
                f"no function has these gradients: for client {probe.clients[0]}, expected "
                f"∂g{names[a]}/∂{names[b]} to be the transpose of ∂g{names[b]}/∂{names[a]}"
            )


def _generates(case: Case) -> bool:
    """Return whether the problem generates samples rather than storing rows."""
    return case.problem.draw(address([0], 1, samples_of(case.problem)[0]), ROWS) is not None


@torch.no_grad()
def _monotone(case: Case) -> Iterator[str]:
    """Check ⟨V(z) - V(z'), z - z'⟩ ≥ 0 on pairs of points near the start; V is the mean over all data."""
    if not case.problem.monotone:
        raise NotChecked(f"the problem has monotone = {case.problem.monotone}")
    if _generates(case):
        raise NotChecked("samples are generated, so the expectation of V is unknown")
    (start,), rng = case.start, generator(0, "pairs")
    probes = [Probe(case.problem, [client], [start], 0) for client in range(case.problem.clients)]
    for _ in range(PAIRS):
        z, other = (start + torch.from_numpy(rng.standard_normal(len(start))) for _ in range(2))
        changes = [
            probe.several("operator", z[None]) - probe.several("operator", other[None]) for probe in probes
        ]
        change = torch.cat(changes).mean(0)
        product = float(change @ (z - other))
        if not product >= -ROUNDING * float(change.norm() * (z - other).norm()):
            yield (
                f"expected ⟨V(z) - V(z'), z - z'⟩ >= 0, got {product:.6g} for a pair of points near the start"
            )
            return


def _coordinates(case: Case) -> Iterator[str]:
    """Compare the coordinates of y in which the gradients of two clients on all their data are not 0."""
    problem = case.problem
    if problem.separate_coordinates:
        raise NotChecked("separate_coordinates = True, so methods that project at the clients are refused")
    if "y" not in problem.sets or problem.clients < 2:
        raise NotChecked("y has no set" if "y" not in problem.sets else "the problem has one client")
    if isinstance(problem.sets.y, Box):
        raise NotChecked("the set of y is a box, which is projected coordinate by coordinate")
    if _generates(case):
        raise NotChecked("samples are generated, so the expectation of the gradient is unknown")
    first, last = (_ascent(probe) != 0 for probe in _probes(case, rows=0))
    if first.any() and last.any() and not (first & last).any():
        yield (
            "the gradients of two clients have no common coordinate of y that is not 0, so the average of "
            "points that clients have projected is not the projection of the average: set "
            "separate_coordinates = True, so that methods that project at the clients are refused"
        )


def _ascent(probe: Probe) -> Vector:
    """Return the gradient in y of one client of a minimax problem with a block y, ``[dy]``."""
    if defines(probe.problem, "gradients"):
        return probe.several("gradients", *(flat[None] for flat in probe.point))[1][0]
    return torch.func.grad(lambda y: probe.single("loss", probe.point[0], y))(probe.point[1])


def _boundary(case: Case, block: str) -> Iterator[Probe]:
    """Yield probes of the first client at points whose ``block`` is on the boundary of its set.

    They are projections of the nearest points outside of the set that :data:`DISTANCES` gives, in two
    opposite random directions from the start: an unbounded set has a boundary near the start, too.
    """
    probe, project, rng = probe_of(case, 0), getattr(case.problem.sets, block), generator(0, "boundary")
    k = list(probe.blocks).index(block)
    start, point = case.start[k], probe.point
    direction = torch.from_numpy(rng.standard_normal(len(start)))
    for sign in (1, -1):
        outside = (start + sign * distance * direction for distance in DISTANCES)
        pairs = ((project(one), one) for one in outside)
        projected = next((on_set for on_set, one in pairs if not torch.allclose(on_set, one)), None)
        if projected is not None:
            yield Probe(case.problem, case.clients, [*point[:k], projected, *point[k + 1 :]], ROWS)


def _on_boundary(case: Case) -> Iterator[str]:
    """Check values and derivatives on the boundary of the sets, where projected points are."""
    if not [*case.problem.sets]:
        raise NotChecked("the problem has no sets")
    for block in case.problem.sets:
        where = f"at a point on the boundary of the set of {block}"
        for probe in _boundary(case, block):
            if what := _not_finite(probe):
                yield (
                    f"{what} {where}: expected finite values and derivatives in the whole set, such as those "
                    "of log(y + 1e-6) rather than log(y)"
                )
                return
            for name in SINGLE:
                # Derivatives by autograd are exact, except at kinks.
                if defines(case.problem, name) and defines(case.problem, ANALYTIC[name]):
                    for error in _wrong_derivative(name, probe):
                        yield f"{where}, {error}"
                        return


def _not_finite(probe: Probe) -> str:
    """Return which value or derivative is not finite; "" if all are finite."""
    for call in probe.calls():
        name, point = call.name, [*call.point.values()]
        if not all(torch.isfinite(value).all() for value in tensors_of(call.function())):
            return f"{name}() is not finite"
        if name in SINGLE and not defines(probe.problem, ANALYTIC[name]):
            for k, block in enumerate(call.point):
                total = _of_block(lambda *v: probe.single(name, *v).sum(), point, k)
                if not torch.isfinite(torch.func.grad(total)(point[k])).all():
                    return f"∂{name}/∂{block} is not finite"
    return ""


def _compared(derivatives: str, name: str, what: str = "") -> Check:
    statement = f"{derivatives} agree with finite differences of {what or name}"
    return Check(statement, partial(_derivatives, name), in_float32=False)


_BOUNDARY = Check(
    "functions have finite values and correct derivatives on the boundary of the sets",
    _on_boundary,
    in_float32=False,
)
#: Family → checks in float64 of problems that satisfy those of :data:`mpifed.core.validation.START`.
DERIVATIVES: dict[str, tuple[Check, ...]] = {
    "minimax": (
        _compared("gradients", "loss", "the loss"),
        Check("clients see the same coordinates of a constrained y", _coordinates, in_float32=False),
        _BOUNDARY,
    ),
    "operator": (
        Check("the operator is monotone on pairs of points", _monotone, in_float32=False),
        _BOUNDARY,
    ),
    "composition": (_compared("Jacobians", "inner"), _compared("outer gradients", "outer"), _BOUNDARY),
    "bilevel": (_compared("gradients", "upper"), _compared("gradients", "lower"), _BOUNDARY),
}
