"""Contract tests for a user's own method or problem: ``mpifed check ./file.py:Class``.

Every check is a sentence that holds or fails with a reason in words. Under mpirun, a run on all ranks is compared with the
same run in one process.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from mpifed.algorithms import MFCGD, LocalDualExtrapolation, LocalSGDA
from mpifed.cli.catalogue import example
from mpifed.config.job import Config, ConfigError, find, override
from mpifed.core.algorithm import Algorithm
from mpifed.core.oracle import MinimaxOracle
from mpifed.core.problem import Minimax, Problem
from mpifed.core.sampling import Sampler
from mpifed.core.streams import generator
from mpifed.parallel.comm import SerialComm, share
from mpifed.problems import Saddle
from mpifed.running.run import resume, run
from mpifed.simulation.simulation import Simulation

__all__ = ["check_class"]

ROUNDS = 4
#: The method that a user's problem is tried with, by family.
PROBES = {
    "minimax": LocalSGDA(q=2, eta_x=1e-3, eta_y=1e-3),
    "operator": LocalDualExtrapolation(K=2, eta=1e-3),
    "composition": MFCGD(q=2, gamma=1e-3),
}


def check_class(name: str, settings: list[str], comm: SerialComm) -> bool:
    """Run all checks and print their outcome on rank 0. Collective.

    Args:
        name: ``./file.py:Class`` or any other name of a method or problem.
        settings: ``key=value`` settings of the class.

    Returns:
        Whether all hold.

    Raises:
        ConfigError: there is no such class, or it cannot be built from the settings.
    """
    table: dict = {}
    for text in settings:
        override(table, text)
    subject = _build(name, table)
    checks = (
        _method_checks(subject, name, comm)
        if isinstance(subject, Algorithm)
        else _problem_checks(subject, comm)
    )
    console = Console(highlight=False, markup=False)
    sound = True
    for sentence, test in checks:
        reason = _reason(test)
        sound &= reason is None
        if comm.rank == 0:
            console.print(
                f"{'holds' if reason is None else 'FAILS'}  {sentence}"
                + (f"\n       {reason}" if reason else "")
            )
    return sound


def _build(name: str, settings: dict):
    """An instance of the class, whichever of the two kinds it is."""
    try:
        cls = find(name, "algorithm")
    except ConfigError as first:
        try:
            cls = find(name, "problem")
        except ConfigError:
            raise first from None
    try:
        return example(cls, settings)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _reason(test: Callable[[], None]) -> str | None:
    """Why a check fails, ``None`` if it holds."""
    try:
        test()
    except Exception as error:  # a user's code may raise anything; the report names it
        return f"{type(error).__name__}: {error}"
    return None


def _config(method: Algorithm, problem: Problem, out: str, **changes) -> Config:
    settings = {
        "dtype": "float64",
        "device": "cpu",
        "progress": False,
        "overwrite": True,
        "out": out,
        "eval_every": ROUNDS,
        "reduction": "exact",
        "checkpoint_every": 2,
        **changes,
    }
    return Config(algorithm=method, problem=problem, rounds=ROUNDS, oracle={"batch_size": 2}, run=settings)


def _point(method, problem, comm, **changes) -> np.ndarray:
    """The output of a short run in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        result = run(_config(method, problem, share(comm, folder), **changes), comm)
        comm.barrier()
    return torch.cat(list(result.point.values())).numpy()


def _same(one, other, what: str, tolerance: float = 0.0) -> None:
    difference = float(np.abs(one - other).max(initial=0.0))
    if not difference <= tolerance:
        raise AssertionError(f"{what} differ by up to {difference:.3g}")


def _method_checks(method: Algorithm, name: str, comm: SerialComm):
    problem = Saddle(clients=3, d=4, centred=False)
    serial = SerialComm()
    yield "its hyperparameters are a frozen dataclass", lambda: hash(method)
    yield f"{ROUNDS} rounds on the saddle problem stay finite", lambda: _point(method, problem, serial)
    yield "clients write nothing but their own records", lambda: _clients_keep_to_themselves(method, problem)
    yield (
        "the batched executor agrees with the loop",
        lambda: _same(
            _point(method, problem, serial),
            _point(method, problem, serial, executor="batched"),
            "their outputs",
            1e-12,
        ),
    )
    yield (
        "a second run gives the same bits",
        lambda: _same(_point(method, problem, serial), _point(method, problem, serial), "the two outputs"),
    )
    yield "a resumed run ends in the same bits", lambda: _resumes(method, name, problem)
    if comm.size > 1:
        yield (
            f"{comm.size} ranks give the same bits as one",
            lambda: _same(_point(method, problem, comm), _point(method, problem, serial), "the outputs"),
        )


def _clients_keep_to_themselves(method, problem) -> None:
    with tempfile.TemporaryDirectory() as folder:
        simulation = Simulation(_config(method, problem, folder), SerialComm())
    inner = simulation.executor.run

    def watched(phase, r, cohort, shared, messages):
        before = shared.buffer.clone()
        inner(phase, r, cohort, shared, messages)
        if not torch.equal(before, shared.buffer):
            changed = shared.layout.field_at(int((before != shared.buffer).nonzero()[0]))
            raise AssertionError(
                f"client_{phase.name} changed shared.{changed}; an in-place operation on a view of it?"
            )

    simulation.executor.run = watched
    simulation.start()
    for _ in range(2):
        simulation.step()


def _resumes(method, name, problem) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = _config(method, problem, folder)
        whole = run(config.model_copy(update={"sources": {"algorithm": name}}), SerialComm())
        Path(folder, f"checkpoint-{ROUNDS:08d}.h5").unlink()
        again = resume(folder, comm=SerialComm())
    _same(*(torch.cat(list(result.point.values())).numpy() for result in (whole, again)), "the outputs")


def _problem_checks(problem: Problem, comm: SerialComm):
    yield "its settings are a dataclass", lambda: dataclasses.fields(problem)
    problem.prepare(0)
    if problem.family == "minimax":
        yield "gradients agree with finite differences of the loss", lambda: _finite_differences(problem)
    method = PROBES[problem.family]
    yield (
        f"{ROUNDS} rounds of {type(method).__name__} stay finite",
        lambda: _point(method, problem, SerialComm()),
    )
    yield (
        "the batched executor agrees with the loop",
        lambda: _same(
            _point(method, problem, SerialComm()),
            _point(method, problem, SerialComm(), executor="batched"),
            "their outputs",
            1e-9,
        ),
    )
    yield "metrics are numbers", lambda: _metrics(problem)
    if comm.size > 1:
        yield (
            f"{comm.size} ranks give the same bits as one",
            lambda: _same(
                _point(method, problem, comm), _point(method, problem, SerialComm()), "the outputs"
            ),
        )


def _start(problem: Problem) -> list[torch.Tensor]:
    """A point near the start where nothing is exactly zero."""
    rng, start = generator(0, "check"), problem.initial(generator(0, "initial"))
    return [
        torch.as_tensor(start.get(block, 0.0)).double() + 0.1 * torch.from_numpy(rng.standard_normal(size))
        for block, size in problem.variables().sizes.items()
    ]


def _finite_differences(problem: Problem) -> None:
    if type(problem).loss is Minimax.loss:
        return  # gradients by hand, and no loss to compare them with
    oracle = MinimaxOracle(problem, Sampler(problem, [0], 0, 2, None, 0, torch.float64, "cpu"), batched=False)
    oracle.at(slice(0, 1))
    x, y = _start(problem)
    xi, blocks, h = oracle.sample(0), problem.variables(), 1e-6
    gradients = oracle.grad(x, y, xi)
    batch = tuple(column[0] for column in xi.batch)
    for position, (block, point, gradient) in enumerate(zip("xy", (x, y), gradients)):
        for j in generator(0, "coordinates").permutation(len(point))[:5]:
            values = []
            for step in (h, -h):
                moved = [x.clone(), y.clone()]
                moved[position][j] += step
                values.append(
                    float(problem.loss(*(blocks.unflatten(b, m) for b, m in zip("xy", moved)), batch))
                )
            slope = (values[0] - values[1]) / (2 * h)
            if abs(slope - float(gradient[0, j])) > 1e-4 * max(1.0, abs(slope)):
                raise AssertionError(
                    f"∂f/∂{block}[{j}] is {slope:.6g} by differences, {float(gradient[0, j]):.6g} by the gradient"
                )


def _metrics(problem: Problem) -> None:
    blocks, points = problem.variables(), _start(problem)
    named = [blocks.unflatten(block, point) for block, point in zip(blocks, points)]
    predictions = problem.predict(*named, slice(0, problem.test_rows)) if problem.test_rows else None
    for name, value in problem.metrics(*named, predictions).items():
        float(value), str(name)
