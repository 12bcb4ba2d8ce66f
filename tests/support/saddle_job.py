"""A small job on a saddle problem with noise, for tests of the files of a run and of how it continues."""

from __future__ import annotations

from mpifed.config.job import Config


def table(out, rounds=6, record=(), run=(), **sections) -> dict:
    """The settings of the job.

    Args:
        run: settings of the section ``run``.
        sections: other sections, which replace those below.
    """
    base = {"progress": False, "dtype": "float64", "reduction": "exact", "checkpoint_every": 2}
    return {
        "rounds": rounds,
        "record": list(record),
        "algorithm": {"name": "AdaFGDA", "q": 2, "sync_estimator": "local"},
        "problem": {"name": "Saddle", "clients": 4, "d": 3},
        "oracle": {"batch_size": 0, "noise": {"name": "gaussian", "scale": 0.1}},
        "run": base | dict(run) | {"out": str(out)},
    } | sections


def config(out, rounds=6, record=(), run=(), **sections) -> Config:
    return Config.from_table(table(out, rounds, record, run, **sections))
