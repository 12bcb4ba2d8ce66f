"""Commands that only inspect a job or a run do not execute its code without --allow-code."""

from importlib import metadata
from pathlib import Path

import pytest
from commands import error_of, output_of

import mpifed
from mpifed.base import plugins
from mpifed.base.plugins import refused_code
from mpifed.config.plugins import find_class
from mpifed.parallel.comm import SerialComm

#: A problem and a network in a file that creates another file when it is executed.
PLUGIN = """
from pathlib import Path
Path("executed").touch()
import torch
from mpifed.problems import DeepAUC


class Mine(DeepAUC):
    pass


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.last = torch.nn.Linear(64, 1)
        self.register_buffer("shift", torch.full((64,), 0.25))

    def forward(self, images):
        return self.last(images.flatten(1) - self.shift)
"""
JOB = """
rounds = 2
algorithm = { name = "LocalSGDA", q = 1, eta_x = 0.1, eta_y = 0.1 }
oracle = { batch_size = 2 }
run = { progress = false, out = "out" }
[problem]
name = "./stranger.py:Mine"
dataset = "digits"
clients = 2
model = "./stranger.py:Net"
"""
SWEEP, TUNE = "[sweep]\nseed = [0, 1]\n", '[tune]\nmethods = [{ name = "LocalSGDA", q = [1, 2] }]\n'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Job files that name user code, and a finished run. The code is not loaded."""
    monkeypatch.chdir(tmp_path)
    Path("stranger.py").write_text(PLUGIN)
    Path("job.toml").write_text(JOB)
    Path("sweep.toml").write_text(JOB + SWEEP)
    Path("tune.toml").write_text(JOB + "validation = 0.2\n" + TUNE)
    mpifed.run("job.toml", SerialComm(), overrides=["run.out=done"])
    unload()
    return tmp_path


def unload():
    """Unload the file, so that loading it again executes it."""
    plugins._loaded.clear()
    Path("executed").unlink(missing_ok=True)


@pytest.mark.parametrize(
    "words",
    [
        "status", "status done", "status job.toml", "status sweep.toml", "sweep sweep.toml --list", "list",
        "export done --to w.safetensors", "report done", "report done --cite", "launch job.toml --help",
    ],
)  # fmt: skip
def test_commands_that_need_no_code(folder, words):
    output_of(*words.split())
    assert not Path("executed").exists()


@pytest.mark.parametrize(
    "words",
    [
        "info job.toml", "launch job.toml --dry-run", "launch sweep.toml --parts 2 --dry-run",
        "launch job.toml --array seed=0,1 --dry-run", "tune tune.toml --list",
    ],
)  # fmt: skip
def test_commands_that_need_code_require_allow_code(folder, words):
    text = error_of(*words.split())
    assert "./stranger.py:Mine is user-defined code, which would be executed" in text
    assert "--allow-code" in text
    assert not Path("executed").exists()
    output_of(*words.split(), "--allow-code")
    assert Path("executed").exists()


def test_reading_a_run_in_python_executes_no_code_but_creating_its_network_does(folder):
    result = mpifed.load("done")
    mpifed.frame(["done"])
    assert result.metrics and not Path("executed").exists()
    assert type(result.model()).__name__ == "Net" and Path("executed").exists()


def test_modules_and_entry_points_are_refused_as_code(monkeypatch):
    installed = [metadata.EntryPoint("Theirs", "their.package:Method", "mpifed.algorithms")]
    monkeypatch.setattr(metadata, "entry_points", lambda group: installed)
    for name in ("their.package:Method", "Theirs"):
        with (
            refused_code("no"),
            pytest.raises(mpifed.ConfigError, match=f"{name} is user-defined code.* executed: no"),
        ):
            find_class(name, "algorithm")
