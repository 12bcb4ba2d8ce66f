"""Allocation of the state of a run on one rank, and a check that the memory suffices.

Before the records of a method are allocated, a lower bound of the memory of records, messages and samples is
compared with the memory of the node and the GPU. A run that is refused could not have completed; a run that
is accepted may still need more memory.
"""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from mpifed.base.errors import ConfigError, ContractError
from mpifed.base.memory import format_bytes, host_memory
from mpifed.base.settings import title
from mpifed.core.algorithm import Algorithm, local_steps
from mpifed.core.problem import Problem, as_family, minibatch_rows
from mpifed.core.records import (
    Adaptive,
    Compressed,
    Layout,
    Observed,
    Record,
    State,
    WithinRound,
    not_sent,
)
from mpifed.core.sampling import drawn_at_once
from mpifed.core.streams import BYTES_PER_DRAW
from mpifed.parallel.comm import SerialComm
from mpifed.parallel.tree import max_partial_sums
from mpifed.simulation.client_store import ClientStore, choose_store
from mpifed.simulation.compression import plan
from mpifed.simulation.executor import capacity, message_rows
from mpifed.simulation.options import Regularize
from mpifed.simulation.regularization import with_centres
from mpifed.simulation.settings import SimulationSettings

__all__ = ["Allocation", "ClientRows", "expect_constants", "expect_memory", "memory_needs"]

#: Bytes per row index of a client's data while it is drawn.
_ROW = 20
#: Minimum value of an integer setting of the problem that the error names as possibly too large.
_LARGE = 1000


class _Layouts(NamedTuple):
    """Layouts of a method's records on a problem.

    Attributes:
        client, within_round: the fields of ``client`` that persist, and those that exist within a round.
        moments: the statistics of the adaptive matrices.
    """

    shared: Layout
    client: Layout
    within_round: Layout
    moments: Layout


def _layout(record: Record, method: Algorithm, problem: Problem) -> Layout:
    """Lay out a record; y is empty for a minimax method on a problem without y."""
    empty = {"y": 0} if problem.family == "minimax" and "y" not in problem.variables() else {}
    return record.layout(problem.variables(), empty | problem.field_sizes(), getattr(method, "matrix", None))


def _layouts(method: Algorithm, problem: Problem, regularize: Regularize | None) -> _Layouts:
    within_round = method.client.fields_of_type(WithinRound)
    client = {name: field for name, field in method.client.fields.items() if name not in within_round}
    adaptive = method.shared.fields_of_type(Adaptive)
    records = (
        with_centres(method.shared, problem, regularize),
        Record(**client),
        Record(**within_round),
        Record(**{name: method.matrix.fields(field.block) for name, field in adaptive.items()}),
    )
    return _Layouts(*(_layout(record, method, problem) for record in records))


def _residuals(config: SimulationSettings, problem: Problem, shared: Layout) -> int:
    """Return the number of residuals of compression per client."""
    phases = config.algorithm.phases
    return plan(
        config.message,
        phases,
        [_layout(phase.message, config.algorithm, problem) for phase in phases],
        shared,
    )[1]


class Allocation:
    """The states of a method on a problem.

    Args:
        problem: prepared, of the method's family.

    Attributes:
        shared, output: the records; ``output`` has the blocks of the problem.
        clients: the record of the clients that this rank may step, one row per client; ``residuals``: their
            errors of compression not sent yet, ``[clients, width]``.
        row_bytes: size of a client's record and residuals.
        within_round: layout of the clients' fields that exist within a round.
        moments: statistics of the adaptive matrices, used by rank 0.
        client_blocks: the blocks of which every client has its own copy.

    Raises:
        ContractError: the records do not fit the problem.
    """

    clients: State
    residuals: torch.Tensor

    def __init__(self, config: SimulationSettings, problem: Problem, dtype, device: torch.device):
        self._method, self._problem, self.blocks = config.algorithm, problem, problem.variables()
        self._expect_blocks()
        layouts = _layouts(config.algorithm, problem, config.regularize)
        self._client, self._dtype = layouts.client, dtype
        self._residuals = _residuals(config, problem, layouts.shared)
        self.row_bytes = (layouts.client.size + self._residuals) * dtype.itemsize
        self.shared = Observed(layouts.shared, layouts.shared.state((), dtype, device).buffer)
        self.within_round = layouts.within_round
        self.moments = layouts.moments.state((), dtype, device)
        self.output = self.layout(Record(**{block: block for block in self.blocks})).state((), dtype, device)
        self.client_blocks = Record(**{block: block for block in self.blocks if block not in self.shared})

    def allocate_clients(self, store: ClientStore) -> None:
        """Allocate the records and residuals of clients. Collective.

        Raises:
            CollectiveError: on all ranks: a rank cannot allocate or share the memory.
        """
        self.clients = State(self._client, store.allocate(self._client.size, self._dtype))
        self.residuals = store.allocate(self._residuals, self._dtype)

    def layout(self, record: Record) -> Layout:
        """Lay out a record of the method, such as a message."""
        return _layout(record, self._method, self._problem)

    def _expect_blocks(self) -> None:
        fields = self._method.client.fields | self._method.shared.fields
        problem = type(self._problem).__name__
        for block in self.blocks:
            if block not in fields:
                raise ContractError(
                    f"{title(self._method)} has no field {block!r} in `shared` or `client`, but {problem} "
                    f"has the blocks {', '.join(self.blocks)}"
                )
            field_type = fields[block]
            compressed = isinstance(field_type, Compressed) and field_type.type == block
            if field_type not in (block, not_sent(block)) and not compressed:
                raise ContractError(
                    f"{type(self._method).__name__}: the field {block!r} holds a block of {problem}, so it "
                    f"must have the type {block!r}, got {field_type!r}"
                )


class ClientRows:
    """The state of the clients that a rank hosts between rounds, one row per client: several matrices side by
    side.

    The state is never copied as a whole, neither on a device nor to the host.

    Args:
        parts: matrices with the same number of rows.
    """

    def __init__(self, parts: Sequence[torch.Tensor]):
        self._parts = parts
        widths = [0, *itertools.accumulate(part.shape[1] for part in parts)]
        self._columns = [slice(*edge) for edge in itertools.pairwise(widths)]
        self.shape = len(parts[0]), widths[-1]
        self.dtype = torch.empty(0, dtype=parts[0].dtype).numpy().dtype

    def read(self, first: int, rows: np.ndarray) -> None:
        """Copy the rows from ``first`` on into ``rows``."""
        target = torch.from_numpy(rows)
        for part, columns in zip(self._parts, self._columns):
            target[:, columns].copy_(part[first : first + len(rows)])

    def write(self, first: int, rows: np.ndarray) -> None:
        """Replace the rows from ``first`` on."""
        source = torch.from_numpy(rows)
        for part, columns in zip(self._parts, self._columns):
            part[first : first + len(rows)].copy_(source[:, columns])

    def read_at(self, positions: np.ndarray, rows: np.ndarray) -> None:
        """Copy the rows at ``positions`` into ``rows``."""
        target, index = torch.from_numpy(rows), torch.from_numpy(positions)
        for part, columns in zip(self._parts, self._columns):
            target[:, columns].copy_(part[index])

    def write_at(self, positions: np.ndarray, rows: np.ndarray) -> None:
        """Replace the rows at ``positions``."""
        source, index = torch.from_numpy(rows), torch.from_numpy(positions)
        for part, columns in zip(self._parts, self._columns):
            part[index] = source[:, columns].to(part.device)

    def copy_(self, rows: ClientRows) -> None:
        """Replace all rows by those of the same clients of another simulation."""
        for part, other in zip(self._parts, rows._parts):
            part.copy_(other)


def memory_needs(config: SimulationSettings, problem: Problem, clients: int, members: int) -> dict[str, int]:
    """Return a lower bound of the memory of a rank in bytes, by purpose.

    Args:
        problem: of the method's family, with ``variables`` and ``field_sizes``.
        clients: number of clients on the rank.
        members: number of members of a cohort on the rank.
    """
    method, itemsize = config.algorithm, getattr(torch, config.run.dtype).itemsize
    layouts, output = _layouts(method, problem, config.regularize), sum(problem.variables().sizes.values())
    phases = [_layout(phase.message, method, problem) for phase in method.phases]
    start = [_layout(phase.message, method, problem) for phase in method.start]
    sizes = [layout.size for layout in phases + start]
    residuals = _residuals(config, problem, layouts.shared)
    group = capacity(1 if config.run.group == "auto" else config.run.group, members)
    single = group == clients == 1  # the row of the only client is also a partial sum
    # With "fused", the mean is also a partial sum.
    sums = max_partial_sums(0, clients) - (config.run.reduction == "fused")
    steps = max(1, local_steps(method))
    noise = drawn_at_once(members, group, steps, output) if config.oracle.noise else 0
    rows = drawn_at_once(members, group, steps, minibatch_rows(problem, config.oracle.batch_size))
    records = (layouts.client.size + residuals) * clients + layouts.within_round.size * members
    filled = [0 if single else message_rows(group, members, itemsize * size) for size in sizes]
    return {
        "the clients' records": itemsize * records,
        "messages": itemsize * sum(size * (sums + count + 1) for size, count in zip(sizes, filled)),
        # In the first rounds, a copy shows whether client functions write to `shared`.
        "shared records": itemsize * (2 * layouts.shared.size + layouts.moments.size + output),
        "samples": max(noise * BYTES_PER_DRAW, rows * _ROW),  # noise and rows are not drawn at the same time
    }


def expect_memory(
    config: SimulationSettings, comm: SerialComm, device: torch.device, sharing: int = 1
) -> None:
    """Compare the memory that a run needs with the memory of this rank's node and GPU.

    Args:
        sharing: number of ranks that use the same GPU.

    Raises:
        ConfigError: the memory does not suffice; names the buffers and the settings that may be too large.
    """
    problem = config.problem
    clients, members = (
        -(-number // comm.size)
        for number in (problem.clients, config.participation.expected_reports(problem.clients))
    )
    try:
        records = memory_needs(config, as_family(problem, config.algorithm.family), clients, members)
    except Exception:  # the blocks depend on data not read yet, or the check of the problem reports the error
        records = {}
    loaded = members if config.participation.partial_setting(problem.clients) else clients
    records["the clients' data"] = loaded * problem.client_footprint()
    ranks, constants = min(comm.local_size, problem.clients), {"the problem's constants": problem.footprint()}
    run = f"{title(config.algorithm)} on {title(problem)}"
    state, total = records.pop("the clients' records", 0), 0
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
    row_bytes = state // max(1, clients)
    store = choose_store(config, row_bytes, clients * ranks, clients * sharing, total)
    if store == "device":
        records["the clients' records"] = state
    elif store == "memory":
        constants["the clients' records"] = state
    _expect_sufficient(run, problem, constants, ranks, host_memory(), "the node")
    if total:
        _expect_sufficient(run, problem, records, sharing, total, f"the GPU {device.index or 0}")
    else:
        _expect_sufficient(run, problem, records, ranks, host_memory(), "the node")
    if store == "disk":
        folder = tempfile.gettempdir()
        parts, free = {"the clients' records": state}, shutil.disk_usage(folder).free
        _expect_sufficient(run, problem, parts, ranks, free, f"the disk of {folder} (TMPDIR)", "disk space")


def expect_constants(problem: Problem) -> None:
    """Compare the memory that one process needs for a problem and its data with the memory of this machine.

    Raises:
        ConfigError: the memory does not suffice.
    """
    parts = {
        "the problem's constants": problem.footprint(),
        "the clients' data": problem.clients * problem.client_footprint(),
    }
    _expect_sufficient(title(problem), problem, parts, 1, host_memory(), "this machine")


def _expect_sufficient(
    run: str,
    problem: Problem,
    parts: dict[str, int],
    ranks: int,
    available: int,
    where: str,
    what: str = "memory",
) -> None:
    """Raise an error if ``ranks`` ranks that each need ``parts`` exceed the bytes ``available``."""
    needed = ranks * sum(parts.values())
    if needed <= available:
        return
    largest = {name: ranks * size for name, size in parts.items() if 1000 * ranks * size >= needed}
    listed = ", ".join(f"{format_bytes(size)} for {name}" for name, size in largest.items())
    large = ", ".join(f"problem.{name} = {value:,}" for name, value in _sizes(problem))
    raise ConfigError(
        f"{run} with {problem.clients:,} clients needs at least {format_bytes(needed)} of {what} with "
        f"{ranks} rank{'s' * (ranks > 1)} on {where}, which has {format_bytes(available)}: {listed}. Use "
        f"more nodes with fewer clients per node, a smaller problem{f' ({large})' if large else ''}, or a "
        "smaller oracle.batch_size"
    )


def _sizes(problem: Problem) -> list[tuple[str, int]]:
    """Return the large integers among the settings of a problem, largest first."""
    values = {field.name: getattr(problem, field.name) for field in dataclasses.fields(problem) if field.init}
    large = {name: value for name, value in values.items() if type(value) is int and value >= _LARGE}
    return sorted(large.items(), key=lambda pair: -pair[1])
