"""The expected costs of a job, as ``mpifed info JOB`` prints them."""

from __future__ import annotations

from mpifed.base.memory import format_bytes, resident_memory
from mpifed.cli.output import echo, print_table
from mpifed.config.job import Config
from mpifed.simulation.expected_costs import ExpectedCosts, expected_costs

__all__ = ["print_costs"]


def print_costs(config: Config, ranks: int, nodes: int) -> None:
    """Print memory, communication and checkpoints of a job on ``ranks`` ranks of ``nodes`` nodes.

    Raises:
        CollectiveError, ContractError, PluginError: as for
            :func:`~mpifed.simulation.expected_costs.expected_costs`.
    """
    costs = expected_costs(config, ranks, nodes)
    process, peak = resident_memory()
    memory = {"program and problem, with one client": process, **costs.memory}
    echo(
        f"Expected costs on {_number(ranks, 'rank')} of {_number(nodes, 'node')}, on CPUs: "
        f"{_number(config.problem.clients, 'client')}, at most {costs.clients:,} on a rank; "
        f"{costs.members:,} in a round; {costs.group:,} stepped at a time\n"
    )
    _print_memory(memory, peak, -(-ranks // nodes))
    echo()
    _print_rounds(costs)
    echo()
    state = costs.server + config.problem.clients * costs.client_row
    echo(
        f"checkpoint: {_bytes(state)} ({_bytes(costs.client_row)} per client, {_bytes(costs.server)} of the "
        f"server), {_frequency(config)}"
    )


def _print_memory(parts: dict[str, int], peak: int, ranks: int) -> None:
    """Print the memory of a rank by purpose, and of the ``ranks`` ranks of a node.

    Args:
        peak: peak memory of this process in bytes, which has prepared the problem.
    """
    rows = [*parts.items(), None, ("sum", sum(parts.values())), ("peak during set-up", peak)]
    print_table(
        ("memory", "of a rank", f"of a node with {_number(ranks, 'rank')}"),
        (row and (row[0], _bytes(row[1]), _bytes(ranks * row[1])) for row in rows),
    )


def _print_rounds(costs: ExpectedCosts) -> None:
    kinds = sorted(costs.rounds[0].wire, key=lambda kind: kind != costs.reduction)
    first = costs.rounds[0]
    rows = [
        (str(one.round or "start"), *map(_bytes, (one.up, one.down, *(one.wire[kind] for kind in kinds))))
        for one in (costs.rounds if first.up or first.down else costs.rounds[1:])
    ]
    ranks = [f"rank 0, {kind}{' (this job)' * (kind == costs.reduction)}" for kind in kinds]
    print_table(("round", "up per member", "down per member", *ranks), rows)


def _frequency(config: Config) -> str:
    every, kept = config.run.rounds_between, config.run.keep
    return f"every {_number(every, 'round')}, {kept} kept" if every else "none is written"


def _number(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _bytes(size: int) -> str:
    """Format a size, exactly if it is below a MiB."""
    return f"{size:,} B" if size < 2**20 else format_bytes(size)
