"""Small settings of every method and every problem, for the tests that run all of them."""

from __future__ import annotations

import numpy as np

from mpifed.algorithms import ALGORITHMS
from mpifed.core.settings import build
from mpifed.data import TEXTS, Texts
from mpifed.problems import PROBLEMS

HEAVY = dict(p=2, eta_x=0.01, eta_y=0.01, gamma_x=0.02, gamma_y=0.02)
GLOBAL = dict(K=2, eta_xl=0.01, eta_yl=0.01)

#: Method → (settings, settings that make its steps zero or None where it has no such settings).
METHODS = {
    "FGDA": (dict(q=2, gamma=0.01, lam=0.01), dict(gamma=0, lam=0)),
    "AdaFGDA": (dict(q=2, gamma=0.01, lam=0.01), dict(gamma=0, lam=0)),
    "FedNSGDAM": (HEAVY, dict(gamma_x=0, gamma_y=0)),
    "FedMuonDA": (HEAVY, dict(gamma_x=0, gamma_y=0)),
    "FedSGDAClip": (HEAVY, dict(gamma_x=0, gamma_y=0)),
    "LSGD": (dict(K=2, eta=0.01), dict(eta=0)),
    "LESGD": (dict(K=2, eta=0.01), dict(eta=0)),
    "LIPPAX": (dict(K=2, eta=0.01, H=2, L=5.0), None),
    "SLIPPAX": (dict(K=2, eta=0.01, H=1, L=5.0, sigma=1.0), None),
    "LocalDualExtrapolation": (dict(K=2, eta=0.01), dict(eta=0)),
    "MFCGD": (dict(q=2, gamma=0.01), dict(gamma=0)),
    "AdaMFCGD": (dict(q=2, gamma=0.01), dict(gamma=0)),
    "ComFedL": (dict(q=2, eta=0.01, B_g=2), dict(eta=0)),
    "LocalMOML": (dict(H=2, eta=0.01, K_0=2), dict(eta=0)),
    "LocalSCGD": (dict(p=2, eta=0.01), dict(eta=0)),
    "LocalSCGDM": (dict(p=2, eta=0.01), dict(eta=0)),
    "FedNestComposition": (
        dict(T=2, tau=2, alpha=0.01, beta=0.5, first_y="mean", fresh_cohort=True),
        dict(alpha=0),
    ),
    "FESSGDA": (dict(p=0.1, **GLOBAL), dict(eta_xl=0, eta_yl=0)),
    "SmoothedGDA": (dict(eta_x=0.01, eta_y=0.01, p=0.1), dict(eta_x=0, eta_y=0)),
    "FSGDA": (GLOBAL, dict(eta_xl=0, eta_yl=0)),
    "LocalSGDA": (dict(q=2, eta_x=0.01, eta_y=0.01), dict(eta_x=0, eta_y=0)),
}


def sentences(data_dir=None) -> Texts:
    """Twelve sentences of three kinds of words, positive where the first word is "good"."""
    words = ("good", "bad", "film", "plot")
    texts = [f"{words[i % 2]} {words[2 + i // 2 % 2]} {' '.join(words[: i % 4])}" for i in range(12)]
    labels = 1 - np.arange(12) % 2
    return Texts(texts, labels, texts[:6], labels[:6])


TEXTS["sentences"] = sentences

#: Problem → settings.
SETTINGS = {
    "Saddle": dict(clients=3, d=3, centred=False),
    "DeepAUC": dict(clients=3, dataset="digits", model="linear", partition="iid"),
    "TextAUC": dict(
        clients=3,
        dataset="sentences",
        vectors="random",
        dimension=3,
        length=4,
        model={"name": "rnn", "hidden": 3, "cell": "lstm"},
    ),
    "RobustRegression": dict(clients=3, dataset="digits", model="linear"),
    "FairClassification": dict(clients=3, dataset="digits", model="linear"),
    "DistributionallyRobust": dict(clients=3, dataset="digits", model="linear"),
    "LinearMAML": dict(clients=3),
    "SinusoidMAML": dict(clients=3, samples=6, model={"name": "mlp", "hidden": [3]}, tests=2),
    "FewShotMAML": dict(
        clients=3, dataset="digits", ways=2, samples=4, model={"name": "conv4", "filters": 1}, tests=2
    ),
    "WGAN": dict(clients=3, lam=1.0),
    "AffineGame": dict(clients=3, d=4),
    "Bilinear": dict(clients=3, dx=3, dy=2),
    "L1BoxBilinear": dict(clients=3, dx=3, dy=2),
    "QuadraticNCPL": dict(clients=3),
    "TwoSidedPL": dict(clients=3),
}
#: Problems with a convex part φ, which only composite methods take.
COMPOSITE = {"L1BoxBilinear"}


def method(name: str, zero: bool = False):
    """A method with its small settings, with zero steps on demand."""
    settings, none = METHODS[name]
    return build(ALGORITHMS[name], {**settings, **(none if zero else {})}, name)


def problem(name: str):
    """A problem with its small settings."""
    return build(PROBLEMS[name], dict(SETTINGS[name]), name)


def fits(method_name: str, problem_name: str) -> bool:
    """Whether the method runs on the problem."""
    ours, theirs = ALGORITHMS[method_name].family, PROBLEMS[problem_name].family
    if problem_name in COMPOSITE and not ALGORITHMS[method_name].composite:
        return False
    return ours == theirs or (ours, theirs) == ("operator", "minimax")


PAIRS = [(one, other) for one in ALGORITHMS for other in PROBLEMS if fits(one, other)]
MISFITS = [(one, other) for one in ALGORITHMS for other in PROBLEMS if not fits(one, other)]
