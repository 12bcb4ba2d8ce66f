"""A run: set-up, then rounds with evaluations, callbacks and checkpoints, then the final files.

:func:`execute` is a run on one page. :class:`_Run` has the parts of a run and what is done with several of
them.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from tqdm import tqdm

from mpifed.base.log import LINE, LOG, PHASES, escape_control, progress_bar
from mpifed.base.settings import title
from mpifed.config.job import Config
from mpifed.config.theory import prescription_of, summary
from mpifed.parallel.comm import SerialComm, collective_errors
from mpifed.parallel.devices import keep_freed_memory, threads
from mpifed.parallel.placement import Cohort
from mpifed.parallel.reproducibility import (
    deterministic,
    float32_precision,
    warn_if_machines_differ,
)
from mpifed.running.callbacks import Callbacks, TensorBoard
from mpifed.running.checkpointing import CheckpointManager, Snapshot, announce
from mpifed.running.recorder import Recorder
from mpifed.running.result import Result
from mpifed.running.resume import complete, final_end, find_saved
from mpifed.running.signals import StopSignals, stopped_by
from mpifed.running.stopping import StopRule
from mpifed.running.watchdog import Watchdog
from mpifed.simulation.evaluation import evaluation_interval
from mpifed.simulation.executor import Observer, Stage
from mpifed.simulation.simulation import NonFiniteError, Simulation
from mpifed.storage.folder import Folder
from mpifed.storage.rank_log import RankLog
from mpifed.storage.results import End

__all__ = ["execute"]

#: Number of characters of a progress bar without metrics.
BAR = 54
#: Expected write speed of the first checkpoint in bytes per second. The watchdog tolerates a tenth of it.
WRITE_SPEED = 1e8


def execute(
    config: Config,
    comm: SerialComm,
    folder: Folder,
    find: Callable[[], Snapshot | Result | None],
    callbacks: Sequence[object],
) -> Result:
    """Start a run, continue it, or return the complete run that rank 0 finds with ``find``. Collective.

    Raises:
        CollectiveError: on all ranks together, possibly a NonFiniteError.
        Stopped, KeyboardInterrupt: on all ranks together, after a signal.
    """
    with RankLog(comm, folder.path) as log, contextlib.closing(folder):
        # 1. Look for a complete run or a checkpoint in the folder.
        saved = find_saved(comm, find)
        if isinstance(saved, Result):
            return _complete(saved, config, comm, folder)
        log.open()
        run = _Run(config, comm, folder)
        precision = float32_precision(config.run.matmul_precision)
        with run.watchdog, run.signals, precision, deterministic(config.run.is_reproducible):
            # 2. Set up; start, or restore the checkpoint.
            run.set_up(saved, callbacks)
            simulation, rule = run.simulation, run.rule
            with simulation, run.closing():
                end = run.start(log) if saved is None else run.restore(saved)
                while end is None:
                    # 3. Run a round, whose first Allreduce also sums the requests to stop.
                    due = run.is_checkpoint_due(simulation.round + 1)
                    contribution = rule.contribution(bool(run.signals.requested), run.elapsed, due)
                    rule.receive(simulation.step(contribution))
                    # 4. Record its costs.
                    run.record()
                    # 5. Call the callbacks; evaluate if it is due, or if the run ends.
                    end = run.call("on_round") or rule.end_after(simulation.round)
                    if end or simulation.round % run.interval == 0:
                        end = run.evaluate() or end
                    # 6. Stop after a signal, or write a checkpoint if it is due.
                    end = end or rule.end_by_signal(simulation.round)
                    if end is None and rule.checkpoint_due:
                        run.save()
                # 7. Write the final files.
                result = run.finish(end)
            signal = run.signals.common_signal()
    if signal:
        raise stopped_by(signal, result)
    return result


def _complete(result: Result, config: Config, comm: SerialComm, folder: Folder) -> Result:
    """Return a result that is complete in its folder."""
    if result.end.kind == "diverged":
        raise NonFiniteError(f"{folder.path} has already ended: {result.stopped}")
    announce(comm, complete(folder, result.end))
    return result.with_network(config)


class _Run:
    """The parts of a run.

    Attributes:
        saved: time of the last checkpoint, by the monotonic clock; ``took``: seconds that it took;
            ``saved_round``: its round, also if it could not be written.
        interval: number of rounds between evaluations.
    """

    def __init__(self, config: Config, comm: SerialComm, folder: Folder):
        self.config, self.comm, self.folder = config, comm, folder
        self.signals = StopSignals(comm, self._progress_text)
        self.watchdog = Watchdog(comm, config.run.watchdog)
        self.rule, self.timed = StopRule(config, comm), LOG.isEnabledFor(logging.DEBUG)
        self.checkpoints: CheckpointManager | None = None
        self._evaluated: tuple[int, dict[str, float]] = (-1, {})
        self._bar: tqdm | None = None
        self._was_complete, self._seconds = False, 0.0
        self.took, self.saved_round = 0.0, 0

    def set_up(self, saved: Snapshot | None, callbacks: Sequence[object]) -> None:
        """Construct the simulation, which continues from ``saved``, and what records it. Collective."""
        run, comm, began = self.config.run, self.comm, time.perf_counter()
        observers = [_PhaseTimes()] if LOG.isEnabledFor(PHASES) else []
        torch.set_num_threads(threads(run.threads, run.is_reproducible, comm.local_size))
        keep_freed_memory()
        group = saved.header.get("group") if saved else None
        self.simulation = simulation = Simulation.from_settings(self.config, comm, observers, group)
        with collective_errors(comm, ValueError, OSError):
            self.recorder = Recorder(simulation, comm)
            board = [TensorBoard(run.out)] if comm.rank == 0 and run.tensorboard else []
        self.callbacks = Callbacks([*board, *callbacks], simulation, self.recorder, comm, self.folder.path)
        size = sum(self.config.problem.variables().sizes.values())
        self.interval = evaluation_interval(self.config, simulation.scored_rows, size)
        if run.is_reproducible:
            warn_if_machines_differ(comm, simulation.device)
        if prescription := prescription_of(self.config.theory):
            announce(comm, summary(*prescription))
        if simulation.note:
            announce(comm, f"{simulation.note} (run.group)")
        self.checkpoints = CheckpointManager(run, self.folder, simulation, self.recorder, comm)
        LOG.info("%s; set up in %.3g s", _layout(simulation, comm), time.perf_counter() - began)

    def start(self, log: RankLog) -> End | None:
        """Run the start phases, and evaluate the starting point; return the end if it ends the run.

        The previous run is replaced only now, when all checks have passed. Collective.
        """
        self.simulation.start()
        self._seconds = self.simulation.costs.seconds
        self.recorder.record_round()
        self._bar = self._progress()
        end, metrics = self._evaluate()
        self.checkpoints.clear()
        if self.config.run.overwrite:
            log.remove_previous()
        self.saved = time.monotonic()
        started, evaluated = self.call("on_start"), self.call("on_evaluation", metrics)
        return end or started or evaluated

    def restore(self, saved: Snapshot) -> End | None:
        """Restore a checkpoint; return the end if the run was or is at its end. Collective."""
        self.checkpoints.restore(saved)
        self.rule.restore(self.recorder.metrics, self.simulation.columns)
        self.saved, self.saved_round = time.monotonic(), saved.round
        end = final_end(saved.end, saved.round, saved.header["config"], self.config)
        if end:
            self._was_complete = True
            return end
        started = self.call("on_start")
        self._bar = self._progress()
        end = self.rule.end_after(self.simulation.round) or started
        if end and self.rule.evaluated < self.simulation.round:  # fewer rounds than before are set
            self.evaluate()
        return end

    def record(self) -> None:
        """Record a round."""
        simulation, before = self.simulation, self._seconds
        self._seconds = simulation.costs.seconds
        if self.timed:
            LOG.debug("round %d: %.4g s", simulation.round, self._seconds - before)
        self.recorder.record_round()
        self.watchdog.beat(simulation.round)
        self._bar.update()

    def evaluate(self) -> End | None:
        """Evaluate and call the callbacks; return the end if the metric or a callback ends the run.
        Collective."""
        end, metrics = self._evaluate()
        called = self.call("on_evaluation", metrics)
        return end or called

    def _evaluate(self) -> tuple[End | None, Mapping[str, float]]:
        """Return the end if the metric ends the run, and the metrics of the current point. Collective."""
        simulation, began = self.simulation, time.perf_counter()
        self.watchdog.beat(simulation.round, "evaluation")
        state = simulation.output if self.config.output_rule == "average" else None
        metrics = simulation.evaluate(state)
        self._evaluated = simulation.round, metrics
        if self.config.run.keep_best is not None:
            with collective_errors(self.comm, ValueError):
                if self.comm.rank == 0:
                    self.recorder.keep_best(metrics, simulation.point(state))
        if self.comm.rank == 0:
            self.recorder.record_metrics(metrics)
            text = _first_metrics(metrics, getattr(self._bar, "ncols", None))
            self._bar.set_postfix_str(text, refresh=False)
        if self.timed:
            LOG.debug("evaluation: %.4g s %s", time.perf_counter() - began, metrics or "")
        end = self.rule.end_by_metric(metrics, simulation.round, simulation.columns)
        self.watchdog.beat(simulation.round)
        return end, metrics

    def call(self, name: str, metrics: Mapping[str, float] | None = None, stopped: str = "") -> End | None:
        """Call a method of the callbacks; return the end if one of them stops the run. Collective."""
        if name not in self.callbacks.methods:
            return None
        self.watchdog.beat(self.simulation.round, "callbacks")
        end = self.callbacks.call(name, metrics or {}, stopped)
        self.watchdog.beat(self.simulation.round)
        return end

    def save(self, end: End | None = None, metrics: dict[str, float] | None = None) -> None:
        """Write the checkpoint and the other files. Collective."""
        round, began = self.simulation.round, time.perf_counter()
        self.watchdog.beat(round, "checkpoint", self.checkpoints.state_bytes / WRITE_SPEED)
        self.checkpoints.save(end, metrics, self.rule.signalled)
        self.watchdog.beat(round)
        self.saved, self.saved_round, self.took = time.monotonic(), round, time.perf_counter() - began
        newest = self.checkpoints.newest
        LOG.info("files of round %d: %.3g s; the newest checkpoint is of round %d", round, self.took, newest)

    def is_checkpoint_due(self, round: int) -> bool:
        """Return whether a checkpoint is due after ``round``, by this rank's clock."""
        elapsed = time.monotonic() - self.saved
        return self.config.run.is_checkpoint_due(round, self.saved_round, elapsed, self.took)

    def finish(self, end: End) -> Result:
        """Write the final files, unless the run was complete, and return the result. Collective."""
        self._close_bar()
        simulation, metrics = self.simulation, {}
        if self._was_complete:
            announce(self.comm, complete(self.folder, end))
            metrics = simulation.evaluate(simulation.output)
            self.checkpoints.repair(end, metrics)
            return self._result(end, metrics)
        end, round = self.rule.with_note(end), simulation.round
        if end.kind != "signal":  # after a signal, only the checkpoint is written
            self.watchdog.beat(round, "evaluation")
            metrics = self._output_metrics()
        self.save(end, metrics)
        seconds, communication = simulation.costs.seconds, simulation.costs.communication_seconds
        text = "ended: %s; %.4g s in rounds, %.4g s of them waiting for messages"
        LOG.info(text, end.sentence, seconds, communication)
        self.call("on_end", metrics, end.sentence)
        if (best := self.recorder.best) and end.kind != "signal":
            announce(self.comm, f"best {best.metric}: {best.value:.4g} after round {best.round}")
        if end.kind == "signal":
            announce(self.comm, f"stopped after round {round}: the same command continues from there")
        return self._result(end, metrics)

    @contextlib.contextmanager
    def closing(self) -> Iterator[None]:
        """A context that closes the progress bar, and writes the results of a run that ends in non-finite
        values. Collective."""
        try:
            yield
        except NonFiniteError as error:
            self._close_bar()
            self.checkpoints.save(End("diverged", str(error)))
            self.call("on_end", {}, str(error))
            raise
        finally:
            self._close_bar()

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def elapsed(self) -> float:
        """Return the seconds in rounds so far, also before this process continued the run (rank 0)."""
        return self.recorder.initial_seconds + self.simulation.costs.seconds

    def _progress(self) -> tqdm:
        return progress_bar(
            total=self.config.rounds,
            initial=self.simulation.round,
            unit="round",
            disable=not (self.comm.rank == 0 and self.config.run.progress and LOG.isEnabledFor(logging.INFO)),
            desc=escape_control(title(self.config.algorithm), line=True),
        )

    def _progress_text(self) -> str:
        done, newest = (self.simulation.round, self.checkpoints.newest) if self.checkpoints else (0, 0)
        return (
            f"received in round {done}: the run writes a checkpoint and stops after round {done + 1} at the "
            f"latest; the newest checkpoint is of round {newest}"
        )

    def _output_metrics(self) -> dict[str, float]:
        """Return the metrics of the output, which the last round's evaluation has computed unless the output
        is a uniformly drawn iterate. Collective."""
        round, metrics = self._evaluated
        if round == self.simulation.round and self.config.output_rule != "uniform":
            return metrics
        return self.simulation.evaluate(self.simulation.output)

    def _result(self, end: End, metrics: dict[str, float]) -> Result:
        return Result.from_run(self.simulation, self.recorder, end, metrics, self.folder.path)


def _first_metrics(metrics: Mapping[str, float], width: int | None) -> str:
    """Return the first metrics that fit next to a progress bar of a width, at least one."""
    texts = [f"{name}={value:.4g}" for name, value in metrics.items()]
    ends = [*itertools.accumulate(len(text) + 2 for text in texts)]
    return ", ".join(texts[: max(1, sum(end <= (width or LINE) - BAR for end in ends))])


def _layout(simulation: Simulation, comm: SerialComm) -> str:
    """Describe the work of this rank for its log."""
    layout, hosted = simulation.describe(), simulation.hosted
    clients = f"clients {hosted[0]} to {hosted[-1]}" if len(hosted) else "no clients"
    return (
        f"device {layout['device']}, {layout['threads']} thread(s), {clients} ({len(hosted)} of "
        f"{simulation.config.problem.clients}), group {layout['group']}, messages by {layout['transport']}"
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
