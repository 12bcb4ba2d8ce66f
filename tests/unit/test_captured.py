"""Captured output carries no escape codes, whatever the terminal can do, nor where mpirun shows ranks one."""

import os
import subprocess
import sys

import pytest
from launch import environment, mpirun_path
from runfiles import decay, write
from small_job import LIMIT

JOB = """
rounds = 3
algorithm = { name = "FGDA", q = 2, gamma = 0.01, lam = 0.01 }
problem = { name = "Saddle", clients = 4, d = 3 }
run = { out = "run" }
[sweep]
seed = [0, 1]
"""
COMMANDS = [
    ["list"], ["info", "AdaFGDA"], ["info", "run"], ["report", "a", "b"], ["status"], ["status", "--follow"],
    ["check", "FGDA", "q=2", "gamma=0.01", "lam=0.01"], ["launch", "sweep.toml", "--parts", "2", "--dry-run"],
    ["run", "job.toml"], ["run", "job.toml", "rnds=3"], ["sweep", "sweep.toml", "run.out=swept"],
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("captured")
    (folder / "sweep.toml").write_text(JOB)
    (folder / "job.toml").write_text(JOB.partition("[sweep]")[0])
    for name, rate in (("a", 0.1), ("b", 0.2)):
        write(folder / name, auc=decay(rate), error=decay(rate))
    return folder


def captured(folder, *launcher: str, words) -> str:
    variables = {name: value for name, value in environment().items() if name != "NO_COLOR"}
    done = subprocess.run(
        [*launcher, sys.executable, "-m", "mpifed", *words],
        cwd=folder,
        env=variables | {"TERM": "xterm-256color"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == (2 if "rnds=3" in words else 0), done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_one_process(folder, words):
    said = captured(folder, words=words)
    assert said and "\x1b" not in said


def test_two_ranks(folder):
    said = captured(folder, mpirun_path(), "-n", "2", words=["run", "job.toml", "run.out=two"])
    assert "error final" in said and os.path.exists(folder / "two" / "report.html") and "\x1b" not in said
