"""Errors in user code during a run: one screen with the user's lines, exit code 2, and no rank waits."""

import sys

import pytest
from launch import launch

from mpifed.cli.main import main

#: A problem with three clients and one step per round. Rank 0 of two hosts clients 0 and 1, rank 1 client 2.
#: The first four calls are the checks before the first round.
PLUGIN = """
import os

from mpifed.problems import Saddle

RANK = next((os.environ[name] for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK") if name in os.environ), "0")


class Broken(Saddle):
    calls = 0

    def gradients(self, x, y, batch):
        Broken.calls += 1
        if Broken.calls > 9 and RANK in {ranks!r}:
            return wrong(x, y)
        return super().gradients(x, y, batch)


def wrong(x, y):
    return x + y[..., :-1], y  # the sizes do not fit
"""
JOB = """
rounds = 8
algorithm = {{ name = "LocalSGDA", q = 1, eta_x = 0.01, eta_y = 0.01 }}
problem = {{ name = "{folder}/broken.py:Broken", clients = 3, d = 4 }}
oracle = {{ batch_size = 0 }}
run = {{ progress = false, checkpoint_every = 1, group = 1, out = "{folder}/run" }}
"""


@pytest.fixture
def broken(tmp_path):
    """A function that writes a job whose problem raises an error on the given ranks."""

    def make(ranks: str):
        (tmp_path / "broken.py").write_text(PLUGIN.format(ranks=ranks))
        path = tmp_path / "job.toml"
        path.write_text(JOB.format(folder=tmp_path))
        return path

    return make


def is_explained(output: str) -> bool:
    """Return whether the output contains the user's lines, the message and the phase."""
    return all(
        words in output
        for words in (
            "broken.py",
            "return wrong(x, y)",
            "return x + y[..., :-1], y  # the sizes do not fit",
            "The size of tensor a (4) must match the size of tensor b (3)",
            "phase 'round'",
        )
    )


@pytest.mark.parametrize("words", [[], ["--traceback"]], ids=["short", "whole"])
def test_one_screen_with_the_users_lines(broken, words, monkeypatch, capsys):
    job = broken("0")
    monkeypatch.setattr(sys, "argv", ["mpifed", *words, "run", str(job), "--no-report"])
    with pytest.raises(SystemExit) as end:
        main()
    errors = capsys.readouterr().err
    assert end.value.code == 2 and is_explained(errors), errors
    assert "in round 2, client 2, phase" in errors, errors
    assert ("Traceback" in errors) == ("simulation.py" in errors) == bool(words), errors
    assert words or len(errors.splitlines()) < 15, errors
    assert (job.parent / "run" / "checkpoint-00000001.h5").exists(), "earlier rounds remain stored"


@pytest.mark.parametrize("ranks, mpi", [("1", "openmpi"), ("01", "openmpi"), ("0", "mpich"), ("1", "mpich")])
def test_an_error_on_one_rank_ends_all(broken, ranks, mpi):
    """The other ranks wait in an Allreduce. If several ranks fail, the first one reports the error."""
    code, output = launch(2, ["-m", "mpifed", "run", broken(ranks), "--no-report"], limit=120, mpi=mpi)
    assert code == 2 and is_explained(output), output
    assert output.count("the sizes do not fit") == 1 and "Traceback" not in output, output
