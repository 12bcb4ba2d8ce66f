"""How many clients are stepped at a time (``run.group``): the loop, or groups of vectorised clients.

With ``run.group = "auto"`` the choice follows from the job alone, never from a clock, the number of ranks or
the placement, because the loop and vectorised clients give different bits. Clients are vectorised if

* the cohort has at least :data:`MEMBERS` members (a rank that hosts only one of them steps it with a copy);
* :data:`LEAST` clients have at most :data:`CACHE` parameters together;
* the problem has no convolutions (a parameter with three axes or more is a kernel), which gain nothing;
* full batches have the same size on all clients, and ``torch.func.vmap`` can map the problem's functions,
  which one evaluation of two clients shows;
* under ``exact``, a client's results do not depend on its position in a group, which follows from the number
  of ranks: the job's own functions are compared at several positions before the first round.

A group has as many clients as have at most ``CACHE`` parameters together. The size of groups of two or more
changes no bits: a resumed run keeps the loop or vectorised clients, and its ranks choose their own sizes.

CPU time of a round relative to the loop, float32, one core of an AMD EPYC (Zen 4), medians of rounds that
take turns in one process, with all clients on one rank:

============================  =====  ===================  =====  =====  =====  =====  ==================
problem                       batch  parameters, clients  4      8      16     all    rule (clients)
============================  =====  ===================  =====  =====  =====  =====  ==================
logistic regression           10     650, 256                           0.32   0.06   0.07 (256)
MLP 64-32-32-10               32     3,466, 64            1.06          0.37   0.20   0.21 (64)
MLP 784-32-10                 32     25,450, 32           1.07   0.76          0.50   0.73 (10)
MLP 784-64-10                 32     50,890, 32           1.02   0.79          0.60   loop
MLP 784-128-10                32     101,770, 32          1.12   0.89          0.73   loop
MLP 784-200-200-10            50     199,210, 64          1.10   0.95   0.86   1.39   loop
saddle, analytic gradients    1      2,000, 64            0.37          0.14   0.07   0.07 (64)
saddle, analytic gradients    1      20,000, 64           0.59   0.45   0.38   0.52   0.39 (13)
saddle, analytic gradients    1      50,000, 64           0.66   0.59   0.58   0.88   loop
============================  =====  ===================  =====  =====  =====  =====  ==================

For large models the ratio is around 1, on either side of it, and depends on the processor and its cache. So
the rule vectorises clients only where that saves a large part of the time.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from mpifed.base.errors import ConfigError, short_repr
from mpifed.core.autodiff import Evaluation
from mpifed.core.oracle import EVALUATIONS, ORACLES, Oracle
from mpifed.core.problem import Problem, is_analytic, starting_point
from mpifed.core.sampling import Sampler
from mpifed.core.streams import generator
from mpifed.parallel.comm import SerialComm, broadcast_text, collective_errors
from mpifed.parallel.placement import Placement
from mpifed.simulation.evaluation import user
from mpifed.simulation.settings import SimulationSettings

__all__ = ["Choice", "Group", "choose_group", "depends_on_position", "expect_evaluated", "reason_for_loop"]

Group = int | Literal["all"]

#: Least members of a cohort whose clients are vectorised: losses differentiated by autograd, and analytic
#: gradients, which have less overhead per call.
MEMBERS, MEMBERS_ANALYTIC = 32, 8
#: Parameters of a group (1 MiB of float32, the L2 cache of a core), and the least clients of a group.
CACHE, LEAST = 2**18, 8
#: Reported where vectorised clients would break the promise of ``exact``.
POSITION = (
    "clients are looped over: the results of a client would depend on its position among vectorised clients"
)


class Choice(NamedTuple):
    """``group``: clients stepped at a time, 1, a number or "all"; ``said``: the line logged about it."""

    group: Group
    said: str = ""


@torch.no_grad()
def choose_group(
    config: SimulationSettings,
    problem: Problem,
    sampler: Sampler,
    placement: Placement,
    comm: SerialComm,
    known,
) -> Choice:
    """The number of clients that are stepped at a time: as set, or by the rule above. Collective; the same on
    all ranks.

    Args:
        known: the choice of the run that is resumed, else ``None``: it keeps the loop or vectorised clients.

    Raises:
        ConfigError: on all ranks: full batches of different sizes are to be vectorised or compiled, or
            functions that ``vmap`` cannot map are to be vectorised.
    """
    auto = config.run.group == "auto"
    asked = known if auto else config.run.group
    least, most = _rows(sampler, comm)
    compiled = config.run.compile != "none"
    if least < most and (asked not in (None, 1) or compiled):
        what, way = ("compiled", "compile = 'none'") if compiled else ("vectorised", "group = 1")
        raise ConfigError(
            f"{what} full batches need clients of one size, got {least} to {most} rows: set "
            f"oracle.batch_size, or run.{way}"
        )
    if asked == 1 or (asked is None and (least < most or reason_for_loop(config, problem))):
        return Choice(1)
    oracle = ORACLES[problem.family](problem, sampler, True, config.run.evaluation._replace(compile="none"))
    point = starting_point(problem, sampler.dtype, sampler.device)
    mapped = known not in (None, 1) or (not auto and is_analytic(problem))
    fault = "" if mapped else _fault(oracle, point, 2, comm)
    if fault and not auto:
        raise ConfigError(
            f"run.group = {asked!r} vectorises clients, but their functions cannot be mapped over clients, "
            f"{fault}: set run.group = 1, which loops over clients"
        )
    if fault:
        return Choice(1, f"clients are looped over, their functions cannot be mapped over clients: {fault}")
    if config.run.reduction == "exact" and known in (None, 1):
        largest = problem.clients if asked in (None, "all") else int(asked)
        if depends_on_position(problem, sampler, oracle.evaluation, largest, comm):
            return Choice(1, POSITION)
    sampler.begin(0)
    if not auto:
        return Choice(asked)
    members = max(2, min(max(placement.counts), config.participation.members(problem.clients)))
    size = max(2, min(members, CACHE // _parameters(problem)))
    return Choice(size, f"clients are vectorised, {'all of a rank' if size == members else size} at a time")


def _rows(sampler: Sampler, comm: SerialComm) -> tuple[int, int]:
    """The least and the most rows of a full batch of any client; equal where batches are drawn."""
    sizes = sampler.sizes if not sampler.batch_size else sampler.sizes[:0]
    ends = np.array([-sizes.min(initial=2**62), sizes.max(initial=0)], dtype=np.int64)
    comm.allreduce_(ends, "max")
    return (int(-ends[0]), int(ends[1])) if ends[1] else (0, 0)


def _parameters(problem: Problem) -> int:
    """Parameters per client: the blocks, and the further types of fields."""
    source = user(problem)
    return max(1, sum(source.variables().sizes.values()) + sum(source.kinds().values()))


def reason_for_loop(config: SimulationSettings, problem: Problem) -> str:
    """Why the clients of a job are looped over, "" where they are vectorised."""
    members, analytic = config.participation.members(problem.clients), is_analytic(problem)
    blocks, parameters = user(problem).variables(), _parameters(problem)
    least = MEMBERS_ANALYTIC if analytic else MEMBERS
    if members < least:
        return f"a cohort of {members}, less than {least}"
    if parameters * LEAST > CACHE:
        return f"{parameters:,} parameters per client, more than {CACHE // LEAST:,}"
    kernels = not analytic and any(len(shape) > 2 for block in blocks for shape in blocks[block].values())
    return "convolutions" if kernels else ""


def _evaluate(oracle: Oracle, point: list[torch.Tensor], rows: slice) -> None:
    oracle.at(rows)
    points = [block.repeat(rows.stop - rows.start, 1) for block in point]  # clients leave the common one
    EVALUATIONS[oracle.problem.family](oracle, *points, oracle.sample())


def _fault(oracle: Oracle, point: list[torch.Tensor], count: int, comm: SerialComm) -> str:
    """Why ``count`` clients cannot be evaluated on some rank, "" where they can. Collective."""
    sampler, fault = oracle.sampler, ""
    if hosted := len(sampler.clients):
        try:
            sampler.begin(0)
            sampler.select_members(np.append(np.resize(np.arange(hosted), count - 1), hosted - 1))
            _evaluate(oracle, point, slice(0, count))
        except Exception as error:  # a user's function may raise anything; the loop says it again
            said = " ".join(str(error).partition("\n\n")[0].split())
            fault = f"{type(error).__name__}: {short_repr(said.partition('. ')[0])}"
    first = np.array([comm.rank if fault else comm.size], dtype=np.int64)
    comm.allreduce_(first, "min")
    return broadcast_text(comm, fault, int(first[0])) if first[0] < comm.size else ""


@torch.no_grad()
def expect_evaluated(oracle: Oracle, count: int, comm: SerialComm) -> None:
    """Evaluate ``count`` clients as is asked for, which compiles what is to be compiled. Collective.

    Raises:
        ConfigError: on all ranks: some rank cannot; it says what the compiler, or torch, has said.
    """
    fault = _fault(
        oracle, starting_point(oracle.problem, oracle.sampler.dtype, oracle.sampler.device), count, comm
    )
    oracle.sampler.begin(0)
    if fault:
        ways = [(name, way) for name, way in oracle.evaluation._asdict().items() if way != "none"]
        raise ConfigError(
            f"{' and '.join(f'run.{name} = {way!r}' for name, way in ways)}: expected functions that torch "
            f"can evaluate so, and to compile them a C++ compiler, on a GPU Triton, got {fault}: leave it out"
        )


#: ``core.autodiff`` removes the known causes of results that depend on the position; the comparison shows
#: whether any is left. A client is evaluated at several points at once, and at parts of these: each row of
#: all results must be bitwise identical. Clients, points and samples are the same for every number of ranks.
#: Points that are evaluated at once at most, and the parts of them that are evaluated again.
POINTS = 8
PARTS = ((0, 2), (0, 3), (0, 5), (0, 7), (1, 3), (3, 8), (5, 8), (6, 8))
#: Standard deviations of the distances of the points from the starting point. Of the elements of an array
#: that scalar code computes, 1 to 40 % differ from the vectorised code, and a part has 16 such elements on
#: average: four times eight parts find a difference of 3 % of the elements but for one time in ten million.
DISTANCES = (0.01, 0.03, 0.1, 0.3)


def _evaluate_composition(oracle: Any, x: torch.Tensor, xi) -> tuple:
    value, jacobian = oracle.g_and_jacobian(x, xi)
    return value, jacobian, oracle.g(x, xi), oracle.grad_f(value, xi)


#: Problem family → everything that a client step can evaluate.
_EVERYTHING = EVALUATIONS | {"composition": _evaluate_composition}


def depends_on_position(
    problem: Problem, sampler: Sampler, evaluation: Evaluation, largest: int, comm: SerialComm
) -> bool:
    """Whether a client's numbers depend on its position in a group, or on the size of the group. Collective.

    Args:
        sampler: of this rank's clients; only its settings are used.
        evaluation: how functions that are differentiated are evaluated.
        largest: the size of the largest group.

    Raises:
        CollectiveError: on all ranks: some rank cannot read the data of the first or the last client.
    """
    differs = False
    with collective_errors(comm, ValueError, OSError):
        differs = _differs(problem, sampler, evaluation, largest)
    found = np.array([differs], dtype=np.int64)
    comm.allreduce_(found, "max")
    return bool(found[0])


@torch.no_grad()
def _differs(problem: Problem, sampler: Sampler, evaluation: Evaluation, largest: int) -> bool:
    count = min(POINTS, max(largest, 3))  # no more memory than the run takes
    parts = [(first, last) for first, last in PARTS if last <= count]
    for number, client in enumerate((0, problem.clients - 1)):
        alone = Sampler(
            problem,
            [client],
            sampler.seed,
            sampler.batch_size,
            sampler.noise,
            sampler.width,
            sampler.dtype,
            sampler.device,
        )
        oracle = ORACLES[problem.family](problem, alone, True, evaluation)
        for distance in DISTANCES[number::2]:
            points = _near_start(problem, alone, distance, count)
            try:
                whole = _results(oracle, points)
                again = [_results(oracle, [block[slice(*part)] for block in points]) for part in parts]
            except Exception:  # a user's function may be undefined there; the run reports it where it matters
                continue
            if not all(_same(whole, results, *part) for results, part in zip(again, parts)):
                return True
    return False


def _near_start(problem: Problem, sampler: Sampler, distance: float, count: int) -> list[torch.Tensor]:
    """Points of the problem's sets, ``[count, d]`` per block."""
    rng = generator(0, "positions")
    return [
        getattr(problem.sets, block)(
            start + distance * torch.from_numpy(rng.standard_normal((count, len(start)))).to(start)
        )
        for block, start in zip(problem.variables(), starting_point(problem, sampler.dtype, sampler.device))
    ]


def _results(oracle: Oracle, points: list[torch.Tensor]) -> list[torch.Tensor]:
    """All that a client step can evaluate, for the oracle's client at each of the points."""
    count = len(points[0])
    oracle.sampler.begin(0)
    oracle.sampler.select_members(np.zeros(count, dtype=np.int64))
    oracle.at(slice(0, count))
    xi = oracle.sample()
    return tree_leaves(_EVERYTHING[oracle.problem.family](oracle, *map(torch.clone, points), xi))


def _same(whole: list[torch.Tensor], results: list[torch.Tensor], first: int, last: int) -> bool:
    """Whether results are identical to rows of others; NaN equals NaN."""
    return all(
        torch.allclose(one, all_rows[first:last], rtol=0, atol=0, equal_nan=True)
        for one, all_rows in zip(results, whole)
    )
