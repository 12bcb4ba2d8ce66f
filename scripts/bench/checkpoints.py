#!/usr/bin/env python3
"""Cost of a checkpoint by the number of recorded rounds, and of its client rows: python
scripts/bench/checkpoints.py [--json FILE] [--rows-only]

One process with four clients and three metrics, with ten rounds and one evaluation between checkpoints. The
table shows the CPU time and the number of bytes written: for the first checkpoint, the median and the mean of
the following ones (only the mean includes the results file, which is rewritten less often), and for the end
of the run, which writes all files. The results file must then contain every round.

The second table shows the same for 1 GB of client rows: in one file, in a part, and the changed rows of 1,000
clients of 10^6. The rows of the last checkpoint must be those of the state.
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
CLIENTS, WIDTH, CHANGED = 1_000_000, 125, 1000


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


def measure_rows(folder: Path, clients: int = CLIENTS) -> list[dict]:
    """Return the rows of the table of client rows: the medians of three checkpoints of each type."""
    import torch

    from mpifed.parallel.comm import SerialComm
    from mpifed.parallel.placement import Placement
    from mpifed.simulation.state import ClientRows
    from mpifed.storage import checkpoint

    comm, placement, draw = SerialComm(), Placement(clients, 1), np.random.default_rng(0)
    state = torch.from_numpy(draw.random((clients, WIDTH)))
    rows, parts, everything = (
        ClientRows([state]),
        checkpoint.Parts(comm, folder),
        np.ones(clients, dtype=bool),
    )
    some = np.isin(np.arange(clients), draw.choice(clients, min(CHANGED, clients - 1), replace=False))
    table, round = [], 0
    for name, own, changed in (
        ("one file", None, None),
        ("all rows in a part", parts, everything),
        ("changed rows in a part", parts, some),
    ):
        costs = []
        for _ in range(4):  # the first one also allocates the disk's memory
            round += 1
            state[torch.from_numpy(some if changed is None else changed)] += 1
            header, began = {"round": round}, time.perf_counter()
            write = cost(lambda: checkpoint.write(folder, 1, header, {}, rows, comm, placement, own, changed))
            costs.append((*write, 1e3 * (time.perf_counter() - began)))
        cpu, size, wall = np.median(costs[1:], axis=0).tolist()
        table.append({"rows": name, "cpu_ms": cpu, "bytes": int(size), "wall_ms": wall})
    read = torch.zeros_like(state)
    checkpoint.read_clients(checkpoint.newest(folder)[0], ClientRows([read]), comm, placement)
    if not read.equal(state):
        sys.exit("checkpoints: the rows of the last checkpoint are not those of the state")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="output file of the rows")
    parser.add_argument("--rows-only", action="store_true", help="only the table of client rows")
    options = parser.parse_args()
    rows = [] if options.rows_only else by_rounds()
    with tempfile.TemporaryDirectory() as folder:
        of_rows = measure_rows(Path(folder))
    print(f"{'client rows':<23} {'CPU ms':>8} {'wall ms':>8} {'MB':>9}")
    for row in of_rows:
        print(f"{row['rows']:<23} {row['cpu_ms']:>8,.0f} {row['wall_ms']:>8,.0f} {row['bytes'] / 1e6:>9,.2f}")
    write_json(options.json, rows + of_rows)


def by_rounds() -> list[dict]:
    """Print the table by recorded rounds, and return its rows."""
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
    return rows


if __name__ == "__main__":
    main()
