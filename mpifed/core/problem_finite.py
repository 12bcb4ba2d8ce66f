"""Values that are not finite in what a problem holds, which would pass for a method that diverges.

What a problem holds may well be infinite (a bound) or NaN (a missing value that is dealt with). So it is an
error only where a client's function is not finite at the starting point, and that is looked at only where
there are such values.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from mpifed.core.errors import ContractError
from mpifed.core.finite import all_finite, first_bad
from mpifed.core.oracle import ORACLES
from mpifed.core.problem import Problem
from mpifed.core.problem_values import point_of
from mpifed.core.sampling import Sampler

__all__ = ["EVALUATIONS", "expect_finite"]

#: Problem family → one evaluation of everything that a client step needs.
EVALUATIONS: dict[str, Callable[..., Any]] = {
    "minimax": lambda oracle, *point_and_xi: oracle.grad(*point_and_xi),
    "operator": lambda oracle, z, xi: oracle.operator(z, xi),
    "composition": lambda oracle, x, xi: oracle.grad_f(oracle.g_and_jacobian(x, xi)[0], xi),
}
#: How deep attributes are looked into, and how many of them are named.
_DEPTH, _MOST = 4, 3


def expect_finite(problem: Problem, seed: int, batch_size: int, dtype, device) -> None:
    """Look through what a prepared problem holds.

    Args:
        batch_size: rows of a sample of a problem that draws its own.

    Raises:
        ContractError: a client's function is not finite, with what is not finite of what the problem holds.
    """
    found = list(itertools.islice(_held(vars(problem), "self", _DEPTH), _MOST))
    for client in range(problem.clients if found else 0):
        try:
            why = _not_finite(problem, client, seed, batch_size, dtype, device)
        except ContractError as error:  # the client's rows
            why = str(error)
        except Exception:  # of another kind than is looked for, and told where it is met
            return
        if why:
            raise ContractError(f"{type(problem).__name__}: {why}. It holds {', '.join(found)}")


def _held(values: dict, where: str, depth: int) -> Iterator[str]:
    """``nan in row 7 of self.rows[3]`` for each array of floats among ``values`` and in what these hold."""
    for key, value in values.items():
        path = f"{where}{key}" if where.endswith("[") else f"{where}.{key}"
        path += "]" * where.endswith("[")
        if isinstance(value, np.ndarray) and value.dtype.kind in "fc":
            value = torch.from_numpy(np.ascontiguousarray(value))
        if isinstance(value, torch.Tensor):
            if index := first_bad(value):
                yield f"{value[index].item()} in row {index[0]} of {path}" if index else f"{value} as {path}"
        elif depth and isinstance(value, dict):
            yield from _held({repr(name): one for name, one in value.items()}, f"{path}[", depth - 1)
        elif depth and isinstance(value, list | tuple):
            yield from _held(dict(enumerate(value)), f"{path}[", depth - 1)
        elif depth and dataclasses.is_dataclass(value) and hasattr(value, "__dict__"):
            yield from _held(vars(value), path, depth - 1)


@torch.no_grad()
def _not_finite(problem: Problem, client: int, seed: int, batch_size: int, dtype, device) -> str:
    """What is wrong with a client's function at the starting point, on all its rows or on a draw; or ""."""
    size = 0 if len(problem.client_data(client)) else batch_size
    sampler = Sampler(problem, [client], seed, size, None, 0, dtype, torch.device(device))
    oracle = ORACLES[problem.family](problem, sampler, batched=False)
    oracle.at(slice(0, 1))
    values = EVALUATIONS[problem.family](oracle, *point_of(problem, dtype, device), oracle.sample())
    parts = values if isinstance(values, tuple | list) else (values,)
    what = "the operator" if problem.family == "operator" else "the gradient"
    return (
        ""
        if all(map(all_finite, parts))
        else f"{what} of client {client} is not finite at the starting point"
    )
