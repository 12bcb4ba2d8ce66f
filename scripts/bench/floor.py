#!/usr/bin/env python3
"""Wall time of a round against its floor: python scripts/bench/floor.py [--ranks 1 2 4] [--workloads ...]
[--json FILE]

The floor is what no simulator can save: the round's gradient evaluations in bare torch (the same loss and
network, the same number of evaluations and minibatch gathers, parameters and gradients as views of flat
vectors; rows drawn beforehand, no update arithmetic) and one raw ``MPI_Allreduce`` of the message's bytes.
One job runs both, in short blocks by turns.

``ratio`` is the median of the ratios of neighbouring blocks. Other work on the machine slows neighbours
alike, which leaves their ratio alone, and the median drops the pairs of which one block was hit. The minimum
of the ratios would choose the pairs whose floor was hit. ``fastest`` is the ratio of the two fastest blocks,
which trusts the quietest moment of each side. Waiting for slower ranks counts as communication (``in comm``).

With ``--device cuda`` both sides compute on the GPUs, which ranks share if they must. The floor's message
then goes through pinned host memory (alone, a rank sends none), and a block ends when the GPU is idle.

``--groups`` compares sizes of groups instead: one rank with 8 clients, blocks of one after another and of all
together by turns.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path

from launching import launch, tell

from mpifed.cli.output import quiet_broken_pipe

METHODS = {
    "AdaFGDA": dict(gamma=0.02, lam=0.02, alpha=0.5, beta=0.5, matrix={"name": "adam", "rho": 0.1}),
    "LocalSGDA": dict(eta_x=0.01, eta_y=0.01),
}
#: Problem, rounds, and rounds of a block. A client of the saddle problem has one row of data, so its sample
#: is all of it; uncentred, because iterates that tend to 0 would end in denormal numbers, which are slow.
WORKLOADS = {
    "saddle": (dict(name="Saddle", d=1000, centred=False), 2000, 20),
    "digits-mlp": (dict(name="DeepAUC", dataset="digits", model="mlp"), 300, 2),
    "mnist-lenet": (dict(name="DeepAUC", dataset="mnist", model="lenet5"), 40, 1),
}
#: Clients on the one rank on which sizes of groups are compared.
CLIENTS = 8


class Floor:
    """A round of bare torch and MPI for the clients of this rank."""

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
        self.evaluate = self._by_hand(x, y) if self.problem.gradients else self._by_autograd(x, y)
        message = algorithm.phases[0].message.layout(self.problem.variables())
        self.buffer = torch.zeros(
            message.size + 1, dtype=simulation.dtype, device=simulation.device
        )  # and the control value
        self.reduce = self._reduction(MPI)

    def _reduction(self, MPI):
        """The message's Allreduce where it lies, or through pinned memory."""
        on_cpu = self.buffer.device.type == "cpu"
        host = self.buffer if on_cpu else self.buffer.cpu().pin_memory()
        array = host.numpy()

        def through_host():
            if MPI.COMM_WORLD.size > 1:
                host.copy_(self.buffer)  # waits for the GPU
                MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array)
                self.buffer.copy_(host, non_blocking=True)

        return (lambda: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array)) if on_cpu else through_host

    def _by_hand(self, x, y):
        """The saddle problem's two formulas."""
        tau = self.problem.tau

        def evaluate(batch):
            t, b = batch
            return tau * x - t * y, b - y - t * x

        return evaluate

    def _by_autograd(self, x, y):
        """Leaves that are views of one flat vector a block, whose gradients are views of another."""
        import torch

        gradient, blocks, named = torch.zeros(len(x) + len(y), device=x.device), self.problem.variables(), []
        for block, flat, part in zip("xy", (x, y), gradient.split((len(x), len(y)))):
            named.append(
                {name: view.detach().requires_grad_() for name, view in blocks.unflatten(block, flat).items()}
            )
            for leaf, view in zip(named[-1].values(), blocks.unflatten(block, part).values()):
                leaf.grad = view

        def evaluate(batch):
            gradient.zero_()
            self.problem.loss(*named, batch).backward()

        return evaluate

    def round(self) -> None:
        for data, rows in zip(self.clients, self.rows):
            for chosen in rows:
                if len(chosen):
                    batch = tuple([column.index_select(0, chosen) for column in data])
                else:
                    batch = tuple([column[0] for column in data])
                for _ in range(self.points):
                    self.evaluate(batch)
        self.reduce()


def simulate(workload: str, method: str, clients: int, group: int | str, options):
    """A simulation past its first round, which differs from the others, and the size of its minibatches."""
    from mpifed.config.job import Config
    from mpifed.parallel.world import world
    from mpifed.simulation.simulation import Simulation

    batch_size = 0 if workload == "saddle" else options.batch
    config = Config.from_table(
        {
            "algorithm": {"name": method, "q": options.q, **METHODS[method]},
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
    simulation = Simulation.from_settings(config, world())
    simulation.start()
    for _ in range(2):
        simulation.step()
    return simulation, batch_size


def paired(first, second, rounds: int, length: int, barrier) -> tuple[list[float], list[float]]:
    """Seconds a round of each block of ``first`` and of ``second``, which take turns at going first in a
    pair."""
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
    """A barrier of all ranks that have nothing left to do on their devices."""
    import torch
    from mpi4py import MPI

    def barrier():
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        MPI.COMM_WORLD.Barrier()

    return barrier


def summary(first: list[float], second: list[float], names: tuple[str, str]) -> dict:
    """Milliseconds a round of both sides (medians) and their ratio."""
    low, middle, high = statistics.quantiles([a / b for a, b in zip(first, second)], n=4)
    return {
        f"{names[0]}_ms": 1e3 * statistics.median(first),
        f"{names[1]}_ms": 1e3 * statistics.median(second),
        "ratio": middle,
        "ratio_quartiles": [low, high],
        "fastest": min(first) / min(second),
    }


def against_floor(workload: str, method: str, options) -> dict:
    """A row: the package with one client at a time against the floor, on all ranks."""
    from mpi4py import MPI

    world, (_, rounds, block) = MPI.COMM_WORLD, WORKLOADS[workload]
    simulation, batch_size = simulate(workload, method, options.clients * world.size, 1, options)
    floor, costs, before = Floor(simulation, batch_size), simulation.rounds.costs, simulation.round
    calls, seconds, communication = costs.oracle_calls, costs.seconds, costs.communication_seconds
    package, bare = paired(
        simulation.step, floor.round, options.rounds or rounds, block, idle(simulation.device)
    )
    made, due = costs.oracle_calls - calls, floor.calls_per_round * (simulation.round - before)
    if made != due:
        raise RuntimeError(
            f"the package evaluated {made} gradients, the floor {due}: they must do the same work"
        )
    share = (costs.communication_seconds - communication) / (costs.seconds - seconds)
    simulation.transport.close()
    return summary(package, bare, ("package", "floor")) | {
        "clients": simulation.problem.clients,
        "bytes": floor.buffer.nbytes,
        "communication_share": share,
        "transport": simulation.transport.name,
    }


def groups(workload: str, method: str, options) -> dict:
    """A row: one client after another against all together, on one rank."""
    loop, every = (simulate(workload, method, CLIENTS, group, options)[0] for group in (1, "all"))
    rounds = (options.rounds or WORKLOADS[workload][1]) // 4
    times = paired(loop.step, every.step, rounds, 1, idle(loop.device))
    return summary(*times, ("loop", "all")) | {"clients": CLIENTS}


def work(options) -> None:
    """All rows of one number of ranks; rank 0 prints each as a line of JSON."""
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
                tell(row)


def show(row: dict) -> str:
    """A line of the table."""
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
    parser.add_argument(
        "--rounds", type=int, help="rounds of each side; by default the workload's own number"
    )
    parser.add_argument("--clients", type=int, default=1, help="clients a rank")
    parser.add_argument("--batch", type=int, default=32, help="rows of a minibatch")
    parser.add_argument("--q", type=int, default=12, help="local steps a round")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where both sides compute")
    for name, ways in (("autocast", ("bfloat16",)), ("compile", ("default", "reduce-overhead"))):
        parser.add_argument(
            f"--{name}", choices=("none", *ways), default="none", help=f"run.{name} of the package's side"
        )
    parser.add_argument(
        "--groups",
        action="store_true",
        help=f"one after another against all together: {CLIENTS} clients on one rank",
    )
    parser.add_argument("--json", type=Path, help="file for the rows, the settings and the machine")
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
    if options.json:
        settings = {
            key: value for key, value in vars(options).items() if key not in ("json", "worker", "ranks")
        }
        machine = {
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "python": platform.python_version(),
        }
        options.json.write_text(
            json.dumps({"settings": settings, "machine": machine, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    with quiet_broken_pipe():
        main()
