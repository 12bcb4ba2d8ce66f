"""A small job with an Allgatherv per phase, a Bcast per round and client rows, for fault tests."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from mpifed import run
from mpifed.config.job import Config
from mpifed.parallel.comm import SerialComm
from mpifed.storage.files import checkpoints, round_of

DRIVER = Path(__file__).with_name("driver.py")
#: Time limit in seconds of real processes on a busy machine with two cores.
LIMIT = 240
ROUNDS = 20
#: Functions in which faults are injected.
STEP = "mpifed.simulation.executor:Executor.groups"
ALLREDUCE = "mpifed.parallel.exchange:MessageExchange.finish"  # once per phase, before any communication
JOB = f"""
rounds = {ROUNDS}
[algorithm]
name = "AdaFGDA"
q = 2
sync_estimator = "local"
[problem]
name = "Saddle"
clients = 6
d = 5
[oracle]
batch_size = 0
noise = {{ name = "gaussian", scale = 0.1 }}
[run]
dtype = "float64"
reduction = "exact"
eval_every = 5
checkpoint_every = 3
progress = false
watchdog = 20
"""


def job(folder: Path) -> Path:
    """Write the job file with ``folder/run`` as output."""
    path = folder / "job.toml"
    path.write_text(JOB + f'out = "{folder / "run"}"\n')
    return path


def command(folder: Path, *faults: str, settings=()) -> list[str]:
    """Return the arguments of python for the job in ``folder`` with faults, see driver.py."""
    return [DRIVER, *faults, "--", "run", job(folder), "--no-report", *settings]


def final(folder: Path, rounds: int = ROUNDS) -> np.ndarray:
    """Return the output point of a run that has completed all rounds."""
    with h5py.File(folder / "run" / "run.h5") as file:
        assert file.attrs["stopped"] == f"all {rounds} rounds done" and file["costs/round"][-1] == rounds
        return np.concatenate([file["final/x/x"][...], file["final/y/y"][...]])


def end(folder: Path, resume: str = "must", rounds: int = ROUNDS) -> np.ndarray:
    """Run the job in ``folder`` to its end in this process, and return its output point."""
    run(Config.load(job(folder), [f"rounds={rounds}"]), SerialComm(), resume)
    return final(folder, rounds)


def saved(folder: Path) -> int:
    """Return the round of the newest checkpoint, or 0."""
    return max(map(round_of, checkpoints(folder / "run")), default=0)


def logs(folder: Path) -> list[str]:
    """Return the logs of ranks 0 and 1."""
    return [(folder / "run" / "log" / f"rank-{rank}.txt").read_text() for rank in (0, 1)]
