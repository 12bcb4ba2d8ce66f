"""Short runs for ``mpifed check``: problems to try a method on, methods to try a problem with, verdicts."""

from __future__ import annotations

import contextlib
import copy
import io
import os
import tempfile
import traceback
from collections.abc import Callable

import numpy as np
import torch
from pydantic import Field

from mpifed.algorithms import MFCGD, LocalDualExtrapolation, LocalSGDA
from mpifed.base.console import Console
from mpifed.base.errors import ConfigError, ContractError
from mpifed.base.settings import problem_settings
from mpifed.config.job import Config
from mpifed.core.algorithm import Algorithm
from mpifed.core.problem import Minimax, Minimisation, Problem, is_analytic
from mpifed.core.records import Blocks
from mpifed.core.sets import Ball, Sets
from mpifed.core.streams import generator
from mpifed.parallel.comm import CollectiveError, SerialComm, broadcast_text
from mpifed.problems import AffineGame, L1BoxBilinear, LinearMAML
from mpifed.running.run import run
from mpifed.simulation.simulation import Simulation

__all__ = [
    "PROBES",
    "ROUNDS",
    "ROWS",
    "NotChecked",
    "Report",
    "check_together",
    "configuration",
    "confined",
    "final_point",
    "same",
    "tried_on",
]

ROUNDS = 4
#: Sizes of groups in which clients go together.
GROUPS = (2, 3, "all")
#: Rows of a sample.
ROWS = 2
#: Radius of the balls that blocks have to stay in: steps leave them, roundings of float64 do not.
RADIUS = 1e-6
#: The method that a user's problem is tried with, by family, and its name.
PROBES = {
    "minimax": ("LocalSGDA", LocalSGDA(q=2, eta_x=1e-3, eta_y=1e-3)),
    "operator": ("LocalDualExtrapolation", LocalDualExtrapolation(K=2, eta=1e-3)),
    "composition": ("MFCGD", MFCGD(q=2, gamma=1e-3)),
}


class _Rows:
    """Client k has 3 + k rows of three features, one target and two couplings."""

    def client_data(self, client: int) -> tuple[torch.Tensor, ...]:
        rows = torch.from_numpy(generator(0, "check rows", client).standard_normal((3 + client, 6)))
        return rows[:, :3], rows[:, 3], rows[:, 4:]


@problem_settings
class Pair(_Rows, Minimax):
    """Least squares in x, coupled with y: strongly convex in x, strongly concave in y."""

    clients: int = Field(default=5, ge=1, description="number of clients")

    def variables(self) -> Blocks:
        return Blocks(x={"x": (3,)}, y={"y": (2,)})

    def loss(self, x, y, batch):
        features, targets, couplings = batch
        score, regular = features @ x["x"], (x["x"] ** 2).sum() - (y["y"] ** 2).sum()
        return ((score - targets) ** 2 / 2 + score * (couplings @ y["y"])).mean() + regular / 2


@problem_settings
class Squares(_Rows, Minimisation):
    """Least squares in x, without a block y."""

    clients: int = Field(default=5, ge=1, description="number of clients")

    def variables(self) -> Blocks:
        return Blocks(x={"x": (3,)})

    def loss(self, x, batch):
        return ((batch[0] @ x["x"] - batch[1]) ** 2).mean() / 2


def tried_on(method: Algorithm) -> dict[str, Problem]:
    """The problems that a method is tried on, by what to call them."""
    if method.family == "minimax":
        return {"a minimax problem": Pair(), "a problem without y": Squares()}
    if method.family == "minimisation":
        return {"a problem without y": Squares()}
    if method.family == "composition":
        return {"a composition": LinearMAML(clients=5, d=3, samples=6)}
    problems = {
        "an affine game": AffineGame(clients=5, d=4, strong=0.1),
        "a minimax problem as a game": Pair(),
    }
    if method.composite:
        problems["a game with a convex part"] = L1BoxBilinear(clients=5, dx=3, dy=2)
    return problems | {"a problem without y as a game": Squares()}


def confined(problem: Problem) -> Problem:
    """The same from 1, where gradients are not 0, with a ball for each block that any step leaves."""
    problem = copy.deepcopy(problem)
    sizes = problem.variables().sizes
    problem.sets = Sets(**dict.fromkeys(sizes, Ball(RADIUS, center=1.0)))
    problem.initial = lambda rng: {block: torch.ones(size) for block, size in sizes.items()}  # type: ignore[method-assign]
    return problem


def configuration(
    method: Algorithm, problem: Problem, folder: str, participation: dict | None = None, **changes
) -> Config:
    """A short run on the CPU; ``changes`` are settings of [run]."""
    settings = {
        "dtype": "float64",
        "device": "cpu",
        "progress": False,
        "overwrite": True,
        "out": folder,
        "eval_every": ROUNDS,
        "reduction": "exact",
        "group": 1,
        "checkpoint_every": 2,
        **changes,
    }
    return Config(
        algorithm=method,
        problem=copy.deepcopy(problem),
        rounds=ROUNDS,
        oracle={"batch_size": ROWS},
        participation=participation or {},
        run=settings,
    )


def final_point(method: Algorithm, problem: Problem, comm: SerialComm, **changes) -> np.ndarray:
    """The output of a short run in a folder of its own, all blocks end to end. Collective.

    What the run itself would warn of is a verdict here.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        result = run(configuration(method, problem, broadcast_text(comm, folder), **changes), comm)
        comm.barrier()
    return torch.cat(list(result.point.values())).numpy()


def same(one: np.ndarray, other: np.ndarray, what: str, tolerance: float = 0.0) -> None:
    """Refuse points that differ by more than ``tolerance``, relative to their size where that is above 1.

    Raises:
        AssertionError: they do.
    """
    difference = float(np.abs(one - other).max(initial=0.0))
    if not difference <= tolerance * max(1.0, float(np.abs(other).max(initial=0.0))):
        raise AssertionError(f"{what} differ by up to {difference:.3g}")


def check_together(method: Algorithm, problem: Problem, report: Report, tolerance: float) -> None:
    """What is promised of clients that go together: the outputs of one after another to a ``tolerance``,
    since kernels add in other orders; in groups of any size the same bits, since a clock may choose it.
    """
    sentence = f"clients in groups of {GROUPS[0]}, {GROUPS[1]} and all have the same bits"

    def final(group: int | str, dtype: str = "float64") -> np.ndarray:
        return final_point(method, problem, SerialComm(), group=group, dtype=dtype)

    def position() -> str:
        """Why a run would step clients one at a time; "" where it steps them together."""
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
            try:
                return Simulation.from_settings(
                    configuration(method, problem, folder, group="all"), SerialComm()
                ).rounds.choice.said
            except ValueError:  # reported below
                return ""

    def refuse(why: str) -> None:
        raise AssertionError(why)

    def in_groups(dtype: str) -> None:
        first = final(GROUPS[0], dtype)
        for group in GROUPS[1:]:
            same(final(group, dtype), first, f"outputs of groups of {group} and of {GROUPS[0]}")

    if why := position():
        if is_analytic(problem):  # whose author can mend it
            report.check(sentence, lambda: refuse(why))
        else:
            report.skip(sentence, why)
        return
    if not report.check(
        "clients stepped together agree with one after another",
        lambda: same(final("all"), final(1), "outputs", tolerance),
    ):
        report.skip(sentence, "they do not agree with one after another")
        return
    for dtype in ("float64", "float32"):
        report.check(f"{sentence}, {dtype}", lambda dtype=dtype: in_groups(dtype))


class NotChecked(Exception):
    """Something that cannot be checked, and why."""


class Report:
    """Verdicts, one line each: holds, FAILS with a reason, not checked with a reason.

    Args:
        file: the user's file, whose line is named where its code raises an error; ``None`` for none.
        shown: whether lines are printed.

    Attributes:
        sound: whether nothing has failed.
    """

    def __init__(self, file: str | None, shown: bool):
        self.file, self.sound = file and os.path.abspath(file), True
        self._console = Console(highlight=False, markup=False, soft_wrap=True, quiet=not shown)

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(text)

    def check(self, sentence: str, test: Callable[[], None]) -> bool:
        """Run a test, print its verdict, and return whether it holds."""
        try:
            test()
        except NotChecked as reason:
            self.skip(sentence, str(reason))
            return True
        except Exception as error:  # a user's code may raise anything; the report names it
            self.sound = False
            self._line("FAILS", sentence, self._reason(error))
            return False
        self._line("holds", sentence)
        return True

    def skip(self, sentence: str, why: str) -> None:
        """Say that something is not checked."""
        self._line("not checked", sentence, why)

    def _line(self, verdict: str, sentence: str, reason: str = "") -> None:
        faults = reason.splitlines()
        text = f"{sentence}: {faults[0]}" if faults else sentence
        self.say("\n".join([f"{verdict:<13}{text}", *(f"{'':<13}{fault}" for fault in faults[1:])]))

    def _reason(self, error: Exception) -> str:
        if isinstance(error, AssertionError | ContractError | ConfigError | CollectiveError):
            return str(error)
        frames = traceback.extract_tb((error.__cause__ or error).__traceback__)
        lines = [frame.lineno for frame in frames if os.path.abspath(frame.filename) == self.file]
        where = f" ({os.path.basename(self.file)}, line {lines[-1]})" if self.file and lines else ""
        name = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        return f"{name}{error}{where}"
