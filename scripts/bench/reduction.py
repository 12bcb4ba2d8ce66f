#!/usr/bin/env python3
"""Time of a reduction: mpirun -n RANKS python scripts/bench/reduction.py [--clients ...] [--sizes ...]
[--groups ...] [--json FILE]

The benchmark compares the reductions ``exact`` and ``fused``, by messages (``host``) and, with several ranks,
in shared memory (``shm``), with an in-place ``MPI_Allreduce`` of the same size and with sending all rows (an
Alltoallv of all clients' messages, a sum in client order, an Allgatherv). Messages are float32. The time
includes the sum over all clients and the exchange, for the Allreduce only the exchange. A group is the number
of rows that are added at a time. Before, each variant must return the right sum (``agreement.py``).

All variants are measured alternately, in blocks of one job. Times are medians of the slowest rank; ratios are
medians of the ratios of neighbouring blocks, on which other processes have little influence. ``--clock cpu``
measures the CPU time of all ranks instead of the wall time, including that of waiting ranks.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from agreement import expect_equal
from mpi4py import MPI

from mpifed.parallel.comm import SerialComm
from mpifed.parallel.placement import Cohort, Placement
from mpifed.parallel.reduction import REDUCTIONS
from mpifed.parallel.transport import choose_transport
from mpifed.parallel.world import world

#: Maximum number of elements of all rows: for a case, and for sending all rows.
LARGEST, ROWS = 1e8, 2e7
#: Seconds of all blocks of a variant, and the minimum and maximum number of blocks.
BUDGET, BLOCKS = 0.2, (5, 25)
COLUMNS = {
    "exact/fused host": ("exact host", "fused host"),
    "exact/fused shm": ("exact shm", "fused shm"),
    "exact shm/Allreduce": ("exact shm", "Allreduce"),
    "fused shm/Allreduce": ("fused shm", "Allreduce"),
    "rows/exact host": ("rows", "exact host"),
}


def reducing(kind: str, transport, placement: Placement, group: int, size: int):
    """Return a function that reduces the messages of all clients, which are already in the rows, and returns
    the mean. Its argument replaces all messages of this rank."""
    rank = transport.comm.rank
    cohort = Cohort(np.arange(placement.clients), placement, rank)
    count = placement.counts[rank]
    reduction = REDUCTIONS[kind](transport, min(group, max(count, 1)), placement, size, torch.float32)
    groups = [slice(start, min(start + group, count)) for start in range(0, count, group)]

    def reduce(message=None):
        reduction.begin(cohort)
        for members in groups:
            if message is not None:
                reduction.rows[...] = torch.as_tensor(message)
            reduction.add(members)
        reduction.finish()
        return reduction.mean

    return reduce


def sending_rows(comm: MPI.Comm, placement: Placement, size: int):
    """Return a function like that of :func:`reducing`, in which each rank adds a slice of all rows."""
    counts, rank = np.array(placement.counts), comm.rank
    edges = np.linspace(0, size, comm.size + 1).astype(int)
    widths = np.diff(edges)
    rows, result = np.zeros((counts[rank], size), np.float32), np.zeros(size, np.float32)

    def reduce(message=None):
        if message is not None:
            rows[...] = message
        send = np.concatenate([rows[:, left:right].reshape(-1) for left, right in zip(edges, edges[1:])])
        received = np.empty((placement.clients, widths[rank]), np.float32)
        comm.Alltoallv([send, counts[rank] * widths], [received, counts * widths[rank]])
        piece = np.zeros(widths[rank], np.float32)
        for row in received:
            piece += row
        comm.Allgatherv(piece, [result, widths])
        result[...] /= placement.clients
        return result

    return reduce


def allreduce(comm: MPI.Comm, size: int):
    """Return a function that adds the ranks' messages by one raw Allreduce, in place."""
    buffer = np.zeros(size, np.float32)

    def reduce(message=None):
        if message is not None:
            buffer[...] = message
        comm.Allreduce(MPI.IN_PLACE, buffer)
        return buffer

    return reduce


def expect_right_sums(variants: dict, comm: SerialComm, placement: Placement, size: int) -> None:
    """Compare the results with the known sum of messages that differ between ranks and columns."""
    message = 1 + np.arange(size) % 7
    ranks = 1 + np.arange(comm.size)
    mean = (ranks * placement.counts).sum() / placement.clients
    for name, reduce in variants.items():
        found = reduce((1 + comm.rank) * message.astype(np.float32))
        expect_equal(name, found, message * (ranks.sum() if name == "Allreduce" else mean), comm)
        reduce(np.zeros(size, np.float32))


def timed(comm: MPI.Comm, reduce, repeats: int, clock: str) -> float:
    """Return the seconds per call: wall time of the slowest rank, or CPU time of all ranks."""
    read, over = (time.process_time, MPI.SUM) if clock == "cpu" else (time.perf_counter, MPI.MAX)
    comm.Barrier()
    start = read()
    for _ in range(repeats):
        reduce()
    return comm.allreduce((read() - start) / repeats, over)


def measure(comm: MPI.Comm, variants: dict, clock: str) -> dict[str, list[float]]:
    """Return the seconds of each block of each variant."""
    once = {}
    for name, reduce in variants.items():
        reduce()
        once[name] = timed(comm, reduce, 1, "wall")
    blocks = int(np.clip(BUDGET / max(once.values()), *BLOCKS))
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(blocks):
        for name, reduce in variants.items():
            repeats = max(1, int(BUDGET / BLOCKS[1] / once[name]))
            seconds[name].append(timed(comm, reduce, repeats, clock))
    return seconds


def case(clients: int, size: int, group: int, transports: list, clock: str) -> dict:
    """Measure one row of the table."""
    comm = MPI.COMM_WORLD
    placement = Placement(clients, comm.size)
    variants = {
        f"{kind} {transport.name if comm.size > 1 else 'host'}": reducing(
            kind, transport, placement, group, size
        )
        for kind in ("fused", "exact")
        for transport in transports
    }
    variants["Allreduce"] = allreduce(comm, size)
    if clients * size <= ROWS:
        variants["rows"] = sending_rows(comm, placement, size)
    expect_right_sums(variants, world(comm), placement, size)
    seconds = measure(comm, variants, clock)
    ratios = {
        column: statistics.median(a / b for a, b in zip(seconds[one], seconds[other]))
        for column, (one, other) in COLUMNS.items()
        if one in seconds and other in seconds
    }
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {"ranks": comm.size, "clients": clients, "size": size, "group": group, **medians, "ratios": ratios}


def line(row: dict) -> str:
    names = ("Allreduce", "fused host", "exact host", "fused shm", "exact shm", "rows")
    times = [f"{1e3 * row[name]:10.3f}" if name in row else f"{'-':>10}" for name in names]
    ratios = [f"{row['ratios'][name]:6.2f}" if name in row["ratios"] else f"{'-':>6}" for name in COLUMNS]
    return f"{row['clients']:7,} {row['size']:10,} {row['group']:5}" + "".join(times) + " " + "".join(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    whole = lambda text: int(float(text))  # noqa: E731
    parser.add_argument("--clients", type=whole, nargs="+", default=[1, 4, 64, 1000])
    parser.add_argument("--sizes", type=whole, nargs="+", default=[10**k for k in range(3, 8)])
    parser.add_argument("--groups", type=whole, nargs="+", default=[1, 16])
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    comm, rows = world(MPI.COMM_WORLD), []
    ways = ["host", "shm"] if comm.size > 1 else ["auto"]
    transports = [choose_transport(comm, torch.device("cpu"), way, False) for way in ways]
    torch.set_num_threads(1)
    if comm.rank == 0:
        print(f"{comm.size} ranks; milliseconds, then ratios: {', '.join(COLUMNS)}")
        print("clients       size group Allreduce fused host exact host fused shm exact shm rows")
    for size in options.sizes:
        for clients in options.clients:
            for group in [one for one in options.groups if one == 1 or clients >= one * comm.size]:
                if clients * size <= LARGEST:
                    rows.append(case(clients, size, group, transports, options.clock))
                    if comm.rank == 0:
                        print(line(rows[-1]), flush=True)
    if comm.rank == 0 and options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
