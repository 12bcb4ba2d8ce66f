"""The data of all clients of a rank in one tensor per column."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from mpifed.base.errors import ContractError
from mpifed.core.numerics import first_non_finite
from mpifed.core.problem import Problem

__all__ = ["load_client_data"]

Columns = tuple[torch.Tensor, ...]


def load_client_data(
    problem: Problem, clients: np.ndarray, load: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[Columns, np.ndarray]:
    """Return the rows of all clients, concatenated by column, and the number of rows per client ``[C]``.

    Each client's rows are copied into preallocated columns, so that the peak memory is close to the size of
    the data.

    Args:
        load: moves a tensor to the device and dtype.

    Raises:
        ContractError: the columns of the clients differ, or a value is not finite.
    """
    columns: Columns = ()
    sizes, end = np.zeros(len(clients), dtype=np.int64), 0
    for position, client in enumerate(clients.tolist()):
        data = _data(problem, client, load)
        if position == 0 and data:
            rows = _expected_rows(problem, clients.tolist(), len(data[0]))
            columns = tuple(column.new_empty((rows, *column.shape[1:])) for column in data)
        shapes, expected = ([list(column.shape[1:]) for column in batch] for batch in (data, columns))
        if shapes != expected:
            raise ContractError(
                f"{type(problem).__name__}: client_data({client}) has columns with rows of shape {shapes}: "
                f"expected {expected}, as client_data({clients[0]})"
            )
        sizes[position] = len(data[0]) if data else 0
        start, end = end, end + int(sizes[position])
        columns = tuple(_with_capacity(column, new, end) for column, new in zip(columns, data))
        for column, new in zip(columns, data):
            column[start:end] = new
    return tuple(column[:end] for column in columns), sizes


def _data(problem: Problem, client: int, load: Callable[[torch.Tensor], torch.Tensor]) -> Columns:
    """Return the data of one client, or its full batch if the problem generates samples.

    Raises:
        ContractError: a value is not finite.
    """
    columns = tuple(map(load, problem.client_data(client) or problem.full_batch(client) or ()))
    for number, column in enumerate(columns):
        if index := first_non_finite(column):
            raise ContractError(
                f"{type(problem).__name__}: client_data({client}) has {column[index].item()} in row "
                f"{index[0]} of column {number}: expected finite numbers"
            )
    return columns


def _expected_rows(problem: Problem, clients: list[int], first: int) -> int:
    """Return the total number of rows, by ``client_size`` if the problem defines it.

    Args:
        first: number of rows of the first client, from which the total is estimated otherwise.
    """
    if getattr(problem.client_size, "__func__", None) is Problem.client_size:  # the default loads the data
        return first * len(clients)
    return sum(int(problem.client_size(client)) for client in clients)


def _with_capacity(column: torch.Tensor, new: torch.Tensor, rows: int) -> torch.Tensor:
    """Return ``column`` with space for ``rows`` rows and a dtype to which ``new`` can be cast."""
    missing = rows - len(column)
    if missing <= 0 and torch.promote_types(column.dtype, new.dtype) == column.dtype:
        return column
    more = max(missing, len(column) // 2) if missing > 0 else 0
    return torch.cat([column, new.new_empty((more, *new.shape[1:]))])
