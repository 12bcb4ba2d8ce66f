"""What ``mpifed check`` looks at in a problem."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator

import numpy as np
import torch

from mpifed.cli.check_derivatives import (
    Place,
    compare_gradients,
    compare_jacobian,
    compare_outer,
    compare_pairs,
    compare_seconds,
    near_start,
    place,
)
from mpifed.cli.check_precision import MixedPrecision
from mpifed.cli.check_runs import PROBES, ROUNDS, ROWS, NotChecked, Report, check_together, final_point, same
from mpifed.core.problem import Problem, defines
from mpifed.core.streams import generator
from mpifed.core.validation import address, check_problem, samples_of
from mpifed.parallel.comm import SerialComm
from mpifed.simulation.evaluation import expect_metrics
from mpifed.simulation.memory import expect_constants
from mpifed.simulation.setup import default_dtype

__all__ = ["check_problem_here", "check_problem_on_ranks"]

DTYPES = (torch.float64, torch.float32)
#: Held-out rows that are scored in one call where parts are compared with the whole.
PART = 7


def check_problem_here(problem: Problem, report: Report, file: str | None) -> None:
    """The checks of one process. ``problem`` is not prepared, and stays so."""
    if not report.check("its settings are a dataclass", lambda: dataclasses.fields(problem)):
        return
    made: dict[torch.dtype, Problem] = {}
    for dtype in DTYPES:
        sentence = f"declarations, start, data and what its functions return, {_name(dtype)}"
        if not report.check(sentence, lambda dtype=dtype: _contract(problem, dtype, made)):
            return
    exact = made[torch.float64]
    with default_dtype(torch.float64):
        places = [place(exact, client) for client in sorted({0, exact.clients - 1})]
        _derivatives(exact, places, report)
        report.check("functions leave their arguments as they are", lambda: _arguments(places))
        report.check("float64 stays float64", lambda: _stays(places, file))
    report.check("the same seed prepares the same problem", lambda: _prepared_alike(problem, exact))
    report.check("a drawn sample depends on its address alone", lambda: _draws(exact))
    report.check("projections leave points of their set where they are", lambda: _projections(exact))
    for dtype in DTYPES:
        _figures(made[dtype], dtype, report)
    _runs(problem, report)


def check_problem_on_ranks(problem: Problem, report: Report, comm: SerialComm) -> None:
    """The checks of all ranks together. Collective."""
    _, method = PROBES[problem.family]
    report.check(
        f"{comm.size} ranks give the same bits as one",
        lambda: same(
            final_point(method, problem, comm), final_point(method, problem, SerialComm()), "the outputs"
        ),
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _prepared(problem: Problem, dtype: torch.dtype) -> Problem:
    """A prepared copy."""
    made = copy.deepcopy(problem)
    with default_dtype(dtype):
        made.prepare(0)
    return made


def _contract(problem: Problem, dtype: torch.dtype, made: dict[torch.dtype, Problem]) -> None:
    expect_constants(problem)
    made[dtype] = _prepared(problem, dtype)
    with default_dtype(dtype):
        check_problem(made[dtype], dtype=dtype, batch_size=ROWS)


def _derivatives(problem: Problem, places: list[Place], report: Report) -> None:
    """What can be said of gradients, operators and Jacobians."""

    def each(compare):
        return lambda: [compare(at) for at in places]

    if problem.family == "minimax" and defines(problem, "loss"):
        how = "gradients by hand" if problem.gradients is not None else "gradients"
        report.check(f"{how} agree with finite differences of the loss", each(compare_gradients))
    elif problem.family == "minimax":
        report.check("gradients by hand are those of some function", each(compare_seconds))
        report.skip("the values of the gradients", "there is no loss to compare them with")
    elif problem.family == "operator":
        report.skip("the values of the operator", "there is nothing to compare them with")
        report.check("the operator is monotone on pairs of points", lambda: _monotone(problem))
    else:
        how = "by hand " if problem.jacobian is not None else ""
        report.check(f"Jacobians {how}agree with finite differences of inner", each(compare_jacobian))
        if defines(problem, "outer"):
            how = "by hand " if problem.outer_gradient is not None else ""
            report.check(f"outer gradients {how}agree with finite differences of outer", each(compare_outer))
        else:
            report.skip("the values of the outer gradient", "there is no outer to compare them with")


def _monotone(problem: Problem) -> None:
    if problem.monotone is None:
        raise NotChecked("it is not claimed; monotone = True claims it")
    if not problem.monotone:
        raise NotChecked("the problem says that it is not")
    if _makes_samples(problem):
        raise NotChecked("samples are drawn, so their mean is not known")
    compare_pairs(problem)


def _makes_samples(problem: Problem) -> bool:
    return problem.draw(address([0], 1, samples_of(problem)[0]), ROWS) is not None


def _calls(at: Place) -> Iterator:
    """Calls of every function that the problem defines."""
    problem = at.problem
    if problem.family == "minimax":
        if defines(problem, "loss"):
            yield lambda: at.call(problem.loss, at.point)
        if problem.gradients is not None:
            yield lambda: at.fields(at.point)
    elif problem.family == "operator":
        yield lambda: problem.operator(at.point[0].unsqueeze(0), at.batches[""])
    else:
        u = at.call(problem.inner, at.point, "g").detach()
        yield lambda: at.call(problem.inner, at.point, "g")
        if defines(problem, "outer"):
            yield lambda: problem.outer(u, tuple(column[0] for column in at.batches["f"]))
        if problem.jacobian is not None:
            yield lambda: problem.jacobian(at.point[0].unsqueeze(0), at.batches["g"])
        if problem.outer_gradient is not None:
            yield lambda: problem.outer_gradient(u.unsqueeze(0), at.batches["f"])


def _arguments(places: list[Place]) -> None:
    for at in places:
        held = [*at.point, *(column for batch in at.batches.values() for column in batch)]
        before = [tensor.clone() for tensor in held]
        for call in _calls(at):
            call()
        if not all(torch.equal(one, other) for one, other in zip(before, held)):
            raise AssertionError("one of them writes to its point or its batch, in place")


def _stays(places: list[Place], file: str | None) -> None:
    if file is None:
        raise NotChecked("its source is in no file")
    with MixedPrecision(file) as mixed:
        for at in places:
            for call in _calls(at):
                call()
    if mixed.found:
        raise AssertionError("\n".join(mixed.found))


def _prepared_alike(problem: Problem, made: Problem) -> None:
    other = _prepared(problem, torch.float64)
    for client in sorted({0, made.clients - 1}):
        columns = zip(made.client_data(client), other.client_data(client))
        if not all(torch.equal(torch.as_tensor(one), torch.as_tensor(two)) for one, two in columns):
            raise AssertionError(f"client_data({client}) differs between two copies of the same seed")
    first, second = (one.initial(generator(0, "initial")) for one in (made, other))
    if any(not torch.equal(*map(torch.as_tensor, (first[block], second[block]))) for block in first):
        raise AssertionError("initial(rng) differs between two generators of the same seed")


def _draws(problem: Problem) -> None:
    if not _makes_samples(problem):
        raise NotChecked("samples are rows of its data")
    last = problem.clients - 1

    def draw(clients: list[int], count: int, of: str) -> list[np.ndarray]:
        return [np.asarray(array) for array in problem.draw(address(clients, count, of), ROWS)]

    for of in samples_of(problem):
        both = draw([0, last], 3, of)
        pairs = [*zip(both, draw([0, last], 3, of))]
        pairs += [(one[1:, :2], other) for one, other in zip(both, draw([last], 2, of))]
        if not all(np.array_equal(one, other) for one, other in pairs):
            raise AssertionError(
                "a sample changes from call to call, with the other clients, or with the number of samples: "
                "draw everything from `stream`"
            )


def _projections(problem: Problem) -> None:
    if not list(problem.sets):
        raise NotChecked("all blocks are the whole space")
    rng = generator(0, "projections")
    for block in problem.sets:
        points = torch.from_numpy(3 * rng.standard_normal((4, problem.variables().sizes[block])))
        once = getattr(problem.sets, block)(points)
        if once.shape != points.shape:
            raise AssertionError(
                f"that of {block!r} turns the shape {list(points.shape)} into {list(once.shape)}"
            )
        twice = getattr(problem.sets, block)(once)
        # Projecting again may round the last digits.
        if not torch.allclose(once, twice, rtol=1e-9, atol=1e-12):
            raise AssertionError(f"that of {block!r} moves a point that it has projected")


def _figures(problem: Problem, dtype: torch.dtype, report: Report) -> None:
    """Held-out scores and metrics near the start."""
    blocks = problem.variables()
    named = [blocks.unflatten(block, flat.to(dtype)) for block, flat in zip(blocks, near_start(problem))]
    scores: list[torch.Tensor] = []
    with default_dtype(dtype), torch.no_grad():
        if problem.test_rows and not report.check(
            f"held-out rows are scored alike in parts and as a whole, {_name(dtype)}",
            lambda: scores.append(_scores(problem, named, dtype)),
        ):
            report.skip(f"metrics, {_name(dtype)}", "they need the scores of held-out rows")
            return
        report.check(
            f"metrics are finite, under the same names at every evaluation, {_name(dtype)}",
            lambda: _metrics(problem, named, scores[0] if scores else None),
        )


def _metrics(problem: Problem, named: list, predictions: torch.Tensor | None) -> None:
    figures = expect_metrics(problem.metrics(*named, predictions))
    for name, value in figures.items():
        if not math.isfinite(value):
            raise AssertionError(f"{name} is {value} near the start")
    twice = [{key: 2 * value for key, value in block.items()} for block in named]
    for point in (twice, named):
        again = expect_metrics(problem.metrics(*point, predictions))
        if changed := sorted({*again} ^ {*figures}):
            raise AssertionError(
                f"{', '.join(changed)} is there at some evaluations only: expected NaN instead"
            )
    if unknown := sorted(set(problem.maximised) - set(figures)):
        raise AssertionError(f"maximised names {', '.join(unknown)}, there are {', '.join(figures)}")
    if not figures:
        raise NotChecked("it has none")


def _scores(problem: Problem, named: list, dtype: torch.dtype) -> torch.Tensor:
    total = problem.test_rows
    whole = problem.predict(*named, slice(0, total))
    if whole.shape[0] != total:
        raise AssertionError(f"predict() gives {whole.shape[0]} scores for {total} rows")
    parts = [
        problem.predict(*named, slice(first, min(first + PART, total))) for first in range(0, total, PART)
    ]
    # Kernels for few rows and for many add in other orders: some ulps of numbers of about one.
    tolerance = 1e-9 if dtype == torch.float64 else 1e-3
    same(
        torch.cat(parts).double().numpy(),
        whole.double().numpy(),
        "predict() of parts and of the whole",
        tolerance,
    )
    return whole.cpu().double()


def _runs(problem: Problem, report: Report) -> None:
    name, method = PROBES[problem.family]
    finite = [
        report.check(
            f"{ROUNDS} rounds of {name} stay finite, {_name(dtype)}",
            lambda dtype=dtype: final_point(method, problem, SerialComm(), dtype=_name(dtype)),
        )
        for dtype in DTYPES
    ]
    if finite[0]:
        # A few steps do not blow up the ulps of kernels that add in other orders.
        check_together(method, problem, report, 1e-9)
