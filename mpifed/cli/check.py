"""Contract tests for a user's own method or problem: ``mpifed check ./file.py:Class``.

Every check is a sentence that holds, FAILS with a reason in words, or is not checked, with the reason why.
Under mpirun, a run on all ranks is compared with the same run in one process.
"""

from __future__ import annotations

import inspect
import warnings

import numpy as np

from mpifed.base.errors import ConfigError
from mpifed.cli.catalogue import example
from mpifed.cli.check_method import check_method_here, check_method_on_ranks
from mpifed.cli.check_problem import check_problem_here, check_problem_on_ranks
from mpifed.cli.check_runs import ROWS, Report
from mpifed.config.job import find
from mpifed.config.tables import override
from mpifed.core.algorithm import Algorithm
from mpifed.parallel.comm import SerialComm

__all__ = ["check_class"]


def check_class(name: str, settings: list[str], comm: SerialComm) -> bool:
    """Run all checks and print their outcome on rank 0. Collective.

    Args:
        name: ``./file.py:Class`` or any other name of a method or problem.
        settings: ``key=value`` settings of the class.

    Returns:
        Whether none has failed.

    Raises:
        ConfigError: there is no such class, or it cannot be built from the settings.
    """
    table: dict = {}
    for text in settings:
        override(table, text)
    subject = _build(name, table)
    method, file = isinstance(subject, Algorithm), _file(type(subject))
    report = Report(file, shown=comm.rank == 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if comm.rank == 0:
            _announce(subject, report, comm.size)
            here = check_method_here if method else check_problem_here
            here(subject, report, file)
        sound = np.array([report.sound], dtype=np.int64)
        comm.bcast_(sound)
        if comm.size > 1 and not sound[0]:
            report.skip(f"{comm.size} ranks against one", "something fails in one process")
        elif comm.size > 1:
            on_ranks = check_method_on_ranks if method else check_problem_on_ranks
            on_ranks(subject, report, comm)
    return bool(sound[0]) and report.sound


def _announce(subject, report: Report, ranks: int) -> None:
    """What is checked, and what in."""
    kind = "method" if isinstance(subject, Algorithm) else "problem"
    where = "one process" if ranks == 1 else f"one process, then {ranks} ranks"
    article = "an" if subject.family == "operator" else "a"
    report.say(
        f"{type(subject).__name__}, {article} {subject.family} {kind}: float64 and float32 on the CPU, "
        f"{ROWS} rows a sample, in {where} and temporary folders"
    )


def _build(name: str, settings: dict):
    """An instance of the class, whichever of the two kinds it is."""
    try:
        cls = find(name, "algorithm")
    except ConfigError as first:
        try:
            cls = find(name, "problem")
        except ConfigError:
            raise first from None
    return example(cls, settings)


def _file(cls: type) -> str | None:
    try:
        return inspect.getsourcefile(cls)
    except TypeError:
        return None
