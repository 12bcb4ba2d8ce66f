"""The registry of theorems, and the step sizes and bounds that they give for numerical constants."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mpifed.base.settings import is_number, suggest

__all__ = ["THEOREMS", "Prescription", "Theorem", "over", "prescribe", "theorem"]


@dataclass(frozen=True)
class Prescription:
    """The settings that a theorem prescribes, and its bound.

    Attributes:
        steps: hyperparameters of the method by their names in job files: numbers, or tables of schedules such
            as ``{"name": "power", ...}``.
        bound: upper bound of the quantity ``of``. ``None`` if the source states an order without constants;
            then ``steps`` follow its rule with all unknown constants equal to 1.
        of: description of the bounded quantity.
    """

    steps: dict[str, Any]
    bound: float | None
    of: str


@dataclass(frozen=True, eq=False)
class Theorem:
    """A theorem as a function of its constants, registered in :data:`THEOREMS`.

    Attributes:
        name: paper and number, such as "wang-kale-2".
        methods: names of the methods in job files.
        of: description of the bounded quantity.
        metric: name of the problems' metric for this quantity, or "".
        letters: letters of the source for quantities of a run, such as ``{"M": "clients"}``.
        without: options of the method that the theorem is not about.
        statement: function of the constants that returns (steps, bound).
    """

    name: str
    methods: tuple[str, ...]
    of: str
    metric: str
    letters: Mapping[str, str]
    without: tuple[str, ...]
    statement: Callable[..., tuple[dict[str, Any], float | None]]

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return self.statement.__doc__ or ""

    @property
    def constants(self) -> dict[str, bool]:
        """Names of the constants, and whether each of them is required."""
        parameters = inspect.signature(self.statement).parameters.values()
        return {p.name: p.default is inspect.Parameter.empty for p in parameters}

    def __call__(self, *values: float, **constants: float) -> Prescription:
        """Return the prescription for the given constants.

        Raises:
            ValueError: a constant is missing, unknown or out of range, or the theorem does not apply.
        """
        given = dict(zip(self.constants, values)) | constants
        self._check(given)
        try:
            steps, bound = self.statement(**given)
        except (ZeroDivisionError, OverflowError) as error:
            raise ValueError(f"{self.name} does not apply to these constants: {error}") from None
        return Prescription(steps, bound, self.of)

    def _check(self, given: Mapping[str, float]) -> None:
        for name, value in given.items():
            if name not in self.constants:
                raise ValueError(f"{self.name} has no constant {name!r}: {suggest(name, self.constants)}")
            if not is_number(value) or not math.isfinite(value) or value < 0:
                raise ValueError(f"{self.name}: {name}: expected a finite number >= 0, got {value!r}")
        missing = [name for name, required in self.constants.items() if required and name not in given]
        if missing:
            raise ValueError(f"{self.name} needs {', '.join(missing)}, got {', '.join(given) or 'nothing'}")


#: Every theorem by name.
THEOREMS: dict[str, Theorem] = {}


def theorem(
    name: str,
    *methods: str,
    of: str,
    metric: str = "",
    letters: Mapping[str, str],
    without: tuple[str, ...] = (),
) -> Callable[[Callable], Theorem]:
    """Register a function of constants that returns (steps, bound) as a theorem."""

    def register(statement: Callable) -> Theorem:
        THEOREMS[name] = Theorem(name, methods, of, metric, letters, without, statement)
        return THEOREMS[name]

    return register


def prescribe(name: str, **constants: float) -> Prescription:
    """Return the prescription of the theorem ``name``.

    Raises:
        ValueError: there is no such theorem, or see :meth:`Theorem.__call__`.
    """
    if name not in THEOREMS:
        raise ValueError(f"unknown theorem {name!r}: {suggest(name, THEOREMS)}")
    return THEOREMS[name](**constants)


def over(value: float, divisor: float) -> float:
    """Return value / divisor, or infinity for divisor 0: a condition that does not limit a step size."""
    return value / divisor if divisor else math.inf
