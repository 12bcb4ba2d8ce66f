"""The package as others get it: a wheel, in an environment outside the checkout, in a folder with a space."""

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
#: What a wheel is built from.
SOURCES = ("mpifed", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")
LIMIT = 240


def build(place: Path) -> None:
    """An environment ``venv`` in ``place`` that has the wheel, and this interpreter's libraries after it."""
    for name in SOURCES:  # builds leave files beside the sources
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
    """What a program prints that sees nothing of the checkout; it must leave with ``code``."""
    hidden = "PYTHONPATH", "MPIFED_DATA"
    variables = {name: value for name, value in launch.environment().items() if name not in hidden}
    variables["PYTHONWARNINGS"] = "default"  # of pip and setuptools
    done = subprocess.run(
        [*map(str, words)], cwd=folder, env=variables, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr if code else done.stdout


@pytest.fixture(scope="session")
def place(tmp_path_factory) -> Path:
    """The folder of the environment ``venv``; all processes of a test session share it."""
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
    """``user("python", "script.py")``, ``user("mpifed", "run", "job.toml", ranks=2)``: what the environment's
    programs print in the user's folder ``user.folder``, which is empty at first."""

    def run(program: str, *words, ranks: int = 0, code: int = 0) -> str:
        launcher = [launch.mpirun_path(), "-n", str(ranks)] if ranks else []
        return call(tmp_path, *launcher, place / "venv" / "bin" / program, *words, code=code)

    run.folder = tmp_path
    return run
