"""The package as others get it: a wheel, in an environment without the checkout, in a folder with a space."""

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from launch import environment

import mpifed

ROOT = Path(__file__).parents[1]
JOB = """
rounds = 2
[algorithm]
name = "FGDA"
q = 2
gamma = 0.01
lam = 0.01
[problem]
name = "Saddle"
clients = 2
[run]
progress = false
"""


def run(place, *words) -> str:
    """What a command prints that sees nothing of the checkout."""
    variables = {name: value for name, value in environment().items() if name != "PYTHONPATH"}
    variables["PYTHONWARNINGS"] = "default"  # of pip and setuptools
    done = subprocess.run(words, cwd=place, env=variables, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with an environment ``venv`` that has the wheel, and this interpreter's libraries after it."""
    place = tmp_path_factory.mktemp("a place")
    for name in (
        "mpifed",
        "setup.cfg",
        "pyproject.toml",
        "README.md",
        "LICENSE",
    ):  # builds leave files beside the sources
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, place / "sources" / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run(place, *pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", place, place / "sources")
    venv.create(place / "venv", symlinks=True)
    python = place / "venv" / "bin" / "python"
    run(place, *pip, "--python", python, "install", "--no-deps", "--no-index", next(place.glob("*.whl")))
    site = next((place / "venv" / "lib").glob("python*/site-packages"))
    libraries = [path for path in sys.path if path.endswith("-packages")]
    (site / "libraries.pth").write_text("\n".join(libraries))
    return place


def test_the_wheel_is_the_package(place):
    program = "import mpifed; print(mpifed.__file__, mpifed.__version__)"
    file, version = run(place, place / "venv" / "bin" / "python", "-c", program).rsplit(maxsplit=1)
    assert Path(file).is_relative_to(place / "venv") and version == mpifed.__version__


def test_its_command_lists_and_runs(place):
    mpifed_ = place / "venv" / "bin" / "mpifed"
    assert "AdaFGDA" in run(place, mpifed_, "list")
    (place / "job.toml").write_text(JOB)
    run(place, mpifed_, "run", "job.toml", f"run.out={place / 'a run'}")
    assert (place / "a run" / "run.h5").exists() and list((place / "a run").glob("*.html"))
