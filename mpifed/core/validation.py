"""Validation of methods and problems before a run: one sentence per error.

The shapes and dtypes that a problem's functions return are validated at the starting point. Losses are called
for one client; analytic derivatives are called for one and for two clients, with one point per client and
with one point for all. ``mpifed check`` tests whether derivatives are correct. Messages that are not filled
and writes to read-only records are reported in the first rounds.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import MethodType
from typing import Any

import numpy as np
import torch

from mpifed.base.errors import ContractError, hint, message_of, short_repr, user_code_errors, user_frames
from mpifed.base.settings import suggest, title
from mpifed.core.algorithm import Algorithm, Phase
from mpifed.core.numerics import all_finite, first_non_finite
from mpifed.core.oracle import EVALUATIONS, ORACLES
from mpifed.core.problem import Problem, as_family, defines, starting_point
from mpifed.core.records import Adaptive, Blocks, NotSent, Record, State, Stored, WithinRound
from mpifed.core.sampling import Sampler
from mpifed.core.sets import MIRRORS, PROXIMALS, Zero
from mpifed.core.streams import Stream, generator

__all__ = [
    "address",
    "called",
    "check_method",
    "check_problem",
    "expect_finite",
    "expect_mirror",
    "expect_nothing",
    "expect_unchanged",
    "minibatch",
    "non_finite",
    "samples_of",
]

#: Record → the types of fields that it cannot have, with the reason.
MISPLACED: dict[str, dict[type, str]] = {
    "shared": {WithinRound: "within_round() is for `client`", Stored: "stored() is for `message`"},
    "client": {
        NotSent: "client state is never sent",
        Stored: "stored() is for `message`",
        Adaptive: "adaptive() is for `shared`",
    },
    "message": {WithinRound: "within_round() is for `client`", Adaptive: "adaptive() is for `shared`"},
}
#: Family → the blocks whose averages a method may return.
BLOCKS = {"minimax": ("x", "y"), "minimisation": ("x",), "operator": ("z",), "composition": ("x",)}
CLIENT, SERVER = ("now", "shared", "client", "message", "oracle"), ("now", "shared", "mean")


def called(function: Callable) -> str:
    """Return the name of a method's function for messages, such as ``Fair.client_round``."""
    name = getattr(function, "__name__", type(function).__name__)
    return f"{title(function.__self__)}.{name}" if isinstance(function, MethodType) else name


def expect_nothing(returned, name: str, instead: str) -> None:
    """Raise a ContractError if a function of a method has returned a value, which would be ignored."""
    if returned is not None:
        raise ContractError(f"{name} returned a {type(returned).__name__}: it {instead} and returns nothing")


def expect_unchanged(state: State, before: torch.Tensor, record: str, function: Callable, kind: str) -> None:
    """Raise a ContractError if a function of a method has written to a read-only record.

    Args:
        state: the record after the call.
        before: a copy of its buffer from before the call.
        record: the name of the record.
        kind: "client" or "server", the type of the function.
    """
    if torch.equal(before, state.buffer):
        return
    field = state.layout.field_at(int((before != state.buffer).nonzero()[0]))
    raise ContractError(
        f"{called(function)} changed {record}.{field}: a {kind} function reads `{record}` and never writes "
        f"to it, not in place either (x = {record}.x; x -= ... does; x = x - ... does not)"
    )


def check_method(method: Algorithm) -> None:
    """Check the declarations of a method.

    Raises:
        ContractError: one line per error; an exception in the method's ``phases`` has its traceback.
    """
    for stage in (_declarations, _phases, _adaptive, _averages):
        errors = [f"{title(method)}{error}" for error in stage(method)]
        if errors:
            raise ContractError("\n".join(dict.fromkeys(errors)))  # repeated phases are reported once


def _read(method: Algorithm, name: str, *default):
    """Return an attribute, which may be a user-defined property."""
    try:
        with user_code_errors(f"{title(method)}.{name}"):
            return getattr(method, name, *default)
    except ValueError as error:
        raise ContractError(message_of(error)) from None


def _declarations(method: Algorithm) -> Iterator[str]:
    for record in ("shared", "client"):
        got = _read(method, record, None)
        if isinstance(got, Record):
            yield from _misplaced(record, record, got)
        else:
            yield f".{record} must be a Record, got {'nothing' if got is None else repr(got)}"
    count = getattr(method, method.steps, None) if isinstance(method.steps, str) else None
    if method.steps and (not isinstance(count, int) or isinstance(count, bool)):
        yield f".steps = {method.steps!r} must name the integer hyperparameter that counts local steps"
    yield from _signature(method.initialize, ("shared",))
    if type(method).phases is Algorithm.phases:
        if not callable(getattr(method, "client_round", None)):
            yield f" needs client_round({', '.join(CLIENT)}), or `phases`"
        if _read(method, "message", None) is None:
            yield " needs a Record `message`, or `phases`"


def _misplaced(what: str, place: str, record: Record) -> Iterator[str]:
    for kind, why in MISPLACED[place].items():
        for field in record.fields_of_type(kind):
            yield f": {what}.{field} cannot be {record.fields[field]!r}: {why}"


def _phases(method: Algorithm) -> Iterator[str]:
    for name in ("start", "phases"):
        phases = _read(method, name)
        if not isinstance(phases, tuple | list):
            property = ": @property is missing" if isinstance(phases, MethodType) else ""
            yield f".{name} must be a tuple of Phase(...), got a {type(phases).__name__}{property}"
            continue
        if name == "phases" and not phases:
            yield ".phases is empty: a round needs a phase"
        for number, phase in enumerate(phases):
            yield from _phase(method, phase)
            if getattr(phase, "new_cohort", False) and (number == 0 or name == "start"):
                why = "all clients participate in it" if name == "start" else "it has the cohort of the round"
                yield f".{name}[{number}] cannot have new_cohort = True: {why}"


def _phase(method: Algorithm, phase: Phase) -> Iterator[str]:
    if not isinstance(phase, Phase):
        yield f": a phase is Phase(client_function, message, server_function), got {phase!r}"
        return
    if not callable(phase.client):
        yield f": the client function of a phase must be callable, got {phase.client!r}"
        return
    if phase.server is not None and not callable(phase.server):
        yield f": the server function of phase {phase.name!r} must be callable, got {phase.server!r}"
        return
    yield from _signature(phase.client, CLIENT)
    if not isinstance(phase.message, Record) or not phase.message.fields:
        yield f": phase {phase.name!r} needs a message, a Record with a field, got {phase.message!r}"
        return
    yield from _misplaced(f"in phase {phase.name!r}, message", "message", phase.message)
    if phase.server is not None:
        yield from _signature(phase.server, SERVER)
        return
    used = {*method.shared.fields, *(field.of for field in method.shared.fields_of_type(Adaptive).values())}
    for field in phase.message.fields:
        if field not in used:
            yield (
                f": phase {phase.name!r} has no server function, so its averages replace the fields of "
                f"`shared` of the same names, but there is no {field!r} (it has "
                f"{', '.join(method.shared.fields)})"
            )


def _signature(function: Callable, arguments: tuple[str, ...]) -> Iterator[str]:
    """Report a function that cannot be called with ``arguments`` or takes them in another order."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # not written in Python
        return
    try:
        bound = signature.bind(*arguments).arguments
    except TypeError:
        bound = {}
    swapped = any(name != value for name, value in bound.items() if name in arguments and value in arguments)
    if not bound or swapped:
        name = called(function).rpartition(".")[2]
        yield f": {name} must take ({', '.join(arguments)}), got {name}{signature}"


def _adaptive(method: Algorithm) -> Iterator[str]:
    matrix = getattr(method, "matrix", None)
    for field, kind in method.shared.fields_of_type(Adaptive).items():
        carriers = [phase.message.fields for phase in method.phases if kind.of in phase.message.fields]
        if not all(hasattr(matrix, name) for name in ("fields", "shape", "adapts", "set_reference")):
            got = "nothing" if matrix is None else repr(matrix)
            yield f".{field} is adaptive, so it needs a hyperparameter `matrix: Matrix`, got {got}"
        if not carriers:
            options = ", ".join(sorted({name for phase in method.phases for name in phase.message.fields}))
            yield (
                f".{field} is computed from the average of {kind.of!r}, which no message of a round contains "
                f"(options: {options})"
            )
        elif kind.block not in carriers[0] and kind.block not in method.shared.fields:
            yield (
                f".{field} is the matrix of {kind.block!r}, which is not a field of `shared` or of the "
                f"message with {kind.of!r}"
            )


def _averages(method: Algorithm) -> Iterator[str]:
    averages, fields = method.averages, method.shared.fields
    if not isinstance(averages, dict):
        yield f".averages must be a dictionary, block: field of `shared`, got {averages!r}"
        return
    blocks = BLOCKS.get(method.family, ())
    if averages and set(averages) != set(blocks):
        yield f".averages must name the blocks {', '.join(blocks)}, got {', '.join(map(str, averages))}"
    for block, field in averages.items():
        if field not in fields:
            yield f".averages: there is no field {field!r} in `shared` (it has {', '.join(fields)})"
        elif getattr(fields[field], "type", fields[field]) != block:
            yield f".averages: shared.{field} has the shape of {fields[field]!r}, expected that of {block!r}"


#: Maximum number of rows of a client's data on which functions are evaluated.
ROWS = 2
#: Number of samples that are drawn; differs from the number of clients, so that swapped axes are found.
COUNT = 3
#: Family → the functions that a problem must define, with alternatives.
FUNCTIONS: dict[str, list[tuple[str, ...]]] = {
    "minimax": [("loss", "gradients")],
    "operator": [("operator",)],
    "composition": [("inner",), ("outer", "outer_gradient")],
}


def samples_of(problem: Problem) -> tuple[str, ...]:
    """Return the values of ``stream.of`` for which a problem draws samples."""
    return ("g", "f") if problem.family == "composition" else ("",)


def address(clients: Sequence[int], count: int, of: str, round: int = 1) -> Stream:
    """Return a stream for the samples of a check; ``of`` is one of :func:`samples_of`."""
    stream = Stream(0, "check", clients, round, count)
    stream.of = of
    return stream


def minibatch(
    problem: Problem, clients: Sequence[int], size: int, dtype, device="cpu", of: str = "", round: int = 1
) -> tuple[torch.Tensor, ...]:
    """Return one sample per client, tensors ``[C, rows, ...]``.

    For a problem with data these are the first rows that all of the clients have.

    Args:
        size: maximum number of rows; 0 for all rows, or for the full batch of a problem that draws samples.
        of: one of :func:`samples_of`.
        round: round of the address of samples that are drawn.
    """
    exact = None if size else problem.full_batch(clients[0])
    drawn = problem.draw(address(clients, 1, of, round), size) if exact is None else None
    if drawn is not None:
        columns = tuple(torch.from_numpy(np.ascontiguousarray(array))[:, 0] for array in drawn)
    else:
        full = problem.client_data if exact is None else problem.full_batch
        parts = [tuple(map(torch.as_tensor, full(client) or ())) for client in clients]
        rows = min((len(column) for part in parts for column in part), default=0)
        rows = min(rows, size) if size else rows
        columns = tuple(torch.stack([own[:rows] for own in column]) for column in zip(*parts))
    return tuple(column.to(device, dtype if column.is_floating_point() else None) for column in columns)


def check_problem(
    problem: Problem,
    algorithm: Algorithm | None = None,
    *,
    dtype: torch.dtype = torch.float64,
    device="cpu",
    batch_size: int = 1,
    weights: str = "uniform",
) -> None:
    """Check a prepared problem.

    Args:
        algorithm: the method to run, which must support the problem's convex part φ and its sets.
        dtype, device: dtype and device of the run.
        batch_size: rows per sample; 0 for all rows of a client.
        weights: weights of the clients, "uniform" or "samples".

    Raises:
        ContractError: one line per error, or an exception that a function has raised, with its traceback.
    """
    clients = [0, min(1, problem.clients - 1)]
    stages: tuple[Callable[[], Iterable[str]], ...] = (
        lambda: [*_functions(problem), *_phi(problem, algorithm), *_blocks(problem, algorithm)],
        lambda: _initial(problem),
        lambda: _samples(problem, algorithm, clients, batch_size, weights),
        lambda: _values(problem, clients, dtype, device, batch_size),
    )
    name = type(problem).__name__
    for stage in stages:
        try:
            errors = list(stage())
        except Exception as error:  # user code may raise anything
            lines = user_frames(error)
            if isinstance(error, ContractError) or (isinstance(error, ValueError | OSError) and not lines):
                raise
            raised = f"{type(error).__name__}: {error}{hint(error)}"
            raise ContractError(f"{name} fails at its starting point: {raised}\n{lines}".rstrip()) from None
        if errors:
            raise ContractError("\n".join(f"{name}: {error}" for error in errors))


def _functions(problem: Problem) -> Iterator[str]:
    for options in FUNCTIONS[problem.family]:
        if not any(defines(problem, name) for name in options):
            yield f"it must define {' or '.join(f'{name}()' for name in options)}"
    if problem.test_rows and not defines(problem, "predict"):
        yield f"it sets test_rows = {problem.test_rows}, so it must define predict()"


def _phi(problem: Problem, algorithm: Algorithm | None) -> Iterator[str]:
    phi = getattr(problem, "phi", None)
    if problem.family == "operator":
        if not isinstance(phi, Zero) and algorithm is not None and not algorithm.composite:
            name = title(algorithm)
            yield f"{name} would ignore its convex part φ = {phi}: it needs a method with composite = True"
    elif isinstance(phi, tuple(PROXIMALS.values())) and not isinstance(phi, Zero):
        yield f"a {problem.family} problem has no convex part, got phi = {phi}: use sets, or an Operator"


def _blocks(problem: Problem, algorithm: Algorithm | None) -> Iterator[str]:
    if not defines(problem, "variables"):
        yield "it must define variables(), the names and shapes of its blocks"
        return
    blocks = problem.variables()
    if not isinstance(blocks, Blocks):
        yield f"variables() must return Blocks(...), got {type(blocks).__name__}"
        return
    if tuple(blocks) not in problem.layouts:
        layouts = " or ".join(f"({', '.join(layout)})" for layout in problem.layouts)
        yield f"variables() has the blocks ({', '.join(blocks)}), expected {layouts}"
    for block, size in blocks.sizes.items():
        if not size:
            yield f"block {block!r} of variables() has no elements: leave it out"
        for name in blocks[block]:  # the name of a dataset in the results file
            if not isinstance(name, str) or not name.isprintable() or "/" in name or name in ("", "."):
                yield f"variables() has a parameter {short_repr(name)} in {block!r}: expected text without /"
    x = blocks.get("x", {})
    for name, shape in problem.network.items():
        if x.get(name) != tuple(shape):
            found = f"has the shape {list(x[name])}" if name in x else f"has no {name!r}: {suggest(name, x)}"
            yield f"network has {name!r} of shape {list(shape)}, but block x of variables() {found}"
    for block in problem.sets:
        if block not in blocks:
            yield f"sets has a set for {block!r}, which is not a block: {suggest(block, blocks)}"
        elif algorithm is not None and not algorithm.constrained:
            name = title(algorithm)
            yield f"{name} would ignore its set of {block}: it needs a method with constrained = True"
        elif problem.family == "operator" and algorithm is not None and algorithm.composite:
            name = title(algorithm)
            yield f"{name} takes the set of {block} as φ: expected phi = Indicator(set=...) and no sets"


def _initial(problem: Problem) -> Iterator[str]:
    start, sizes = problem.initial(generator(0, "initial")), problem.variables().sizes
    if not isinstance(start, dict):
        yield f"initial() must return a dictionary with a flat tensor per block, got {type(start).__name__}"
        return
    for block, value in start.items():
        if block not in sizes:
            yield f"initial() has {block!r}, which is not a block: {suggest(block, sizes)}"
            continue
        try:
            tensor = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError):
            yield f"initial() returns a {type(value).__name__} for block {block!r}, expected a tensor"
            continue
        shape = list(tensor.shape)
        if tensor.numel() != sizes[block]:
            yield f"initial() returns shape {shape} for block {block!r}, expected {sizes[block]} elements"
        elif not torch.isfinite(tensor).all():
            yield f"initial() returns values for block {block!r} that are not finite"


def _samples(
    problem: Problem, algorithm: Algorithm | None, clients: list[int], batch_size: int, weights: str
) -> Iterator[str]:
    """Check data and draws, and whether the method and the weights can use them."""
    held = [problem.client_data(client) for client in clients]
    full = [problem.full_batch(client) for client in clients]
    size = batch_size or int(full[0] is not None)  # a full batch is not drawn
    drawn = {of: problem.draw(address(clients, COUNT, of), size) for of in samples_of(problem)}
    draws = any(arrays is not None for arrays in drawn.values())
    if draws and len(held[0]):
        yield "it defines both client_data() and draw(): expected one of them"
    elif full[0] is not None and not draws:
        yield "it defines full_batch() without draw(): rows of data belong in client_data()"
    elif not draws:
        yield from _rows("client_data", held, clients)
    else:
        if weights == "samples" and type(problem).client_size is Problem.client_size:
            yield (
                'weights = "samples" needs the number of samples per client, but draw() generates them: set '
                'weights = "uniform", or define client_size(client)'
            )
        if full[0] is not None:
            yield from _rows("full_batch", full, clients)
        elif algorithm is not None and algorithm.minibatch_alternative:
            yield (
                f"{title(algorithm)} needs gradients on all data of a client, but draw() generates samples: "
                f"set algorithm.{algorithm.minibatch_alternative}, or define full_batch(client)"
            )
        for of, arrays in drawn.items():
            yield from _drawn(arrays, f"draw() of {of!r}" if of else "draw()", len(clients), size)


def _drawn(arrays, what: str, clients: int, size: int) -> Iterator[str]:
    if arrays is None:
        return
    if not isinstance(arrays, tuple | list):
        yield f"{what} must return a tuple of arrays, (array,) for one, got {type(arrays).__name__}"
        return
    lead = (clients, COUNT, size) if size else (clients, COUNT)
    for number, array in enumerate(arrays):
        shape = np.shape(array)
        if shape[: len(lead)] != lead:
            yield (
                f"{what} returned array {number} of shape {list(shape)}, expected [C, count, size, ...] with "
                f"C = {clients}, count = {COUNT}, size = {size}"
            )
        elif not size and 0 in shape:
            yield (
                f"{what} has no rows for oracle.batch_size = 0, exact gradients: set it to 1 or more, or "
                "define full_batch(client) where they are known"
            )


def _rows(function: str, held: list, clients: list[int]) -> Iterator[str]:
    rows = []
    for client, columns in zip(clients, held):
        what = f"{function}({client})"
        if not isinstance(columns, tuple | list):
            yield f"{what} must return a tuple of tensors, (rows,) for one, got {type(columns).__name__}"
            return
        shapes = [np.shape(column) for column in columns]
        if any(not shape for shape in shapes):
            yield f"{what} has a column without an axis over rows"
            return
        lengths = [shape[0] for shape in shapes]
        if len(set(lengths)) > 1:
            yield f"{what} has columns of different lengths: {', '.join(map(str, lengths))} rows"
        elif 0 in lengths:
            yield f"{what} has no rows"
        rows.append([list(shape[1:]) for shape in shapes])
    if rows[0] != rows[1]:
        first, second = (f"{function}({client})" for client in clients)
        yield f"{second} has columns with rows of shape {rows[1]}, {first} of {rows[0]}"


@torch.no_grad()
def _values(problem: Any, clients: list[int], dtype, device, batch_size: int) -> Iterator[str]:
    """Check the values of the functions of a problem whose declarations, start and data are valid."""
    point, blocks, kinds = starting_point(problem, dtype, device), problem.variables(), samples_of(problem)
    drawn = problem.full_batch(0) or problem.draw(address([0], 1, kinds[0]), batch_size)
    size = (min(batch_size, ROWS) or ROWS) if drawn is None else batch_size
    pairs = {of: minibatch(problem, clients, size, dtype, device, of) for of in kinds}
    named = [blocks.unflatten(block, flat) for block, flat in zip(blocks, point)]
    u = None
    if errors := list(_losses(problem, named, pairs, dtype)):
        yield from errors
        return
    if problem.family == "composition":
        rows = [tuple(column[client] for column in pairs["g"]) for client in range(2)]
        u = torch.stack([problem.inner(*named, own) for own in rows]).to(dtype)
    for count in (1, 2):
        batches = {of: tuple(column[:count] for column in pair) for of, pair in pairs.items()}
        stacked = [flat.expand(count, -1).clone() for flat in point]
        # Without data a function cannot know how many clients share a point.
        for points in (stacked, point) if pairs[kinds[0]] else (stacked,):
            if errors := list(_analytic(problem, points, batches, count, u, dtype)):
                yield from errors
                return


def _losses(problem: Any, named: list, pairs: dict, dtype) -> Iterator[str]:
    """Check the functions of one client; their values may be more precise than the run's dtype."""
    one = {of: tuple(column[0] for column in pair) for of, pair in pairs.items()}
    precise = {dtype, torch.float64}
    if defines(problem, "loss"):
        yield from _wrong("loss()", problem.loss(*named, one[""]), [], precise)
    if problem.family == "composition":
        u = problem.inner(*named, one["g"])
        errors = list(_wrong("inner()", u, [problem.inner_size], precise, " (inner_size)"))
        yield from errors
        if defines(problem, "outer") and not errors:
            yield from _wrong("outer()", problem.outer(u.to(dtype), one["f"]), [], precise)


def _analytic(problem: Any, points: list, batches: dict, count: int, u, dtype) -> Iterator[str]:
    """Check the analytic functions for ``count`` clients."""
    sizes, clients = [flat.shape[-1] for flat in points], f" for {count} client{'s' * (count > 1)}"
    where = f"{clients} at a point of shape {', '.join(str(list(flat.shape)) for flat in points)}"
    if problem.family == "minimax" and problem.gradients is not None:
        values = problem.gradients(*points, batches[""])
        values = (values,) if len(points) == 1 else values
        parts = dict(zip(("gx", "gy"), ([count, size] for size in sizes)))
        yield from _several("gradients()", where, values, parts, dtype)
    elif problem.family == "operator":
        value = problem.operator(*points, batches[""])
        yield from _wrong(f"operator(){where}", value, [count, *sizes], {dtype})
    elif problem.family == "composition":
        p = problem.inner_size
        if problem.jacobian is not None:
            values = problem.jacobian(*points, batches["g"])
            parts = {"u": [count, p], "J": [count, p, *sizes]}
            yield from _several("jacobian()", where, values, parts, dtype)
        if problem.outer_gradient is not None:
            value = problem.outer_gradient(u[:count], batches["f"])
            yield from _wrong(f"outer_gradient(){clients}", value, [count, p], {dtype})


def _several(what: str, where: str, values, parts: dict[str, list[int]], dtype) -> Iterator[str]:
    if not isinstance(values, tuple | list) or len(values) != len(parts):
        yield f"{what} must return {len(parts)} tensors, ({', '.join(parts)}), got {_described(values)}"
        return
    for (name, shape), value in zip(parts.items(), values):
        yield from _wrong(f"{name} of {what}{where}", value, shape, {dtype})


def _wrong(what: str, value, shape: list[int], dtypes: set[torch.dtype], note: str = "") -> Iterator[str]:
    """Report a value that is not a tensor, or has another shape or dtype."""
    if not isinstance(value, torch.Tensor):
        yield f"{what} returned {_described(value)}, expected a tensor"
    elif list(value.shape) != shape:
        expected = f"{shape}{note}" if shape else "a scalar"
        yield f"{what} has the shape {list(value.shape)}, expected {expected}"
    elif value.dtype not in dtypes:
        expected = " or ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        yield f"{what} is {str(value.dtype).removeprefix('torch.')}, expected {expected}"


def _described(value) -> str:
    if isinstance(value, torch.Tensor):
        return f"one of shape {list(value.shape)}"
    return f"{len(value)} values" if isinstance(value, tuple | list) else f"a {type(value).__name__}"


def expect_mirror(problem: Problem, algorithm: Algorithm, seed: int) -> None:
    """Check that a dual method's mirror map is defined on the set of a prepared problem and at its start.

    Raises:
        ContractError: it is not.
    """
    mirror: Any = getattr(algorithm, "mirror", None)
    if type(mirror) not in MIRRORS.values():
        return
    operator: Any = as_family(problem, "operator")
    start = operator.initial(generator(seed, "initial"))
    point = torch.as_tensor(start.get("z", torch.zeros(operator.variables().sizes["z"]))).reshape(-1).double()
    if errors := list(mirror.errors(operator.phi, point)):
        raise ContractError("\n".join(f"{title(algorithm)}: {error}" for error in errors))


#: Depth to which attributes are searched for non-finite values, and the number of attributes that are named.
_DEPTH, _MOST = 4, 3


def expect_finite(problem: Problem, seed: int, batch_size: int, dtype, device) -> None:
    """Check that the clients' functions are finite at the start if attributes of the problem are not.

    Attributes may be infinite (a bound) or NaN (a missing value that the problem handles).

    Args:
        batch_size: rows of a sample of a problem that generates samples.

    Raises:
        ContractError: a client's function is not finite; lists the attributes that are not.
    """
    attributes = (
        non_finite(value, f"self.{name}", _DEPTH, (id(problem),)) for name, value in vars(problem).items()
    )
    found = list(itertools.islice(itertools.chain.from_iterable(attributes), _MOST))
    for client in range(problem.clients if found else 0):
        try:
            error = _not_finite(problem, client, seed, batch_size, dtype, device)
        except ContractError as raised:  # the client's rows
            error = str(raised)
        except Exception:  # another error, reported where it occurs
            return
        if error:
            raise ContractError(f"{error}. Attributes that are not finite: {', '.join(found)}")


def non_finite(value: Any, name: str, depth: int = _DEPTH, parents: tuple[int, ...] = ()) -> Iterator[str]:
    """Describe each array and number in ``value`` that is not finite, such as ``nan in row 7 of self.rows``.

    Searches containers and dataclasses to ``depth``. Python floats may be infinite.

    Args:
        name: expression for ``value``.
        parents: ids of the objects that contain ``value``, which are not searched again.
    """
    if isinstance(value, np.ndarray) and value.dtype.kind in "fc":
        # A writable copy, because torch warns of read-only arrays.
        value = torch.from_numpy(np.require(value, requirements=("C", "W")))
    children: dict[str, Any] = {}
    if isinstance(value, torch.Tensor):
        if (index := first_non_finite(value)) is not None:
            yield f"{value[index].item()} in {f'row {index[0]} of ' if index else ''}{name}"
    elif isinstance(value, float) and math.isnan(value):
        yield f"nan in {name}"
    elif isinstance(value, dict):
        children = {f"[{key!r}]": item for key, item in value.items()}
    elif isinstance(value, list | tuple):
        children = {f"[{place}]": item for place, item in enumerate(value)}
    elif dataclasses.is_dataclass(value) and hasattr(value, "__dict__"):
        children = {f".{key}": item for key, item in vars(value).items()}
    if depth and id(value) not in parents:
        for key, item in children.items():
            yield from non_finite(item, name + key, depth - 1, (*parents, id(value)))


@torch.no_grad()
def _not_finite(problem: Problem, client: int, seed: int, batch_size: int, dtype, device) -> str:
    """Return the error if a client's function at the start is not finite on its rows or a sample, or ""."""
    size = 0 if len(problem.client_data(client)) else batch_size
    sampler = Sampler(problem, [client], seed, size, None, 0, dtype, torch.device(device))
    oracle = ORACLES[problem.family](problem, sampler, batched=False)
    oracle.select_clients(slice(0, 1))
    values = EVALUATIONS[problem.family](oracle, *starting_point(problem, dtype, device), oracle.sample())
    if all(map(all_finite, values if isinstance(values, tuple | list) else (values,))):
        return ""
    what = f"{type(problem).__name__}: the {'operator' if problem.family == 'operator' else 'gradient'}"
    return f"{what} of client {client} is not finite at the starting point"
