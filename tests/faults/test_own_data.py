"""Ranks end together before the first round if nodes read different data or one of them cannot read its data.

A rank that continued alone would wait forever, so any time limit shows it; this one allows for a busy
machine.
"""

import gzip
import hashlib
import json
import shutil
from pathlib import Path

import h5py
from launch import launch
from tiny_data import write_tiny

OWN_DATA = Path(__file__).parents[1] / "support" / "own_data.py"
LIMIT = 100
JOB = """
rounds = 2
[algorithm]
name = "LocalSGDA"
q = 2
eta_x = 0.01
eta_y = 0.01
[problem]
name = "FairClassification"
dataset = "tiny"
clients = 3
[run]
dtype = "float64"
progress = false
out = "run"
"""


def write_data(folder: Path, ranks: int) -> list[Path]:
    """Write one folder of identical data per rank."""
    return [write_tiny(folder / "data" / str(rank) / "tiny") for rank in range(ranks)]


def start(folder: Path, ranks: int, *settings: str) -> tuple[int, str]:
    (folder / "job.toml").write_text(JOB)
    return launch(
        ranks, [OWN_DATA, folder / "data", "run", "job.toml", "--no-report", *settings], LIMIT, cwd=folder
    )


def test_a_file_that_differs_is_named_with_its_ranks(tmp_path):
    folders = write_data(tmp_path, 3)
    path = folders[2] / "train-images-idx3-ubyte"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    code, output = start(tmp_path, 3)
    assert code == 2 and "Traceback" not in output, output
    assert output.count("data file train-images-idx3-ubyte differs between ranks: ranks 0-1 read ") == 1, (
        output
    )
    assert f"({folders[0] / path.name}); rank 2 read " in output and f"({path})" in output, output
    assert not (tmp_path / "run").exists()


def test_a_rank_without_data_ends_all(tmp_path):
    folders = write_data(tmp_path, 3)
    path = folders[1] / "t10k-labels-idx1-ubyte"
    path.unlink()
    code, output = start(tmp_path, 3)
    assert code == 2 and "Traceback" not in output, output
    assert output.count("tiny lacks a file") == 1 and path.name in output and "(on rank 1)" in output, output


def test_the_first_rank_of_a_node_without_data_ends_all(tmp_path, monkeypatch):
    """The other ranks of the node do not read their files."""
    monkeypatch.setenv("ONE_NODE", "1")
    folders = write_data(tmp_path, 3)
    for folder in folders[1:]:
        shutil.rmtree(folder)
    assert start(tmp_path, 3)[0] == 0
    path = folders[0] / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    code, output = start(tmp_path, 3, "run.out=other")
    assert code == 2 and "Traceback" not in output, output
    assert output.count(f"{path}: expected an IDX file") == 1 and "(on rank" not in output, output
    assert not (tmp_path / "other").exists()


def test_a_packed_copy_is_the_same_data_and_the_results_say_what_was_read(tmp_path):
    folders = write_data(tmp_path, 2)
    path = folders[1] / "train-images-idx3-ubyte"
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    code, output = start(tmp_path, 2)
    assert code == 0, output
    with h5py.File(tmp_path / "run" / "run.h5") as file:
        data = json.loads(file.attrs["data"])
    assert sorted(data) == sorted(one.name for one in folders[0].iterdir())
    assert {name: one["path"] for name, one in data.items()} == {
        one.name: str(one) for one in folders[0].iterdir()
    }
    for one in folders[0].iterdir():
        assert data[one.name]["digest"] == hashlib.sha256(one.read_bytes()).hexdigest()


def test_data_that_changed_between_two_starts_are_named(tmp_path):
    folders = write_data(tmp_path, 1)
    assert start(tmp_path, 1, "run.checkpoint_every=1", "rounds=1")[0] == 0
    path = folders[0] / "train-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes()[:8] + path.read_bytes()[:7:-1])  # reversed labels
    code, output = start(tmp_path, 1, "rounds=2")
    assert code == 2 and "Traceback" not in output, output
    said = "data file train-labels-idx1-ubyte has changed since the checkpoint was written: expected SHA-256"
    assert output.count(f"{said} ") == 1, output
