#!/usr/bin/env python3
"""Strong and weak scaling of a round over the ranks of this machine:

    python scripts/bench/scaling.py [--ranks 1 2 4] [--json FILE]

FedAvg of an MLP 784-200-200-10 in float32, K = 10, batches of 50, one thread per rank. Strong scaling: 64
clients in total; its efficiency on R ranks is the time of a round on one rank divided by R times the time on
R ranks. Weak scaling: 16 clients per rank; its efficiency is the time of a round on one rank divided by the
time on R ranks. Without a core for each rank, neither can be more than cores / R. ``communication`` is the
share of a round that rank 0 spends in the Allreduce, including the wait for slower ranks. All ranks together
must evaluate all gradients, and strong scaling must give the same bits on any number of ranks
(``agreement.py``).
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from agreement import digest, expect_divided, expect_same_bits
from launching import launch, processor, send, write_json

STRONG, WEAK = 64, 16


def measure(clients: int, seconds: float) -> dict:
    """Return the median wall time of a round, and the share of communication."""
    import torch
    from mpi4py import MPI
    from peers import Work, simulation

    from mpifed.parallel.comm import MpiComm, SerialComm
    from mpifed.parallel.devices import keep_freed_memory

    torch.set_num_threads(1)
    keep_freed_memory()
    world = MPI.COMM_WORLD
    work = Work((200, 200), (784,), clients, 10, 50)
    made = simulation(work, MpiComm(world) if world.size > 1 else SerialComm())
    expect_divided("mpifed", made.rounds.costs.oracle_calls, made.round * clients * work.steps, made.comm)
    bits = digest(made)
    costs, times, until, more = made.rounds.costs, [], time.monotonic() + seconds, True
    before = costs.seconds, costs.communication_seconds
    while more or len(times) < 5:
        world.Barrier()
        began = time.perf_counter()
        made.step()
        world.Barrier()
        times.append(time.perf_counter() - began)
        more = world.allreduce(time.monotonic() < until, MPI.LAND)
    share = (costs.communication_seconds - before[1]) / (costs.seconds - before[0])
    return {"ms": 1e3 * statistics.median(times), "communication": share, "digest": bits}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument(
        "--seconds", type=float, default=15.0, help="duration of the measurement per line of the table"
    )
    parser.add_argument("--json", type=Path, help="output file of the rows and the machine")
    parser.add_argument("--clients", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.clients:
        from mpi4py import MPI

        row = measure(options.clients, options.seconds)
        if MPI.COMM_WORLD.rank == 0:
            send(row)
        return
    print(f"{processor()}, {os.cpu_count()} cores")
    print(f"{'scaling':<8} {'ranks':>5} {'clients':>7} {'ms':>10} {'efficiency':>10} {'communication':>13}")
    rows = []
    for kind in ("strong", "weak"):
        alone = bits = None
        for ranks in options.ranks:
            clients = STRONG if kind == "strong" else WEAK * ranks
            arguments = ["--clients", str(clients), "--seconds", str(options.seconds)]
            (row,) = launch(ranks, __file__, arguments)
            if kind == "strong":
                bits = bits or row["digest"]
                expect_same_bits(ranks, row["digest"], bits)
            alone = alone or row["ms"] * (ranks if kind == "strong" else 1)
            efficiency = alone / row["ms"] / (ranks if kind == "strong" else 1)
            rows.append(
                {"scaling": kind, "ranks": ranks, "clients": clients, "efficiency": efficiency, **row}
            )
            print(
                f"{kind:<8} {ranks:>5} {clients:>7} {row['ms']:>10.1f} {efficiency:>10.2f} "
                f"{row['communication']:>12.1%}",
                flush=True,
            )
    machine = {"processor": processor(), "cores": os.cpu_count()}
    write_json(options.json, {"machine": machine, "rows": rows})


if __name__ == "__main__":
    main()
