"""A small job on a saddle problem with noise, for tests of the files of a run and of how it continues, and
the limit of Local-GDA on such problems."""

from __future__ import annotations

import numpy as np
import torch

from mpifed.config.job import Config
from mpifed.problems import Saddle


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


def local_gda_limit(problem: Saddle, eta_x: float, eta_y: float, q: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the limit (x, y) of noise-free Local-GDA with q local steps per round, ``[d]`` float64.

    In each coordinate the operator of client k is H_k z - (0, b_k), with the zero z_k*. Hence q steps with
    D = diag(η_x, η_y) map z to P_k z + (I - P_k) z_k*, P_k = (I - D H_k)^q, whose average over the clients
    has one fixed point.
    """
    t, b = (column.numpy() for column in problem.client_rows(np.arange(problem.clients))[0])
    eye, one = np.eye(2), np.ones_like(t)
    H = np.stack([problem.tau * one, -t, t, one], axis=1).reshape(-1, 2, 2)
    P = np.linalg.matrix_power(eye - np.diag([eta_x, eta_y]) @ H, q)
    zero = np.linalg.solve(H, np.stack([np.zeros_like(b), b], axis=1))
    x, y = np.linalg.solve(eye - P.mean(axis=0), ((eye - P) @ zero).mean(axis=0))
    return torch.from_numpy(x), torch.from_numpy(y)
