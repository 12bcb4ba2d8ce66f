"""Contract tests of user-defined methods and problems: ``mpifed check ./file.py:Class``.

Each check is a statement that holds, FAILS with a reason, or is not checked with a reason. Under mpirun, a
run on all ranks is compared with the same run in one process.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import os
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from mpifed.algorithms import (
    ALGORITHMS,
    MFCGD,
    FedNestBilevel,
    FedNormSGDA,
    LocalDualExtrapolation,
    LocalSGDA,
)
from mpifed.base.console import Console
from mpifed.base.errors import ConfigError, ContractError, short_repr, user_code_errors
from mpifed.base.plugins import is_user_defined
from mpifed.base.settings import problem_settings, suggest
from mpifed.cli import check_numerics as numerics
from mpifed.cli.catalogue import example
from mpifed.cli.check_numerics import NotChecked, expect_equal, probe_of
from mpifed.config.job import Config
from mpifed.config.plugins import find_class
from mpifed.config.tables import apply_override
from mpifed.core.algorithm import Algorithm
from mpifed.core.problem import Minimax, Minimisation, Problem, defines, is_analytic
from mpifed.core.records import Blocks
from mpifed.core.sets import Ball, Box, Sets
from mpifed.core.streams import generator
from mpifed.core.validation import Probe, address, check_problem, samples_of
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

__all__ = ["Report", "check_class", "problems_for"]

#: Rounds of a run, rows of a minibatch, and clients in a partial cohort.
ROUNDS, ROWS, COHORT = 4, 2, 3
#: Sizes of groups of vectorised clients.
GROUPS = (2, 3, "all")
#: Radius of the sets that a method must respect: steps leave such a ball, rounding errors of float64 do not.
RADIUS = 1e-6
#: Number of held-out rows per call when the scores of parts are compared with the scores of all rows.
PART = 7
SAME_IN_GROUPS = "clients give the same result in a loop, and bitwise in groups of 2, 3 and all clients"
DTYPES = {"float64": torch.float64, "float32": torch.float32}
#: Family → the method with which a problem is run.
METHODS: dict[str, Algorithm] = {
    "minimax": LocalSGDA(q=2, eta_x=1e-3, eta_y=1e-3),
    "operator": LocalDualExtrapolation(K=2, eta=1e-3),
    "composition": MFCGD(q=2, gamma=1e-3),
    "bilevel": FedNestBilevel(T=1, tau=2, alpha=1e-3, beta=1e-3, J=1, ell=1e-3),
}
#: The method for minimax problems whose clients see different coordinates of y.
PROJECTS_AT_SERVER = FedNormSGDA(tau=2, eta_x=1e-3, eta_y=1e-3, gamma_x=1e-3, gamma_y=1e-3)

#: A statement, and a function that raises an exception if it does not hold, or NotChecked.
Check = tuple[str, Callable[..., object]]


class Report:
    """Runs checks and prints one line for each.

    Args:
        file: the file that defines the class. For exceptions raised in it, the line number is printed.
        printed: whether lines are printed.

    Attributes:
        sound: whether no check has failed.
    """

    def __init__(self, file: str | None, printed: bool):
        self.file, self.sound = file and os.path.abspath(file), True
        self.print = Console(highlight=False, markup=False, soft_wrap=True, quiet=not printed).print

    def run(self, checks: Iterable[Check], *arguments) -> bool:
        """Run checks, print the outcomes, and return whether no check of the report has failed.

        Functions are called with ``arguments`` and, if the statement ends with ``{dtype}``, the name of a
        dtype, for each dtype until the statement does not hold.
        """
        for statement, test in checks:
            for dtype in DTYPES if "{dtype}" in statement else [None]:
                outcome, reason, shown = "holds", "", statement.format(dtype=dtype)
                try:
                    test(*arguments, *([dtype] if dtype else []))
                except NotChecked as error:
                    outcome, reason, shown = "not checked", f": {error}", statement.removesuffix(", {dtype}")
                except Exception as error:  # user code may raise anything
                    outcome, reason, self.sound = "FAILS", f": {self._reason(error)}", False
                self.print(f"{outcome:<13}" + f"{shown}{reason}".replace("\n", "\n" + " " * 13))
                if outcome != "holds":  # most probably in any dtype
                    break
        return self.sound

    def _reason(self, error: Exception) -> str:
        if isinstance(error, AssertionError | ContractError | ConfigError | CollectiveError):
            return str(error)
        frames = traceback.extract_tb((error.__cause__ or error).__traceback__)
        lines = [frame.lineno for frame in frames if os.path.abspath(frame.filename) == self.file]
        where = f" ({os.path.basename(self.file)}, line {lines[-1]})" if self.file and lines else ""
        name = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        return f"{name}{error}{where}"


def check_class(name: str, settings: list[str], comm: SerialComm) -> bool:
    """Run all checks of a class, print the outcome on rank 0, and return whether none has failed. Collective.

    Args:
        name: ``./file.py:Class`` or another name of a method or problem.
        settings: ``key=value`` settings of the class.

    Raises:
        ConfigError: there is no such class, or it cannot be constructed from the settings.
    """
    table: dict = {}
    for text in settings:
        apply_override(table, text)
    subject = _construct(name, table)
    method = isinstance(subject, Algorithm)
    report = Report(inspect.getsourcefile(type(subject)), printed=comm.rank == 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if comm.rank == 0:
            where = "one process" if comm.size == 1 else f"one process and on {comm.size} ranks"
            what = f"{subject.family} {'method' if method else 'problem'}"
            report.print(
                f"{type(subject).__name__} ({what}): float64 and float32 on the CPU, minibatches of {ROWS} "
                f"rows, in {where}, in temporary folders"
            )
            (_check_method if method else _check_problem)(subject, report)
        sound = np.array([report.sound], dtype=np.int64)
        comm.bcast_(sound)

        if comm.size > 1:
            _check_ranks(subject, bool(sound[0]), comm, report)
    return bool(sound[0]) and report.sound


def _check_ranks(subject: Algorithm | Problem, sound: bool, comm: SerialComm, report: Report) -> None:
    """Compare a run on all ranks with one in one process. Collective.

    Raises:
        Exception: on one rank, to end all ranks: that rank has failed in the run, where the others wait.
    """
    pair = None
    if sound:
        method = isinstance(subject, Algorithm)
        pair = (subject, _runnable(subject)[0]) if method else (_method_for(subject), subject)
    together, failure = None, None
    try:
        together = _run(*pair, comm) if pair else None
    except CollectiveError as error:
        failure = error

    def compare() -> None:
        if pair is None:
            raise NotChecked("a check in one process failed")
        if failure:
            raise failure
        with collective_errors(comm, Exception):
            _same(together, _run(*pair), "the results")

    report.run([(f"{comm.size} ranks and one rank give bitwise identical results", compare)])


def _method_for(problem: Problem) -> Algorithm:
    """Return the method with which a problem is run."""
    return PROJECTS_AT_SERVER if problem.separate_coordinates else METHODS[problem.family]


def _construct(name: str, settings: dict):
    try:
        cls = find_class(name, "algorithm")
    except ConfigError as first:
        try:
            cls = find_class(name, "problem")
        except ConfigError:
            if is_user_defined(name):
                raise first from None
            hint = suggest(name, [*ALGORITHMS, *PROBLEMS])
            raise ConfigError(
                f"unknown method or problem {short_repr(name)}: {hint}; user-defined: ./file.py:Class"
            ) from None
    return example(cls, settings)


# Short runs


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


def _config(method: Algorithm, problem: Problem, folder: str, participation=None, **settings) -> Config:
    """Return a short job on the CPU; ``settings`` belong to [run]."""
    table = {"dtype": "float64", "device": "cpu", "progress": False, "overwrite": True, "out": folder}
    table |= {"eval_every": ROUNDS, "reduction": "exact", "group": 1, "checkpoint_every": 2}
    job = {"algorithm": method, "problem": copy.deepcopy(problem), "rounds": ROUNDS, "run": table | settings}
    return Config(**job, oracle={"batch_size": ROWS}, participation=participation or {})


def _simulation(method: Algorithm, problem: Problem, **settings) -> Simulation:
    """Return a simulation of a short job, which writes no files. Its warnings are not printed."""
    with contextlib.redirect_stderr(io.StringIO()):
        return Simulation.from_settings(_config(method, problem, "unused", **settings), SerialComm())


def _run(method: Algorithm, problem: Problem, comm: SerialComm | None = None, **settings) -> Result:
    """Carry out a short job without its warnings, because the checks report their causes. Collective."""
    comm = comm or SerialComm()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        with collective_errors(comm, OSError):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
        done = run(_config(method, problem, broadcast_text(comm, folder), **settings), comm)
        comm.barrier()
    return done


def _same(one: Result, other: Result, what: str, tolerance: float = 0.0) -> None:
    expect_equal(*(torch.cat(list(done.point.values())) for done in (one, other)), what, tolerance)


def _groups(tolerance: float, method: Algorithm, problem: Problem, dtype: str) -> None:
    """Compare groups of different sizes with each other, and in float64 with clients that are looped over.

    All groups of vectorised clients give bitwise identical results. Vectorised and looped clients agree to
    ``tolerance``, because kernels may add in another order.
    """
    if reason := _simulation(method, problem, group="all", dtype=dtype).rounds.choice.note:
        # The run would loop. The author of analytic derivatives can remove the cause.
        raise (AssertionError if is_analytic(problem) else NotChecked)(reason)
    first, *others = (_run(method, problem, group=group, dtype=dtype) for group in GROUPS)
    if dtype == "float64":
        looped = _run(method, problem, dtype=dtype)
        _same(first, looped, "the results of vectorised and of looped clients", tolerance)
    for group, other in zip(GROUPS[1:], others):
        _same(other, first, f"the results of groups of {group} and of {GROUPS[0]}")


# Methods


def _check_method(method: Algorithm, report: Report) -> None:
    """Run the checks of a method in one process."""
    problem, refusals = _runnable(method)

    def rounds(name: str, one: Problem, dtype: str = "") -> None:
        if name in refusals:
            raise (NotChecked if problem else ContractError)(refusals[name])
        _run(method, one, dtype=dtype)

    runs: list[Check] = []
    for name, one in problems_for(method).items():
        statement = f"{ROUNDS} rounds on {name} stay finite" + ", {dtype}" * (name not in refusals)
        runs.append((statement, partial(rounds, name, one)))
    if report.run(runs):
        report.run(METHOD_CHECKS, method, problem)


def _runnable(method: Algorithm) -> tuple[Problem | None, dict[str, str]]:
    """Return the first problem on which a method can run, and the reasons why it refuses others."""
    first, refusals = None, {}
    for name, problem in problems_for(method).items():
        try:
            _simulation(method, problem)
            first = first or problem
        except (ConfigError, ContractError, CollectiveError) as error:
            refusals[name] = str(error)
    return first, refusals


def _partial(method: Algorithm, problem: Problem) -> None:
    if not method.partial_participation:
        raise NotChecked("the method needs every client in every round")
    _run(method, problem, participation={"cohort": COHORT, "weights": "samples"})


def _feasible(method: Algorithm, problem: Problem) -> None:
    """Run on a problem with a small ball around the start, which every step would leave."""
    if not method.constrained:
        raise NotChecked("constrained = False, so the method refuses problems with sets")
    # The set of an operator is its φ.
    problem = _Coupled() if method.family == "operator" else copy.deepcopy(problem)
    sizes = problem.variables().sizes
    problem.sets = Sets(**dict.fromkeys(sizes, Ball(RADIUS, center=1.0)))
    # At 0 the gradients of some problems vanish.
    problem.initial = lambda rng: {block: torch.ones(size) for block, size in sizes.items()}  # type: ignore[method-assign]
    if reason := _run(method, problem, eval_every=1).infeasible:
        raise AssertionError(
            f"{reason}: project new points with x = oracle.sets.x(x - eta * g) in client functions and "
            "shared.x = now.sets.x(...) in server functions, or set constrained = False to refuse problems "
            "with sets"
        )


def _repeated(method: Algorithm, problem: Problem) -> None:
    _same(_run(method, problem), _run(method, problem), "the results")


def _resumed(method: Algorithm, problem: Problem) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        whole = run(_config(method, problem, folder), SerialComm())
        for last in (f"checkpoint-{ROUNDS:08d}.h5", RUN_FILE):  # so that rounds remain to be done
            Path(folder, last).unlink()
        again = resume(folder, comm=SerialComm())
    _same(again, whole, "the results")


METHOD_CHECKS: list[Check] = [
    (f"{SAME_IN_GROUPS}, {{dtype}}", partial(_groups, 1e-12)),
    (f"rounds with {COHORT} of the clients stay finite", _partial),
    ("points stay in the problem's sets", _feasible),
    ("two runs give bitwise identical results", _repeated),
    ("a resumed run and an uninterrupted run give bitwise identical results", _resumed),
]


# Problems


class _Case(NamedTuple):
    """A problem that is not prepared, and prepared copies of it by dtype."""

    problem: Problem
    prepared: dict[str, Problem]

    @property
    def exact(self) -> Problem:
        return self.prepared["float64"]

    def probes(self) -> list[Probe]:
        return [probe_of(self.exact, client) for client in sorted({0, self.exact.clients - 1})]


def _check_problem(problem: Problem, report: Report) -> None:
    """Run the checks of a problem in one process."""
    case = _Case(problem, {})
    with default_dtype(torch.float64):
        if report.run([("declarations, start, data and return values are valid, {dtype}", _valid)], case):
            report.run([*DERIVATIVE_CHECKS[problem.family], *PROBLEM_CHECKS], case)


def _valid(case: _Case, dtype: str) -> None:
    expect_constants(case.problem)
    case.prepared[dtype] = problem = copy.deepcopy(case.problem)
    with default_dtype(DTYPES[dtype]), user_code_errors(type(problem).__name__):
        problem.prepare(0)
        check_problem(problem, dtype=DTYPES[dtype], batch_size=ROWS)


def _derivatives(name: str, case: _Case) -> None:
    if defines(case.exact, name):
        for probe in case.probes():
            numerics.compare_derivatives(name, probe)
    elif name == "loss":
        for probe in case.probes():
            numerics.expect_symmetric(probe)
        raise NotChecked("the problem defines no loss; its gradients have symmetric derivatives")
    else:
        raise NotChecked(f"the problem defines no {name}")


def _monotone(case: _Case) -> None:
    if not case.exact.monotone:  # type: ignore[attr-defined]
        raise NotChecked(f"the problem has monotone = {case.exact.monotone}")
    if _generates(case.exact):
        raise NotChecked("samples are generated, so the expectation of V is unknown")
    numerics.expect_monotone(case.exact)


def _coordinates(case: _Case) -> None:
    """Compare the coordinates of y in which the gradients of two clients on all their data are not 0."""
    problem = case.exact
    if problem.separate_coordinates:
        raise NotChecked("separate_coordinates = True, so methods that project at the clients are refused")
    if "y" not in problem.sets or problem.clients < 2:
        raise NotChecked("y has no set" if "y" not in problem.sets else "the problem has one client")
    if isinstance(problem.sets.y, Box):
        raise NotChecked("the set of y is a box, which is projected coordinate by coordinate")
    if _generates(problem):
        raise NotChecked("samples are generated, so the expectation of the gradient is unknown")
    one, other = (
        numerics.ascent(Probe(problem, probe.clients, probe.point, 0)) != 0 for probe in case.probes()
    )
    if one.any() and other.any() and not (one & other).any():
        raise AssertionError(
            "the gradients of two clients have no common coordinate of y that is not 0, so the average of "
            "points that clients have projected is not the projection of the average: set "
            "separate_coordinates = True, so that methods that project at the clients are refused"
        )


def _generates(problem: Problem) -> bool:
    """Return whether the problem generates samples rather than storing rows."""
    return problem.draw(address([0], 1, samples_of(problem)[0]), ROWS) is not None


def _pure(case: _Case) -> None:
    for probe in case.probes():
        if not all(map(torch.equal, _values(probe), _values(probe))):
            raise AssertionError("a function returns other values for the same arguments")


def _values(probe: Probe) -> list[torch.Tensor]:
    """Return copies of all values of all functions."""
    return [value.clone() for _, function, *_ in probe.calls() for value in tree_leaves(function())]


def _draws(case: _Case) -> None:
    problem, last = case.exact, case.exact.clients - 1
    if not _generates(problem):
        raise NotChecked("samples are rows of the data")

    def draw(clients: list[int], count: int, of: str) -> list[np.ndarray]:
        return [np.asarray(array) for array in problem.draw(address(clients, count, of), ROWS) or ()]

    for of in samples_of(problem):
        both, again, part = draw([0, last], 3, of), draw([0, last], 3, of), draw([last], 2, of)
        pairs = [*zip(both, again), *((one[1:, :2], other) for one, other in zip(both, part))]
        if not all(np.array_equal(one, other) for one, other in pairs):
            raise AssertionError(
                "a sample depends on the call, on the other clients or on the number of samples: draw all "
                "random numbers from `stream`"
            )


@torch.no_grad()
def _scores(case: _Case, dtype: str) -> None:
    """Compare the scores of all held-out rows near the start with the scores of parts of them.

    Kernels for few and for many rows add in other orders, so scores of size 1 differ by some ulps. Names in
    ``maximised`` must be metrics: other names would have no effect.
    """
    problem, predictions = case.prepared[dtype], None
    total, tolerance = problem.test_rows, 1e-9 if dtype == "float64" else 1e-3
    with default_dtype(DTYPES[dtype]):
        probe = probe_of(problem, 0, DTYPES[dtype])
        named = [probe.blocks.unflatten(block, flat) for block, flat in zip(probe.blocks, probe.point)]
        if total:
            predictions = problem.predict(*named, slice(0, total))
            if len(predictions) != total:
                raise AssertionError(f"predict(): expected {total} scores, got {len(predictions)}")
            slices = [slice(i, min(i + PART, total)) for i in range(0, total, PART)]
            parts = torch.cat([problem.predict(*named, rows) for rows in slices]).cpu().double()
            predictions = predictions.cpu().double()
            expect_equal(parts, predictions, "the scores of parts and of all rows", tolerance)
        metrics = expect_metrics(problem.metrics(*named, predictions))
    if unknown := sorted(set(problem.maximised) - set(metrics)):
        raise AssertionError(
            f"maximised: expected names of metrics ({', '.join(metrics)}), got {', '.join(unknown)}"
        )
    if not metrics:
        raise NotChecked("the problem has no metrics")


def _finite(case: _Case, dtype: str) -> None:
    if reason := _run(_method_for(case.problem), case.problem, dtype=dtype, eval_every=1).infeasible:
        raise AssertionError(
            f"{reason}: initial() must return a point in the sets, and projecting a point twice must give "
            "the same point as projecting it once"
        )


def _problem_repeated(case: _Case) -> None:
    _repeated(_method_for(case.problem), case.problem)


def _problem_groups(case: _Case, dtype: str) -> None:
    # A few steps do not amplify rounding errors of kernels that add in other orders beyond 1e-9.
    _groups(1e-9, _method_for(case.problem), case.problem, dtype)


DERIVATIVE_CHECKS: dict[str, list[Check]] = {
    "minimax": [
        ("gradients agree with finite differences of the loss", partial(_derivatives, "loss")),
        ("clients see the same coordinates of a constrained y", _coordinates),
    ],
    "operator": [("the operator is monotone on pairs of points", _monotone)],
    "composition": [
        ("Jacobians agree with finite differences of inner", partial(_derivatives, "inner")),
        ("outer gradients agree with finite differences of outer", partial(_derivatives, "outer")),
    ],
    "bilevel": [
        ("gradients agree with finite differences of upper", partial(_derivatives, "upper")),
        ("gradients agree with finite differences of lower", partial(_derivatives, "lower")),
    ],
}
PROBLEM_CHECKS: list[Check] = [
    ("functions depend on their arguments only", _pure),
    ("a sample depends only on its address", _draws),
    ("scores do not depend on the other rows of a call, and metrics are numbers, {dtype}", _scores),
    (f"{ROUNDS} rounds stay finite and in the sets, {{dtype}}", _finite),
    ("two runs with the same seed give bitwise identical results", _problem_repeated),
    (f"{SAME_IN_GROUPS}, {{dtype}}", _problem_groups),
]
