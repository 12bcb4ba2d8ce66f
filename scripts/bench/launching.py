"""Functions shared by the benchmarks, e.g. to run a script on several ranks of this machine."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

LAUNCHER_VARIABLES = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDRA_", "SLURM_")
SETTINGS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",  # Open MPI 4
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_btl": "^ofi",  # the scan for fabrics takes a second a launch
    "OMPI_MCA_mpi_yield_when_idle": "1",  # ranks may outnumber cores
    "OMP_NUM_THREADS": "1",
}
#: Prefix of a line of the output that contains a result.
MARK = "bench-result "


def processor() -> str:
    """Return the name of the processor, with family and model, because generations can have the same name."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    found = [re.search(rf"^{key}\s*: (.+)$", text, re.M) for key in ("model name", "cpu family", "model")]
    name, family, model = (match[1] if match else "?" for match in found)
    vectors = "AVX-512" if re.search(r"^flags.*\bavx512f\b", text, re.M) else "no AVX-512"
    return f"{name} (family {family}, model {model}, {vectors})"


def send(result: dict) -> None:
    """Send a result to the process that has called :func:`launch`; called on rank 0."""
    print(MARK + json.dumps(result), flush=True)


def mpirun() -> str | None:
    """Return the path of mpirun: next to the interpreter, on PATH, or in the folder into which pip has
    installed mpi4py and an MPI library; ``None`` if there is none."""
    beside = [Path(sys.executable).parent / "mpirun"]
    package = find_spec("mpi4py")
    parents = list(Path(package.origin).parents)[1:5] if package and package.origin else []
    around = [folder / "bin" / "mpirun" for folder in parents]
    found = [next((str(file) for file in files if file.exists()), None) for files in (beside, around)]
    return found[0] or shutil.which("mpirun") or found[1]


def launch(ranks: int, script: str, arguments: list[str]) -> Iterator[dict]:
    """Run a script on ``ranks`` ranks and yield its results as they arrive; its other output is printed.

    Ends this process with an error message if there is no mpirun, or if the job fails.
    """
    launcher = mpirun()
    if launcher is None:
        sys.exit("no mpirun next to the interpreter, on PATH or next to mpi4py: install an MPI library")
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(LAUNCHER_VARIABLES)
    } | SETTINGS
    checkout = str(Path(__file__).resolve().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), checkout]))
    command = [launcher, "-n", str(ranks), sys.executable, script, *arguments]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as job:
        for line in job.stdout:
            if line.startswith(MARK):
                yield json.loads(line[len(MARK) :])
            else:
                print(line, end="")
    if job.returncode:
        sys.exit(f"the job on {ranks} ranks failed with exit code {job.returncode}")


def started(config, comm):
    """Return a simulation after its first two rounds, which are slower because of additional checks."""
    from mpifed.simulation.simulation import Simulation

    simulation = Simulation.from_settings(config, comm)
    simulation.start()
    for _ in range(2):
        simulation.step()
    return simulation


def write_json(path: Path | None, table) -> None:
    """Write a table of results, if a path is given."""
    if path:
        path.write_text(json.dumps(table, indent=1) + "\n")
