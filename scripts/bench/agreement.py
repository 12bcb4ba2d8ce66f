"""Comparison of results, which precedes every comparison of times.

The compared programs execute one round from the same point, on the same data, with the same cohort and
minibatches. Their results must agree, on every process. Each program must also evaluate all gradients of the
round and divide them among the processes: if every process does the whole work and none communicates, the
result is right and the time is wrong. Otherwise the benchmark ends before it prints a time.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import numpy as np
import torch

from mpifed.core.streams import Stream

#: Maximum difference of two results, relative to the largest element. Sums in another order change results in
#: float32 by up to 2e-6 of it in the benchmarks, the omission of one of 1,000 clients changes it by 1e-4.
TOLERANCE = 1e-5
#: The same relative to the change in a round whose gradients are computed in bfloat16, which rounds to
#: 2^-9 = 2e-3. Errors accumulate over layers and steps.
BFLOAT16 = 3e-2

#: Rows of a client in the minibatches of a round, ``[steps, batch]``, by client.
Rows = Callable[[int], torch.Tensor]


def expect_equal(name: str, found, expected, comm, scale=None, tolerance: float = TOLERANCE) -> None:
    """End the program on all ranks if a result differs on any rank. Collective.

    Args:
        name: name of the program with the result ``found``.
        found, expected: tensors or arrays of the same shape.
        comm: a communicator of mpifed.
        scale: the size to which the difference is relative; default: the largest absolute element of
            ``expected``.
    """
    found, expected = (torch.as_tensor(one).double().cpu() for one in (found, expected))
    scale = float(expected.abs().max()) if scale is None else scale
    deviation = float((found - expected).abs().max()) / scale
    largest = np.array([math.inf if math.isnan(deviation) else deviation])
    comm.allreduce_(largest, "max")
    if not largest[0] <= tolerance:
        sys.exit(
            f"{name}: expected the same result to {tolerance:.0e}, got a relative difference of "
            f"{largest[0]:.1e}: no times are measured"
        )


def expect_divided(name: str, gradients: int, expected: int, comm) -> None:
    """End the program unless all processes together evaluate ``expected`` gradients, and each some of them.
    Collective.

    Args:
        gradients: number of gradients that this process has evaluated.
    """
    counts = np.zeros(comm.size, dtype=np.int64)
    comm.allgatherv(np.array([gradients], dtype=np.int64), counts, [1] * comm.size)
    if counts.sum() != expected or not counts.all():
        sys.exit(
            f"{name}: expected {expected} gradients, divided among the processes, got "
            f"{' + '.join(map(str, counts))}: no times are measured"
        )


@contextlib.contextmanager
def calls_of(owner, name: str) -> Iterator[SimpleNamespace]:
    """Count the calls of a function of an object, in ``count`` of the result."""
    function, calls = getattr(owner, name), SimpleNamespace(count=0)

    def counted(*arguments):
        calls.count += 1
        return function(*arguments)

    setattr(owner, name, counted)
    try:
        yield calls
    finally:
        setattr(owner, name, function)


def minibatches(simulation, steps: int) -> tuple[list[int], Rows]:
    """Return the cohort of the next round of a simulation, and its minibatches in ``steps`` local steps."""
    config, r = simulation.config, simulation.round + 1

    def rows(client: int) -> torch.Tensor:
        stream, size = (
            Stream(config.seed, "sample", [client], r, steps),
            simulation.problem.client_size(client),
        )
        return torch.from_numpy(stream.integers(size, config.oracle.batch_size)[0])

    return simulation.rounds.coordinator.cohort(r).members.tolist(), rows


def expect_same_round(name: str, rival, simulation, steps: int) -> None:
    """Execute the next round of a simulation in another program as well, and compare the results. Collective.

    Args:
        name: name of the other program.
        rival: has functions ``load(point)``, ``round(members, rows)`` and ``point()``; its ``problem.loss``
            is called once per gradient, unless its gradients are analytic.
        steps: local steps per round, with one gradient each.
    """
    (members, rows), start = minibatches(simulation, steps), simulation.point()
    rival.load(start.clone())
    with calls_of(rival.problem, "loss") as losses:
        rival.round(members, rows)
    costs, expected = simulation.rounds.costs, len(members) * steps
    before = costs.oracle_calls
    simulation.step()
    expect_divided("mpifed", costs.oracle_calls - before, expected, simulation.comm)
    if not simulation.problem.gradients:
        expect_divided(name, losses.count, expected, simulation.comm)
    point, scale, tolerance = simulation.point(), None, TOLERANCE
    if simulation.config.run.autocast != "none":
        scale, tolerance = float((point - start).abs().max()), BFLOAT16
    expect_equal(name, rival.point(), point, simulation.comm, scale, tolerance)


def digest(simulation) -> str:
    """Return a digest of the bits of the current point."""
    return hashlib.blake2b(simulation.point().cpu().numpy().tobytes(), digest_size=8).hexdigest()


def expect_same_bits(ranks: int, found: str, expected: str) -> None:
    """End the program if the digest of a point on ``ranks`` ranks differs from that on one rank."""
    if found != expected:
        sys.exit(f"{ranks} ranks: expected the bits of the other runs, digest {expected}, got {found}")
