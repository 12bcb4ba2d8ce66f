"""The methods and problems that run together, and those that are refused."""

import pytest
from everything import METHODS, PAIRS, SETTINGS, fits, method, problem

from mpifed import Config
from mpifed.algorithms import ALGORITHMS
from mpifed.problems import PROBLEMS


@pytest.mark.parametrize("name", ALGORITHMS)
def test_incompatible_pairs_are_refused_with_alternatives(name):
    for other in PROBLEMS:
        if fits(name, other):
            continue
        with pytest.raises(ValueError, match="expected one of") as error:
            Config(algorithm=method(name), problem=problem(other), record=())
        named = str(error.value).split("expected one of")[1].split("[")[0].replace(",", " ").split()
        assert named and name not in named


def test_all_methods_and_problems_are_tested():
    """Each needs a line with small settings in METHODS or SETTINGS of tests/support/everything.py."""
    assert set(METHODS) == set(ALGORITHMS) and set(SETTINGS) == set(PROBLEMS)
    assert {name for name, _ in PAIRS} == set(ALGORITHMS) and {name for _, name in PAIRS} == set(PROBLEMS)
