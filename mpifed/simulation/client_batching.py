"""The number of clients stepped at a time (``run.group``): the loop, or groups of vectorised clients.

With ``run.group = "auto"`` the choice depends on the job alone, not on timings, the number of ranks or the
placement, because the loop and vectorised clients give different bits. Clients are vectorised if

* the cohort has at least as many members as the first number of :data:`AUTOGRAD` or :data:`ANALYTIC` (a rank
  that hosts only one member steps it with a copy);
* :data:`LEAST` clients have at most as many parameters together as the second number;
* the problem has no convolutions (parameters with three or more axes), which gain nothing on CPUs; on GPUs,
  where ``vmap`` turns them into grouped convolutions, they are expected to be slow, but not measured;
* full batches have the same size on all clients, and ``torch.func.vmap`` can map the problem's functions,
  as tested by one evaluation of two clients, with the results of the loop;
* under ``exact``, a client's results do not depend on its position in a group, which depends on the number
  of ranks: the results of the job's functions are compared at several positions before the first round.

A group has as many clients as have at most that many parameters together. The size of groups of two or more
changes no bits: a resumed run keeps the loop or vectorised clients, and its ranks choose their own sizes.

For large models, vectorised clients take about as long as the loop, depending on the processor. So the rule
vectorises clients only where this saves a large part of the time (docs/performance.md).

On a GPU, launching kernels takes most of the time of small and medium models, and vectorised clients share
the launches: a cohort of two is enough, and the limit of a group is :data:`GPU`. Before the first round a
group is evaluated once; while that exceeds the memory of a GPU, the size of the group is halved. This rule
counts launches. It has been measured for a small network only (docs/cluster.md). Under ``exact``, clients are
looped over, because libraries choose the kernels of a GPU by the number of clients in a group, which depends
on the number of ranks and on the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from mpifed.base.errors import short_repr, user_code_errors
from mpifed.base.nested import leaves
from mpifed.core.autodiff import Evaluation
from mpifed.core.oracle import EVALUATIONS, ORACLES, Oracle
from mpifed.core.problem import Problem, is_analytic, starting_point, user_problem
from mpifed.core.sampling import Sampler
from mpifed.core.streams import generator
from mpifed.parallel.comm import CollectiveError, SerialComm, collective_errors, first_text, reduce_number
from mpifed.parallel.placement import Placement
from mpifed.simulation.settings import SimulationSettings

__all__ = ["GroupChoice", "Group", "choose_group", "expect_evaluated", "reason_for_loop"]

Group = int | Literal["all"]


class Limits(NamedTuple):
    """The minimum size of a cohort whose clients are vectorised, and the maximum parameters of a group."""

    members: int
    parameters: int


#: For losses differentiated by autograd, 1 MiB of float32, and for analytic gradients: these take a few
#: operations, limited by the cache, so the loop has less overhead and large groups can be slower.
AUTOGRAD, ANALYTIC = Limits(32, 2**18), Limits(8, 2**17)
#: On a GPU: 256 MiB of float32.
GPU = Limits(2, 2**26)
#: Number of clients for which the parameters of a group must be sufficient.
LEAST = 8
#: Beginning of the error of a GPU without enough memory.
OUT_OF_MEMORY = "OutOfMemoryError"
#: Logged if vectorised clients would violate the reproducibility guarantee of ``exact``.
POSITION = (
    "clients are looped over: the results of a client would depend on its position among vectorised clients"
)
#: Logged if vectorised clients would have other results than the loop.
VALUES = (
    "clients are looped over: vectorised clients would have other results (under torch.func.vmap, hooks of "
    "tensors are ignored, and requires_grad is False)"
)
#: Tolerance of this comparison relative to the largest element, for kernels in the precision of bfloat16.
KERNELS = 0.1
#: ``core.autodiff`` removes the known causes of results that depend on the position. The comparison detects
#: any others: a client is evaluated at several points at once, and again at parts of them, and all results
#: must be bitwise identical row by row. Clients, points and samples are the same for every number of ranks.
#: Maximum number of points evaluated at once, and the parts evaluated again.
POINTS = 8
PARTS = ((0, 2), (0, 3), (0, 5), (0, 7), (1, 3), (3, 8), (5, 8), (6, 8))
#: Standard deviations of the distances of the points from the starting point. Scalar code computes 16
#: elements of a part on average, and 1 to 40 % of them differ from the results of vectorised code: four times
#: eight parts miss a difference in 3 % of the elements with probability 1e-7.
DISTANCES = (0.01, 0.03, 0.1, 0.3)


class GroupChoice(NamedTuple):
    """The number of clients stepped at a time.

    Attributes:
        group: 1 if clients are looped over, a larger number, or "all".
        note: a line to log, "" for none.
    """

    group: Group
    note: str = ""


@torch.no_grad()
def choose_group(
    config: SimulationSettings,
    sampler: Sampler,
    placement: Placement,
    comm: SerialComm,
    resumed: Group | None,
) -> GroupChoice:
    """Return the number of clients stepped at a time, as set or by the rule above. Collective.

    Args:
        resumed: the choice of the run to be resumed, which keeps the loop or vectorised clients.

    Raises:
        CollectiveError: on all ranks: clients with full batches of different sizes, or functions that
            ``vmap`` cannot map, are to be vectorised or compiled.
    """
    problem, auto = sampler.problem, config.run.group == "auto"
    group = resumed if auto else config.run.group
    uses_full_batches = bool(config.algorithm.minibatch_alternative)
    least, most = _sizes(sampler, comm) if uses_full_batches or not sampler.batch_size else (0, 0)
    unequal = not sampler.batch_size and least < most
    compiled = config.run.compile != "none"
    if compiled and sampler.permutes and _has_short_batches(sampler, comm):
        fix = "a batch_size of at most the rows of a client" if sampler.drop_last else "drop_last = true"
        raise CollectiveError(
            f"compiled gradients need minibatches of one size, got minibatches of fewer than "
            f"{sampler.batch_size} rows at the end of an epoch: set oracle.{fix}, or run.compile = 'none'"
        )
    if unequal and (group not in (None, 1) or compiled):
        how, option = ("compiled", "compile = 'none'") if compiled else ("vectorised", "group = 1")
        raise CollectiveError(
            f"{how} full batches need clients of one size, got {least} to {most} rows: set "
            f"oracle.batch_size, or run.{option}"
        )
    on_gpu = sampler.device.type == "cuda"
    if group == 1 or (group is None and (unequal or reason_for_loop(config, problem, on_gpu))):
        return GroupChoice(1)
    oracle = ORACLES[problem.family](problem, sampler, True, config.run.evaluation._replace(compile="none"))
    point = starting_point(problem, sampler.dtype, sampler.device)
    mappable = resumed not in (None, 1) or (not auto and is_analytic(problem))
    error = "" if mappable else _evaluation_error(oracle, point, 2, comm)
    if error.startswith(OUT_OF_MEMORY):
        if not auto:
            raise CollectiveError(
                f"run.group = {group!r} vectorises clients, but two exceed the memory of a GPU ({error}): "
                "set run.group = 1, which loops over clients"
            )
        return GroupChoice(1, "clients are looped over: two of them exceed the memory of a GPU")
    if error and not auto:
        raise CollectiveError(
            f"run.group = {group!r} vectorises clients, but their functions cannot be mapped over clients, "
            f"{error}: set run.group = 1, which loops over clients"
        )
    if error:
        return GroupChoice(
            1, f"clients are looped over, their functions cannot be mapped over clients: {error}"
        )
    sampler.stacks_full_batches = uses_full_batches and is_analytic(problem) and 0 < least == most
    if resumed in (None, 1):
        largest = problem.clients if group in (None, "all") else int(group)
        if _on_any_rank(comm, lambda: _differs_from_loop(sampler, oracle.evaluation)):
            return GroupChoice(1, VALUES)
        if config.run.is_reproducible and _on_any_rank(
            comm, lambda: _depends_on_position(sampler, oracle.evaluation, largest)
        ):
            return GroupChoice(1, POSITION)
    sampler.begin_round(0)
    if not auto:
        return GroupChoice(group)
    reports = config.participation.expected_reports(problem.clients)
    members = max(2, *(placement.max_members(rank, reports) for rank in range(placement.ranks)))
    size = max(2, min(members, _limits(problem, on_gpu).parameters // _parameters(problem)))
    while on_gpu and size > 2 and _evaluation_error(oracle, point, size, comm).startswith(OUT_OF_MEMORY):
        size = -(-size // 2)
    sampler.begin_round(0)
    return GroupChoice(
        size, f"clients are vectorised, {'all of a rank' if size == members else size} at a time"
    )


def _has_short_batches(sampler: Sampler, comm: SerialComm) -> bool:
    """Return whether a client has a minibatch of fewer rows than the batch size. Collective."""
    shortest = sampler.shortest_batches(sampler.hosted_sizes())
    return bool(reduce_number(comm, (shortest < sampler.batch_size).any(), "max"))


def _sizes(sampler: Sampler, comm: SerialComm) -> tuple[int, int]:
    """Return the minimum and maximum number of rows of all clients' full batches. Collective."""
    with collective_errors(comm, ValueError, OSError), user_code_errors("client_size"):
        sizes = sampler.hosted_sizes()
    least = reduce_number(comm, int(sizes.min(initial=2**62)), "min")
    return least, reduce_number(comm, int(sizes.max(initial=0)), "max")


def _parameters(problem: Problem) -> int:
    """Return the number of parameters per client, including other sizes such as a dense Jacobian."""
    source = user_problem(problem)
    return max(1, sum(source.variables().sizes.values()) + sum(source.field_sizes().values()))


def reason_for_loop(config: SimulationSettings, problem: Problem, on_gpu: bool = False) -> str:
    """Return why the clients of a job are looped over, "" if they are vectorised."""
    members, parameters = config.participation.expected_reports(problem.clients), _parameters(problem)
    if on_gpu and config.run.is_reproducible:
        return "on a GPU, the bits of vectorised clients may depend on the size of a group"
    limits, blocks = _limits(problem, on_gpu), user_problem(problem).variables()
    if members < limits.members:
        return f"a cohort of {members}, less than {limits.members}"
    if parameters * LEAST > limits.parameters:
        return f"{parameters:,} parameters per client, more than {limits.parameters // LEAST:,}"
    shapes = [shape for block in blocks for shape in blocks[block].values()]
    convolutions = not is_analytic(problem) and any(len(shape) > 2 for shape in shapes)
    return "convolutions" if convolutions else ""


def _limits(problem: Problem, on_gpu: bool) -> Limits:
    return GPU if on_gpu else ANALYTIC if is_analytic(problem) else AUTOGRAD


def _evaluate(oracle: Oracle, point: list[torch.Tensor], rows: slice) -> None:
    oracle.select_clients(rows)
    points = [block.repeat(rows.stop - rows.start, 1) for block in point]  # as in a local step
    EVALUATIONS[oracle.problem.family](oracle, *points, oracle.sample())


def _evaluation_error(oracle: Oracle, point: list[torch.Tensor], count: int, comm: SerialComm) -> str:
    """Return the error of an evaluation of ``count`` clients on any rank, "" if there is none. Collective."""
    sampler, text = oracle.sampler, ""
    if hosted := len(sampler.clients):
        try:
            sampler.begin_round(0)
            sampler.select_members(np.append(np.resize(np.arange(hosted), count - 1), hosted - 1))
            _evaluate(oracle, point, slice(0, count))
        except Exception as error:  # user code may raise anything; the loop raises it again
            message = " ".join(str(error).partition("\n\n")[0].split())
            text = f"{type(error).__name__}: {short_repr(message.partition('. ')[0])}"
    first = first_text(comm, text or None)
    return first[1] if first else ""


@torch.no_grad()
def expect_evaluated(oracle: Oracle, count: int, comm: SerialComm) -> None:
    """Evaluate ``count`` clients with the job's compilation and precision. Collective.

    Raises:
        CollectiveError: on all ranks: the evaluation fails on a rank, with the error of torch or the
            compiler.
    """
    point = starting_point(oracle.problem, oracle.sampler.dtype, oracle.sampler.device)
    error = _evaluation_error(oracle, point, count, comm)
    oracle.sampler.begin_round(0)
    if error:
        options = [(name, value) for name, value in oracle.evaluation._asdict().items() if value != "none"]
        raise CollectiveError(
            f"{' and '.join(f'run.{name} = {value!r}' for name, value in options)}: expected functions that "
            f"torch supports with these options, and for compile a C++ compiler, on a GPU Triton, got {error}"
            ": leave the options out"
        )


def _evaluate_composition(oracle: Any, x: torch.Tensor, xi) -> tuple:
    value, jacobian = oracle.g_and_jacobian(x, xi)
    return value, jacobian, oracle.g(x, xi), oracle.grad_f(value, xi)


#: Problem family → all functions that a client step can evaluate.
_ALL_EVALUATIONS = EVALUATIONS | {"composition": _evaluate_composition}


def _on_any_rank(comm: SerialComm, differs: Callable[[], bool]) -> bool:
    """Return whether ``differs()`` is true on any rank. Collective.

    Raises:
        CollectiveError: on all ranks: a rank cannot read the data of the first or the last client.
    """
    with collective_errors(comm, ValueError, OSError):
        result = differs()
    return bool(reduce_number(comm, result, "max"))


@torch.no_grad()
def _differs_from_loop(sampler: Sampler, evaluation: Evaluation) -> bool:
    """Return whether vectorised evaluations of the first client have other results than the loop.

    torch ignores hooks of tensors under ``vmap``, and ``tensor.requires_grad`` is false there.
    """
    single = _sampler_of(0, sampler)
    for distance in DISTANCES:
        points = _near_start(single, distance, 2)
        try:
            vectorised, looped = (
                _results(
                    ORACLES[single.problem.family](single.problem, single, batched, evaluation),
                    [block[: 1 + batched] for block in points],
                )
                for batched in (True, False)
            )
        except Exception:  # user code may be undefined at these points; the run reports relevant errors
            continue
        for result, expected in zip(vectorised, looped):
            tolerance = KERNELS * float(expected.abs().nan_to_num(0, 0, 0).amax()) + torch.finfo().eps
            if not torch.allclose(result[:1], expected, rtol=0, atol=tolerance, equal_nan=True):
                return True
    return False


@torch.no_grad()
def _depends_on_position(sampler: Sampler, evaluation: Evaluation, largest: int) -> bool:
    """Return whether a client's results depend on its position in a group, or on its size.

    Args:
        largest: size of the largest group.
    """
    problem = sampler.problem
    count = min(POINTS, max(largest, 3))  # needs no more memory than the run
    parts = [(first, last) for first, last in PARTS if last <= count]
    for number, client in enumerate((0, problem.clients - 1)):
        single = _sampler_of(client, sampler)
        oracle = ORACLES[problem.family](problem, single, True, evaluation)
        for distance in DISTANCES[number::2]:
            points = _near_start(single, distance, count)
            try:
                reference = _results(oracle, points)
                again = [_results(oracle, [block[slice(*part)] for block in points]) for part in parts]
            except Exception:  # user code may be undefined at these points; the run reports relevant errors
                continue
            if not all(_same(reference, results, *part) for results, part in zip(again, parts)):
                return True
    return False


def _sampler_of(client: int, sampler: Sampler) -> Sampler:
    """Return a sampler of one client with the options of another sampler."""
    single = Sampler(
        sampler.problem,
        [client],
        sampler.seed,
        batch_size=sampler.batch_size,
        noise=sampler.noise,
        noise_width=sampler.width,
        dtype=sampler.dtype,
        device=sampler.device,
        sampling="without_replacement" if sampler.permutes else "with_replacement",
        drop_last=sampler.drop_last,
    )
    single.stacks_full_batches = sampler.stacks_full_batches
    return single


def _near_start(sampler: Sampler, distance: float, count: int) -> list[torch.Tensor]:
    """Return feasible points near the starting point, ``[count, d]`` per block."""
    problem, rng = sampler.problem, generator(0, "positions")
    return [
        getattr(problem.sets, block)(
            start + distance * torch.from_numpy(rng.standard_normal((count, len(start)))).to(start)
        )
        for block, start in zip(problem.variables(), starting_point(problem, sampler.dtype, sampler.device))
    ]


def _results(oracle: Oracle, points: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the results of all evaluations of a client step, for the oracle's client at each point."""
    count = len(points[0])
    oracle.sampler.begin_round(0)
    oracle.sampler.select_members(np.zeros(count, dtype=np.int64))
    oracle.select_clients(slice(0, count))
    evaluate = _ALL_EVALUATIONS[oracle.problem.family]
    samples = [oracle.sample()]
    if oracle.sampler.stacks_full_batches:
        samples.append(oracle.full_batch)
    if oracle.sampler.permutes:  # the last minibatch of an epoch may be short
        samples.append(oracle.sampler.samples(int(oracle.steps_per_epoch[0]) - 1, slice(0, count))[0])
    return leaves([evaluate(oracle, *map(torch.clone, points), xi) for xi in samples])


def _same(reference: list[torch.Tensor], results: list[torch.Tensor], first: int, last: int) -> bool:
    """Return whether results are identical to rows ``first:last`` of the reference; NaN equals NaN."""
    return all(
        torch.allclose(result, rows[first:last], rtol=0, atol=0, equal_nan=True)
        for result, rows in zip(results, reference)
    )
