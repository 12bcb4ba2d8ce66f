"""``mpifed launch``: writes a Slurm batch script for a job file and submits it.

The script is the template ``job.sbatch``. It sources ``launcher.sh`` from the package, which starts the
ranks, forwards the warning signal and requeues the job.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import shutil
import string
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mpifed.base.errors import ConfigError
from mpifed.base.log import escape_control
from mpifed.base.units import TIME, convert
from mpifed.cli.options import HomePath, JobCommand, allow_code_option
from mpifed.cli.output import echo
from mpifed.storage.files import SCRIPT, assignment_lines, is_script

if TYPE_CHECKING:
    from mpifed.config.job import Config

__all__ = ["array_settings", "batch_script", "idle_ranks", "launch", "parse_time_limit", "split_sbatch_line"]

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
#: Pattern and description of --mem. Slurm takes a number for MB; 0 is the whole memory of a node.
_MEMORY = (r"0|\d+[KMGTkmgt]\w*", "a size with a unit, e.g. 64G, or 0 for all memory")
#: Own options that have the same name in sbatch.
_OWN = ("gpus-per-node", "time", "partition")
#: Maximum size. Slurm stores most sizes in 16 bits and silently truncates larger numbers.
MAX_SIZE = 65_000
_SIZE = click.IntRange(1, MAX_SIZE)
#: Default of --cpus-per-rank on GPUs: Python, the threads of CUDA and MPI, and products on the host.
GPU_CORES = 4
#: Environment variables that describe a job, and those that configure Slurm and its launchers.
_JOB_VARIABLES = ("SLURM", "PMI_", "PMIX_", "OMPI_COMM_WORLD_")
_SITE_VARIABLES = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT", "PMIX_MCA_")


class _Template(string.Template):
    """A text with placeholders such as ``%{name}``: a dollar sign is that of the shell."""

    delimiter = "%"


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


def split_sbatch_line(line: str) -> tuple[str, ...]:
    """Split a line into words: options as on sbatch's command line, or a whole ``#SBATCH`` line.

    Raises:
        BadParameter: a word is not an option, or a value with blanks is not quoted.
    """
    try:
        words = shlex.split(line.removeprefix("#SBATCH"), comments=line.startswith("#SBATCH"))
        for before, word in zip(["", *words], words):
            if not re.match("--?[A-Za-z]", word) and (not before.startswith("-") or "=" in before):
                raise ValueError(f"{word!r} is not an option; quote values with blanks")
        if not words:
            raise ValueError("the line is empty")
    except ValueError as error:
        raise click.BadParameter(
            f"expected an option of sbatch, e.g. --exclude=node7, got {line!r}: {error}"
        ) from None
    return tuple(words)


def parse_time_limit(time: str) -> int | None:
    """Parse a time limit in Slurm's formats M, M:S, H:M:S, D-H, D-H:M and D-H:M:S.

    Returns ``None`` for other texts and for numbers of more than six digits: Slurm stores minutes in 32 bits
    and does not report an overflow.
    """
    number = "([0-9]{1,6})"
    match = re.fullmatch(f"(?:{number}-)?{number}(?::{number})?(?::{number})?", time)
    if not match:
        return None
    days, *parts = (int(part or 0) for part in match.groups())
    if match[1] or match[4]:
        hours, minutes, seconds = parts
    else:
        hours, minutes, seconds = 0, parts[0], parts[1]
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _matching(pattern: str, expected: str):
    """Return the type of texts that match a pattern as a whole."""

    def convert(text: str) -> str:
        if not re.fullmatch(pattern, text, re.ASCII):
            raise click.BadParameter(f"expected {expected}, got {text!r}")
        return text

    return convert


def _time_limit(text: str) -> str:
    """Return a limit in Slurm's formats unchanged, and a time with a unit in whole minutes, rounded up."""
    if parse_time_limit(text) is not None:
        return text
    with contextlib.suppress(ValueError):
        if (limit := convert(text, TIME)) > 0:
            return str(math.ceil(limit / 60))
    raise click.BadParameter(f"expected minutes, H:M:S, D-H:M:S or a time such as 2h, got {text!r}")


def _warning_time(text: str) -> int:
    """Return a time with or without a unit in whole seconds."""
    try:
        seconds = float(text) if re.fullmatch(r"[\d.]+", text, re.ASCII) else convert(text, TIME)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if not 1 <= seconds <= MAX_SIZE:
        raise click.BadParameter(f"expected 1 to {MAX_SIZE} seconds, got {text!r}")
    return int(seconds)


def _expect_setup(ctx, parameter, lines: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse incomplete lines of shell: an unclosed quote would include the rest of the script."""
    text = "\n".join(lines)
    if re.search(r"^#SBATCH", text, re.M) or "\r" in text or re.search(r"(?<!\\)(\\\\)*\\$", text):
        raise click.BadParameter(
            f"expected lines of shell without a backslash at the end, got {text!r}: options of sbatch go "
            "into --extra"
        )
    check = subprocess.run(["bash", "-n"], input=os.fsencode(text), capture_output=True) if text else None
    if check and check.stderr:
        message = check.stderr.decode(errors="replace").splitlines()[0].removeprefix("bash: ")
        raise click.BadParameter(f"expected complete lines of shell, got {text!r}: {message}")
    return lines


def _expect_command(ctx, parameter, text: str) -> str:
    """Return a command whose words are quoted for the shell."""
    try:
        return shlex.join(shlex.split(text))
    except ValueError as error:
        raise click.BadParameter(f"expected a command, got {text!r}: {error}") from None


def _sbatch_options(command):
    """Add options that are passed to sbatch unchanged."""
    for name, text in reversed(_SBATCH.items()):
        kind = {"output": HomePath(readable=False), "mem": _matching(*_MEMORY)}.get(name, str)
        command = click.option(f"--{name}", metavar="TEXT", type=kind, help=f"{text} (sbatch).")(command)
    return command


@click.command(cls=_ArgumentRecorder)
@click.argument("job", type=HomePath())
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--nodes", type=_SIZE, default=1, help="Nodes per run.")
@click.option("--ranks-per-node", type=_SIZE, default=1, help="MPI ranks on each node.")
@click.option(
    "--cpus-per-rank",
    type=_SIZE,
    help=f"Cores and threads per rank.  [default: 1, with --gpus-per-node {GPU_CORES}]",
)
@click.option(
    "--gpus-per-node",
    metavar="[TYPE:]N",
    type=_matching(r"([\w.-]+:)?[1-9]\d{0,4}", "a number or TYPE:NUMBER, e.g. 4 or a100:4"),
    help="GPUs per node; the ranks of a node use them in turn.",
)
@click.option(
    "--time",
    metavar="LIMIT",
    type=_time_limit,
    help="Time limit: minutes, H:M:S, D-H:M:S, or a time with a unit such as 2h.",
)
@click.option(
    "--partition",
    metavar="TEXT",
    type=_matching(r"[^\s,]+(,[^\s,]+)*", "a name, or several names separated by commas"),
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
    "tasks of its [tune].  [default: 1, with --array one run per element]",
)
@click.option(
    "--array-limit",
    type=_SIZE,
    metavar="N",
    help="Maximum number of elements of the job array that run at the same time.",
)
@click.option(
    "--container",
    metavar="COMMAND",
    default="",
    callback=_expect_command,
    help='Command that executes the ranks in a container with mpifed, e.g. "apptainer exec --nv image.sif".',
)
@click.option(
    "--preemptible", is_flag=True, help="Requeue the job, which then resumes, when preempted or out of time."
)
@click.option(
    "--warning",
    metavar="TIME",
    type=_warning_time,
    default="120",
    help="Write a checkpoint and end, with exit code 85, this long before the time limit (seconds, or 5min).",
)
@_sbatch_options
@click.option(
    "--extra",
    multiple=True,
    metavar="OPTION",
    type=split_sbatch_line,
    help='Further option of sbatch, e.g. "--exclude=node7".',
)
@click.option(
    "--setup",
    multiple=True,
    metavar="LINE",
    callback=_expect_setup,
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
def launch(ctx, job, settings, axes, parts, path, no_submit, dry_run, **options):
    """Write a Slurm batch script that runs the job file JOB, and submit it. KEY=VALUE changes settings.

    \b
    mpifed launch JOB --nodes 2 --ranks-per-node 4 --gpus-per-node 4 --time 2h
    mpifed launch JOB --ranks-per-node 4 --array seed=0,1,2 --partition cpu
    mpifed launch JOB --gpus-per-node 1 --preemptible --time 30 --account abc
    mpifed launch JOB --ranks-per-node 2 --parts 8     a [sweep] in 8 elements
    mpifed launch JOB --ranks-per-node 16 --parts 6    a [tune] with 6 methods

    The script finds out how to start the ranks: srun with PMIx, PMI2 or the type of the site, or the mpirun
    of the MPI library. MPIFED_LAUNCHER=pmix, pmi2, srun or mpirun overrides the choice. Submit in the
    environment of mpifed, or activate it with --setup. Paths are relative to the folder of submission.
    KEY=VALUE after the name of the script changes settings again.
    """
    config, out, subcommand, settings, parts, runs = _plan(job, list(settings), axes, parts)
    if options["array_limit"] and parts == 1:
        raise click.UsageError("--array-limit needs a job array: add --array or --parts")
    if options["preemptible"] and config.run.overwrite:
        raise click.UsageError(
            "a preemptible job with run.overwrite=true would restart from the beginning each time: leave "
            "run.overwrite out"
        )
    for line in _warnings(subcommand, config.problem.clients, options):
        echo(f"mpifed: warning: {line}", err=True)
    assigned = [] if path else runs  # the folders of runs are named relative to the script
    script = batch_script(subcommand, job, settings, parts, assigned, ctx.meta["arguments"], options)
    if dry_run:  # a file or pipe gets the exact bytes
        click.echo(escape_control(script) if sys.stdout.isatty() else os.fsencode(script), nl=False)
    else:
        _write(Path(path or out / SCRIPT), script, not no_submit)


def _plan(
    job: str, settings: list[str], axes: tuple[str, ...], parts: int | None
) -> tuple[Config, Path, str, list[str], int, list[list[str]]]:
    """Plan a batch job: a run, a sweep, which the options ``--array`` also describe, or a search.

    Returns:
        The configuration of one run, the output folder, the subcommand of mpifed, its settings, the number of
        elements of the job array, and the names of the runs of each element.
    """
    from mpifed.config.grids import variants
    from mpifed.config.job import Config
    from mpifed.config.tables import read_table
    from mpifed.config.tuning import tuning

    section = next((name for name in ("sweep", "tune") if name in read_table(job)), None)
    if section and axes:
        raise click.UsageError(
            f"{job} has a [{section}]: use --parts N instead of --array to share its runs among the elements "
            "of a job array"
        )
    if section == "tune":
        search = tuning(job, settings)
        return search.config, search.out, "tune", settings, parts or 1, []
    if section or axes:
        settings = [*settings, *array_settings(axes)]
        runs = variants(job, settings)
        parts = parts or (len(runs) if axes else 1)
        names = [[run.name for run in runs[number::parts]] for number in range(parts)]
        return runs[0].config, Path(runs[0].config.run.out).parent, "sweep", settings, parts, names
    if parts:
        raise click.UsageError(
            f"--parts needs a job file with a [sweep] or a [tune], which {job} does not have: use --array "
            "KEY=V1,V2,..."
        )
    config = Config.load(job, settings)
    return config, Path(config.run.out), "run", settings, 1, []


def array_settings(axes: tuple[str, ...]) -> list[str]:
    """Return options ``KEY=VALUE,VALUE,...`` as settings of a sweep, ``sweep.KEY=[VALUE, VALUE, ...]``.

    Raises:
        ConfigError: an option has another form, or repeats a key.
    """
    from mpifed.config.tables import parse_value, to_toml

    choices = {}
    for axis in axes:
        key, _, text = axis.partition("=")
        values = parse_value(f"[{text}]")
        if isinstance(values, str):  # names without quotes, which a shell removes
            words = [] if re.search("""[][{}"']""", text) else text.split(",")
            values = [parse_value(word.strip()) for word in words]
        if not key or not values or "" in map(str.strip, text.split(",")):
            raise ConfigError(f"--array: expected KEY=VALUE,VALUE,..., e.g. seed=0,1,2, got {axis!r}")
        if key in choices:
            raise ConfigError(f"--array: got {key} twice, expected all values at once, {key}=VALUE,VALUE,...")
        choices[key] = values
    return [f"sweep.{key}={to_toml(values)}" for key, values in choices.items()]


def idle_ranks(ranks: int, clients: int) -> str:
    """Return a warning if there are more ranks than clients, otherwise ""."""
    idle = ranks - clients
    return f"{ranks} ranks for {clients} clients: {idle} of the ranks will be idle" if idle > 0 else ""


def _warnings(subcommand: str, clients: int, options: dict[str, Any]) -> Iterator[str]:
    """Yield probable mistakes in the options of the command, one line each."""
    ranks_per_node, gpus = options["ranks_per_node"], int((options["gpus_per_node"] or "0").split(":")[-1])
    if subcommand != "tune" and (text := idle_ranks(options["nodes"] * ranks_per_node, clients)):
        yield text  # the ranks of a search have separate runs
    if gpus > ranks_per_node:
        yield f"{gpus} GPUs per node for {ranks_per_node} ranks per node: a rank uses one GPU"
    limit = parse_time_limit(options["time"] or "")
    if limit and limit <= options["warning"]:
        yield (
            f"expected a time limit above the warning time of {options['warning']} s, got {limit} s: "
            "increase --time or decrease --warning"
        )


def batch_script(
    subcommand: str,
    job: str,
    settings: Sequence[str],
    parts: int,
    runs: Sequence[Sequence[str]],
    arguments: Sequence[str],
    options: dict[str, Any],
) -> str:
    """Return the text of the batch script, in which mpifed executes a subcommand.

    Args:
        parts: number of elements of the job array.
        runs: the runs of each element, as names of folders next to the script.
        arguments: the arguments of ``mpifed launch`` as typed.
        options: the options of ``mpifed launch``.
    """
    named = {name: options[name.replace("-", "_")] for name in (*_OWN, *_SBATCH)}
    directives = [f"--{name}={value}" for name, value in named.items() if value]
    cores = GPU_CORES if options["gpus_per_node"] else 1
    limit = f"%{options['array_limit']}" if options["array_limit"] else ""
    directives += [f"--array=0-{parts - 1}{limit}"] if parts > 1 else []
    directives += ["--requeue", "--open-mode=append"] if options["preemptible"] else []
    lines = [
        "#SBATCH " + " ".join(map(_sbatch_quote, words))
        for words in (*([directive] for directive in directives), *options["extra"])
    ]
    lines += [*assignment_lines(runs), *options["setup"]]
    prefix = f"{options['container']} " if options["container"] else ""
    lines += [f"export MPIFED_CONTAINER={shlex.quote(options['container'])}"] if prefix else []
    lines += ["export MPIFED_REQUEUE=1"] if options["preemptible"] else []
    # The name may look like an option, or like the colon between two commands of mpirun.
    words = [subcommand, f"./{job}" if job.startswith(("-", ":")) else job, *settings]
    part = f' --part "${{SLURM_ARRAY_TASK_ID:-0}}/{parts}"' if parts > 1 else ""
    return _Template(Path(__file__).with_name(SCRIPT).read_text()).substitute(
        options | {"container": prefix, "cpus_per_rank": options["cpus_per_rank"] or cores},
        launcher=f'<({prefix}cat "$here/cli/launcher.sh")' if prefix else '"$here/cli/launcher.sh"',
        arguments=_printable(shlex.join(arguments)),
        name=_sbatch_quote(_printable(Path(job).stem)),
        lines="\n".join(lines),
        command=shlex.join(words) + part,
    )


def _printable(text: str) -> str:
    """Replace line breaks and other characters that are not printable by underscores."""
    return "".join(character if character.isprintable() else "_" for character in text)


def _sbatch_quote(word: str) -> str:
    """Quote a word for an ``#SBATCH`` line, where blanks end a word and ``#`` begins a comment."""
    if not word.isprintable():
        raise click.UsageError(
            f"an #SBATCH line must not contain line breaks or other control characters, got {word!r}"
        )
    if re.fullmatch(r"[\w@%+=:,./-]+", word, re.ASCII):
        return word
    return '"' + re.sub(r'(["\\])', r"\\\1", word) + '"'


def _write(path: Path, text: str, submit: bool) -> None:
    if submit and not shutil.which("sbatch"):
        raise click.UsageError(
            "there is no sbatch on this machine: write the script with --no-submit or print it with --dry-run"
        )
    try:
        if (path.exists() or path.is_symlink()) and not is_script(path):
            raise click.UsageError(
                f"{path} exists and was not written by mpifed launch: choose another --script"
            )
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


def _environment() -> dict[str, str]:
    """Return the environment without the variables of a Slurm or MPI job in which this command may run."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_JOB_VARIABLES) or name.startswith(_SITE_VARIABLES)
    }
