"""Where tables and lines of rich are printed: like :func:`mpifed.base.log.visible` of all their text."""

from __future__ import annotations

from collections.abc import Iterable

import rich.console
from rich.segment import Segment

from mpifed.base.log import visible

__all__ = ["Console"]


class Console(rich.console.Console):
    """A console of rich that sends a terminal no control characters but its own."""

    def render(self, renderable, options=None) -> Iterable[Segment]:
        """Segments with control characters of their text escaped."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else visible(text), style, control)
