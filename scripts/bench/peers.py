#!/usr/bin/env python3
"""Time of a round of FedAvg in mpifed, in pfl-research and in a bare loop:

    python scripts/bench/peers.py [--ranks 1 2] [--workloads ...] [--json FILE]

mpifed runs with its defaults. `pip install --no-deps -r scripts/bench/peers.txt` installs pfl-research at the
version that was compared; without it, mpifed is compared with the bare loop. All take turns in the same
processes, with one thread per process, and compute the same number of gradients of the same network on the
same data:

* ``bare``: one client after another in plain torch, parameters and gradients as views of flat vectors, and
  one raw ``MPI_Allreduce``.
* ``pfl``: pfl-research, ``FederatedAveraging`` and ``SimulatedBackend``, with data as torch tensors and its
  processes connected by torch.distributed (gloo).

The table shows milliseconds per round (CPU time of one process; wall time of several), medians, and the ratio
to mpifed in neighbouring turns, median and quartiles: above 1, mpifed is faster.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from launching import launch, processor, send, started, write_json

from mpifed.cli.output import quiet_broken_pipe

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


def bare(work: Work, made, data) -> Callable[[], None]:
    """Return a function that executes a round of a bare loop over this rank's clients."""
    import numpy as np
    import torch
    from fedavg import Bare, Workload
    from mpi4py import MPI

    world, loop = MPI.COMM_WORLD, Bare(made, Workload(made.problem, work.steps, work.batch))
    rng, cohort = np.random.default_rng(0), work.cohort or work.clients

    def round() -> None:
        loop.total.zero_()
        for client in rng.permutation(work.clients)[:cohort]:
            if client % world.size == world.rank:
                loop.train(*data[client])
        world.Allreduce(MPI.IN_PLACE, loop.total.numpy())
        torch.div(loop.total, cohort, out=loop.shared)

    return round


def pfl(work: Work, made, data) -> Callable[[], None]:
    """Return a function that executes a round of pfl-research."""
    import torch
    import torch.nn.functional as F
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Weighted
    from pfl.model.pytorch import PyTorchModel

    network = module(work)
    network.loss = lambda samples, labels: F.cross_entropy(network(samples), labels)
    network.metrics = lambda samples, labels: {"loss": Weighted(0.0, 1)}
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
    sampler = get_user_sampler("minimize_reuse", list(range(work.clients)))
    users = FederatedDataset(lambda client: Dataset(raw_data=list(data[client])), sampler)
    backend, algorithm = SimulatedBackend(users, None), FederatedAveraging()
    settings = NNAlgorithmParams(
        central_num_iterations=10**6, evaluation_frequency=10**6,
        train_cohort_size=work.cohort or work.clients, val_cohort_size=None,
    )  # fmt: skip
    training = NNTrainHyperParams(
        local_batch_size=work.batch, local_num_epochs=1, local_learning_rate=LR, local_num_steps=None
    )
    iteration = 0

    def round() -> None:
        nonlocal iteration
        iteration += 1  # iteration 0 evaluates
        (context,), _, _ = algorithm.get_next_central_contexts(model, iteration, settings, training, None)
        statistics, metrics = backend.gather_results(
            model=model, training_algorithm=algorithm, central_context=context
        )
        algorithm.process_aggregated_statistics_from_all_contexts(((context, statistics),), metrics, model)

    return round


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
    data = [tuple(columns) for columns in map(made.problem.client_data, range(work.clients))]
    rounds: dict[str, Callable[[], object]] = {"mpifed": made.step}
    for peer, (library, make) in PEERS.items():
        if importlib.util.find_spec(library):
            rounds[peer] = make(work, made, data)
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
        if world.size > 1:  # where pfl-research looks for its processes
            os.environ |= {
                "RANK": str(world.rank), "WORLD_SIZE": str(world.size), "LOCAL_RANK": str(world.rank),
                "LOCAL_WORLD_SIZE": str(world.size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29531",
            }  # fmt: skip
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
    with quiet_broken_pipe():
        main()
