"""Commands of ``mpifed``, called in this process."""

from __future__ import annotations

from click.testing import CliRunner, Result

from mpifed.cli.main import cli


def invoke(*words, **options) -> Result:
    """Return the result of ``mpifed WORDS``; options are those of ``CliRunner.invoke``."""
    return CliRunner().invoke(cli, [str(word) for word in words], **options)


def output_of(*words) -> str:
    """Return the output of a command that succeeds."""
    done = invoke(*words)
    assert done.exit_code == 0, (words, done.output, done.exception)
    return done.output


def error_of(*words) -> str:
    """Return the output of a command that fails, followed by its error message."""
    done = invoke(*words)
    assert isinstance(done.exception, ValueError | RuntimeError) or done.exit_code == 2, (words, done)
    return f"{done.output}{done.exception}"
