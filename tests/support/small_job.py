"""A small job that has all that a fault can hit: an Allgatherv a phase, a Bcast a round, and client rows."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from mpifed import run
from mpifed.config.job import Config
from mpifed.parallel.comm import SerialComm

DRIVER = Path(__file__).with_name("driver.py")
#: Seconds in which real processes on a busy machine of two cores must be through; a hang takes for ever.
LIMIT = 240
ROUNDS = 20
#: Functions to put faults into.
STEP = "mpifed.simulation.executor:Executor.groups"
ALLREDUCE = "mpifed.parallel.exchange:MessageExchange.finish"  # once a phase, before anything travels
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
    """The job file, with ``folder/run`` as output."""
    path = folder / "job.toml"
    path.write_text(JOB + f'out = "{folder / "run"}"\n')
    return path


def command(folder: Path, *faults: str, settings=()) -> list[str]:
    """What python runs: the job in ``folder`` with faults, see driver.py."""
    return [DRIVER, *faults, "--", "run", job(folder), "--no-report", *settings]


def final(folder: Path, rounds: int = ROUNDS) -> np.ndarray:
    """The output point of a run that has done all its rounds."""
    with h5py.File(folder / "run" / "run.h5") as file:
        assert file.attrs["stopped"] == f"all {rounds} rounds done" and file["costs/round"][-1] == rounds
        return np.concatenate([file["final/x/x"][...], file["final/y/y"][...]])


def end(folder: Path, resume: str = "must", rounds: int = ROUNDS) -> np.ndarray:
    """Start the job in ``folder`` in this process and let it end: its output point."""
    run(Config.load(job(folder), [f"rounds={rounds}"]), SerialComm(), resume)
    return final(folder, rounds)


def saved(folder: Path) -> int:
    """The round of the newest checkpoint, 0 if there is none."""
    return max((int(path.stem.split("-")[1]) for path in (folder / "run").glob("checkpoint-*.h5")), default=0)
