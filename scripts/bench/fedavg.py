#!/usr/bin/env python3
"""CPU time of a round relative to a bare loop: python scripts/bench/fedavg.py [--workloads ...]
[--groups ...] [--run KEY=VALUE ...] [--json FILE]

FedAvg, and Local-SGDA on the saddle, in one process with one thread. The bare loop is a loop over clients in
plain torch: parameters and gradients are views of flat vectors, ``backward`` adds to the gradients, the
update is ``flat.sub_(gradient, alpha=lr)``, and all rows of a client in a round are sampled at once. It is
compared with mpifed with ``run.group = 1``, which also loops over clients, and with the default ``auto``, or
with the values of ``--groups``. ``--run`` changes other settings of the section ``run``. Before times are
measured, one round of each must have the same result (``agreement.py``).

All of them take turns, so other processes slow down neighbouring blocks equally. ``ratio`` is the median of
the ratios of neighbouring blocks.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import floor
import torch
import torch.nn.functional as F
from agreement import Rows, expect_same_round
from launching import processor, started, write_json

from mpifed import Blocks, Config, Minimisation
from mpifed.algorithms import FedAvg, LocalSGDA
from mpifed.config.tables import parse_value
from mpifed.core.streams import generator
from mpifed.models import MLP, LeNet5, Linear
from mpifed.parallel.comm import SerialComm
from mpifed.parallel.devices import keep_freed_memory
from mpifed.problems import Saddle
from mpifed.simulation.simulation import Simulation

CLASSES = 10
GROUPS = (1, "auto")
LR = 0.01


@dataclass
class Images(Minimisation):
    """Softmax cross entropy of a network on random images and labels."""

    model: object
    shape: tuple[int, ...]
    rows: int
    clients: int

    def variables(self) -> Blocks:
        return Blocks(x=self.model.shapes(self.shape, CLASSES))

    def initial(self, rng) -> dict[str, torch.Tensor]:
        start = self.model.initial(self.variables()["x"], rng)
        return {"x": torch.cat([tensor.flatten() for tensor in start.values()])}

    def client_data(self, client: int) -> tuple[torch.Tensor, ...]:
        rng = generator(0, "images", client)
        samples = rng.standard_normal((self.rows, *self.shape), dtype="float32")
        return torch.from_numpy(samples), torch.from_numpy(rng.integers(CLASSES, size=self.rows))

    def loss(self, x, batch) -> torch.Tensor:
        return F.cross_entropy(self.model(x, batch[0]), batch[1])


@dataclass(frozen=True)
class Workload:
    """A problem, its local steps, rows of a minibatch, rounds of a block, and values of ``run.group``."""

    problem: object
    steps: int
    batch: int
    rounds: int = 1
    groups: tuple[int | str, ...] = GROUPS


def images(model, shape: tuple[int, ...], clients: int, rows: int = 200) -> Images:
    return Images(model=model, shape=shape, rows=rows, clients=clients)


WORKLOADS = {
    "mlp-784-200-200-10": Workload(images(MLP(hidden=(200, 200)), (784,), 64), 5, 50),
    "mlp-64-32-32-10": Workload(images(MLP(hidden=(32, 32)), (64,), 64), 5, 32),
    "logistic-60-10": Workload(images(Linear(), (60,), 1000, 50), 5, 10),
    # The largest models and fewest clients that are vectorised by default.
    "mlp-784-40-10": Workload(images(MLP(hidden=(40,)), (784,), 32), 5, 32),
    "logistic-60-10-few": Workload(images(Linear(), (60,), 32, 50), 5, 10, 10),
    "saddle-8000-few": Workload(Saddle(d=8000, clients=8, centred=False), 12, 0, 4),
    "one-digits-mlp": Workload(images(MLP(), (1, 8, 8), 1), 12, 32, 10, (1,)),
    "one-mnist-lenet5": Workload(images(LeNet5(), (1, 28, 28), 1), 12, 32, 2, (1,)),
    "one-saddle": Workload(Saddle(d=1000, clients=1, centred=False), 12, 0, 50, (1,)),
    "saddle": Workload(Saddle(d=1000, clients=64, centred=False), 12, 0, 2),
}


def simulation(workload: Workload, run: dict) -> Simulation:
    """Return a simulation after its first rounds."""
    saddle = isinstance(workload.problem, Saddle)
    config = Config(
        algorithm=LocalSGDA(q=workload.steps, eta_x=LR, eta_y=LR)
        if saddle
        else FedAvg(K=workload.steps, eta=LR),
        problem=workload.problem,
        oracle={"batch_size": workload.batch},
        rounds=1000,
        run={"device": "cpu", "dtype": "float32", "reduction": "fused"} | run,
    )
    return started(config, SerialComm())


class Bare:
    """The same rounds in bare torch, from the same starting point."""

    def __init__(self, like: Simulation, workload: Workload):
        self.problem, self.steps, self.batch = like.problem, workload.steps, workload.batch
        self.data = [
            tuple(column.to(like.dtype) if column.is_floating_point() else column for column in columns)
            for columns in map(like.problem.client_data, range(like.problem.clients))
        ]
        self.shared, self.flat = like.point(), like.point()
        self.gradient, self.total = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        if not like.problem.gradients:
            self.leaves = {
                name: view.requires_grad_()
                for name, view in like.blocks.unflatten("x", self.flat.detach()).items()
            }
            for leaf, view in zip(self.leaves.values(), like.blocks.unflatten("x", self.gradient).values()):
                leaf.grad = view

    def load(self, point: torch.Tensor) -> None:
        """Start the next round at ``point``."""
        self.shared = point

    def point(self) -> torch.Tensor:
        return self.shared

    def round(self, members: Sequence[int] | None = None, rows: Rows | None = None) -> None:
        """Execute a round.

        Args:
            members: the cohort; default: all clients.
            rows: rows of the minibatches of a client; default: sampled.
        """
        self.total.zero_()
        members = range(len(self.data)) if members is None else members
        for client in members:
            self.train(client, rows)
        self.shared = self.total / len(members)

    def train(self, client: int, rows: Rows | None = None) -> None:
        """Take the local steps of a client and add its point to the total."""
        samples, labels = self.data[client]
        batches = torch.randint(len(labels), (self.steps, self.batch)) if rows is None else rows(client)
        with torch.no_grad():
            self.flat.copy_(self.shared)
        for chosen in batches:
            self.gradient.zero_()
            batch = samples.index_select(0, chosen), labels.index_select(0, chosen)
            self.problem.loss(self.leaves, batch).backward()
            with torch.no_grad():
                self.flat.sub_(self.gradient, alpha=LR)
        with torch.no_grad():
            self.total.add_(self.flat)


class BareSaddle(Bare):
    """The same with the gradients of the saddle problem, whose clients have one row each."""

    @torch.no_grad()
    def round(self, members: Sequence[int] | None = None, rows: Rows | None = None) -> None:
        d, tau = self.problem.d, self.problem.tau
        self.total.zero_()
        x, y = self.flat.split(d)
        for columns in self.data:
            t, b = (column[0] for column in columns)
            self.flat.copy_(self.shared)
            for _ in range(self.steps):
                gx, gy = tau * x - t * y, b - y - t * x
                x.sub_(gx, alpha=LR)
                y.add_(gy, alpha=LR)
            self.total.add_(self.flat)
        self.shared = self.total / len(self.data)


def measure(workload: Workload, groups: Sequence[int | str], run: dict, seconds: float) -> list[dict]:
    """Return a row for each value of ``run.group``, measured for about ``seconds`` seconds."""
    made = {group: simulation(workload, run | {"group": group}) for group in groups}
    like = made[groups[0]]
    loop = (BareSaddle if like.problem.gradients else Bare)(like, workload)
    for group, one in made.items():
        expect_same_round(f"run.group = {group}", loop, one, workload.steps)
    rounds = {"bare": loop.round} | {group: one.step for group, one in made.items()}
    times: dict[int | str, list[float]] = {name: [] for name in rounds}
    order, until = list(rounds), time.monotonic() + seconds
    while time.monotonic() < until or len(times["bare"]) < 6:
        for name in order:
            began = time.process_time()
            for _ in range(workload.rounds):
                rounds[name]()
            times[name].append((time.process_time() - began) / workload.rounds)
        order.reverse()
    bare = times.pop("bare")[1:]  # the first block warms caches
    return [
        {"group": group, "stepped": made[group].rounds.choice.group}
        | floor.summary(own[1:], bare, ("package", "bare"))
        for group, own in times.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--groups", nargs="+", type=parse_value, help="values of run.group (default: 1 auto)")
    parser.add_argument(
        "--run",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="other settings of [run], such as compile=default",
    )
    parser.add_argument(
        "--seconds", type=float, default=25.0, help="duration of the measurement per workload"
    )
    parser.add_argument("--json", type=Path, help="output file of the rows and the machine")
    options = parser.parse_args()
    run = {key: parse_value(value) for key, value in (one.split("=", 1) for one in options.run)}
    torch.set_num_threads(1)
    keep_freed_memory()
    rows = []
    heads = f"{'group':<5} {'stepped':>7} {'package ms':>11} {'bare ms':>9} {'ratio':>7}"
    print(f"{processor()}, {os.cpu_count()} cores\n{'workload':<20} {heads}  quartiles")
    for name in options.workloads:
        workload = WORKLOADS[name]
        for row in measure(workload, options.groups or workload.groups, run, options.seconds):
            low, high = row["ratio_quartiles"]
            print(
                f"{name:<20} {row['group']:<5} {row['stepped']:>7} {row['package_ms']:>11.3f} "
                f"{row['bare_ms']:>9.3f} "
                f"{row['ratio']:>7.3f}  {low:.3f}-{high:.3f}",
                flush=True,
            )
            rows.append({"workload": name, **row})
    machine = {"processor": processor(), "cores": os.cpu_count(), "torch": torch.__version__}
    write_json(options.json, {"machine": machine, "rows": rows})


if __name__ == "__main__":
    main()
