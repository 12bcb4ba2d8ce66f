"""Help, the version, completion and status load no large library, and a run none that it does not use."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from runfiles import decay, write
from small_job import LIMIT

from mpifed.algorithms import ALGORITHMS
from mpifed.cli.completion import names, settings
from mpifed.cli.main import cli
from mpifed.config.job import SECTIONS
from mpifed.config.tuning import Tune
from mpifed.problems import PROBLEMS

DIGITS = Path(__file__).parents[2] / "jobs" / "digits_auc.toml"
#: Each takes a tenth of a second or more, torch more than a second.
LARGE = {"torch", "scipy", "sklearn", "pydantic", "h5py", "mpi4py", "matplotlib", "rich", "jinja2", "PIL"}
LARGE |= {"pandas", "bokeh", "safetensors"}
SCRIPT = """
import atexit, sys
sys.argv[0] = "mpifed"
atexit.register(lambda: print("loaded:", *{name.partition(".")[0] for name in sys.modules}, *sys.modules))
from mpifed.cli.entry import main
main()
"""


def answer(*arguments: str, **variables: str) -> tuple[str, set[str]]:
    """What the command says, and the libraries and modules that its process has loaded."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env=os.environ | variables,
    )
    said, _, loaded = done.stdout.rpartition("loaded:")
    assert loaded and not done.stderr, done.stderr
    return said, set(loaded.split())


def commands(group: click.Group, *path: str):
    yield path
    for name, one in group.commands.items():
        if isinstance(one, click.Group):
            yield from commands(one, *path, name)
        else:
            yield *path, name


@pytest.mark.parametrize("command", list(commands(cli)), ids=" ".join)
def test_help_loads_no_large_library(command):
    said, loaded = answer(*command, "--help")
    assert "Usage: mpifed" in said and not loaded & LARGE


def test_the_version_loads_no_large_library():
    said, loaded = answer("--version")
    assert "mpifed" in said and not loaded & LARGE


COMPLETED = [
    *(("mpifed re", "resume", True), ("mpifed run --re", "--resume", True)),
    *(("mpifed info Ada", "AdaFGDA", False), ("mpifed run job.toml run.ev", "run.eval_every=", False)),
]


@pytest.mark.parametrize("words, expected, quick", COMPLETED)
def test_completion(words, expected, quick):
    """Commands and options are completed without large libraries, names and settings from the package."""
    number = str(len(words.split()) - 1)
    said, loaded = answer(_MPIFED_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=number)
    assert expected in said and not (quick and loaded & LARGE)


def test_where_runs_stand_is_read_with_hdf5_alone(tmp_path):
    run = write(tmp_path / "a", auc=decay(0.1))
    shutil.copytree(run, tmp_path / "b")
    (tmp_path / "b" / "checkpoint-00000020.h5").write_bytes(b"damaged")
    (tmp_path / "b" / "run.h5").unlink()
    said, loaded = answer("status", str(tmp_path))
    assert "1 finished, 1 damaged" in said and loaded & LARGE == {"h5py"}


def test_a_run_loads_only_what_it_uses(tmp_path):
    settings = ["rounds=1", "run.progress=false", f"run.out={tmp_path / 'run'}"]
    _, loaded = answer("run", str(DIGITS), "--no-report", *settings)
    assert loaded & LARGE == {"torch", "pydantic", "h5py"}


def test_completion_knows_every_method_problem_section_and_setting():
    sections = SECTIONS | {"tune": Tune}
    assert {*ALGORITHMS, *PROBLEMS, *sections} == set(names(None, None, ""))
    keys = {f"{name}.{key}=" for name, section in sections.items() for key in section.model_fields}
    assert keys <= set(settings(None, None, ""))
