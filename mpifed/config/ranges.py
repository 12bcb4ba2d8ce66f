"""Where an open setting may lie: a range of numbers, or a list of values."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

__all__ = ["Choice", "Range", "is_number"]

#: The part of a range, in the logarithm, that counts as its end.
END = 0.1
#: Significant digits of a value that is proposed: folders and files stay readable.
DIGITS = 3


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, uniform in the logarithm.

    Attributes:
        whole: whole numbers.
        forgets: the setting is 1 minus the number: a decay.
        least, most: bounds of what the setting may be, which no search passes.
    """

    low: float
    high: float
    whole: bool = False
    forgets: bool = False
    least: float = 0.0
    most: float = math.inf

    def at(self, share: float) -> float:
        """The number a ``share`` of the way from ``low`` to ``high``, to some digits."""
        return self.rounded(math.exp(math.log(self.low) + share * math.log(self.high / self.low)))

    def rounded(self, number: float) -> float:
        """The nearest number that is proposed."""
        near = round(number) if self.whole else float(f"{number:.{DIGITS}g}")
        return min(max(near, self.low), self.high)

    def value(self, number: float) -> float:
        """The setting that the number stands for."""
        return round(1 - number, 12) if self.forgets else number

    def beyond(self, number: float) -> Range | None:
        """The decade past the end that ``number`` lies at; ``None`` in the middle and at a bound."""
        if self.whole:  # what rounds cost depends on whole numbers: their range is the user's
            return None
        share = math.log(number / self.low) / math.log(self.high / self.low)
        if share >= 1 - END and self.high < self.most:
            return dataclasses.replace(self, low=self.high, high=min(10 * self.high, self.most))
        if share <= END and self.low > self.least:
            return dataclasses.replace(self, low=max(self.low / 10, self.least), high=self.low)
        return None

    def with_(self, more: Range) -> Range:
        """The range that holds both."""
        return dataclasses.replace(self, low=min(self.low, more.low), high=max(self.high, more.high))

    def within(self, low: float, high: float) -> Range:
        """The part of the range between two numbers."""
        return dataclasses.replace(self, low=max(self.low, low), high=min(self.high, high))

    def __str__(self) -> str:
        low, high = sorted(map(self.value, (self.low, self.high)))
        return f"{low:.12g} to {high:.12g}"


@dataclass(frozen=True)
class Choice:
    """One of some values; ``ordered`` are numbers that grow."""

    values: tuple[Any, ...]

    @property
    def ordered(self) -> bool:
        """Whether neighbours in the list are like each other."""
        numbers = all(is_number(value) for value in self.values)
        return numbers and list(self.values) == sorted(self.values)

    def __str__(self) -> str:
        return f"one of {', '.join(map(str, self.values))}"


def is_number(value) -> bool:
    """Whether a value of a job file is a number; a truth value is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)
