"""A finished run whose data have changed is refused, and data are compared by their digests."""

import gzip
import os
import shutil
import socket
from pathlib import Path

import pytest
import torch
from commands import error_of, output_of
from games import Reading, configuration

import mpifed
from mpifed import run
from mpifed.algorithms import LocalSGDA
from mpifed.base import data_files
from mpifed.base.data_files import digest_of_path
from mpifed.base.plugins import digest_on_disk
from mpifed.core.participation import read_trace
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.simulation.initial_weights import InitialWeights
from mpifed.storage.files import assigned_runs

JOB = """
rounds = 2
algorithm = { name = "FedAvg", K = 1, eta = 0.1 }
oracle = { batch_size = 2 }
run = { progress = false, out = "out" }
[problem]
name = "Classification"
clients = 2
dataset = DATASET
model = "linear"
"""
TABLE = '{ name = "table", file = "mine.csv", target = "label", test = 0.25 }'
RUN, RESUME = ("run", "job.toml", "--no-report"), ("resume", "out", "--no-report")
SWEEP = "[sweep]\nseed = [0, 1]\n"
TUNE = '[tune]\nmethods = [{ name = "FedAvg", K = 1, eta = [0.1, 0.2] }]\n'


def table(extra: float) -> str:
    rows = [f"{row + extra},{row % 3},{row % 2}" for row in range(40)]
    return "\n".join(["a,b,label", *rows]) + "\n"


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A function that writes a job file and its data."""
    monkeypatch.chdir(tmp_path)

    def write(section="", dataset=TABLE):
        Path("mine.csv").write_text(table(0.25))
        Path("job.toml").write_text(JOB.replace("DATASET", dataset) + section)

    return write


def change(file="mine.csv"):
    """Change numbers in a file without changing its size or modification time."""
    known = os.stat(file)
    Path(file).write_text(table(0.75))
    os.utime(file, ns=(known.st_atime_ns, known.st_mtime_ns))
    assert os.stat(file).st_size == known.st_size and os.stat(file).st_mtime_ns == known.st_mtime_ns


def expect_refusal(*words: str, name="mine.csv"):
    text = error_of(*words)
    assert f"data file {name} has changed since the run in " in text, text
    assert "Restore the file, choose another run.out, or start over" in text and "run.overwrite=true" in text


def test_a_run(job):
    job()
    output_of(*RUN)
    before = mpifed.load("out").point["x"]
    for words in (RUN, RESUME):
        assert "is complete" in output_of(*words)
    change()
    for words in (RUN, RESUME):
        expect_refusal(*words)
    assert torch.equal(mpifed.load("out").point["x"], before)
    Path("mine.csv").write_text(table(0.25))
    assert "is complete" in output_of(*RUN)
    change()
    output_of(*RUN, "run.out=other")
    output_of(*RUN, "run.overwrite=true")
    assert torch.equal(mpifed.load("out").point["x"], mpifed.load("other").point["x"])
    assert not torch.equal(mpifed.load("out").point["x"], before)


@pytest.mark.parametrize("part", ["0/1", "1/2"])
def test_a_sweep_with_new_seeds(job, part):
    """No new run is started, whichever runs belong to the part."""
    job(SWEEP)
    output_of("sweep", "job.toml")
    change()
    text = Path("job.toml").read_text()
    Path("job.toml").write_text(text.replace("[0, 1]", "[2, 3, 0, 1]"))
    expect_refusal("sweep", "job.toml", "--part", part)
    assert not Path("out/seed=2").exists() and not Path("out/seed=3").exists()
    assert "4 runs are finished, 0 of them before" in output_of("sweep", "job.toml", "run.overwrite=true")
    assert "4 runs are finished, 4 of them before" in output_of("sweep", "job.toml")


def test_a_search(job):
    job("validation = 0.25\n" + TUNE)
    output_of("tune", "job.toml")
    change()
    expect_refusal("tune", "job.toml")
    output_of("tune", "job.toml", "run.overwrite=true")


def test_data_of_a_function(job):
    """The files that the function reads are unknown, so it is called again."""
    Path("data.py").write_text(
        "import numpy as np\ndef load():\n    own = np.loadtxt('mine.csv', delimiter=',', skiprows=1)\n"
        "    pair = own[:, :2].astype('float32'), own[:, 2].astype('int64')\n"
        "    return {'train': pair, 'test': pair}\n"
    )
    job(dataset='"./data.py:load"')
    output_of(*RUN)
    assert "is complete" in output_of(*RUN)
    change()
    expect_refusal(*RUN, name="data.py:load")


def test_run_data_dir_may_change_if_the_data_are_the_same(tmp_path):
    for folder, text in (("here", "1"), ("there", "1"), ("elsewhere", "2")):
        Path(tmp_path / folder).mkdir()
        Path(tmp_path / folder / "prices").write_text(text)

    def started(folder):
        method = LocalSGDA(q=2, eta_x=0.01, eta_y=0.01)
        return run(
            configuration(
                method, Reading(), tmp_path / "run", data_dir=str(tmp_path / folder), overwrite=False
            ),
            SerialComm(),
        )

    metrics = started("here").metrics
    assert started("here").metrics == started("there").metrics == metrics
    with pytest.raises(CollectiveError, match="data file prices has changed since the run in"):
        started("elsewhere")


def test_a_compressed_copy_is_the_same_and_missing_data_cause_a_warning(job, capfd):
    job()
    output_of(*RUN)
    Path("mine.csv.gz").write_bytes(gzip.compress(Path("mine.csv").read_bytes()))
    Path("mine.csv").unlink()
    text = output_of(*RUN)
    assert "is complete" in text and "cannot check" not in text
    Path("mine.csv.gz").unlink()
    text = output_of(*RUN)
    assert "is complete" in text
    assert "cannot check whether the data of " in text and "lacks a file" in text


def test_a_digest_is_computed_once_for_each_state_of_a_file(tmp_path, monkeypatch):
    file, opened = tmp_path / "a", []
    file.write_text("1")
    monkeypatch.setattr(data_files, "open", lambda *of: opened.append(of) or open(*of), raising=False)
    first = digest_of_path(str(file))
    assert digest_of_path(str(file)) == first and len(opened) == 1
    known = file.stat()
    file.write_text("2")
    os.utime(file, ns=(known.st_atime_ns, known.st_mtime_ns))
    assert digest_of_path(str(file)) != first
    folder = tmp_path / "b"
    shutil.copytree(tmp_path, folder)
    first = digest_of_path(str(folder))
    (folder / "a").rename(folder / "c")
    assert digest_of_path(str(folder)) != first
    assert digest_of_path("returned by f") is None is digest_of_path("\0")


@pytest.mark.parametrize("kind", ["device", "pipe", "sparse", "socket", "root", "system", "link"])
def test_only_data_are_read(kind, tmp_path):
    """Paths in a run's files may be anything; reading these would never end."""
    place = tmp_path / kind
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "sparse":
        with open(place, "wb") as file:
            file.truncate(2**42)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(place))
    elif kind == "link":
        place.symlink_to("/dev/zero")
    else:
        place = Path({"device": "/dev/zero", "root": "/", "system": "/proc"}[kind])
    assert digest_of_path(str(place)) is None
    assert digest_on_disk(f"{place}") == "" and assigned_runs(place) == []
    link = tmp_path / "link.py"
    if not link.is_symlink():
        link.symlink_to(place)
    if kind != "sparse":
        assert digest_on_disk(str(link)) == ""
        with pytest.raises((OSError, ValueError), match="cannot read|not a text file"):
            read_trace(str(place), 2, 1)
        with pytest.raises(OSError, match="initial: cannot read"):
            InitialWeights(str(place))
