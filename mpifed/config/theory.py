"""What a theorem says, filled into a job: ``eta = { name = "theorem", of = "wang-kale-2", D = 10 }``.

The constants of the theorem are looked for in the setting's table, in the job's [theory], among what the job
fixes (clients, cohort, rounds, local steps, the method's own settings, the noise), and last in what the
problem knows of itself. A job has one theorem: [theory] keeps its name and all of its constants, so that the
same job can be made again, and its bound drawn. Its ``times`` are the settings that were filled in, and the
multiples of the theorem's steps that they are.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

from mpifed.base.errors import ConfigError, short_repr
from mpifed.base.plugins import guarded
from mpifed.base.settings import Preset, flatten, suggest
from mpifed.core.algorithm import Algorithm
from mpifed.core.noise import Gaussian, StudentT
from mpifed.core.problem import Problem
from mpifed.theory import THEOREMS, Prescription, Theorem, prescribe

__all__ = ["fill", "prescription_of", "told"]


def fill(
    method: type[Algorithm] | Preset, own: dict[str, Any], table: dict[str, Any], problem: Problem
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """A method's settings with what a theorem says in the places that name it, and the [theory] in full.

    Args:
        own: the method's settings, without its name; ``table``: the job's other sections.

    Raises:
        ConfigError: no such theorem, one of another method, or a constant that nothing tells.
    """
    asked = {key: _asked(value) for key, value in own.items() if _is_theorem(value)}
    said = table.get("theory")
    if said is not None and not isinstance(said, dict):
        raise ConfigError(f"[theory] is a table with the name of a theorem, of = ..., got {short_repr(said)}")
    if not asked and said is None:
        return own, None
    said = dict(said or {})
    before = said.pop("times", {})
    if not isinstance(before, dict):
        raise ConfigError(f"theory.times is a table of settings and multiples, got {short_repr(before)}")
    times = {key: one.pop("times", 1) for key, one in asked.items()}
    given = _merged([said, *asked.values()])
    theorem = _theorem(given.pop("of", None), method)
    plain = {key: value for key, value in own.items() if key not in asked}
    constants = _constants(theorem, given, _known(method, plain, table), lambda: _measured(table, problem))
    prescription = _prescribe(theorem.name, constants)
    filled = {key: _scaled(key, prescription, times[key], theorem) for key in asked}
    for key, often in before.items():  # filled in before, and not changed since
        value = plain.get(key)
        if isinstance(value, dict) or (
            value is not None and value == _scaled(key, prescription, often, theorem)
        ):
            times[key] = often
    return plain | filled, {"of": theorem.name, **constants} | ({"times": times} if times else {})


def prescription_of(theory: Mapping[str, Any] | None) -> tuple[Theorem, Prescription] | None:
    """The theorem of a complete [theory], and what it says; ``None`` without one.

    Raises:
        ConfigError: the theorem is not known, or a constant is lacking or wrong.
    """
    if theory is None:
        return None
    constants = {key: value for key, value in theory.items() if key not in ("of", "times")}
    return _named(theory.get("of")), _prescribe(_named(theory.get("of")).name, constants)


def told(theorem: Theorem, said: Prescription) -> str:
    """A theorem's steps and bound as a sentence."""
    numbers = {key: value for key, value in flatten(said.steps).items() if isinstance(value, int | float)}
    steps = ", ".join(f"{key} = {value:.4g}" for key, value in numbers.items())
    bound = "" if said.bound is None else f"; {said.of} is at most {said.bound:.4g}"
    return f"{theorem.name} prescribes {steps}{bound}"


def _is_theorem(value) -> bool:
    return value == "theorem" or (isinstance(value, dict) and value.get("name") == "theorem")


def _asked(value) -> dict[str, Any]:
    return {key: one for key, one in value.items() if key != "name"} if isinstance(value, dict) else {}


def _merged(tables: list[dict[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for key, value in (item for table in tables for item in table.items()):
        if merged.setdefault(key, value) != value:
            raise ConfigError(
                f"a job has one theorem: {key} = {short_repr(merged[key])} and {short_repr(value)}"
            )
    return merged


def _named(name) -> Theorem:
    if not isinstance(name, str) or name not in THEOREMS:
        near = suggest(name if isinstance(name, str) else "", THEOREMS)
        raise ConfigError(f"theory.of: unknown theorem {short_repr(name)}: {near}")
    return THEOREMS[name]


def _theorem(name, method: type[Algorithm] | Preset) -> Theorem:
    mine = [one for one, other in THEOREMS.items() if method.__name__ in other.methods]
    if name is None and mine:
        raise ConfigError(
            f'a step of the theorem needs to know which: theory.of is missing, e.g. theory.of = "{mine[0]}" '
            f"(about {method.__name__}: {', '.join(mine)})"
        )
    theorem = _named(name)
    if method.__name__ not in theorem.methods:
        raise ConfigError(
            f"theory.of: {theorem.name} is about {', '.join(theorem.methods)}, not {method.__name__}"
            + (f", of which there are {', '.join(mine)}" if mine else "")
        )
    return theorem


def _known(method: type[Algorithm] | Preset, own: dict, table: dict) -> dict[str, float]:
    """What a job fixes: the method's numbers by their names, and counts by the words of ``letters``."""
    fields = {name: one.default for name, one in getattr(method, "__dataclass_fields__", {}).items()}
    numbers = {name: getattr(default, "default", default) for name, default in fields.items()} | own
    known = {name: value for name, value in numbers.items() if _is_number(value)}
    rounds, participation = table.get("rounds", 100), table.get("participation")
    steps = known.get(method.steps, 1)
    cohort = participation.get("cohort") if isinstance(participation, dict) else None
    counts = {"rounds": rounds, "local_steps": steps, "cohort": cohort}
    if _is_number(rounds):
        counts["steps"] = rounds * steps
    return known | {word: value for word, value in counts.items() if _is_number(value)}


def _measured(table: dict, problem: Problem) -> dict[str, float]:
    """What a problem knows of itself once it is prepared, with the noise that the oracle adds to it."""
    counts = dict.fromkeys(("clients", "cohort"), problem.clients)
    if type(problem).constants is Problem.constants:
        return counts
    prepared, run = copy.deepcopy(problem), table.get("run")
    seed, data_dir = table.get("seed", 0), run.get("data_dir") if isinstance(run, dict) else None

    def ask() -> dict[str, float]:
        prepared.prepare(seed if isinstance(seed, int) else 0, data_dir)
        return prepared.constants()

    found = counts | guarded(f"{type(problem).__name__} does not tell its constants", ask)
    if "sigma" in found:
        oracle = table.get("oracle")
        size = sum(prepared.variables().sizes.values())
        added = _deviation(oracle.get("noise") if isinstance(oracle, dict) else None, size)
        if added is None:
            del found["sigma"]
        else:
            found["sigma"] = math.hypot(found["sigma"], added)
    return found


def _deviation(noise, size: int) -> float | None:
    """√E‖noise‖² of the oracle's noise; ``None`` where it is infinite, or the law has to be named."""
    if noise is None:
        return 0.0
    settings = dict(noise) if isinstance(noise, dict) else {}
    name, scale = settings.get("name"), settings.get("scale", 1.0)
    if isinstance(noise, Gaussian) or name == "gaussian":
        return float(scale if settings else noise.scale) * size**0.5
    nu = settings.get("nu", getattr(noise, "nu", 0.0))
    if (isinstance(noise, StudentT) or name == "student_t") and nu > 2:
        return float(scale if settings else noise.scale) * (nu / (nu - 2) * size) ** 0.5
    return None


def _constants(
    theorem: Theorem, given: dict, known: dict[str, float], measure: Callable[[], dict[str, float]]
) -> dict[str, float]:
    """The constants of a theorem that are given, and those that it needs and that are known.

    The problem is asked where the rest leaves one open.
    """
    unknown = [name for name in given if name not in theorem.constants]
    if unknown:
        near = suggest(unknown[0], theorem.constants)
        raise ConfigError(f"{theorem.name} has no constant {short_repr(unknown[0])}: {near}")
    words = {name: theorem.letters.get(name, name) for name, needed in theorem.constants.items() if needed}
    found = {name: known[word] for name, word in words.items() if word in known} | given
    if words.keys() - found.keys():
        measured = measure()
        found = {name: measured[word] for name, word in words.items() if word in measured} | found
    lacking = [name for name in words if name not in found]
    if lacking:
        raise ConfigError(
            f"{theorem.name} needs {', '.join(lacking)}, which neither the job nor the problem tells: give "
            f"it, e.g. theory.{lacking[0]} = 1.0"
        )
    return {name: found[name] for name in theorem.constants if name in found}


def _prescribe(name: str, constants: dict) -> Prescription:
    try:
        return prescribe(name, **constants)
    except ValueError as error:
        raise ConfigError(f"theory: {error}") from None


def _scaled(key: str, prescription: Prescription, times, theorem: Theorem):
    if key not in prescription.steps:
        raise ConfigError(
            f"{theorem.name} says nothing of {short_repr(key)}: {suggest(key, prescription.steps)}"
        )
    value = prescription.steps[key]
    if times == 1:
        return value
    if not _is_number(times) or times <= 0 or not _is_number(value):
        raise ConfigError(
            f"algorithm.{key}.times: expected a number > 0, on a step that is a number, got "
            f"{short_repr(times)}"
        )
    return value * times


def _is_number(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
