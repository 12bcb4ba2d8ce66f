#!/usr/bin/env python3
"""Wall time of a round compared with a lower bound: python scripts/bench/floor.py [--ranks 1 2 4]
[--workloads ...] [--json FILE]

The lower bound, the *floor*, is the time of the necessary work: the gradient evaluations of the round in
plain torch (same loss, network, number of evaluations and minibatch gathers; parameters and gradients are
views of flat vectors; rows are sampled beforehand, and there is no update arithmetic), and one
``MPI_Allreduce`` with the size of the message. One job measures mpifed and the floor alternately, in short
blocks. Before, the mean gradient of the floor must agree with that of mpifed (``agreement.py``); with
``--groups``, the points after two rounds.

``ratio`` is the median of the ratios of neighbouring blocks. Other processes slow down both blocks of a pair,
which hardly changes their ratio, and the median ignores pairs of which only one block was slowed down. The
minimum of the ratios would select pairs with a slow floor. ``fastest`` is the ratio of the fastest blocks of
both sides. Waiting for slower ranks counts as communication (``in comm``).

With ``--device cuda``, both sides compute on GPUs, which several ranks may share. The message of the floor is
then copied through pinned host memory (one rank sends nothing), and a block ends when the GPU is idle.

``--groups`` compares looped with vectorised clients instead: one rank with 8 clients.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from pathlib import Path

from agreement import BFLOAT16, TOLERANCE, expect_equal, minibatches
from launching import launch, send, started, write_json

METHODS = {
    "AdaFGDA": dict(gamma=0.02, lam=0.02, alpha=0.5, beta=0.5, matrix={"name": "adam", "rho": 0.1}),
    "LocalSGDA": dict(eta_x=0.01, eta_y=0.01),
}
#: Problem, number of rounds, and rounds per block. A client of the saddle problem has one row of data, so its
#: batch is all data. It is not centred, because iterates near 0 become denormal numbers, which are slow.
WORKLOADS = {
    "saddle": (dict(name="Saddle", d=1000, centred=False), 2000, 20),
    "digits-mlp": (dict(name="DeepAUC", dataset="digits", model="mlp"), 300, 2),
    "mnist-lenet": (dict(name="DeepAUC", dataset="mnist", model="lenet5"), 40, 1),
}
#: Number of clients for ``--groups``.
CLIENTS = 8


class Floor:
    """A round in plain torch and MPI for the clients of this rank, at the current point of a simulation."""

    def __init__(self, simulation, batch_size: int):
        import torch
        from mpi4py import MPI

        from mpifed.core.algorithm import local_steps

        self.problem, algorithm = simulation.problem, simulation.config.algorithm
        self.samples, self.points = local_steps(algorithm), algorithm.calls_per_step
        self.clients = [
            tuple(
                tensor.to(simulation.device, simulation.dtype)
                for tensor in self.problem.client_data(int(client))
            )
            for client in simulation.placement.clients_of(simulation.comm.rank)
        ]
        self.calls_per_round = self.samples * self.points * len(self.clients)
        self.rows = [
            torch.randint(len(data[0]), (self.samples, batch_size), device=simulation.device)
            for data in self.clients
        ]
        x, y = (getattr(simulation.shared, block).clone() for block in "xy")
        self.evaluate = self._analytic(x, y) if self.problem.gradients else self._by_autograd(x, y)
        message = algorithm.phases[0].message.layout(self.problem.variables())
        self.buffer = torch.zeros(
            message.size + 1, dtype=simulation.dtype, device=simulation.device
        )  # and the control value
        self.reduce = self._reduction(MPI)

    def _reduction(self, MPI):
        """Return the Allreduce of the message: in place, or through pinned memory for a GPU."""
        on_cpu = self.buffer.device.type == "cpu"
        host = self.buffer if on_cpu else self.buffer.cpu().pin_memory()
        array = host.numpy()

        def through_host():
            if MPI.COMM_WORLD.size > 1:
                host.copy_(self.buffer)  # waits for the GPU
                MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array)
                self.buffer.copy_(host, non_blocking=True)

        return (lambda: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array)) if on_cpu else through_host

    def _analytic(self, x, y):
        """Return the gradients of x and y of the saddle problem as a function of a batch."""
        tau = self.problem.tau

        def evaluate(batch):
            t, b = batch
            return tau * x - t * y, b - y - t * x

        return evaluate

    def _by_autograd(self, x, y):
        """Return the gradients of x and y by autograd as a function of a batch.

        Parameters are views of one flat vector per block, and their gradients views of another.
        """
        import torch

        gradient, blocks, named = torch.zeros(len(x) + len(y), device=x.device), self.problem.variables(), []
        parts = gradient.split((len(x), len(y)))
        for block, flat, part in zip("xy", (x, y), parts):
            named.append(
                {name: view.detach().requires_grad_() for name, view in blocks.unflatten(block, flat).items()}
            )
            for leaf, view in zip(named[-1].values(), blocks.unflatten(block, part).values()):
                leaf.grad = view

        def evaluate(batch):
            gradient.zero_()
            self.problem.loss(*named, batch).backward()
            return parts

        return evaluate

    @staticmethod
    def batch(data, chosen):
        """Return a minibatch, or the only row of a client if no rows are chosen."""
        if len(chosen):
            return tuple([column.index_select(0, chosen) for column in data])
        return tuple([column[0] for column in data])

    def round(self) -> None:
        for data, rows in zip(self.clients, self.rows):
            for chosen in rows:
                batch = self.batch(data, chosen)
                for _ in range(self.points):
                    self.evaluate(batch)
        self.reduce()

    def mean_gradient(self, rows, members):
        """Return the mean gradient over the clients of all ranks, by the reduction of a round.

        Args:
            rows: rows of the minibatches of a client.
            members: numbers of the clients of this rank.
        """
        import torch

        self.buffer.zero_()
        for client, data in zip(members, self.clients):
            chosen = rows(int(client))[0].to(self.buffer.device)
            self.buffer[:-1] += torch.cat(self.evaluate(self.batch(data, chosen)))
        self.reduce()
        return self.buffer[:-1] / self.problem.clients


def expect_same_gradient(workload: str, clients: int, options) -> None:
    """Compare the floor's mean gradient with the change of the point in a round of one step of size 1."""
    import torch

    simulation, batch_size = simulate(workload, "LocalSGDA", clients, 1, options, q=1, eta_x=1.0, eta_y=1.0)
    floor, start = Floor(simulation, batch_size), simulation.point()
    found = floor.mean_gradient(
        minibatches(simulation, 1)[1], simulation.placement.clients_of(simulation.comm.rank)
    )
    simulation.step()
    change = simulation.point() - start
    descent = torch.cat([-change[: len(simulation.shared.x)], change[len(simulation.shared.x) :]])
    # A step of size 1 rounds the sum of the point and the gradient.
    scale = max(float(descent.abs().max()), float(start.abs().max()))
    tolerance = TOLERANCE if options.autocast == "none" else BFLOAT16
    expect_equal(f"floor of {workload}", found, descent, simulation.comm, scale, tolerance)
    simulation.rounds.transport.close()


def simulate(workload: str, method: str, clients: int, group: int | str, options, **settings):
    """Return a simulation after its first rounds, which are slower, and its batch size."""
    from mpifed.config.job import Config
    from mpifed.parallel.world import world

    batch_size = 0 if workload == "saddle" else options.batch
    config = Config.from_table(
        {
            "algorithm": {"name": method, "q": options.q, **METHODS[method], **settings},
            "problem": {"clients": clients, **WORKLOADS[workload][0]},
            "oracle": {"batch_size": batch_size},
            "run": {
                "device": options.device,
                "dtype": "float32",
                "autocast": options.autocast,
                "compile": options.compile,
                "group": group,
                "reduction": "fused",
            },
        }
    )
    return started(config, world()), batch_size


def paired(first, second, rounds: int, length: int, barrier) -> tuple[list[float], list[float]]:
    """Return the seconds per round of each block of both functions, which alternate and take turns in being
    first."""
    times = [], []
    for pair in range(1 + max(2, rounds // length)):
        for which in (0, 1) if pair % 2 else (1, 0):
            barrier()
            began = time.perf_counter()
            for _ in range(length):
                (first, second)[which]()
            barrier()
            times[which].append((time.perf_counter() - began) / length)
    return times[0][1:], times[1][1:]  # the first pair warms caches


def idle(device):
    """Return a barrier that also waits for the device of each rank."""
    import torch
    from mpi4py import MPI

    def barrier():
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        MPI.COMM_WORLD.Barrier()

    return barrier


def summary(first: list[float], second: list[float], names: tuple[str, str]) -> dict:
    """Return the milliseconds per round of both sides (medians) and their ratio."""
    low, middle, high = statistics.quantiles([a / b for a, b in zip(first, second)], n=4)
    return {
        f"{names[0]}_ms": 1e3 * statistics.median(first),
        f"{names[1]}_ms": 1e3 * statistics.median(second),
        "ratio": middle,
        "ratio_quartiles": [low, high],
        "fastest": min(first) / min(second),
    }


def against_floor(workload: str, method: str, options) -> dict:
    """Return a row that compares mpifed, with looped clients, with the floor, on all ranks."""
    from mpi4py import MPI

    world, (_, rounds, block) = MPI.COMM_WORLD, WORKLOADS[workload]
    expect_same_gradient(workload, options.clients * world.size, options)
    simulation, batch_size = simulate(workload, method, options.clients * world.size, 1, options)
    floor, costs, before = Floor(simulation, batch_size), simulation.rounds.costs, simulation.round
    calls, seconds, communication = costs.oracle_calls, costs.seconds, costs.communication_seconds
    package, bare = paired(
        simulation.step, floor.round, options.rounds or rounds, block, idle(simulation.device)
    )
    made, due = costs.oracle_calls - calls, floor.calls_per_round * (simulation.round - before)
    if made != due:
        raise RuntimeError(
            f"expected equal numbers of gradients, got {made} in the package and {due} in the floor"
        )
    share = (costs.communication_seconds - communication) / (costs.seconds - seconds)
    simulation.rounds.transport.close()
    return summary(package, bare, ("package", "floor")) | {
        "clients": simulation.problem.clients,
        "bytes": floor.buffer.nbytes,
        "communication_share": share,
        "transport": simulation.rounds.transport.name,
    }


def groups(workload: str, method: str, options) -> dict:
    """Return a row that compares looped with vectorised clients, on one rank."""
    loop, every = (simulate(workload, method, CLIENTS, group, options)[0] for group in (1, "all"))
    expect_equal("vectorised clients", every.point(), loop.point(), loop.comm)
    rounds = (options.rounds or WORKLOADS[workload][1]) // 4
    times = paired(loop.step, every.step, rounds, 1, idle(loop.device))
    return summary(*times, ("loop", "all")) | {"clients": CLIENTS}


def work(options) -> None:
    """Measure all rows for this number of ranks; rank 0 prints each as a line of JSON."""
    from mpi4py import MPI

    from mpifed.base.errors import ConfigError
    from mpifed.parallel.comm import CollectiveError

    measure = groups if options.groups else against_floor
    for workload in options.workloads:
        for method in options.methods:
            row = {"workload": workload, "method": method, "ranks": MPI.COMM_WORLD.size}
            row |= {"autocast": options.autocast, "compile": options.compile}
            try:
                row |= measure(workload, method, options)
            except (CollectiveError, ConfigError) as error:  # on all ranks: no data, or nothing to compile
                row["skipped"] = str(error).splitlines()[0]
            if MPI.COMM_WORLD.rank == 0:
                send(row)


def show(row: dict) -> str:
    """Return a line of the table."""
    head = f"{row['workload']:<12} {row['method']:<10} {row['ranks']:>5}"
    if "skipped" in row:
        return f"{head}   skipped: {row['skipped']}"
    first, second = (value for key, value in row.items() if key.endswith("_ms"))
    low, high = row["ratio_quartiles"]
    share = f"{row['communication_share']:>8.1%}" if "communication_share" in row else ""
    ratio = f"{row['ratio']:>7.3f}  {low:.3f}-{high:.3f} {row['fastest']:>8.3f}"
    return f"{head} {first:>11.3f} {second:>11.3f} {ratio}{share}"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--rounds", type=int, help="rounds of each side; default: depends on the workload")
    parser.add_argument("--clients", type=int, default=1, help="clients per rank")
    parser.add_argument("--batch", type=int, default=32, help="batch size")
    parser.add_argument("--q", type=int, default=12, help="local steps per round")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="device of both sides")
    for name, ways in (("autocast", ("bfloat16",)), ("compile", ("default", "reduce-overhead"))):
        parser.add_argument(
            f"--{name}", choices=("none", *ways), default="none", help=f"run.{name} of mpifed"
        )
    parser.add_argument(
        "--groups",
        action="store_true",
        help=f"compare looped with vectorised clients: {CLIENTS} clients on one rank",
    )
    parser.add_argument("--json", type=Path, help="output file of the rows, the settings and the machine")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parse()
    if options.worker:
        return work(options)
    sides = ("loop ms", "all ms") if options.groups else ("package ms", "floor ms")
    print(
        f"{'workload':<12} {'method':<10} {'ranks':>5} {sides[0]:>11} {sides[1]:>11} "
        f"{'ratio':>7}  {'quartiles':<11} "
        f"{'fastest':>8}{'' if options.groups else ' in comm'}"
    )
    rows = []
    for ranks in [1] if options.groups else options.ranks:
        for row in launch(ranks, __file__, [*sys.argv[1:], "--worker"]):
            rows.append(row)
            print(show(row), flush=True)
    settings = {key: value for key, value in vars(options).items() if key not in ("json", "worker", "ranks")}
    machine = {
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    write_json(options.json, {"settings": settings, "machine": machine, "rows": rows})


if __name__ == "__main__":
    main()
