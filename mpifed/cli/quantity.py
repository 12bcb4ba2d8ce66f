"""The type of options that are times, sizes and rates."""

from __future__ import annotations

import click

from mpifed.core.units import Kind, plain

__all__ = ["Quantity"]


class Quantity(click.ParamType):
    """A positive number of the kind's unit, or a text with a unit; ``least`` and ``most`` are included."""

    def __init__(self, kind: Kind, least: float = 0.0, most: float = float("inf")):
        self.kind, self.least, self.most = kind, least, most
        self.name = kind.words.removeprefix("a ")

    def convert(self, value, param, ctx) -> float:
        try:
            number = float(value)
        except ValueError:
            try:
                number = plain(value, self.kind)
            except ValueError as error:
                self.fail(str(error), param, ctx)
        if not 0 < number < float("inf") or not self.least <= number <= self.most:
            bounds = f"{self.least:g} to {self.most:g}" if self.least else "more than 0"
            self.fail(f"expected {bounds} {self.kind.unit}, got {value!r}", param, ctx)
        return number
