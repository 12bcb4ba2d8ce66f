"""How long the phases of rounds take, for the log of a rank."""

from __future__ import annotations

import time

from mpifed.core.telling import LOG, PHASES
from mpifed.parallel.placement import Cohort
from mpifed.simulation.executor import Observer, Stage

__all__ = ["PhaseTimes"]


class PhaseTimes(Observer):
    """Logs, of every phase, the seconds of this rank's clients, and those from then until the average is
    there.
    """

    def __init__(self):
        self._clients, self._since = 0.0, None

    def before_clients(self, stage: Stage, cohort: Cohort, members: slice) -> None:
        self._since = time.perf_counter()

    def after_clients(self, stage: Stage, cohort: Cohort, members: slice) -> None:
        now = time.perf_counter()
        self._clients, self._since = self._clients + now - self._since, now

    def after_mean(self, stage: Stage, cohort: Cohort) -> None:
        average = 0.0 if self._since is None else time.perf_counter() - self._since
        LOG.log(
            PHASES,
            "phase %s: %.4g s for %d clients, %.4g s for the average",
            stage.phase.name,
            self._clients,
            len(cohort.local),
            average,
        )
        self._clients, self._since = 0.0, None
