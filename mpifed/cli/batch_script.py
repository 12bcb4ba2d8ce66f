"""The text of a Slurm batch script: ``#SBATCH`` lines and one command.

The script sources ``launcher.sh`` from the package, which starts the ranks, forwards the warning signal and
requeues the job.
"""

from __future__ import annotations

import os
import re
import shlex
import string
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mpifed.storage.slurm_array import HEAD, assignment_lines

__all__ = ["Batch", "bash_quote", "idle_ranks", "split_sbatch_line", "parse_time_limit"]

_TAIL = """\
here=$(python -c 'import importlib.util, sys; found = importlib.util.find_spec("mpifed")
print(found.submodule_search_locations[0]) if found else sys.exit(71)') || {
  echo "mpifed is not installed for $(command -v python || echo 'python, which is missing'): submit from\
 its environment and without --export=NONE, or enter the environment with mpifed launch --setup LINE" >&2
  exit 71
}
. "$here/cli/launcher.sh"
mpifed_launch mpifed """
_PLAIN = string.ascii_letters + string.digits + " ,-./:=@_"
_NO_TASK = '  *) echo "mpifed: this array has no element ${SLURM_ARRAY_TASK_ID-}" >&2; exit 2 ;;'


@dataclass(frozen=True)
class Batch:
    """One batch job.

    Attributes:
        job: path of the job file.
        settings: ``key=value`` changes of the job's settings.
        tasks: further changes, one tuple per element of a job array; empty without ``--array``.
        parts: number of elements of a job array that share the runs of a sweep, or the methods and tasks of a
            search; 0 for a single run.
        subcommand: the subcommand of mpifed that the job executes: run, sweep or tune.
        gpus_per_node: a number, or type and number as in ``a100:4``; ``None`` for no GPUs.
        time: the time limit in one of Slurm's formats; ``None`` for the limit of the partition.
        warning: seconds before the time limit at which the run writes a checkpoint and ends.
        preemptible: whether the job is requeued after a signal or a preemption.
        extra: further ``#SBATCH`` lines, each split by :func:`split_sbatch_line`.
        setup: lines of shell that are executed first.
        command: the arguments of ``mpifed launch`` that produce this job.
        assigned_runs: the runs of each element, as names of folders next to the script; empty if the folders
            are elsewhere.
    """

    job: str
    settings: tuple[str, ...] = ()
    tasks: tuple[tuple[str, ...], ...] = ()
    parts: int = 0
    subcommand: str = "run"
    nodes: int = 1
    ranks_per_node: int = 1
    cpus_per_rank: int = 1
    gpus_per_node: str | None = None
    time: str | None = None
    partition: str | None = None
    warning: int = 120
    preemptible: bool = False
    extra: tuple[tuple[str, ...], ...] = ()
    setup: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    assigned_runs: tuple[tuple[str, ...], ...] = ()

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.nodes * self.ranks_per_node

    @property
    def gpus(self) -> int:
        """Number of GPUs per node."""
        return int(self.gpus_per_node.split(":")[-1]) if self.gpus_per_node else 0

    def script(self) -> str:
        """Return the text of the batch script."""
        elements = len(self.tasks) or (self.parts if self.parts > 1 else 0)
        options = [
            f"--job-name={re.sub(r'[^ -~]', _printable, Path(self.job).stem)}",
            f"--nodes={self.nodes}",
            f"--ntasks-per-node={self.ranks_per_node}",
            f"--cpus-per-task={self.cpus_per_rank}",
            self.gpus_per_node and f"--gpus-per-node={self.gpus_per_node}",
            self.time and f"--time={self.time}",
            self.partition and f"--partition={self.partition}",
            elements and f"--array=0-{elements - 1}",
            f"--signal=B:USR1@{self.warning}",
            *(["--requeue", "--open-mode=append"] if self.preemptible else []),
        ]
        directives = [*((option,) for option in options if option), *self.extra]
        lines = [HEAD + _bash_join(self.command), f"# {self._summary()}"]
        lines += ["#SBATCH " + " ".join(map(_sbatch_quote, words)) for words in directives]
        lines += [*assignment_lines(self.assigned_runs), *self.setup]
        if self.preemptible:
            lines.append("export MPIFED_REQUEUE=1")
        if self.tasks:
            cases = (
                f'  {number}) set -- {_bash_join(task)} "$@" ;;' for number, task in enumerate(self.tasks)
            )
            lines += ['case "${SLURM_ARRAY_TASK_ID-}" in', *cases, _NO_TASK, "esac"]
        return "\n".join(lines) + "\n" + _TAIL + self._command() + ' "$@"\n'

    def _command(self) -> str:
        part = f' --part "${{SLURM_ARRAY_TASK_ID:-0}}/{self.parts}"' if self.parts > 1 else ""
        # The name may look like an option, or like the colon between two commands of mpirun.
        job = f"./{self.job}" if self.job.startswith(("-", ":")) else self.job
        return f"{self.subcommand} {_bash_join([job, *self.settings])}{part}"

    def _summary(self) -> str:
        gpus = f"{self.gpus} GPU(s)" if self.gpus else "no GPU"
        again = "; requeued when preempted or out of time" if self.preemptible else ""
        what = {"sweep": "a sweep", "tune": "a search"}.get(self.subcommand, "")
        runs = f"{what} in {self.parts} part(s)" if self.parts else f"{len(self.tasks) or 1} run(s)"
        return f"{runs}; {self.nodes} node(s), per node {self.ranks_per_node} rank(s) and {gpus}{again}."

    def warnings(self, clients: int) -> list[str]:
        """Return probable mistakes, one line each."""
        messages = []
        if self.subcommand != "tune" and (text := idle_ranks(self.ranks, clients)):
            messages.append(text)  # the ranks of a search have separate runs
        if self.gpus > self.ranks_per_node:
            messages.append(
                f"{self.gpus} GPUs per node for {self.ranks_per_node} ranks per node: a rank uses one GPU"
            )
        limit = parse_time_limit(self.time) if self.time else None
        if limit and limit <= self.warning:
            messages.append(
                f"expected a time limit above the warning time of {self.warning} s, got {limit} s: increase "
                "--time or decrease --warning"
            )
        return messages


def idle_ranks(ranks: int, clients: int) -> str:
    """Return a warning if there are more ranks than clients, otherwise ""."""
    idle = ranks - clients
    return f"{ranks} ranks for {clients} clients: {idle} of the ranks will be idle" if idle > 0 else ""


def bash_quote(word: str) -> str:
    """Quote a word for bash in one line of printable characters, preserving every byte."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = (chr(byte) if chr(byte) in _PLAIN else f"\\{byte:03o}" for byte in os.fsencode(word))
    return f"$'{''.join(escaped)}'"


def _bash_join(words: Iterable[str]) -> str:
    return " ".join(map(bash_quote, words))


def _printable(character: re.Match) -> str:
    return character[0] if character[0].isprintable() else "_"


def _sbatch_quote(word: str) -> str:
    """Quote a word for an ``#SBATCH`` line, where blanks end a word and ``#`` begins a comment."""
    if re.fullmatch(r"[\w@%+=:,./-]+", word, re.ASCII):
        return word
    return '"' + re.sub(r'(["\\])', r"\\\1", word) + '"'


def split_sbatch_line(line: str) -> tuple[str, ...]:
    """Split a line into words: options as on sbatch's command line, or a whole ``#SBATCH`` line.

    Raises:
        ValueError: a word is not an option, or a value with blanks is not quoted.
    """
    whole = line.startswith("#SBATCH")
    words = shlex.split(line.removeprefix("#SBATCH"), comments=whole)
    before = ""
    for word in words:
        if not word.isprintable():
            raise ValueError("an #SBATCH line must not contain line breaks or other control characters")
        if not re.match("--?[A-Za-z]", word) and (not before.startswith("-") or "=" in before):
            raise ValueError(f"{word!r} is not an option; quote values with blanks")
        before = word
    if not words:
        raise ValueError("the line is empty")
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
