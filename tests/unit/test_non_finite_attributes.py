"""The search for non-finite attributes of a problem terminates for nested and cyclic values."""

from dataclasses import dataclass
from math import nan
from typing import Any

import pytest

from mpifed.core.validation import _DEPTH, non_finite


@dataclass
class Link:
    next: Any


@pytest.mark.parametrize(
    "inside, kind", [("[0]", lambda one: [one]), ("['k']", lambda one: {"k": one}), (".next", Link)]
)
@pytest.mark.parametrize("length, found", [(0, True), (_DEPTH, True), (_DEPTH + 1, False), (5000, False)])
def test_nested_values_are_found_down_to_the_depth(inside, kind, length, found):
    value: Any = nan
    for _ in range(length):
        value = kind(value)
    assert list(non_finite(value, "self.rows")) == ([f"nan in self.rows{inside * length}"] if found else [])


def test_cyclic_values():
    ring: Any = Link(None)
    ring.next = [ring, {"back": ring}, nan]
    assert list(non_finite(ring, "self.ring")) == ["nan in self.ring.next[2]"]
