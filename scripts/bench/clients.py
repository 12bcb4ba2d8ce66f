#!/usr/bin/env python3
"""Set-up, round and memory of a rank by the number of clients:

    python scripts/bench/clients.py [--clients 1000 10000 100000 1000000] [--cohorts 100 1000] [--ranks 1 2 4]
                                    [--of 64 1024] [--json FILE]

Logistic regression with 60 features, five local steps with minibatches of four of the client's five rows,
float32: FedAvg without, and SCAFFOLD with, a state per client. Every client has rows of one small array as
its data, so the memory is that of the simulator. ``set-up`` and ``round`` are CPU times of rank 0, the median
of the rounds; ``round/`` is relative to the smallest number of clients. ``memory`` is the increase of the
peak memory of rank 0 over that before the simulation, ``state`` the client state that it includes.
``busiest`` is the number of members of the cohort on the rank that has most, mean over the rounds. ``calls``
and ``bytes`` are collectives of rank 0 per round and their buffers, counted with ``--of`` only, otherwise 0.

``--ranks`` starts real processes; the results must have the same bits on all numbers of ranks
(``agreement.py``). ``--of R`` computes the part of rank 0 of R with a communicator that counts collectives
and returns this rank's own values: results are meaningless, but the work of a rank, the calls and the bytes
are those of R ranks.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from agreement import digest, expect_divided, expect_same_bits
from launching import launch, processor, send, write_json
from memory import peak

from mpifed.core.problem import Minimisation
from mpifed.core.records import Blocks
from mpifed.parallel.one_rank import OneRankOf

FEATURES, ROWS, POOL, STEPS = 60, 5, 1000, 5
#: Methods without and with a state per client, and their step sizes.
RATES = {"FedAvg": "eta", "SCAFFOLD": "eta_l"}
COLUMNS = ("set-up s", "round ms", "memory MB", "state MB", "busiest", "calls", "bytes")


@dataclass
class Logistic(Minimisation):
    """Logistic regression on five of a thousand rows per client."""

    clients: int = 1000

    def prepare(self, seed, data_dir=None):
        rng = np.random.default_rng(seed)
        self.features = torch.from_numpy(rng.standard_normal((POOL, FEATURES), dtype=np.float32))
        self.labels = (self.features.sum(1) > 0).float()

    def variables(self):
        return Blocks(x={"w": (FEATURES,)})

    def client_sizes(self, clients):
        return np.full_like(clients, ROWS)

    def client_rows(self, clients):
        rows = torch.from_numpy((clients * 7 % (POOL - ROWS))[:, None] + np.arange(ROWS)).flatten()
        return (self.features[rows], self.labels[rows]), self.client_sizes(clients)

    def loss(self, x, batch):
        features, labels = batch
        logits = (features @ x["w"].unsqueeze(-1)).squeeze(-1)
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)


def counted(comm) -> tuple[int, int]:
    """Return the numbers of collectives and bytes so far; 0 for real ranks."""
    return getattr(comm, "calls", 0), getattr(comm, "bytes", 0)


def work(method: str, clients: int, cohort: int, of: int) -> None:
    """Measure one row on this rank."""
    from mpifed.config.job import Config
    from mpifed.parallel.devices import keep_freed_memory
    from mpifed.parallel.world import world
    from mpifed.simulation.simulation import Simulation

    torch.set_num_threads(1)
    keep_freed_memory()
    comm = OneRankOf(of) if of else world()
    config = Config.from_table(
        {
            "algorithm": {"name": method, "K": STEPS, RATES[method]: 0.1},
            "problem": {"name": f"{__file__}:Logistic", "clients": clients},
            "participation": {"cohort": cohort},
            "oracle": {"batch_size": 4},
            "run": {"dtype": "float32", "threads": 1, "progress": False, "transport": "host"},
        }
    )
    memory, began = peak(), time.process_time()
    with Simulation.from_settings(config, comm) as simulation:
        simulation.start()
        setup = time.process_time() - began
        for _ in range(3):
            simulation.step()
        if not of:
            calls = simulation.costs.oracle_calls
            expect_divided("mpifed", calls, STEPS * (3 * cohort), comm)
        bits, before, times, busiest = digest(simulation), counted(comm), [], []
        for _ in range(20):
            busiest.append(simulation.rounds.coordinator.cohort(simulation.round + 1).counts.max())
            began = time.process_time()
            simulation.step()
            times.append(time.process_time() - began)
        calls, sent = (after - start for after, start in zip(counted(comm), before))
        state = simulation.clients.buffer.nbytes / 1e6
    if comm.rank == 0:
        values = [setup, 1e3 * statistics.median(times), peak() - memory, state, float(np.mean(busiest))]
        values += [calls / 20, sent // 20]
        send(dict(zip(COLUMNS, values)) | {"digest": bits})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[10**3, 10**4, 10**5, 10**6])
    parser.add_argument("--cohorts", type=int, nargs="+", default=[100])
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--of", type=int, nargs="*", default=[], help="one rank of as many")
    parser.add_argument("--json", type=Path, help="output file of the rows")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(*options.worker)
    print(processor())
    print("".join(f"{name:>11}" for name in ("method", "cohort", "clients", "ranks", *COLUMNS, "round/")))
    rows, bits = [], {}
    layouts = [(ranks, 0) for ranks in options.ranks] + [(1, of) for of in options.of]
    for method, cohort, (ranks, of) in itertools.product(RATES, options.cohorts, layouts):
        first = None
        for clients in options.clients:
            job = json.dumps([method, clients, cohort, of])
            (row,) = launch(ranks, __file__, ["--worker", job])
            if not of:
                expected = bits.setdefault((method, cohort, clients), row["digest"])
                expect_same_bits(ranks, row["digest"], expected)
            first = first or row["round ms"]
            shown = f"1 of {of}" if of else str(ranks)
            about = {"method": method, "cohort": cohort, "clients": clients, "ranks": shown}
            rows.append(about | {name: row[name] for name in COLUMNS})
            texts = [
                f"{value:>11,.1f}" if type(value) is float else f"{value:>11}" for value in rows[-1].values()
            ]
            print("".join(texts) + f"{row['round ms'] / first:>11.2f}", flush=True)
    write_json(options.json, rows)


if __name__ == "__main__":
    main()
