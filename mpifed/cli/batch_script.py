"""The text of a batch script for Slurm.

A script holds ``#SBATCH`` lines and one command. How the ranks are started, how a warning signal reaches
them and how a job goes back into the queue stands in ``launcher.sh``, which every script sources from the
package.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MARK", "Batch", "seconds"]

#: Second line of every script; a file without it is not replaced.
MARK = "# mpifed launch "

_TAIL = """\
here=$(python -c 'from importlib.util import find_spec; print(find_spec("mpifed")\
.submodule_search_locations[0])') ||
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
        limit = seconds(self.time) if self.time else None
        if limit and limit <= self.warning:
            found.append(
                f"the time limit of {limit} s lies before the warning, {self.warning} s ahead of it: "
                "see --warning"
            )
        return found


def seconds(time: str) -> int | None:
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
