"""Metrics on each client's own training samples: their quantiles over the clients, and the worst of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection

import numpy as np

from mpifed.core.details import QUANTILES
from mpifed.core.problem import Problem
from mpifed.core.splits import of_split
from mpifed.parallel.comm import SerialComm, share, together
from mpifed.parallel.placement import Placement

__all__ = ["client_table", "summary", "summary_names"]


def client_table(
    problem: Problem,
    comm: SerialComm,
    placement: Placement,
    evaluate: Callable[[Problem, int], dict[str, float]],
) -> dict[str, np.ndarray]:
    """Every metric on the samples of each client, ``[N]``, on all ranks. Collective.

    A client is evaluated as a whole, by the rank that hosts it, so the figures do not depend on their number.

    Raises:
        CollectiveError: a client's evaluation has failed on some rank.
    """
    with together(comm, ValueError):
        hosted = placement.of(comm.rank).tolist()
        mine = {client: evaluate(problem.tested_on(client), client) for client in hosted}
    names = json.dumps([*mine[0]]) if 0 in mine else None
    columns = json.loads(share(comm, names, int(placement.rank_of[0])))
    table = np.zeros((placement.clients, len(columns)))
    for client, values in mine.items():
        table[client] = [values.get(name, np.nan) for name in columns]
    comm.allreduce_(table)  # all other ranks add 0 to a client's row
    return dict(zip(columns, table.T))


def summary(table: dict[str, np.ndarray], maximised: Collection[str]) -> dict[str, float]:
    """Quantiles over the clients, by linear interpolation, and the worst; clients without a number, such as
    an AUC of one class, are left out."""
    figures = {}
    for name, values in table.items():
        known = values[~np.isnan(values)]
        known = known if len(known) else np.array([np.nan])
        worst = known.min() if name in maximised else known.max()
        found = [*np.quantile(known, np.array(QUANTILES) / 100), worst]
        figures |= dict(zip(summary_names(name), map(float, found)))
    return figures


def summary_names(metric: str) -> list[str]:
    """What the figures of a metric are called."""
    return [
        of_split("client", f"{metric}_{of}") for of in (*(f"q{per_cent}" for per_cent in QUANTILES), "worst")
    ]
