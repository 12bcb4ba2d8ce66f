#!/usr/bin/env python3
"""Time of a round of FedAvg in mpifed, in pfl-research and in a bare loop:

    python scripts/bench/peers.py [--ranks 1 2] [--workloads ...] [--json FILE]

mpifed runs with its defaults. `pip install --no-deps -r scripts/peers/requirements/pfl.txt` installs
pfl-research at the version that was compared; without it, mpifed is compared with the bare loop. All take
turns in the same processes, with one thread per process, and compute the same number of gradients of the same
network on the same data:

* ``bare``: one client after another in plain torch, parameters and gradients as views of flat vectors, and
  one raw ``MPI_Allreduce``. Every process has all data, so the cohort is divided equally.
* ``pfl``: pfl-research, ``FederatedAveraging`` and ``SimulatedBackend``, without evaluations, with data as
  torch tensors and its processes connected by torch.distributed (gloo). A minibatch is a slice of
  consecutive rows, whereas mpifed and ``bare`` sample and gather rows. Every process has all data.

Before times are measured, one round with the same cohort and minibatches must have the same result in all of
them, and each process must evaluate a part of the gradients (``agreement.py``).

The table shows milliseconds per round (CPU time of one process; wall time of several), medians, and the ratio
to mpifed in neighbouring turns, median and quartiles: above 1, mpifed is faster.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from agreement import expect_same_round
from launching import launch, processor, send, started, write_json

LR = 0.01


@dataclass(frozen=True)
class Work:
    """A network (layers of an MLP, "lenet5", or () for logistic regression) and its clients.

    Attributes:
        shape: shape of an input.
        steps, batch: local steps per round, and rows of a minibatch; a client has ``steps * batch`` rows.
        cohort: clients per round.
        rounds: rounds of a turn.
    """

    network: tuple[int, ...] | str
    shape: tuple[int, ...]
    clients: int
    steps: int
    batch: int
    cohort: int | None = None
    rounds: int = 1


WORKLOADS = {
    "mlp-784-200-200-10": Work((200, 200), (784,), 64, 10, 50),
    "mlp-784-200-200-10, 16 of 64": Work((200, 200), (784,), 64, 10, 50, cohort=16, rounds=2),
    "lenet5": Work("lenet5", (1, 28, 28), 16, 10, 32),
    "logistic-60-10": Work((), (60,), 1000, 5, 10),
    # 10 rows of 60 numbers per client: 240 MB for each simulator.
    "logistic-60-10, 10^3 of 10^5": Work((), (60,), 100_000, 5, 2, cohort=1000),
    "mlp-60-64-10, 10^3 of 10^5": Work((64,), (60,), 100_000, 5, 2, cohort=1000),
}


def simulation(work: Work, comm):
    """Return a simulation by mpifed with its defaults, after the first rounds."""
    from fedavg import Images

    from mpifed import Config
    from mpifed.algorithms import FedAvg
    from mpifed.models import MLP, LeNet5, Linear

    model = LeNet5() if work.network == "lenet5" else MLP(hidden=work.network) if work.network else Linear()
    config = Config(
        algorithm=FedAvg(K=work.steps, eta=LR),
        problem=Images(model=model, shape=work.shape, rows=work.steps * work.batch, clients=work.clients),
        oracle={"batch_size": work.batch},
        participation={} if work.cohort is None else {"cohort": work.cohort},
        rounds=10**6,
        run={"device": "cpu", "dtype": "float32"},
    )
    return started(config, comm)


def module(work: Work):
    """Return the same network as a ``torch.nn.Module``."""
    from torch import nn

    if work.network == "lenet5":
        convolutions = [nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)]
        layers = [each for one in convolutions for each in (one, nn.ReLU(), nn.MaxPool2d(2))]
        dense = nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)
        return nn.Sequential(*layers, nn.Flatten(), *dense)
    widths = [work.shape[0], *work.network, 10]
    layers = [each for a, b in zip(widths, widths[1:]) for each in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def bare(work: Work, made):
    """Return the bare loop on several processes."""
    import numpy as np
    from fedavg import Bare, Workload
    from mpi4py import MPI

    world, rng, cohort = MPI.COMM_WORLD, np.random.default_rng(0), work.cohort or work.clients

    class Loop(Bare):
        def round(self, members=None, rows=None) -> None:
            members = rng.permutation(work.clients)[:cohort] if members is None else members
            self.total.zero_()
            for client in members[world.rank :: world.size]:
                self.train(client, rows)
            world.Allreduce(MPI.IN_PLACE, self.total.numpy())
            self.shared = self.total / cohort

    return Loop(made, Workload(made.problem, work.steps, work.batch))


def pfl(work: Work, made):
    """Return pfl-research, whose processes are connected as if torchrun had started them."""
    import torch
    import torch.nn.functional as F
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Weighted
    from pfl.model.pytorch import PyTorchModel

    if made.comm.size > 1 and not torch.distributed.is_initialized():
        sys.exit("pfl: expected processes that are connected by torch.distributed: no times are measured")
    data = list(map(made.problem.client_data, range(work.clients)))
    network = module(work)
    network.loss = lambda samples, labels: F.cross_entropy(network(samples), labels)
    network.metrics = lambda samples, labels: {"loss": Weighted(0.0, 1)}
    settings = NNAlgorithmParams(
        central_num_iterations=10**6, evaluation_frequency=10**6,
        train_cohort_size=work.cohort or work.clients, val_cohort_size=None,
    )  # fmt: skip
    training = NNTrainHyperParams(
        local_batch_size=work.batch, local_num_epochs=1, local_learning_rate=LR, local_num_steps=None
    )

    class Loop:
        """Minibatches are consecutive rows: given rows are gathered when the data of a client are loaded."""

        def __init__(self):
            self.problem = network
            self.model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
            self.algorithm, self.iteration = FederatedAveraging(), 0
            self.users, self.rows = itertools.cycle(range(work.clients)), None
            users = FederatedDataset(self.client, lambda: next(self.users))
            self.backend = SimulatedBackend(users, None)

        def client(self, client: int) -> Dataset:
            columns = data[client]
            if self.rows is not None:
                columns = [column[self.rows(client).flatten()] for column in columns]
            return Dataset(raw_data=list(columns))

        def load(self, point: torch.Tensor) -> None:
            torch.nn.utils.vector_to_parameters(point.clone(), network.parameters())

        def point(self) -> torch.Tensor:
            return torch.nn.utils.parameters_to_vector(network.parameters()).detach()

        def round(self, members=None, rows=None) -> None:
            if members is not None:
                self.users = itertools.chain(members, self.users)
            self.rows = rows
            self.iteration += 1  # iteration 0 evaluates
            (context,), _, _ = self.algorithm.get_next_central_contexts(
                self.model, self.iteration, settings, training, None
            )
            statistics, metrics = self.backend.gather_results(
                model=self.model, training_algorithm=self.algorithm, central_context=context
            )
            self.algorithm.process_aggregated_statistics_from_all_contexts(
                ((context, statistics),), metrics, self.model
            )

    return Loop()


def torchrun_variables(world) -> dict[str, str]:
    """Return the environment variables that torchrun sets. Without the last, pfl-research starts no
    torch.distributed, and every process trains the whole cohort."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = world.bcast(free.getsockname()[1])
    rank, size = str(world.rank), str(world.size)
    return {
        "RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size,
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "bench",
    }  # fmt: skip


#: Name → the module that it requires, and the function above.
PEERS = {"bare": ("torch", bare), "pfl": ("pfl", pfl)}


def measure(name: str, seconds: float) -> list[dict]:
    """A row for each simulator, on all ranks."""
    import torch
    from mpi4py import MPI

    from mpifed.parallel.comm import MpiComm, SerialComm
    from mpifed.parallel.devices import keep_freed_memory

    torch.set_num_threads(1)
    keep_freed_memory()
    work, world = WORKLOADS[name], MPI.COMM_WORLD
    clock = time.process_time if world.size == 1 else time.perf_counter
    made = simulation(work, MpiComm(world) if world.size > 1 else SerialComm())
    rounds: dict[str, Callable[[], object]] = {"mpifed": made.step}
    for peer, (library, make) in PEERS.items():
        if importlib.util.find_spec(library):
            rival = make(work, made)
            expect_same_round(peer, rival, made, work.steps)
            rounds[peer] = rival.round
    times: dict[str, list[float]] = {peer: [] for peer in rounds}
    order, until, more = list(rounds), time.monotonic() + seconds, True
    while more or len(times["mpifed"]) < 6:
        for peer in order:
            world.Barrier()
            began = clock()
            for _ in range(work.rounds):
                rounds[peer]()
            world.Barrier()
            times[peer].append((clock() - began) / work.rounds)
        order.reverse()
        more = world.allreduce(time.monotonic() < until, MPI.LAND)
    own, rows = times["mpifed"][1:], []  # the first turn warms caches
    for peer, theirs in times.items():
        low, middle, high = statistics.quantiles([b / a for a, b in zip(own, theirs[1:])], n=4)
        rows.append({
            "workload": name, "ranks": world.size, "simulator": peer,
            "clients at a time": made.rounds.choice.group,
            "ms": 1e3 * statistics.median(theirs[1:]), "ratio": middle, "quartiles": [low, high],
        })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--seconds", type=float, default=40.0, help="per workload and number of ranks")
    parser.add_argument("--json", type=Path, help="output file of the rows and the machine")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        from mpi4py import MPI

        (name,), world = options.workloads, MPI.COMM_WORLD
        if world.size > 1:
            os.environ |= torchrun_variables(world)
        rows = measure(name, options.seconds)
        if world.rank == 0:
            for row in rows:
                send(row)
        return
    print(f"{processor()}, {os.cpu_count()} cores; ms per round, and ratio to mpifed (quartiles)")
    rows = []
    for ranks in options.ranks:
        for name in options.workloads:
            arguments = ["--child", "--workloads", name, "--seconds", str(options.seconds)]
            for row in launch(ranks, __file__, arguments):
                low, high = row["quartiles"]
                print(
                    f"{row['workload']:<29} {row['ranks']} ranks  {row['simulator']:<7} {row['ms']:>9.1f} "
                    f"{row['ratio']:>6.2f} ({low:.2f}-{high:.2f})",
                    flush=True,
                )
                rows.append(row)
    machine = {"processor": processor(), "cores": os.cpu_count(), "python": sys.version.split()[0]}
    write_json(options.json, {"machine": machine, "rows": rows})


if __name__ == "__main__":
    main()
