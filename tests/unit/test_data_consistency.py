"""Data files that differ between ranks or have changed, without MPI, and files of user-defined problems."""

import hashlib
import html
import json

import h5py
import pytest
from games import Game, Reading, configuration

from mpifed import run
from mpifed.algorithms import LocalSGDA
from mpifed.core.problem import DataFile, as_family
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.problems import FairClassification
from mpifed.simulation.data_agreement import _difference, expect_same


def table(**digests: str) -> dict:
    return {name: {"path": f"/data/{name}", "digest": digest} for name, digest in digests.items()}


def test_the_first_of_many_changed_files_is_named():
    names = [f"part {number:03}" for number in range(100)]
    now = {name: DataFile(f"/data/{name}", "1" * 64) for name in reversed(names)}
    for before in ({}, dict.fromkeys(names[1:], "2" * 64)):
        with pytest.raises(CollectiveError, match="^data file part 000 has changed since the checkpoint was"):
            expect_same(before, now)
    expect_same(dict.fromkeys(names, "1" * 64), now)


@pytest.mark.parametrize("tables, expected", [
    ([table(a="1", b=digest * 20, c="4", d=digest) for digest in "232"],
     "data file b differs between ranks: ranks 0, 2 read 222222222222 (/data/b); "
     "rank 1 read 333333333333 (/data/b)"),
    ([table(a="1", b="2"), table(a="1"), table(a="1")],
     "data file b differs between ranks: rank 0 read 2 (/data/b); ranks 1-2 did not read it"),
    ([table(a="1"), {"a": {"path": "/another/copy", "digest": "1"}}], ""),
])  # fmt: skip
def test_the_first_file_that_differs_or_is_missing_on_a_rank_is_named(tables, expected):
    assert _difference(tables) == expected


def test_a_game_has_the_files_of_its_problem():
    problem = FairClassification(dataset="digits", clients=2)
    assert problem.files == {}
    problem.prepare(0)
    problem.files = {"a": DataFile("/data/a", "1")}
    assert as_family(problem, "operator").files == problem.files


@pytest.mark.parametrize("problem", [Reading, Game])
def test_files_that_a_user_defined_problem_reads(tmp_path, problem):
    """Results and report contain the declared files, and do not deny that others were read."""
    pytest.importorskip("matplotlib")
    from mpifed.report.report import report

    file, out, declares = tmp_path / "prices", tmp_path / "run", problem is Reading
    file.write_text("1,2\n")
    method = LocalSGDA(q=2, eta_x=0.01, eta_y=0.01)
    run(configuration(method, problem(), out, rounds=1, data_dir=str(tmp_path)), SerialComm())
    digest = hashlib.md5(b"1,2\n").hexdigest()
    with h5py.File(out / "run.h5") as results:
        known = json.loads(results.attrs["data"])
    assert known == ({"prices": {"path": str(file), "digest": digest}} if declares else {})
    report([out], out)
    text = html.unescape((out / "report.html").read_text())
    assert ("a user-defined problem does not record its files" in text) != declares
    assert (digest[:12] in text) == declares
