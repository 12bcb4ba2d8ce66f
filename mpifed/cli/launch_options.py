"""What the options of ``mpifed launch`` may hold: callbacks for click."""

from __future__ import annotations

import contextlib
import math
import os
import re
import subprocess

import click

from mpifed.cli.batch_script import sbatch_words, seconds
from mpifed.core.units import TIME, plain

__all__ = ["extra", "gpus", "partition", "setup", "time_limit", "whole"]


def time_limit(ctx, parameter, value):
    """Slurm's own forms as they are; a time with its unit in whole minutes, which are one of them."""
    if value is None or seconds(value) is not None:
        return value
    with contextlib.suppress(ValueError):
        if (limit := plain(value, TIME)) > 0:
            return str(math.ceil(limit / 60))
    raise click.BadParameter(f"expected minutes, H:M:S, D-H:M:S or a time such as 2h, got {value!r}")


def whole(ctx, parameter, value):
    return int(value)


def extra(ctx, parameter, value):
    for line in value:
        try:
            sbatch_words(line)
        except ValueError as error:
            raise click.BadParameter(
                f"--extra takes an option of sbatch, e.g. --account=abc123, got {line!r}: {error}"
            ) from None
    return tuple(map(sbatch_words, value))


def gpus(ctx, parameter, value):
    if value is not None and not re.fullmatch(r"([\w.-]+:)?[1-9]\d{0,4}", value, re.ASCII):
        raise click.BadParameter(f"expected a number or TYPE:NUMBER, e.g. 4 or a100:4, got {value!r}")
    return value


def partition(ctx, parameter, value):
    if value is not None and not re.fullmatch(r"[^\s,]+(,[^\s,]+)*", value):
        raise click.BadParameter(f"expected a name, or several with commas between, got {value!r}")
    return value


def setup(ctx, parameter, value):
    """Lines that end where they end: an open quote or here-document would swallow the rest of a script."""
    text = "\n".join(value)
    if re.search(r"^#SBATCH", text, re.M) or "\r" in text or re.search(r"(?<!\\)(\\\\)*\\$", text):
        raise click.BadParameter(
            "expected lines of shell; options of sbatch go into --extra, and the last line ends without a "
            f"backslash, got {text!r}"
        )
    read = subprocess.run(["bash", "-n"], input=os.fsencode(text), capture_output=True) if text else None
    if read and read.stderr:
        said = read.stderr.decode(errors="replace").splitlines()[0].removeprefix("bash: ")
        raise click.BadParameter(f"bash cannot read {text!r}: {said}")
    return value
