"""Runs of the example that ``mpifed info METHOD`` prints, on common problems of the method's family."""

from __future__ import annotations

import mpifed
from mpifed.algorithms import ALGORITHMS
from mpifed.base.settings import build
from mpifed.cli.catalogue import GROUPS, example_line
from mpifed.config.tables import loads
from mpifed.problems import PROBLEMS


def printed(name: str):
    """Return the method of the printed example."""
    table = loads(example_line(GROUPS["methods"], name, ALGORITHMS[name]))["algorithm"]
    settings = {"name": table} if isinstance(table, str) else table
    return build(ALGORITHMS[name], {key: settings[key] for key in settings if key != "name"}, name)


def improvement(name: str, problem: str, metric: str, rounds: int, **settings) -> float:
    """Return by how much the printed example improves a metric of a problem; an error if it is not finite."""
    cls = PROBLEMS[problem]
    simulation = mpifed.Simulation(build(cls, settings, problem), printed(name), run={"dtype": "float64"})
    simulation.start()
    before = simulation.evaluate(simulation.output)[metric]
    for _ in range(rounds):
        simulation.step()
    change = simulation.evaluate(simulation.output)[metric] - before
    return change if metric in cls.maximised else -change
