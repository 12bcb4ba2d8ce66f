"""Processes of a job that a test has started."""

from __future__ import annotations

import time
from pathlib import Path

RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")


def _children() -> dict[int, list[int]]:
    """Return the children of each process of the machine."""
    found: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):  # it has ended in the meantime
            continue
        found.setdefault(parent, []).append(int(place.name))
    return found


def descendants(pid: int) -> list[int]:
    """Return all descendants of ``pid``."""
    children, found = _children(), [pid]
    for one in found:
        found += children.get(one, [])
    return found[1:]


def ranks(launcher: int) -> dict[int, int]:
    """Return the processes by rank that ``launcher`` has started so far."""
    found = {}
    for pid in sorted(descendants(launcher)):
        try:
            variables = dict(
                pair.split("=", 1)
                for pair in Path(f"/proc/{pid}/environ").read_text().split("\0")
                if "=" in pair
            )
        except OSError:
            continue
        for name in RANK_VARIABLES:
            if name in variables:
                found.setdefault(
                    int(variables[name]), pid
                )  # a child of a rank has the same variables and a later number
    return found


def alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_for_the_end(pids, seconds: float) -> bool:
    """Return whether all of ``pids`` end within ``seconds``; a launcher may end shortly before the ranks it
    has killed."""
    end = time.monotonic() + seconds
    while any(map(alive, pids)):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def segments(pids) -> set[Path]:
    """Return the files in shared memory that processes have mapped, which a killed job leaves behind."""
    found = set()
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        except OSError:
            continue
        found |= {
            Path(line[line.index("/dev/shm/") :].split(" ")[0]) for line in lines if "/dev/shm/" in line
        }
    return found


def all_ranks(process, size: int) -> dict[int, int]:
    """Wait until ``process`` has started ``size`` ranks (0: itself only); return the processes by rank."""
    if size == 0:
        return {0: process.pid}
    return wait_until(lambda: found if len(found := ranks(process.pid)) == size else None)


def wait_until(condition, seconds: float = 60.0):
    """Return the first true value of ``condition()``.

    Raises:
        AssertionError: there is none within ``seconds``.
    """
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"not true after {seconds} s"
        time.sleep(0.05)
    return value
