"""Validation of user-defined methods and problems before any work: one sentence per error.

Shapes and precisions of a problem's functions are validated at the starting point. Losses are called for one
client; analytic derivatives for one client and for two, with a point for each client and with one point for
both. Whether derivatives are correct is tested by ``mpifed check``. A message that is not filled, or a
function that writes to a record that it must only read, is reported in the first rounds.

A problem's attributes may be infinite (a bound) or NaN (a missing value that the problem handles). They are
reported only where a client's function is not finite at the starting point, and the functions are evaluated
only if there are such values.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from types import MethodType
from typing import Any

import numpy as np
import torch

from mpifed.base.errors import ContractError, hint, message_of, short_repr, user_code_errors, user_frames
from mpifed.base.settings import suggest, title
from mpifed.core.algorithm import Algorithm, Phase
from mpifed.core.finite import all_finite, first_bad
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
    "faults_of_values",
    "minibatch",
    "samples_of",
    "two_clients",
]

#: Record → the kinds of fields that it cannot have, and why.
MISPLACED: dict[str, dict[type, str]] = {
    "shared": {WithinRound: "within_round() is for `client`", Stored: "stored() is for `message`"},
    "client": {
        NotSent: "what clients keep never travels",
        Stored: "stored() is for `message`",
        Adaptive: "adaptive() is for `shared`",
    },
    "message": {WithinRound: "within_round() is for `client`", Adaptive: "adaptive() is for `shared`"},
}
#: Family → the blocks whose averages a method may return.
BLOCKS = {"minimax": ("x", "y"), "minimisation": ("x",), "operator": ("z",), "composition": ("x",)}
CLIENT, SERVER = ("now", "shared", "client", "message", "oracle"), ("now", "shared", "mean")


def called(function: Callable) -> str:
    """The name of a method's function in messages: ``Fair.client_round``."""
    name = getattr(function, "__name__", type(function).__name__)
    return f"{title(function.__self__)}.{name}" if isinstance(function, MethodType) else name


def expect_nothing(returned, name: str, instead: str) -> None:
    """Refuse a value that a function of a method has returned, which would be ignored.

    Raises:
        ContractError: it has returned a value.
    """
    if returned is not None:
        raise ContractError(f"{name} returned a {type(returned).__name__}: it {instead} and returns nothing")


def expect_unchanged(state: State, before: torch.Tensor, record: str, function: Callable, kind: str) -> None:
    """Refuse a write of a method's function to a record that it must only read.

    Args:
        before: the state's buffer, before the function ran.
        record: the function's name of the state; ``kind``: "client" or "server".

    Raises:
        ContractError: a value has changed.
    """
    if torch.equal(before, state.buffer):
        return
    field = state.layout.field_at(int((before != state.buffer).nonzero()[0]))
    raise ContractError(
        f"{called(function)} changed {record}.{field}: a {kind} function reads `{record}` and never writes "
        f"to it, not in place either (x = {record}.x; x -= ... does; x = x - ... does not)"
    )


def check_method(method: Algorithm) -> None:
    """Refuse a method that cannot run on any problem.

    Raises:
        ContractError: one line per error; an error in the method's own ``phases`` is followed by its lines.
    """
    for stage in (_declarations, _phases, _adaptive, _averages):
        faults = [f"{title(method)}{fault}" for fault in stage(method)]
        if faults:
            raise ContractError("\n".join(dict.fromkeys(faults)))  # a repeated phase is reported once


def _declarations(method: Algorithm) -> Iterator[str]:
    """Records, and the name of the hyperparameter that counts steps."""
    for record in ("shared", "client"):
        got = _read(method, record, None)
        if isinstance(got, Record):
            yield from _misplaced(record, record, got)
        else:
            yield f".{record} must be a Record, got {'nothing' if got is None else repr(got)}"
    steps = method.steps
    count = getattr(method, steps, None) if isinstance(steps, str) else None
    if steps and (not isinstance(count, int) or isinstance(count, bool)):
        yield f".steps = {steps!r} must name the hyperparameter that counts local steps, a whole number"
    yield from _signature(method.initialize, ("shared",))
    if type(method).phases is Algorithm.phases:
        if not callable(getattr(method, "client_round", None)):
            yield f" needs client_round({', '.join(CLIENT)}), or `phases`"
        if _read(method, "message", None) is None:
            yield " needs a Record `message`, or `phases`"


def _misplaced(what: str, place: str, record: Record) -> Iterator[str]:
    for kind, why in MISPLACED[place].items():
        for field in record.of(kind):
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
                why = "all clients take part in it" if name == "start" else "it has the round's own cohort"
                yield f".{name}[{number}] cannot have new_cohort = True: {why}"


def _read(method: Algorithm, name: str, *default):
    """An attribute that a user's own code may make."""
    try:
        with user_code_errors(f"{title(method)}.{name}"):
            return getattr(method, name, *default)
    except ValueError as error:
        raise ContractError(message_of(error)) from None


def _phase(method: Algorithm, phase: Phase) -> Iterator[str]:
    if not isinstance(phase, Phase):
        yield f": a phase is Phase(client_function, message, server_function), got {phase!r}"
        return
    if not callable(phase.client):
        yield f": the client function of a phase must be callable, got {phase.client!r}"
        return
    yield from _signature(phase.client, CLIENT)
    if not isinstance(phase.message, Record) or not phase.message.fields:
        yield f": phase {phase.name!r} needs a message, a Record with a field, got {phase.message!r}"
        return
    yield from _misplaced(f"in phase {phase.name!r}, message", "message", phase.message)
    if phase.server is not None and not callable(phase.server):
        yield f": the server function of phase {phase.name!r} must be callable, got {phase.server!r}"
    elif phase.server is not None:
        yield from _signature(phase.server, SERVER)
    else:
        yield from _lost(method, phase)


def _lost(method: Algorithm, phase: Phase) -> Iterator[str]:
    """Averages that are not used."""
    feeding = {field.of for field in method.shared.of(Adaptive).values()}
    for field in phase.message.fields:
        if field not in method.shared.fields and field not in feeding:
            yield (
                f": phase {phase.name!r} has no server function, so its averages replace the fields of "
                f"`shared` of the same names, but there is no {field!r} (it has "
                f"{', '.join(method.shared.fields)})"
            )


def _signature(function: Callable, arguments: tuple[str, ...]) -> Iterator[str]:
    """An error if a function cannot be called with ``arguments``, or takes them in another order."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # not written in Python
        return
    try:
        taken = signature.bind(*arguments).arguments
    except TypeError:
        taken = {}
    swapped = any(name != value for name, value in taken.items() if name in arguments and value in arguments)
    if not taken or swapped:
        name = called(function).rpartition(".")[2]
        yield f": {name} must take ({', '.join(arguments)}), got {name}{signature}"


def _adaptive(method: Algorithm) -> Iterator[str]:
    fields = method.shared.of(Adaptive)
    matrix = getattr(method, "matrix", None)
    for field, kind in fields.items():
        carriers = [phase.message.fields for phase in method.phases if kind.of in phase.message.fields]
        if not all(hasattr(matrix, name) for name in ("fields", "shape", "adapts", "refer")):
            got = "nothing" if matrix is None else repr(matrix)
            yield f".{field} is adaptive, so it needs a hyperparameter `matrix: Matrix`, got {got}"
        if not carriers:
            options = ", ".join(sorted({name for phase in method.phases for name in phase.message.fields}))
            yield (
                f".{field} is made from the average of {kind.of!r}, which no message of a round carries "
                f"(these: {options})"
            )
        elif kind.block not in carriers[0] and kind.block not in method.shared.fields:
            yield (
                f".{field} is the matrix of {kind.block!r}, which is no field of `shared` or of the message "
                f"with {kind.of!r}"
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
        elif getattr(fields[field], "kind", fields[field]) != block:
            yield (
                f".averages: shared.{field} is of kind {fields[field]!r}, expected that of block {block!r}"
            )


#: Rows of a client's data that functions are evaluated on, at most.
ROWS = 2


def two_clients(problem: Problem) -> list[int]:
    """Two clients; the only one twice."""
    return [0, min(1, problem.clients - 1)]


def samples_of(problem: Problem) -> tuple[str, ...]:
    """The kinds of samples that a problem may draw."""
    return ("g", "f") if problem.family == "composition" else ("",)


def address(clients: Sequence[int], count: int, of: str, round: int = 1) -> Stream:
    """A stream for the samples of a check; ``of`` is one of :func:`samples_of`."""
    stream = Stream(0, "check", clients, round, count)
    stream.of = of
    return stream


def minibatch(
    problem: Problem, clients: Sequence[int], size: int, dtype, device="cpu", of: str = "", round: int = 1
) -> tuple[torch.Tensor, ...]:
    """A sample of each of ``clients``: tensors ``[C, rows, ...]``.

    Of problems with data these are the first rows that all of the clients have, at most ``size`` where that
    is not 0, when problems that draw give their full batch.

    Args:
        of: "g" or "f" for the two samples of a composition; ``round``: problems that draw draw other samples
        in each.
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


@torch.no_grad()
def faults_of_values(problem: Problem, dtype, device, batch_size: int) -> Iterator[str]:
    """The errors of a problem whose declarations, start and data are valid."""
    point, first = starting_point(problem, dtype, device), samples_of(problem)[0]
    draws = problem.full_batch(0) or problem.draw(address([0], 1, first), batch_size)
    size = min(batch_size, ROWS) or ROWS if draws is None else batch_size
    pairs = {
        of: minibatch(problem, two_clients(problem), size, dtype, device, of) for of in samples_of(problem)
    }
    u, faults = None, list(_differentiated(problem, point, pairs, dtype))
    if problem.family == "composition" and not faults:
        u = torch.stack([_inner(problem, point, pairs["g"], client) for client in range(2)]).to(dtype)
    yield from faults
    for count in (1, 2):
        batches = {of: tuple(column[:count] for column in pair) for of, pair in pairs.items()}
        stacked = [flat.expand(count, -1).clone() for flat in point]
        # Without data a function cannot know how many clients share a point.
        for points in (stacked, point) if pairs[first] and not faults else (stacked,):
            if not faults:
                faults = list(_by_hand(problem, points, batches, count, u, dtype))
                yield from faults


def _named(problem: Any, point: list) -> list:
    blocks = problem.variables()
    return [blocks.unflatten(block, flat) for block, flat in zip(blocks, point)]


def _inner(problem: Any, point: list, batch: tuple, client: int) -> torch.Tensor:
    return problem.inner(*_named(problem, point), tuple(column[client] for column in batch))


def _differentiated(problem: Any, point: list, pairs: dict, dtype) -> Iterator[str]:
    """Of the functions of one client.

    They may return more precise numbers than the run's: derivatives come in the precision of the point.
    """
    one = {of: tuple(column[0] for column in pair) for of, pair in pairs.items()}
    named, precise = _named(problem, point), {dtype, torch.float64}
    if defines(problem, "loss"):
        yield from _wrong("loss()", problem.loss(*named, one[""]), [], precise)
    if problem.family == "composition":
        u = problem.inner(*named, one["g"])
        faults = list(_wrong("inner()", u, [problem.inner_size], precise, " (inner_size)"))
        yield from faults
        if defines(problem, "outer") and not faults:
            yield from _wrong("outer()", problem.outer(u.to(dtype), one["f"]), [], precise)


def _by_hand(problem: Any, points: list, batches: dict, count: int, u, dtype) -> Iterator[str]:
    """Of the functions of ``count`` clients together."""
    sizes = [flat.shape[-1] for flat in points]
    given = ", ".join(str(list(flat.shape)) for flat in points)
    where = f" for {count} client{'s' * (count > 1)} at a point of shape {given}"
    if problem.family == "minimax" and problem.gradients is not None:
        values, names = problem.gradients(*points, batches[""]), ("gx", "gy")[: len(points)]
        values = (values,) if len(points) == 1 else values
        yield from _several("gradients()", where, values, names, [[count, size] for size in sizes], dtype)
    elif problem.family == "operator":
        value = problem.operator(*points, batches[""])
        yield from _wrong(f"operator(){where}", value, [count, *sizes], {dtype})
    elif problem.family == "composition":
        if problem.jacobian is not None:
            p = problem.inner_size
            values, expected = problem.jacobian(*points, batches["g"]), [[count, p], [count, p, *sizes]]
            yield from _several("jacobian()", where, values, ("u", "J"), expected, dtype)
        if problem.outer_gradient is not None:
            value = problem.outer_gradient(u[:count], batches["f"])
            where = f" for {count} client{'s' * (count > 1)}"
            yield from _wrong(f"outer_gradient(){where}", value, list(u[:count].shape), {dtype})


def _several(what: str, where: str, values, names: tuple, shapes: list, dtype) -> Iterator[str]:
    if not isinstance(values, tuple | list) or len(values) != len(names):
        yield f"{what} must return {len(names)} tensors, ({', '.join(names)}), got {_described(values)}"
        return
    for name, value, shape in zip(names, values, shapes):
        yield from _wrong(f"{name} of {what}{where}", value, shape, {dtype})


def _wrong(what: str, value, shape: list[int], dtypes: set[torch.dtype], note: str = "") -> Iterator[str]:
    """The error of a value that is not a tensor, or has another shape or precision."""
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


#: Number of samples drawn at once; differs from the number of clients, so that swapped axes are found.
COUNT = 3
#: Family → the functions that a problem must have, alternatives side by side.
FUNCTIONS: dict[str, list[tuple[str, ...]]] = {
    "minimax": [("loss", "gradients")],
    "operator": [("operator",)],
    "composition": [("inner",), ("outer", "outer_gradient")],
}


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
        algorithm: the method to run on it, which must support its convex part φ and its sets.
        dtype, device: those of the run.
        batch_size: rows of a sample, 0 for all rows of a client.
        weights: how clients are weighted, "uniform" or "samples".

    Raises:
        ContractError: one line per error, or an error that a function has raised, with the user's lines.
    """
    stages: tuple[Callable[[], Iterator[str]], ...] = (
        lambda: _problem_declarations(problem, algorithm),
        lambda: _initial(problem),
        lambda: _client_data(problem, algorithm, batch_size, weights),
        lambda: faults_of_values(problem, dtype, device, batch_size),
    )
    for stage in stages:
        if faults := _guarded(problem, stage):
            raise ContractError("\n".join(f"{type(problem).__name__}: {fault}" for fault in faults))


def _guarded(problem: Problem, stage: Callable[[], Iterator[str]]) -> list[str]:
    """The errors that a stage finds; an exception in user code becomes a message with its lines."""
    try:
        return list(stage())
    except Exception as error:  # a user's code may raise anything
        lines = user_frames(error)
        if isinstance(error, ContractError) or (isinstance(error, ValueError | OSError) and not lines):
            raise
        raised = f"{type(error).__name__}: {error}{hint(error)}"
        text = f"{type(problem).__name__} fails at its starting point: {raised}\n{lines}"
        raise ContractError(text.rstrip()) from None


def _problem_declarations(problem: Problem, algorithm: Algorithm | None) -> Iterator[str]:
    """Functions, blocks, sets and φ."""
    for options in FUNCTIONS[problem.family]:
        if not any(defines(problem, name) for name in options):
            yield f"it must define {' or '.join(f'{name}()' for name in options)}"
    if problem.test_rows and not defines(problem, "predict"):
        yield f"it sets test_rows = {problem.test_rows}, so it must define predict()"
    yield from _phi(problem, algorithm)
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
            yield f"block {block!r} of variables() has no numbers: leave it out"
        for name in blocks[block]:
            if not _can_be_stored(name):
                yield f"variables() has a parameter {short_repr(name)} in {block!r}: expected text without /"
    x = blocks.get("x", {})
    for name, shape in problem.network.items():
        if x.get(name) != tuple(shape):
            found = f"of shape {list(x[name])}" if name in x else f"not: {suggest(name, x)}"
            yield f"network has {name!r} of shape {list(shape)}, block x of variables() has it {found}"
    for block in problem.sets:
        if block not in blocks:
            yield f"sets has a set for {block!r}, which is no block: {suggest(block, blocks)}"
        elif algorithm is not None and not algorithm.constrained:
            method = title(algorithm)
            yield f"{method} would ignore its set of {block}: it needs a method with constrained = True"
        elif problem.family == "operator" and algorithm is not None and algorithm.composite:
            method = title(algorithm)
            yield f"{method} takes the set of {block} as φ: expected phi = Indicator(set=...) and no sets"


def _can_be_stored(name) -> bool:
    """Whether a parameter's name can be that of a dataset in the results file."""
    return isinstance(name, str) and name.isprintable() and "/" not in name and name not in ("", ".")


def _phi(problem: Problem, algorithm: Algorithm | None) -> Iterator[str]:
    phi = getattr(problem, "phi", None)
    if isinstance(phi, Zero):
        return
    if problem.family == "operator":
        if algorithm is not None and not algorithm.composite:
            method = title(algorithm)
            yield f"{method} would ignore its convex part φ = {phi}: it needs a method with composite = True"
    elif isinstance(phi, tuple(PROXIMALS.values())):
        yield f"a {problem.family} problem has no convex part, got phi = {phi}: use sets, or an Operator"


def _initial(problem: Problem) -> Iterator[str]:
    start, sizes = problem.initial(generator(0, "initial")), problem.variables().sizes
    if not isinstance(start, dict):
        yield f"initial() must return a dictionary with a flat tensor a block, got {type(start).__name__}"
        return
    for block, value in start.items():
        if block not in sizes:
            yield f"initial() has {block!r}, which is no block: {suggest(block, sizes)}"
            continue
        tensor = _tensor(value)
        if tensor is None:
            yield f"initial() gives block {block!r} a {type(value).__name__}, expected a tensor"
        elif tensor.numel() != sizes[block]:
            shape = list(tensor.shape)
            yield f"initial() gives block {block!r} the shape {shape}, expected {sizes[block]} numbers"
        elif not torch.isfinite(tensor).all():
            yield f"initial() gives block {block!r} values that are not finite"


def _tensor(value) -> torch.Tensor | None:
    """A value as a tensor, ``None`` if it cannot be converted."""
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        return None


def _client_data(
    problem: Problem, algorithm: Algorithm | None, batch_size: int, weights: str
) -> Iterator[str]:
    """Data, draws, and weights and methods that need data."""
    clients = two_clients(problem)
    held = [problem.client_data(client) for client in clients]
    full = [problem.full_batch(client) for client in clients]
    size = batch_size or int(full[0] is not None)  # a full batch is not drawn
    drawn = {of: problem.draw(address(clients, COUNT, of), size) for of in samples_of(problem)}
    draws = any(arrays is not None for arrays in drawn.values())
    if draws and len(held[0]):
        yield "it defines both client_data() and draw(): samples come from one of them"
        return
    if full[0] is not None and not draws:
        yield "it defines full_batch() without draw(): rows of data belong in client_data()"
        return
    counts = type(problem).client_size is not Problem.client_size
    if draws and weights == "samples" and not counts:
        yield (
            'weights = "samples" needs data to count, and it draws its samples: take weights = "uniform", or '
            "define client_size(client)"
        )
    if draws and full[0] is None and algorithm is not None and algorithm.minibatch_alternative:
        yield (
            f"{title(algorithm)} takes gradients of all data of a client, and it draws its samples: "
            f"set algorithm.{algorithm.minibatch_alternative}, or define full_batch(client)"
        )
    for of, arrays in drawn.items():
        yield from _drawn(arrays, f"draw() of {of!r}" if of else "draw()", len(clients), size)
    if not draws:
        yield from _rows("client_data", held, clients)
    elif full[0] is not None:
        yield from _rows("full_batch", full, clients)


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
        yield (
            f"{function}({clients[1]}) has columns with rows of shape {rows[1]}, "
            f"{function}({clients[0]}) of {rows[0]}"
        )


def expect_mirror(problem: Problem, algorithm: Algorithm, seed: int) -> None:
    """Validate the mirror map of a dual method for a prepared problem's φ and starting point.

    Raises:
        ContractError: the map is not defined on the problem's set, or not at its starting point.
    """
    mirror: Any = getattr(algorithm, "mirror", None)
    if type(mirror) not in MIRRORS.values():
        return
    seen: Any = as_family(problem, "operator")
    start = seen.initial(generator(seed, "initial"))
    point = torch.as_tensor(start.get("z", torch.zeros(seen.variables().sizes["z"]))).reshape(-1).double()
    if faults := list(mirror.faults(seen.phi, point)):
        raise ContractError("\n".join(f"{title(algorithm)}: {fault}" for fault in faults))


#: How deep attributes are looked into, and how many of them are named.
_DEPTH, _MOST = 4, 3


def expect_finite(problem: Problem, seed: int, batch_size: int, dtype, device) -> None:
    """Validate the attributes of a prepared problem.

    Args:
        batch_size: rows of a sample of a problem that draws its own.

    Raises:
        ContractError: a client's function is not finite; lists the attributes that are not.
    """
    found = list(
        itertools.islice(_non_finite_attributes(vars(problem), "self.{}", _DEPTH, {id(problem)}), _MOST)
    )
    for client in range(problem.clients if found else 0):
        try:
            why = _not_finite(problem, client, seed, batch_size, dtype, device)
        except ContractError as error:  # the client's rows
            why = str(error)
        except Exception:  # another error, reported where it occurs
            return
        if why:
            raise ContractError(f"{why}. It holds {', '.join(found)}")


def _non_finite_attributes(values: dict, where: str, depth: int, seen: set[int]) -> Iterator[str]:
    """``nan in row 7 of self.rows[3]`` for each array of floats among ``values``, recursively.

    Args:
        where: format of their names.
        seen: ids of the visited objects.
    """
    for key, value in values.items():
        path = where.format(key)
        if isinstance(value, np.ndarray) and value.dtype.kind in "fc":
            # Torch warns of arrays that are read only.
            value = torch.from_numpy(np.require(value, requirements=("C", "W")))
        if isinstance(value, torch.Tensor):
            if (index := first_bad(value)) is not None:
                yield f"{value[index].item()} in {f'row {index[0]} of ' if index else ''}{path}"
        elif isinstance(value, float) and math.isnan(value):
            yield f"nan in {path}"
        elif depth and id(value) not in seen and isinstance(value, dict | list | tuple):
            seen.add(id(value))
            items = value if isinstance(value, dict) else dict(enumerate(value))
            inside = path.replace("{", "{{").replace("}", "}}") + "[{!r}]"
            yield from _non_finite_attributes(items, inside, depth - 1, seen)
        elif (
            depth and id(value) not in seen and dataclasses.is_dataclass(value) and hasattr(value, "__dict__")
        ):
            seen.add(id(value))
            yield from _non_finite_attributes(
                vars(value), path.replace("{", "{{").replace("}", "}}") + ".{}", depth - 1, seen
            )


@torch.no_grad()
def _not_finite(problem: Problem, client: int, seed: int, batch_size: int, dtype, device) -> str:
    """The error of a client's function at the starting point, on all its rows or on a draw; or ""."""
    size = 0 if len(problem.client_data(client)) else batch_size
    sampler = Sampler(problem, [client], seed, size, None, 0, dtype, torch.device(device))
    oracle = ORACLES[problem.family](problem, sampler, batched=False)
    oracle.at(slice(0, 1))
    values = EVALUATIONS[problem.family](oracle, *starting_point(problem, dtype, device), oracle.sample())
    parts = values if isinstance(values, tuple | list) else (values,)
    what = f"{type(problem).__name__}: the {'operator' if problem.family == 'operator' else 'gradient'}"
    if all(map(all_finite, parts)):
        return ""
    return f"{what} of client {client} is not finite at the starting point"
