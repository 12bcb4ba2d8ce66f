"""The extras of setup.cfg, and a package without their libraries."""

import ast
import configparser
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from small_job import LIMIT

import mpifed
from mpifed.base.errors import EXTRAS, MissingExtra
from mpifed.parallel.world import world

ROOT = Path(__file__).parents[2]
JOB = ROOT / "jobs" / "saddle.toml"
#: Distributions with another name than their module.
MODULES = {"scikit-learn": "sklearn", "pillow": "PIL", "lazy-loader": "lazy_loader"}
#: Modules that pydantic and jinja2 install and that are part of their interfaces.
INDIRECT = {"pydantic_core", "typing_extensions", "markupsafe"}
#: Removes modules from a process, as if they were not installed.
WITHOUT = "import sys; sys.modules.update(dict.fromkeys({})); from mpifed.__main__ import main; main()"
OPTIONAL = [name for names in EXTRAS.values() for name in names]


def modules(requirements: str) -> set[str]:
    """Return the modules of requirements, one per line; other extras are left out."""
    names = [re.match(r"[\w-]+\[?", line)[0] for line in requirements.splitlines() if line.strip()]
    return {MODULES.get(name, name) for name in names if not name.endswith("[")}


def setup() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def test_extras_are_those_of_setup_cfg():
    extras = setup()["options.extras_require"]
    assert {name: set(names) for name, names in EXTRAS.items()} == {
        name: modules(extras[name]) for name in extras if name not in ("dev", "test", "docs")
    }


def test_every_imported_library_is_declared():
    imported = set()
    for file in Path(mpifed.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            imported |= {name.partition(".")[0] for name in names}
    libraries = imported - sys.stdlib_module_names - {"mpifed"}
    declared = modules(setup()["options"]["install_requires"]) | set(OPTIONAL)
    assert libraries - INDIRECT <= declared


ROOMS = [("report", "pandas", "plots"), ("diagnostics", "matplotlib", "plots"), ("tuning", "optuna", "tune")]


@pytest.mark.parametrize("room, library, extra", ROOMS)
def test_a_room_names_its_extra(room, library, extra, monkeypatch):
    module = importlib.import_module(f"mpifed.{room}")
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtra, match=rf"{library}\): pip install 'mpifed\[{extra}\]'$"):
        importlib.reload(module)


def without(modules: list[str], *arguments: object, **variables: str) -> subprocess.CompletedProcess:
    """Run a command in a process in which some modules are not installed."""
    words = [sys.executable, "-c", WITHOUT.format(modules), *map(str, arguments)]
    environment = os.environ | variables
    return subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, env=environment)


def test_one_process_runs_without_extras(tmp_path):
    settings = "rounds=1", "run.progress=false", f"run.out={tmp_path / 'run'}"
    done = without(OPTIONAL, "run", JOB, *settings)
    assert done.returncode == 0 and (tmp_path / "run" / "run.h5").exists(), done.stderr
    sentence = (
        "the run is finished, without a report: reports and figures need the extra 'plots' (not installed: "
    )
    assert f"{sentence}bokeh, jinja2, matplotlib, pandas)" in done.stderr
    assert not list((tmp_path / "run").glob("*.html"))


def test_ranks_need_mpi4py(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(MissingExtra, match=r"under mpirun or srun need .*'mpifed\[mpi\]'"):
        world()


def test_mpi4py_without_a_library(tmp_path):
    """The error of mpi4py's wheels, which load a library when they are imported."""
    nowhere = {"OMPI_COMM_WORLD_SIZE": "2", "MPI4PY_LIBMPI": str(tmp_path / "libmpi.so")}
    done = without([], "run", JOB, **nowhere)
    assert done.returncode == 71 and not done.stdout
    assert done.stderr.startswith("mpifed: mpi4py cannot load an MPI library: install one")
    assert len(done.stderr.splitlines()) == 1
