#!/usr/bin/env python3
"""Time of a round as a function of the numbers of clients, variables, local steps and ranks:
python scripts/bench/growth.py [--out growth.png] [--json FILE]

The benchmark uses the saddle job (FGDA, float32). Its gradients are cheap, so the time of a round is the time
of the simulator. One number varies, the others have the values in :data:`BASE`. The times are medians over
rounds of the time of the slowest rank. The results must be bitwise identical on all numbers of ranks
(``agreement.py``).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

from agreement import digest, expect_same_bits
from launching import launch, send, write_json

JOB = Path(__file__).resolve().parents[2] / "jobs" / "saddle.toml"
#: Number of clients, dimension of x and of y, number of local steps.
BASE = {"clients": 64, "d": 1000, "q": 10}
GROWING = {
    "clients": (1, 4, 16, 64, 256, 1024, 4096),
    "d": (100, 1000, 10_000, 100_000),
    "q": (1, 3, 10, 30, 100),
}
RANKS = (1, 2, 4, 8, 16)
WORDS = {"clients": "clients", "d": "dimension of x and of y", "q": "local steps"}


def configure(clients: int, d: int, q: int):
    """Return the job of this size; it is not centred, because denormal numbers near 0 are slow."""
    from mpifed.config.job import Config

    sizes = [f"problem.clients={clients}", f"problem.d={d}", f"algorithm.q={q}", "problem.centred=false"]
    return Config.load(JOB, [*sizes, "run.dtype=float32", "run.threads=1", "run.device=cpu"])


def prepare(config, comm) -> None:
    """Prepare the problem on one rank after another, because this temporarily needs much memory."""
    for rank in range(comm.size):
        if rank == comm.rank:
            config.problem.prepare(config.seed)
        comm.barrier()
    config.problem.prepare = lambda *_: None


def seconds_per_round(comm, config, budget: float) -> tuple[float, str]:
    """Return the median time of a round of the slowest rank, measured for about ``budget`` seconds, and a
    digest of the point after two rounds."""
    import numpy as np

    from mpifed.simulation.simulation import Simulation

    simulation = Simulation.from_settings(config, comm)
    simulation.start()
    taken, repeats = [], 3
    while len(taken) < repeats:
        comm.barrier()
        began = time.perf_counter()
        simulation.step()
        now = np.array([time.perf_counter() - began])
        comm.allreduce_(now, "max")
        taken.append(now.item())
        if len(taken) == 2:
            bits = digest(simulation)
            repeats = 2 + int(np.clip(budget / now[0], 5, 200))
    return statistics.median(taken[2:]), bits  # the first rounds touch new memory


def work(options) -> None:
    """Measure all values of one number; called on every rank."""
    from mpifed.parallel.world import world

    comm = world()
    name = options.worker
    for value in [comm.size] if name == "ranks" else GROWING[name]:
        config = configure(**BASE | ({} if name == "ranks" else {name: value}))
        prepare(config, comm)
        seconds, bits = seconds_per_round(comm, config, options.seconds)
        if comm.rank == 0:
            send({"growing": name, "value": value, "ms": 1e3 * seconds, "digest": bits})


def draw(rows: list[dict], path: Path) -> None:
    """Draw one plot per varying number, with logarithmic axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6.5), layout="constrained")
    for axes, name in zip(figure.subplots(2, 2).flat, [*GROWING, "ranks"]):
        axes.loglog(*zip(*((row["value"], row["ms"]) for row in rows if row["growing"] == name)), "o-")
        others = ", ".join(f"{WORDS[key]} {value:,}" for key, value in BASE.items() if key != name)
        axes.set_title(others, fontsize="small")
        axes.set_xlabel(WORDS.get(name, name))
        axes.set_ylabel("ms per round")
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=130)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of the measurement per point")
    parser.add_argument("--out", type=Path, default=Path("growth.png"), help="output file of the figure")
    parser.add_argument("--json", type=Path, help="output file of the rows")
    parser.add_argument("--worker", choices=("ranks", *GROWING), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parse()
    if options.worker:
        return work(options)
    rows, bits = [], ""
    print(f"{'growing':>8} {'value':>9} {'ms per round':>12}")
    for name, ranks in [(name, 1) for name in GROWING] + [("ranks", ranks) for ranks in RANKS]:
        for row in launch(ranks, __file__, [*sys.argv[1:], "--worker", name]):
            if name == "ranks":
                bits = row["digest"] if ranks == RANKS[0] else bits
                expect_same_bits(ranks, row["digest"], bits)
            rows.append(row)
            print(f"{row['growing']:>8} {row['value']:>9,} {row['ms']:>12.4g}", flush=True)
    draw(rows, options.out)
    write_json(options.json, {"base": BASE, "rows": rows})


if __name__ == "__main__":
    main()
