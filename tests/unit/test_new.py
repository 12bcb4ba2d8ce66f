"""``mpifed new``: templates that run without changes, printed next commands, and existing files."""

import errno
import os
import re
import shlex
from pathlib import Path

import pytest
from commands import error_of, invoke, output_of

from mpifed import Config
from mpifed.base.errors import ConfigError
from mpifed.cli.new import job_text
from mpifed.cli.schema import rows_of
from mpifed.config.plugins import find_class
from mpifed.config.tables import loads


def next_command(output: str) -> list[str]:
    return shlex.split(re.search(r"mpifed ((check|run) [^,\n]*)", output)[1])


@pytest.mark.parametrize("kind", ["method", "problem"])
def test_the_printed_commands_succeed(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    output = output_of("new", kind, "LocalExtra")
    assert "class LocalExtra(" in (tmp_path / "local_extra.py").read_text()
    checked = output_of(*next_command(output))
    assert "FAILS" not in checked and "holds" in checked
    written = output_of(*shlex.split(output.splitlines()[-1].partition("mpifed ")[2]))
    output_of(*next_command(written), "rounds=1", "run.progress=false", "--no-report")
    assert (tmp_path / "runs/job/run.h5").exists()


def test_existing_files_are_not_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words, file in ((["method", "Mine"], "mine.py"), (["job"], "job.toml")):
        (tmp_path / file).write_text("mine")
        assert f"{file} exists and is not replaced" in error_of("new", *words)
        assert (tmp_path / file).read_text() == "mine"
    for name in ("a-b", "class"):
        assert "expected the name of a class" in error_of("new", "method", name)


def test_a_file_that_cannot_be_written(tmp_path, monkeypatch):
    def full(path, *_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "open", full)
    error = invoke("new", "job").exception
    assert isinstance(error, ConfigError) and "cannot write job.toml: No space left" in str(error)


@pytest.mark.parametrize("method, problem", [("FedAvg", None), ("LSGD", None), (None, "SinusoidMAML")])
def test_a_job_contains_every_setting_of_its_method_and_problem(method, problem):
    text = job_text(method, problem, "here")
    assert Config.from_table(loads(text)).run.out == "runs/here"
    for part, name in (("algorithm", method), ("problem", problem)):
        section = text.partition(f"[{part}]\n")[2].partition("\n\n")[0]
        for row in rows_of(find_class(name, part)) if name else ():
            assert re.search(rf"^(# )?{row.name} = ", section, re.M), row.name


def test_comments_of_a_job_are_the_defaults():
    """With all comments activated the job is the same."""
    text = job_text("AdaFGDA", "Saddle", "here")
    head, sign, rest = text.partition("# [oracle]")
    free = re.sub(r"^# (?=\w+ = (?!\.\.\.))", "", head, flags=re.M)
    assert free != head
    assert Config.from_table(loads(free + sign + rest)).table() == Config.from_table(loads(text)).table()
