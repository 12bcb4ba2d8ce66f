"""Values in nested containers."""

from collections import OrderedDict, defaultdict, deque, namedtuple

import pytest

from mpifed.base.nested import leaves, mapped

Pair = namedtuple("Pair", "first second")


@pytest.mark.parametrize("make", [
    list,
    tuple,
    lambda pair: Pair(*pair),
    lambda pair: deque(pair, maxlen=2),
    lambda pair: {"b": pair[0], "a": pair[1]},
    lambda pair: OrderedDict(b=pair[0], a=pair[1]),
    lambda pair: defaultdict(list, b=pair[0], a=pair[1]),
])  # fmt: skip
def test_values_of_containers(make):
    value = make([1, make(["23", 4])])
    assert leaves(value) == [1, "23", 4]
    copied = mapped(lambda one: one * 2, value)
    assert copied == make([2, make(["2323", 8])]) and type(copied) is type(value)
    assert leaves(value) == [1, "23", 4] and getattr(copied, "maxlen", 2) == 2


def test_single_values():
    assert leaves(None) == [None] and leaves(()) == [] and mapped(str, 3) == "3"
