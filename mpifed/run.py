"""A whole run: rounds until a rule says stop, evaluation, results file, checkpoints, progress, watchdog."""

from __future__ import annotations

import faulthandler
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from mpifed import checkpoint
from mpifed.comm import SerialComm, agree, share, world
from mpifed.config import Config, ConfigError, override
from mpifed.files import sweep
from mpifed.options import near_miss
from mpifed.recorder import COSTS, RUN_FILE, Recorder
from mpifed.simulation import Simulation

__all__ = ["Result", "run", "resume"]


@dataclass(frozen=True)
class Result:
    """What a run returns on every rank; ``metrics`` and the history are complete on rank 0.

    Attributes:
        point: the output point, one flat tensor a block.
        metrics: metrics of the output point.
        history: metric name → values, with ``round``.
        costs: cost name → cumulative values by round.
        stopped: why the run ended.
        path: the results file.
    """

    point: dict[str, torch.Tensor]
    metrics: dict[str, float]
    history: dict[str, list[float]]
    costs: dict[str, np.ndarray]
    stopped: str
    path: Path


def run(config: Config, comm: SerialComm | None = None) -> Result:
    """Run a job from its start. Collective.

    Args:
        comm: the communicator; by default that of all processes started together.

    Raises:
        CollectiveError: on all ranks together: bad settings, missing data, an output folder in use, non-finite values.
    """
    comm = comm or world()
    runner = _Runner(config, comm)
    runner.open_folder()
    runner.simulation.start()
    return runner.go()


def resume(folder: str | Path, overrides: list[str] = (), comm: SerialComm | None = None) -> Result:
    """Continue a run from its newest sound checkpoint, on any number of ranks. Collective.

    Args:
        folder: the run's folder.
        overrides: ``key=value`` changes, e.g. more rounds.

    Raises:
        CollectiveError: there is no checkpoint to continue from, or as for :func:`run`.
    """
    comm = comm or world()
    path, header, arrays, complaints = checkpoint.newest(folder) if comm.rank == 0 else (None, {}, {}, [])
    for line in complaints:
        print(line, file=sys.stderr)
    missing = None if path or comm.rank else f"there is no sound checkpoint in {folder}: start the job with `mpifed run`"
    agree(comm, missing)
    header = json.loads(share(comm, json.dumps(header)))
    config, error = None, None
    try:
        table = header["config"]
        table["run"]["out"] = str(folder)
        for text in overrides:
            override(table, text)
        config = Config.from_table(table)
    except ConfigError as fault:
        error = str(fault)
    agree(comm, error)
    runner = _Runner(config, comm)
    runner.restore(path, header, arrays)
    return runner.go()


class _Runner:
    """The loop around a simulation."""

    def __init__(self, config: Config, comm: SerialComm):
        self.config, self.comm, self.folder = config, comm, Path(config.run.out)
        torch.set_num_threads(_threads(config, comm))
        error = None
        try:
            self.simulation = Simulation(config, comm)
            self.recorder = Recorder(self.simulation, comm)
        except (ValueError, OSError) as fault:
            error = str(fault)
        agree(comm, error)
        self._round_seconds: list[float] = []

    def open_folder(self) -> None:
        """Make the output folder, refusing one that holds another run."""
        error = None
        if self.comm.rank == 0:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                sweep(self.folder)
                if self._results() and not self.config.run.overwrite:
                    error = (f"{self.folder} holds a run already: continue it with `mpifed resume {self.folder}`, choose "
                             "another run.out, or set run.overwrite=true")
            except OSError as fault:
                error = f"cannot write to run.out = {self.folder}: {fault.strerror}"
        agree(self.comm, error)

    def _results(self) -> list[Path]:
        return [*self.folder.glob(RUN_FILE), *self.folder.glob("checkpoint-*.h5")]

    def restore(self, path: Path | None, header: dict, arrays: dict[str, np.ndarray]) -> None:
        """Take up the state of a checkpoint that rank 0 has read. Collective."""
        simulation, comm = self.simulation, self.comm
        error = None
        if comm.rank == 0:
            sweep(self.folder)
            if header["round"] > self.config.rounds:
                error = f"{self.folder} is at round {header['round']} already: rounds = {self.config.rounds} lies behind"
        agree(comm, error)
        for name, state in self._whole_records().items():
            array = arrays[name] if comm.rank == 0 else np.empty(state.buffer.numel(), _numpy_dtype(self.config))
            comm.bcast_(array)
            state.buffer.copy_(torch.from_numpy(array))
        rows = np.empty(tuple(simulation.clients.buffer.shape), _numpy_dtype(self.config))
        checkpoint.read_clients(path, rows, comm, simulation.placement)
        simulation.clients.buffer.copy_(torch.from_numpy(rows))
        simulation.round = header["round"]
        self.recorder.restore(header, arrays)

    def _whole_records(self):
        simulation = self.simulation
        return {"shared": simulation.shared, "coordinator": simulation.coordinator.moments, "output": simulation.output}

    def go(self) -> Result:
        """Run until a stopping rule holds; the results file and the last checkpoint are written in the end."""
        simulation, config = self.simulation, self.config
        fresh = simulation.round == 0
        rank0 = self.comm.rank == 0
        bar = tqdm(total=config.rounds, initial=simulation.round, unit="round", disable=not (rank0 and config.run.progress),
                   desc=type(config.algorithm).__name__, dynamic_ncols=True,
                   mininterval=0.1 if sys.stderr.isatty() else 2)
        stopped = ""
        try:
            with bar:
                if fresh:
                    self.recorder.note_round()
                    stopped = self._evaluate(bar)
                    for path in self._results() if rank0 else ():  # the job has been checked to the last: now overwrite
                        path.unlink()
                while not stopped:
                    stopped = self._round(bar)
        finally:
            faulthandler.cancel_dump_traceback_later()
        return self._finish(stopped)

    def _round(self, bar) -> str:
        """One round and what is due after it. Returns why the run stops, "" to go on."""
        simulation, config = self.simulation, self.config
        if simulation.round >= config.rounds:
            return f"all {config.rounds} rounds done"
        self._arm_watchdog()
        late = config.stop.seconds is not None and self._elapsed() >= config.stop.seconds
        out_of_time = simulation.step(float(late and self.comm.rank == 0))
        self.recorder.note_round()
        bar.update()
        r, last = simulation.round, simulation.round == config.rounds
        stopped = f"wall-time budget of {config.stop.seconds} s used up" if out_of_time else ""
        if last or out_of_time or r % config.run.eval_every == 0:
            stopped = self._evaluate(bar) or stopped
        every = config.run.checkpoint_every
        if every and r % every == 0 and not (last or stopped):
            self._checkpoint("")
        return stopped or (f"all {config.rounds} rounds done" if last else "")

    def _elapsed(self) -> float:
        return float(self.recorder._base[COSTS.index("seconds")]) + self.simulation.costs.seconds

    def _arm_watchdog(self) -> None:
        """End the process with its stacks if the next round takes far longer than the ones before."""
        least = self.config.run.watchdog
        if least:
            self._round_seconds = [*self._round_seconds[-50:], self.simulation.costs.seconds]
            rounds = np.diff(self._round_seconds)
            usual = statistics.median(rounds) if len(rounds) else 0.0
            faulthandler.dump_traceback_later(max(least, 10 * usual), exit=True, file=sys.__stderr__)

    def _evaluate(self, bar) -> str:
        """Metrics of the current point; returns the reason to stop if the target is reached. Collective."""
        simulation, stop = self.simulation, self.config.stop
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
                    reached[0] = value >= stop.at_least if stop.at_least is not None else value <= stop.at_most
        agree(self.comm, error)
        self.comm.bcast_(reached)
        if not reached[0]:
            return ""
        bound = f"at least {stop.at_least}" if stop.at_least is not None else f"at most {stop.at_most}"
        return f"{stop.metric} is {bound}"

    def _checkpoint(self, stopped: str, final: dict[str, float] | None = None) -> None:
        """Bring the history to rank 0; write the checkpoint and the results file. Collective."""
        self.recorder.gather()
        header, arrays = self.recorder.history() if self.comm.rank == 0 else ({}, {})
        header |= {"round": self.simulation.round, "config": self.config.table()}
        arrays |= {name: state.buffer.cpu().numpy() for name, state in self._whole_records().items()}
        if self.config.run.checkpoint_every:
            rows = self.simulation.clients.buffer.cpu().numpy()
            checkpoint.write(self.folder, self.config.run.keep, header, arrays, rows, self.comm, self.simulation.placement)
        if self.comm.rank == 0:
            self.recorder.write(self.folder, stopped, final or {})
        self.comm.barrier()

    def _finish(self, stopped: str) -> Result:
        simulation, recorder = self.simulation, self.recorder
        final = simulation.evaluate(simulation.output)
        self._checkpoint(stopped, final)
        return Result(
            point={block: getattr(simulation.output, block).clone() for block in simulation.blocks},
            metrics=final,
            history=recorder.metrics,
            costs=dict(zip(COSTS, recorder.costs.T)),
            stopped=stopped,
            path=self.folder / RUN_FILE,
        )


def _numpy_dtype(config: Config):
    return np.dtype(config.run.dtype)


def _threads(config: Config, comm: SerialComm) -> int:
    """Torch threads of a rank: as asked; 1 under ``exact``, where sums must not be split; else a fair share."""
    if config.run.threads:
        return config.run.threads
    if config.run.reduction == "exact":
        return 1
    return max(1, torch.get_num_threads() // comm.local_size)
