"""The loop around a simulation: rounds, evaluations, checkpoints and callbacks."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping, Sequence

import torch
from tqdm import tqdm

from mpifed.base.log import LOG, PHASES, visible
from mpifed.base.settings import title
from mpifed.config.job import Config
from mpifed.config.theory import prescription_of, told
from mpifed.parallel.comm import SerialComm, collective_errors
from mpifed.parallel.devices import deterministic, expect_alike, keep_freed_memory, threads
from mpifed.parallel.placement import Cohort
from mpifed.running.callbacks import Callbacks
from mpifed.running.checkpointing import CheckpointManager, Snapshot, bytes_of, say
from mpifed.running.recorder import Recorder
from mpifed.running.result import Result
from mpifed.running.resume import complete
from mpifed.running.signals import StopSignals
from mpifed.running.stopping import StopRule
from mpifed.running.watchdog import Watchdog
from mpifed.simulation.evaluation import evaluation_interval
from mpifed.simulation.executor import Observer, Stage
from mpifed.simulation.simulation import NonFiniteError, Simulation
from mpifed.storage.folder import Folder
from mpifed.storage.format import End
from mpifed.storage.rank_log import RankLog
from mpifed.storage.tensorboard import Scalars

__all__ = ["Runner"]

#: Number of metrics next to the progress bar.
SHOWN = 6
#: Bytes a second that a run's first write of files is expected to reach; a tenth of it is a hang.
WRITTEN = 1e8


class Runner:
    """One run, from its start or from a checkpoint to its end in this process.

    Attributes:
        signal: at the end, the number of the signal that came to any of the ranks, 0 for none.
    """

    def __init__(
        self, config: Config, comm: SerialComm, folder: Folder, log: RankLog, callbacks: Sequence[object]
    ):
        self.config, self.comm, self.folder, self.signal = config, comm, folder, 0
        self.log, self.given, self.timed = log, callbacks, LOG.isEnabledFor(logging.DEBUG)
        self.signals = StopSignals(comm, self._where)
        self.watchdog = Watchdog(comm, config.run.watchdog)
        self.rule = StopRule(config, comm)
        self.checkpoints: CheckpointManager | None = None

    def _where(self) -> str:
        done, safe = (self.simulation.round, self.checkpoints.safe) if self.checkpoints else (0, 0)
        return (
            f"received in round {done}: the run stops after round {done + 1} at the latest, with a "
            f"checkpoint, if the ranks live to see it; the newest is of round {safe}"
        )

    def _elapsed(self) -> float:
        return self.recorder.before("seconds") + self.simulation.rounds.costs.seconds

    def carry_out(self, saved: Snapshot | None) -> Result:
        """Run from ``saved``, or from the start. Collective.

        Raises:
            CollectiveError: on all ranks together, NonFiniteError among them.
        """
        with self.watchdog, self.signals, deterministic(self.config.run.reduction == "exact"):
            self._set_up(saved)
            try:
                with self.simulation.transport:
                    result = self._begin() if saved is None else self._continue(saved)
            except NonFiniteError as fault:
                self.checkpoints.save_history(End("diverged", str(fault)))
                self._tell("on_end", {}, str(fault))
                raise
            self.signal = self.signals.common()
        return result

    def _set_up(self, saved: Snapshot | None) -> None:
        run, began = self.config.run, time.perf_counter()
        observers = [_PhaseTimes()] if LOG.isEnabledFor(PHASES) else []
        exact = run.reduction == "exact"
        torch.set_num_threads(threads(run.threads, exact, self.comm.local_size))
        keep_freed_memory()
        with collective_errors(self.comm, ValueError, OSError):
            header = saved.header if saved else {}
            self.simulation = Simulation.from_settings(self.config, self.comm, observers, header.get("group"))
            self.recorder = Recorder(self.simulation, self.comm)
            board = [Scalars(run.out)] if self.comm.rank == 0 and run.tensorboard else []
        self.callbacks = Callbacks(
            [*board, *self.given], self.simulation, self.recorder, self.comm, self.folder.path
        )
        self.interval = evaluation_interval(self.config, sum(self.simulation.metrics.rows.values()))
        if exact:
            expect_alike(self.comm, self.simulation.device)
        if found := prescription_of(self.config.theory):
            say(self.comm, told(*found))
        if said := self.simulation.rounds.choice.said:
            say(self.comm, f"{said} (run.group)")
        self.checkpoints = CheckpointManager(run, self.folder, self.simulation, self.recorder, self.comm)
        LOG.info("%s; set up in %.3g s", _layout(self.simulation), time.perf_counter() - began)

    def _begin(self) -> Result:
        """From the starting point; the job has been checked to the last, and what lies there is replaced."""
        self.simulation.start()
        self.recorder.note_round()
        with self._progress() as bar:
            end, metrics = self._measure(bar)
            self.checkpoints.clear()
            if self.config.run.overwrite:
                self.log.forget()
            self._tell("on_start")
            self._tell("on_evaluation", metrics)
            return self._go(bar, end)

    def _continue(self, saved: Snapshot) -> Result:
        self.checkpoints.restore(saved)
        self.rule.restore(self.recorder.metrics)
        end = complete(saved.end, saved.round, saved.header["config"], self.config)
        if end is None:
            self._tell("on_start")
            with self._progress() as bar:
                end = self.rule.after(self.simulation.round)
                if end and self.rule.evaluated < self.simulation.round:  # a last round that was none before
                    self._evaluate(bar)
                return self._go(bar, end)
        say(self.comm, f"{self.folder.path} is complete: {end.sentence}")
        metrics = self.simulation.evaluate(self.simulation.output)
        self.checkpoints.repair(end, metrics)
        return self._result(end, metrics)

    def _progress(self) -> tqdm:
        return tqdm(
            total=self.config.rounds,
            initial=self.simulation.round,
            unit="round",
            disable=not (self.comm.rank == 0 and self.config.run.progress and LOG.isEnabledFor(logging.INFO)),
            desc=visible(title(self.config.algorithm), line=True),
            dynamic_ncols=True,
            mininterval=0.1 if sys.stderr.isatty() else 2,
        )

    def _go(self, bar: tqdm, end: End | None) -> Result:
        """Rounds until there is an end, and what is written then."""
        while end is None:
            end = self._round(bar)
        bar.close()
        end, round, metrics = self.rule.told(end), self.simulation.round, {}
        if end.kind != "signal":  # after one, no time is spent on anything but the checkpoint
            self.watchdog.beat(round, "evaluation")
            metrics = self.simulation.evaluate(self.simulation.output)
        self._save(end, metrics)
        costs = self.simulation.rounds.costs
        LOG.info(
            "ended: %s; %.4g s in rounds, %.4g s of them waiting for messages",
            end.sentence,
            costs.seconds,
            costs.communication_seconds,
        )
        self._tell("on_end", metrics, end.sentence)
        if end.kind == "signal":
            say(self.comm, f"stopped after round {round}: the same command continues from there")
        return self._result(end, metrics)

    def _round(self, bar: tqdm) -> End | None:
        """One round and what is due after it."""
        simulation, rule, run = self.simulation, self.rule, self.config.run
        before = simulation.rounds.costs.seconds
        rule.count(simulation.step(rule.vote(bool(self.signals.requested), self._elapsed)))
        if self.timed:
            LOG.debug("round %d: %.4g s", simulation.round, simulation.rounds.costs.seconds - before)
        self.recorder.note_round()
        self.watchdog.beat(simulation.round)
        bar.update()
        if "on_round" in self.callbacks.wanted:
            self._tell("on_round")
        end = rule.after(simulation.round)
        if end or simulation.round % self.interval == 0:
            end = self._evaluate(bar) or end
        end = end or rule.signal(simulation.round)
        if end is None and run.checkpoint_every and simulation.round % run.checkpoint_every == 0:
            self._save()
        return end

    def _evaluate(self, bar: tqdm) -> End | None:
        """Measure and tell the callbacks; the end of the run if metrics have reached their target.
        Collective.
        """
        end, metrics = self._measure(bar)
        self._tell("on_evaluation", metrics)
        return end

    def _measure(self, bar: tqdm) -> tuple[End | None, Mapping[str, float]]:
        """The end of the run if metrics have reached their target, and the metrics of the current point.
        Collective.
        """
        simulation, began = self.simulation, time.perf_counter()
        self.watchdog.beat(simulation.round, "evaluation")
        averaged = self.config.output_rule == "average"
        metrics = simulation.evaluate(simulation.output if averaged else simulation.shared)
        if self.comm.rank == 0:
            self.recorder.note_metrics(metrics)
            first = [*metrics.items()][:SHOWN]
            bar.set_postfix({name: f"{value:.4g}" for name, value in first}, refresh=False)
        if self.timed:
            LOG.debug("evaluation: %.4g s %s", time.perf_counter() - began, metrics or "")
        end = self.rule.target(metrics, simulation.round)
        self.watchdog.beat(simulation.round)
        return end, metrics

    def _tell(self, name: str, metrics: Mapping[str, float] | None = None, stopped: str = "") -> None:
        """Call a method of the callbacks, if one has it. Collective."""
        if name in self.callbacks.wanted:
            self.watchdog.beat(self.simulation.round, "callbacks")
            self.callbacks.tell(name, metrics or {}, stopped)
            self.watchdog.beat(self.simulation.round)

    def _save(self, end: End | None = None, metrics: dict[str, float] | None = None) -> None:
        round, began = self.simulation.round, time.perf_counter()
        self.watchdog.beat(round, "checkpoint", bytes_of(self.simulation) / WRITTEN)
        self.checkpoints.save(end, metrics, self.rule.asked)
        self.watchdog.beat(round)
        took, safe = time.perf_counter() - began, self.checkpoints.safe
        LOG.info("files of round %d: %.3g s; the newest checkpoint is of round %d", round, took, safe)

    def _result(self, end: End, metrics: dict[str, float]) -> Result:
        return Result.of(self.simulation, self.recorder, end, metrics, self.folder.path)


def _layout(simulation: Simulation) -> str:
    """What this rank does of a run, and on what."""
    mine, rounds = simulation.rounds.mine, simulation.rounds
    clients = f"clients {mine[0]} to {mine[-1]}" if len(mine) else "no clients"
    return (
        f"device {simulation.device}, {torch.get_num_threads()} thread(s), {clients} "
        f"({len(mine)} of {simulation.placement.clients}), group {rounds.choice.group}, messages by "
        f"{simulation.transport.name}"
    )


class _PhaseTimes(Observer):
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
