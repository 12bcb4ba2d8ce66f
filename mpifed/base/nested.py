"""Values in nested lists, tuples, queues and dictionaries."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["leaves", "mapped"]


def leaves(value: Any) -> list[Any]:
    """Return the values in nested containers, in order; those of dictionaries without their keys."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple | deque):
        return [leaf for one in value for leaf in leaves(one)]
    return [value]


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Return copies of nested containers in which each value is replaced by ``function(value)``."""
    if isinstance(value, tuple):
        parts = [mapped(function, one) for one in value]
        return value._make(parts) if hasattr(value, "_make") else type(value)(parts)
    if not isinstance(value, list | deque | dict):
        return function(value)
    changed = copy.copy(value)
    for place, one in value.items() if isinstance(value, dict) else enumerate(value):
        changed[place] = mapped(function, one)
    return changed
