"""The Slurm job that this process belongs to.

Slurm's variables outlive their job: in a shell that has been given the environment of one, in a terminal
that stays when its allocation ends. What they say holds only below the task that Slurm has started.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["slurm_job"]


def slurm_job() -> str | None:
    """The number of the job if Slurm has started this process, or one that it descends from; else ``None``.

    A shell of ``salloc`` belongs to no job: it runs where it was called.
    """
    task = os.environ.get("SLURM_TASK_PID", "")
    if task.isdigit() and int(task) in _ancestors():
        return os.environ.get("SLURM_JOB_ID")
    return None


def _ancestors() -> set[int]:
    """This process, its parent, and so on; empty where the system does not tell."""
    found, process = set(), os.getpid()
    while process > 0 and process not in found:
        found.add(process)
        try:  # the name of the program, in parentheses, may hold anything
            process = int(Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[1])
        except OSError:
            break
    return found
