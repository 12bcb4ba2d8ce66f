#!/usr/bin/env python3
"""Kills random ranks at random times: python scripts/torture.py [--kills N] [--seed S] [--ranks 2,3,4]
[--mpi openmpi|mpich]

The script runs the saddle job with ``reduction = "exact"`` and sends SIGKILL to a random rank (possibly rank
0) at a time that is uniformly distributed over the duration of an uninterrupted run, including start-up. Then
it restarts the same command on a random number of ranks and kills it again, until the job is complete; then
the next job begins. A kill is survived if the launcher and all its ranks end in time with a nonzero exit
code, and if the final point of the job is bitwise identical to that of an uninterrupted run and no partially
written file remains. A kill is not counted if the launcher reports success and the job is complete: the rank
had finished. The exit code of the script is 1 if any kill is not survived.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import h5py

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import launch  # noqa: E402
from processes import ranks, segments, wait_for_the_end, wait_until  # noqa: E402

#: Time limit of a run in seconds, on a busy machine.
PATIENCE = 300
SETTINGS = ["run.reduction=exact", "run.checkpoint_every=5", "run.eval_every=20", "run.progress=false"]


class Torture:
    """Kills runs and counts the kills that were not survived (``lost``)."""

    def __init__(self, options: argparse.Namespace, folder: Path):
        self.options, self.folder, self.random = options, folder, random.Random(options.seed)
        self.length, self.lost = 0.0, 0

    def start(self, out: Path) -> tuple[subprocess.Popen, int]:
        """Start the command on a random number of ranks; return the process and this number."""
        settings = [*SETTINGS, f"rounds={self.options.rounds}", f"run.out={out}", *self.options.settings]
        command = ["-m", "mpifed", "run", ROOT / "jobs" / "saddle.toml", "--no-report", *settings]
        size = self.random.choice(self.options.ranks)
        return launch.start(size, command, mpi=self.options.mpi), size

    def measure(self) -> bytes:
        """Measure the duration of an uninterrupted run; return the bytes of its final point."""
        begin = time.monotonic()
        code, output = launch.finish(self.start(self.folder / "whole")[0], PATIENCE)
        if code:
            sys.exit(f"the uninterrupted run failed with exit code {code}:\n{output}")
        self.length = time.monotonic() - begin
        return final(self.folder / "whole")

    def run(self) -> None:
        """Run jobs one after another until the requested number of kills is reached."""
        whole, done, job = self.measure(), 0, 0
        print(f"an uninterrupted run takes {self.length:.1f} s", flush=True)
        while done < self.options.kills:
            out, job, errors = self.folder / str(job), job + 1, []
            while done + len(errors) < self.options.kills and newest(out) < self.options.rounds:
                error = self.kill(out)
                if error is None:
                    break
                errors.append(error)
            lost = len(errors) if self.complete(out, whole) else sum(map(bool, errors))
            done, self.lost = done + len(errors), self.lost + lost

    def kill(self, out: Path) -> str | None:
        """Start the job and kill a rank.

        Returns:
            A description of the error, "" if there is none, ``None`` if the job was complete before the kill
            took effect.
        """
        process, size = self.start(out)
        begin, moment = time.monotonic(), self.random.uniform(0, self.length)
        pids = wait_until(lambda: ranks(process.pid) or process.poll() is not None, PATIENCE)
        time.sleep(max(0.0, begin + moment - time.monotonic()))
        pids = ranks(process.pid)
        if not pids:  # the job is complete
            launch.finish(process, PATIENCE)
            return None
        victim, left = self.random.choice(sorted(pids)), segments(pids.values())
        with suppress(ProcessLookupError):  # the rank has ended meanwhile
            os.kill(pids[victim], signal.SIGKILL)
        killed = time.monotonic()
        code, output = launch.finish(process, PATIENCE)
        gone = wait_for_the_end(pids.values(), self.options.limit)
        seconds = time.monotonic() - killed
        for path in left:
            path.unlink(missing_ok=True)
        if (
            code == 0 and gone and final(out)
        ):  # the signal came after the results were written and MPI was finalised
            return None
        error = self.judge(code, seconds, gone)
        print(
            f"rank {victim} of {size} at {moment:5.2f} s, newest checkpoint {newest(out):3d}: "
            f"exit code {code:3d} after "
            f"{seconds:.2f} s{': LOST, ' + error if error else ''}",
            flush=True,
        )
        return error

    def judge(self, code: int, seconds: float, gone: bool) -> str:
        """Return the error in the end of a killed run, "" if there is none."""
        if code == 0:
            return "a killed run reports success"
        if seconds > self.options.limit:
            return f"the launcher did not end within {self.options.limit:g} s"
        if not gone:
            return "a rank still runs after the end of the launcher"
        return ""

    def complete(self, out: Path, whole: bytes) -> str:
        """Run the job to its end; return a description of the error, "" if there is none."""
        code, output = launch.finish(self.start(out)[0], PATIENCE)
        if code:
            error = f"the restart failed with exit code {code}:\n{output}"
        elif final(out) != whole:
            error = "the result differs from the uninterrupted run"
        else:
            leftover = list(out.glob("*.tmp.*"))
            error = f"partially written files remain: {leftover}" if leftover else ""
        print(f"  job {out.name} {'LOST: ' + error if error else 'has the same result'}", flush=True)
        return error


def newest(folder: Path) -> int:
    """Return the round of the newest checkpoint."""
    return max((int(path.stem[-8:]) for path in folder.glob("checkpoint-*.h5")), default=0)


def final(folder: Path) -> bytes:
    """Return the bytes of the output point of a run, b"" if the run is not complete."""
    if not (folder / "run.h5").exists():
        return b""
    with h5py.File(folder / "run.h5") as file:
        if not file.attrs["stopped"].startswith("all "):
            return b""
        return file["final/x/x"][...].tobytes() + file["final/y/y"][...].tobytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--ranks",
        type=lambda text: [int(one) for one in text.split(",")],
        default=[2, 3, 4],
        help="numbers of ranks to choose from",
    )
    parser.add_argument("--mpi", choices=["openmpi", "mpich"], default="openmpi")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument(
        "--limit", type=float, default=10.0, help="maximum seconds from a kill to the end of the launcher"
    )
    parser.add_argument("settings", nargs="*", help="KEY=VALUE changes of the job")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mpifed-torture-") as folder:
        torture = Torture(options, Path(folder))
        torture.run()
    print(f"survived {options.kills - torture.lost} of {options.kills}, lost {torture.lost}")
    sys.exit(1 if torture.lost else 0)


if __name__ == "__main__":
    main()
