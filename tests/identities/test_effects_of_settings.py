"""Every accepted setting of a method or a problem changes runs: settings without effect are refused."""

import typing

import pytest
import torch
from everything import FITTING, METHODS, SETTINGS, problem

import mpifed
from mpifed import ConfigError
from mpifed.algorithms import ALGORITHMS
from mpifed.base.settings import Options, build, default_of, settings_of
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.problems import PROBLEMS
from mpifed.simulation.simulation import NonFiniteError

#: Family → a small problem, with sets or a convex part, and with several parameters per block if possible.
SMALL = {
    "minimax": "FairClassification",
    "operator": "MatrixGame",
    "minimisation": "Classification",
    "composition": "LinearMAML",
    "bilevel": "QuadraticBilevel",
}


#: (Method, setting) → why a value has no effect on the small runs, although the setting has one elsewhere.
#: With a third entry: why it has none without that setting, or that setting has none next to it.
ELSEWHERE = {
    ("FedMuonDA", "orthogonalize"): "auto is svd on CPUs",
    ("FedMuonDA", "iterations"): "auto uses them on GPUs",
    ("LocalDualExtrapolation", "t0_mirror"): "the starting point is in the set",
    ("LocalDualExtrapolation", "mirror"): "all mirror maps of blockwise are Euclidean by default",
    ("FedDualAvg", "mirror"): "likewise",
    ("FeDualEx", "mirror"): "likewise",
    ("FeDualEx", "shadow"): "where no point leaves the set, both averages are the same",
    ("MASHA1", "tau"): "the reference point changes in each round for both probabilities",
    ("MASHA2", "tau"): "likewise",
    ("FedExP", "epsilon"): "the server's step size is 1, its lower bound",
    ("FedExP", "epsilon_scaled"): "likewise",
    ("Bi2Clip", "u_g"): "displacements are shorter",
    ("FedNova", "tau", "rho"): "one local step",
    ("FedNormSGDA", "tau", "a"): "likewise",
    ("FESSGDA", "eta_xg", "p"): "x hardly moves",
    ("SimFBO", "radius"): "z is inside of the ball",
    ("ShroFBO", "radius"): "likewise",
    ("SimFBO", "normalized"): "all clients take the same number of steps",
    ("ProxSkipLSVRGDAFL", "q"): "the random numbers are on the same side of both probabilities",
    ("ProxSkipLSVRGDAFL", "large_batch"): "clients have one row",
}


#: The same for (problem, setting).
ELSEWHERE_OF_PROBLEMS = {
    ("AffineGame", "shared_jacobian"): "clients are equal without heterogeneity",
    ("Bilinear", "shared_jacobian"): "likewise",
    ("QuadraticNCPL", "shared_hessian"): "likewise",
    ("RobustRegression", "radius"): "y is inside of the ball",
    ("GroupParity", "bound"): "y is inside of the larger set",
    ("AdversarialTraining", "steps"): "the gradients of a linear network have constant signs",
    ("DeepAUC", "hinge"): "α is inside of its set",
    ("TextAUC", "hinge"): "likewise",
    ("TextAUC", "p"): "all clients have the same share of positives",
    ("FewShotMAML", "shots"): "the small network is constant",
    ("FewShotMAML", "eta"): "likewise",
    ("FewShotMAML", "tests"): "likewise",
    ("FewShotMAML", "samples"): "likewise",
}
#: Settings with tests of their own for each value.
CHOICES = ("dataset", "model", "augmentation", "partition", "phi")


#: Method → settings with which y leaves its set between two projections.
LARGER_STEPS = dict.fromkeys(("FGDA", "AdaFGDA"), {"lam": 0.1, "eta": 0.3})


def problem_of(method):
    """Return a small problem on which the method runs."""
    if method.mixture:
        return problem("QuadraticMixture")
    name = SMALL["minimisation" if method.__name__ == "STEM" else method.family]
    if method.family == "operator" and not method.composite:
        name = "AffineGame"
    elif method.family == "minimax" and not method.constrained:
        name = "QuadraticNCPL"
    return problem(name)


def outcome(name: str, settings: dict, problem=None) -> list:
    """Return the records of the server, the output, the costs and the metrics after some rounds."""
    method = build(ALGORITHMS[name], settings, name)
    simulation = mpifed.Simulation(
        problem or problem_of(ALGORITHMS[name]), method, comm=SerialComm(),
        oracle={"batch_size": 4, "noise": {"name": "gaussian", "scale": 0.1}},
        participation={"cohort": 2} if method.partial_participation else {},
    )  # fmt: skip
    simulation.start()
    for _ in range(3):
        simulation.step()
    costs = simulation.rounds.costs
    counts = [costs.phases, costs.oracle_calls, costs.bytes_up, costs.bytes_down]
    metrics = simulation.evaluate(simulation.output) if problem else {}
    return [simulation.shared.buffer.clone(), simulation.output.buffer.clone(), [*counts, repr(metrics)]]


def alternatives(annotation) -> list:
    """Return values of a setting by its type: all names, or a number."""
    if hasattr(annotation, "__value__"):
        return alternatives(annotation.__value__)
    if typing.get_origin(annotation) is typing.Annotated:
        choices = [one for one in typing.get_args(annotation)[1:] if isinstance(one, Options)]
        names = [name for one in choices for name in (*one.classes, *one.names)]
        numbers = [0.037] if any(one.number for one in choices) else []
        return [*names, *numbers] if choices else alternatives(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) is typing.Literal:
        return [*typing.get_args(annotation)]
    if parts := typing.get_args(annotation):
        return [other for part in parts for other in alternatives(part)]
    return {bool: [True, False], int: [3, 1], float: [0.31]}.get(annotation, [])


def without(settings: dict, name: str) -> dict:
    return {setting: value for setting, value in settings.items() if setting != name}


def is_same(one: list, other: list) -> bool:
    """Return whether two outcomes are equal up to rounding: a few units of the last place of float32, as
    processors round differently."""
    tensors = all(
        a.shape == b.shape and torch.allclose(a, b, rtol=1e-6, atol=1e-6, equal_nan=True)
        for a, b in zip(one[:2], other[:2])
    )
    return tensors and one[2] == other[2]


def accepted(name: str, settings: dict) -> list | None:
    """Return the outcome, ``None`` if the settings are refused."""
    try:
        return outcome(name, settings)
    except (ConfigError, ValueError):
        return None


@pytest.mark.parametrize("name", METHODS)
def test_every_accepted_setting_of_a_method_has_an_effect(name):
    """Also without each of the other settings that have defaults, and these next to the setting."""
    base = METHODS[name][0] | LARGER_STEPS.get(name, {})
    fields, tried = settings_of(ALGORITHMS[name]), 0
    others = [
        other for other, value in METHODS[name][0].items()
        if default_of(fields[other]) not in (value, base[other])
    ]  # fmt: skip
    before = {other: accepted(name, without(base, other)) for other in ("", *others)}
    for setting, field in fields.items():
        default = default_of(field)
        for value in alternatives(field.annotation):
            if value in (base.get(setting, default), getattr(default, "choice_name", None)):
                continue
            changed = base | {setting: value}
            if (after := accepted(name, changed)) is None:
                continue
            tried += 1
            if (name, setting) not in ELSEWHERE:
                assert not is_same(before[""], after), f"{setting} = {value} has no effect"
            for other in others:
                rest = accepted(name, without(changed, other)) if other != setting else None
                if rest is None or (name, setting, other) in ELSEWHERE:
                    continue
                if before[other] and (name, setting) not in ELSEWHERE:
                    assert not is_same(before[other], rest), f"{setting} has no effect without {other}"
                if (name, other) not in ELSEWHERE:
                    assert not is_same(after, rest), f"{other} has no effect with {setting} = {value}"
    assert tried


@pytest.mark.parametrize("name", SETTINGS)
def test_every_accepted_setting_of_a_problem_has_an_effect(name):
    fitting = [method for method, other in FITTING if other == name]
    method = next(
        (one for one in ("FedAvg", "FSGDA", "LSGD", "ComFedL", "SimFBO") if one in fitting), fitting[0]
    )

    def after(settings):
        return outcome(method, METHODS[method][0], build(PROBLEMS[name], SETTINGS[name] | settings, name))

    before, tried = after({}), 0
    for setting, field in settings_of(PROBLEMS[name]).items():
        if setting in CHOICES or (name, setting) in ELSEWHERE_OF_PROBLEMS:
            continue
        for value in alternatives(field.annotation):
            if value == SETTINGS[name].get(setting, default_of(field)):
                continue
            try:
                found = after({setting: value})
            except (ConfigError, CollectiveError, NonFiniteError, ValueError):
                continue
            tried += 1
            assert not is_same(before, found), f"{setting} = {value} has no effect"
    assert tried
