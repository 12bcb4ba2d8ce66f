"""Execution of all studies of a job in waves.

A wave consists of the runs of one rung of every unfinished search, which are distributed over the ranks.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Generator
from dataclasses import asdict, dataclass

import numpy as np

from mpifed.base.errors import ConfigError, ContractError
from mpifed.base.log import LOG, info, progress_bar
from mpifed.base.settings import affecting
from mpifed.config.grids import select_part
from mpifed.config.job import Run
from mpifed.config.tuning import Study, Tune, Tuning
from mpifed.parallel.comm import CollectiveError, SerialComm, broadcast_text, collective_errors
from mpifed.running.signals import Stopped, early_signal
from mpifed.tuning.results import SearchResult, discard, read, result_of, store, write_tables
from mpifed.tuning.search import Search
from mpifed.tuning.trials import (
    IndependentComm,
    Preview,
    Request,
    TrialOutcome,
    delete_checkpoints,
    preview,
    run_trial,
    trial_folder,
)

__all__ = ["Interrupted", "Plan", "plan", "tune"]

#: Errors of a run that must be reported to the other ranks.
_ERRORS = (CollectiveError, ConfigError, ContractError, OSError)


class Interrupted(RuntimeError):
    """A signal has ended a search on all ranks. Its runs are stored in their folders."""


@dataclass(frozen=True)
class Plan:
    """Preview, budget in oracle calls, and selection metric of a study."""

    preview: Preview
    budget: int
    metric: str

    @property
    def sign(self) -> int:
        return -1 if self.preview.columns[self.metric].maximised else 1


def tune(tuning: Tuning, comm: SerialComm, part: str = "0/1") -> list[SearchResult | None]:
    """Search for the best settings in all studies, or in a part of them. Collective.

    Searches that have finished before are skipped, unless ``run.overwrite`` is set.

    Returns:
        The result of each study; ``None`` if another part has not finished it yet.

    Raises:
        Interrupted: a signal arrived on any rank.
        CollectiveError: a run cannot be executed.
    """
    plans = plan(tuning, comm)
    with collective_errors(comm, ConfigError):
        studies_of_part = select_part(list(range(len(tuning.studies))), part)
    searches = _Searches(tuning, comm, plans, studies_of_part)
    searches.run()
    return searches.results()


def plan(tuning: Tuning, comm: SerialComm) -> list[Plan]:
    """Return the plan of each study, from two rounds of each, which write no files. Collective.

    Raises:
        CollectiveError: a study cannot be run, or settings must not be selected by the metric.
    """
    previews = _previews(tuning, comm)
    with collective_errors(comm, ConfigError):
        return _plans(tuning, previews)


def _previews(tuning: Tuning, comm: SerialComm) -> list[Preview]:
    """Preview all studies, distributed over the ranks. Collective."""
    independent, measured = IndependentComm(comm), {}
    with collective_errors(comm, *_ERRORS):
        for number in range(comm.rank, len(tuning.studies), comm.size):
            measured[number] = asdict(preview(tuning.studies[number], independent))
    texts = [broadcast_text(comm, json.dumps(measured), root) for root in range(comm.size)]
    tables = {int(number): values for text in texts for number, values in json.loads(text).items()}
    return [Preview.from_table(tables[number]) for number in range(len(tuning.studies))]


def _plans(tuning: Tuning, previews: list[Preview]) -> list[Plan]:
    """Return a plan per study.

    The budget is the cost of ``tune.runs`` runs of the task's costliest method; if it is proportional, times
    the number of open settings divided by the least number in the task.
    """
    full: dict[str, int] = {}
    fewest: dict[str, int] = {}
    for study, study_preview in zip(tuning.studies, previews):
        full[study.task] = max(full.get(study.task, 0), study_preview.calls(study.rounds))
        if count := len(study.space.open):
            fewest[study.task] = min(fewest.get(study.task, count), count)
    plans = []
    for study, study_preview in zip(tuning.studies, previews):
        budget = tuning.tune.runs * full[study.task]
        if tuning.tune.budget == "proportional" and study.space.open:
            budget = budget * len(study.space.open) // fewest[study.task]
        plans.append(Plan(study_preview, budget, study_preview.selection_metric(tuning.tune.metric)))
    return plans


def _digest(study: Study, plan: Plan, tune: Tune) -> str:
    """Return a digest of all settings that affect the result of a search."""
    table = study.config(study.space.costliest).table()
    files = affecting(Run, "files")
    table["run"] = {key: value for key, value in table["run"].items() if key not in files}
    parts = [table, study.space.table({}), repr(study.space.open), plan.budget, plan.metric, tune.seeds]
    parts += [tune.min_rounds] if tune.min_rounds > 1 else []
    parts += [["risk", tune.risk]] if tune.risk else []
    parts += [plan.preview.data] if plan.preview.data else []
    return hashlib.blake2b(json.dumps(parts, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()


class _Searches:
    """The unfinished searches of this part, which are stored on rank 0, and their execution on all ranks."""

    def __init__(self, tuning: Tuning, comm: SerialComm, plans: list[Plan], studies_of_part: list[int]):
        self.tuning, self.comm, self.plans = tuning, comm, plans
        self.independent = IndependentComm(comm)
        tune = tuning.tune
        self.digests = [_digest(study, plan, tune) for study, plan in zip(tuning.studies, plans)]
        self.searches: dict[int, Search] = {}
        self.steps: dict[int, Generator] = {}
        self.requested: dict[int, list[Request]] = {}
        with collective_errors(comm, *_ERRORS):
            for number in studies_of_part if comm.rank == 0 else ():
                study, plan = tuning.studies[number], plans[number]
                if tuning.config.run.overwrite:
                    discard(tuning, study)
                if read(tuning, study, self.digests[number]) is None:
                    self.searches[number] = Search(
                        study, tune.seeds, plan.budget, plan.preview, plan.sign, tune.min_rounds, tune.risk
                    )
                    self.steps[number] = self.searches[number].requests()

    def results(self) -> list[SearchResult | None]:
        """Return the results of all parts so far."""
        studies = self.tuning.studies
        return [read(self.tuning, study, digest) for study, digest in zip(studies, self.digests)]

    def run(self) -> None:
        """Execute waves until every search has finished. Collective."""
        total = sum(self.plans[number].budget for number in self.searches)
        with progress_bar(
            total=total,
            unit="call",
            unit_scale=True,
            desc="tune",
            disable=not (self.comm.rank == 0 and LOG.level <= logging.INFO),
        ) as self.bar:
            with collective_errors(self.comm, *_ERRORS):
                for number in [*self.steps]:
                    self._send(number, None)
                self._write()
            while jobs := self._jobs():
                outcomes = self._wave(jobs)
                with collective_errors(self.comm, *_ERRORS):
                    self._report(jobs, outcomes)

    def _send(self, number: int, outcomes: list[TrialOutcome] | None) -> None:
        """Send outcomes to a search and store its next requests, or its result (rank 0)."""
        try:
            self.requested[number] = self.steps[number].send(outcomes)
        except StopIteration:
            search = self.searches[number]
            result = result_of(search, self.plans[number].metric)
            store(self.tuning, search.study, self.digests[number], result)
            del self.steps[number], self.requested[number]
            info(f"{search.study.title} is done: {len(search.trials)} settings")

    def _write(self) -> None:
        """Write the tables, and repeat if another part has meanwhile finished more searches (rank 0)."""
        if self.comm.rank:
            return
        results, done = self.results(), -1
        while done < (now := sum(result is not None for result in results)):
            done = now
            write_tables(self.tuning, results)
            results = self.results()

    def _jobs(self) -> list[tuple[int, Request]]:
        """Return the number of the study and the request of each run of the next wave. Collective."""
        jobs = [(number, request) for number, requests in self.requested.items() for request in requests]
        text = broadcast_text(self.comm, json.dumps(jobs) if self.comm.rank == 0 else None)
        return [(number, Request(*request)) for number, request in json.loads(text)]

    def _wave(self, jobs: list[tuple[int, Request]]) -> list[TrialOutcome]:
        """Execute the runs of a wave and return all outcomes. Collective."""
        values, calls = np.zeros(len(jobs)), np.zeros(len(jobs), dtype=np.int64)
        stopped, level = 0, LOG.level
        with collective_errors(self.comm, *_ERRORS):
            LOG.setLevel(level or logging.WARNING)
            try:
                for place in self._jobs_of_this_rank(jobs):
                    values[place], calls[place] = self._run_request(*jobs[place])
            except (Stopped, KeyboardInterrupt):
                stopped = 1
            finally:
                LOG.setLevel(level)
        ended = np.array([max(stopped, early_signal(self.comm))], dtype=np.int64)
        self.comm.allreduce_(ended, "max")
        if ended[0]:
            raise Interrupted("stopped by a signal: the same command continues the search")
        self.comm.allreduce_(values)
        self.comm.allreduce_(calls)
        return [TrialOutcome(float(value), int(count)) for value, count in zip(values, calls)]

    def _jobs_of_this_rank(self, jobs: list[tuple[int, Request]]) -> list[int]:
        """Return the indices of this rank's jobs: longest first, each for the rank with the least load."""
        lengths = [self.plans[number].preview.later_calls * request.rounds for number, request in jobs]
        load, selected = [0] * self.comm.size, []
        for number in sorted(range(len(jobs)), key=lambda index: (-lengths[index], index)):
            rank = load.index(min(load))
            load[rank] += lengths[number]
            if rank == self.comm.rank:
                selected.append(number)
        return selected

    def _run_request(self, number: int, request: Request) -> TrialOutcome:
        study = self.tuning.studies[number]
        folder = trial_folder(self.tuning.out, study, request.settings, request.seed)
        return run_trial(folder, study, request, self.plans[number].metric, self.independent)

    def _report(self, jobs: list[tuple[int, Request]], outcomes: list[TrialOutcome]) -> None:
        """Send the outcomes to the searches, and delete checkpoints that are no longer needed (rank 0)."""
        if self.comm.rank:
            return
        for number in [*self.requested]:
            self._send(number, [outcome for (owner, _), outcome in zip(jobs, outcomes) if owner == number])
        for search in self.searches.values():
            for trial in search.dropped:
                for seed in {seed for _, seed in trial.outcomes}:
                    delete_checkpoints(trial_folder(self.tuning.out, search.study, trial.settings, seed))
            search.dropped.clear()
        self.bar.update(sum(search.spent for search in self.searches.values()) - self.bar.n)
        self._write()
