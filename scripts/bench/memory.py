#!/usr/bin/env python3
"""Peak memory of a rank against what the guard adds up: python scripts/bench/memory.py [--json FILE]

Local SGDA, float32, on a problem of one number of data a client, each row in a process of its own: what a
rank takes from before the simulation is built to its peak after two rounds. The guard
(``mpifed.simulation.memory``) counts what is taken for certain, before any of it is taken; temporary tensors
come on top.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from launching import launch, tell

from mpifed.core.problem import Minimisation
from mpifed.core.records import Blocks

#: Clients, dimension of x, ranks.
ROWS = (
    (100, 1000, 1),
    (1000, 1000, 1),
    (10_000, 1000, 1),
    (10_000, 1000, 2),
    (100, 100_000, 1),
    (1000, 100_000, 1),
    (10_000, 100_000, 2),
)


@dataclass
class Shifts(Minimisation):
    """f_k(x) = ‖x - k 1 / N‖² / 2."""

    clients: int = 10
    d: int = 10

    def variables(self):
        return Blocks(x={"w": (self.d,)})

    def client_data(self, client):
        return (torch.tensor([client / self.clients]),)

    def gradients(self, x, batch):
        return x - batch[0]


def peak() -> float:
    """MB of this process at its peak."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def work(options) -> None:
    """One row, of the rank that takes most."""
    import numpy as np

    from mpifed.config.job import Config
    from mpifed.parallel.world import world
    from mpifed.simulation.memory import needs
    from mpifed.simulation.simulation import Simulation

    comm, (clients, d) = world(), options.worker
    config = Config.from_table(
        {
            "algorithm": {"name": "LocalSGDA", "q": 2, "eta_x": 0.01, "eta_y": 0.01},
            "problem": {"name": f"{__file__}:Shifts", "clients": clients, "d": d},
            "oracle": {"batch_size": 0},
            "run": {"dtype": "float32", "threads": 1, "progress": False},
        }
    )
    hosted = -(-clients // comm.size)
    guarded = sum(needs(config, config.problem, hosted, hosted).values()) / 1e6
    before = peak()
    simulation = Simulation(config, comm)
    simulation.start()
    for _ in range(2):
        simulation.step()
    taken = np.array([peak() - before])
    comm.allreduce_(taken, "max")
    if comm.rank == 0:
        tell(
            {"clients": clients, "d": d, "ranks": comm.size, "guard_mb": guarded, "taken_mb": float(taken[0])}
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="file for the rows")
    parser.add_argument("--worker", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(options)
    rows = []
    print(f"{'clients':>8} {'d':>8} {'ranks':>5} {'guard MB a rank':>16} {'taken MB':>9}")
    for clients, d, ranks in ROWS:
        for row in launch(ranks, __file__, [*sys.argv[1:], "--worker", str(clients), str(d)]):
            rows.append(row)
            cells = f"{row['guard_mb']:>16,.1f} {row['taken_mb']:>9,.1f}"
            print(f"{clients:>8,} {d:>8,} {ranks:>5} {cells}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
