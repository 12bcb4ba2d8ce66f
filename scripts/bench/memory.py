#!/usr/bin/env python3
"""Peak memory of a rank: python scripts/bench/memory.py [--data] [--json FILE]

Each row is a separate job with Local-SGDA in float32. The columns show, in MB of the rank with the largest
value: the data of its clients; the increase of its peak memory after setup and after two rounds; and the
estimate by which ``mpifed.simulation.state`` refuses jobs that do not fit, which includes records and samples
but not temporary tensors.

By default, the problem has one number of data per client. With ``--data``, images and texts from $MPIFED_DATA
or ../shared/data are distributed over different numbers of clients, which are looped over.
"""

from __future__ import annotations

import argparse
import json
import resource
from dataclasses import dataclass
from pathlib import Path

import torch
from launching import launch, tell

from mpifed.cli.output import quiet_broken_pipe
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
COLUMNS = ("data", "built", "taken", "guard")
#: Problems with data sets: a linear model and a recurrent network.
DATA = {
    "mnist": {"name": "FairClassification", "dataset": "mnist", "model": "linear"},
    "sst2": {"name": "TextAUC", "dataset": "sst2", "model": {"name": "rnn", "hidden": 16}, "length": 20},
}
#: Clients and ranks.
SIZES = tuple((clients, ranks) for ranks in (1, 4) for clients in (10, 100, 1000))


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
    """Return the peak memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def work(problem: dict, batch_size: int, group: int | str) -> None:
    """Measure one row: the maximum over the ranks."""
    import numpy as np

    from mpifed.config.job import Config
    from mpifed.parallel.devices import keep_freed_memory
    from mpifed.parallel.world import world
    from mpifed.simulation.simulation import Simulation
    from mpifed.simulation.state import memory_needs

    comm = world()
    config = Config.from_table(
        {
            "algorithm": {"name": "LocalSGDA", "q": 2, "eta_x": 0.01, "eta_y": 0.01},
            "problem": problem,
            "oracle": {"batch_size": batch_size},
            "run": {"dtype": "float32", "threads": 1, "progress": False, "group": group},
        }
    )
    keep_freed_memory()  # as a run does
    before = peak()
    simulation = Simulation.from_settings(config, comm)
    built = peak() - before
    simulation.start()
    for _ in range(2):
        simulation.step()
    data = sum(column.nbytes for column in simulation.rounds.executor.sampler.data)
    most = np.array([data / 1e6, built, peak() - before])
    comm.allreduce_(most, "max")
    hosted = -(-config.problem.clients // comm.size)
    guarded = sum(memory_needs(config, simulation.problem, hosted, hosted).values()) / 1e6
    if comm.rank == 0:
        tell(dict(zip(COLUMNS, [*most.tolist(), guarded])))


def measure(problem: dict, batch_size: int, group: int | str, ranks: int, about: dict) -> dict:
    """Measure and print one row, which begins with the entries of ``about``."""
    job = json.dumps([problem, batch_size, group])
    (row,) = launch(ranks, __file__, ["--worker", job])
    row = about | row
    print("".join(f"{value:>10,.1f}" if type(value) is float else f"{value:>10}" for value in row.values()))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", action="store_true", help="use data sets")
    parser.add_argument("--json", type=Path, help="output file of the rows")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(*options.worker)
    rows, figures = [], "".join(f"{name:>10}" for name in ("ranks", *COLUMNS))
    if options.data:
        print(f"{'set':>10}{'clients':>10}{figures}", flush=True)
        for name, problem in DATA.items():
            for clients, ranks in SIZES:
                about = {"set": name, "clients": clients, "ranks": ranks}
                rows.append(measure(problem | {"clients": clients}, 10, 1, ranks, about))
    else:
        print(f"{'clients':>10}{'d':>10}{figures}", flush=True)
        for clients, d, ranks in ROWS:
            problem = {"name": f"{__file__}:Shifts", "clients": clients, "d": d}
            rows.append(measure(problem, 0, "auto", ranks, {"clients": clients, "d": d, "ranks": ranks}))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    with quiet_broken_pipe():
        main()
