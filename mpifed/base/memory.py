"""Size of the available and of the used memory, and formatting of sizes in bytes."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["format_bytes", "host_memory", "resident_memory"]


def host_memory() -> int:
    """Return the memory in bytes that the processes of this node may use, as limited by control groups."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            root = Path("/sys/fs/cgroup", controllers)
            folder = root / path.lstrip("/")
            for group in (folder, *folder.parents):
                if group.is_relative_to(root):
                    limits += _limit(group)
    return min(limits)


def _limit(group: Path) -> list[int]:
    """Return the memory limit of a control group in bytes, or an empty list."""
    for name in ("memory.max", "memory.limit_in_bytes"):
        try:
            return [int((group / name).read_text())]
        except (OSError, ValueError):  # no limit: the file is missing or contains "max"
            continue
    return []


def resident_memory() -> tuple[int, int]:
    """Return the memory in bytes that this process has now, and its maximum so far.

    Pages that it shares with other processes are included.
    """
    # The maximum of `getrusage` includes the process that has started this one.
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    sizes = {words[0]: 1024 * int(words[1]) for words in lines if words[-1:] == ["kB"]}
    return sizes["VmRSS:"], sizes["VmHWM:"]


def format_bytes(size: int) -> str:
    """Format a number of bytes in MiB, GiB or TiB."""
    if size < 2**30:
        return f"{size / 2**20:,.1f} MiB"
    return f"{size / 2**30:,.1f} GiB" if size < 2**50 else f"{size / 2**40:.3g} TiB"
