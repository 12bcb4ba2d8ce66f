"""Checkpoints: what is written comes back; what cannot be used is noticed."""

import os
import re
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpifed.parallel.comm import SerialComm
from mpifed.parallel.placement import Cohort, Placement
from mpifed.storage import atomic as files
from mpifed.storage import checkpoint
from mpifed.storage.atomic import replacing
from mpifed.storage.ownership import RUN_FILES, claim

ARRAYS = {"shared": np.arange(5.0), "empty": np.zeros((0, 3)), "table": np.arange(6.0).reshape(2, 3)}


def save(folder, r, clients=4, keep=3, size=3):
    rows = np.arange(float(clients * size)).reshape(clients, size) + r
    checkpoint.write(
        folder, keep, {"round": r, "words": ["ä"]}, ARRAYS, rows, SerialComm(), Placement(clients, 1)
    )
    return rows


def test_round_trip_and_the_last_ones_kept(tmp_path):
    claim(tmp_path, RUN_FILES)
    for r in range(1, 6):
        rows = save(tmp_path, r)
    assert [path.name for path in sorted(tmp_path.glob("checkpoint-*"))] == [
        f"checkpoint-0000000{r}.h5" for r in (3, 4, 5)
    ]
    path, header, arrays, complaints = checkpoint.newest(tmp_path)
    assert header == {"round": 5, "words": ["ä"]} and complaints == []
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array)
    again = np.empty_like(rows)
    checkpoint.read_clients(path, again, SerialComm(), Placement(4, 1))
    np.testing.assert_array_equal(again, rows)


def test_clients_without_state_and_large_rows(tmp_path, monkeypatch):
    save(tmp_path, 1, size=0)
    assert checkpoint.newest(tmp_path)[1]["round"] == 1
    monkeypatch.setattr(checkpoint, "BLOCK", 16)
    rows = save(tmp_path, 2, clients=7, size=5)
    path = checkpoint.newest(tmp_path)[0]
    again = np.empty_like(rows)
    checkpoint.read_clients(path, again, SerialComm(), Placement(7, 1))
    np.testing.assert_array_equal(again, rows)


@pytest.mark.parametrize("kept", [0, 10, 100, 2000, -1, -1000])
def test_truncation_is_noticed(tmp_path, kept):
    save(tmp_path, 1), save(tmp_path, 2)
    newest = tmp_path / "checkpoint-00000002.h5"
    newest.write_bytes(newest.read_bytes()[:kept])
    path, header, _, complaints = checkpoint.newest(tmp_path)
    assert header["round"] == 1 and "checkpoint-00000002.h5 cannot be used" in complaints[0]


def test_a_flipped_bit_is_noticed_wherever_it_is(tmp_path):
    """Every byte of the seal's two lines, and some everywhere else; HDF5 itself crashes on some of these
    files.
    """
    save(tmp_path, 1), save(tmp_path, 2)
    newest = tmp_path / "checkpoint-00000002.h5"
    sound = newest.read_bytes()
    lines = sound.index(b"\0")
    for place in [*range(lines), *range(checkpoint.SEAL, len(sound), 37)]:
        newest.write_bytes(sound[:place] + bytes([sound[place] ^ 1 << place % 8]) + sound[place + 1 :])
        path, header, _, complaints = checkpoint.newest(tmp_path)
        assert header["round"] == 1 and "checkpoint-00000002.h5 cannot be used" in complaints[0], place
    newest.write_bytes(sound)
    assert checkpoint.newest(tmp_path)[1]["round"] == 2


@pytest.mark.parametrize(
    "content, says",
    [
        (b"\x89HDF\r\n\x1a\n" + bytes(1000), "it is of format 1, expected format 3"),
        (b"mpifed checkpoint 9\n0123\n" + bytes(1000), "it is of format 9, expected format 3"),
        (b"mpifed checkpoint 3\n0123\n" + bytes(1000), "its bytes do not match their digest"),
        (b"", "it is no checkpoint, expected format 3"),
        (bytes(1000), "it is no checkpoint, expected format 3"),
    ],
)
def test_incomplete_and_foreign_files(tmp_path, content, says):
    (tmp_path / "checkpoint-00000001.h5").write_bytes(content)
    path, _, _, (complaint,) = checkpoint.newest(tmp_path)
    assert (
        path is None
        and complaint == f"checkpoint-00000001.h5 cannot be used ({says}); falling back to the one before it"
    )


def test_a_damaged_file_of_a_later_round_does_not_push_the_new_one_out(tmp_path):
    """A run that has fallen back to an earlier checkpoint than the damaged one, and is stopped before it gets
    there.
    """
    claim(tmp_path, RUN_FILES)
    save(tmp_path, 4, keep=1)
    (tmp_path / "checkpoint-00000008.h5").write_bytes(checkpoint.MAGIC + b"damaged")
    save(tmp_path, 5, keep=1)
    assert checkpoint.newest(tmp_path)[1]["round"] == 5
    save(tmp_path, 9, keep=1)
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-00000009.h5"]


def test_a_disk_that_is_almost_full_is_left_alone(tmp_path, monkeypatch):
    """The message has the room for the file and the margin together, which is what there has to be."""
    needed = []
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "_room", lambda folder, size: needed.append(size))
        save(tmp_path, 1)
    found = needed[0] + checkpoint.MARGIN - 1
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda folder: SimpleNamespace(free=found))
    sentence = (
        f"No space left on device: {found + 1:,} bytes needed, 4,194,304 of them to spare, {found:,} free"
    )
    with pytest.raises(OSError, match=re.escape(sentence)):
        save(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-00000001.h5"]


@pytest.mark.parametrize("left", [0, 600, 3000, 20_000])
def test_a_disk_that_fills_up_while_hdf5_writes(tmp_path, monkeypatch, left):
    """HDF5 itself crashes on most of these."""
    save(tmp_path, 1)

    def full(self, data):
        self.left = getattr(self, "left", left) - len(data)
        if self.left < 0:
            raise OSError(28, "No space left on device")
        return write(self, data)

    write = files._Shield._write
    monkeypatch.setattr(files._Shield, "_write", full)
    with pytest.raises(OSError, match="No space left on device"):
        save(tmp_path, 2, clients=1000)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-00000001.h5"]
    assert checkpoint.newest(tmp_path)[1]["round"] == 1


def test_shielded_files_hold_what_was_written(tmp_path):
    with files.shielded(tmp_path / "file") as target, h5py.File(target, "w") as file:
        file["x"] = np.arange(10**5)
    with h5py.File(tmp_path / "file") as file:
        np.testing.assert_array_equal(file["x"][...], np.arange(10**5))
    with (
        pytest.raises(OSError, match="No space left on device"),
        files.shielded("/dev/full") as target,
        h5py.File(target, "w") as file,
    ):
        file["x"] = np.arange(1000)


def test_a_shield_does_as_it_is_told_until_the_first_error(tmp_path):
    with files.shielded(tmp_path / "file") as target:
        target.write(b"12345")
        target.truncate(2)
    assert (tmp_path / "file").read_bytes() == b"12"
    done = []
    with pytest.raises(OSError, match="No space left on device"), files.shielded("/dev/full") as target:
        done.append(target.write(b"12345"))
        target.flush()
        done.append(target.write(b"12"))
    assert done == [5, 2], "whoever writes does not hear of it"
    with pytest.raises(OSError, match="Invalid argument"), files.shielded("/dev/null") as target:
        target.truncate(2)


def test_replacing_is_all_or_nothing(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["file"]
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    (tmp_path / f"file.tmp.{os.getpid()}").write_text("left by a killed process with this number")
    with replacing(path) as temporary:
        temporary.write_text("newer")
    assert path.read_text() == "newer" and os.listdir(tmp_path) == ["file"]


@given(st.integers(1, 30), st.integers(1, 12))
def test_every_client_has_one_rank(clients, ranks):
    placement = Placement(clients, ranks)
    assert np.concatenate([placement.of(rank) for rank in range(ranks)]).tolist() == list(range(clients))
    assert all(placement.rank_of[client] == rank for rank in range(ranks) for client in placement.of(rank))
    loads = [len(placement.of(rank)) for rank in range(ranks)]
    assert max(loads) - min(loads) <= 1


@given(st.integers(1, 20), st.integers(1, 6), st.data())
def test_cohorts(clients, ranks, data):
    size, r = data.draw(st.integers(1, clients)), data.draw(st.integers(1, 100))
    members = Cohort.draw(3, r, clients, size)
    assert len(set(members.tolist())) == size and members.min() >= 0 and members.max() < clients
    placement, weights = Placement(clients, ranks), np.arange(1.0, clients + 1)
    cohorts = [Cohort(members, placement, rank, weights) for rank in range(ranks)]
    seen = np.concatenate([placement.of(rank)[cohort.local] for rank, cohort in enumerate(cohorts)])
    np.testing.assert_array_equal(seen, members)
    for cohort in cohorts:
        assert cohort.total == (members + 1).sum() and cohort.counts.sum() == size


def test_cohorts_are_uniform():
    """2,000 rounds of 3 of 7: each client is in 857 of them, standard deviation 22."""
    counts = np.bincount(np.concatenate([Cohort.draw(0, r, 7, 3) for r in range(2000)]), minlength=7)
    assert (abs(counts - 6000 / 7) < 110).all()
