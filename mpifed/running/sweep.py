"""Sweeps: the runs of a grid (:mod:`mpifed.config.grids`), one after another.

A sweep that was interrupted, or whose lists have changed, does only what is missing. A run that ends in
non-finite values counts as done: a step size was too large.
"""

from __future__ import annotations

from dataclasses import dataclass

from mpifed.config.grids import Variant
from mpifed.core.telling import say
from mpifed.parallel.comm import SerialComm, share
from mpifed.running.resume import is_done
from mpifed.running.run import run
from mpifed.simulation.simulation import NonFiniteError
from mpifed.storage.folder import Folder

__all__ = ["Outcome", "sweep"]


@dataclass
class Outcome:
    """How many runs of a sweep are done, and how many of these were before."""

    done: int = 0
    before: int = 0
    diverged: int = 0


def sweep(runs: list[Variant], comm: SerialComm) -> Outcome:
    """Carry out the runs one after another; those that are done already are passed over. Collective.

    Raises:
        Stopped, KeyboardInterrupt: a signal came during a run.
        CollectiveError: a run cannot be carried out (data, folders); the ones before it are done.
    """
    outcome = Outcome()
    for number, variant in enumerate(runs, 1):
        if _agreed(
            comm, is_done(Folder(variant.config.run.out), variant.config) if comm.rank == 0 else False
        ):
            outcome.before += 1
        else:
            if comm.rank == 0:
                say(f"run {number} of {len(runs)}: {variant.name}")
            try:
                run(variant.config, comm)
            except NonFiniteError as error:
                outcome.diverged += 1
                if comm.rank == 0:
                    say(f"{variant.name}: {error}")
        outcome.done += 1
    return outcome


def _agreed(comm: SerialComm, value: bool) -> bool:
    """Rank 0's answer on all ranks. Collective."""
    return bool(share(comm, "yes" if value else ""))
