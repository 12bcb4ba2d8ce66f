"""The contract of methods and problems, and the part of it that is checked before every run.

:func:`check_method` checks declarations. The contract of a problem is a list of checks, each a statement
and a function that yields one message per violation. Those in :data:`START` take little time;
``mpifed check`` also carries out those that need derivatives (:mod:`mpifed.core.derivative_checks`) or runs.
Messages that are not filled and writes to read-only records are reported in the first rounds. Errors that
Python or torch explain are not checked here.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from types import MethodType
from typing import Any, NamedTuple, get_args

import numpy as np
import torch

from mpifed.base.errors import ContractError, message_of, short_repr, user_code_errors
from mpifed.base.settings import suggest, title
from mpifed.core.algorithm import Algorithm, Phase
from mpifed.core.device import as_tensor
from mpifed.core.epochs import Epochs
from mpifed.core.problem import (
    Problem,
    as_family,
    defines,
    has_sizes,
    initial_point,
    is_analytic,
    network_block,
    on_stored_data,
    rows_of,
    sizes_of,
    starting_point,
    user_problem,
)
from mpifed.core.records import Adaptive, Blocks, Compressed, NotSent, Record, State, Stored, WithinRound
from mpifed.core.sample_words import AddressedBatch, SampleWords, with_dropout_words
from mpifed.core.sets import MIRRORS, PROXIMALS, BlockMirror, Blockwise, Zero
from mpifed.core.streams import Stream, global_states
from mpifed.core.writes import Writes, same_values, share_memory, tensors_of

__all__ = [
    "Case", "Check", "NotChecked", "Probe", "START", "address", "before_call", "called", "check_method",
    "check_problem", "expect_nothing", "expect_unchanged", "samples_of",
]  # fmt: skip

#: Type of a field → the records that may have such fields.
RECORDS = {
    NotSent: ("shared", "message"),
    WithinRound: ("client",),
    Stored: ("message",),
    Compressed: ("shared", "message"),
    Adaptive: ("shared",),
}
#: Family → the blocks whose averages a method may return.
BLOCKS = {
    "minimax": ("x", "y"),
    "minimisation": ("x",),
    "operator": ("z",),
    "composition": ("x",),
    "bilevel": ("x", "y"),
}


def called(function: Callable) -> str:
    """Return the name of a method's function for messages, such as ``Fair.client_round``."""
    function = function.func if isinstance(function, partial) else function
    name = getattr(function, "__name__", type(function).__name__)
    return f"{title(function.__self__)}.{name}" if isinstance(function, MethodType) else name


def expect_nothing(returned, name: str, instead: str) -> None:
    """Raise a ContractError if a function of a method has returned a value, which would be ignored."""
    if returned is not None:
        raise ContractError(f"{name} returned a {type(returned).__name__}: it {instead} and returns nothing")


def before_call(state: State) -> tuple[torch.Tensor, tuple]:
    """Return a copy of a record's buffer and the states of the global random generators."""
    return state.buffer.clone(), global_states()


def expect_unchanged(
    state: State, before: tuple[torch.Tensor, tuple], record: str, function: Callable, role: str
) -> None:
    """Raise a ContractError if a function of a method has written to a read-only record, or has drawn numbers
    from a global random generator, which differ between ranks and runs.

    Args:
        state: the record after the call.
        before: the result of :func:`before_call`.
        record: the name of the record.
        role: "client" or "server", whose function it is.
    """
    values, generators = before
    if not torch.equal(values, state.buffer):
        field = state.layout.field_at(int((values != state.buffer).nonzero()[0]))
        raise ContractError(
            f"{called(function)} changed {record}.{field}: a {role} function reads `{record}` and never "
            f"writes to it, not in place either (x = {record}.x; x -= ... does; x = x - ... does not)"
        )
    if global_states() != generators:
        raise ContractError(
            f"{called(function)} uses a global random generator of Python, NumPy or torch, whose numbers "
            "differ between ranks and runs: expected now.stream(purpose).normal(size)"
            + (", now.stream(purpose, oracle.client) or oracle.normal(size)" if role == "client" else "")
        )


def check_method(method: Algorithm) -> None:
    """Check the declarations of a method.

    Raises:
        ContractError: one line per error; an exception in the method's ``phases`` has its traceback.
    """
    for stage in (_records, _phases, _shared):
        errors = [f"{title(method)}{error}" for error in stage(method)]
        if errors:
            raise ContractError("\n".join(dict.fromkeys(errors)))  # repeated phases are reported once


def _read(method: Algorithm, name: str):
    """Return an attribute, which may be a user-defined property."""
    try:
        with user_code_errors(f"{title(method)}.{name}"):
            return getattr(method, name)
    except ValueError as error:
        raise ContractError(message_of(error)) from None


def _records(method: Algorithm) -> Iterator[str]:
    for name in ("shared", "client"):
        record = _read(method, name)
        if isinstance(record, Record):
            yield from _misplaced(name, record)
        else:
            yield f".{name} must be a Record, got {short_repr(record)}"
    if method.steps and type(getattr(method, method.steps, None)) not in (int, Epochs):
        yield f".steps = {method.steps!r} must name the integer hyperparameter that counts local steps"


def _misplaced(name: str, record: Record) -> Iterator[str]:
    for qualifier, records in RECORDS.items():
        for field in record.fields_of_type(qualifier) if name not in records else ():
            yield f": {name}.{field} cannot be {record.fields[field]!r}, which is for {' and '.join(records)}"


def _phases(method: Algorithm) -> Iterator[str]:
    for name in ("start", "phases"):
        phases = _read(method, name)
        correct = isinstance(phases, tuple | list) and all(isinstance(phase, Phase) for phase in phases)
        if not correct or (name == "phases" and not phases):
            yield f".{name} must be a tuple of Phase(client_function, message, ...), got {short_repr(phases)}"
            continue
        for phase in phases:
            if isinstance(phase.message, Record) and phase.message.fields:
                yield from _misplaced("message", phase.message)
            else:
                got = short_repr(phase.message)
                yield f": phase {phase.name!r} needs a message, a Record with at least one field, got {got}"
        if name == "phases" and phases[0].when is not None:
            first = phases[0].name
            yield f": the first phase takes place in every round, but {first!r} has the condition `when`"


def _shared(method: Algorithm) -> Iterator[str]:
    """Check that averages are used, and how adaptive matrices and averages of iterates are declared."""
    fields, adaptive = method.shared.fields, method.shared.fields_of_type(Adaptive)
    messages = [phase.message.fields for phase in method.phases]
    used = {*fields, *(matrix.of for matrix in adaptive.values())}
    for phase in (*method.start, *method.phases):
        for field in phase.message.fields if phase.server is None else ():
            if field not in used:
                yield (
                    f": phase {phase.name!r} has no server function, so its averages replace the fields of "
                    f"`shared` of the same names, but there is no {field!r} (it has {', '.join(fields)})"
                )
    for field, matrix in adaptive.items():
        if not hasattr(rule := getattr(method, "matrix", None), "adapts"):
            yield f".{field} is adaptive, so it needs a hyperparameter `matrix: Matrix`, got {rule!r}"
        carrier = next((message for message in messages if matrix.of in message), None)
        if carrier is None:
            options = ", ".join(sorted({name for message in messages for name in message}))
            yield f".{field} is computed from the average of {matrix.of!r}, which no message has: {options}"
        elif matrix.block not in {*carrier, *fields}:
            yield f".{field} is the matrix of {matrix.block!r}, which is no field of `shared` or that message"
    for record in (method.shared, *(phase.message for phase in (*method.start, *method.phases))):
        for field, declared in record.fields_of_type(Compressed).items():
            if not hasattr(method, declared.by):
                yield f".{field} is compressed by {declared.by!r}, which is not a hyperparameter"
    averages, blocks = method.averages, BLOCKS.get(method.family, ())
    if averages and {*averages} != {*blocks}:
        yield f".averages must name the blocks {', '.join(blocks)}, got {', '.join(map(str, averages))}"
        return
    for block, field in averages.items():
        field_type = fields.get(field)
        if getattr(field_type, "type", field_type) != block:
            got = f"it is {field_type!r}" if field in fields else "there is no such field"
            yield f".averages: expected shared.{field} with the shape of {block!r}, but {got}"


#: Maximum number of rows of a minibatch on which the problems of the package are called.
ROWS = 2
#: Maximum number of held-out rows that are scored, and number of parts of two rows that are scored again.
SCORED, PARTS = 250, 16
#: Number of samples that are drawn; differs from the number of clients, so that swapped axes are found.
COUNT = 3
#: Address of the sample of a check, for its dropout masks and its augmentation.
_ADDRESS = torch.zeros(3, dtype=torch.int64)
#: Family → functions of a problem, and the value of ``stream.of`` for the samples that they get.
FUNCTIONS: dict[str, dict[str, str]] = {
    "minimax": {"loss": "", "gradients": ""},
    "operator": {"operator": ""},
    "composition": {"inner": "g", "jacobian": "g", "outer": "f", "outer_gradient": "f"},
    "bilevel": {"upper": "f", "lower": "g"},
}
#: Functions that a problem must define, unless it defines the alternative.
REQUIRED = {
    "loss": "gradients", "operator": "", "inner": "", "outer": "outer_gradient", "upper": "", "lower": "",
}  # fmt: skip
#: Functions of one client.
SINGLE = ("loss", "inner", "outer", "upper", "lower")


class NotChecked(Exception):
    """Raised by a check that does not apply; the message is the reason."""


@dataclass(frozen=True)
class Case:
    """A problem that is checked, and how it is run.

    Attributes:
        problem: a prepared problem; for checks that run it, one that is not prepared.
        algorithm: the method to run, which must support the problem's convex part φ and its sets.
        dtype, device: dtype and device of the run.
        batch_size: rows per sample; 0 for all rows of a client.
        weights: weights of the clients, "uniform" or "samples".
        seed: seed of the run, for the start of a dual method. Other checks use the seed 0.
        rounding: accepted relative difference of values that differ by rounding; the default is well above
            that of float32.
        again: the problem, prepared a second time; ``None`` if it is prepared once only.
    """

    problem: Any
    algorithm: Algorithm | None = None
    dtype: torch.dtype = torch.float64
    device: Any = "cpu"
    batch_size: int = 1
    weights: str = "uniform"
    seed: int = 0
    rounding: float = 1e-3
    again: Any = None

    @property
    def clients(self) -> list[int]:
        """Numbers of two clients, the same one twice if there is only one."""
        return [0, min(1, self.problem.clients - 1)]

    @property
    def start(self) -> list[torch.Tensor]:
        """A copy of the starting point, one flat vector ``[d]`` per block."""
        return [flat.clone() for flat in starting_point(self.problem, self.dtype, self.device)]

    @property
    def near_start(self) -> list[torch.Tensor]:
        """A feasible point near the start, where values may be the same for all arguments; same layout."""
        rng, sets = torch.Generator().manual_seed(0), self.problem.sets
        return [
            getattr(sets, block)(flat + 0.1 * torch.randn(flat.shape, generator=rng).to(flat))
            for block, flat in zip(self.problem.variables(), self.start)
        ]

    def agree(self, values: torch.Tensor, expected: torch.Tensor) -> bool:
        """Return whether values agree up to the rounding of kernels that add in other orders."""
        values, expected = values.double(), expected.double()
        scale = expected.abs().nan_to_num(0, 0, 0).max().clamp(min=1) if expected.numel() else 1
        return values.shape == expected.shape and torch.allclose(
            values / scale, expected / scale, rtol=self.rounding, atol=self.rounding, equal_nan=True
        )


class Check(NamedTuple):
    """A part of the contract.

    Attributes:
        statement: what holds for a valid class.
        errors: a function that yields one message per violation, or raises :class:`NotChecked` or an
            exception of user code.
        in_float32: whether it is checked in float32, too.
    """

    statement: str
    errors: Callable[[Case], Iterable[str] | None]
    in_float32: bool = True


def samples_of(problem: Problem) -> tuple[str, ...]:
    """Return the values of ``stream.of`` for which a problem draws samples."""
    return tuple(dict.fromkeys(FUNCTIONS[problem.family].values()))


def address(clients: Sequence[int], count: int, of: str) -> Stream:
    """Return a stream for the samples of a check; ``of`` is one of :func:`samples_of`."""
    stream = Stream(0, "check", clients, 1, count)
    stream.of = of
    return stream


class Call(NamedTuple):
    """A call of a function of a problem.

    Attributes:
        point: the arguments before the batch, by block; "u" for outer functions.
        shapes: of the returned tensors, by name.
        where: a description of the arguments of an analytic function; "" for functions of one client.
    """

    name: str
    function: partial
    point: dict[str, torch.Tensor]
    shapes: dict[str, list[int]]
    where: str


class Probe:
    """Calls the functions of a problem at one point, on one minibatch per client.

    Args:
        problem: a prepared problem.
        clients: numbers of the clients, ``[C]``.
        point: flat vectors ``[d]``, one per block.
        size: maximum number of rows of a minibatch; 0 for all rows, or for the full batch of a problem that
            draws samples.

    Attributes:
        batches: one of :func:`samples_of` → columns ``[C, b, ...]``. For a problem with data, these are the
            first rows that all of the clients have.
    """

    def __init__(
        self, problem: Any, clients: Sequence[int], point: list[torch.Tensor], size: int, device="cpu"
    ):
        self.problem, self.clients, self.point, self.blocks = problem, clients, point, problem.variables()
        self.batches = {of: self._on(device, columns) for of, columns in self._minibatches(size).items()}

    def at(self, point: list[torch.Tensor]) -> Probe:
        """Return a probe of the same minibatches at another point."""
        other = copy.copy(self)
        other.__dict__.pop("u", None)
        other.point = point
        return other

    def _minibatches(self, size: int) -> dict[str, list[torch.Tensor]]:
        problem, clients = self.problem, self.clients
        full = None if size else problem.full_batch(clients[0])
        drawn = dict.fromkeys(samples_of(problem))
        if full is None:
            drawn = {of: problem.draw(address(clients, 1, of), size) for of in drawn}
        rows: list[torch.Tensor] = []
        if None in drawn.values():
            function = problem.client_data if full is None else problem.full_batch
            parts = [tuple(map(as_tensor, function(client) or ())) for client in clients]
            count = min((len(column) for part in parts for column in part), default=0)
            count = min(count, size) if size else count
            rows = [torch.stack([own[:count] for own in column]) for column in zip(*parts)]
        return {
            of: rows if arrays is None else [as_tensor(np.array(array))[:, 0] for array in arrays]
            for of, arrays in drawn.items()
        }

    def _on(self, device: Any, columns: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        dtype = self.point[0].dtype
        return tuple(column.to(device, dtype if column.is_floating_point() else None) for column in columns)

    @cached_property
    def u(self) -> torch.Tensor:
        """The inner value of the first client of a composition, ``[p]``."""
        return self.single("inner", *self.point).detach().to(self.point[0].dtype)

    def single(self, name: str, *point: Any) -> torch.Tensor:
        """Call a function of the first client, such as "loss", at flat vectors ``[d]``."""
        if name != "outer":
            point = tuple(self.blocks.unflatten(block, flat) for block, flat in zip(self.blocks, point))
        before = [dict(named) for named in point if isinstance(named, dict)]
        value = on_stored_data(self.problem, name)(*point, tuple(column[0] for column in self.batch(name)))
        for block, named, old in zip(self.blocks, point, before):
            if changed := [key for key in {**old, **named} if named.get(key) is not old.get(key)]:
                action = "assigns" if changed[0] in named else "removes"
                raise ContractError(
                    f"{type(self.problem).__name__}: {name}() {action} {changed[0]!r} in the dictionary of "
                    f"the parameters of {block}, which is used again: use a local variable"
                )
        return value

    def several(self, name: str, *point: torch.Tensor, count: int = 1) -> Any:
        """Call an analytic function of ``count`` clients, such as "gradients", at blocks of any layout."""
        function = on_stored_data(self.problem, name)
        return function(*point, tuple(column[:count] for column in self.batch(name)))

    def batch(self, name: str) -> tuple[torch.Tensor, ...]:
        """Return the minibatches of a function, columns ``[C, b, ...]``."""
        return self.batches[FUNCTIONS[self.problem.family][name]]

    def calls(self) -> Iterator[Call]:
        """Yield calls of the functions that a problem defines or must define.

        Functions of one client are called for the first client. Analytic functions are called for one and for
        two clients, with one point per client ``[C, d]`` and with one for all ``[d]``.
        """
        # Without data a function cannot know how many clients share a point.
        layouts = (False, True) if all(self.batches.values()) else (False,)
        sizes, p = [len(flat) for flat in self.point], getattr(self.problem, "inner_size", 0)
        for name in FUNCTIONS[self.problem.family]:
            is_required = name in REQUIRED and not defines(self.problem, REQUIRED[name])
            if not (is_required or defines(self.problem, name)):
                continue
            point = {"u": self.u} if name.startswith("outer") else dict(zip(self.blocks, self.point))
            if name in SINGLE:
                function = partial(self.single, name, *point.values())
                yield Call(name, function, point, {"": [p] if name == "inner" else []}, "")
                continue
            for count in (1, 2):
                shapes: dict[str, list[int]] = {
                    "gradients": {f"g{block}": [count, size] for block, size in zip(self.blocks, sizes)},
                    "operator": {"": [count, *sizes]},
                    "jacobian": {"u": [count, p], "J": [count, p, *sizes]},
                    "outer_gradient": {"": [count, p]},
                }[name]
                for shared in layouts if name != "outer_gradient" else (False,):
                    given = {
                        block: flat if shared else flat.expand(count, -1).clone()
                        for block, flat in point.items()
                    }
                    where = f" for {count} client{'s' * (count > 1)} at a point of shape "
                    where += ", ".join(str(list(flat.shape)) for flat in given.values())
                    function = partial(self.several, name, *given.values(), count=count)
                    yield Call(name, function, given, shapes, where)


def check_problem(problem: Problem, algorithm: Algorithm | None = None, **execution) -> None:
    """Check a prepared problem, and find the functions that must be called on copies of stored data.

    Args:
        execution: further attributes of a :class:`Case`.

    Raises:
        ContractError: one line per error. Exceptions of the problem's functions are not caught.
    """
    case = Case(problem, algorithm, **execution)
    for check in START:
        if errors := dict.fromkeys(check.errors(case) or ()):
            raise ContractError("\n".join(f"{type(problem).__name__}: {error}" for error in errors))


def _blocks(problem: Problem) -> Iterator[str]:
    blocks = problem.variables()
    if not isinstance(blocks, Blocks) or tuple(blocks) not in problem.layouts:
        layouts = " or ".join(f"Blocks({'=..., '.join(layout)}=...)" for layout in problem.layouts)
        yield f"variables() must return {layouts}, got {short_repr(blocks)}"
        return
    for block, size in blocks.sizes.items():
        if not size:
            yield f"block {block!r} of variables() has no elements: leave it out"
        for name in blocks[block]:  # the name of a dataset in the results file
            if not isinstance(name, str) or not name.isprintable() or "/" in name or name in ("", "."):
                yield f"variables() has a parameter {short_repr(name)} in {block!r}: expected text without /"
    for name, shape in problem.network.items():
        block = network_block(problem)
        if (declared := blocks.get(block, {}).get(name)) != tuple(shape):
            yield (
                f"network has {name!r} of shape {tuple(shape)}, but in block {block} of variables() it is "
                f"{declared}"
            )
    if problem.test_rows and not defines(problem, "predict"):
        yield f"it sets test_rows = {problem.test_rows}, so it must define predict()"


def _sets(problem: Problem, algorithm: Algorithm | None) -> Iterator[str]:
    """Check that the method supports the sets and the convex part, which it would ignore otherwise."""
    phi, blocks, name = getattr(problem, "phi", None), problem.variables(), algorithm and title(algorithm)
    if problem.family != "operator":
        if isinstance(phi, tuple(PROXIMALS.values())) and not isinstance(phi, Zero):
            yield f"a {problem.family} problem has no convex part, got phi = {phi}: use sets, or an Operator"
    elif not isinstance(phi, Zero) and algorithm is not None and not algorithm.composite:
        yield f"{name} would ignore its convex part φ = {phi}: it needs a method with composite = True"
    for block in problem.sets:
        if block not in blocks:
            yield f"sets has a set for {block!r}, which is not a block: {suggest(block, blocks)}"
        elif algorithm is not None and not algorithm.constrained:
            yield f"{name} would ignore its set of {block}: it needs a method with constrained = True"
        elif problem.family == "operator" and algorithm is not None and algorithm.composite:
            yield f"{name} takes the set of {block} as φ: expected phi = Indicator(set=...) and no sets"


def _initial(case: Case) -> Iterator[str]:
    problem = case.problem
    start, again = (initial_point(prepared, 0) for prepared in (problem, case.again or problem))
    sizes = problem.variables().sizes
    if not isinstance(start, dict):
        yield f"initial() must return a dictionary with a flat tensor per block, got {type(start).__name__}"
        return
    for block, value in start.items():
        if block not in sizes:
            yield f"initial() has {block!r}, which is not a block: {suggest(block, sizes)}"
        elif isinstance(value, dict):
            yield f"initial() returns a dictionary for block {block!r}: expected one flat tensor"
        elif (tensor := as_tensor(value)).numel() != sizes[block]:
            shape = list(tensor.shape)
            yield f"initial() returns shape {shape} for block {block!r}, expected {sizes[block]} elements"
        elif not torch.isfinite(tensor).all():
            yield f"initial() returns values for block {block!r} that are not finite"
        elif not same_values(tensor, as_tensor(again[block])):
            yield (
                f"initial() returns another point for block {block!r} when it is called again: draw random "
                "numbers from `rng`"
            )


def _mirror(case: Case) -> Iterator[str]:
    """Check that a method's mirror map is defined on the set of the problem and at its start. A name is the
    mirror map of y."""
    mirror: Any = getattr(case.algorithm, "mirror", None)
    mirror = Blockwise(y=mirror) if mirror in get_args(BlockMirror) else mirror
    if type(mirror) in MIRRORS.values():
        operator: Any = as_family(case.problem, "operator")
        (point,) = starting_point(operator, torch.float64, seed=case.seed)
        yield from (f"{title(case.algorithm)}: {error}" for error in mirror.errors(operator.phi, point))


def _samples(case: Case) -> Iterator[str]:
    """Check data and draws, and whether the method and the weights can use them."""
    problem, algorithm, clients, batch_size = case.problem, case.algorithm, case.clients, case.batch_size
    if errors := list(_several(problem, np.array(clients[::-1]))):
        yield from errors
        return
    held = [problem.client_data(client) for client in clients]
    full = [problem.full_batch(client) for client in clients]
    size = batch_size or int(full[0] is not None)  # a full batch is not drawn
    drawn = {of: problem.draw(address(clients, COUNT, of), size) for of in samples_of(problem)}
    if all(arrays is None for arrays in drawn.values()):
        if full[0] is not None:
            yield "it defines full_batch() without draw(): rows of data belong in client_data()"
        if errors := list(_rows("client_data", held, clients)):
            yield from errors
            return
        if user_problem(problem).single_row and (rows := len(held[0][0])) != 1:
            yield f"single_row is true, but client {clients[0]} has {rows} rows: expected one"
            return
        tested = _of_package(problem.client_data) and _of_package(problem.client_rows)
        if not (tested or _same_columns(held[0], (case.again or problem).client_data(clients[0]))):
            yield (
                f"client_data({clients[0]}) returns other rows when it is called again: expected the same "
                "rows, such as numbers from mpifed.generator(seed, purpose, client), also in prepare()"
            )
        yield from _augmentation(problem, held[0])
        if batch_size and (strata := user_problem(problem).strata) is not None:
            yield from _strata(problem, strata(np.array(clients), batch_size), batch_size, clients)
        return
    if len(held[0]):
        yield "it defines both client_data() and draw(): expected one of them"
        return
    if case.weights == "samples" and not has_sizes(problem):
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
    if algorithm is not None and algorithm.rows_alternative:
        yield (
            f"{title(algorithm)} uses the number of rows of a client, but draw() generates samples: set "
            f"algorithm.{algorithm.rows_alternative}"
        )
    for of, arrays in drawn.items():
        what = f"draw() of {of!r}" if of else "draw()"
        yield from (f"{what} {error}" for error in _draws(case, arrays, of, size))


def _several(problem: Problem, clients: np.ndarray) -> Iterator[str]:
    """Compare functions of several clients with those of one; the package's own have been tested."""
    rows = None if _of_package(problem.client_rows) else rows_of(problem, clients)
    if rows is not None:
        if not (isinstance(rows, tuple | list) and len(rows) == 2 and isinstance(rows[0], tuple | list)):
            yield (
                "client_rows() must return the columns and the number of rows of each client, "
                f"((column, ...), sizes), got {_described(rows)}"
            )
            return
        held = [problem.client_data(client) for client in clients.tolist()]
        one_by_one = [torch.cat([*map(as_tensor, parts)]) for parts in zip(*held)]
        sizes = [len(columns[0]) for columns in held if columns]
        if not _same_columns(rows[0], one_by_one) or np.asarray(rows[1]).tolist() != sizes:
            yield (
                f"client_rows({clients.tolist()}) returns other rows than client_data of these clients: "
                f"expected the same rows, one client after the other, and their numbers {sizes}"
            )
    if not _of_package(problem.client_sizes):
        sizes = [problem.client_size(client) for client in clients.tolist()]
        if (found := np.asarray(sizes_of(problem, clients)).tolist()) != sizes:
            yield f"client_sizes({clients.tolist()}) returns {found}: expected {sizes}, as client_size"


def _draws(case: Case, arrays: Any, of: str, size: int) -> Iterator[str]:
    """Check the samples that a problem has drawn for two clients, and draw some of them again."""
    if arrays is None:
        return
    if not isinstance(arrays, tuple | list):
        yield f"must return a tuple of arrays, (array,) for one, got {type(arrays).__name__}"
        return
    lead, shapes = (len(case.clients), COUNT, size)[: 3 if size else 2], [*map(np.shape, arrays)]
    if wrong := [number for number, shape in enumerate(shapes) if shape[: len(lead)] != lead]:
        yield (
            f"returned array {wrong[0]} of shape {list(shapes[wrong[0]])}, expected [C, count, size, ...] "
            f"with C = {len(case.clients)}, count = {COUNT}, size = {size}"
        )
        return
    if not size and any(0 in shape for shape in shapes):
        yield (
            "has no rows for oracle.batch_size = 0, exact gradients: set it to 1 or more, or define "
            "full_batch(client) where they are known"
        )
        return
    again = (case.again or case.problem).draw(address(case.clients, COUNT, of), size) or ()
    fewer = case.problem.draw(address(case.clients[1:], COUNT - 1, of), size) or ()
    part = [as_tensor(np.asarray(array)[1:, :-1]) for array in arrays]
    is_same = _same_columns(arrays, again) and len(part) == len(fewer)
    if not (is_same and all(map(case.agree, map(as_tensor, fewer), part))):
        yield (
            "returns samples that depend on the call, on the other clients or on the number of samples: draw "
            "all random numbers from `stream`"
        )


def _same_columns(columns: Sequence[Any], again: Sequence[Any]) -> bool:
    """Return whether two calls have returned the same arrays or tensors."""
    return len(columns) == len(again) and all(
        map(same_values, map(as_tensor, columns), map(as_tensor, again))
    )


def _strata(
    problem: Problem, strata: Sequence[tuple[np.ndarray, int]], size: int, clients: Sequence[int]
) -> Iterator[str]:
    """Check the strata of the minibatches of ``size`` rows of two clients."""
    rows, numbers = [np.asarray(part) for part, _ in strata], [number for _, number in strata]
    held = sizes_of(problem, np.array(clients))
    if sum(numbers) != size or not np.array_equal(sum(rows), held):
        yield (
            f"strata({list(clients)}, {size}) must divide all rows of each client, {held.tolist()}, and the "
            f"rows of a minibatch, {size}: got strata of {[part.tolist() for part in rows]} rows, of which "
            f"{numbers} are drawn"
        )
    elif any(number and not part.all() for part, number in zip(rows, numbers)):
        yield f"strata({list(clients)}, {size}) draws rows from an empty stratum"


def _augmentation(problem: Problem, rows: Sequence[torch.Tensor]) -> Iterator[str]:
    """Check the columns that ``augment`` returns for the rows of a client."""
    augment = user_problem(problem).augment
    if augment is None:
        return
    if is_analytic(problem):
        yield "it defines augment() and analytic derivatives, which do not use it: define one of them"
        return
    before = global_states()
    changed, again = (
        augment(tuple(as_tensor(column).clone() for column in rows), SampleWords((0, 0), _ADDRESS))
        for _ in range(2)
    )
    shapes = [[list(column.shape) for column in batch] for batch in (changed, rows)]
    if shapes[0] != shapes[1]:
        yield f"augment() must return columns of the same shapes, {shapes[1]}, got {shapes[0]}"
    elif global_states() != before or not _same_columns(changed, again):
        yield "augment() returns other rows for the same words: draw all random numbers from `words`"


def _rows(function: str, held: list, clients: list[int]) -> Iterator[str]:
    rows = []
    for client, columns in zip(clients, held):
        what = f"{function}({client})"
        if not isinstance(columns, tuple | list):
            yield f"{what} must return a tuple of tensors, (rows,) for one, got {type(columns).__name__}"
            return
        shapes = [list(np.shape(column)) for column in columns]
        lengths = {shape[0] if shape else 0 for shape in shapes}
        if 0 in lengths or len(lengths) > 1:
            yield f"{what} must return columns with the same number of rows, at least 1, got shapes {shapes}"
        rows.append([shape[1:] for shape in shapes])
    if rows[0] != rows[1]:
        yield (
            f"{function}({clients[1]}) has columns with rows of shape {rows[1]}: expected {rows[0]}, as "
            f"{function}({clients[0]})"
        )


def _maps(case: Case) -> Iterator[str]:
    """Report projections and proximal maps that write to their argument, which may be the iterate."""
    problem = case.problem
    if _of_package(type(user_problem(problem))):
        return
    maps = {f"the set of {block}": getattr(problem.sets, block) for block in problem.sets}
    if problem.family == "operator":
        maps["phi"] = lambda v: problem.phi(v, 1.0)
    points = dict(zip(problem.variables(), case.start))
    for name, function in maps.items():
        point = points.get(name.split()[-1], case.start[0])
        with Writes({"point": point}) as writes:
            function(point)
        if writes.names:
            yield f"{name} changes its argument in place: expected a map that returns a new tensor"


@torch.no_grad()
def _functions(case: Case) -> Iterator[str]:
    """Check values and effects of functions, and find those that must be called on copies.

    Batches have the sizes of the run, because code may depend on them. Functions of the package are pure:
    only their values are checked, on few rows.
    """
    problem, size, algorithm = case.problem, case.batch_size, case.algorithm
    problem.called_on_copies = frozenset()
    pure, new = _of_package(type(user_problem(problem))), case.again or copy.copy(problem)
    full = algorithm is not None and bool(algorithm.minibatch_alternative)
    for rows in [min(size or ROWS, ROWS)] if pure else [size, 0] if size and full else [size]:
        probe = Probe(problem, case.clients, case.start, rows, case.device)
        for call in probe.calls():
            if pure:
                errors = list(_wrong_values(call, call.function(), case.dtype))
            else:
                errors = list(_call_errors(case, probe, call))
            if errors:
                yield from errors
                return
        with contextlib.suppress(Exception):  # functions may be undefined at another point
            if errors := [] if pure else list(_errors_near_start(case, probe, new)):
                yield from errors
                return
        if not pure and (augment := user_problem(problem).augment) is not None:
            for columns in probe.batches.values():
                batch = tuple(column[0].clone() for column in columns)
                with Writes(dict(enumerate(batch))) as writes:
                    augment(batch, SampleWords((0, 0), _ADDRESS))
                problem.called_on_copies |= {"augment"} if writes.names else set()


def _call_errors(case: Case, probe: Probe, call: Call) -> Iterator[str]:
    """Report writes to the point, wrong values, and other values when a function is called again.

    From then on the function is called on copies if it writes to its batch or, if it is analytic, returns
    memory of its arguments or of an earlier result, which a method may write to. It is called three times,
    the second time with dropout masks.
    """
    name, is_analytic = call.name, bool(call.where)
    watched: dict[Any, torch.Tensor] = dict(enumerate(probe.batch(name)))
    for block, flat in call.point.items():
        parts = {} if is_analytic or block == "u" else probe.blocks.unflatten(block, flat)
        watched |= {f"{part!r} of {block}": view for part, view in parts.items()} or {block: flat}
    before = global_states()
    with Writes(watched) as writes:
        value = call.function()
        values = [tensor.clone() for tensor in tensors_of(value)]
        other = with_dropout_words(lambda _: call.function(), (0, 0))(AddressedBatch((), _ADDRESS))
    of_point = [written for written in writes.names if isinstance(written, str)]
    changes_batch = len(of_point) < len(writes.names)
    if changes_batch or (is_analytic and share_memory(value, [*watched.values(), other])):
        case.problem.called_on_copies |= {name}
    errors = [
        f"{name}() changes {argument} in place, which evaluations must not do: compute a new tensor "
        "(v = v - 1 rather than v -= 1 or v.sub_(1))"
        for argument in of_point
    ]
    errors += _wrong_values(call, value, case.dtype)
    yield from errors
    if errors:
        return
    if changes_batch:  # the values belong to the rows before the first call
        values = [tensor.clone() for tensor in tensors_of(call.function())]
    again = tensors_of(call.function())
    if global_states() != before or not all(map(case.agree, again, values)):
        yield (
            f"{name}() draws random numbers or counts its calls: expected a function of its arguments, "
            "which returns the same values when it is called again (samples come from draw())"
        )


def _errors_near_start(case: Case, probe: Probe, new: Any) -> Iterator[str]:
    """Report errors at another point, where values depend on more than at a start of 0, and on other samples.

    Args:
        new: the problem, none of whose functions has been called.
    """
    near = probe.at(case.near_start)
    for call in near.calls():
        if errors := list(_call_errors(case, near, call)):
            yield from errors
            return
    new.called_on_copies = case.problem.called_on_copies
    called, uncalled = near.at(near.point), near.at(near.point)
    called.batches = uncalled.batches = {
        of: tuple(column.flip(0) for column in columns) for of, columns in near.batches.items()
    }
    uncalled.problem = new
    for first, second in zip(called.calls(), uncalled.calls()):
        if not all(map(case.agree, tensors_of(first.function()), tensors_of(second.function()))):
            yield (
                f"{first.name}() returns values that depend on more than its arguments: expected no values "
                "that are kept from earlier calls, such as the scale of the first batch, and in prepare() no "
                "random numbers without a seed"
            )


def _of_package(defined: Any) -> bool:
    """Return whether a function or a class is defined in the package, so that it need not be tested."""
    return (getattr(defined, "__module__", "") or "").startswith("mpifed.")


def _wrong_values(call: Call, value: Any, dtype: torch.dtype) -> Iterator[str]:
    """Report values of a call that are not tensors, or have another shape or dtype."""
    name, _, _, shapes, where = call
    # Values of functions of one client may be more precise than the run.
    dtypes = {dtype} if where else {dtype, torch.float64}
    values = value if len(shapes) > 1 else (value,)
    if not isinstance(values, tuple | list) or len(values) != len(shapes):
        parts = ", ".join(shapes)
        yield f"{name}() must return {len(shapes)} tensors, ({parts}), got {_described(values)}"
        return
    for (part, shape), value in zip(shapes.items(), values):
        what = f"{f'{part} of ' if part else ''}{name}(){where}"
        if not isinstance(value, torch.Tensor):
            yield f"{what} returned {_described(value)}, expected a tensor"
        elif list(value.shape) != shape:
            note = " (inner_size)" if name == "inner" else ""
            yield f"{what} has the shape {list(value.shape)}, expected {shape or 'a scalar'}{note}"
        elif value.dtype not in dtypes:
            yield f"{what} is {value.dtype}, expected {' or '.join(sorted(map(str, dtypes)))}"


def _described(value) -> str:
    if isinstance(value, torch.Tensor):
        return f"one of shape {list(value.shape)}"
    return f"{len(value)} values" if isinstance(value, tuple | list) else f"a {type(value).__name__}"


@torch.no_grad()
def _predictions(case: Case) -> Iterator[str]:
    """Report scores that depend on earlier calls or on the other rows of a call.

    The problems of the package are not called, only user-defined ones: their networks have been tested.
    """
    problem = case.problem
    if not problem.test_rows or _of_package(problem.predict):
        return
    blocks, last = problem.variables(), min(problem.test_rows, SCORED)

    def scores(first: int, last: int) -> torch.Tensor:
        with user_code_errors(f"{type(problem).__name__}.predict"):
            return problem.predict(*map(dict, point), slice(first, last))

    for flats in (case.start, case.near_start):
        point = [blocks.unflatten(block, flat) for block, flat in zip(blocks, flats)]
        whole, again = scores(0, last), scores(0, last)
        if whole.shape[:1] != (last,):
            got = len(whole) if whole.dim() else "one without an axis"
            yield f"predict(): expected {last} scores, got {got}"
            return
        if not case.agree(again, whole):
            yield (
                "predict() returns other scores when it is called again: expected a function of the point "
                "and the rows, which does not change the samples in place"
            )
            return
        for first in range(0, last - 1, max(2, last // PARTS)):
            part = scores(first, first + 2)
            if not case.agree(part, whole[first : first + 2]):
                yield (
                    f"predict() returns other scores for rows {first} and {first + 1} alone than together "
                    f"with the first {last} rows: expected the same scores"
                )
                return


#: The checks of a problem before every run. The later ones rely on the earlier ones.
START = (
    Check(
        "variables, sets and held-out rows are declared",
        lambda case: [*_blocks(case.problem), *_sets(case.problem, case.algorithm)],
        in_float32=False,
    ),
    Check(
        "the starting point is finite and has the sizes of the blocks",
        lambda case: [*_initial(case)] or [*_mirror(case)],
        in_float32=False,
    ),
    Check("data are rows of the same shapes, and samples depend on their addresses only", _samples),
    Check("sets and convex parts do not change their argument", _maps),
    Check("functions return tensors of the documented shapes and depend on their arguments only", _functions),
    Check("scores do not depend on earlier calls or on the other rows of a call", _predictions),
)
