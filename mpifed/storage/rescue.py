"""Other places for the files of a run whose folder has gone or cannot be written to any more."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from mpifed.storage.folder import Folder

__all__ = ["Rescue"]

#: Characters of the folder's name that name the new one.
NAMED = 40


class Rescue:
    """The folders made for the files of one run, as rank 0 sees them: beside its own, else in the working
    folder, else in the system's for temporary files.

    Attributes:
        place: the one that holds files, ``None`` before there is any.
    """

    def __init__(self, path: Path):
        own = Path(os.path.abspath(path))
        self.place: Path | None = None
        self._name, self._parents = own.name[:NAMED], (lambda: own.parent, Path.cwd, tempfile.gettempdir)

    def choices(self) -> Iterator[Callable[[], Path]]:
        """Functions that make or find a place each, the best first, or raise an OSError; as many on every
        rank.
        """
        yield self._again
        for parent in self._parents:
            yield lambda parent=parent: self._new(parent())

    def settle(self, place: Path | None) -> None:
        """Keep the files in ``place`` alone, or none, since they lie where they belong."""
        if self.place != place:
            self.discard(self.place)
        self.place = place

    def discard(self, place: Path | None) -> None:
        """Remove a place that is not needed, or in which files could not be written, unless it is the one
        that holds some.
        """
        if place is not None:
            with contextlib.suppress(OSError):
                Folder(place).clear()
                place.rmdir()

    def _again(self) -> Path:
        if self.place is None:
            raise FileNotFoundError("there is no other place yet")
        return self.place

    def _new(self, parent: str | Path) -> Path:
        return Path(os.path.abspath(tempfile.mkdtemp(prefix=f"{self._name}-rescued-", dir=parent)))
