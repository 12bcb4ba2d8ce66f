"""The package as users install it: a wheel in an environment outside the checkout, in a folder with a
space."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import filelock
import launch
import pytest

ROOT = Path(__file__).parents[2]
#: Sources of a wheel.
SOURCES = ("mpifed", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")
LIMIT = 240


def build(place: Path) -> None:
    """Create an environment ``place/venv`` with the wheel and the libraries of this interpreter."""
    for name in SOURCES:  # builds leave files next to the sources
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, place / "sources" / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    call(place, *pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", place, place / "sources")
    venv.create(place / "venv", symlinks=True)
    python = place / "venv" / "bin" / "python"
    call(place, *pip, "--python", python, "install", "--no-deps", "--no-index", next(place.glob("*.whl")))
    site = next((place / "venv" / "lib").glob("python*/site-packages"))
    libraries = [path for path in sys.path if path.endswith("-packages")]
    (site / "libraries.pth").write_text("\n".join(libraries))


def call(folder: Path, *words, code: int = 0) -> str:
    """Return the output of a program that has no access to the checkout and must exit with ``code``."""
    hidden = "PYTHONPATH", "MPIFED_DATA"
    variables = {name: value for name, value in launch.environment().items() if name not in hidden}
    variables["PYTHONWARNINGS"] = "default"  # pip and setuptools have warnings
    done = subprocess.run(
        [*map(str, words)], cwd=folder, env=variables, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr if code else done.stdout


@pytest.fixture(scope="session")
def place(tmp_path_factory) -> Path:
    """Return the folder of the environment ``venv``, which all processes of a test session share."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if os.environ.get("PYTEST_XDIST_WORKER") else own
    place = shared / "a place"
    with filelock.FileLock(shared / "place.lock"):
        if not (place / "made").exists():
            place.mkdir()
            build(place)
            (place / "made").touch()
    return place


@pytest.fixture
def user(place, tmp_path):
    """Return ``user("mpifed", "run", "job.toml", ranks=2)``, which runs a program of the environment in the
    initially empty folder ``user.folder`` and returns its output. ``user.write({name: text})`` writes files.
    """

    def run(program: str, *words, ranks: int = 0, code: int = 0) -> str:
        launcher = [launch.mpirun_path(), "-n", str(ranks)] if ranks else []
        return call(tmp_path, *launcher, place / "venv" / "bin" / program, *words, code=code)

    def write(files: dict[str, str]) -> None:
        for name, text in files.items():
            (tmp_path / name).write_text(text)

    run.folder, run.write = tmp_path, write
    return run
