"""What ``mpifed check`` says of a plugin whose source a test holds."""

from __future__ import annotations

from mpifed.cli.check import check_class
from mpifed.parallel.comm import SerialComm


def verdict_of(capsys, path, name: str, header: str, source: str, *replaced: str) -> tuple[bool, list[str]]:
    """Whether the class ``name`` of a source is sound, and the lines that are printed.

    Args:
        path: the file that the source is written to, behind ``header``.
        replaced: words of the source and what stands in their place, by turns.
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
    """The FAILS lines of an unsound plugin."""
    sound, lines = verdict
    assert not sound
    return [line for line in lines if line.startswith("FAILS")]
