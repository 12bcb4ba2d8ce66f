"""Callbacks: user-defined objects that are called during a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from mpifed.base.errors import ConfigError, short_repr, user_code_errors
from mpifed.base.settings import suggest
from mpifed.parallel.comm import SerialComm, collective_errors
from mpifed.running.recorder import Recorder
from mpifed.simulation.simulation import Simulation

__all__ = ["Callbacks", "Event", "expect_callbacks"]

#: The methods that a callback may have.
METHODS = ("on_start", "on_round", "on_evaluation", "on_end")


@dataclass(frozen=True)
class Event:
    """The argument of a callback. It is valid during the call; copy values that are needed later.

    Attributes:
        config: the resolved settings, a table that ``mpifed.run`` takes again.
        folder: the run's folder.
        round: completed rounds; at ``on_start`` those of the resumed run.
        metrics: the evaluation's, by name; at ``on_end`` those of the output point, {} after a signal or
            non-finite values; {} at ``on_start`` and ``on_round``.
        costs: cumulative, over all ranks, under their names in ``run.h5``.
        stopped: why the run has ended, "" before.
    """

    config: dict
    folder: Path
    round: int
    metrics: Mapping[str, float]
    costs: Mapping[str, float]
    stopped: str
    _blocks: Mapping[str, Callable[[], torch.Tensor]]

    @property
    def point(self) -> dict[str, np.ndarray]:
        """The averaged iterate by block, ``[d]``, at ``on_end`` the output point. Read-only views of the
        run's memory; on a GPU each look copies them.
        """
        views = {name: look().cpu().numpy().view() for name, look in self._blocks.items()}
        for view in views.values():
            view.flags.writeable = False
        return views


def expect_callbacks(callbacks: Sequence[object]) -> None:
    """Raises:
    ConfigError: not a list of objects with methods of :data:`METHODS`, or with unknown methods ``on_...``.
    """
    if not isinstance(callbacks, list | tuple):
        raise ConfigError(f"callbacks: expected a list of objects, got {short_repr(callbacks)}")
    for one in callbacks:
        name = type(one).__name__
        if isinstance(one, type):
            raise ConfigError(f"callbacks: expected an object, got the class {one.__name__}: call it")
        methods = [method for method in dir(one) if method.startswith("on_")]
        if unknown := next((method for method in methods if method not in METHODS), None):
            raise ConfigError(f"callbacks: {name} has {unknown}: {suggest(unknown, METHODS)}")
        if not methods:
            raise ConfigError(f"callbacks: {name} has none of the methods {', '.join(METHODS)}")


class Callbacks:
    """Tells rank 0's callbacks, in their order. Without any, nothing is done and nobody waits.

    Attributes:
        wanted: the methods that some callback on rank 0 has, known on all ranks.
    """

    def __init__(
        self,
        given: Sequence[object],
        simulation: Simulation,
        recorder: Recorder,
        comm: SerialComm,
        folder: Path,
    ):
        self._given, self._simulation, self._recorder = given, simulation, recorder
        self._comm, self._folder = comm, folder
        known = np.array([any(hasattr(one, name) for one in given) for name in METHODS], dtype=np.int64)
        comm.bcast_(known)
        self.wanted = frozenset(name for name, one in zip(METHODS, known) if one)

    def tell(self, name: str, metrics: Mapping[str, float], stopped: str) -> None:
        """Call the method ``name``, which is wanted, of all callbacks that have it. Collective.

        Raises:
            CollectiveError: one has failed; says which.
        """
        self._recorder.gather()
        with collective_errors(self._comm, ValueError):
            if self._comm.rank == 0:
                event = self._event(metrics, stopped)
                for one in self._given:
                    if method := getattr(one, name, None):
                        with user_code_errors(f"{type(one).__name__}.{name}", event.round):
                            _call(method, event)

    def _event(self, metrics: Mapping[str, float], stopped: str) -> Event:
        simulation = self._simulation

        def look(block: str) -> torch.Tensor:
            return getattr(simulation.output, block) if stopped else simulation.rounds.block(block)

        return Event(
            simulation.config.table(),
            self._folder,
            simulation.round,
            dict(metrics),
            self._recorder.totals,
            stopped,
            {block: lambda block=block: look(block) for block in simulation.blocks},
        )


def _call(method: Callable[[Event], object], event: Event) -> None:
    """One rank must not leave while the others wait for it."""
    try:
        method(event)
    except SystemExit as error:
        raise RuntimeError(f"sys.exit({error.code}) was called in the middle of a run") from error
