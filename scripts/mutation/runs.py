"""Test runs in forks of a process that has imported the heavy libraries but not mpifed.

Every run has its package from a copy of the checkout, so that a faulty line never stands in the checkout, and
the processes that a test starts find the same line.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

__all__ = ["ROOT", "copy_of_the_checkout", "fork", "preload", "pytest_in"]

ROOT = Path(__file__).resolve().parents[2]


def preload() -> None:
    """What takes seconds to import, once. Initialises no MPI and starts no thread."""
    import h5py  # noqa: F401
    import hypothesis  # noqa: F401
    import jinja2  # noqa: F401
    import matplotlib.figure  # noqa: F401
    import mpi4py  # noqa: F401
    import pydantic  # noqa: F401
    import pytest  # noqa: F401
    import rich.console  # noqa: F401
    import scipy.stats  # noqa: F401
    import sklearn.datasets  # noqa: F401
    import torch.func  # noqa: F401


def copy_of_the_checkout(folder: Path) -> Path:
    """Files that git knows or would add, below ``folder``."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def fork(work: Callable[[], int], tree: Path, limit: float) -> int | None:
    """The exit code of ``work`` in a process of its own below ``tree``; None after ``limit`` seconds.

    The process leads a session; whatever is left of it is killed.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setsid()
            code = _child(work, tree)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    until, code = time.monotonic() + limit, None
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            break
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if code is None:
        os.waitpid(child, 0)
    return code


def _child(work: Callable[[], int], tree: Path) -> int:
    log = os.open(tree.parent / f"{tree.name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    sys.stdout = open(1, "w", closefd=False)
    sys.stderr = open(2, "w", closefd=False)
    temporary = tree.parent / f"{tree.name}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    os.chdir(tree)
    os.environ.update(PYTHONPATH=str(tree), TMPDIR=str(temporary))
    sys.path[:] = [str(tree), *(item for item in sys.path if item not in (str(ROOT), ""))]
    try:
        return work()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def pytest_in(tree: Path, *arguments: str, plugins: tuple = ()) -> int:
    """pytest in this process; the tests of several ranks run on one."""
    import pytest

    base = tree.parent / f"{tree.name}.tmp" / "pytest"
    ranks = ["--with-mpi"] if any(item.startswith("tests/parallel/") for item in arguments) else []
    return int(pytest.main([*ranks, f"--basetemp={base}", *arguments], plugins=[*plugins]))
