"""A whole run: rounds until a rule or a signal says stop, evaluation, results file, checkpoints, progress.

A run that finds a checkpoint of the same job in its output folder continues from it, so the same command can be given
again after any end: a signal, a crash, a full disk. What a checkpoint cannot be continued by is refused with the reason;
nothing is ever started over silently.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from mpifed.config.job import Config
from mpifed.core.settings import near_miss
from mpifed.parallel.comm import SerialComm, agree, world
from mpifed.parallel.devices import deterministic, threads
from mpifed.running.recovery import carry_on, surviving
from mpifed.running.resume import (
    Saved,
    changed,
    choose,
    complete,
    find_saved,
    newest,
    records,
    sizes,
    take_up,
)
from mpifed.running.signals import StopSignals
from mpifed.running.watchdog import Watchdog
from mpifed.simulation.provenance import digests
from mpifed.simulation.simulation import NonFiniteError, Simulation
from mpifed.storage import checkpoint
from mpifed.storage.folder import Folder
from mpifed.storage.format import COSTS, RUN_FILE
from mpifed.storage.recorder import Recorder, ending

__all__ = ["Result", "run", "resume"]

#: The control value that rides on a round's first Allreduce: rank 0 adds LATE, every rank asked to stop adds ASKED.
LATE, ASKED = 1.0, 2.0


@dataclass(frozen=True)
class Result:
    """What a run returns on every rank; ``metrics`` and the history are complete on rank 0.

    Attributes:
        point: the output point, one flat tensor a block.
        metrics: metrics of the output point.
        history: metric name → values, with ``round``.
        costs: cost name → cumulative values by round.
        stopped: why the run ended.
        unfinished: a signal has ended it after a checkpoint; started again, it continues.
        path: the results file.
    """

    point: dict[str, torch.Tensor]
    metrics: dict[str, float]
    history: dict[str, list[float]]
    costs: dict[str, np.ndarray]
    stopped: str
    unfinished: bool
    path: Path


def run(config: Config, comm: SerialComm | None = None, resume: str = "auto") -> Result:
    """Run a job, or continue it where ``run.out`` holds a checkpoint of it. Collective.

    Args:
        comm: the communicator; by default that of all processes started together.
        resume: "auto" continues where there is a checkpoint, "must" insists on one, "never" starts from the beginning.
            ``run.overwrite = true`` makes "auto" start from the beginning, too, and replaces what lies in ``run.out``.

    Raises:
        CollectiveError: on all ranks together: bad settings, missing data, an output folder in use or with another job's
            results, non-finite values.
    """
    folder = Folder(config.run.out)
    return _carry_out(config, comm or world(), folder, lambda: choose(folder, config, resume))


def resume(folder: str | Path, overrides: list[str] = (), comm: SerialComm | None = None) -> Result:
    """Continue a run from its newest sound checkpoint, on any number of ranks. Collective.

    Args:
        folder: the run's folder.
        overrides: ``key=value`` changes, e.g. more rounds.

    Raises:
        CollectiveError: there is no checkpoint to continue from, or as for :func:`run`.
    """
    comm, folder = comm or world(), Folder(folder)
    try:
        config = changed(comm, find_saved(comm, lambda: newest(folder)), folder, overrides)
    finally:
        folder.close()
    return _carry_out(config, comm, folder, lambda: newest(folder))


def _carry_out(config: Config, comm: SerialComm, folder: Folder, look: Callable[[], Saved | None]) -> Result:
    """Run from what rank 0 finds by ``look``; with ``run.on_rank_failure = "shrink"`` as often as a rank dies. Collective."""

    def attempt(comm: SerialComm) -> Result:
        try:
            saved = find_saved(comm, look)
            return _Runner(config, comm, folder).carry_out(saved)
        finally:
            folder.close()

    return carry_on(surviving(comm, config.run.on_rank_failure), attempt)


class _Runner:
    """The loop around a simulation."""

    def __init__(self, config: Config, comm: SerialComm, folder: Folder):
        self.config, self.comm, self.folder = config, comm, folder
        self.simulation: Simulation | None = None
        self.signals = StopSignals(comm, self._where)
        self.watchdog = Watchdog(comm, config.run.watchdog)
        self._safe = 0  # the round of the newest checkpoint
        self._asked = False  # whether some rank was asked to stop in the last round

    def _where(self) -> str:
        done = self.simulation.round if self.simulation else 0
        return (
            f"received in round {done}: the run stops after round {done + 1} at the latest, with a checkpoint, if the ranks "
            f"live to see it; the newest is of round {self._safe}"
        )

    def carry_out(self, saved: Saved | None) -> Result:
        """Set up, then run from the start or from ``saved``. Collective."""
        with self.watchdog, self.signals, deterministic(self.config.run.reduction == "exact"):
            self._set_up(saved.header["client_costs"] if saved else ())
            try:
                with self.simulation.transport:
                    if saved is None:
                        self.simulation.start()
                        return self._go("", fresh=True)
                    self._restore(saved)
                    return self._go(complete(saved, self.config), fresh=False)
            except NonFiniteError as fault:  # keep the curves; the checkpoints stay as they are
                self.recorder.gather()
                if self.comm.rank == 0:
                    self.recorder.write(self.folder.path, str(fault), {})
                raise

    def _set_up(self, client_costs: list[int]) -> None:
        run = self.config.run
        torch.set_num_threads(threads(run.threads, run.reduction == "exact", self.comm.local_size))
        error = None
        try:
            self.simulation = Simulation(self.config, self.comm, client_costs)
            self.recorder = Recorder(self.simulation, self.comm)
        except (ValueError, OSError) as fault:
            error = str(fault)
        agree(self.comm, error)

    def _restore(self, saved: Saved) -> None:
        """Take up the state of a checkpoint that rank 0 has read. Collective."""
        take_up(saved, self.simulation, self.recorder, self.comm)
        self._safe = self.simulation.round
        self._say(f"continuing {self.folder.path} from round {self._safe}")

    def _go(self, stopped: str, fresh: bool) -> Result:
        """Run until a stopping rule holds; the results file and the last checkpoint are written in the end.

        Args:
            stopped: why the run has ended already, "" if it has not.
            fresh: it begins here and replaces what lies in the folder.
        """
        simulation, config = self.simulation, self.config
        rank0 = self.comm.rank == 0
        if stopped:
            self._say(f"{self.folder.path} is complete: {stopped}")
            final, error = simulation.evaluate(simulation.output), None
            if rank0 and ending(self.folder.path)[1] != stopped:  # a kill came between the last two files
                error = self._try(lambda: self.recorder.write(self.folder.path, stopped, final))
            agree(self.comm, error)
            return self._result(stopped, final)
        bar = tqdm(
            total=config.rounds,
            initial=simulation.round,
            unit="round",
            disable=not (rank0 and config.run.progress),
            desc=type(config.algorithm).__name__,
            dynamic_ncols=True,
            mininterval=0.1 if sys.stderr.isatty() else 2,
        )
        with bar:
            if fresh:
                self.recorder.note_round()
                stopped = self._evaluate(bar)
                for path in (
                    self.folder.results() if rank0 else ()
                ):  # the job has been checked to the last: now overwrite
                    path.unlink()
            while not stopped:
                stopped = self._round(bar)
                if self._asked and not stopped:
                    return self._leave()
        self.watchdog.beat(simulation.round, "evaluation")
        final = simulation.evaluate(simulation.output)
        self._save(stopped, final, must=True)
        return self._result(stopped, final)

    def _round(self, bar) -> str:
        """One round and what is due after it. Returns why the run stops, "" to go on."""
        simulation, config = self.simulation, self.config
        if simulation.round >= config.rounds:
            return f"all {config.rounds} rounds done"
        late = (
            config.stop.seconds is not None and self.comm.rank == 0 and self._elapsed() >= config.stop.seconds
        )
        control = simulation.step(LATE * late + ASKED * bool(self.signals.requested))
        self._asked, out_of_time = control >= ASKED, control % ASKED == LATE
        self.recorder.note_round()
        self.watchdog.beat(simulation.round)
        bar.update()
        r, last = simulation.round, simulation.round == config.rounds
        stopped = f"wall-time budget of {config.stop.seconds} s used up" if out_of_time else ""
        if last or out_of_time or r % config.run.eval_every == 0:
            stopped = self._evaluate(bar) or stopped
        every = config.run.checkpoint_every
        if every and r % every == 0 and not (last or stopped or self._asked):
            self._save("", {}, must=False)
        return stopped or (f"all {config.rounds} rounds done" if last else "")

    def _say(self, text: str) -> None:
        if self.comm.rank == 0:
            tqdm.write(f"mpifed: {text}", file=sys.stderr)

    def _elapsed(self) -> float:
        return float(self.recorder._base[COSTS.index("seconds")]) + self.simulation.costs.seconds

    def _evaluate(self, bar) -> str:
        """Metrics of the current point; returns the reason to stop if the target is reached. Collective."""
        simulation, stop = self.simulation, self.config.stop
        self.watchdog.beat(simulation.round, "evaluation")
        averaged = self.config.output_rule == "average"
        values = simulation.evaluate(simulation.output if averaged else simulation.shared)
        reached, error = np.zeros(1, dtype=np.int64), None
        if self.comm.rank == 0:
            self.recorder.note_metrics(values)
            bar.set_postfix({name: f"{value:.4g}" for name, value in values.items()}, refresh=False)
            if stop.metric is not None:
                if stop.metric not in values:
                    error = f"stop.metric = {stop.metric!r} is no metric of this problem: {near_miss(stop.metric, values)}"
                else:
                    value = values[stop.metric]
                    reached[0] = (
                        value >= stop.at_least if stop.at_least is not None else value <= stop.at_most
                    )
        agree(self.comm, error)
        self.comm.bcast_(reached)
        self.watchdog.beat(simulation.round)
        if not reached[0]:
            return ""
        bound = f"at least {stop.at_least}" if stop.at_least is not None else f"at most {stop.at_most}"
        return f"{stop.metric} is {bound}"

    def _save(self, stopped: str, final: dict[str, float], must: bool) -> None:
        """Bring the history to rank 0; write the checkpoint and the results file. Collective.

        Args:
            must: a file that cannot be written ends the run; otherwise a warning says so and the old files stay.
        """
        config, simulation = self.config, self.simulation
        self.watchdog.beat(simulation.round, "checkpoint")
        self.recorder.gather()
        header, arrays = self.recorder.history() if self.comm.rank == 0 else ({}, {})
        header |= {
            "round": simulation.round,
            "config": config.table(),
            "stopped": stopped,
            "client_costs": simulation.client_costs.tolist(),
            "sizes": sizes(simulation),
            "data": digests(simulation.problem.files),
        }
        arrays |= {name: state.buffer.cpu().numpy() for name, state in records(simulation).items()}

        def write():
            if config.run.checkpoint_every or self._asked:
                rows = simulation.clients.buffer.cpu().numpy()
                checkpoint.write(
                    self.folder.path, config.run.keep, header, arrays, rows, self.comm, simulation.placement
                )
                self._safe, self.folder.ours = simulation.round, True
            if self.comm.rank == 0:
                self.recorder.write(self.folder.path, stopped, final)

        error = self._try(write)
        if error and not must:
            self._say(f"warning: {error}; the run goes on")
        agree(self.comm, error if must else None)
        self.watchdog.beat(simulation.round)

    def _try(self, write: Callable[[], None]) -> str | None:
        """Write files; what to say if they could not be written."""
        try:
            write()
        except (OSError, RuntimeError) as fault:  # HDF5 raises either
            return (
                f"the files of round {self.simulation.round} could not be written to {self.folder.path} ({fault}); the newest "
                f"checkpoint is of round {self._safe}"
            )
        return None

    def _leave(self) -> Result:
        """End after a signal: a checkpoint, and no time spent on anything else. Collective."""
        self._save("", {}, must=True)
        self._say(f"stopped after round {self._safe}: the same command continues from there")
        return self._result(f"a signal after round {self._safe}", {}, unfinished=True)

    def _result(self, stopped: str, final: dict[str, float], unfinished: bool = False) -> Result:
        simulation, recorder = self.simulation, self.recorder
        return Result(
            point={block: getattr(simulation.output, block).clone() for block in simulation.blocks},
            metrics=final,
            history=recorder.metrics,
            costs=dict(zip(COSTS, recorder.costs.T)),
            stopped=stopped,
            unfinished=unfinished,
            path=self.folder.path / RUN_FILE,
        )
