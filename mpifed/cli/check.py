"""Contract tests of user-defined methods and problems: ``mpifed check ./file.py:Class``.

The contract of a problem begins with the checks before every run (:mod:`mpifed.core.validation`). Here they
are followed by those of derivatives (:mod:`mpifed.core.derivative_checks`) and by short runs, which also test
methods. Each check is a statement that holds, FAILS with a reason, or is not checked with a reason. Under
mpirun, a run on all ranks is compared with the same run in one process.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import io
import os
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from mpifed.algorithms import (
    ALGORITHMS,
    MFCGD,
    FedNestBilevel,
    FedNormSGDA,
    LocalDualExtrapolation,
    LocalSGDA,
)
from mpifed.base.console import Console
from mpifed.base.errors import ConfigError, ContractError, hint, short_repr
from mpifed.base.plugins import data_folder, is_user_defined
from mpifed.base.settings import problem_settings, suggest
from mpifed.cli.catalogue import example, family_of
from mpifed.config.job import Config
from mpifed.config.plugins import find_class
from mpifed.config.tables import apply_overrides
from mpifed.core.algorithm import Algorithm
from mpifed.core.derivative_checks import DERIVATIVES, difference, probe_of
from mpifed.core.problem import Minimax, Minimisation, Problem, is_analytic
from mpifed.core.records import Blocks
from mpifed.core.sets import Ball, Sets
from mpifed.core.streams import generator, seeded_globals
from mpifed.core.validation import START, Case, Check, NotChecked
from mpifed.parallel.comm import CollectiveError, SerialComm, broadcast_text, collective_errors
from mpifed.problems import (
    PROBLEMS,
    AffineGame,
    L1BoxBilinear,
    LinearMAML,
    QuadraticBilevel,
    QuadraticMixture,
)
from mpifed.running.result import Result
from mpifed.running.run import resume, run
from mpifed.simulation.problem_metrics import expect_metrics
from mpifed.simulation.setup import default_dtype
from mpifed.simulation.simulation import Simulation
from mpifed.simulation.state import expect_constants
from mpifed.storage.files import RUN_FILE

__all__ = ["SAME_IN_GROUPS", "check_class", "problems_for"]

#: Rounds of a run, rows of a minibatch, and clients in a partial cohort.
ROUNDS, ROWS, COHORT = 4, 2, 3
#: Sizes of groups of vectorised clients.
GROUPS = (2, 3, "all")
#: Radius of the sets that a method must respect: steps leave such a ball, rounding errors of float64 do not.
RADIUS = 1e-6
SAME_IN_GROUPS = "clients give the same result in a loop, and bitwise in groups of 2, 3 and all clients"
#: Errors of a method that cannot be run on a problem.
REFUSALS = ConfigError, ContractError, CollectiveError
#: Family → the method with which a problem is run.
METHODS: dict[str, Algorithm] = {
    "minimax": LocalSGDA(q=2, eta_x=1e-3, eta_y=1e-3),
    "operator": LocalDualExtrapolation(K=2, eta=1e-3),
    "composition": MFCGD(q=2, gamma=1e-3),
    "bilevel": FedNestBilevel(T=1, tau=2, alpha=1e-3, beta=1e-3, J=1, ell=1e-3),
}
#: The method for minimax problems whose clients see different coordinates of y.
PROJECTS_AT_SERVER = FedNormSGDA(tau=2, eta_x=1e-3, eta_y=1e-3, gamma_x=1e-3, gamma_y=1e-3)


@problem_settings
class _LeastSquares(Minimisation):
    """Least squares in x. Client k has 3 + k rows of three features, one target and two couplings."""

    clients: int = 5

    def variables(self) -> Blocks:
        return Blocks(x={"x": (3,)})

    def client_data(self, client: int) -> tuple[torch.Tensor, ...]:
        rows = torch.from_numpy(generator(0, "check rows", client).standard_normal((3 + client, 6)))
        return rows[:, :3], rows[:, 3], rows[:, 4:]

    def loss(self, x, batch):
        return ((batch[0] @ x["x"] - batch[1]) ** 2).mean() / 2


@problem_settings
class _Coupled(Minimax):
    """Least squares in x, coupled with y: strongly convex in x, strongly concave in y."""

    clients: int = 5
    client_data = _LeastSquares.client_data  # type: ignore[assignment]

    def variables(self) -> Blocks:
        return Blocks(x={"x": (3,)}, y={"y": (2,)})

    def loss(self, x, y, batch):
        features, targets, couplings = batch
        score, regular = features @ x["x"], (x["x"] ** 2).sum() - (y["y"] ** 2).sum()
        return ((score - targets) ** 2 / 2 + score * (couplings @ y["y"])).mean() + regular / 2


def problems_for(method: Algorithm) -> dict[str, Problem]:
    """Return the problems on which a method is run, by a description."""
    if method.mixture:
        return {"a mixture of the clients' losses": QuadraticMixture(clients=5)}
    if method.family == "composition":
        return {"a composition": LinearMAML(clients=5, d=3, samples=6)}
    if method.family == "bilevel":
        return {"a bilevel problem": QuadraticBilevel(clients=5)}
    if method.family == "minimisation":
        return {"a problem without y": _LeastSquares()}
    mixture: dict[str, Problem] = {
        "a problem whose clients see different coordinates of y": QuadraticMixture(clients=5)
    }
    if method.family == "minimax":
        return {"a minimax problem": _Coupled(), "a problem without y": _LeastSquares(), **mixture}
    return {
        "an affine game": AffineGame(clients=5, d=4, strong=0.1),
        "a minimax problem as a game": _Coupled(),
        **({"a game with a convex part": L1BoxBilinear(clients=5, dx=3, dy=2)} if method.composite else {}),
        "a problem without y as a game": _LeastSquares(),
        **mixture,
    }


#: Functions of a problem that read data.
_LOADING = ("prepare", "read_once")


class _Prepared:
    """Replaces ``prepare`` of a problem: copies the state of a problem that has read its data."""

    def __init__(self, problem: Problem, state: dict):
        self.problem, self.state = problem, state

    def __call__(self, seed: int, data_dir: str | None = None) -> None:
        vars(self.problem).update(copy.deepcopy(self.state))

    def __deepcopy__(self, memo: dict) -> _Prepared:
        return _Prepared(memo[id(self.problem)], self.state)


def _loaded(problem: Problem, state: dict) -> Problem:
    """Return a copy of a problem whose runs do not read its data again."""
    copied = copy.deepcopy(problem)
    vars(copied).update(zip(_LOADING, (_Prepared(copied, state), _read_nothing)))
    return copied


def _read_nothing(data_dir: str | None = None) -> None:
    """Replaces ``read_once``: :class:`_Prepared` does not call it."""


def _config(case: Case, folder: str, participation=None, **settings) -> Config:
    """Return a short job on the CPU; ``settings`` belong to [run]."""
    table = dict(dtype=str(case.dtype).removeprefix("torch."), device="cpu", reduction="exact", group=1)
    table |= dict(progress=False, overwrite=True, out=folder, eval_every=ROUNDS, checkpoint_every=2)
    job = {"algorithm": case.algorithm, "problem": copy.deepcopy(case.problem), "rounds": ROUNDS}
    oracle = {"batch_size": ROWS}
    return Config(**job, run=table | settings, oracle=oracle, participation=participation or {})


def simulation_of(case: Case, **settings) -> Simulation:
    """Return a simulation of a short job, which writes no files. Its warnings are not printed."""
    with contextlib.redirect_stderr(io.StringIO()):
        return Simulation.from_settings(_config(case, "unused", **settings), SerialComm())


def run_case(case: Case, comm: SerialComm | None = None, **settings) -> Result:
    """Carry out a short job without its warnings, because the checks report their causes. Collective."""
    comm = comm or SerialComm()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        with collective_errors(comm, OSError):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
        done = run(_config(case, broadcast_text(comm, folder), **settings), comm)
        comm.barrier()
    return done


def differ(result: Result, other: Result, what: str = "the results", tolerance: float = 0.0) -> list[str]:
    """Return a message if the points of two results differ by more than ``tolerance``."""
    return difference(*(torch.cat(list(done.point.values())) for done in (result, other)), what, tolerance)


def _groups(tolerance: float, case: Case) -> Iterator[str]:
    """Compare groups of different sizes with each other, and in float64 with clients that are looped over.

    All groups of vectorised clients give bitwise identical results. Vectorised and looped clients agree to
    ``tolerance``, because kernels may add in another order.
    """
    if reason := simulation_of(case, group="all").note:
        # The run would loop. The author of analytic derivatives can remove the cause.
        if not is_analytic(case.problem):
            raise NotChecked(reason)
        yield reason
        return
    first, *others = (run_case(case, group=group) for group in GROUPS)
    if case.dtype == torch.float64:
        yield from differ(first, run_case(case), "the results of vectorised and of looped clients", tolerance)
    for group, other in zip(GROUPS[1:], others):
        yield from differ(other, first, f"the results of groups of {group} and of {GROUPS[0]}")


def _repeated(case: Case) -> list[str]:
    again = copy.deepcopy(case.problem)
    for name in _LOADING:  # the second run reads its data itself
        vars(again).pop(name, None)
    return differ(run_case(case), run_case(replace(case, problem=again)))


def runnable(subject: Algorithm | Problem) -> tuple[Problem, Algorithm]:
    """Return a problem and a method: the given one, and the first with which it can be run.

    Raises:
        ConfigError, ContractError, CollectiveError: a method refuses all problems; why it refuses the first.
    """
    if isinstance(subject, Problem):
        return subject, PROJECTS_AT_SERVER if subject.separate_coordinates else METHODS[subject.family]
    refusals: list[Exception] = []
    for problem in problems_for(subject).values():
        try:
            simulation_of(Case(problem, subject))
            return problem, subject
        except REFUSALS as error:
            refusals.append(error)
    raise refusals[0]


# Methods


def rounds_of(method: Algorithm) -> list[Check]:
    """Return a check per problem of :func:`problems_for`: a short run on it, if the method accepts it."""

    def rounds(problem: Problem, case: Case) -> None:
        case = replace(case, problem=problem)
        try:
            simulation_of(case)
        except REFUSALS as error:
            raise NotChecked(error) from None
        run_case(case)

    problems = problems_for(method)
    return [
        Check(f"{ROUNDS} rounds on {name} stay finite", partial(rounds, problems[name])) for name in problems
    ]


def _partial(case: Case) -> None:
    if not case.algorithm.partial_participation:
        raise NotChecked("the method needs every client in every round")
    run_case(case, participation={"cohort": COHORT, "weights": "samples"})


def _feasible(case: Case) -> Iterator[str]:
    """Run on a problem with a small ball around the start, which every step would leave."""
    if not case.algorithm.constrained:
        raise NotChecked("constrained = False, so the method refuses problems with sets")
    # The set of an operator is its φ.
    problem = _Coupled() if case.algorithm.family == "operator" else copy.deepcopy(case.problem)
    sizes = problem.variables().sizes
    problem.sets = Sets(**dict.fromkeys(sizes, Ball(RADIUS, center=1.0)))
    # At 0 the gradients of some problems vanish.
    problem.initial = lambda rng: {block: torch.ones(size) for block, size in sizes.items()}
    if reason := run_case(replace(case, problem=problem), eval_every=1).infeasible:
        yield (
            f"{reason}: project new points with x = oracle.sets.x(x - eta * g) in client functions and "
            "shared.x = now.sets.x(...) in server functions, or set constrained = False to refuse problems "
            "with sets"
        )


def _resumed(case: Case) -> list[str]:
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        whole = run(_config(case, folder), SerialComm())
        for last in (f"checkpoint-{ROUNDS:08d}.h5", RUN_FILE):  # so that rounds remain to be done
            Path(folder, last).unlink()
        again = resume(folder, comm=SerialComm())
    return differ(again, whole)


METHOD_RUNS = (
    Check(SAME_IN_GROUPS, partial(_groups, 1e-12)),
    Check(f"rounds with {COHORT} of the clients stay finite", _partial, in_float32=False),
    Check("points stay in the problem's sets", _feasible, in_float32=False),
    Check("two runs give bitwise identical results", _repeated, in_float32=False),
    Check(
        "a resumed run and an uninterrupted run give bitwise identical results", _resumed, in_float32=False
    ),
)


# Problems


@torch.no_grad()
def _metrics(case: Case) -> Iterator[str]:
    """Check the metrics of a prepared problem. Other names in ``maximised`` would have no effect."""
    problem, probe = case.problem, probe_of(case, 0)
    point = [probe.blocks.unflatten(block, flat) for block, flat in zip(probe.blocks, probe.point)]
    rows = slice(0, problem.test_rows)
    scores = problem.predict(*point, rows).cpu().double() if problem.test_rows else None
    metrics = expect_metrics(problem.metrics(*point, scores))
    if unknown := sorted(set(problem.maximised) - set(metrics)):
        yield f"maximised: expected names of metrics ({', '.join(metrics)}), got {', '.join(unknown)}"
    elif not metrics:
        raise NotChecked("the problem has no metrics")


def _feasible_rounds(case: Case) -> Iterator[str]:
    if reason := run_case(case, eval_every=1).infeasible:
        yield (
            f"{reason}: initial() must return a point in the sets, and projecting a point twice must give "
            "the same point as projecting it once"
        )


METRICS = Check("metrics are numbers, and those to maximise are metrics", _metrics)
PROBLEM_RUNS = (
    Check(f"{ROUNDS} rounds stay finite and in the sets", _feasible_rounds),
    Check("two runs with the same seed give bitwise identical results", _repeated, in_float32=False),
    # A few steps do not amplify rounding errors of kernels that add in other orders beyond 1e-9.
    Check(SAME_IN_GROUPS, partial(_groups, 1e-9)),
)


# The report


class Report:
    """Carries out checks and prints one line for each.

    Args:
        file: the file that defines the class. For exceptions raised in it, the line number is printed.
        printed: whether lines are printed.

    Attributes:
        sound: whether no check has failed.
    """

    def __init__(self, file: str | None, printed: bool):
        self.file, self.sound = file and os.path.abspath(file), True
        self.print = Console(highlight=False, markup=False, soft_wrap=True, quiet=not printed).print

    def run(self, checks: Iterable[Check], case_of: Callable[[torch.dtype], Case]) -> bool:
        """Carry out checks, print the outcomes, and return whether no check of the report has failed.

        Args:
            case_of: returns the case in a dtype. A check that does not hold in float64 is not repeated.
        """
        for check in checks:
            for dtype in (torch.float64, torch.float32) if check.in_float32 else (torch.float64,):
                outcome, shown = "holds", check.statement
                try:
                    with default_dtype(dtype):
                        reason = "\n".join(dict.fromkeys(check.errors(case_of(dtype)) or ()))
                    outcome = "FAILS" if reason else "holds"
                except NotChecked as error:
                    outcome, reason = "not checked", str(error)
                except Exception as error:  # user code may raise anything
                    outcome, reason = "FAILS", self._reason(error)
                if check.in_float32 and outcome != "not checked":
                    shown += f", {str(dtype).removeprefix('torch.')}"
                text = f"{shown}: {reason}" if outcome != "holds" else shown
                self.print(f"{outcome:<13}" + text.replace("\n", "\n" + " " * 13))
                self.sound &= outcome != "FAILS"
                if outcome != "holds":  # most probably in any dtype
                    break
        return self.sound

    def _reason(self, error: Exception) -> str:
        if isinstance(error, ContractError | ConfigError | CollectiveError):
            return str(error)
        frames = traceback.extract_tb((error.__cause__ or error).__traceback__)
        lines = [frame.lineno for frame in frames if os.path.abspath(frame.filename) == self.file]
        where = f" ({os.path.basename(self.file)}, line {lines[-1]})" if self.file and lines else ""
        text = error if isinstance(error, ValueError) else f"{type(error).__name__}: {error}{hint(error)}"
        return f"{text}{where}"


def check_class(name: str, settings: list[str], comm: SerialComm) -> bool:
    """Run all checks of a class, print the outcome on rank 0, and return whether none has failed. Collective.

    Args:
        name: ``./file.py:Class`` or another name of a method or problem.
        settings: ``key=value`` settings of the class.

    Raises:
        ConfigError: there is no such class, or it cannot be constructed from the settings.
    """
    table: dict = {}
    apply_overrides(table, settings)
    subject = _construct(name, table)
    method = isinstance(subject, Algorithm)
    report = Report(inspect.getsourcefile(type(subject)), printed=comm.rank == 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if comm.rank == 0:
            where = "one process" if comm.size == 1 else f"one process and on {comm.size} ranks"
            what = f"{family_of(type(subject))} {'method' if method else 'problem'}"
            report.print(
                f"{type(subject).__name__} ({what}): float64 and float32 on the CPU, minibatches of {ROWS} "
                f"rows, in {where}, in temporary folders"
            )
            (_check_method if method else _check_problem)(subject, report)  # type: ignore[arg-type]
        sound = np.array([report.sound], dtype=np.int64)
        comm.bcast_(sound)

        if comm.size > 1:
            _check_ranks(subject, bool(sound[0]), comm, report)
    return bool(sound[0]) and report.sound


def _check_method(method: Algorithm, report: Report) -> None:
    @functools.cache
    def case_of(dtype: torch.dtype) -> Case:
        return Case(*runnable(method), dtype)

    if report.run(rounds_of(method), case_of):
        report.run(METHOD_RUNS, case_of)


def _check_problem(problem: Problem, report: Report) -> None:
    states: dict[torch.dtype, dict] = {}

    @functools.cache
    def prepared(dtype: torch.dtype) -> Case:
        expect_constants(problem)
        copied = copy.deepcopy(problem)
        with seeded_globals(0):  # as in a run
            copied.prepare(0, data_folder(type(problem), None))
        with contextlib.suppress(Exception):  # a user's objects may not support copies
            states[dtype] = copy.deepcopy(vars(copied))
        rounding = 1e-9 if dtype == torch.float64 else 1e-3
        return Case(copied, dtype=dtype, batch_size=ROWS, rounding=rounding)

    def runs(dtype: torch.dtype) -> Case:
        given, method = runnable(problem)
        return Case(_loaded(given, states[dtype]) if dtype in states else given, method, dtype)

    if all(report.run([check], prepared) for check in START):
        report.run([*DERIVATIVES[problem.family], METRICS], prepared)
        report.run(PROBLEM_RUNS, runs)


def _check_ranks(subject: Algorithm | Problem, sound: bool, comm: SerialComm, report: Report) -> None:
    """Compare a run on all ranks with one in one process. Collective.

    Raises:
        Exception: on one rank, to end all ranks: that rank has failed in the run, where the others wait.
    """
    case, together, failure = Case(*runnable(subject)) if sound else None, None, None
    try:
        together = run_case(case, comm) if case else None
    except CollectiveError as error:
        failure = error

    def compare(case: Case | None) -> None:
        if not case:
            raise NotChecked("a check in one process failed")
        if failure:
            raise failure
        with collective_errors(comm, Exception):
            if errors := differ(together, run_case(case)):
                raise ContractError(errors[0])

    statement = f"{comm.size} ranks and one rank give bitwise identical results"
    report.run([Check(statement, compare, in_float32=False)], lambda dtype: case)


def _construct(name: str, settings: dict):
    try:
        cls = find_class(name, "algorithm")
    except ConfigError as first:
        try:
            cls = find_class(name, "problem")
        except ConfigError:
            if is_user_defined(name):
                raise first from None
            if name.endswith(".toml"):
                raise ConfigError(
                    f"expected a method or problem, got the job file {short_repr(name)}: "
                    f"`mpifed info {name}` validates it, and `mpifed run` does so before the first round"
                ) from None
            hint = suggest(name, [*ALGORITHMS, *PROBLEMS])
            raise ConfigError(
                f"unknown method or problem {short_repr(name)}: {hint}; user-defined: ./file.py:Class"
            ) from None
    return example(cls, settings)
