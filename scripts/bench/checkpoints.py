#!/usr/bin/env python3
"""Cost of a checkpoint by the number of recorded rounds: python scripts/bench/checkpoints.py [--json FILE]

One process with four clients and three metrics, with ten rounds and one evaluation between checkpoints. The
table shows the CPU time and the number of bytes written: for the first checkpoint, the median and the mean of
the following ones (only the mean includes the results file, which is rewritten less often), and for the end
of the run, which writes all files. The results file must then contain every round.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from launching import write_json

RECORDED = (0, 10_000, 100_000, 1_000_000)
CHECKPOINTS = 40
ROUNDS = 10


def written() -> int:
    """Return the number of bytes that this process has written so far."""
    with open("/proc/self/io") as file:
        return int(file.read().split("wchar:")[1].split()[0])


def cost(action) -> tuple[float, int]:
    """Return the CPU time in milliseconds and the number of bytes written."""
    before, start = written(), time.process_time()
    action()
    return 1e3 * (time.process_time() - start), written() - before


def measure(recorded: int, out: Path) -> dict:
    """Return the row of the table for ``recorded`` rounds."""
    import mpifed
    from mpifed.config.job import Config
    from mpifed.parallel.comm import SerialComm
    from mpifed.running.checkpointing import CheckpointManager
    from mpifed.running.recorder import Recorder
    from mpifed.simulation.simulation import Simulation
    from mpifed.storage.folder import Folder
    from mpifed.storage.results import COSTS, End

    run = {"out": str(out), "progress": False, "threads": 1, "checkpoint_every": ROUNDS, "group": 1}
    problem = {"name": "Saddle", "clients": 4, "d": 10}
    config = Config.from_table(
        {"rounds": 2_000_000, "algorithm": {"name": "AdaFGDA", "q": 1}, "problem": problem, "run": run}
    )
    comm, folder = SerialComm(), Folder(out)
    folder.open(create=True)
    simulation = Simulation.from_settings(config, comm)
    simulation.start()
    recorder = Recorder(simulation, comm)
    checkpoints = CheckpointManager(config.run, folder, simulation, recorder, comm)
    if not recorded:
        recorder.record_round()
    names = ["round", *simulation.evaluate()]
    if recorded:
        costs = np.random.default_rng(0).uniform(size=(recorded + 1, len(COSTS)))
        costs[:, 0] = np.arange(recorded + 1)
        recorder.gather()
        recorder.restore(
            {"metrics": names}, {"costs": costs, "metrics": costs[::ROUNDS, : len(names)].T.copy()}, None
        )
        simulation.round = recorded

    def save(end=None) -> tuple[float, int]:
        for _ in range(ROUNDS):
            simulation.step()
            recorder.record_round()
        recorder.record_metrics(simulation.evaluate())
        return cost(lambda: checkpoints.save(end, {}))

    first = save()
    each = np.array([save() for _ in range(CHECKPOINTS)])
    last = save(End("rounds", "all rounds done"))
    folder.close()
    stored = mpifed.load(out).costs["round"]
    if not np.array_equal(stored, np.arange(simulation.round + 1)):
        sys.exit(f"checkpoints: expected rounds 0 to {simulation.round} in {out}, got {len(stored)} rounds")
    return {
        "recorded": recorded,
        "first_ms": first[0],
        "median_ms": float(np.median(each[:, 0])),
        "mean_ms": float(each[:, 0].mean()),
        "median_bytes": int(np.median(each[:, 1])),
        "mean_bytes": int(each[:, 1].mean()),
        "end_ms": last[0],
        "end_bytes": last[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="output file of the rows")
    options = parser.parse_args()
    rows = []
    print(
        f"{'recorded':>9} {'first ms':>9} {'median ms':>10} {'mean ms':>8} {'median KB':>10} {'mean KB':>8} ",
        end="",
    )
    print(f"{'end ms':>7} {'end KB':>7}")
    for recorded in RECORDED:
        with tempfile.TemporaryDirectory() as folder:
            row = measure(recorded, Path(folder) / "run")
        rows.append(row)
        print(
            f"{recorded:>9,} {row['first_ms']:>9.1f} {row['median_ms']:>10.1f} {row['mean_ms']:>8.1f} "
            f"{row['median_bytes'] / 1e3:>10,.0f} {row['mean_bytes'] / 1e3:>8,.0f} {row['end_ms']:>7.1f} "
            f"{row['end_bytes'] / 1e3:>7,.0f}",
            flush=True,
        )
    write_json(options.json, rows)


if __name__ == "__main__":
    main()
