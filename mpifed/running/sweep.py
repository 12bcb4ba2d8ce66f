"""Sweeps: the runs of a grid (:mod:`mpifed.config.grids`), one after another.

A sweep that was interrupted, or whose lists have changed, does only what is missing. A run that ends in
non-finite values counts as done: a step size was too large. Where data have changed since a run was done,
nothing is carried out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from mpifed.base.log import info
from mpifed.config.grids import Variant
from mpifed.parallel.comm import SerialComm, broadcast_text, collective_errors
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


def sweep(runs: Sequence[Variant], comm: SerialComm, others: Sequence[Variant] = ()) -> Outcome:
    """Carry out the runs one after another; those that are done already are passed over. Collective.

    Args:
        others: runs of the same grid that are not to be carried out here.

    Raises:
        Stopped, KeyboardInterrupt: a signal came during a run.
        CollectiveError: the data of a run that is done, one of the others among them, have changed since; or
            a run cannot be carried out (data, folders), and the ones before it are done.
    """
    outcome, done = Outcome(), _done(runs, others, comm)
    for number, variant in enumerate(runs, 1):
        if variant.name in done:
            outcome.before += 1
        else:
            if comm.rank == 0:
                info(f"run {number} of {len(runs)}: {variant.name}")
            try:
                run(variant.config, comm)
            except NonFiniteError as error:
                outcome.diverged += 1
                if comm.rank == 0:
                    info(f"{variant.name}: {error}")
        outcome.done += 1
    return outcome


def _done(runs: Sequence[Variant], others: Sequence[Variant], comm: SerialComm) -> list[str]:
    """The names of the runs that are done. Collective.

    All are looked at before any is carried out: runs on data that have changed are not to be compared.
    """
    names: list[str] = []
    with collective_errors(comm, ValueError):
        if comm.rank == 0:
            names = [one.name for one in (*runs, *others) if is_done(Folder(one.config.run.out), one.config)]
    return json.loads(broadcast_text(comm, json.dumps(names)))
