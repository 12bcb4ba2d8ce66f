"""What is said of data that differs between ranks, without MPI."""

import hashlib
import html
import json
from dataclasses import dataclass
from pathlib import Path

import h5py
import pytest
from games import Game, configuration

from mpifed import run
from mpifed.algorithms import LocalSGDA
from mpifed.core.problem import DataFile, as_family
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.problems import FairClassification
from mpifed.simulation.data_consistency import _difference, _ranks, agree_on_data, expect_same


def table(**digests: str) -> dict:
    return {name: {"path": f"/data/{name}", "digest": digest} for name, digest in digests.items()}


def test_of_many_files_that_have_changed_the_first_is_named():
    names = [f"part {number:03}" for number in range(100)]
    now = {name: DataFile(f"/data/{name}", "1" * 64) for name in reversed(names)}
    for before in ({}, dict.fromkeys(names[1:], "2" * 64)):
        with pytest.raises(CollectiveError) as fault:
            expect_same(before, now)
        assert str(fault.value).startswith("data file part 000 has changed since the checkpoint was written")
    expect_same(dict.fromkeys(names, "1" * 64), now)


@pytest.mark.parametrize(
    "ranks, text",
    [
        ([0], "rank 0"),
        ([1, 2, 3], "ranks 1-3"),
        ([0, 2], "ranks 0, 2"),
        ([0, 1, 4, 6, 7], "ranks 0-1, 4, 6-7"),
    ],
)
def test_ranks_are_named_briefly(ranks, text):
    assert _ranks(ranks) == text


def test_the_first_file_that_differs_is_named():
    tables = [table(a="1", b=digest * 20, c="4", d=digest) for digest in "232"]
    assert _difference(tables).startswith(
        "data file b differs between ranks: ranks 0, 2 read 222222222222 (/data/b); "
        "rank 1 read 333333333333 (/data/b)"
    )


def test_a_file_that_a_rank_lacks_is_named():
    message = _difference([table(a="1", b="2"), table(a="1"), table(a="1")])
    assert "data file b differs between ranks: rank 0 read 2 (/data/b); ranks 1-2 did not read it" in message


def test_one_process_agrees_with_itself_and_passes_an_error_on():
    agree_on_data(SerialComm(), {"a": DataFile("/data/a", "1")}, None)
    with pytest.raises(CollectiveError, match="no such file"):
        agree_on_data(SerialComm(), {}, "no such file")


def test_a_problem_without_files_has_none_and_a_game_those_of_its_problem():
    problem = FairClassification(dataset="digits", clients=2)
    assert problem.files == {}
    problem.prepare(0)
    problem.files = {"a": DataFile("/data/a", "1")}
    assert as_family(problem, "operator").files == problem.files


@dataclass
class Reading(Game):
    """The game, which reads a file and says so, or does not."""

    file: str = ""
    notes: bool = True

    def prepare(self, seed, data_dir=None):
        super().prepare(seed, data_dir)
        content = Path(self.file).read_bytes()
        if self.notes:
            self.files = {"prices": DataFile(self.file, hashlib.sha256(content).hexdigest())}


@pytest.mark.parametrize("notes", [True, False])
def test_files_that_a_problem_of_ones_own_reads(tmp_path, notes):
    """Those that it notes are in the record and in the report, which denies no others."""
    pytest.importorskip("matplotlib")
    from mpifed.report.report import report

    file, out = tmp_path / "prices.csv", tmp_path / "run"
    file.write_text("1,2\n")
    problem = Reading(file=str(file), notes=notes)
    run(configuration(LocalSGDA(q=2, eta_x=0.01, eta_y=0.01), problem, out, rounds=1), SerialComm())
    digest = hashlib.sha256(b"1,2\n").hexdigest()
    with h5py.File(out / "run.h5") as results:
        known = json.loads(results.attrs["data"])
    assert known == ({"prices": {"path": str(file), "digest": digest}} if notes else {})
    report([out], out)
    text = html.unescape((out / "report.html").read_text())
    assert ("No data files are known" in text) != notes and (digest[:12] in text) == notes
    assert ("has read files without noting them" in text) != notes and "No data files were read" not in text
