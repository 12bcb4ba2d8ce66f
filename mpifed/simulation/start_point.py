"""Gradients at the starting point: one before the first round, and the search for a row that is not finite.

A sample whose gradient is not finite at the starting point is an error in the data or in the problem's
functions, such as a division by the norm of a row of zeros. Step sizes have no influence on it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mpifed.base.errors import user_code_errors
from mpifed.base.nested import leaves
from mpifed.core.oracle import EVALUATIONS, Oracle
from mpifed.core.problem import starting_point, user_problem
from mpifed.core.sampling import Sample
from mpifed.parallel.comm import SerialComm, collective_errors

__all__ = ["expect_gradient", "non_finite_row"]


@torch.no_grad()
def expect_gradient(oracle: Oracle, uses_full_batches: bool, comm: SerialComm) -> None:
    """Evaluate the gradient of this rank's client with the fewest rows, forward and backward. Collective.

    Args:
        uses_full_batches: whether the method also evaluates all data of a client.

    Raises:
        CollectiveError: on all ranks: the evaluation fails on a rank.
    """
    sampler, name = oracle.sampler, type(user_problem(oracle.problem)).__name__
    with collective_errors(comm, ValueError):
        if not len(sampler.clients):
            return
        position = int(sampler.sizes.argmin())
        one_row = bool(sampler.data) and sampler.sizes[position] == 1
        sampler.begin_round(0)
        _select(oracle, position)
        samples = [oracle.sample()]
        if uses_full_batches and one_row and sampler.batch_size:
            samples.append(oracle.full_batch)
        for xi in samples:
            is_single = one_row and (xi.is_full_batch or not sampler.batch_size)
            rows = " on its single row (use .squeeze(-1) instead of .squeeze())" if is_single else ""
            what = f"the gradient of {name} at the starting point{rows}"
            with user_code_errors(what, clients=sampler.clients[position : position + 1].tolist()):
                _evaluate(oracle, xi)
        sampler.begin_round(0)


def _select(oracle: Oracle, position: int) -> None:
    """Select the client at a position of this rank alone."""
    oracle.sampler.select_members(np.array([position]))
    oracle.select_clients(slice(0, 1))


def _evaluate(oracle: Oracle, xi: Sample) -> list[torch.Tensor]:
    """Return all derivatives of a client's step at the starting point."""
    problem, sampler = oracle.problem, oracle.sampler
    start = starting_point(problem, sampler.dtype, sampler.device, sampler.seed)
    point = [block.unsqueeze(0) for block in start]
    return leaves(EVALUATIONS[problem.family](oracle, *point, xi))


@torch.no_grad()
def non_finite_row(oracle: Oracle, position: int) -> str:
    """Describe the first row of a client at which a derivative is not finite at the starting point.

    The rows are halved until a single row remains, which takes two evaluations of all rows in total.

    Args:
        position: of the client on this rank.

    Returns:
        "row 3", or "all rows together" if no single row has such a derivative; "" if all derivatives are
        finite, or if the problem generates its samples.
    """
    sampler = oracle.sampler
    if not sampler.data:
        return ""
    _select(oracle, position)
    columns: Any = next(iter(sampler.client_batches(slice(0, 1))))

    def is_finite(first: int, last: int) -> bool:
        rows = Sample(single=tuple(column[first:last].clone() for column in columns))
        try:
            return all(torch.isfinite(value).all() for value in _evaluate(oracle, rows))
        except Exception:  # user code may not accept so few rows
            return True

    first, last = 0, len(columns[0])
    if is_finite(first, last):
        return ""
    while last - first > 1:
        middle = (first + last) // 2
        if not is_finite(first, middle):
            last = middle
        elif not is_finite(middle, last):
            first = middle
        else:
            return "all rows together"
    return f"row {first}"
