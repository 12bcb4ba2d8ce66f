"""The example of every method that ``mpifed info`` prints, on networks and data: it stays finite and improves
the problem within 40 rounds."""

import pytest
from printed_examples import improvement

from mpifed.algorithms import ALGORITHMS

DIGITS = dict(dataset="digits", model="mlp", clients=8)
#: Family → problems, with a metric and settings.
PROBLEMS = {
    "minimax": [("DeepAUC", "auc", DIGITS), ("TwoSidedPL", "error", dict(clients=8))],
    "mixture": [("ClientMixture", "worst_loss", DIGITS)],
    "minimisation": [("Classification", "accuracy", DIGITS)],
    "operator": [("AffineGame", "distance", dict(clients=8)), ("DeepAUC", "auc", DIGITS)],
    "composite": [("L1BoxBilinear", "residual", dict(clients=8)), ("MatrixGame", "gap", dict(clients=8))],
    "composition": [("DistributionallyRobust", "objective", DIGITS)],
    "bilevel": [("DataCleaning", "accuracy", dict(DIGITS, model="linear"))],
}


def families(method) -> list[str]:
    return ["mixture"] if method.mixture else [method.family, *["composite"] * method.composite]


@pytest.mark.parametrize(
    "name, problem, metric, settings",
    [
        pytest.param(name, *case, id=f"{name} on {case[0]}")
        for name, method in ALGORITHMS.items()
        for family in families(method)
        for case in PROBLEMS[family]
    ],
)
def test_the_printed_example_improves_its_problem(name, problem, metric, settings):
    assert improvement(name, problem, metric, rounds=40, **settings) > 0
