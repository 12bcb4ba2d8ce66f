"""The console on which tables of rich are printed, without control characters in their text."""

from __future__ import annotations

from collections.abc import Iterable

import rich.console
from rich.segment import Segment

from mpifed.base.log import escape_control

__all__ = ["Console"]


class Console(rich.console.Console):
    """A console of rich that escapes control characters of the printed text."""

    def render(self, renderable, options=None) -> Iterable[Segment]:
        """Yield the segments with escaped text."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else escape_control(text), style, control)
