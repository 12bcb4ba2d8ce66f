"""The search for what is not finite among a problem's attributes ends, whatever they hold."""

from dataclasses import dataclass
from math import nan
from typing import Any

from mpifed.core.validation import _DEPTH, _non_finite_attributes


@dataclass
class Link:
    next: Any


def chain(length: int, kind) -> Any:
    last: Any = nan
    for _ in range(length):
        last = kind(last)
    return last


KINDS = {"[0]": lambda one: [one], "['k']": lambda one: {"k": one}, ".next": Link}


def test_nested_values_are_found_down_to_some_depth():
    for inside, kind in KINDS.items():
        for length, found in ((0, True), (_DEPTH, True), (_DEPTH + 1, False), (5000, False)):
            told = list(_non_finite_attributes({"rows": chain(length, kind)}, "self.{}", _DEPTH, set()))
            assert told == ([f"nan in self.rows{inside * length}"] if found else [])


def test_values_that_hold_themselves():
    ring: Any = Link(None)
    ring.next = [ring, {"back": ring}, nan]
    assert list(_non_finite_attributes({"ring": ring}, "self.{}", _DEPTH, set())) == [
        "nan in self.ring.next[2]"
    ]
