"""Run files with known content, as written by the recorder."""

from __future__ import annotations

import contextlib
import json

import h5py
import numpy as np

from mpifed.storage import checkpoint, hdf5
from mpifed.storage.files import CHECKPOINT_MAGIC, RESULTS_MAGIC
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


def replaced(**changes):
    """Return a change of a run file that replaces attributes (``attr_NAME``) and objects (``GROUP__NAME``);
    ``None`` deletes."""

    def change(file):
        for name, value in changes.items():
            attribute = name.startswith("attr_")
            place, key = (file.attrs, name[5:]) if attribute else (file, name.replace("__", "/"))
            if key in place:
                del place[key]
            if value is not None:
                place[key] = value

    return change


def settings(**changes):
    """Return a change of a run file that replaces stored settings; ``None`` deletes."""

    def change(file):
        table = json.loads(file.attrs["config"]) | changes
        file.attrs["config"] = json.dumps({key: value for key, value in table.items() if value is not None})

    return change


def rewrite(path, change):
    """Change a checkpoint by ``change(header, file)``, which may return another header, and its digest."""
    with h5py.File(path, "r+") as file:
        header = json.loads(file.attrs["header"])
        file.attrs["header"] = json.dumps(change(header, file) or header)
    hdf5.add_digest(path, CHECKPOINT_MAGIC, checkpoint.FORMAT)


def decay(rate):
    """Return a metric that falls exponentially from 10."""
    return lambda r: 10.0 * np.exp(-rate * r)
