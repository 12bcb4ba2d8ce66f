"""Setup of a simulation: the reduction is chosen, the problem is prepared and checked, clients are placed."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

from mpifed.base.errors import user_code_errors
from mpifed.base.plugins import data_folder, plugins_of
from mpifed.core.algorithm import counts_epochs
from mpifed.core.participation import Participation, Weighted
from mpifed.core.problem import (
    Problem,
    as_family,
    data_read,
    has_sizes,
    initial_point,
    sizes_of,
    user_problem,
)
from mpifed.core.streams import seeded_globals
from mpifed.core.validation import check_problem
from mpifed.parallel.comm import SerialComm, collective_errors
from mpifed.parallel.devices import device_type, ranks_on
from mpifed.parallel.placement import Placement
from mpifed.parallel.shared_memory import read_once_per_node
from mpifed.simulation.coordinator import Participants
from mpifed.simulation.data_agreement import Files, agree_on_data, agree_on_problem, agree_on_sources
from mpifed.simulation.initial_weights import InitialWeights
from mpifed.simulation.settings import SimulationSettings
from mpifed.simulation.state import expect_memory

__all__ = ["default_dtype", "place_clients", "prepare", "read_files", "resolve_reduction"]

#: Maximum duration in seconds of a ``prepare`` that is called twice. Longer ones may need much memory.
FAST = 0.2


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """A context for user code, in which torch's default dtype is ``dtype``."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def resolve_reduction(config: SimulationSettings, comm: SerialComm) -> SimulationSettings:
    """Return ``config`` with the default reduction for the ranks' devices, if none is set. Collective.

    Raises:
        CollectiveError: on all ranks: the devices are not available.
    """
    if config.run.reduction is not None:
        return config
    on_cpu = device_type(comm, config.run.device, config.run.gpus) == "cpu"
    # Compiled code for several clients gives results that depend on the size of the group.
    reproducible = config.run.compile == "none" or config.run.group == 1
    reproducible = reproducible and config.run.matmul_precision == "highest"
    run = config.run.model_copy(update={"reduction": "exact" if on_cpu and reproducible else "fused"})
    return config.model_copy(update={"run": run})


def prepare(
    config: SimulationSettings, comm: SerialComm, dtype: torch.dtype, device: torch.device, files: Files
) -> Problem:
    """Return the problem in the method's family, prepared and checked. Collective, also if it fails.

    Args:
        files: files read in addition to the problem's data.

    Raises:
        CollectiveError: on all ranks: the problem violates its contract, or its data cannot be read or differ
            between ranks.
    """
    problem, sharing = config.problem, ranks_on(comm, device)
    name = type(problem).__name__
    agree_on_sources(comm, plugins_of("algorithm", config.algorithm) | plugins_of("problem", problem))
    with collective_errors(comm, ValueError, OSError), default_dtype(dtype), user_code_errors(name):
        if problem.footprint():  # otherwise the data determine the sizes of the blocks
            expect_memory(config, comm, device, sharing)
    reading = _reading(config, comm, dtype)
    with (
        collective_errors(comm, ValueError, OSError),
        default_dtype(dtype),
        seeded_globals(config.seed),
        user_code_errors(name),
        reading,
    ):
        again = _prepared_twice(problem, config)
        expect_memory(config, comm, device, sharing)
        check_problem(
            problem,
            config.algorithm,
            dtype=dtype,
            device=device,
            batch_size=config.oracle.batch_size,
            weights=_weights(config.participation),
            seed=config.seed,
            again=again,
        )
        values = {}
        if comm.size > 1 and not type(problem).__module__.startswith("mpifed."):
            values["client_data(0)"] = problem.client_data(0)
            values["initial()"] = initial_point(problem, config.seed).values()
    agree_on_data(comm, files | problem.files)
    agree_on_problem(comm, problem, values)
    return as_family(problem, config.algorithm.family)


def _prepared_twice(problem: Problem, config: SimulationSettings) -> Problem | None:
    """Prepare a problem and, if this is fast and user-defined, a copy of it.

    Without the copy, random numbers that do not depend on the seed would go unnoticed on one rank.

    Returns:
        The prepared copy; ``None`` without one.
    """
    folder, copied = data_folder(type(problem), config.run.data_dir), None
    if (
        not type(problem).prepare.__module__.startswith("mpifed.")
        and type(problem).read_once is Problem.read_once
    ):
        with contextlib.suppress(Exception):  # a user's objects may not support copies
            copied = copy.deepcopy(problem)
    began = time.monotonic()
    problem.prepare(config.seed, folder)
    if copied is None or time.monotonic() - began > FAST:
        return None
    with seeded_globals(config.seed):
        copied.prepare(config.seed, folder)
    return copied


def _reading(config: SimulationSettings, comm: SerialComm, dtype: torch.dtype) -> AbstractContextManager:
    """Return a context in which ``problem.read_once`` returns data that were read once per node. Collective.

    Every rank calls a user-defined function that returns a data set.

    Raises:
        CollectiveError: on all ranks: the data cannot be read.
    """
    problem = config.problem
    if type(problem).read_once is Problem.read_once or "problem.dataset" in plugins_of("problem", problem):
        return contextlib.nullcontext()

    def read() -> Any:
        with default_dtype(dtype), seeded_globals(0), user_code_errors(type(problem).__name__):
            return problem.read_once(data_folder(type(problem), config.run.data_dir))

    return data_read(problem, read_once_per_node(comm, read))


def read_files(config: SimulationSettings) -> Files:
    """Return the data files that a simulation reads, by name, as read by this rank.

    Raises:
        ValueError, OSError: a file cannot be read.
    """
    problem = config.problem
    files = Participants.of_settings(config).files | InitialWeights(config.initial).files
    with (
        default_dtype(getattr(torch, config.run.dtype)),
        seeded_globals(config.seed),
        user_code_errors(type(problem).__name__),
    ):
        problem.prepare(config.seed, data_folder(type(problem), config.run.data_dir))
    return files | problem.files


def _weights(participation: Participation) -> str:
    """Return "samples" if participation or averages depend on the clients' numbers of samples."""
    model = participation.availability
    return "samples" if isinstance(model, Weighted) and model.weights == "samples" else participation.weights


def place_clients(config: SimulationSettings, problem: Problem, comm: SerialComm) -> Placement:
    """Return the placement of the clients on the ranks. Collective.

    With ``run.placement = "balanced"``, the cost of a client is the number of rows that a full gradient
    evaluates. Minibatches have the same number of rows on all clients, unless the number of local steps is
    given in epochs.

    Raises:
        CollectiveError: on all ranks: a client's number of samples cannot be determined.
    """
    even, source = Placement(problem.clients, comm.size), user_problem(problem)
    equal = config.oracle.batch_size and not counts_epochs(config.algorithm)
    if config.run.placement == "even" or equal:
        return even
    with (
        collective_errors(comm, ValueError, OSError),
        user_code_errors(f"{type(source).__name__}.client_size"),
    ):
        if not has_sizes(source) and not len(source.client_data(0)):
            return even  # all clients generate the same number of samples
        rows = sizes_of(source, np.arange(problem.clients))
        return Placement.balanced(rows.astype(np.int64).clip(min=1), comm.size)
