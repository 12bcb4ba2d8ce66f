"""The example of every method that ``mpifed info`` prints, on small generated problems of its family.

``tests/convergence/test_examples_on_data.py`` runs them on data.
"""

import pytest
from printed_examples import improvement

from mpifed.algorithms import ALGORITHMS

#: Family → problem, metric and settings.
PROBLEMS = {
    "minimax": ("Saddle", "error", dict(clients=4, d=3)),
    "mixture": ("QuadraticMixture", "worst_loss", dict(clients=4, d=3)),
    "minimisation": ("Classification", "accuracy", dict(clients=3, dataset="digits", model="linear")),
    "operator": ("AffineGame", "residual", dict(clients=4, d=4)),
    "composition": ("LinearMAML", "objective", dict(clients=3, d=3, samples=10)),
    "bilevel": ("QuadraticBilevel", "grad_phi", dict(clients=4, dx=2, dy=2)),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_printed_example_improves_its_problem(name):
    method = ALGORITHMS[name]
    problem, metric, settings = PROBLEMS["mixture" if method.mixture else method.family]
    # The lower level of a bilevel problem must come first, and meanwhile the gradient of φ may grow.
    rounds = 40 if method.family == "bilevel" else 8
    assert improvement(name, problem, metric, rounds=rounds, **settings) > 0
