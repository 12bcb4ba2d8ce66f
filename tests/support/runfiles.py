"""Run files with known content, as written by the recorder."""

from __future__ import annotations

import contextlib
import json

import h5py
import numpy as np

from mpifed.storage import hdf5
from mpifed.storage.files import RESULTS_MAGIC
from mpifed.storage.results import FORMAT

#: Costs per round.
COSTS = dict(
    oracle_calls=96, phases=1, bytes_up=1000, bytes_down=3000, wire_bytes=2500,
    compute_seconds=0.3, communication_seconds=0.1, seconds=0.5, federated_seconds=0.0,
)  # fmt: skip


def write(
    folder,
    algorithm="FGDA",
    rounds=20,
    every=5,
    stopped="all rounds done",
    config=None,
    maximised=(),
    costs=None,
    splits=None,
    infeasible="",
    **metrics,
):
    """Write a run folder whose costs grow by :data:`COSTS` per round; metrics are values or functions of
    the round.

    Args:
        config: settings in addition to seed, rounds and the algorithm's name.
        costs: changes of the costs per round.
        splits: numbers of held-out samples; omitted as in files of older versions.
        infeasible: the message about points outside of the problem's sets.
    """
    folder.mkdir(parents=True)
    r = np.arange(rounds + 1)
    taken = r[::every]
    table = {"seed": 0, "rounds": rounds, **(config or {})}
    table.setdefault("problem", {"name": "Saddle", "clients": 4})
    table["algorithm"] = {"name": algorithm, **table.get("algorithm", {})}
    with h5py.File(folder / "run.h5", "w") as file:
        attributes = dict(
            config=table,
            versions=dict(torch="2.0"),
            layout=dict(ranks=1, device="cpu"),
            data={},
            maximised=list(maximised),
            **({"splits": splits} if splits else {}),
        )
        for name, value in attributes.items():
            file.attrs[name] = json.dumps(value)
        file.attrs["stopped"], file.attrs["infeasible"] = stopped, infeasible
        file.attrs["end"] = (
            "diverged" if stopped.startswith("non-finite value") else "rounds" if stopped else ""
        )
        for name, step in {"round": 1, **COSTS, **(costs or {})}.items():
            file[f"costs/{name}"] = r * float(step)
        group = file.create_group("metrics", track_order=True)
        group["round"] = taken
        for name, values in metrics.items():
            group[name] = np.asarray(values(taken) if callable(values) else values, dtype=float)
        file["final/x"] = np.zeros(3)
    return folder


@contextlib.contextmanager
def edited(file):
    """Edit a run file, and update its digest if it has one."""
    with h5py.File(file, "a") as opened:
        yield opened
        own = opened.userblock_size == hdf5.USER_BLOCK
    if own:
        hdf5.add_digest(file, RESULTS_MAGIC, FORMAT)


def decay(rate):
    """Return a metric that falls exponentially from 10."""
    return lambda r: 10.0 * np.exp(-rate * r)
