"""Compiled functions and mixed precision on several ranks; ``tests/unit/test_compilation.py`` has generated
code."""

import pytest
import torch
from everything import method, problem
from games import configuration

import mpifed.core.autodiff as autodiff
from mpifed import run
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.simulation.simulation import Simulation

pytestmark = pytest.mark.mpi


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    monkeypatch.setattr(autodiff, "BACKEND", "eager")


def job(out, **settings):
    return configuration(
        method("FGDA"), problem("RobustRegression"), out, dtype="float32", reduction="exact", **settings
    )


@pytest.mark.parametrize(
    "settings",
    [
        dict(group=1, compile="default"),
        dict(group=1, compile="reduce-overhead", autocast="bfloat16"),
        dict(group=2, autocast="bfloat16"),
    ],
    ids=str,
)
def test_layouts_are_bitwise_identical(comm, out, settings):
    """Every rank compares with a run in one process."""
    found = run(job(out, **settings), comm).point
    alone = run(job(f"{out}/{comm.rank}", **settings), SerialComm()).point
    assert all(torch.equal(found[block], alone[block]) for block in alone)
    assert {block.dtype for block in found.values()} == {torch.float32}


def test_a_missing_compiler_on_one_rank_is_reported_on_all(comm, out, monkeypatch):
    """The last rank hosts clients on every layout."""

    def missing(graph, inputs):
        raise RuntimeError("no compiler")

    if comm.rank == comm.size - 1:
        monkeypatch.setattr(autodiff, "BACKEND", missing)
    with pytest.raises(CollectiveError, match="run.compile = 'default': expected .* got .*no compiler"):
        Simulation.from_settings(job(out, group=1, compile="default"), comm)
