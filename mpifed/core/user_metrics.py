"""User-defined metrics: ``metrics = ["./my_metrics.py:calibration"]`` in a job file.

They are not in :mod:`mpifed.core.metrics`, which ``mpifed status`` imports without pydantic.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any

from mpifed.base.errors import ConfigError, short_repr
from mpifed.base.plugins import UserObject
from mpifed.base.settings import choice
from mpifed.core.ranking import METRICS

__all__ = ["Metric", "MetricSetting"]


class Metric(UserObject):
    """A user-defined function of ``(scores, labels)`` of held-out samples, or of the ``point``.

    It returns a number, which is recorded under the function's name, or a dictionary of numbers by name.
    Metrics are minimised unless the function's attribute ``maximise`` is ``True``, for a single number, or
    contains the metric's name in the dictionary.

    Raises:
        ConfigError: ``maximise`` is neither a boolean nor names.
    """

    expected = "a function of (scores, labels) or of (point)"

    def __init__(self, name: str, digest: str, settings: dict[str, Any], given: Any):
        super().__init__(name, digest, settings, given)
        maximise = getattr(given, "maximise", False)
        if isinstance(maximise, bool):
            maximise = [self.title] if maximise else []
        names = [maximise] if isinstance(maximise, str) else maximise
        if not (isinstance(names, Collection) and all(isinstance(name, str) for name in names)):
            raise ConfigError(
                f"the metric {self.title}: expected {self.title}.maximise to be True, or a set of names of "
                f"metrics, got {short_repr(maximise)}"
            )
        #: Names of the metrics to maximise.
        self.maximised: Collection[str] = names

    @classmethod
    def fits(cls, value: Any) -> bool:
        return callable(value) and not isinstance(value, type) and _required(value) in (1, 2)

    @classmethod
    def _expect(cls, given: Any, settings: dict[str, Any], what: str) -> None:
        if settings:
            raise ConfigError(f"{what} has no settings, got {short_repr(settings)}")

    @classmethod
    def _from_instance(cls, value: Any) -> UserObject | None:
        return cls._from_function(value) if cls.fits(value) and hasattr(value, "__qualname__") else None

    @property
    def title(self) -> str:
        """Name under which a single number is recorded."""
        return self.name.rpartition(":")[2].rpartition(".")[2]

    @property
    def of_scores(self) -> bool:
        """Whether the function takes (scores, labels); otherwise it takes the point."""
        return _required(self.given) == 2


def _required(function: Any) -> int:
    """Return the number of required positional arguments; 0 if the signature is unknown."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0
    return sum(
        p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters
    )


#: A metric of the package by name, a user-defined one by the name of its function, or the function.
MetricSetting = choice("metric", METRICS, Metric)
