"""Metrics that a user writes as functions: ``metrics = ["./my_metrics.py:calibration"]``."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection
from typing import Annotated, Any

from pydantic import BeforeValidator, InstanceOf

from mpifed.base.errors import ConfigError, short_repr
from mpifed.base.plugins import UserObject, digest_of, place_of

__all__ = ["Metric", "MetricSetting"]


class Metric(UserObject):
    """A function of ``(scores, labels)`` of held-out samples, or of the ``point``.

    It returns a number, recorded under the function's name, or a dictionary of numbers by name. Less is
    better, unless its attribute ``maximise`` is true, or has the name.
    """

    kind = "a function of (scores, labels) or of (point)"

    @classmethod
    def fits(cls, value: Any) -> bool:
        return callable(value) and not isinstance(value, type) and _taken(value) in (1, 2)

    @classmethod
    def _expect(cls, given: Any, settings: dict[str, Any], what: str) -> None:
        """What the function is given is the package's."""
        if settings:
            raise ConfigError(f"{what} has no settings, got {short_repr(settings)}")

    @classmethod
    def _of_instance(cls, value: Any) -> Metric | None:
        if not cls.fits(value) or not hasattr(value, "__qualname__"):
            return None
        digest, place = digest_of(value.__module__), place_of(sys.modules[value.__module__])
        return cls(f"{place}:{value.__qualname__}", digest, {}, value)

    @property
    def title(self) -> str:
        """What a number that it returns is recorded as."""
        return self.name.rpartition(":")[2].rpartition(".")[2]

    @property
    def of_scores(self) -> bool:
        """Whether it is given scores and labels, and not the point."""
        return _taken(self.given) == 2

    @property
    def maximised(self) -> Collection[str]:
        """Of which of its numbers more is better."""
        said = getattr(self.given, "maximise", False)
        return [self.title] if said is True else said or []


def _taken(function: Any) -> int:
    """The number of required arguments of a function; 0 if it is unknown."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0
    return sum(
        one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
        for one in parameters
    )


def _resolved(value: Any) -> Metric:
    found = Metric.of(value, "metric")
    if not isinstance(found, Metric):
        raise ValueError(
            f'expected "./file.py:name" of {Metric.kind}, or the function, got {short_repr(value)}'
        )
    return found


#: A metric by the name of its function, or the function.
MetricSetting = Annotated[InstanceOf[Metric], BeforeValidator(_resolved)]
