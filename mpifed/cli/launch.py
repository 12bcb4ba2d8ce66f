"""``mpifed launch``: writes a Slurm batch script for a job file and submits it."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mpifed.base.errors import ConfigError
from mpifed.base.log import escape_control
from mpifed.base.paths import expand_home
from mpifed.base.units import TIME, convert
from mpifed.cli.batch_script import Batch, parse_time_limit, split_sbatch_line
from mpifed.cli.options import HomePath, JobCommand, allow_code_option
from mpifed.cli.output import echo
from mpifed.storage.slurm_array import HEAD, SCRIPT

if TYPE_CHECKING:
    from mpifed.config.job import Config

__all__ = ["array_tasks", "launch", "time_limit"]

#: Options that are passed to sbatch unchanged → their meaning.
_SBATCH = {
    "account": "Account",
    "qos": "Quality of service",
    "mem": "Memory per node, e.g. 64G",
    "constraint": "Features of nodes",
    "output": "File of the output, e.g. log-%j.txt",
    "mail-user": "Address for mail",
    "mail-type": "Events that cause mail, e.g. END,FAIL",
}
#: Maximum size. Slurm stores most sizes in 16 bits and silently truncates larger numbers.
MAX_SIZE = 65_000
#: Environment variables that describe a job, and those that configure Slurm and its launchers.
_JOB_VARIABLES = ("SLURM", "PMI_", "PMIX_", "OMPI_COMM_WORLD_")
_SITE_VARIABLES = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT", "PMIX_MCA_")


class _ArgumentRecorder(JobCommand):
    """A command that records its arguments as typed; the script contains them as a comment."""

    def parse_args(self, ctx, args):
        ctx.meta["arguments"] = tuple(
            arg for arg in args if arg not in ("--dry-run", "--no-submit", "--allow-code")
        )
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            remedy = f"Other options of sbatch: --extra {error.option_name}=VALUE"
            raise click.UsageError(f"{error.format_message()} {remedy}") from None


def _full_match(pattern: str, expected: str):
    """Return an option's callback that accepts values matching a pattern as a whole."""

    def callback(ctx, parameter, value):
        if value is not None and not re.fullmatch(pattern, value, re.ASCII):
            raise click.BadParameter(f"expected {expected}, got {value!r}")
        return value

    return callback


def _size_option(name: str, help: str):
    """Return an option for a positive integer."""
    return click.option(name, type=click.IntRange(1, MAX_SIZE), default=1, help=help)


def time_limit(ctx, parameter, value):
    """Return a limit in Slurm's formats unchanged, and a time with a unit in whole minutes, rounded up."""
    if value is None or parse_time_limit(value) is not None:
        return value
    with contextlib.suppress(ValueError):
        if (limit := convert(value, TIME)) > 0:
            return str(math.ceil(limit / 60))
    raise click.BadParameter(f"expected minutes, H:M:S, D-H:M:S or a time such as 2h, got {value!r}")


def _parse_warning_time(ctx, parameter, value) -> int:
    """Return a time with or without a unit in whole seconds."""
    try:
        seconds = float(value) if re.fullmatch(r"[\d.]+", value, re.ASCII) else convert(value, TIME)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if not 1 <= seconds <= MAX_SIZE:
        raise click.BadParameter(f"expected 1 to {MAX_SIZE} seconds, got {value!r}")
    return int(seconds)


def _parse_extra(ctx, parameter, value):
    def words(line: str) -> tuple[str, ...]:
        try:
            return split_sbatch_line(line)
        except ValueError as error:
            raise click.BadParameter(
                f"expected an option of sbatch, e.g. --exclude=node7, got {line!r}: {error}"
            ) from None

    return tuple(map(words, value))


def _sbatch_options(command):
    """Add options that are passed to sbatch unchanged."""

    def words(ctx, parameter, value):
        if value and parameter.name == "output":
            value = expand_home(value)
        return value and _parse_extra(ctx, parameter, [shlex.quote(f"{parameter.opts[0]}={value}")])[0]

    for name, text in reversed(_SBATCH.items()):
        command = click.option(f"--{name}", metavar="TEXT", callback=words, help=f"{text} (sbatch).")(command)
    return command


def _validate_setup(ctx, parameter, value):
    """Refuse incomplete lines of shell: an unclosed quote would include the rest of the script."""
    text = "\n".join(value)
    if re.search(r"^#SBATCH", text, re.M) or "\r" in text or re.search(r"(?<!\\)(\\\\)*\\$", text):
        raise click.BadParameter(
            f"expected lines of shell without a backslash at the end, got {text!r}: options of sbatch go "
            "into --extra"
        )
    check = subprocess.run(["bash", "-n"], input=os.fsencode(text), capture_output=True) if text else None
    if check and check.stderr:
        message = check.stderr.decode(errors="replace").splitlines()[0].removeprefix("bash: ")
        raise click.BadParameter(f"expected complete lines of shell, got {text!r}: {message}")
    return value


@click.command(cls=_ArgumentRecorder)
@click.argument("job", type=HomePath())
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@_size_option("--nodes", "Nodes per run.")
@_size_option("--ranks-per-node", "MPI ranks on each node.")
@_size_option("--cpus-per-rank", "Cores and threads per rank.")
@click.option(
    "--gpus-per-node",
    metavar="[TYPE:]N",
    callback=_full_match(r"([\w.-]+:)?[1-9]\d{0,4}", "a number or TYPE:NUMBER, e.g. 4 or a100:4"),
    help="GPUs per node; the ranks of a node use them in turn.",
)
@click.option(
    "--time",
    metavar="LIMIT",
    callback=time_limit,
    help="Time limit: minutes, H:M:S, D-H:M:S, or a time with a unit such as 2h.",
)
@click.option(
    "--partition",
    metavar="TEXT",
    callback=_full_match(r"[^\s,]+(,[^\s,]+)*", "a name, or several names separated by commas"),
    help="Partition (queue).",
)
@click.option(
    "--array",
    "axes",
    multiple=True,
    metavar="KEY=V1,V2,...",
    help="Submit a job array with one run per value, in folders below run.out. If repeated: one run per "
    "combination.",
)
@click.option(
    "--parts",
    type=click.IntRange(1, 10**6),
    metavar="N",
    help="Submit a job array of N elements that share the runs of the job file's [sweep], or the methods and "
    "tasks of its [tune].  [default: 1]",
)
@click.option(
    "--preemptible", is_flag=True, help="Requeue the job, which then resumes, when preempted or out of time."
)
@click.option(
    "--warning",
    metavar="TIME",
    callback=_parse_warning_time,
    default="120",
    help="Write a checkpoint and end, with exit code 85, this long before the time limit (seconds, or 5min).",
)
@_sbatch_options
@click.option(
    "--extra",
    multiple=True,
    metavar="OPTION",
    callback=_parse_extra,
    help='Further option of sbatch, e.g. "--exclude=node7".',
)
@click.option(
    "--setup",
    multiple=True,
    metavar="LINE",
    callback=_validate_setup,
    help='Line of shell to execute first, e.g. "module load cuda".',
)
@click.option(
    "--script",
    "path",
    type=HomePath(dir_okay=False),
    help="Path of the script.  [default: job.sbatch in run.out]",
)
@click.option("--no-submit", is_flag=True, help="Write the script without submitting it.")
@click.option("--dry-run", is_flag=True, help="Print the script without writing it.")
@allow_code_option(lambda settings: settings["dry_run"])
@click.pass_context
def launch(ctx, job, settings, axes, parts, path, no_submit, dry_run, **sizes):
    """Write a Slurm batch script that runs the job file JOB, and submit it. KEY=VALUE changes settings.

    \b
    mpifed launch JOB --nodes 2 --ranks-per-node 4 --gpus-per-node 4 --time 2h
    mpifed launch JOB --ranks-per-node 4 --array seed=0,1,2 --partition cpu
    mpifed launch JOB --gpus-per-node 1 --preemptible --time 30 --account abc
    mpifed launch JOB --ranks-per-node 2 --parts 8     a [sweep] in 8 elements
    mpifed launch JOB --ranks-per-node 16 --parts 6    a [tune] with 6 methods

    The script finds out how to start the ranks: srun with PMIx or PMI2, or the mpirun of the MPI library.
    MPIFED_LAUNCHER=pmix, pmi2 or mpirun overrides the choice. Submit in the environment of mpifed, or
    activate it with --setup. Paths are relative to the folder of submission. KEY=VALUE after the name of the
    script changes settings again.
    """
    config, out, contents = _plan(job, list(settings), axes, parts)
    if path:
        contents.pop("assigned_runs", None)
    passed = [sizes.pop(name.replace("-", "_")) for name in _SBATCH]
    sizes["extra"] = (*filter(None, passed), *sizes["extra"])
    batch = Batch(job, settings, command=ctx.meta["arguments"], **contents, **sizes)
    if batch.preemptible and config.run.overwrite:
        raise click.UsageError(
            "a preemptible job with run.overwrite=true would restart from the beginning each time: leave "
            "run.overwrite out"
        )
    for line in batch.warnings(config.problem.clients):
        echo(f"mpifed: warning: {line}", err=True)
    if dry_run:
        script = batch.script()  # a file or pipe gets the exact bytes
        click.echo(escape_control(script) if sys.stdout.isatty() else os.fsencode(script), nl=False)
    else:
        _write(Path(path or out / SCRIPT), batch.script(), not no_submit)


def _plan(
    job: str, settings: list[str], axes: tuple[str, ...], parts: int | None
) -> tuple[Config, Path, dict[str, Any]]:
    """Plan a batch job: a run, one run per combination of the options ``--array``, a sweep or a search.

    Returns:
        The configuration of one run, the output folder, and the fields of :class:`Batch` for the runs.
    """
    from mpifed.config.grids import variants
    from mpifed.config.job import Config
    from mpifed.config.tables import parse_value, read_table
    from mpifed.config.tuning import tuning

    section = next((name for name in ("sweep", "tune") if name in read_table(job)), None)
    if section and axes:
        raise click.UsageError(
            f"{job} has a [{section}]: use --parts N instead of --array to share its runs among the elements "
            "of a job array"
        )
    if section == "tune":
        search = tuning(job, settings)
        return search.config, search.out, {"subcommand": "tune", "parts": parts or 1}
    if section:
        runs, parts = variants(job, settings), parts or 1
        names = tuple(tuple(run.name for run in runs[number::parts]) for number in range(parts))
        out = Path(runs[0].config.run.out).parent
        return runs[0].config, out, {"subcommand": "sweep", "parts": parts, "assigned_runs": names}
    if parts:
        raise click.UsageError(
            f"--parts needs a job file with a [sweep] or a [tune], which {job} does not have: use --array "
            "KEY=V1,V2,..."
        )
    config = Config.load(job, settings)
    tasks = tuple(array_tasks(axes, config.run.out)) if axes else ()
    for task in tasks:
        Config.load(job, [*settings, *task])
    names = tuple((Path(parse_value(task[-1].removeprefix("run.out="))).name,) for task in tasks)
    return config, Path(config.run.out), {"tasks": tasks, "assigned_runs": names}


def array_tasks(axes: list[str], out: str) -> list[tuple[str, ...]]:
    """Return all combinations of ``key=value,value,...``, each with its own folder below ``out``.

    Raises:
        ConfigError: an axis has another form, or two combinations would share a folder.
    """
    from mpifed.base.settings import flatten
    from mpifed.config.grids import expand, first_duplicate, folder_names
    from mpifed.config.tables import as_text, parse_value

    choices = {}
    for axis in axes:
        key, equals, text = axis.partition("=")
        values = [value.strip() for value in _split_values(text)]
        if not equals or not key or not all(values):
            raise ConfigError(f"--array: expected KEY=VALUE,VALUE,..., e.g. seed=0,1,2, got {axis!r}")
        if key in choices:
            raise ConfigError(f"--array: got {key} twice, expected all values at once, {key}=VALUE,VALUE,...")
        choices[key] = values
    tasks = expand(choices)
    names = folder_names([flatten({key: parse_value(text) for key, text in task.items()}) for task in tasks])
    if first_duplicate(names):
        raise ConfigError(f"--array: expected distinct values, got {', '.join(axes)}")
    return [
        (*(f"{key}={text}" for key, text in task.items()), f"run.out={as_text(str(Path(out) / name))}")
        for task, name in zip(tasks, names)
    ]


def _split_values(text: str) -> list[str]:
    """Split a text at commas outside quotes and brackets; ``[""]`` if a quote or bracket is not closed."""
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
            "there is no sbatch on this machine: write the script with --no-submit or print it with --dry-run"
        )
    try:
        _expect_replaceable(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.fsencode(text))
    except (OSError, ValueError) as error:  # a null character is a ValueError
        reason = error.strerror if isinstance(error, OSError) else error
        raise click.UsageError(f"cannot write {str(path)!r}: {reason}") from None
    echo(path)
    if submit:
        # An absolute path is not mistaken for an option and not searched on PATH.
        command = ["sbatch", str(path.absolute())]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=_environment())
        echo((done.stdout + done.stderr).strip(), err=done.returncode != 0)
        if done.returncode:
            raise click.UsageError(f"sbatch refused {path}")


def _expect_replaceable(path: Path) -> None:
    """Raise a UsageError if a file exists that this command has not written."""
    if not path.exists() and not path.is_symlink():
        return
    if path.is_file():  # opening anything else might block
        with open(path, "rb") as file:
            if file.read(len(HEAD)) == HEAD.encode():
                return
    raise click.UsageError(f"{path} exists and was not written by mpifed launch: choose another --script")


def _environment() -> dict[str, str]:
    """Return the environment without the variables of a Slurm or MPI job in which this command may run."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_JOB_VARIABLES) or name.startswith(_SITE_VARIABLES)
    }
