#!/usr/bin/env python3
"""Memory of the ranks of a node: python scripts/bench/memory.py [--data] [--json FILE]

Each row is a separate job with Local-SGDA in float32, in MB.

By default, the problem has one data value per client. The columns show, for the rank with the largest
value: the data of its clients; the increase of its peak memory after setup and after two rounds; and the
estimate by which ``mpifed.simulation.state`` refuses jobs that do not fit, which includes records and samples
but not temporary tensors.

With ``--data``, images and texts from $MPIFED_DATA or ../shared/data are divided among 100 clients, which are
looped over. The columns show sums over the ranks of this node: ``base``, the memory of a process per rank
before the simulation is constructed (Python, torch, MPI); the data of the clients; the largest increase of
the memory during set-up, two rounds and an evaluation, and the increase after them; and the ratio of the
largest increase to that of one rank. Memory is the proportional set size in /proc/PID/smaps_rollup, in which
a page that n processes map counts as 1/n in each of them, read every few milliseconds. Increases are those of
anonymous and shared pages; base includes pages of files, such as libraries. The results must be bitwise
identical on all numbers of ranks (``agreement.py``).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from agreement import digest, expect_same_bits
from launching import launch, processor, send, write_json

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
RANKS = (1, 2, 4)
#: Seconds between two readings of the memory of all ranks, and before the simulation is constructed.
INTERVAL, PAUSE = 0.005, 1.0


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


def work(problem: dict, batch_size: int, group: int | str, real: bool) -> None:
    """Measure one row: the maximum over the ranks, and the sum of the data.

    Args:
        real: whether the problem has a data set, and is also evaluated.
    """
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
    processes = np.empty(comm.size, dtype=np.int64)
    comm.allgatherv(np.array([os.getpid()]), processes, [1] * comm.size)
    if comm.rank == 0:
        send({"processes": processes.tolist()})
    time.sleep(PAUSE)  # in which the memory before the simulation is read
    before = peak()
    simulation = Simulation.from_settings(config, comm)
    built = peak() - before
    simulation.start()
    for _ in range(2):
        simulation.step()
    if real:
        simulation.evaluate(simulation.output)
    data = sum(column.nbytes for column in simulation.rounds.executor.sampler.data)
    most = np.array([data / 1e6, built, peak() - before])
    comm.allreduce_(most, "max")
    total = np.array([data / 1e6])
    comm.allreduce_(total)
    hosted = -(-config.problem.clients // comm.size)
    guarded = sum(memory_needs(config, simulation.problem, hosted, hosted).values()) / 1e6
    time.sleep(PAUSE)  # in which the last memory is read
    if comm.rank == 0:
        row = dict(zip(COLUMNS, [*most.tolist(), guarded]))
        send(row | {"total": float(total[0]), "digest": digest(simulation)})
    comm.barrier()


class NodeMemory(threading.Thread):
    """Reads the memory of some processes until :meth:`stop`: ``(base, data)``, in MB, in ``readings``."""

    def __init__(self, processes: list[int]):
        super().__init__(daemon=True)
        self._files = [Path(f"/proc/{process}/smaps_rollup") for process in processes]
        self._end, self.readings = threading.Event(), []

    def run(self) -> None:
        while not self._end.wait(INTERVAL if self.readings else 0):
            sizes: dict[str, float] = {}
            try:
                for file in self._files:
                    for name, size in re.findall(r"^(Pss\w*): +(\d+) kB", file.read_text(), re.M):
                        sizes[name] = sizes.get(name, 0) + int(size) * 1.024e-3
            except OSError:  # a process has ended
                return
            self.readings.append((sizes["Pss"], sizes["Pss_Anon"] + sizes["Pss_Shmem"]))

    def stop(self) -> list[tuple[float, float]]:
        self._end.set()
        self.join()
        return self.readings


def row_text(row: dict) -> str:
    return "".join(f"{value:>10,.1f}" if type(value) is float else f"{value:>10}" for value in row.values())


def measure(problem: dict, batch_size: int, group: int | str, ranks: int, real: bool) -> dict:
    """Measure one row, see :func:`work`."""
    job = json.dumps([problem, batch_size, group, real])
    results = launch(ranks, __file__, ["--worker", job])
    memory = NodeMemory(next(results)["processes"])
    memory.start()
    row = next(results)
    readings = memory.stop()
    for _ in results:
        pass
    (total, before), after = readings[0], readings[-1][1]
    most = max(data for _, data in readings)
    return row | {"base": total / ranks, "peak": most - before, "end": after - before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", action="store_true", help="use data sets")
    parser.add_argument("--json", type=Path, help="output file of the rows")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(*options.worker)
    rows = []
    print(processor())
    if options.data:
        names = ("set", "ranks", "base", "data", "peak", "end", "ratio")
        print("".join(f"{name:>10}" for name in names), flush=True)
        for name, problem in DATA.items():
            alone = bits = None
            for ranks in RANKS:
                found = measure(problem | {"clients": 100}, 10, 1, ranks, True)
                alone, bits = alone or found["peak"], bits or found["digest"]
                expect_same_bits(ranks, found["digest"], bits)
                row = {"set": name, "ranks": ranks, "base": found["base"], "data": found["total"]}
                rows.append(row | {key: found[key] for key in ("peak", "end")})
                print(row_text(rows[-1]) + f"{found['peak'] / alone:>10.2f}", flush=True)
    else:
        print("".join(f"{name:>10}" for name in ("clients", "d", "ranks", *COLUMNS)), flush=True)
        for clients, d, ranks in ROWS:
            problem = {"name": f"{__file__}:Shifts", "clients": clients, "d": d}
            found = measure(problem, 0, "auto", ranks, False)
            about = {"clients": clients, "d": d, "ranks": ranks}
            rows.append(about | {name: found[name] for name in COLUMNS})
            print(row_text(rows[-1]), flush=True)
    write_json(options.json, rows)


if __name__ == "__main__":
    main()
