"""Values that are not finite: which client's message, which fields, which row, and the likely cause.

All ranks raise the same error together, because they see the same average and the same ``shared``. A sample
whose gradient is not finite at the starting point is an error in the data or in the problem's functions, such
as a division by the norm of a row of zeros. Step sizes have no influence on it. One gradient at the starting
point is evaluated before the first round, and shows functions that fail.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch

from mpifed.base.errors import ContractError, user_code_errors
from mpifed.base.nested import leaves
from mpifed.base.settings import as_table, is_number, settings_of, type_hints
from mpifed.core.algorithm import Algorithm
from mpifed.core.numerics import all_finite
from mpifed.core.oracle import EVALUATIONS, Oracle
from mpifed.core.problem import starting_point, user_problem
from mpifed.core.records import Layout, State
from mpifed.core.sampling import Sample
from mpifed.core.schedules import PositiveRate, Rate, largest
from mpifed.parallel.comm import (
    CollectiveError,
    SerialComm,
    collective_errors,
    first_text,
    reduce_number,
)
from mpifed.parallel.placement import Cohort
from mpifed.simulation.executor import Stage

__all__ = ["FiniteValues", "NonFiniteError", "expect_gradient", "smaller_steps"]

#: Represents no client in a minimum over ranks.
_NO_CLIENT = np.iinfo(np.int64).max
#: If averages are at least this large, a non-finite value is attributed to divergence.
_LARGE = 1e3
#: Types of step sizes, and the beginning of the descriptions of others, which are plain numbers.
_STEP_SIZES = (Rate, PositiveRate, Rate | None, PositiveRate | None)
_STEP_SIZE = re.compile(r"(\w+ )?step size\b")


class NonFiniteError(CollectiveError):
    """A value is infinite or NaN; raised on all ranks together."""


class _NonFiniteMessage(NamedTuple):
    """A client's message that is not finite: the client number and a copy ``[size]``."""

    client: int
    message: torch.Tensor


class FiniteValues:
    """Checks the messages, the averages and ``shared`` of a rank: :meth:`begin` in a phase, then
    :meth:`check_messages` for each group, then :meth:`around_server`.

    Args:
        method: whose step sizes messages name.
        clients: numbers of the clients that this rank may step.
        known_start: whether the starting point is the problem's own, at which a client's rows can be tested.
    """

    def __init__(
        self, method: Algorithm, oracle: Oracle, clients: np.ndarray, comm: SerialComm, known_start: bool
    ):
        self._method, self._oracle, self._clients = method, oracle, clients
        self._comm, self._known_start = comm, known_start
        self._first: _NonFiniteMessage | None = None
        # On a GPU: the position of a member in the cohort of the rank, or _NO_CLIENT, and its message.
        self._on_gpu: tuple[torch.Tensor, torch.Tensor] | None = None

    def begin(self, cohort: Cohort) -> None:
        """Start a phase of ``cohort``."""
        self._cohort, self._first, self._on_gpu = cohort, None, None

    def check_messages(self, stage: Stage, members: slice) -> bool:
        """Record the first message that is not finite, before the reduction overwrites those of a group.

        On a GPU, the record is computed there, and the host does not wait for it.

        Args:
            members: the group, a part of ``cohort.local``.

        Returns:
            Whether the messages are finite; always true on a GPU.
        """
        rows = stage.messages.buffer[: members.stop - members.start]
        if rows.is_cuda:
            if rows.numel():
                self._record_on_gpu(rows, members)
            return True
        if all_finite(rows):
            return True
        if self._first is None:
            row = int((~torch.isfinite(rows)).any(dim=1).nonzero()[0])
            self._first = _NonFiniteMessage(int(self._cohort.numbers[members.start + row]), rows[row].clone())
        return False

    def _record_on_gpu(self, rows: torch.Tensor, members: slice) -> None:
        largest = torch.linalg.vector_norm(rows, torch.inf, dim=1, keepdim=True)
        self._are_bad = ~(largest < torch.inf)  # NaN, too
        numbers = torch.arange(members.start, members.stop, device=rows.device)[:, None]
        member = torch.where(self._are_bad, numbers, _NO_CLIENT).amin()
        message = rows.index_select(0, (member - members.start).clamp(max=len(rows) - 1)[None])[0]
        if self._on_gpu is not None:
            earlier, kept = self._on_gpu
            message = torch.where(earlier <= member, kept, message)
            member = torch.minimum(earlier, member)
        self._on_gpu = member, message

    def mark_compressed(self, stage: Stage, members: slice) -> None:
        """Make the messages of a group that were not finite so again, because compression on a GPU may have
        left out the values. (On the CPU, such a group is not compressed.)"""
        rows = stage.messages.buffer[: members.stop - members.start, :1]
        if rows.is_cuda and rows.numel():
            rows.masked_fill_(self._are_bad, torch.nan)

    @contextlib.contextmanager
    def around_server(self, r: int, stage: Stage, shared: State) -> Iterator[None]:
        """Check the mean before the block, and ``shared``, which the server function writes there, after it.

        If the host of a single rank had to wait for a GPU to know the mean, both are checked after the block,
        with one wait. Collective if a mean is not finite.

        Raises:
            NonFiniteError: on all ranks: names the client and the fields, or the fields of ``shared``, and
                the likely cause. After a mean that is not finite, ``shared`` is as before the block.
        """
        is_finite = stage.reduction.mean_is_finite()
        if is_finite is None and self._comm.size > 1:  # the other ranks do not see an error of this rank
            is_finite = all_finite(stage.mean.buffer)
        if is_finite is False:
            self._raise(r, stage)
        before = shared.buffer.clone() if is_finite is None else None
        try:
            yield
            if before is not None:
                checksums = torch.stack([stage.mean.buffer.sum(), shared.buffer.sum()]).tolist()
                if all(map(math.isfinite, checksums)):
                    return
            self._expect_finite_shared(r, stage, shared)
        except Exception:  # possibly a consequence of the mean
            if before is not None and not all_finite(stage.mean.buffer):
                shared.buffer.copy_(before)
                self._raise(r, stage)
            raise

    def _raise(self, r: int, stage: Stage) -> NoReturn:
        """Raise the error for a mean that is not finite. Collective."""
        if self._on_gpu is not None and (member := int(self._on_gpu[0])) != _NO_CLIENT:
            self._first = _NonFiniteMessage(int(self._cohort.numbers[member]), self._on_gpu[1])
        first = self._first
        client = reduce_number(self._comm, first.client if first else _NO_CLIENT, "min")
        if client == _NO_CLIENT:
            raise NonFiniteError(
                f"non-finite value in round {r}: the sum of finite messages overflows in phase "
                f"{stage.phase.name!r}: {smaller_steps(self._method)}"
            )
        text = self._described(stage, first) if first and first.client == client else None
        _, text = first_text(self._comm, text) or (0, "")
        raise NonFiniteError(f"non-finite value in round {r}: client {client}, {text}")

    def _described(self, stage: Stage, first: _NonFiniteMessage) -> str:
        """Describe a message that is not finite: its fields and the likely cause."""
        fields = _non_finite_fields(stage.mean.layout, first.message)
        position = int(np.flatnonzero(self._clients == first.client)[0])
        rows = _non_finite_row(self._oracle, position) if self._known_start else ""
        cause = (
            f"its gradient on {rows} of its data is not finite at the starting point either, which no step "
            "size changes: check these data for values at which the problem's functions are undefined, such "
            "as a row of zeros that is divided by its norm"
            if rows
            else f"{smaller_steps(self._method)}, or check that the problem's functions are finite at every "
            "point"
        )
        return f"{fields} of `message` (phase {stage.phase.name!r}): {cause}"

    def _expect_finite_shared(self, r: int, stage: Stage, shared: State) -> None:
        """Check what the server function has written, which is the same on all ranks.

        Raises:
            NonFiniteError: a value is not finite.
        """
        if all_finite(shared.buffer):
            return
        size = float(stage.mean.buffer.abs().max()) if stage.mean.buffer.numel() else 0.0
        hint = "" if size >= _LARGE else ", or check the server function for a division by 0"
        raise NonFiniteError(
            f"non-finite value in round {r}: {_non_finite_fields(shared.layout, shared.buffer)} of `shared`, "
            f"written by the server from finite averages of up to {size:.2g}: "
            f"{smaller_steps(self._method)}{hint}"
        )


def smaller_steps(method: Algorithm) -> str:
    """Return the advice to reduce the step sizes of a method, with their names and values.

    A step size is a setting of the type :data:`Rate` or :data:`PositiveRate`, or one whose description calls
    it so. The offset ρ of adaptive matrices, by which steps are divided, is named, too.
    """
    types = type_hints(type(method))
    sizes = [
        f"{name} {_tried(value)}"
        for name, field in settings_of(type(method)).items()
        if (value := getattr(method, name)) is not None
        and (types.get(name) in _STEP_SIZES or _STEP_SIZE.match(field.description or ""))
    ]
    advice = f"reduce the step sizes ({', '.join(sizes)})" if sizes else "reduce the step sizes"
    matrix = getattr(method, "matrix", None)
    return f"{advice} or increase matrix.rho = {matrix.rho:g}" if getattr(matrix, "adapts", 0) else advice


def _tried(value) -> str:
    """Return the value of a step size: "= 0.1", or "up to 0.1" for a schedule."""
    number = as_table(value)
    return f"= {number:g}" if is_number(number) else f"up to {largest(value):g}"


def _non_finite_fields(layout: Layout, row: torch.Tensor) -> str:
    """Return the fields of a row that are not finite: ``field 'x'`` or ``fields 'x' and 'y'``."""
    bad = ~torch.isfinite(row)
    names = [
        repr(name)
        for name, parts in layout.slots.items()
        if any(bad[start:stop].any() for start, stop in parts)
    ]
    return f"field {names[0]}" if len(names) == 1 else f"fields {', '.join(names[:-1])} and {names[-1]}"


@torch.no_grad()
def expect_gradient(oracle: Oracle, uses_full_batches: bool, comm: SerialComm) -> None:
    """Evaluate the gradient of this rank's client with the fewest rows, of those whose data are loaded,
    forward and backward, and that on the shortest minibatch. Collective.

    Args:
        uses_full_batches: whether the method also evaluates all data of a client.

    Raises:
        CollectiveError: on all ranks: the evaluation fails on a rank.
    """
    sampler, name = oracle.sampler, type(user_problem(oracle.problem)).__name__
    with collective_errors(comm, ValueError):
        if not len(sampler.clients):
            return
        loaded = sampler.loaded()
        position = int(loaded[sampler.sizes[loaded].argmin()])
        one_row = bool(sampler.data) and sampler.sizes[position] == 1
        sampler.begin_round(0)
        _select(oracle, position)
        samples = [oracle.sample()]
        if uses_full_batches and one_row and sampler.batch_size:
            samples.append(oracle.full_batch)
        for xi in samples:
            is_single = one_row and (xi.is_full_batch or not sampler.batch_size)
            rows = " on its single row (use .squeeze(-1) instead of .squeeze())" if is_single else ""
            what = f"the gradient of {name} at the starting point{rows}"
            with user_code_errors(what, clients=sampler.clients[position : position + 1].tolist()):
                _evaluate(oracle, xi)
        sampler.begin_round(0)
        _expect_gradient_of_short_batch(oracle, loaded)


def _expect_gradient_of_short_batch(oracle: Oracle, loaded: np.ndarray) -> None:
    """Evaluate the gradient on the shortest minibatch of the clients at positions ``loaded``, if it is short.

    Raises:
        ContractError: the evaluation fails.
    """
    sampler = oracle.sampler
    shortest = sampler.shortest_batches(sampler.sizes[loaded])
    position, size = int(loaded[shortest.argmin()]), int(shortest.min())
    if size == sampler.batch_size:
        return
    _select(oracle, position)
    try:
        _evaluate(oracle, oracle.sample(number=int(oracle.steps_per_epoch[0]) - 1))
    except Exception as error:  # user code may raise anything
        only = sampler.sizes[position] == size
        fix = f"oracle.batch_size to at most {size}" if only else "oracle.drop_last = true"
        raise ContractError(
            f"the gradient of {type(user_problem(oracle.problem)).__name__} fails for client "
            f"{sampler.clients[position]} on the last minibatch of an epoch, of {size} instead of "
            f"{sampler.batch_size} rows: {type(error).__name__}: {error}: set {fix}"
        ) from error
    sampler.begin_round(0)


def _select(oracle: Oracle, position: int) -> None:
    """Select the client at a position of this rank alone."""
    oracle.sampler.select_members(np.array([position]))
    oracle.select_clients(slice(0, 1))


def _evaluate(oracle: Oracle, xi: Sample) -> list[torch.Tensor]:
    """Return all derivatives of a client's step at the starting point."""
    problem, sampler = oracle.problem, oracle.sampler
    start = starting_point(problem, sampler.dtype, sampler.device, sampler.seed)
    point = [block.unsqueeze(0) for block in start]
    return leaves(EVALUATIONS[problem.family](oracle, *point, xi))


@torch.no_grad()
def _non_finite_row(oracle: Oracle, position: int) -> str:
    """Describe the first row of a client at which a derivative is not finite at the starting point.

    The rows are halved until a single row remains, which takes two evaluations of all rows in total.

    Args:
        position: of the client on this rank.

    Returns:
        "row 3", or "all rows together" if no single row has such a derivative; "" if all derivatives are
        finite, or if the problem generates its samples.
    """
    sampler = oracle.sampler
    if not sampler.data:
        return ""
    _select(oracle, position)
    columns: Any = next(iter(sampler.client_batches(slice(0, 1))))

    def is_finite(first: int, last: int) -> bool:
        rows = Sample(single=tuple(column[first:last].clone() for column in columns))
        try:
            return all(torch.isfinite(value).all() for value in _evaluate(oracle, rows))
        except Exception:  # user code may not accept so few rows
            return True

    first, last = 0, len(columns[0])
    if is_finite(first, last):
        return ""
    while last - first > 1:
        middle = (first + last) // 2
        if not is_finite(first, middle):
            last = middle
        elif not is_finite(middle, last):
            first = middle
        else:
            return "all rows together"
    return f"row {first}"
