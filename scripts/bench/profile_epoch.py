#!/usr/bin/env python3
"""Profile of an epoch: python scripts/bench/profile_epoch.py JOB [KEY=VALUE ...]

One process trains on as many samples as all clients have. The script prints the seconds of each part,
excluding nested parts, and its percentage of the total. For a job file with a ``[sweep]``, the first run of
every method is profiled. The time to load the data and the time of one evaluation are printed separately.
"""

from __future__ import annotations

import sys
import time

from mpifed.base.errors import ConfigError
from mpifed.base.settings import title
from mpifed.config.grids import variants
from mpifed.config.job import Config
from mpifed.config.tables import read_table
from mpifed.core.algorithm import local_steps
from mpifed.core.oracle import BilevelOracle, CompositionOracle, MinimaxOracle, OperatorOracle
from mpifed.core.sampling import Sampler
from mpifed.parallel.comm import SerialComm
from mpifed.parallel.reduction import ExactReduction, FusedReduction
from mpifed.simulation.coordinator import Coordinator
from mpifed.simulation.executor import Executor
from mpifed.simulation.simulation import Simulation

PARTS = {
    "gradients": [
        (MinimaxOracle, "grad"),
        (OperatorOracle, "operator"),
        *((CompositionOracle, name) for name in ("g", "g_and_jacobian", "grad_f")),
        *((BilevelOracle, name) for name in ("upper_grad", "lower_grad", "lower_products")),
    ],
    "sampling and gathering": [(Sampler, "begin_round"), (Sampler, "samples")],
    "client updates": [(Executor, "run")],
    "averaging": [(one, name) for one in (FusedReduction, ExactReduction) for name in ("add", "finish")],
    "adaptive matrices, cohorts": [(Coordinator, "refresh"), (Coordinator, "cohort")],
    "server step, checks, other": [(Simulation, "step")],
}


class Clock:
    """Seconds per part; while a nested part runs, the time of the outer part does not increase."""

    def __init__(self):
        self.seconds, self._stack, self._since = dict.fromkeys(PARTS, 0.0), [], 0.0

    def _switch(self) -> None:
        now = time.perf_counter()
        if self._stack:
            self.seconds[self._stack[-1]] += now - self._since
        self._since = now

    def around(self, part: str, function):
        def timed(*arguments, **options):
            self._switch()
            self._stack.append(part)
            try:
                return function(*arguments, **options)
            finally:
                self._switch()
                self._stack.pop()

        return timed


def profile(config: Config) -> None:
    """Run an epoch and print its profile."""
    began = time.perf_counter()
    simulation = Simulation.from_settings(config, SerialComm())
    loaded = time.perf_counter() - began
    samples = int(simulation.rounds.executor.sampler.sizes.sum())
    with simulation:
        simulation.start()
        simulation.step()
        begun = time.perf_counter()
        simulation.evaluate()
        evaluation = time.perf_counter() - begun
        batches = simulation.problem.clients * config.oracle.batch_size or samples  # 0: full batches
        per_round = local_steps(config.algorithm) * batches
        rounds = -(-samples // per_round)
        clock, whole = Clock(), {}
        for part, places in PARTS.items():
            for owner, name in places:
                whole[owner, name] = vars(owner).get(name)
                setattr(owner, name, clock.around(part, getattr(owner, name)))
        for _ in range(rounds):
            simulation.step()
        for (owner, name), function in whole.items():
            setattr(owner, name, function) if function else delattr(owner, name)
    total = sum(clock.seconds.values())
    print(
        f"\n{title(config.algorithm)} on {title(config.problem)}: {rounds} rounds, "
        f"{samples} samples, {total:.1f} s; "
        f"loading {loaded:.1f} s, one evaluation {evaluation:.1f} s"
    )
    for part, seconds in clock.seconds.items():
        print(f"  {part:32} {seconds:8.2f} s {seconds / total:7.1%}")


def main() -> None:
    if sys.argv[1:] in ([], ["-h"], ["--help"]):
        print(__doc__)
        return
    file, *changes = sys.argv[1:]
    try:
        if "sweep" in read_table(file):
            runs = reversed(variants(file, changes))
            configs = [*{type(run.config.algorithm): run.config for run in runs}.values()][::-1]
        else:
            configs = [Config.load(file, changes)]
    except ConfigError as error:
        sys.exit(f"profile_epoch: {error}")
    for config in configs:
        profile(config)


if __name__ == "__main__":
    main()
