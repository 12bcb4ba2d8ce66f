"""Jobs of their own on some ranks of this machine, for the benchmarks: launched, and their results read."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

LAUNCHER_VARIABLES = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDRA_", "SLURM_")
SETTINGS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_btl": "^ofi",  # the scan for fabrics takes a second a launch
    "OMPI_MCA_mpi_yield_when_idle": "1",  # ranks may outnumber cores
    "OMP_NUM_THREADS": "1",
}
#: Begins a line of a job's output that holds a result.
MARK = "bench-result "


def processor() -> str:
    """The processor's name with its family and model, which tell generations of one name apart."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    found = [re.search(rf"^{key}\s*: (.+)$", text, re.M) for key in ("model name", "cpu family", "model")]
    name, family, model = (match[1] if match else "?" for match in found)
    vectors = "AVX-512" if re.search(r"^flags.*\bavx512f\b", text, re.M) else "no AVX-512"
    return f"{name} (family {family}, model {model}, {vectors})"


def tell(result: dict) -> None:
    """Hand a result to the process that has launched this job; on rank 0."""
    print(MARK + json.dumps(result), flush=True)


def launch(ranks: int, script: str, arguments: list[str]) -> Iterator[dict]:
    """The results of a script on ``ranks`` ranks as they come; what else it prints is shown.

    Ends this process with a sentence where there is no mpirun, or the job fails.
    """
    beside = Path(sys.executable).parent / "mpirun"
    mpirun = str(beside) if beside.exists() else shutil.which("mpirun")
    if mpirun is None:
        sys.exit("no mpirun beside the interpreter or on the path: install an MPI")
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(LAUNCHER_VARIABLES)
    } | SETTINGS
    checkout = str(Path(__file__).resolve().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), checkout]))
    command = [mpirun, "-n", str(ranks), sys.executable, script, *arguments]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as job:
        for line in job.stdout:
            if line.startswith(MARK):
                yield json.loads(line[len(MARK) :])
            else:
                print(line, end="")
    if job.returncode:
        sys.exit(f"the job on {ranks} ranks failed with exit code {job.returncode}")
