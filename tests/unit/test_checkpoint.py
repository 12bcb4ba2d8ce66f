"""Checkpoint files: content, damage, full disks; and atomic replacement of files."""

import errno
import io
import os
import re
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import torch

from mpifed.parallel.comm import SerialComm
from mpifed.parallel.placement import Placement
from mpifed.simulation.state import ClientRows
from mpifed.storage import checkpoint, hdf5
from mpifed.storage.files import CHECKPOINT_MAGIC, RESULTS_MAGIC, is_own, replacing

ARRAYS = {"shared": np.arange(5.0), "empty": np.zeros((0, 3)), "table": np.arange(6.0).reshape(2, 3)}


def no_space(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def stored(rows: np.ndarray) -> ClientRows:
    """Return client rows in two parts, of one column and the others."""
    whole = torch.from_numpy(rows)
    return ClientRows([whole[:, :1], whole[:, 1:]])


def save(folder, r, clients=4, keep=3, size=3):
    rows = np.arange(float(clients * size)).reshape(clients, size) + r
    header = {"round": r, "words": ["ä"]}
    checkpoint.write(folder, keep, header, ARRAYS, stored(rows), SerialComm(), Placement(clients, 1))
    return rows


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_round_trip_keeps_the_newest(tmp_path):
    for r in range(1, 6):
        rows = save(tmp_path, r)
    assert names(tmp_path) == [f"checkpoint-0000000{r}.h5" for r in (3, 4, 5)]
    path, header, arrays, errors = checkpoint.newest(tmp_path)
    assert header == {"round": 5, "words": ["ä"]} and errors == []
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array)
    read = np.empty_like(rows)
    checkpoint.read_clients(path, stored(read), SerialComm(), Placement(4, 1))
    np.testing.assert_array_equal(read, rows)


def test_clients_without_state_and_rows_in_blocks(tmp_path, monkeypatch):
    save(tmp_path, 1, size=0)
    assert checkpoint.newest(tmp_path)[1]["round"] == 1
    monkeypatch.setattr(checkpoint, "MAX_BLOCK", 16)
    rows = save(tmp_path, 2, clients=7, size=5)
    read = np.empty_like(rows)
    checkpoint.read_clients(checkpoint.newest(tmp_path)[0], stored(read), SerialComm(), Placement(7, 1))
    np.testing.assert_array_equal(read, rows)


def test_damage_is_detected_at_every_place(tmp_path):
    """Truncation, and one flipped bit in each byte of the digest and in every 37th byte of the content.

    HDF5 itself crashes on some of these files.
    """
    save(tmp_path, 1), save(tmp_path, 2)
    newest = tmp_path / "checkpoint-00000002.h5"
    valid = newest.read_bytes()
    damaged = [valid[:kept] for kept in (0, 10, 100, 2000, -1, -1000)]
    for place in [*range(valid.index(b"\0")), *range(hdf5.USER_BLOCK, len(valid), 37)]:
        damaged.append(valid[:place] + bytes([valid[place] ^ 1 << place % 8]) + valid[place + 1 :])
    for content in damaged:
        newest.write_bytes(content)
        _, header, _, (error,) = checkpoint.newest(tmp_path)
        assert header["round"] == 1 and "checkpoint-00000002.h5 cannot be used" in error
    newest.write_bytes(valid)
    assert checkpoint.newest(tmp_path)[1]["round"] == 2


@pytest.mark.parametrize("content, reason", [
    (b"\x89HDF\r\n\x1a\n" + bytes(1000), "it is of format 1, expected format 5"),
    (b"mpifed checkpoint 9\n0123\n" + bytes(1000), "it is of format 9, expected format 5"),
    (b"mpifed checkpoint 5\n0123\n" + bytes(1000), "its bytes do not match their digest"),
    (b"", "it is no checkpoint, expected format 5"),
    (bytes(1000), "it is no checkpoint, expected format 5"),
])  # fmt: skip
def test_foreign_files(tmp_path, content, reason):
    (tmp_path / "checkpoint-00000001.h5").write_bytes(content)
    path, _, _, errors = checkpoint.newest(tmp_path)
    expected = f"checkpoint-00000001.h5 cannot be used ({reason}); trying the previous checkpoint"
    assert path is None and errors == [expected]


def test_damaged_checkpoint_of_later_round_does_not_displace_new_ones(tmp_path):
    save(tmp_path, 4, keep=1)
    (tmp_path / "checkpoint-00000008.h5").write_bytes(CHECKPOINT_MAGIC + b"damaged")
    save(tmp_path, 5, keep=1)
    assert checkpoint.newest(tmp_path)[1]["round"] == 5
    save(tmp_path, 9, keep=1)
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-00000009.h5"]


def test_too_little_space_is_an_error_before_writing(tmp_path, monkeypatch):
    needed = []
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "_expect_space", lambda folder, size: needed.append(size))
        save(tmp_path, 1)
    free = needed[0] + checkpoint.MARGIN - 1
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    text = (
        f"No space left on device: {free + 1:,} bytes needed, including a margin of 4,194,304; {free:,} free"
    )
    with pytest.raises(OSError, match=re.escape(text)):
        save(tmp_path, 2)
    assert names(tmp_path) == ["checkpoint-00000001.h5"]


@pytest.mark.parametrize("left", [0, 600, 3000, 20_000])
def test_disk_becomes_full_while_hdf5_writes(tmp_path, monkeypatch, left):
    """HDF5 itself crashes in most of these cases."""
    save(tmp_path, 1)
    space = [left]

    class Limited(io.FileIO):
        def write(self, data):
            space[0] -= len(data)
            return super().write(data) if space[0] >= 0 else no_space()

    small = type("Small", (hdf5.ErrorDeferringFile, Limited), {})
    monkeypatch.setattr(hdf5, "ErrorDeferringFile", small)
    with pytest.raises(OSError, match="No space left on device"):
        save(tmp_path, 2, clients=1000)
    assert names(tmp_path) == ["checkpoint-00000001.h5"]
    assert checkpoint.newest(tmp_path)[1]["round"] == 1


class Rows(SerialComm):
    """Rank 0 of three. The other ranks have sent their rows; counts the rows that are received."""

    size, received = 3, 0

    def receive(self, array, source):
        self.received += len(array)


@pytest.mark.parametrize("step", ["_expect_space", "create", "replacing"])
def test_rows_are_received_even_if_the_disk_is_full(tmp_path, monkeypatch, step):
    """Otherwise the other ranks would wait forever."""
    monkeypatch.setattr(checkpoint, step, no_space)
    monkeypatch.setattr(checkpoint, "MAX_BLOCK", 48)  # two rows
    comm = Rows()
    with pytest.raises(OSError, match="No space left"):
        checkpoint.write(tmp_path, 3, {"round": 1}, {}, stored(np.zeros((5, 3))), comm, Placement(15, 3))
    assert comm.received == 10 and names(tmp_path) == []


def test_incomplete_file_is_recognised(tmp_path):
    """A killed process leaves it, and it is removed."""
    with hdf5.create(tmp_path / "run.h5", RESULTS_MAGIC, 2) as file:
        file["x"] = np.arange(10**5)
        assert (tmp_path / "run.h5").stat().st_size > 512 and is_own(tmp_path / "run.h5")


def test_shielded_file(tmp_path):
    """It contains what was written, and raises the first error at the end."""
    with hdf5.ErrorDeferringFile(tmp_path / "file") as target, h5py.File(target, "w") as file:
        file["x"] = np.arange(10**5)
    with h5py.File(tmp_path / "file") as file:
        np.testing.assert_array_equal(file["x"][...], np.arange(10**5))
    with hdf5.ErrorDeferringFile(tmp_path / "file") as target:
        target.write(b"12345")
        target.truncate(2)
    assert (tmp_path / "file").read_bytes() == b"12"
    sizes = []
    with (
        pytest.raises(OSError, match="No space left on device"),
        hdf5.ErrorDeferringFile("/dev/full") as target,
    ):
        sizes += [target.write(b"12345"), target.write(b"12")]
        target.flush()
    assert sizes == [5, 2]
    with pytest.raises(OSError, match="Invalid argument"), hdf5.ErrorDeferringFile("/dev/null") as target:
        target.truncate(2)


def test_replacing_is_atomic(tmp_path):
    path, own = tmp_path / "file", lambda head: head.startswith(b"own")
    path.write_text("own, old")
    with pytest.raises(RuntimeError), replacing(path, own) as temporary:
        temporary.write_text("own, half")
        raise RuntimeError
    assert path.read_text() == "own, old" and names(tmp_path) == ["file"]
    with replacing(path, own) as temporary:
        temporary.write_text("own, new")
        assert path.read_text() == "own, old"
    assert path.read_text() == "own, new"
    (tmp_path / f"file.tmp.{os.getpid()}").write_text("own, left by a killed process with this number")
    with replacing(path, own) as temporary:
        temporary.write_text("own, newer")
    assert path.read_text() == "own, newer" and names(tmp_path) == ["file"]
    with pytest.raises(FileExistsError, match="file that mpifed has not"), replacing(path, own) as temporary:
        path.write_text("written by the user meanwhile")
    assert path.read_text() == "written by the user meanwhile" and names(tmp_path) == ["file"]
