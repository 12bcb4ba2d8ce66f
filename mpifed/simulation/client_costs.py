"""What a client costs, measured: the time of one evaluation of the oracle on one of its samples."""

from __future__ import annotations

import gc
import time

import numpy as np
import torch

from mpifed.config.sections import Oracle
from mpifed.core.errors import blaming
from mpifed.core.oracle import ORACLES
from mpifed.core.problem import Problem
from mpifed.core.problem_finite import EVALUATIONS
from mpifed.core.sampling import Sampler
from mpifed.core.streams import generator
from mpifed.parallel.comm import SerialComm, together
from mpifed.parallel.placement import Placement

__all__ = ["client_costs"]

#: Timed evaluations of a client.
REPEATS = 10


@torch.no_grad()
def client_costs(
    problem: Problem, comm: SerialComm, seed: int, settings: Oracle, dtype, device
) -> np.ndarray:
    """Nanoseconds that each client takes to draw a sample and evaluate the oracle there at the starting
    point, ``[N]``.

    Every rank measures an equal number of clients, stepped one by one as in groups of one, and
    keeps no data of them. Comparable where the ranks are equally fast. Collective; the same result on all
    ranks.

    Args:
        problem: prepared, of the method's family.
        settings: the section [oracle].

    Raises:
        CollectiveError: on all ranks together: some client cannot be evaluated.
    """
    placement = Placement(problem.clients, comm.size)
    mine = placement.of(comm.rank)
    with together(comm, ValueError, OSError), blaming(type(problem).__name__):
        width = ORACLES[problem.family].noise_width(problem)
        sampler = Sampler(problem, mine, seed, settings.batch_size, settings.noise, width, dtype, device)
        least = _measure(
            ORACLES[problem.family](problem, sampler, batched=False), _start(problem, seed, dtype, device)
        )
        del sampler
        gc.collect()  # an oracle may refer to itself, and it holds the clients' data
    costs = np.empty(problem.clients, dtype=np.int64)
    comm.allgatherv(least, costs, placement.counts)
    return costs


def _start(problem: Problem, seed: int, dtype, device) -> list[torch.Tensor]:
    """The starting point, one flat vector a block."""
    point = problem.initial(generator(seed, "initial"))
    sizes = problem.variables().sizes
    return [
        torch.as_tensor(point.get(block, torch.zeros(sizes[block]))).reshape(-1).to(device, dtype)
        for block in sizes
    ]


def _measure(oracle, point: list[torch.Tensor]) -> np.ndarray:
    """The least time of a sample and an evaluation for each client of ``oracle``'s sampler, positive.

    Other work on the machine must not pass for a client's cost: on the CPU the clock runs only while this
    thread does, the clients take turns, and the least time counts.
    """
    sampler, evaluate, gpu = (
        oracle.sampler,
        EVALUATIONS[oracle.problem.family],
        oracle.sampler.device.type == "cuda",
    )
    clock = time.perf_counter_ns if gpu else time.thread_time_ns
    times = np.zeros((REPEATS, len(sampler.clients)), dtype=np.int64)
    for turn in times:
        for position in range(len(turn)):
            began = clock()
            sampler.begin(0)
            sampler.turn_to(np.array([position]))
            oracle.at(slice(0, 1))
            evaluate(oracle, *point, oracle.sample())
            if gpu:
                torch.cuda.synchronize(sampler.device)
            turn[position] = clock() - began
    return times.min(axis=0).clip(min=1)
