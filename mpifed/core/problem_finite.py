"""Values that are not finite in what a problem holds, which would pass for a method that diverges.

What a problem holds may well be infinite (a bound) or NaN (a missing value that is dealt with). So it is an
error only where a client's function is not finite at the starting point, and that is looked at only where
there are such values.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
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
    found = list(itertools.islice(_held(vars(problem), "self.{}", _DEPTH, {id(problem)}), _MOST))
    for client in range(problem.clients if found else 0):
        try:
            why = _not_finite(problem, client, seed, batch_size, dtype, device)
        except ContractError as error:  # the client's rows
            why = str(error)
        except Exception:  # of another kind than is looked for, and told where it is met
            return
        if why:
            raise ContractError(f"{why}. It holds {', '.join(found)}")


def _held(values: dict, where: str, depth: int, seen: set[int]) -> Iterator[str]:
    """``nan in row 7 of self.rows[3]`` for each array of floats among ``values`` and in what these hold.

    Args:
        where: what their names are put in.
        seen: what has been looked through.
    """
    for key, value in values.items():
        path = where.format(key)
        if isinstance(value, np.ndarray) and value.dtype.kind in "fc":
            # Torch warns of arrays that are read only.
            value = torch.from_numpy(np.require(value, requirements=("C", "W")))
        if isinstance(value, torch.Tensor):
            if (index := first_bad(value)) is not None:
                yield f"{value[index].item()} in {f'row {index[0]} of ' if index else ''}{path}"
        elif isinstance(value, float) and math.isnan(value):
            yield f"nan in {path}"
        elif depth and id(value) not in seen and isinstance(value, dict | list | tuple):
            seen.add(id(value))
            items = value if isinstance(value, dict) else dict(enumerate(value))
            inside = path.replace("{", "{{").replace("}", "}}") + "[{!r}]"
            yield from _held(items, inside, depth - 1, seen)
        elif (
            depth and id(value) not in seen and dataclasses.is_dataclass(value) and hasattr(value, "__dict__")
        ):
            seen.add(id(value))
            yield from _held(vars(value), path.replace("{", "{{").replace("}", "}}") + ".{}", depth - 1, seen)


@torch.no_grad()
def _not_finite(problem: Problem, client: int, seed: int, batch_size: int, dtype, device) -> str:
    """What is wrong with a client's function at the starting point, on all its rows or on a draw; or ""."""
    size = 0 if len(problem.client_data(client)) else batch_size
    sampler = Sampler(problem, [client], seed, size, None, 0, dtype, torch.device(device))
    oracle = ORACLES[problem.family](problem, sampler, batched=False)
    oracle.at(slice(0, 1))
    values = EVALUATIONS[problem.family](oracle, *point_of(problem, dtype, device), oracle.sample())
    parts = values if isinstance(values, tuple | list) else (values,)
    what = f"{type(problem).__name__}: the {'operator' if problem.family == 'operator' else 'gradient'}"
    if all(map(all_finite, parts)):
        return ""
    return f"{what} of client {client} is not finite at the starting point"
