"""Batch scripts for Slurm: ``mpifed launch`` writes one from a job file and submits it."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from mpifed.base.errors import ConfigError
from mpifed.base.log import visible
from mpifed.base.units import TIME, convert
from mpifed.cli.batch_script import Batch, sbatch_words, seconds
from mpifed.cli.options import Quantity, looking
from mpifed.cli.output import echo
from mpifed.storage.slurm_array import HEAD, SCRIPT

if TYPE_CHECKING:
    from mpifed.config.job import Config

__all__ = ["array_tasks", "launch", "time_limit"]

#: Slurm stores most sizes in 16 bits and silently truncates larger numbers.
MOST = 65_000
#: Environment variables that describe a job, and those that configure Slurm and its launchers.
_OF_A_JOB = ("SLURM", "PMI_", "PMIX_", "OMPI_COMM_WORLD_")
_OF_A_SITE = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT", "PMIX_MCA_")


class _Remembering(click.Command):
    """A command that keeps its arguments as typed, to write them into the script."""

    def parse_args(self, ctx, args):
        ctx.meta["arguments"] = tuple(
            arg for arg in args if arg not in ("--dry-run", "--no-submit", "--allow-code")
        )
        return super().parse_args(ctx, args)


class _Matching(click.ParamType):
    """A text that matches a pattern."""

    name = "text"

    def __init__(self, pattern: str, expected: str):
        self.pattern, self.expected = pattern, expected

    def convert(self, value, param, ctx) -> str:
        if not re.fullmatch(self.pattern, value, re.ASCII):
            self.fail(f"expected {self.expected}, got {value!r}", param, ctx)
        return value


def time_limit(ctx, parameter, value):
    """A limit in Slurm's own forms, unchanged; a time with a unit in whole minutes."""
    if value is None or seconds(value) is not None:
        return value
    with contextlib.suppress(ValueError):
        if (limit := convert(value, TIME)) > 0:
            return str(math.ceil(limit / 60))
    raise click.BadParameter(f"expected minutes, H:M:S, D-H:M:S or a time such as 2h, got {value!r}")


def _extra(ctx, parameter, value):
    def words(line: str) -> tuple[str, ...]:
        try:
            return sbatch_words(line)
        except ValueError as error:
            raise click.BadParameter(
                f"--extra takes an option of sbatch, e.g. --account=abc123, got {line!r}: {error}"
            ) from None

    return tuple(map(words, value))


def _setup(ctx, parameter, value):
    """Complete lines of shell: an open quote or here-document would swallow the rest of the script."""
    text = "\n".join(value)
    if re.search(r"^#SBATCH", text, re.M) or "\r" in text or re.search(r"(?<!\\)(\\\\)*\\$", text):
        raise click.BadParameter(
            "expected lines of shell; options of sbatch go into --extra, and the last line ends without a "
            f"backslash, got {text!r}"
        )
    read = subprocess.run(["bash", "-n"], input=os.fsencode(text), capture_output=True) if text else None
    if read and read.stderr:
        found = read.stderr.decode(errors="replace").splitlines()[0].removeprefix("bash: ")
        raise click.BadParameter(f"bash cannot read {text!r}: {found}")
    return value


@click.command(cls=_Remembering)
@click.argument("job", type=click.Path())
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--nodes", type=click.IntRange(1, MOST), default=1, show_default=True, help="Nodes of a run.")
@click.option(
    "--ranks-per-node",
    type=click.IntRange(1, MOST),
    default=1,
    show_default=True,
    help="MPI ranks on each node.",
)
@click.option(
    "--cpus-per-rank",
    type=click.IntRange(1, MOST),
    default=1,
    show_default=True,
    help="Cores and threads of a rank.",
)
@click.option(
    "--gpus-per-node",
    metavar="[TYPE:]N",
    type=_Matching(r"([\w.-]+:)?[1-9]\d{0,4}", "a number or TYPE:NUMBER, e.g. 4 or a100:4"),
    help="GPUs of each node; its ranks take them in turn.",
)
@click.option(
    "--time",
    metavar="LIMIT",
    callback=time_limit,
    help="Time limit: minutes, H:M:S, D-H:M:S, or e.g. 2h.",
)
@click.option(
    "--partition",
    metavar="TEXT",
    type=_Matching(r"[^\s,]+(,[^\s,]+)*", "a name, or several with commas between"),
    help="Partition (queue).",
)
@click.option(
    "--array",
    "axes",
    multiple=True,
    metavar="KEY=V1,V2,...",
    help="A job array with one run for each value, in folders below run.out; given again, all combinations.",
)
@click.option(
    "--parts",
    type=click.IntRange(1, 10**6),
    metavar="N",
    help="A job array of N elements that share the runs of the job file's [sweep], or the methods and tasks "
    "of its [tune].  [default: 1]",
)
@click.option(
    "--preemptible", is_flag=True, help="Back into the queue, to resume, when preempted or out of time."
)
@click.option(
    "--warning",
    type=Quantity(TIME, 1, MOST),
    callback=lambda ctx, parameter, value: int(value),
    default=120,
    show_default=True,
    help="How long before the time limit (seconds, or 5min) a run writes a checkpoint and ends, code 85.",
)
@click.option(
    "--extra",
    multiple=True,
    metavar="OPTION",
    callback=_extra,
    help='Another option of sbatch, e.g. "--account=abc123".',
)
@click.option(
    "--setup",
    multiple=True,
    metavar="LINE",
    callback=_setup,
    help='A line of shell to run first, e.g. "module load cuda".',
)
@click.option(
    "--script", "path", type=click.Path(dir_okay=False), help="The script's file, else job.sbatch in run.out."
)
@click.option("--no-submit", is_flag=True, help="Write the script, do not submit it.")
@click.option("--dry-run", is_flag=True, help="Print the script; write and submit nothing.")
@looking(lambda settings: settings["dry_run"])
@click.pass_context
def launch(ctx, job, settings, axes, parts, path, no_submit, dry_run, **sizes):
    """Write a Slurm batch script that runs JOB (TOML, with KEY=VALUE changes), and submit it.

    \b
    mpifed launch jobs/mnist_auc.toml --nodes 2 --ranks-per-node 4 --gpus-per-node 4 --time 2:00:00
    mpifed launch jobs/saddle.toml --ranks-per-node 4 --array seed=0,1,2 --partition cpu --dry-run
    mpifed launch jobs/mnist_auc.toml --gpus-per-node 1 --preemptible --time 30 --partition preempt
    mpifed launch jobs/papers/wgan_by_regularisation.toml --ranks-per-node 2 --parts 8
    mpifed launch JOB --ranks-per-node 16 --parts 6      a [tune]: 6 methods, the runs of each on 16 ranks

    The script determines how to start the ranks: srun with PMIx or PMI2, or the MPI's own mpirun;
    MPIFED_LAUNCHER=pmix, pmi2 or mpirun overrides it. Submit from inside the environment of mpifed, or enter
    it with --setup. Paths are relative to the folder of submission, and KEY=VALUE after the script's name
    changes settings again.
    """
    plan = _planned(job, list(settings), axes, parts)
    shares = () if path else plan.shares
    command = ctx.meta["arguments"]
    batch = Batch(job, settings, plan.tasks, plan.parts, plan.verb, command=command, shares=shares, **sizes)
    if batch.preemptible and plan.config.run.overwrite:
        raise click.UsageError(
            "run.overwrite=true would restart a preemptible job from the beginning each time: leave it out"
        )
    for line in batch.warnings(plan.config.problem.clients):
        echo(f"mpifed: warning: {line}", err=True)
    if dry_run:
        script = batch.script()  # unchanged bytes, except on a terminal
        click.echo(visible(script) if sys.stdout.isatty() else os.fsencode(script), nl=False)
    else:
        _write(Path(path or Path(plan.out) / SCRIPT), batch.script(), not no_submit)


class _Plan(NamedTuple):
    """A configuration to compare the sizes with, the folder of results, and fields of :class:`Batch`."""

    config: Config
    out: str
    verb: str = "run"
    tasks: tuple[tuple[str, ...], ...] = ()
    parts: int = 0
    shares: tuple[tuple[str, ...], ...] = ()


def _planned(job: str, settings: list[str], axes: tuple[str, ...], parts: int | None) -> _Plan:
    """The batch job of a job file: a run, a run for each value of ``axes``, a sweep, or a search."""
    from mpifed.config.grids import variants
    from mpifed.config.job import Config
    from mpifed.config.tables import parse, read_table
    from mpifed.config.tuning import tuning

    section = next((name for name in ("sweep", "tune") if name in read_table(job)), None)
    if section and axes:
        raise click.UsageError(
            f"{job} has a [{section}]: --parts N shares its runs among the elements of a job array, "
            "--array is for other files"
        )
    if section == "tune":
        search = tuning(job, settings)
        return _Plan(search.config, str(search.out), "tune", parts=parts or 1)
    if section:
        runs, parts = variants(job, settings), parts or 1
        config = runs[0].config
        shares = tuple(tuple(run.name for run in runs[number::parts]) for number in range(parts))
        return _Plan(config, str(Path(config.run.out).parent), "sweep", parts=parts, shares=shares)
    if parts:
        raise click.UsageError(
            f"--parts is for a job file with a [sweep] or a [tune], which {job} does not have: --array "
            "KEY=V1,V2,... makes an array"
        )
    config = Config.load(job, settings)
    tasks = tuple(array_tasks(axes, config.run.out)) if axes else ()
    for task in tasks:
        Config.load(job, [*settings, *task])
    names = tuple((Path(parse(task[-1].removeprefix("run.out="))).name,) for task in tasks)
    return _Plan(config, config.run.out, tasks=tasks, shares=names)


def array_tasks(axes: list[str], out: str) -> list[tuple[str, ...]]:
    """All combinations of ``key=value,value,...``, each with its own folder below ``out``.

    Raises:
        ConfigError: an axis is not of this form, or two combinations would share a folder.
    """
    from mpifed.base.settings import flatten
    from mpifed.config.grids import expand, folder_names, twice
    from mpifed.config.tables import as_text, parse

    choices = {}
    for axis in axes:
        key, equals, text = axis.partition("=")
        values = [value.strip() for value in _values(text)]
        if not equals or not key or not all(values):
            raise ConfigError(f"--array takes KEY=VALUE,VALUE,..., e.g. seed=0,1,2, got {axis!r}")
        if key in choices:
            raise ConfigError(
                f"--array names {key} twice: give all of its values at once, {key}=VALUE,VALUE,..."
            )
        choices[key] = values
    tasks = expand(choices)
    names = folder_names([flatten({key: parse(text) for key, text in task.items()}) for task in tasks])
    if twice(names):
        raise ConfigError(f"--array names the same run twice: {', '.join(axes)}")
    return [
        (*(f"{key}={text}" for key, text in task.items()), f"run.out={as_text(str(Path(out) / name))}")
        for task, name in zip(tasks, names)
    ]


def _values(text: str) -> list[str]:
    """``text`` split at commas outside quotes and brackets; ``[""]`` if one of these stays open."""
    values, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        else:
            depth += (character in "[{") - (character in "]}")
        if character == "," and not quote and not depth:
            values.append("")
        else:
            values[-1] += character
    return [""] if quote or depth else values


def _write(path: Path, text: str, submit: bool) -> None:
    if submit and not shutil.which("sbatch"):
        raise click.UsageError(
            "there is no sbatch on this machine: --no-submit writes the script, --dry-run prints it"
        )
    try:
        _expect_own(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.fsencode(text))
    except (OSError, ValueError) as error:  # a null character is a ValueError
        said = error.strerror if isinstance(error, OSError) else error
        raise click.UsageError(f"cannot write {str(path)!r}: {said}") from None
    echo(path)
    if submit:
        # An absolute path is neither an option nor looked up on PATH
        command = ["sbatch", str(path.absolute())]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=_environment())
        echo((done.stdout + done.stderr).strip(), err=done.returncode != 0)
        if done.returncode:
            raise click.UsageError(f"sbatch refused {path}")


def _expect_own(path: Path) -> None:
    """Refuse to replace a file that this command has not written."""
    if not path.exists() and not path.is_symlink():
        return
    if path.is_file():  # opening anything else might block
        with open(path, "rb") as file:
            if file.read(len(HEAD)) == HEAD.encode():
                return
    raise click.UsageError(f"{path} exists and is no script of mpifed launch: choose another --script")


def _environment() -> dict[str, str]:
    """The environment without the variables of another job, inside which this shell may have been started."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_OF_A_JOB) or name.startswith(_OF_A_SITE)
    }
