"""Values in nested containers."""

from collections import OrderedDict, deque, namedtuple

from mpifed.base.nested import leaves, mapped

Pair = namedtuple("Pair", "first second")


def test_values_of_containers():
    value = [1, (2, Pair("34", None)), deque([5]), {"b": 6, "a": [7, {}, ()]}, OrderedDict(c=8)]
    assert leaves(value) == [1, 2, "34", None, 5, 6, 7, 8]
    assert leaves("90") == ["90"]


def test_functions_of_values_in_containers():
    value, other = {"a": [1, (2, 3)]}, {"a": [10, (20, 30)]}
    assert mapped(lambda *values: sum(values), value, other) == {"a": [11, (22, 33)]}
    assert mapped(str, 4) == "4"
    pair = mapped(abs, Pair(-1, [-2]))
    assert pair == Pair(1, [2]) and type(pair) is Pair
