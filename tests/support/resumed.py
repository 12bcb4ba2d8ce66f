"""Runs on several ranks compared with plain loops, with one process and with resumed runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from games import trace

from mpifed import resume, run

#: Costs that are measured.
TIMES = ("seconds", "compute_seconds", "communication_seconds")


def bits(result) -> np.ndarray:
    """Return the output point with all blocks."""
    return torch.cat([block.cpu() for block in result.point.values()]).numpy()


def iterates(result) -> np.ndarray:
    """Return the points after every round with all blocks, ``[rounds, d]``."""
    return np.concatenate(list(result.iterates.values()), axis=1)


def assert_same(result, other, measured: bool = True) -> None:
    """Assert that two results have the same values bit for bit; their times only if ``measured``."""
    assert result.history == other.history and result.metrics == other.metrics
    for name in ("costs", "iterates", "point"):
        ours, theirs = getattr(result, name), getattr(other, name)
        assert list(ours) == list(theirs)
        for key in ours:
            if measured or key not in TIMES:
                np.testing.assert_array_equal(ours[key], theirs[key])
                assert ours[key].dtype == theirs[key].dtype, key


def resumed(comm, folder):
    """Resume a run from its checkpoint of round 2, in ``folder/part``."""
    if comm.rank == 0:
        Path(folder, "part").mkdir()
        for path in (*Path(folder).glob("checkpoint-0000000[0-2]*"), Path(folder, "history.bin")):
            shutil.copy(path, f"{folder}/part")
    comm.barrier()
    return resume(f"{folder}/part", comm=comm)


def flat(points) -> np.ndarray:
    """Return points, tuples of blocks or vectors, as rows."""
    return np.array([torch.cat(tuple(point)).numpy() for point in points])


def assert_path(
    comm, config, expected: Callable[[], np.ndarray], tolerance: float = 1e-10, moves: float = 1e-3
) -> None:
    """Assert that a run has the path of the plain loops, in which every coordinate moves, on all ranks."""
    path, _ = trace(config, comm)
    first = path.copy()
    comm.bcast_(first)
    np.testing.assert_array_equal(path, first)
    if comm.rank == 0:
        wanted = expected()
        np.testing.assert_allclose(path, wanted, rtol=tolerance, atol=tolerance)
        assert (np.abs(np.diff(wanted, axis=0)).max(0) > moves).all()


def assert_resumed(comm, out, config, expected: Callable[[], np.ndarray]) -> None:
    """Assert that a run, the run resumed after round 2 and a run in one process are bitwise identical, and
    equal to the plain loops."""
    whole = run(config, comm)
    if comm.rank == 0:
        alone, _ = trace(config)
        np.testing.assert_array_equal(iterates(whole), alone)
        np.testing.assert_allclose(alone, expected(), rtol=1e-10, atol=1e-10)
    part = resumed(comm, out)
    if comm.rank == 0:
        np.testing.assert_array_equal(iterates(part), iterates(whole))
