"""Runs ``mpifed check`` on variants of a plugin."""

from __future__ import annotations

import pytest

from mpifed.parallel.comm import SerialComm


@pytest.fixture
def verdicts(tmp_path, capsys, request):
    """Return ``verdicts(source, old, new, ...)``: whether a plugin passes, and the printed lines.

    The plugin is ``HEADER`` of the test module, followed by the source with ``new`` instead of ``old``. Its
    class is ``Method`` or ``Problem``.
    """
    from mpifed.cli.check import check_class  # half a second in sessions without this fixture

    def verdict_of(source: str, *replaced: str) -> tuple[bool, list[str]]:
        for old, new in zip(replaced[::2], replaced[1::2]):
            assert old in source
            source = source.replace(old, new)
        path = tmp_path / "plugin.py"
        path.write_text(request.module.HEADER + source)
        name = "Method" if "class Method(" in source else "Problem"
        sound = check_class(f"{path}:{name}", [], SerialComm())
        printed = capsys.readouterr()
        assert not printed.err
        return sound, printed.out.splitlines()

    return verdict_of


def failures(verdict) -> list[str]:
    """Return the FAILS lines of a plugin, and check that it does not pass."""
    sound, lines = verdict
    assert not sound
    return [line for line in lines if line.startswith("FAILS")]
