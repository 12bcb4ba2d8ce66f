"""Runs ``mpifed check`` on variants of a plugin."""

from __future__ import annotations

from mpifed.cli.check import check_class
from mpifed.parallel.comm import SerialComm


def verdict_of(capsys, path, name: str, header: str, source: str, *replaced: str) -> tuple[bool, list[str]]:
    """Return whether the class ``name`` passes, and the printed lines.

    Args:
        path: the file to which ``header`` and source are written.
        replaced: alternately a text in the source and its replacement.
    """
    for old, new in zip(replaced[::2], replaced[1::2]):
        assert old in source
        source = source.replace(old, new)
    path.write_text(header + source)
    sound = check_class(f"{path}:{name}", [], SerialComm())
    printed = capsys.readouterr()
    assert not printed.err
    return sound, printed.out.splitlines()


def failures(verdict) -> list[str]:
    """Return the FAILS lines of a plugin, and check that it does not pass."""
    sound, lines = verdict
    assert not sound
    return [line for line in lines if line.startswith("FAILS")]
