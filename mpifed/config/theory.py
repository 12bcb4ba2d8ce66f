"""Step sizes that a theorem determines: ``eta = { name = "theorem", of = "wang-kale-2", D = 10 }``.

A job names at most one theorem. Its constants are taken, in this order, from the setting's table and the
job's [theory], from the other settings (clients, cohort, rounds, local steps, hyperparameters, noise), and
from the problem. The resolved [theory] contains the name of the theorem and all constants, so that the same
job can be created again and the theorem's bound can be plotted. Its table ``times`` contains, for each
setting that the theorem determines, the factor by which the prescribed step size is multiplied.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mpifed.base.errors import ConfigError, short_repr
from mpifed.base.plugins import call_user_code, data_folder
from mpifed.base.settings import as_table, default_of, flatten, is_number, settings_of, suggest
from mpifed.core.algorithm import Algorithm
from mpifed.core.epochs import Epochs
from mpifed.core.noise import Gaussian, Noise, StudentT
from mpifed.core.problem import Problem
from mpifed.simulation.settings import SimulationSettings
from mpifed.theory import THEOREMS, Prescription, Theorem

__all__ = ["fill", "prescription_of", "summary"]


def fill(
    method: type[Algorithm], settings: dict[str, Any], table: dict[str, Any], problem: Problem
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Replace settings of a method that name a theorem by the step sizes that the theorem prescribes.

    Args:
        settings: the method's settings without its name.
        table: the job's other sections.

    Returns:
        The method's settings, and the resolved [theory], ``None`` without a theorem.

    Raises:
        ConfigError: the theorem is unknown, is about another method, or needs a constant that is not
            available.
    """
    from_theorem = {key: _settings_of(value) for key, value in settings.items() if _is_theorem(value)}
    theory = table.get("theory")
    if theory is not None and not isinstance(theory, dict):
        raise ConfigError(
            f"[theory]: expected a table with the name of a theorem, of = ..., got {short_repr(theory)}"
        )
    if not from_theorem and theory is None:
        return settings, None
    theory = dict(theory or {})
    stored_times = theory.pop("times", {})
    if not isinstance(stored_times, dict):
        raise ConfigError(
            f"theory.times: expected a table of settings and factors, got {short_repr(stored_times)}"
        )
    times = {key: reference.pop("times", 1) for key, reference in from_theorem.items()}
    given_constants = _merged([theory, *from_theorem.values()])
    theorem = _theorem_for(given_constants.pop("of", None), method)
    others = {key: value for key, value in settings.items() if key not in from_theorem}
    _expect_without(theorem, method, others)
    known = _known_from_job(method, others, table)
    constants = _constants(theorem, given_constants, known, lambda: _constants_of_problem(table, problem))
    prescription = _prescribe(theorem, constants)
    filled = {key: _scaled(key, prescription, times[key], theorem) for key in from_theorem}
    for key, multiple in stored_times.items():  # keep the entries of settings that have not changed since
        value = others.get(key)
        if isinstance(value, dict) or (
            value is not None and value == _scaled(key, prescription, multiple, theorem)
        ):
            times[key] = multiple
    return others | filled, {"of": theorem.name, **constants} | ({"times": times} if times else {})


def prescription_of(theory: Mapping[str, Any] | None) -> tuple[Theorem, Prescription] | None:
    """Return the theorem of a resolved [theory] and its prescription; ``None`` without a theorem.

    Raises:
        ConfigError: the theorem is unknown, or a constant is missing or wrong.
    """
    if theory is None:
        return None
    theorem = _theorem(theory.get("of"))
    constants = {key: value for key, value in theory.items() if key not in ("of", "times")}
    return theorem, _prescribe(theorem, constants)


def summary(theorem: Theorem, prescription: Prescription) -> str:
    """Return a sentence with a theorem's steps and bound."""
    steps = ", ".join(
        f"{key} = {value:.4g}"
        for key, value in flatten(prescription.steps).items()
        if isinstance(value, int | float)
    )
    bound = "" if prescription.bound is None else f"; {prescription.of} is at most {prescription.bound:.4g}"
    return f"{theorem.name} prescribes {steps}{bound}"


def _is_theorem(value) -> bool:
    return value == "theorem" or (isinstance(value, dict) and value.get("name") == "theorem")


def _settings_of(value) -> dict[str, Any]:
    return {key: entry for key, entry in value.items() if key != "name"} if isinstance(value, dict) else {}


def _merged(tables: list[dict[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for key, value in (item for table in tables for item in table.items()):
        if merged.setdefault(key, value) != value:
            raise ConfigError(
                f"expected one theorem per job, got two values of {key}: {short_repr(merged[key])} and "
                f"{short_repr(value)}"
            )
    return merged


def _theorem(name) -> Theorem:
    if not isinstance(name, str) or name not in THEOREMS:
        near = suggest(name if isinstance(name, str) else "", THEOREMS)
        raise ConfigError(f"theory.of: unknown theorem {short_repr(name)}: {near}")
    return THEOREMS[name]


def _theorem_for(name, method: type[Algorithm]) -> Theorem:
    available = [known for known, theorem in THEOREMS.items() if method.__name__ in theorem.methods]
    if name is None and available:
        raise ConfigError(
            f'theory.of is missing, e.g. theory.of = "{available[0]}" (about {method.__name__}: '
            f"{', '.join(available)})"
        )
    theorem = _theorem(name)
    if method.__name__ not in theorem.methods:
        raise ConfigError(
            f"theory.of: {theorem.name} is about {', '.join(theorem.methods)}, not {method.__name__}"
            + (f", whose theorems are {', '.join(available)}" if available else "")
        )
    return theorem


def _expect_without(theorem: Theorem, method: type[Algorithm], settings: Mapping[str, Any]) -> None:
    fields = settings_of(method)
    for name in theorem.without:
        if name in settings and settings[name] != default_of(fields[name]):
            raise ConfigError(
                f"algorithm.{name}: {theorem.name} is about {method.__name__} without {name}: leave "
                "it out, or set the step sizes without a theorem"
            )


def _known_from_job(method: type[Algorithm], settings: dict, table: dict) -> dict[str, float]:
    """Return the numeric hyperparameters, and counts such as "rounds" by the names in ``Theorem.letters``."""
    values = {name: default_of(field) for name, field in settings_of(method).items()} | settings
    known = {name: value for name, value in values.items() if is_number(value)}
    participation = table.get("participation")
    if isinstance(steps := values.get(method.steps), dict | Epochs):
        raise ConfigError(
            "theorems need the same number of local steps for all clients: expected an integer "
            f"algorithm.{method.steps}, got {short_repr(as_table(steps))}"
        )
    counts = {
        "rounds": table.get("rounds", SimulationSettings.model_fields["rounds"].default),
        "local_steps": known.get(method.steps, 1),
        "cohort": participation.get("cohort") if isinstance(participation, dict) else None,
    }
    known |= {name: count for name, count in counts.items() if is_number(count)}
    return known | ({"steps": known["rounds"] * known["local_steps"]} if "rounds" in known else {})


def _constants_of_problem(table: dict, problem: Problem) -> dict[str, float]:
    """Return the constants of the problem's data, computed on a copy, and the oracle's additional noise."""
    counts = dict.fromkeys(("clients", "cohort"), problem.clients)
    if type(problem).constants is Problem.constants:
        return counts
    prepared, run = copy.deepcopy(problem), table.get("run")
    seed, data_dir = table.get("seed", 0), run.get("data_dir") if isinstance(run, dict) else None

    def measure() -> dict[str, float]:
        prepared.prepare(seed if isinstance(seed, int) else 0, data_folder(type(problem), data_dir))
        return prepared.constants()

    name = type(problem).__name__
    constants = counts | call_user_code(f"the constants of {name} cannot be computed", measure)
    if "sigma" in constants:
        oracle = table.get("oracle")
        size = sum(prepared.variables().sizes.values())
        added = _noise_deviation(oracle.get("noise") if isinstance(oracle, dict) else None, size)
        if added is None:
            del constants["sigma"]
        else:
            constants["sigma"] = math.hypot(constants["sigma"], added)
    return constants


def _noise_deviation(noise, size: int) -> float | None:
    """Return √E‖noise‖² of the oracle's noise; ``None`` if it is infinite or unknown."""
    if noise is None:
        return 0.0
    try:
        noise = TypeAdapter(Noise).validate_python(noise)
    except ValidationError:  # reported with the other settings
        return None
    if isinstance(noise, Gaussian):
        return noise.scale * size**0.5
    if isinstance(noise, StudentT) and noise.nu > 2:
        return noise.scale * (noise.nu / (noise.nu - 2) * size) ** 0.5
    return None


def _constants(
    theorem: Theorem, given: dict, known: dict[str, float], measure: Callable[[], dict[str, float]]
) -> dict[str, float]:
    """Return the constants of a theorem that are given or known.

    Args:
        measure: function that returns the problem's constants; called if the others do not suffice.
    """
    unknown = [name for name in given if name not in theorem.constants]
    if unknown:
        near = suggest(unknown[0], theorem.constants)
        raise ConfigError(f"{theorem.name} has no constant {short_repr(unknown[0])}: {near}")
    words = {name: theorem.letters.get(name, name) for name, needed in theorem.constants.items() if needed}
    values = {name: known[word] for name, word in words.items() if word in known} | given
    if words.keys() - values.keys():
        measured = measure()
        values = {name: measured[word] for name, word in words.items() if word in measured} | values
    lacking = [name for name in words if name not in values]
    if lacking:
        raise ConfigError(
            f"{theorem.name} needs {', '.join(lacking)}, which neither the job nor the problem determines: "
            f"set e.g. theory.{lacking[0]} = 1.0"
        )
    return {name: values[name] for name in theorem.constants if name in values}


def _prescribe(theorem: Theorem, constants: dict) -> Prescription:
    try:
        return theorem(**constants)
    except ValueError as error:
        raise ConfigError(f"theory: {error}") from None


def _scaled(key: str, prescription: Prescription, times, theorem: Theorem):
    if key not in prescription.steps:
        near = suggest(key, prescription.steps)
        raise ConfigError(f"{theorem.name} does not prescribe {short_repr(key)}: {near}")
    value = prescription.steps[key]
    if times == 1:
        return value
    if not is_number(times) or times <= 0 or not is_number(value):
        raise ConfigError(
            f"algorithm.{key}.times: expected a number > 0, for a step that is a number, got "
            f"{short_repr(times)}"
        )
    return value * times
