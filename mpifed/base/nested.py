"""Values in nested containers."""

from __future__ import annotations

from collections import deque
from typing import Any

__all__ = ["leaves"]


def leaves(value: Any) -> list[Any]:
    """Return the values in nested lists, tuples, queues and dictionaries, in order, without keys."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple | deque):
        return [leaf for one in value for leaf in leaves(one)]
    return [value]
