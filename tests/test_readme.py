"""The README's files are written and its commands are run, in order, in one folder."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from launch import environment, mpirun_path

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README.read_text(), re.S)
FILES = {re.match(r"# (\S+)", text)[1]: text for language, text in BLOCKS if language in ("toml", "python")}
COMMANDS = [line for language, text in BLOCKS if language == "bash" for line in text.strip().splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("readme")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_command(folder, command):
    words = shlex.split(command, comments=True)
    names = {
        "mpirun": [mpirun_path()],
        "mpifed": [sys.executable, "-m", "mpifed"],
        "python": [sys.executable],
    }
    done = subprocess.run(
        [part for word in words for part in names.get(word, [word])],
        cwd=folder,
        env=environment(),
        timeout=120,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert "FAILS" not in done.stdout, done.stdout


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".py")])
def test_examples_are_short(name):
    assert len(FILES[name].strip().splitlines()) - 1 < 40


def test_every_job_file_is_valid():
    from mpifed.config.job import Config

    jobs = sorted((README.parent / "jobs").glob("*.toml"))  # those of jobs/papers: test_job_files.py
    assert jobs
    for job in jobs:
        Config.load(job)


def test_scripts_exist_where_the_readme_says():
    for script in re.findall(r"^scripts/\S+", README.read_text(), re.M):
        assert shutil.which(README.parent / script), script
