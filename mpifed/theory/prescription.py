"""Prescriptions and bounds of theorems in numbers, and the theorems by name."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["THEOREMS", "Prescription", "Theorem", "over", "prescribe", "theorem"]


@dataclass(frozen=True)
class Prescription:
    """The settings that a theorem prescribes, and its bound.

    Attributes:
        steps: the method's hyperparameters by the names that job files give them: numbers, or tables of a
            schedule such as ``{"name": "power", ...}``.
        bound: on the figure that the theorem is ``of``; ``None`` where the source states an order without
            constants, so that ``steps`` are its rule with every unknown constant 1.
        of: the bounded quantity, in words.
    """

    steps: dict[str, Any]
    bound: float | None
    of: str


@dataclass(frozen=True, eq=False)
class Theorem:
    """A theorem as a function of its constants; :data:`THEOREMS` has them by name.

    Attributes:
        name: paper and number, such as "wang-kale-2".
        methods: the methods that it is about, by the names of job files.
        of: the bounded quantity, in words.
        metric: the problems' metric of that figure, "" where none is.
        letters: the source's letters for quantities of a run, such as ``{"M": "clients"}``.
    """

    name: str
    methods: tuple[str, ...]
    of: str
    metric: str
    letters: Mapping[str, str]
    statement: Callable[..., tuple[dict[str, Any], float | None]]

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return self.statement.__doc__ or ""

    @property
    def constants(self) -> dict[str, bool]:
        """The constants by name, and whether each has to be given."""
        parameters = inspect.signature(self.statement).parameters.values()
        return {one.name: one.default is inspect.Parameter.empty for one in parameters}

    def __call__(self, *values: float, **constants: float) -> Prescription:
        """The prescription for some constants.

        Raises:
            ValueError: a constant is lacking, unknown, no number or out of range, or the theorem says nothing
                for these.
        """
        given = dict(zip(self.constants, values)) | constants
        self._check(given)
        try:
            steps, bound = self.statement(**given)
        except (ZeroDivisionError, OverflowError) as error:
            raise ValueError(f"{self.name} says nothing for these constants: {error}") from None
        return Prescription(steps, bound, self.of)

    def _check(self, given: Mapping[str, float]) -> None:
        for name, value in given.items():
            if name not in self.constants:
                raise ValueError(f"{self.name} has no constant {name!r}: {_near(name, self.constants)}")
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not math.isfinite(value) or value < 0:
                raise ValueError(f"{self.name}: {name}: expected a finite number >= 0, got {value!r}")
        lacking = [name for name, needed in self.constants.items() if needed and name not in given]
        if lacking:
            raise ValueError(f"{self.name} needs {', '.join(lacking)}, got {', '.join(given) or 'nothing'}")


#: Every theorem by name.
THEOREMS: dict[str, Theorem] = {}


def theorem(
    name: str, *methods: str, of: str, metric: str = "", letters: Mapping[str, str]
) -> Callable[[Callable], Theorem]:
    """Decorator of a statement: a function of constants that returns (steps, bound)."""

    def register(statement: Callable) -> Theorem:
        THEOREMS[name] = Theorem(name, methods, of, metric, letters, statement)
        return THEOREMS[name]

    return register


def prescribe(name: str, **constants: float) -> Prescription:
    """The prescription of the theorem of this name.

    Raises:
        ValueError: there is no such theorem, or as for :meth:`Theorem.__call__`.
    """
    if name not in THEOREMS:
        raise ValueError(f"unknown theorem {name!r}: {_near(name, THEOREMS)}")
    return THEOREMS[name](**constants)


def over(value: float, divisor: float) -> float:
    """value / divisor; infinite for a divisor of 0, as a step size is that nothing bounds."""
    return value / divisor if divisor else math.inf


def _near(name: str, options: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(str(name)[:100].lower(), {one.lower(): one for one in options}, n=1)
    hint = f"did you mean {next(one for one in options if one.lower() == close[0])!r}? " if close else ""
    return f"{hint}(options: {', '.join(options)})"
