"""What comes before a run's memory: the problem prepared and checked, and its clients placed on the ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch

from mpifed.base.errors import message_of, user_code_errors
from mpifed.base.plugins import sources
from mpifed.core.participation import Participation, Weighted
from mpifed.core.problem import DataFile, Problem, as_family
from mpifed.core.validation import check_problem, expect_finite, expect_mirror
from mpifed.parallel.comm import CollectiveError, SerialComm, collective_errors
from mpifed.parallel.devices import choose_device
from mpifed.parallel.placement import Placement
from mpifed.simulation.coordinator import Participants
from mpifed.simulation.data_consistency import agree_on_data, agree_on_sources
from mpifed.simulation.evaluation import user
from mpifed.simulation.memory import expect_room
from mpifed.simulation.settings import SimulationSettings
from mpifed.simulation.weights import Weights

__all__ = ["default_dtype", "place", "prepare", "read_files", "settled"]


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """While a user's code runs, torch's default dtype is the run's."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def settled(config: SimulationSettings, comm: SerialComm) -> SimulationSettings:
    """``config`` with the reduction that suits the ranks' devices, where it is left open. Collective.

    Raises:
        CollectiveError: on all ranks: the devices are not there.
    """
    if config.run.reduction is not None:
        return config
    on_cpu = choose_device(comm, config.run.device, config.run.gpus).type == "cpu"
    of_any_size = config.run.compile == "none" or config.run.group == 1  # else bits follow the size of groups
    run = config.run.model_copy(update={"reduction": "exact" if on_cpu and of_any_size else "fused"})
    return config.model_copy(update={"run": run})


def prepare(
    config: SimulationSettings,
    comm: SerialComm,
    dtype: torch.dtype,
    device: torch.device,
    files: dict[str, DataFile],
) -> Problem:
    """The problem as the method sees it, prepared and checked on every rank. Collective, also where it fails.

    Args:
        files: files that were read in addition to the problem's data.

    Raises:
        CollectiveError: on all ranks: the problem breaks its contract, its data cannot be read or differ
            between ranks.
    """
    problem, fault = config.problem, None
    agree_on_sources(comm, sources("algorithm", config.algorithm) | sources("problem", problem))
    try:
        with default_dtype(dtype), user_code_errors(type(problem).__name__):
            if problem.footprint():  # else the data say how large the blocks are
                expect_room(config, comm, device)
            problem.prepare(config.seed, config.run.data_dir)
            expect_room(config, comm, device)
            batch_size, weights = config.oracle.batch_size, _weights(config.participation)
            check_problem(
                problem, config.algorithm, dtype=dtype, device=device, batch_size=batch_size, weights=weights
            )
            expect_finite(problem, config.seed, batch_size, dtype, device)
            expect_mirror(problem, config.algorithm, config.seed)
    except (ValueError, OSError) as error:
        fault = error
    try:
        agree_on_data(comm, files | problem.files, fault and message_of(fault))
    except CollectiveError as common:
        raise common from fault
    return as_family(problem, config.algorithm.family)


def read_files(config: SimulationSettings) -> dict[str, DataFile]:
    """The data files that a run of a job reads, by name, read by this rank alone.

    Raises:
        ValueError, OSError: they cannot be read.
    """
    problem = config.problem
    others = Participants(config.participation, config.seed, problem).files | Weights(config.initial).files
    with default_dtype(getattr(torch, config.run.dtype)), user_code_errors(type(problem).__name__):
        problem.prepare(config.seed, config.run.data_dir)
    return others | problem.files


def _weights(participation: Participation) -> str:
    """ "samples" where clients' numbers of samples are asked for."""
    model = participation.availability
    return "samples" if isinstance(model, Weighted) and model.weights == "samples" else participation.weights


def place(config: SimulationSettings, problem: Problem, comm: SerialComm) -> Placement:
    """The placement of the clients on the ranks. Collective.

    With ``run.placement = "balanced"`` the work of a client is the number of rows that one of its gradients
    evaluates: those of its full batch. Minibatches have the same number of rows on all clients.

    Raises:
        CollectiveError: on all ranks: the number of samples of a client cannot be determined.
    """
    even, source = Placement(problem.clients, comm.size), user(problem)
    if config.run.placement == "even" or config.oracle.batch_size:
        return even
    with (
        collective_errors(comm, ValueError, OSError),
        user_code_errors(f"{type(source).__name__}.client_size"),
    ):
        if type(source).client_size is Problem.client_size and not len(source.client_data(0)):
            return even  # all clients draw the same number of samples
        rows = [source.client_size(client) for client in range(problem.clients)]
        return Placement.balanced(np.array(rows, dtype=np.int64).clip(min=1), comm.size)
