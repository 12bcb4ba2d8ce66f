"""What ``mpifed check`` looks at in a method."""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path

import torch

from mpifed.base.errors import ConfigError, ContractError
from mpifed.cli.check_precision import MixedPrecision
from mpifed.cli.check_runs import (
    ROUNDS,
    NotChecked,
    Pair,
    Report,
    check_together,
    configuration,
    confined,
    final_point,
    same,
    tried_on,
)
from mpifed.core.algorithm import Algorithm
from mpifed.core.problem import Problem
from mpifed.parallel.comm import SerialComm
from mpifed.running.run import resume, run
from mpifed.simulation.simulation import Observer, Simulation
from mpifed.storage.format import RUN_FILE

__all__ = ["check_method_here", "check_method_on_ranks"]

FEASIBLE = "points stay in the problem's sets"
#: Members of a cohort that is smaller than the number of clients of the problems that a method is tried on.
COHORT = 3


def check_method_here(method: Algorithm, report: Report, file: str | None) -> None:
    """The checks of one process."""
    report.check("its hyperparameters are a frozen dataclass", lambda: hash(method))
    problem = _finite(method, report)
    if problem is None:
        return
    serial = SerialComm()
    cohort = {"participation": {"cohort": COHORT}} if method.partial_participation else {}
    report.check(
        "clients write nothing but their own records", lambda: _rounds(method, problem, _Keep(), **cohort)
    )
    check_together(method, problem, report, 1e-12)
    _cohorts(method, problem, report)
    _feasible(method, problem, report)
    report.check("float64 stays float64", lambda: _stays(method, problem, file))
    report.check(
        "a second run gives the same bits",
        lambda: same(*(final_point(method, problem, serial) for _ in range(2)), "the two outputs"),
    )
    report.check("a resumed run ends in the same bits", lambda: _resumes(method, problem))


def check_method_on_ranks(method: Algorithm, report: Report, comm: SerialComm) -> None:
    """The checks of all ranks together, of a method that some problem suits. Collective."""
    problem = next(one for one in tried_on(method).values() if _refusal(method, one) is None)
    report.check(
        f"{comm.size} ranks give the same bits as one",
        lambda: same(
            final_point(method, problem, comm), final_point(method, problem, SerialComm()), "the outputs"
        ),
    )


def _refusal(method: Algorithm, problem: Problem) -> str | None:
    """Why a method does not take a problem, ``None`` where it does."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            Simulation.from_settings(configuration(method, problem, folder), SerialComm())
        except (ConfigError, ContractError) as fault:
            return str(fault)
    return None


def _finite(method: Algorithm, report: Report) -> Problem | None:
    """Rounds on every problem of the family that the method takes; the first one on which all went well."""
    refusals, sound = {}, []
    for what, problem in tried_on(method).items():
        if refusal := _refusal(method, problem):
            refusals[what] = refusal
            continue
        good = [
            report.check(
                f"{ROUNDS} rounds on {what} stay finite, {dtype}",
                lambda problem=problem, dtype=dtype: final_point(method, problem, SerialComm(), dtype=dtype),
            )
            for dtype in ("float64", "float32")
        ]
        if all(good):
            sound.append(problem)
    if len(refusals) == len(tried_on(method)):
        report.check(f"it runs on {next(iter(refusals))}", lambda: _raise(next(iter(refusals.values()))))
        return None
    for what, refusal in refusals.items():
        report.skip(f"rounds on {what}", refusal)
    return sound[0] if sound else None


def _raise(reason: str) -> None:
    raise ContractError(reason)


def _rounds(method: Algorithm, problem: Problem, observer: Observer, **changes) -> None:
    """The start and two rounds under the eyes of ``observer``."""
    with tempfile.TemporaryDirectory() as folder:
        simulation = Simulation.from_settings(
            configuration(method, problem, folder, **changes), SerialComm(), observers=[observer]
        )
        observer.simulation = simulation
        simulation.start()
        for _ in range(2):
            simulation.step()


class _Keep(Observer):
    """Refuses client functions that change what is not their own."""

    def before_clients(self, stage, cohort, members):
        simulation = self.simulation
        self._shared, self._clients = simulation.shared.buffer.clone(), simulation.clients.buffer.clone()

    def after_clients(self, stage, cohort, members):
        simulation = self.simulation
        changed = (self._shared != simulation.shared.buffer).nonzero()
        if len(changed):
            field = simulation.shared.layout.field_at(int(changed[0]))
            raise AssertionError(
                f"phase {stage.phase.name!r} changed shared.{field}; an in-place operation on a view of it?"
            )
        others = torch.ones(len(self._clients), dtype=torch.bool)
        others[cohort.local[members]] = False
        if not torch.equal(self._clients[others], simulation.clients.buffer[others]):
            raise AssertionError(
                f"phase {stage.phase.name!r} changed the records of clients that it was not stepping"
            )


class _Mean(Observer):
    """Compares every average with a plain sum over the cohort."""

    def after_clients(self, stage, cohort, members):
        rows = stage.messages.buffer[: members.stop - members.start].clone()
        self._rows = torch.cat([self._rows, rows]) if members.start else rows

    def after_mean(self, stage, cohort):
        problem, members = self.simulation.problem, cohort.members.tolist()
        counts = self.simulation.config.participation.weights == "samples"
        weights = [float(problem.client_size(client)) if counts else 1.0 for client in members]
        total = torch.zeros_like(self._rows[0])
        for weight, row in zip(weights, self._rows):
            total += weight * row
        expected = total / sum(weights)
        # A few additions in another order.
        same(
            stage.mean.buffer.numpy(),
            expected.numpy(),
            f"the average of phase {stage.phase.name!r} and its",
            1e-12,
        )


def _cohorts(method: Algorithm, problem: Problem, report: Report) -> None:
    """Averages over a cohort compared with plain sums."""
    sentence = f"averages over {COHORT} of {problem.clients} clients equal sums by hand"
    if not method.partial_participation:
        report.skip(sentence, "the method needs every client in every round")
        return
    for weights, words in (("uniform", "equal weights"), ("samples", "weights by samples")):
        changes = {"participation": {"cohort": COHORT, "weights": weights}}
        report.check(
            f"{sentence}, {words}",
            lambda changes=changes: _rounds(method, problem, _Mean(), **changes),
        )


def _feasible(method: Algorithm, problem: Problem, report: Report) -> None:
    """Points of a problem with sets."""
    if not method.constrained:
        report.skip(FEASIBLE, "constrained = False: the method refuses problems with sets")
        return
    game = Pair() if method.family == "operator" else problem  # an operator has φ for its set
    report.check(FEASIBLE, lambda: _inside(method, confined(game)))


def _inside(method: Algorithm, problem: Problem) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        simulation = Simulation.from_settings(configuration(method, problem, folder), SerialComm())
        simulation.start()
        for _ in range(ROUNDS):
            simulation.step()
            for point in (simulation.shared, simulation.output):
                simulation.evaluate(point)
    if simulation.infeasible:
        raise AssertionError(
            f"{simulation.infeasible}: project new points, x = oracle.sets.x(x - eta * g) at the clients and "
            "shared.x = now.sets.x(...) at the server, or set constrained = False: problems with sets are "
            "refused then"
        )


def _stays(method: Algorithm, problem: Problem, file: str | None) -> None:
    if file is None:
        raise NotChecked("its source is in no file")
    with MixedPrecision(file, alone=True) as mixed:
        _rounds(method, problem, Observer())
    if mixed.found:
        raise AssertionError("\n".join(mixed.found))


def _resumes(method: Algorithm, problem: Problem) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = configuration(method, problem, folder)
        whole = run(config, SerialComm())
        for last in (f"checkpoint-{ROUNDS:08d}.h5", RUN_FILE):  # which say that there is nothing left to do
            Path(folder, last).unlink()
        with contextlib.redirect_stderr(io.StringIO()):  # where it says from which round it goes on
            again = resume(folder, comm=SerialComm())
    points = [torch.cat(list(result.point.values())).numpy() for result in (again, whole)]
    same(*points, "the outputs")
