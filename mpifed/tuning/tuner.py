"""All searches of a job side by side: the runs of a rung of each make a wave, which the ranks share."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Generator
from dataclasses import asdict, dataclass

import numpy as np
from tqdm import tqdm

from mpifed.base.errors import ConfigError, ContractError
from mpifed.base.log import LOG, info
from mpifed.config.grids import taken
from mpifed.config.tuning import Cell, Tuning
from mpifed.parallel.comm import CollectiveError, SerialComm, broadcast_text, collective_errors
from mpifed.running.signals import Stopped, early_signal
from mpifed.tuning.found import Found, found_by, read, remember, write
from mpifed.tuning.search import Search
from mpifed.tuning.trials import Alone, Asked, Probe, Seen, carry_out, discard, place, probe

__all__ = ["Interrupted", "tune"]

#: What a run may end with that the other ranks have to hear of.
_FAULTS = (CollectiveError, ConfigError, ContractError, OSError)
#: Settings of [run] that say where files lie and what is shown, not what is found.
_ASIDE = {"out", "overwrite", "progress", "data_dir", "keep", "checkpoint_every", "tensorboard", "watchdog"}


class Interrupted(RuntimeError):
    """A signal has ended a search on all ranks; its runs are stored in their folders."""


@dataclass(frozen=True)
class _Plan:
    """What the search of a cell is given: its budget in oracle calls, what decides, and which way."""

    probe: Probe
    budget: int
    metric: str

    @property
    def sign(self) -> int:
        return -1 if self.metric in self.probe.maximised else 1


def tune(tuning: Tuning, comm: SerialComm, part: str = "0/1") -> list[Found | None]:
    """Search for the best settings of all cells, or of a part of them; those that are done are passed over.
    Collective.

    Returns:
        On rank 0, what was found by cell, ``None`` for one that another part has not done yet.

    Raises:
        Interrupted: a signal came to any rank.
        CollectiveError: a run cannot be carried out.
    """
    probes = _probes(tuning, comm)
    with collective_errors(comm, ConfigError):
        plans = _plans(tuning, probes)
        mine = taken(list(range(len(tuning.cells))), part)
    fleet = _Fleet(tuning, comm, plans, mine)
    fleet.carry_out()
    return fleet.found()


def _probes(tuning: Tuning, comm: SerialComm) -> list[Probe]:
    """What a round of each cell costs, which the ranks share. Collective."""
    alone, own = Alone(comm), {}
    with collective_errors(comm, *_FAULTS):
        for number in range(comm.rank, len(tuning.cells), comm.size):
            own[number] = asdict(probe(tuning.cells[number], alone))
    texts = [broadcast_text(comm, json.dumps(own), root) for root in range(comm.size)]
    found = {int(number): one for text in texts for number, one in json.loads(text).items()}
    return [Probe(**found[number]) for number in range(len(tuning.cells))]


def _plans(tuning: Tuning, probes: list[Probe]) -> list[_Plan]:
    """The budget of a task is that of so many whole runs of its costliest method."""
    whole: dict[str, int] = {}
    for cell, one in zip(tuning.cells, probes):
        whole[cell.task] = max(whole.get(cell.task, 0), one.calls(cell.rounds))
    return [
        _Plan(one, tuning.tune.runs * whole[cell.task], one.deciding(tuning.tune.metric))
        for cell, one in zip(tuning.cells, probes)
    ]


def _digest(cell: Cell, plan: _Plan, seeds: int) -> str:
    """What tells a search from another one of the same name."""
    table = cell.config(cell.space.costliest).table()
    table["run"] = {key: value for key, value in table["run"].items() if key not in _ASIDE}
    said = [table, cell.space.table({}), repr(cell.space.open), plan.budget, plan.metric, seeds]
    said += [plan.probe.data] if plan.probe.data else []
    return hashlib.blake2b(json.dumps(said, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()


class _Fleet:
    """The searches of this start, on rank 0, and what all ranks do for them."""

    def __init__(self, tuning: Tuning, comm: SerialComm, plans: list[_Plan], mine: list[int]):
        self.tuning, self.comm, self.plans = tuning, comm, plans
        self.alone = Alone(comm)
        seeds = tuning.tune.seeds
        self.digests = [_digest(cell, plan, seeds) for cell, plan in zip(tuning.cells, plans)]
        self.searches: dict[int, Search] = {}
        self.steps: dict[int, Generator] = {}
        self.wanted: dict[int, list[Asked]] = {}
        if comm.rank == 0:
            for number in mine:
                cell, plan = tuning.cells[number], plans[number]
                if read(tuning, cell, self.digests[number]) is None:
                    self.searches[number] = Search(cell, seeds, plan.budget, plan.probe, plan.sign)
                    self.steps[number] = self.searches[number].carry_out()

    def found(self) -> list[Found | None]:
        """What all parts have found so far."""
        cells = self.tuning.cells
        return [read(self.tuning, cell, digest) for cell, digest in zip(cells, self.digests)]

    def carry_out(self) -> None:
        """Wave after wave until every search has ended. Collective."""
        total = sum(self.plans[number].budget for number in self.searches)
        with tqdm(
            total=total,
            unit="call",
            unit_scale=True,
            desc="tune",
            dynamic_ncols=True,
            disable=not (self.comm.rank == 0 and LOG.level <= logging.INFO),
        ) as self.bar:
            with collective_errors(self.comm, *_FAULTS):
                for number in [*self.steps]:
                    self._send(number, None)
                self._write()
            while jobs := self._jobs():
                seen = self._wave(jobs)
                with collective_errors(self.comm, *_FAULTS):
                    self._tell(jobs, seen)

    def _send(self, number: int, seen: list[Seen] | None) -> None:
        """Tell a search what its runs have come to, and note what it wants next (rank 0)."""
        try:
            self.wanted[number] = self.steps[number].send(seen)
        except StopIteration:
            search = self.searches[number]
            found = found_by(search, self.plans[number].metric)
            remember(self.tuning, search.cell, self.digests[number], found)
            del self.steps[number], self.wanted[number]
            info(f"{search.cell.title} is done: {len(search.trials)} settings")

    def _write(self) -> None:
        """Write what is found; again where another part has meanwhile found more (rank 0)."""
        if self.comm.rank:
            return
        found, done = self.found(), -1
        while done < (now := sum(one is not None for one in found)):
            done = now
            write(self.tuning, found)
            found = self.found()

    def _jobs(self) -> list[tuple[int, Asked]]:
        """Cell and run of the next wave, on all ranks. Collective."""
        jobs = [(number, asked) for number, wanted in self.wanted.items() for asked in wanted]
        text = broadcast_text(self.comm, json.dumps(jobs) if self.comm.rank == 0 else None)
        return [(number, Asked(*asked)) for number, asked in json.loads(text)]

    def _wave(self, jobs: list[tuple[int, Asked]]) -> list[Seen]:
        """What the runs of a wave have come to, on all ranks. Collective."""
        values, calls = np.zeros(len(jobs)), np.zeros(len(jobs), dtype=np.int64)
        stopped, level = 0, LOG.level
        with collective_errors(self.comm, *_FAULTS):
            LOG.setLevel(level or logging.WARNING)
            try:
                for place_ in self._mine(jobs):
                    values[place_], calls[place_] = self._one(*jobs[place_])
            except (Stopped, KeyboardInterrupt):
                stopped = 1
            finally:
                LOG.setLevel(level)
        ended = np.array([max(stopped, early_signal(self.comm))], dtype=np.int64)
        self.comm.allreduce_(ended, "max")
        if ended[0]:
            raise Interrupted("stopped by a signal: the same command goes on")
        self.comm.allreduce_(values)
        self.comm.allreduce_(calls)
        return [Seen(float(value), int(count)) for value, count in zip(values, calls)]

    def _mine(self, jobs: list[tuple[int, Asked]]) -> list[int]:
        """The places of this rank's jobs: the longest first, each to the rank that has least to do."""
        lengths = [self.plans[number].probe.each * asked.rounds for number, asked in jobs]
        load, mine = [0] * self.comm.size, []
        for number in sorted(range(len(jobs)), key=lambda one: (-lengths[one], one)):
            rank = load.index(min(load))
            load[rank] += lengths[number]
            if rank == self.comm.rank:
                mine.append(number)
        return mine

    def _one(self, number: int, asked: Asked) -> Seen:
        cell = self.tuning.cells[number]
        folder = place(self.tuning.out, cell, asked.settings, asked.seed)
        return carry_out(folder, cell, asked, self.plans[number].metric, self.alone)

    def _tell(self, jobs: list[tuple[int, Asked]], seen: list[Seen]) -> None:
        """Pass the results to the searches (rank 0), and remove checkpoints that nothing continues from."""
        if self.comm.rank:
            return
        for number in [*self.wanted]:
            self._send(number, [one for (owner, _), one in zip(jobs, seen) if owner == number])
        for search in self.searches.values():
            for trial in search.dropped:
                for seed in {seed for _, seed in trial.seen}:
                    discard(place(self.tuning.out, search.cell, trial.settings, seed))
            search.dropped.clear()
        self.bar.update(sum(search.spent for search in self.searches.values()) - self.bar.n)
        self._write()
