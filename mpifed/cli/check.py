"""Contract tests of user-defined methods and problems: ``mpifed check ./file.py:Class``.

The checks are those of :mod:`mpifed.core.validation`, :mod:`mpifed.core.derivative_checks` and
:mod:`mpifed.cli.check_runs`. Each is a statement that holds, FAILS with a reason, or is not checked with a
reason. Under mpirun, a run on all ranks is compared with the same run in one process.
"""

from __future__ import annotations

import copy
import functools
import inspect
import os
import traceback
import warnings
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import torch

from mpifed.algorithms import ALGORITHMS
from mpifed.base.console import Console
from mpifed.base.errors import ConfigError, ContractError, hint, short_repr
from mpifed.base.plugins import is_user_defined
from mpifed.base.settings import suggest
from mpifed.cli.catalogue import example
from mpifed.cli.check_runs import (
    METHOD_RUNS,
    METRICS,
    PROBLEM_RUNS,
    ROWS,
    differ,
    rounds_of,
    run_case,
    runnable,
)
from mpifed.config.plugins import find_class
from mpifed.config.tables import apply_override
from mpifed.core.algorithm import Algorithm
from mpifed.core.derivative_checks import DERIVATIVES
from mpifed.core.problem import Problem
from mpifed.core.validation import START, Case, Check, NotChecked
from mpifed.parallel.comm import CollectiveError, SerialComm, collective_errors
from mpifed.problems import PROBLEMS
from mpifed.simulation.setup import default_dtype
from mpifed.simulation.state import expect_constants

__all__ = ["check_class"]


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
    @functools.cache
    def prepared(dtype: torch.dtype) -> Case:
        expect_constants(problem)
        copied = copy.deepcopy(problem)
        copied.prepare(0)
        rounding = 1e-9 if dtype == torch.float64 else 1e-3
        return Case(copied, dtype=dtype, batch_size=ROWS, rounding=rounding)

    if all(report.run([check], prepared) for check in START):
        report.run([*DERIVATIVES[problem.family], METRICS], prepared)
        report.run(PROBLEM_RUNS, partial(Case, *runnable(problem)))


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
            hint = suggest(name, [*ALGORITHMS, *PROBLEMS])
            raise ConfigError(
                f"unknown method or problem {short_repr(name)}: {hint}; user-defined: ./file.py:Class"
            ) from None
    return example(cls, settings)
