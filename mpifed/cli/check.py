"""Contract tests of user-defined methods and problems: ``mpifed check ./file.py:Class``.

Each check is a statement that holds, FAILS with a reason, or is not checked with a reason. Under mpirun, a
run on all ranks is compared with the same run in one process.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import io
import math
import os
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field

from mpifed.algorithms import MFCGD, LocalDualExtrapolation, LocalSGDA
from mpifed.base.console import Console
from mpifed.base.errors import ConfigError, ContractError
from mpifed.base.settings import problem_settings
from mpifed.cli import check_numerics as numerics
from mpifed.cli.catalogue import example
from mpifed.cli.check_numerics import NotChecked, Probe
from mpifed.config.job import Config, find
from mpifed.config.tables import override
from mpifed.core import validation
from mpifed.core.algorithm import Algorithm
from mpifed.core.problem import Minimax, Minimisation, Problem, defines, is_analytic
from mpifed.core.records import Blocks
from mpifed.core.sets import Ball, Sets
from mpifed.core.streams import generator
from mpifed.core.validation import address, samples_of
from mpifed.parallel.comm import CollectiveError, SerialComm, broadcast_text
from mpifed.problems import AffineGame, L1BoxBilinear, LinearMAML
from mpifed.running.run import resume, run
from mpifed.simulation.evaluation import expect_metrics
from mpifed.simulation.setup import default_dtype
from mpifed.simulation.simulation import Observer, Simulation
from mpifed.simulation.state import expect_constants
from mpifed.storage.files import RUN_FILE

__all__ = ["Report", "check_class", "check_method", "problems_for"]

#: Rounds of a run, rows of a minibatch, and clients in a partial cohort.
ROUNDS, ROWS, COHORT = 4, 2, 3
#: Sizes of groups of vectorised clients.
GROUPS = (2, 3, "all")
#: Radius of the sets that a method must respect: steps leave such a ball, rounding errors of float64 do not.
RADIUS = 1e-6
#: Number of held-out rows per call when the scores of parts are compared with the scores of all rows.
PART = 7
DTYPES = {"float64": torch.float64, "float32": torch.float32}
#: Family → the method with which a problem is run.
METHODS: dict[str, Algorithm] = {
    "minimax": LocalSGDA(q=2, eta_x=1e-3, eta_y=1e-3),
    "operator": LocalDualExtrapolation(K=2, eta=1e-3),
    "composition": MFCGD(q=2, gamma=1e-3),
}


class Report:
    """Prints one line per check.

    Args:
        file: the file that defines the class. For exceptions raised in it, the line number is printed.
        printed: whether lines are printed.

    Attributes:
        sound: whether no check has failed.
    """

    def __init__(self, file: str | None, printed: bool):
        self.file, self.sound = file and os.path.abspath(file), True
        self._console = Console(highlight=False, markup=False, soft_wrap=True, quiet=not printed)

    def print(self, text: str) -> None:
        self._console.print(text)

    def check(self, statement: str, test: Callable[..., object], *arguments, **settings) -> bool:
        """Run ``test(*arguments, **settings)``, print the outcome, and return whether it has not failed."""
        try:
            test(*arguments, **settings)
        except NotChecked as reason:
            self.skip(statement, str(reason))
        except Exception as error:  # user code may raise anything
            self.sound = False
            self._line("FAILS", statement, self._reason(error))
            return False
        else:
            self._line("holds", statement)
        return True

    def skip(self, statement: str, reason: str) -> None:
        """Print that a statement is not checked."""
        self._line("not checked", statement, reason)

    def _line(self, outcome: str, statement: str, reason: str = "") -> None:
        text = f"{statement}: {reason}" if reason else statement
        self.print(f"{outcome:<13}" + text.replace("\n", "\n" + " " * 13))

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
        override(table, text)
    subject = _construct(name, table)
    report = Report(_source_file(type(subject)), printed=comm.rank == 0)
    method = isinstance(subject, Algorithm)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if comm.rank == 0:
            kind = "method" if method else "problem"
            where = "one process" if comm.size == 1 else f"one process and on {comm.size} ranks"
            report.print(
                f"{type(subject).__name__} ({subject.family} {kind}): float64 and float32 on the CPU, "
                f"minibatches of {ROWS} rows, in {where}, in temporary folders"
            )
            (check_method if method else _check_problem)(subject, report)
        sound = np.array([report.sound], dtype=np.int64)
        comm.bcast_(sound)
        statement = f"{comm.size} ranks give bitwise the same result as one rank"
        if comm.size > 1 and sound[0]:
            pair = (subject, _runnable(subject)[0]) if method else (METHODS[subject.family], subject)
            report.check(statement, lambda: _same(*(result(*pair, one) for one in (comm, SerialComm()))))
        elif comm.size > 1:
            report.skip(statement, "a check in one process failed")
    return bool(sound[0]) and report.sound


def _construct(name: str, settings: dict):
    try:
        cls = find(name, "algorithm")
    except ConfigError as first:
        try:
            cls = find(name, "problem")
        except ConfigError:
            raise first from None
    return example(cls, settings)


def _source_file(cls: type) -> str | None:
    try:
        return inspect.getsourcefile(cls)
    except TypeError:
        return None


# Short runs


class _Rows:
    """Client k has 3 + k rows of three features, one target and two couplings."""

    def client_data(self, client: int) -> tuple[torch.Tensor, ...]:
        rows = torch.from_numpy(generator(0, "check rows", client).standard_normal((3 + client, 6)))
        return rows[:, :3], rows[:, 3], rows[:, 4:]


@problem_settings
class _Coupled(_Rows, Minimax):
    """Least squares in x, coupled with y: strongly convex in x, strongly concave in y."""

    clients: int = Field(default=5, ge=1, description="number of clients")

    def variables(self) -> Blocks:
        return Blocks(x={"x": (3,)}, y={"y": (2,)})

    def loss(self, x, y, batch):
        features, targets, couplings = batch
        score, regular = features @ x["x"], (x["x"] ** 2).sum() - (y["y"] ** 2).sum()
        return ((score - targets) ** 2 / 2 + score * (couplings @ y["y"])).mean() + regular / 2


@problem_settings
class _LeastSquares(_Rows, Minimisation):
    """Least squares in x, without a block y."""

    clients: int = Field(default=5, ge=1, description="number of clients")

    def variables(self) -> Blocks:
        return Blocks(x={"x": (3,)})

    def loss(self, x, batch):
        return ((batch[0] @ x["x"] - batch[1]) ** 2).mean() / 2


def problems_for(method: Algorithm) -> dict[str, Problem]:
    """Return the problems on which a method is run, by a description."""
    least_squares = {"a problem without y": _LeastSquares()}
    if method.family == "composition":
        return {"a composition": LinearMAML(clients=5, d=3, samples=6)}
    if method.family != "operator":
        return (
            least_squares
            if method.family == "minimisation"
            else {
                "a minimax problem": _Coupled(),
                **least_squares,
            }
        )
    return {
        "an affine game": AffineGame(clients=5, d=4, strong=0.1),
        "a minimax problem as a game": _Coupled(),
        **({"a game with a convex part": L1BoxBilinear(clients=5, dx=3, dy=2)} if method.composite else {}),
        "a problem without y as a game": _LeastSquares(),
    }


def _config(
    method: Algorithm, problem: Problem, folder: str, participation: dict | None = None, **settings
) -> Config:
    """Return a short job on the CPU; ``settings`` belong to [run]."""
    table = {"dtype": "float64", "device": "cpu", "progress": False, "overwrite": True, "out": folder}
    table |= {"eval_every": ROUNDS, "reduction": "exact", "group": 1, "checkpoint_every": 2}
    return Config(
        algorithm=method,
        problem=copy.deepcopy(problem),
        rounds=ROUNDS,
        oracle={"batch_size": ROWS},
        participation=participation or {},
        run=table | settings,
    )


@contextlib.contextmanager
def _simulation(method: Algorithm, problem: Problem, *observers: Observer, **settings):
    """Construct a simulation of a short job in a temporary folder, without its warnings."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        config = _config(method, problem, folder, **settings)
        simulation = Simulation.from_settings(config, SerialComm(), observers=list(observers))
        for observer in observers:
            observer.simulation = simulation
        yield simulation


def _two_rounds(method: Algorithm, problem: Problem, *observers: Observer, **settings) -> None:
    with _simulation(method, problem, *observers, **settings) as simulation:
        simulation.start()
        for _ in range(2):
            simulation.step()


def result(method: Algorithm, problem: Problem, comm: SerialComm | None = None, **settings) -> np.ndarray:
    """Return the final point of a short run, ``[d]``, all blocks concatenated. Collective.

    Warnings of the run are not printed, because the checks report their causes.
    """
    comm = comm or SerialComm()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        done = run(_config(method, problem, broadcast_text(comm, folder), **settings), comm)
        comm.barrier()
    return torch.cat(list(done.point.values())).numpy()


def _same(one: np.ndarray, other: np.ndarray, what: str = "the results", tolerance: float = 0.0) -> None:
    """Raise an AssertionError if two arrays differ by more than ``tolerance`` times max(1, ‖other‖∞)."""
    difference = float(np.abs(one - other).max(initial=0.0))
    if not difference <= tolerance * max(1.0, float(np.abs(other).max(initial=0.0))):
        raise AssertionError(f"{what} differ by up to {difference:.3g}")


def _check_groups(method: Algorithm, problem: Problem, report: Report, tolerance: float) -> None:
    """Compare vectorised clients with looped clients, and groups of different sizes with each other.

    Vectorised and looped clients agree to ``tolerance``, because kernels may add in another order. All groups
    of vectorised clients give bitwise identical results.
    """
    statement = f"groups of {GROUPS[0]}, {GROUPS[1]} and all clients give bitwise the same result"

    def looped() -> str:
        """Return why a run would loop over the clients, "" if it would vectorise them."""
        try:
            with _simulation(method, problem, group="all") as simulation:
                return simulation.rounds.choice.note
        except ValueError:  # reported by the next check
            return ""

    def fail(reason: str) -> None:
        raise AssertionError(reason)

    def in_groups(dtype: str) -> None:
        first, *others = (result(method, problem, group=group, dtype=dtype) for group in GROUPS)
        for group, other in zip(GROUPS[1:], others):
            _same(other, first, f"the results of groups of {group} and of {GROUPS[0]}")

    def vectorised() -> None:
        _same(result(method, problem, group="all"), result(method, problem), tolerance=tolerance)

    if reason := looped():
        if is_analytic(problem):  # the author of analytic derivatives can remove the cause
            report.check(statement, fail, reason)
        else:
            report.skip(statement, reason)
    elif report.check("vectorised clients agree with looped clients", vectorised):
        for dtype in DTYPES:
            report.check(f"{statement}, {dtype}", in_groups, dtype)
    else:
        report.skip(statement, "vectorised and looped clients do not agree")


# Methods


def check_method(method: Algorithm, report: Report) -> None:
    """Run the checks of a method in one process."""
    report.check("the hyperparameters are a frozen dataclass", hash, method)
    problem = _first_finite(method, report)
    if problem is None:
        return
    partial = {"participation": {"cohort": COHORT}} if method.partial_participation else {}
    report.check(
        "client functions write only the records of their own clients",
        *(_two_rounds, method, problem, _Writes()),
        **partial,
    )
    _check_groups(method, problem, report, 1e-12)
    statement = f"averages over {COHORT} of {problem.clients} clients equal plain sums"
    if method.partial_participation:
        for weights in ("uniform", "samples"):
            partial = {"participation": {"cohort": COHORT, "weights": weights}}
            report.check(
                f"{statement}, weights = {weights}", _two_rounds, method, problem, _Means(), **partial
            )
    else:
        report.skip(statement, "the method needs every client in every round")
    statement = "points stay in the problem's sets"
    if method.constrained:  # the set of an operator is its φ
        report.check(statement, _feasible, method, _Coupled() if method.family == "operator" else problem)
    else:
        report.skip(statement, "constrained = False, so the method refuses problems with sets")
    report.check(
        "float64 stays float64",
        *(numerics.expect_float64, report.file, lambda: _two_rounds(method, problem)),
        alone=True,
    )
    report.check(
        "a second run gives bitwise the same result",
        lambda: _same(result(method, problem), result(method, problem)),
    )
    report.check("a resumed run gives bitwise the same result", _resumes, method, problem)


def _runnable(method: Algorithm) -> tuple[Problem | None, dict[str, str]]:
    """Return the first problem on which a method can run, and the reasons why it refuses others."""
    first, refusals = None, {}
    for name, problem in problems_for(method).items():
        try:
            with _simulation(method, problem):
                first = first or problem
        except (ConfigError, ContractError) as error:
            refusals[name] = str(error)
    return first, refusals


def _first_finite(method: Algorithm, report: Report) -> Problem | None:
    """Run a method on all problems of its family, and return the first problem on which no run fails."""
    problems, (_, refusals), sound = problems_for(method), _runnable(method), []

    def refuse(reason: str) -> None:
        raise ContractError(reason)

    for name, problem in problems.items():
        if name not in refusals:
            statement = f"{ROUNDS} rounds on {name} stay finite"
            runs = [report.check(f"{statement}, {one}", result, method, problem, dtype=one) for one in DTYPES]
            sound += [problem] * all(runs)
    if len(refusals) == len(problems):
        name, reason = next(iter(refusals.items()))
        report.check(f"the method runs on {name}", refuse, reason)
        return None
    for name, reason in refusals.items():
        report.skip(f"rounds on {name}", reason)
    return sound[0] if sound else None


class _Writes(Observer):
    """Raises an AssertionError if a client function writes to ``shared`` or to records of other clients."""

    def before_clients(self, stage, cohort, members):
        self._shared = self.simulation.shared.buffer.clone()
        self._clients = self.simulation.clients.buffer.clone()

    def after_clients(self, stage, cohort, members):
        shared, clients = self.simulation.shared, self.simulation.clients.buffer
        changed = (self._shared != shared.buffer).nonzero()
        if len(changed):
            field = shared.layout.field_at(int(changed[0]))
            raise AssertionError(
                f"phase {stage.phase.name!r} changed shared.{field}: client functions must not write to "
                "`shared`, not even by in-place operations"
            )
        others = torch.ones(len(clients), dtype=torch.bool)
        others[cohort.local[members]] = False
        if not torch.equal(self._clients[others], clients[others]):
            raise AssertionError(
                f"phase {stage.phase.name!r} changed the records of clients outside its group"
            )


class _Means(Observer):
    """Compares every average with a plain weighted sum over the cohort."""

    def after_clients(self, stage, cohort, members):
        rows = stage.messages.buffer[: members.stop - members.start].clone()
        self._rows = torch.cat([self._rows, rows]) if members.start else rows

    def after_mean(self, stage, cohort):
        by_samples = self.simulation.config.participation.weights == "samples"
        size = self.simulation.problem.client_size if by_samples else lambda client: 1
        weights = torch.tensor([float(size(client)) for client in cohort.members.tolist()]).double()
        expected = (weights @ self._rows[: len(weights)]) / weights.sum()
        name = f"the average of phase {stage.phase.name!r} and the expected average"
        _same(stage.mean.buffer.numpy(), expected.numpy(), name, 1e-12)  # sums in another order


def _feasible(method: Algorithm, problem: Problem) -> None:
    """Run on a problem with a small ball around the start, which every step would leave."""
    problem = copy.deepcopy(problem)
    sizes = problem.variables().sizes
    problem.sets = Sets(**dict.fromkeys(sizes, Ball(RADIUS, center=1.0)))
    # At 0 the gradients of some problems vanish.
    problem.initial = lambda rng: {block: torch.ones(size) for block, size in sizes.items()}  # type: ignore[method-assign]
    with _simulation(method, problem) as simulation:
        simulation.start()
        for _ in range(ROUNDS):
            simulation.step()
            for point in (simulation.shared, simulation.output):
                simulation.evaluate(point)
        if simulation.infeasible:
            raise AssertionError(
                f"{simulation.infeasible}: project new points with x = oracle.sets.x(x - eta * g) in client "
                "functions and shared.x = now.sets.x(...) in server functions, or set constrained = False to "
                "refuse problems with sets"
            )


def _resumes(method: Algorithm, problem: Problem) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        whole = run(_config(method, problem, folder), SerialComm())
        for last in (f"checkpoint-{ROUNDS:08d}.h5", RUN_FILE):  # so that rounds remain to be done
            Path(folder, last).unlink()
        again = resume(folder, comm=SerialComm())
    _same(*(torch.cat(list(one.point.values())).numpy() for one in (again, whole)))


# Problems


def _check_problem(problem: Problem, report: Report) -> None:
    """Run the checks of a problem in one process. ``problem`` is not prepared; copies of it are."""
    if not report.check("the settings are a dataclass", dataclasses.fields, problem):
        return
    made: dict[str, Problem] = {}
    for dtype in DTYPES:
        statement = f"declarations, start, data and return values are valid, {dtype}"
        if not report.check(statement, lambda dtype=dtype: made.update({dtype: _valid(problem, dtype)})):
            return
    exact = made["float64"]
    with default_dtype(torch.float64):
        probes = [Probe(exact, client) for client in sorted({0, exact.clients - 1})]
        _check_derivatives(exact, probes, report)
        report.check("functions do not change their arguments", _arguments, probes)
        report.check(
            "float64 stays float64",
            *(numerics.expect_float64, report.file),
            lambda: [call() for at in probes for call in numerics.calls(at)],
        )
    report.check("the same seed prepares the same problem", _reproducible, problem, exact)
    report.check("a sample depends only on its address", _draws, exact)
    report.check("projecting a point twice is projecting it once", _projections, exact)
    for dtype in DTYPES:
        _check_metrics(made[dtype], dtype, report)
    method = METHODS[problem.family]
    statement = f"{ROUNDS} rounds of {type(method).__name__} stay finite"
    if [report.check(f"{statement}, {dtype}", result, method, problem, dtype=dtype) for dtype in DTYPES][0]:
        # A few steps do not amplify rounding errors of kernels that add in other orders beyond 1e-9.
        _check_groups(method, problem, report, 1e-9)


def _prepared(problem: Problem, dtype: str) -> Problem:
    made = copy.deepcopy(problem)
    with default_dtype(DTYPES[dtype]):
        made.prepare(0)
    return made


def _valid(problem: Problem, dtype: str) -> Problem:
    """Return a prepared copy that satisfies the contract."""
    expect_constants(problem)
    made = _prepared(problem, dtype)
    with default_dtype(DTYPES[dtype]):
        validation.check_problem(made, dtype=DTYPES[dtype], batch_size=ROWS)
    return made


def _check_derivatives(problem: Problem, probes: list[Probe], report: Report) -> None:
    """Check gradients, operators and Jacobians as far as there is something to compare them with."""

    def check(statement: str, compare: Callable[[Probe], None]) -> None:
        report.check(statement, lambda: [compare(at) for at in probes])

    def how(function) -> str:
        return "" if function is None else "analytic "

    if problem.family == "minimax" and defines(problem, "loss"):
        name = f"{how(problem.gradients)}gradients agree with finite differences of the loss"
        check(name, numerics.compare_gradients)
    elif problem.family == "minimax":
        check("analytic gradients are the gradients of a function", numerics.expect_symmetric)
        report.skip("the values of the gradients", "the problem defines no loss to compare them with")
    elif problem.family == "operator":
        report.skip("the values of the operator", "there is nothing to compare them with")
        report.check("the operator is monotone on pairs of points", _monotone, problem)
    else:
        name = f"{how(problem.jacobian)}Jacobians agree with finite differences of inner"
        check(name, numerics.compare_jacobian)
        if defines(problem, "outer"):
            name = f"{how(problem.outer_gradient)}outer gradients agree with finite differences of outer"
            check(name, numerics.compare_outer)
        else:
            report.skip(
                "the values of the outer gradient", "the problem defines no outer to compare them with"
            )


def _monotone(problem: Any) -> None:
    if not problem.monotone:
        raise NotChecked(f"expected monotone = True, the problem has monotone = {problem.monotone}")
    if _generates(problem):
        raise NotChecked("samples are generated, so the expectation of V is unknown")
    numerics.expect_monotone(problem)


def _generates(problem: Problem) -> bool:
    return problem.draw(address([0], 1, samples_of(problem)[0]), ROWS) is not None


def _arguments(probes: list[Probe]) -> None:
    for at in probes:
        tensors = [*at.point, *(column for batch in at.batches.values() for column in batch)]
        before = [tensor.clone() for tensor in tensors]
        for call in numerics.calls(at):
            call()
        if not all(map(torch.equal, before, tensors)):
            raise AssertionError("a function writes to its point or its batch in place")


def _reproducible(problem: Problem, made: Problem) -> None:
    other = _prepared(problem, "float64")

    def differ(one, two) -> bool:
        return not torch.equal(torch.as_tensor(one), torch.as_tensor(two))

    for client in sorted({0, made.clients - 1}):
        if any(map(differ, made.client_data(client), other.client_data(client))):
            raise AssertionError(f"client_data({client}) differs between two copies with the same seed")
    first, second = (one.initial(generator(0, "initial")) for one in (made, other))
    if any(differ(first[block], second[block]) for block in first):
        raise AssertionError("initial(rng) differs between two generators with the same seed")


def _draws(problem: Problem) -> None:
    if not _generates(problem):
        raise NotChecked("samples are rows of the data")
    last = problem.clients - 1

    def draw(clients: list[int], count: int, of: str) -> list[np.ndarray]:
        return [np.asarray(array) for array in problem.draw(address(clients, count, of), ROWS)]

    for of in samples_of(problem):
        both = draw([0, last], 3, of)
        pairs = [*zip(both, draw([0, last], 3, of))]
        pairs += [(one[1:, :2], other) for one, other in zip(both, draw([last], 2, of))]
        if not all(np.array_equal(one, other) for one, other in pairs):
            raise AssertionError(
                "a sample depends on the call, on the other clients or on the number of samples: draw all "
                "random numbers from `stream`"
            )


def _projections(problem: Problem) -> None:
    if not list(problem.sets):
        raise NotChecked("all blocks are unconstrained")
    rng = generator(0, "projections")
    for block in problem.sets:
        points = torch.from_numpy(3 * rng.standard_normal((4, problem.variables().sizes[block])))
        once = getattr(problem.sets, block)(points)
        if once.shape != points.shape:
            raise AssertionError(
                f"the projection of {block!r}: expected shape {list(points.shape)}, got {list(once.shape)}"
            )
        # A second projection may change the last digits.
        if not torch.allclose(once, getattr(problem.sets, block)(once), rtol=1e-9, atol=1e-12):
            raise AssertionError(f"the projection of {block!r} moves a projected point")


def _check_metrics(problem: Problem, dtype: str, report: Report) -> None:
    """Check held-out scores and metrics near the start."""
    blocks, scores = problem.variables(), []
    near = numerics.near_start(problem)
    named = [blocks.unflatten(block, flat.to(DTYPES[dtype])) for block, flat in zip(blocks, near)]
    with default_dtype(DTYPES[dtype]), torch.no_grad():
        if problem.test_rows and not report.check(
            f"scores of held-out rows do not depend on the other rows of a call, {dtype}",
            lambda: scores.append(_scores(problem, named, 1e-9 if dtype == "float64" else 1e-3)),
        ):
            report.skip(f"metrics, {dtype}", "they need the scores of held-out rows")
            return
        statement = f"metrics are finite and have the same names at every evaluation, {dtype}"
        report.check(statement, _metrics, problem, named, scores[0] if scores else None)


def _metrics(problem: Problem, named: list, predictions: torch.Tensor | None) -> None:
    metrics = expect_metrics(problem.metrics(*named, predictions))
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise AssertionError(f"{name}: expected a finite number near the start, got {value}")
    twice = [{key: 2 * value for key, value in block.items()} for block in named]
    for point in (twice, named):
        again = expect_metrics(problem.metrics(*point, predictions))
        if changed := sorted({*again} ^ {*metrics}):
            raise AssertionError(
                f"{', '.join(changed)}: expected the same names at every evaluation, with NaN for missing "
                "values"
            )
    if unknown := sorted(set(problem.maximised) - set(metrics)):
        raise AssertionError(
            f"maximised: expected names of metrics ({', '.join(metrics)}), got {', '.join(unknown)}"
        )
    if not metrics:
        raise NotChecked("the problem has no metrics")


def _scores(problem: Problem, named: list, tolerance: float) -> torch.Tensor:
    """Return the scores of all held-out rows, compared with the scores of parts of them.

    Kernels for few and for many rows add in other orders, so scores of size 1 differ by some ulps.
    """
    total = problem.test_rows
    whole = problem.predict(*named, slice(0, total))
    if whole.shape[0] != total:
        raise AssertionError(f"predict(): expected {total} scores for {total} rows, got {whole.shape[0]}")
    parts = [problem.predict(*named, slice(i, min(i + PART, total))) for i in range(0, total, PART)]
    arrays = (scores.double().numpy() for scores in (torch.cat(parts), whole))
    _same(*arrays, "the scores of parts and of all rows", tolerance)
    return whole.cpu().double()
