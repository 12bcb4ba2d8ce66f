"""Values in nested containers."""

from collections import OrderedDict, deque, namedtuple

from mpifed.base.nested import leaves

Pair = namedtuple("Pair", "first second")


def test_values_of_containers():
    value = [1, (2, Pair("34", None)), deque([5]), {"b": 6, "a": [7, {}, ()]}, OrderedDict(c=8)]
    assert leaves(value) == [1, 2, "34", None, 5, 6, 7, 8]
    assert leaves("90") == ["90"]
