"""Values in nested containers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["leaves", "mapped"]


def leaves(value: Any) -> list[Any]:
    """Return the values in nested lists, tuples, queues and dictionaries, in order, without keys."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple | deque):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def mapped(function: Callable[..., Any], value: Any, *others: Any) -> Any:
    """Return nested lists, tuples and dictionaries with the results of a function of their values.

    Args:
        others: containers of the same form, whose values are further arguments of the function.
    """
    if isinstance(value, dict):
        return {key: mapped(function, value[key], *(other[key] for other in others)) for key in value}
    if isinstance(value, list | tuple):
        parts = [mapped(function, *values) for values in zip(value, *others, strict=True)]
        if hasattr(value, "_fields"):
            return type(value)(*parts)
        return parts if isinstance(value, list) else tuple(parts)
    return function(value, *others)
