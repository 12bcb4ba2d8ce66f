"""Small settings of every method and every problem, for tests that run all of them."""

from __future__ import annotations

import numpy as np

from mpifed.algorithms import ALGORITHMS
from mpifed.base.settings import build
from mpifed.core.problem import Minimisation
from mpifed.data import TEXTS, Texts
from mpifed.problems import PROBLEMS

HEAVY = dict(p=2, eta_x=0.01, eta_y=0.01, gamma_x=0.02, gamma_y=0.02)
GLOBAL = dict(K=2, eta_xl=0.01, eta_yl=0.01)
STEPS = dict(K=2, eta_x=0.01, eta_y=0.01)
NEST = dict(T=2, tau=2, alpha=0.01, beta=0.01)
RATES = dict(eta_x=0.01, eta_y=0.01)
NORMED = dict(gamma_x=0.01, gamma_y=0.01, **RATES)

BILEVEL = dict(tau=2, eta_x=0.01, eta_y=0.01, eta_z=0.01, gamma_x=0.01, gamma_y=0.01, gamma_z=0.01)
HALF, TOP = dict(name="rand-k", ratio=0.5), dict(name="top-k", ratio=0.5)
SERIES = dict(J=2, ell=0.1, **NEST)

#: A step size that changes no digit, for methods whose steps may not be 0.
TINY = 1e-14
#: Method → settings, and settings with which its steps change no digit.
METHODS = {
    "FGDA": (dict(q=2, gamma=0.01, lam=0.01), dict(gamma=0, lam=0)),
    "AdaFGDA": (dict(q=2, gamma=0.01, lam=0.01), dict(gamma=0, lam=0)),
    "FedNSGDAM": (HEAVY, dict(gamma_x=0, gamma_y=0)),
    "FedMuonDA": (HEAVY, dict(gamma_x=0, gamma_y=0)),
    "FedSGDAClip": (HEAVY, dict(gamma_x=0, gamma_y=0)),
    "LSGD": (dict(K=2, eta=0.01), dict(eta=0)),
    "LESGD": (dict(K=2, eta=0.01), dict(eta=0)),
    "LIPPAX": (dict(K=2, eta=0.01, H=2, L=5.0), dict(eta=TINY)),
    "SLIPPAX": (dict(K=2, eta=0.01, H=1, L=5.0, sigma=1.0), dict(eta=TINY)),
    "LocalDualExtrapolation": (dict(K=2, eta=0.01), dict(eta=0)),
    "ExtraSGD": (dict(eta=0.01, b=2), dict(eta=0)),
    "ExtraStepLocalSGD": (dict(K=2, eta=0.01), dict(eta=0)),
    "FedDualAvg": (dict(K=2, eta_c=0.01, eta_s=0.7), dict(eta_c=0)),
    "FeDualEx": (dict(K=2, eta_c=0.01, eta_s=0.7), dict(eta_c=0)),
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
    "LocalSGDA": (dict(q=2, **RATES), dict(eta_x=0, eta_y=0)),
    "LocalSGDAPlus": (dict(q=2, S=4, **RATES), dict(eta_x=0, eta_y=0)),
    "MomentumLocalSGDA": (dict(q=2, **RATES), dict(eta_x=0, eta_y=0)),
    "MomentumLocalSGDAPlus": (dict(q=2, S=4, average_start=True, **RATES), dict(eta_x=0, eta_y=0)),
    "FedSGDAPlus": (dict(K=2, S=2, **RATES), dict(eta_x=0, eta_y=0)),
    "FedSGDAM": (dict(Q=2, **RATES), dict(eta_x=0, eta_y=0)),
    "FedNormSGDA": (dict(tau=2, a=0.5, **NORMED), dict(gamma_x=0, gamma_y=0)),
    "FedNormSGDAPlus": (dict(tau=2, S=2, **NORMED), dict(gamma_x=0, gamma_y=0)),
    "SAGDA": (dict(variates="stored", **GLOBAL), dict(eta_xg=0, eta_yg=0)),
    "FedGDAGT": (GLOBAL, dict(eta_xl=TINY, eta_yl=TINY)),
    "KGTMinimax": (GLOBAL, dict(eta_xg=0, eta_yg=0)),
    "CODAPlus": (dict(K=2, eta=0.01, T=1, reference="average"), dict(eta=TINY)),
    "CODASCA": (dict(K=2, eta=0.01, T=1, reference="average"), dict(eta_g=0)),
    "CDMANC": (STEPS, dict(eta_x=0, eta_y=0)),
    "CDMAONE": (dict(large_batch=4, **STEPS), dict(eta_x=0, eta_y=0)),
    "CDMAADA": (dict(large_batch=4, **STEPS), dict(eta_x=0, eta_y=0)),
    "FedNest": (NEST, dict(alpha=0, beta=0)),
    "LFedNest": (NEST, dict(alpha=0, beta=0)),
    "FLRA": (dict(tau=2, eta_1=0.01, eta_2=0.01), dict(eta_1=0, eta_2=0)),
    "LocalAMSGrad": (STEPS, dict(eta_x=0, eta_y=0)),
    "AFL": (dict(gamma_x=0.01, gamma_y=0.01), dict(gamma_x=0, gamma_y=0)),
    "DRFA": (dict(tau=2, eta=0.01, gamma=0.01), dict(eta=0, gamma=0)),
    "FedAvg": (dict(K=2, eta=0.01, eta_g=0.01, server="yogi"), dict(eta_g=0)),
    "FedProx": (dict(K=2, eta=0.01, stragglers=0.5), dict(eta_g=0)),
    "FedNova": (dict(tau=2, eta=0.01, rho=0.5, beta=0.5), dict(eta=0)),
    "FedDyn": (dict(K=2, eta=0.01), dict(eta=0)),
    "FedExP": (dict(K=2, eta=0.01), dict(eta=0)),
    "MimeLite": (dict(K=2, eta=0.01, base="adam", large_batch=4), dict(eta=0)),
    "Mime": (dict(K=2, eta=0.01, base="adam", large_batch=4), dict(eta=0)),
    "SCAFFOLD": (dict(K=2, eta_l=0.01), dict(eta_g=0)),
    "STEM": (dict(q=2, eta=0.01), dict(eta=0)),
    "FedVARP": (dict(K=2, eta=0.01), dict(eta=0)),
    "MIFA": (dict(K=2, eta=0.01), dict(eta=TINY)),
    "LocalAdaSEG": (dict(K=2, G_0=1.0, D=0.1), dict(D=TINY)),
    "FATClipping": (dict(lam=0.5, per="round", **GLOBAL), dict(eta_xl=0, eta_yl=0)),
    "Bi2Clip": (dict(K=2, eta=0.01, u=0.5, u_g=0.1, d=0.01), dict(eta_g=0)),
    "SimFBO": (BILEVEL, dict(gamma_x=0, gamma_y=0, gamma_z=0)),
    "ShroFBO": (BILEVEL, dict(gamma_x=0, gamma_y=0, gamma_z=0)),
    "FedNestBilevel": (SERIES, dict(alpha=0, beta=0)),
    "LFedNestBilevel": (SERIES, dict(alpha=0, beta=0)),
    "ProxSkipVIPFL": (dict(gamma=0.01, p=0.4), dict(gamma=TINY)),
    "ProxSkipLSVRGDAFL": (dict(gamma=0.01, p=0.4, q=0.3, large_batch=4), dict(gamma=TINY)),
    "MASHA1": (dict(gamma=0.01, tau=0.5, compression=HALF, server_compression=HALF), dict(gamma=0)),
    "MASHA2": (dict(gamma=0.01, tau=0.5, compression=TOP, server_compression=HALF), dict(gamma=0)),
}


def sentences(data_dir=None) -> Texts:
    """Return twelve sentences, positive if the first word is "good"."""
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
    "AffineShift": dict(clients=3, dataset="digits", model="linear", diagonal=True),
    "FairClassification": dict(clients=3, dataset="digits", model="linear"),
    "GroupParity": dict(clients=3, dataset="two-groups", model="linear", groups="group"),
    "Classification": dict(clients=3, dataset="digits", model="linear"),
    "AdversarialTraining": dict(clients=3, dataset="digits", model="linear", steps=2, test_steps=2),
    "ClientMixture": dict(clients=3, dataset="digits", model="linear", rho=0.1),
    "QuadraticMixture": dict(clients=4, d=3, rho=0.5),
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
    "MatrixGame": dict(clients=3, dx=3, dy=2, heterogeneity=0.5, start="random"),
    "QuadraticNCPL": dict(clients=3),
    "TwoSidedPL": dict(clients=3),
    "FiniteMax": dict(clients=3, d=4),
    "SoftplusSaddle": dict(clients=3, dx=3, dy=2, samples=4),
    "MSPBE": dict(clients=3, d=3, states=8, samples=12),
    "QuadraticBilevel": dict(clients=3),
    "DataCleaning": dict(clients=3, dataset="digits", model="linear"),
    "OneWayPAUC": dict(clients=3, dataset="digits", model="linear", imbalance=0.1),
    "TwoWayPAUC": dict(clients=3, dataset="digits", model="linear", imbalance=0.1),
}
#: Problems with a convex part φ, which only composite methods accept.
COMPOSITE = {"L1BoxBilinear", "MatrixGame"}
#: Problems with sets, which methods that do not project refuse.
CONSTRAINED = {"RobustRegression", "FairClassification", "FiniteMax", "TwoWayPAUC", "GroupParity"}


def method(name: str, **changes):
    """Return a method with its small settings, except for the changes."""
    return build(ALGORITHMS[name], METHODS[name][0] | changes, name)


def problem(name: str):
    """Return a problem with its small settings."""
    return build(PROBLEMS[name], dict(SETTINGS[name]), name)


def fits(method_name: str, problem_name: str) -> bool:
    """Return whether the method runs on the problem."""
    ours, theirs = ALGORITHMS[method_name].family, PROBLEMS[problem_name].family
    if problem_name in COMPOSITE and not ALGORITHMS[method_name].composite:
        return False
    if ALGORITHMS[method_name].mixture and not getattr(PROBLEMS[problem_name], "mixture", False):
        return False
    if PROBLEMS[problem_name].separate_coordinates and ALGORITHMS[method_name].projects != "server":
        return False
    if ours == "minimisation":
        return issubclass(PROBLEMS[problem_name], Minimisation)
    return ours == theirs or (ours, theirs) == ("operator", "minimax")


FITTING = [
    (one, other)
    for one in METHODS
    for other in PROBLEMS
    if fits(one, other) and (ALGORITHMS[one].constrained or other not in CONSTRAINED)
]


def pairs(number: int, name: str) -> list[tuple[str, str]]:
    """Return pairs of a method and every third of its problems; ``number`` is the index of the method."""
    fitting = [pair for pair in FITTING if pair[0] == name]
    return fitting[(number + 1) % 3 :: 3] or fitting


#: With every method and every problem.
PAIRS = [pair for number, name in enumerate(METHODS) for pair in pairs(number, name)]
