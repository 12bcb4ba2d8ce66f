"""Help, version, completion and status import no large library, and a run imports only what it uses."""

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
from mpifed.cli.main import cli
from mpifed.cli.options import complete_name, complete_setting
from mpifed.config.job import SECTIONS
from mpifed.config.tuning import Tune
from mpifed.problems import PROBLEMS

DIGITS = Path(__file__).parents[2] / "jobs" / "digits_auc.toml"
#: Importing each of them takes a tenth of a second or more.
LARGE = {"torch", "scipy", "sklearn", "pydantic", "h5py", "mpi4py", "matplotlib", "rich", "jinja2", "PIL"}
LARGE |= {"pandas", "bokeh", "safetensors"}
SCRIPT = """
import ast, atexit, sys
commands = ast.literal_eval(sys.argv[1])
atexit.register(lambda: print("loaded:", *{name.partition(".")[0] for name in sys.modules}, *sys.modules))
from mpifed.__main__ import main
for arguments in commands:
    sys.argv = ["mpifed", *arguments]
    try:
        main()
    except SystemExit:
        pass
"""


def invoke(*commands: list[str], **variables: str) -> tuple[str, set[str]]:
    """Return the output of commands in one process, and the libraries and modules that it has imported."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, repr(commands)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env=os.environ | variables,
    )
    output, _, loaded = done.stdout.rpartition("loaded:")
    assert loaded and not done.stderr, done.stderr
    return output, set(loaded.split())


def commands(group: click.Group, *path: str):
    yield path
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        else:
            yield *path, name


def test_help_and_the_version_import_no_large_library():
    helps = [[*command, "--help"] for command in commands(cli)]
    output, loaded = invoke(["--version"], *helps)
    assert output.startswith("mpifed") and output.count("Usage: mpifed") == len(helps) > 10
    assert not loaded & LARGE


CLASSES = {"mpifed.algorithms", "mpifed.problems"}
COMPLETED = [
    *(("mpifed re", "resume", LARGE), ("mpifed run --re", "--resume", LARGE)),
    *(("mpifed info Ada", "AdaFGDA", set()), ("mpifed run job.toml run.ev", "run.eval_every=", CLASSES)),
]


@pytest.mark.parametrize("words, expected, excluded", COMPLETED)
def test_completion(words, expected, excluded):
    """Commands and options are completed without large libraries, settings without methods and problems."""
    number = str(len(words.split()) - 1)
    output, loaded = invoke([], _MPIFED_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=number)
    assert expected in output and not loaded & excluded


def test_status_imports_only_h5py(tmp_path):
    run = write(tmp_path / "a", auc=decay(0.1))
    shutil.copytree(run, tmp_path / "b")
    (tmp_path / "b" / "checkpoint-00000020.h5").write_bytes(b"damaged")
    (tmp_path / "b" / "run.h5").unlink()
    output, loaded = invoke(["status", str(tmp_path)])
    assert "1 finished, 1 damaged" in output and loaded & LARGE == {"h5py"}


def test_a_run_imports_only_what_it_uses(tmp_path):
    settings = ["rounds=1", "run.progress=false", f"run.out={tmp_path / 'run'}"]
    _, loaded = invoke(["run", str(DIGITS), "--no-report", *settings])
    assert loaded & LARGE == {"torch", "pydantic", "h5py"}
    assert not loaded & {"torch._dynamo", "torch._inductor"}, "importing torch's compiler takes seconds"


def test_the_report_of_one_run_does_not_import_pandas(tmp_path):
    run = write(tmp_path / "a", auc=decay(0.1))
    output, loaded = invoke(["report", str(run), "--out", str(tmp_path / "report")])
    assert "report.html" in output and "matplotlib" in loaded and "pandas" not in loaded


def test_completion_of_every_method_problem_section_and_setting():
    sections = SECTIONS | {"tune": Tune}
    assert {*ALGORITHMS, *PROBLEMS, *sections} == set(complete_name(None, None, ""))
    keys = {f"{name}.{key}=" for name, section in sections.items() for key in section.model_fields}
    assert keys <= set(complete_setting(None, None, ""))
