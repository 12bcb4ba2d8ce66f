"""The memory of the buffers that a run plans, compared with that of the machine before it is allocated.

Only memory that is certainly allocated is counted: a run that is refused could not have ended well, and a run
that starts may still need more.
"""

from __future__ import annotations

import dataclasses

import torch

from mpifed.base.errors import ConfigError
from mpifed.base.settings import title
from mpifed.core.algorithm import local_steps
from mpifed.base.memory import gib, host_memory
from mpifed.core.problem import Problem, as_family
from mpifed.core.records import Adaptive, Record, WithinRound
from mpifed.core.sampling import drawn_at_once
from mpifed.core.streams import BYTES_A_DRAW
from mpifed.parallel.comm import SerialComm
from mpifed.parallel.tree import depth
from mpifed.simulation.compression import plan
from mpifed.simulation.executor import capacity
from mpifed.simulation.regularization import with_centres
from mpifed.simulation.settings import SimulationSettings
from mpifed.simulation.state import layout_of

__all__ = ["expect_constants", "expect_room", "needs"]

#: Bytes of the number of a row of a client's data while it is drawn.
_ROW = 20
#: Settings from this value on are named in the error as possibly too large.
_LARGE = 1000


def needs(config: SimulationSettings, problem: Problem, clients: int, members: int) -> dict[str, int]:
    """Bytes of a rank's records, messages and samples by what they are for.

    Args:
        problem: in the method's family, with ``variables`` and ``kinds``.
        clients, members: how many clients the rank hosts, and how many of them it steps in a round.
    """
    method, item = config.algorithm, getattr(torch, config.run.dtype).itemsize
    width = sum(problem.variables().sizes.values())
    between = Record(**method.client.of(WithinRound))
    lasting = {name: kind for name, kind in method.client.fields.items() if name not in between.fields}
    shared = with_centres(method.shared, problem, config.regularize)
    moments = {name: method.matrix.fields(one.block) for name, one in method.shared.of(Adaptive).items()}

    def size(record: Record) -> int:
        return layout_of(record, method, problem).size

    messages = [size(phase.message) for phase in (*method.phases, *method.start)]
    layouts = [layout_of(phase.message, method, problem) for phase in method.phases]
    residuals = plan(config.message, method.phases, layouts, layout_of(method.shared, method, problem))[1]
    group = capacity(1 if config.run.group == "auto" else config.run.group, members)
    lone = group == clients == 1  # its row is a partial sum
    sums = depth(0, clients) - (config.run.reduction == "fused")  # whose mean is one of its partial sums
    kept, steps = size(Record(**lasting)), max(1, local_steps(method))
    noise = drawn_at_once(members, group, steps, width) if config.oracle.noise else 0
    rows = drawn_at_once(members, group, steps, config.oracle.batch_size, ahead=True)
    return {
        "the clients' records": item * ((kept + residuals) * clients + size(between) * members),
        "messages": item * sum(messages) * (sums + (0 if lone else group) + 1),
        # A copy in the first rounds shows whether clients write to it.
        "shared records": item * (2 * size(shared) + size(Record(**moments)) + width),
        "samples": max(noise * BYTES_A_DRAW, rows * _ROW),  # one after the other
    }


def expect_room(config: SimulationSettings, comm: SerialComm, device: torch.device) -> None:
    """Compare the memory that a run plans with that of this rank's node and GPU.

    Raises:
        ConfigError: it does not fit; names the buffers and the settings that may be too large.
    """
    problem = config.problem
    clients, members = (
        -(-number // comm.size) for number in (problem.clients, config.participation.members(problem.clients))
    )
    try:
        records = needs(config, as_family(problem, config.algorithm.family), clients, members)
    except Exception:  # the blocks follow from data not read yet, or the check of the problem reports it
        records = {}
    ranks, constants = min(comm.local_size, problem.clients), {"the problem's constants": problem.footprint()}
    run = f"{title(config.algorithm)} on {title(problem)}"
    if device.type == "cuda":
        _expect(run, problem, constants, ranks, host_memory(), "the node")
        total = torch.cuda.get_device_properties(device).total_memory
        _expect(run, problem, records, 1, total, f"the GPU {device.index or 0}")
    else:
        _expect(run, problem, constants, ranks, host_memory(), "the node")
        _expect(run, problem, records, ranks, host_memory(), "the node")


def expect_constants(problem: Problem) -> None:
    """Compare the memory that the preparation of a problem takes in one process with that of this machine.

    Raises:
        ConfigError: it does not fit.
    """
    constants = {"the problem's constants": problem.footprint()}
    _expect(title(problem), problem, constants, 1, host_memory(), "this machine")


def _expect(run: str, problem: Problem, parts: dict[str, int], ranks: int, there: int, where: str) -> None:
    """``parts``: bytes of a rank; ``there``: bytes of the memory ``where`` that ``ranks`` ranks share."""
    needed = ranks * sum(parts.values())
    if needed <= there:
        return
    listed = ", ".join(
        f"{gib(ranks * size)} for {name}" for name, size in parts.items() if 1000 * ranks * size >= needed
    )
    large = ", ".join(f"problem.{name} = {value:,}" for name, value in _sizes(problem))
    raise ConfigError(
        f"{run} with {problem.clients:,} clients needs at least {gib(needed)} of memory with {ranks} "
        f"rank{'s' * (ranks > 1)} on {where}, which has {gib(there)}: {listed}. Take more nodes with fewer "
        f"clients each, a smaller problem{f' ({large})' if large else ''}, or a smaller oracle.batch_size"
    )


def _sizes(problem: Problem) -> list[tuple[str, int]]:
    """The large integers among the settings of a problem, the largest first."""
    values = {field.name: getattr(problem, field.name) for field in dataclasses.fields(problem) if field.init}
    whole = {name: value for name, value in values.items() if type(value) is int and value >= _LARGE}
    return sorted(whole.items(), key=lambda pair: -pair[1])
