"""Files whose names a user chooses: a measurement, a figure."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from mpifed.core.errors import ConfigError
from mpifed.storage.atomic import replacing
from mpifed.storage.ownership import expect_own

__all__ = ["expect_place", "writing"]


def expect_place(path: str | Path, mark: Callable[[bytes], bool]) -> None:
    """Hold a file that is to be written at the end against what is there before the work.

    Args:
        mark: tells by the beginning of a file whether it is one of this kind, which may be replaced.

    Raises:
        ConfigError: there is no folder for the file, or something else lies there.
    """
    parent = Path(path).parent
    if not parent.is_dir():
        raise ConfigError(f"cannot write {path}: there is no folder {parent}")
    try:
        expect_own([Path(path)], mark)
    except ValueError as fault:
        raise ConfigError(str(fault)) from None


@contextlib.contextmanager
def writing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary file that takes the place of ``path`` at the end.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        with replacing(Path(path)) as temporary:
            yield temporary
    except OSError as fault:
        raise ConfigError(f"cannot write {path}: {fault.strerror or fault}") from None
