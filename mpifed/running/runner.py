"""The loop around a simulation: rounds, evaluations, checkpoints and callbacks."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Mapping, Sequence

import torch
from tqdm import tqdm

from mpifed.base.log import LINE, LOG, PHASES, escape_control, progress_bar
from mpifed.base.settings import title
from mpifed.config.job import Config
from mpifed.config.theory import prescription_of, summary
from mpifed.parallel.comm import SerialComm, collective_errors
from mpifed.parallel.devices import deterministic, keep_freed_memory, threads, warn_if_machines_differ
from mpifed.parallel.placement import Cohort
from mpifed.running.callbacks import Callbacks, TensorBoard
from mpifed.running.checkpointing import CheckpointManager, Snapshot, announce, state_bytes
from mpifed.running.recorder import Recorder
from mpifed.running.result import Result
from mpifed.running.resume import complete, final_end
from mpifed.running.signals import StopSignals
from mpifed.running.stopping import StopRule
from mpifed.running.watchdog import Watchdog
from mpifed.simulation.evaluation import evaluation_interval
from mpifed.simulation.executor import Observer, Stage
from mpifed.simulation.simulation import NonFiniteError, Simulation
from mpifed.storage.folder import Folder
from mpifed.storage.rank_log import RankLog
from mpifed.storage.results import End

__all__ = ["Runner"]

#: Number of characters of a progress bar without metrics.
BAR = 54
#: Expected write speed of the first checkpoint in bytes per second. The watchdog tolerates a tenth of it.
WRITE_SPEED = 1e8


class Runner:
    """One run, from its start or a checkpoint to its end in this process.

    Attributes:
        signal: at the end, the number of the signal that any rank has received, 0 without a signal.
    """

    def __init__(
        self, config: Config, comm: SerialComm, folder: Folder, log: RankLog, callbacks: Sequence[object]
    ):
        self.config, self.comm, self.folder, self.signal = config, comm, folder, 0
        self.log, self.user_callbacks, self.timed = log, callbacks, LOG.isEnabledFor(logging.DEBUG)
        self.signals = StopSignals(comm, self._progress_text)
        self.watchdog = Watchdog(comm, config.run.watchdog)
        self.rule = StopRule(config, comm)
        self.checkpoints: CheckpointManager | None = None
        self._evaluated: tuple[int, dict[str, float]] = (-1, {})

    def _progress_text(self) -> str:
        done, newest = (self.simulation.round, self.checkpoints.newest) if self.checkpoints else (0, 0)
        return (
            f"received in round {done}: the run writes a checkpoint and stops after round {done + 1} at the "
            f"latest; the newest checkpoint is of round {newest}"
        )

    def _elapsed(self) -> float:
        return self.recorder.initial_seconds + self.simulation.rounds.costs.seconds

    def execute(self, saved: Snapshot | None) -> Result:
        """Run from the snapshot ``saved``, or from the start. Collective.

        Raises:
            CollectiveError: on all ranks together, possibly a NonFiniteError.
        """
        with self.watchdog, self.signals, deterministic(self.config.run.reduction == "exact"):
            self._set_up(saved)
            try:
                with self.simulation.transport:
                    result = self._begin() if saved is None else self._continue(saved)
            except NonFiniteError as error:
                self.checkpoints.save_history(End("diverged", str(error)))
                self._call_callbacks("on_end", {}, str(error))
                raise
            self.signal = self.signals.common_signal()
        return result

    def _set_up(self, saved: Snapshot | None) -> None:
        run, began = self.config.run, time.perf_counter()
        observers = [_PhaseTimes()] if LOG.isEnabledFor(PHASES) else []
        exact = run.reduction == "exact"
        torch.set_num_threads(threads(run.threads, exact, self.comm.local_size))
        keep_freed_memory()
        header = saved.header if saved else {}
        self.simulation = Simulation.from_settings(self.config, self.comm, observers, header.get("group"))
        with collective_errors(self.comm, ValueError, OSError):
            self.recorder = Recorder(self.simulation, self.comm)
            board = [TensorBoard(run.out)] if self.comm.rank == 0 and run.tensorboard else []
        self.callbacks = Callbacks(
            [*board, *self.user_callbacks], self.simulation, self.recorder, self.comm, self.folder.path
        )
        self.interval = evaluation_interval(self.config, self.simulation.metrics.rows)
        if exact:
            warn_if_machines_differ(self.comm, self.simulation.device)
        if found := prescription_of(self.config.theory):
            announce(self.comm, summary(*found))
        if note := self.simulation.rounds.choice.note:
            announce(self.comm, f"{note} (run.group)")
        self.checkpoints = CheckpointManager(run, self.folder, self.simulation, self.recorder, self.comm)
        LOG.info("%s; set up in %.3g s", _layout(self.simulation), time.perf_counter() - began)

    def _begin(self) -> Result:
        """Run from the starting point. The previous run is replaced only now, when all checks have passed."""
        self.simulation.start()
        self.recorder.record_round()
        with self._progress() as bar:
            end, metrics = self._evaluate(bar)
            self.checkpoints.clear()
            if self.config.run.overwrite:
                self.log.remove_previous()
            started = self._call_callbacks("on_start")
            evaluated = self._call_callbacks("on_evaluation", metrics)
            return self._loop(bar, end or started or evaluated)

    def _continue(self, saved: Snapshot) -> Result:
        self.checkpoints.restore(saved)
        self.rule.restore(self.recorder.metrics, self.simulation.metrics.maximised)
        end = final_end(saved.end, saved.round, saved.header["config"], self.config)
        if end is None:
            started = self._call_callbacks("on_start")
            with self._progress() as bar:
                end = self.rule.end_after(self.simulation.round) or started
                if end and self.rule.evaluated < self.simulation.round:  # fewer rounds than before are set
                    self._evaluate_and_call(bar)
                return self._loop(bar, end)
        announce(self.comm, complete(self.folder, end))
        metrics = self.simulation.evaluate(self.simulation.output)
        self.checkpoints.repair(end, metrics)
        return self._result(end, metrics)

    def _progress(self) -> tqdm:
        return progress_bar(
            total=self.config.rounds,
            initial=self.simulation.round,
            unit="round",
            disable=not (self.comm.rank == 0 and self.config.run.progress and LOG.isEnabledFor(logging.INFO)),
            desc=escape_control(title(self.config.algorithm), line=True),
        )

    def _loop(self, bar: tqdm, end: End | None) -> Result:
        """Run rounds until the end, and write the final files."""
        self._saved = time.monotonic()
        while end is None:
            end = self._round(bar)
        bar.close()
        end, round, metrics = self.rule.with_note(end), self.simulation.round, {}
        if end.kind != "signal":  # after a signal, only the checkpoint is written
            self.watchdog.beat(round, "evaluation")
            metrics = self._output_metrics()
        self._save(end, metrics)
        costs = self.simulation.rounds.costs
        LOG.info(
            "ended: %s; %.4g s in rounds, %.4g s of them waiting for messages",
            end.sentence,
            costs.seconds,
            costs.communication_seconds,
        )
        self._call_callbacks("on_end", metrics, end.sentence)
        if (best := self.recorder.best) and end.kind != "signal":
            announce(self.comm, f"best {best.metric}: {best.value:.4g} after round {best.round}")
        if end.kind == "signal":
            announce(self.comm, f"stopped after round {round}: the same command continues from there")
        return self._result(end, metrics)

    def _round(self, bar: tqdm) -> End | None:
        """Run one round, and evaluate, call callbacks and write a checkpoint if they are due."""
        simulation, rule, run = self.simulation, self.rule, self.config.run
        before = simulation.rounds.costs.seconds
        due = time.monotonic() >= self._saved + run.checkpoint_seconds
        rule.receive(simulation.step(rule.contribution(bool(self.signals.requested), self._elapsed, due)))
        if self.timed:
            LOG.debug("round %d: %.4g s", simulation.round, simulation.rounds.costs.seconds - before)
        self.recorder.record_round()
        self.watchdog.beat(simulation.round)
        bar.update()
        end = self._call_callbacks("on_round") or rule.end_after(simulation.round)
        if end or simulation.round % self.interval == 0:
            end = self._evaluate_and_call(bar) or end
        end = end or rule.end_by_signal(simulation.round)
        every = run.checkpoint_every
        if end is None and every and (rule.checkpoint_due or simulation.round % every == 0):
            self._save()
        return end

    def _evaluate_and_call(self, bar: tqdm) -> End | None:
        """Evaluate and call the callbacks; return the end if the metric or a callback ends the run.
        Collective."""
        end, metrics = self._evaluate(bar)
        called = self._call_callbacks("on_evaluation", metrics)
        return end or called

    def _evaluate(self, bar: tqdm) -> tuple[End | None, Mapping[str, float]]:
        """Return the end if the metric ends the run, and the metrics of the current point. Collective."""
        simulation, began = self.simulation, time.perf_counter()
        self.watchdog.beat(simulation.round, "evaluation")
        averaged = self.config.output_rule == "average"
        metrics = simulation.evaluate(simulation.output if averaged else simulation.shared)
        self._evaluated = simulation.round, metrics
        if self.config.run.keep_best is not None:
            with collective_errors(self.comm, ValueError):
                if self.comm.rank == 0:
                    point = simulation.output.buffer if averaged else simulation.point()
                    self.recorder.keep_best(metrics, point)
        if self.comm.rank == 0:
            self.recorder.record_metrics(metrics)
            bar.set_postfix_str(_first_metrics(metrics, getattr(bar, "ncols", None)), refresh=False)
        if self.timed:
            LOG.debug("evaluation: %.4g s %s", time.perf_counter() - began, metrics or "")
        end = self.rule.end_by_metric(metrics, simulation.round, simulation.metrics.maximised)
        self.watchdog.beat(simulation.round)
        return end, metrics

    def _output_metrics(self) -> dict[str, float]:
        """Return the metrics of the output, which the last round's evaluation has computed unless the output
        is a uniformly drawn iterate. Collective."""
        round, metrics = self._evaluated
        if round == self.simulation.round and self.config.output_rule != "uniform":
            return metrics
        return self.simulation.evaluate(self.simulation.output)

    def _call_callbacks(
        self, name: str, metrics: Mapping[str, float] | None = None, stopped: str = ""
    ) -> End | None:
        """Call a method of the callbacks; return the end if one of them stops the run. Collective."""
        if name not in self.callbacks.methods:
            return None
        self.watchdog.beat(self.simulation.round, "callbacks")
        end = self.callbacks.call(name, metrics or {}, stopped)
        self.watchdog.beat(self.simulation.round)
        return end

    def _save(self, end: End | None = None, metrics: dict[str, float] | None = None) -> None:
        round, began = self.simulation.round, time.perf_counter()
        self.watchdog.beat(round, "checkpoint", state_bytes(self.simulation) / WRITE_SPEED)
        self.checkpoints.save(end, metrics, self.rule.signalled)
        self.watchdog.beat(round)
        self._saved = time.monotonic()
        took, newest = time.perf_counter() - began, self.checkpoints.newest
        LOG.info("files of round %d: %.3g s; the newest checkpoint is of round %d", round, took, newest)

    def _result(self, end: End, metrics: dict[str, float]) -> Result:
        return Result.from_run(self.simulation, self.recorder, end, metrics, self.folder.path)


def _first_metrics(metrics: Mapping[str, float], width: int | None) -> str:
    """Return the first metrics that fit next to a progress bar of a width, at least one."""
    texts = [f"{name}={value:.4g}" for name, value in metrics.items()]
    ends = [*itertools.accumulate(len(text) + 2 for text in texts)]
    return ", ".join(texts[: max(1, sum(end <= (width or LINE) - BAR for end in ends))])


def _layout(simulation: Simulation) -> str:
    """Describe the work of this rank for its log."""
    hosted, rounds = simulation.rounds.hosted, simulation.rounds
    clients = f"clients {hosted[0]} to {hosted[-1]}" if len(hosted) else "no clients"
    return (
        f"device {simulation.device}, {torch.get_num_threads()} thread(s), {clients} "
        f"({len(hosted)} of {simulation.placement.clients}), group {rounds.choice.group}, messages by "
        f"{simulation.transport.name}"
    )


class _PhaseTimes(Observer):
    """Logs the time of this rank's clients in each phase, and the time of the average that follows."""

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
