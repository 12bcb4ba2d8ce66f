"""Batch scripts for Slurm: ``mpifed launch`` writes one from a job file and submits it.

A script holds ``#SBATCH`` lines and one command; how the ranks are started, how a warning signal reaches them and how a job
goes back into the queue stands in ``launcher.sh``, which every script sources from the installed package.
"""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import click

from mpifed.config.job import Config, read_table
from mpifed.running.sweep import variants

__all__ = ["Batch", "sweep", "launch"]

#: Second line of every script; a file without it is not replaced.
MARK = "# mpifed launch "

_TAIL = """\
here=$(python -c 'from importlib.util import find_spec; print(find_spec("mpifed").submodule_search_locations[0])') ||
  { echo "mpifed is not installed for $(command -v python || echo 'python, which is missing')" >&2; exit 71; }
. "$here/cli/launcher.sh"
mpifed_launch mpifed """


@dataclass(frozen=True)
class Batch:
    """One batch job.

    Attributes:
        job: the job file.
        settings: ``key=value`` changes to it.
        tasks: further changes, one list for each element of a job array; empty for a single job.
        parts: elements of a job array that share the runs of the job file's ``[sweep]``; 0 where it has none.
        gpus_per_node: a number, or type and number as in ``a100:4``; ``None`` asks for none.
        time: the time limit in a form that Slurm takes; ``None`` leaves it to the partition.
        warning: seconds before the time limit at which the run is told to write a checkpoint and end.
        preemptible: the job goes back into the queue when a signal or a preemption has ended it early.
        extra: further options of sbatch, with or without ``#SBATCH``.
        setup: lines of shell to run first.
        command: the arguments that describe this job to ``mpifed launch``.
    """

    job: str
    settings: tuple[str, ...] = ()
    tasks: tuple[tuple[str, ...], ...] = ()
    parts: int = 0
    nodes: int = 1
    ranks_per_node: int = 1
    cpus_per_rank: int = 1
    gpus_per_node: str | None = None
    time: str | None = None
    partition: str | None = None
    warning: int = 120
    preemptible: bool = False
    extra: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    command: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        """Ranks of a run."""
        return self.nodes * self.ranks_per_node

    @property
    def gpus(self) -> int:
        """GPUs of a node."""
        return int(self.gpus_per_node.split(":")[-1]) if self.gpus_per_node else 0

    def script(self) -> str:
        """The text of the batch script."""
        elements = len(self.tasks) or (self.parts if self.parts > 1 else 0)
        options = [
            f"--job-name={Path(self.job).stem}",
            f"--nodes={self.nodes}",
            f"--ntasks-per-node={self.ranks_per_node}",
            f"--cpus-per-task={self.cpus_per_rank}",
            self.gpus_per_node and f"--gpus-per-node={self.gpus_per_node}",
            self.time and f"--time={self.time}",
            self.partition and f"--partition={self.partition}",
            elements and f"--array=0-{elements - 1}",
            f"--signal=B:USR1@{self.warning}",
            *(["--requeue", "--open-mode=append"] if self.preemptible else []),
            *(line.removeprefix("#SBATCH").strip() for line in self.extra),
        ]
        lines = ["#!/bin/bash", MARK + shlex.join(self.command), f"# {self._words()}"]
        lines += [f"#SBATCH {option}" for option in options if option]
        lines += [*self.setup, *(["export MPIFED_REQUEUE=1"] if self.preemptible else [])]
        if self.tasks:
            cases = (
                f'  {number}) set -- {shlex.join(task)} "$@" ;;' for number, task in enumerate(self.tasks)
            )
            lines += ["case $SLURM_ARRAY_TASK_ID in", *cases, "esac"]
        return "\n".join(lines) + "\n" + _TAIL + self._command() + ' "$@"\n'

    def _command(self) -> str:
        part = f' --part "${{SLURM_ARRAY_TASK_ID:-0}}/{self.parts}"' if self.parts else ""
        return ("sweep " if self.parts else "run ") + shlex.join([self.job, *self.settings]) + part

    def _words(self) -> str:
        share = f"{self.ranks_per_node} rank(s)" + (f" on {self.gpus} GPU(s)" if self.gpus else ", CPU only")
        again = "; goes back into the queue when preempted or out of time" if self.preemptible else ""
        runs = f"a sweep in {self.parts} part(s)" if self.parts else f"{len(self.tasks) or 1} run(s)"
        return f"{runs}; {self.nodes} node(s), on each {share}{again}."

    def warnings(self, clients: int) -> list[str]:
        """What is allowed and surely not meant, one line each."""
        found = []
        if self.ranks > clients:
            found.append(
                f"{self.ranks} ranks for {clients} clients: {self.ranks - clients} would have nothing to do"
            )
        if self.gpus > self.ranks_per_node:
            found.append(f"{self.gpus} GPUs a node for {self.ranks_per_node} ranks: a rank uses one GPU")
        limit = _seconds(self.time) if self.time else None
        if limit and limit <= self.warning:
            found.append(
                f"the time limit of {limit} s lies before the warning, {self.warning} s ahead of it: see --warning"
            )
        return found


def sweep(axes: list[str], out: str) -> list[tuple[str, ...]]:
    """All combinations of ``key=value,value,...``, each with a folder of its own below ``out``.

    Raises:
        ValueError: an axis is not of this form, or two combinations would share a folder.
    """
    parsed = []
    for axis in axes:
        key, equals, text = axis.partition("=")
        values = re.findall(r"""(?:[^,\[{"']|\[[^]]*\]|\{[^}]*\}|"[^"]*"|'[^']*')+""", text)
        if not equals or not key or not values:
            raise ValueError(f"--array takes KEY=VALUE,VALUE,..., e.g. seed=0,1,2, got {axis!r}")
        parsed.append([f"{key}={value.strip()}" for value in values])
    tasks = []
    for settings in itertools.product(*parsed):
        folder = re.sub(r"[^\w.=+-]+", "_", "_".join(settings))
        tasks.append((*settings, f"run.out={Path(out) / folder}"))
    if len({task[-1] for task in tasks}) < len(tasks):
        raise ValueError(f"--array names the same run twice: {', '.join(axes)}")
    return tasks


def _seconds(time: str) -> int | None:
    """A time limit in Slurm's forms M, M:S, H:M:S, D-H, D-H:M and D-H:M:S; ``None`` if it is none of them."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", time)
    if not match:
        return None
    days, *parts = (int(part or 0) for part in match.groups())
    if match[1] or match[4]:
        hours, minutes, seconds = parts
    else:
        hours, minutes, seconds = 0, parts[0], parts[1]
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


class _Remembering(click.Command):
    """A command that keeps its arguments as they were typed, to write them into the script."""

    def parse_args(self, ctx, args):
        ctx.meta["arguments"] = tuple(arg for arg in args if arg not in ("--dry-run", "--no-submit"))
        return super().parse_args(ctx, args)


def _time(ctx, parameter, value):
    if value is not None and _seconds(value) is None:
        raise click.BadParameter(f"expected minutes, H:M:S or D-H:M:S, got {value!r}")
    return value


def _extra(ctx, parameter, value):
    for line in value:
        if not line.removeprefix("#SBATCH").strip().startswith("-"):
            raise click.BadParameter(
                f"--extra takes an option of sbatch, e.g. --account=abc123, got {line!r}"
            )
    return value


def _gpus(ctx, parameter, value):
    if value is not None and not re.fullmatch(r"([\w.-]+:)?[1-9]\d*", value):
        raise click.BadParameter(f"expected a number or TYPE:NUMBER, e.g. 4 or a100:4, got {value!r}")
    return value


@click.command(cls=_Remembering)
@click.argument("job", type=click.Path())
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--nodes", type=click.IntRange(1), default=1, show_default=True, help="Nodes of a run.")
@click.option(
    "--ranks-per-node", type=click.IntRange(1), default=1, show_default=True, help="MPI ranks on each node."
)
@click.option(
    "--cpus-per-rank",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Cores and threads of a rank.",
)
@click.option(
    "--gpus-per-node",
    metavar="[TYPE:]N",
    callback=_gpus,
    help="GPUs of each node; its ranks take them in turn.",
)
@click.option("--time", metavar="LIMIT", callback=_time, help="Time limit: minutes, H:M:S or D-H:M:S.")
@click.option("--partition", help="Partition (queue).")
@click.option(
    "--array",
    "axes",
    multiple=True,
    metavar="KEY=V1,V2,...",
    help="A job array with one run for each value, in folders below run.out; given again, all combinations.",
)
@click.option(
    "--parts",
    type=click.IntRange(1),
    metavar="N",
    help="A job array of N elements that share the runs of the job file's [sweep].  [default: 1]",
)
@click.option(
    "--preemptible", is_flag=True, help="Back into the queue, to resume, when preempted or out of time."
)
@click.option(
    "--warning",
    type=click.IntRange(1),
    default=120,
    show_default=True,
    help="Seconds before the time limit at which the run writes a checkpoint and ends with exit code 85.",
)
@click.option(
    "--extra",
    multiple=True,
    metavar="OPTION",
    callback=_extra,
    help='Another option of sbatch, e.g. "--account=abc123".',
)
@click.option(
    "--setup", multiple=True, metavar="LINE", help='A line of shell to run first, e.g. "module load cuda".'
)
@click.option(
    "--script", "path", type=click.Path(dir_okay=False), help="The script's file, else job.sbatch in run.out."
)
@click.option("--no-submit", is_flag=True, help="Write the script, do not submit it.")
@click.option("--dry-run", is_flag=True, help="Print the script; write and submit nothing.")
@click.pass_context
def launch(ctx, job, settings, axes, parts, path, no_submit, dry_run, **sizes):
    """Write a Slurm batch script that runs JOB (TOML, with KEY=VALUE changes), and submit it.

    \b
    mpifed launch jobs/mnist_auc.toml --nodes 2 --ranks-per-node 4 --gpus-per-node 4 --time 2:00:00
    mpifed launch jobs/saddle.toml --ranks-per-node 4 --array seed=0,1,2 --partition cpu --dry-run
    mpifed launch jobs/mnist_auc.toml --gpus-per-node 1 --preemptible --time 30 --partition preempt
    mpifed launch jobs/papers/004_wgan.toml --ranks-per-node 2 --parts 8

    The script finds out how to start the ranks: srun with PMIx or PMI2, or the MPI's own mpirun; MPIFED_LAUNCHER=pmix, pmi2
    or mpirun settles it by hand. Submit from inside the environment of mpifed, or enter it with --setup. Paths are
    relative to the folder of submission, and KEY=VALUE after the script's name changes settings once more.
    """
    config, out, tasks, parts = _planned(job, list(settings), axes, parts)
    batch = Batch(job, settings, tasks, parts, command=ctx.meta["arguments"], **sizes)
    if batch.preemptible and config.run.overwrite:
        raise click.UsageError(
            "run.overwrite=true would start a preemptible job over each time: leave it out"
        )
    for line in batch.warnings(config.problem.clients):
        click.echo(f"mpifed: warning: {line}", err=True)
    if dry_run:
        click.echo(batch.script(), nl=False)
    else:
        _write(Path(path or Path(out) / "job.sbatch"), batch.script(), not no_submit)


def _planned(
    job: str, settings: list[str], axes: tuple[str, ...], parts: int | None
) -> tuple[Config, str, tuple, int]:
    """A configuration to hold the sizes against, the folder of all results, and ``tasks`` and ``parts`` of the batch."""
    if "sweep" in read_table(job):
        if axes:
            raise click.UsageError(
                f"{job} has a [sweep]: --parts N shares its runs among the elements of a job array, --array is for other files"
            )
        config = variants(job, settings)[0].config
        return config, str(Path(config.run.out).parent), (), parts or 1
    if parts:
        raise click.UsageError(
            f"--parts is for a job file with a [sweep], which {job} does not have: --array KEY=V1,V2,... makes an array"
        )
    config = Config.load(job, settings)
    try:
        tasks = tuple(sweep(axes, config.run.out)) if axes else ()
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    for task in tasks:
        Config.load(job, [*settings, *task])
    return config, config.run.out, tasks, 0


def _write(path: Path, text: str, submit: bool) -> None:
    if submit and not shutil.which("sbatch"):
        raise click.UsageError(
            "there is no sbatch on this machine: --no-submit writes the script, --dry-run prints it"
        )
    try:
        if path.exists() and MARK not in path.read_text(errors="replace"):
            raise click.UsageError(
                f"{path} exists and is no script of mpifed launch: choose another --script"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise click.UsageError(f"cannot write {path}: {error.strerror}") from None
    click.echo(path)
    if submit:
        done = subprocess.run(["sbatch", str(path)], capture_output=True, text=True)
        click.echo((done.stdout + done.stderr).strip(), err=done.returncode != 0)
        if done.returncode:
            raise click.ClickException(f"sbatch refused {path}")
