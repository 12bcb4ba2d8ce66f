"""Checkpoint files: content, damage, full disks; and atomic replacement of files."""

import errno
import io
import json
import os
import re
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import torch

from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.parallel.placement import Placement
from mpifed.simulation.state import ClientRows
from mpifed.storage import checkpoint, client_rows, hdf5
from mpifed.storage.files import CHECKPOINT_MAGIC, PART_MAGIC, RESULTS_MAGIC, is_own, replacing

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
    monkeypatch.setattr(client_rows, "MAX_BLOCK", 16)
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
    (b"\x89HDF\r\n\x1a\n" + bytes(1000), "it is of format 1, expected format 6"),
    (b"mpifed checkpoint 9\n0123\n" + bytes(1000), "it is of format 9, expected format 6"),
    (b"mpifed checkpoint 6\n0123\n" + bytes(1000), "its bytes do not match their digest"),
    (b"", "it is no checkpoint, expected format 6"),
    (bytes(1000), "it is no checkpoint, expected format 6"),
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
    monkeypatch.setattr(client_rows, "MAX_BLOCK", 48)  # two rows
    comm = Rows()
    with pytest.raises(OSError, match="No space left"):
        checkpoint.write(tmp_path, 3, {"round": 1}, {}, stored(np.zeros((5, 3))), comm, Placement(15, 3))
    assert comm.received == 10 and names(tmp_path) == []


class Run:
    """A run whose checkpoints have parts: a table of client rows that changes between checkpoints."""

    def __init__(self, folder, clients=8, width=6, keep=2):
        self.folder, self.keep, self.round = folder, keep, 0
        self.rows = np.random.default_rng(0).normal(size=(clients, width))
        self.parts = checkpoint.Parts(SerialComm(), folder)

    def save(self, *clients):
        """Change the rows of some clients, and write the next checkpoint."""
        self.round += 1
        self.rows[list(clients)] += self.round
        changed = np.zeros(len(self.rows), dtype=bool)
        changed[list(clients)] = True
        self.write(changed)
        return self.rows.copy()

    def write(self, changed):
        placement, header = Placement(len(self.rows), 1), {"round": self.round}
        rows, comm = stored(self.rows), SerialComm()
        checkpoint.write(self.folder, self.keep, header, ARRAYS, rows, comm, placement, self.parts, changed)

    def restored(self):
        """Return the rows of the newest valid checkpoint."""
        read = np.full_like(self.rows, np.nan)
        path = checkpoint.newest(self.folder)[0]
        checkpoint.read_clients(path, stored(read), SerialComm(), Placement(len(read), 1))
        return read


def part(r: int, number: int = 0) -> str:
    return f"checkpoint-{r:08d}-part-{number}.h5"


def test_changed_rows_are_written_and_unlisted_parts_removed(tmp_path):
    run = Run(tmp_path, clients=1000, width=100)
    run.save(), run.save(3, 999), run.save(0, 3), run.save()
    assert names(tmp_path) == [
        part(1), part(2), part(3), "checkpoint-00000003.h5", "checkpoint-00000004.h5"
    ]  # fmt: skip
    np.testing.assert_array_equal(run.restored(), run.rows)
    size = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert size[part(1)] > 1000 * 100 * 8 and max(size[part(2)], size[part(3)]) < 10_000
    (tmp_path / part(9)).write_bytes(PART_MAGIC)  # left by a process that was killed
    other = Run(tmp_path, clients=1000, width=100, keep=2)
    other.rows, other.round = run.rows, 4
    other.save(5)  # writes all rows, since it does not know the parts of the other process
    assert {part(2), part(3)} <= {*names(tmp_path)}
    other.save(6)
    assert names(tmp_path) == [part(5), "checkpoint-00000005.h5", part(6), "checkpoint-00000006.h5"]
    np.testing.assert_array_equal(other.restored(), other.rows)


@pytest.mark.parametrize("limit", ["size", "number"])
def test_all_rows_are_written_again(tmp_path, monkeypatch, limit):
    """Parts with changed rows are together never larger than the rows of all clients."""
    run = Run(tmp_path, clients=100, width=500, keep=1)
    if limit == "number":
        monkeypatch.setattr(checkpoint, "MAX_INCREMENTS", 3)
    whole = []
    for r in range(1, 13):
        run.save(*range(30))
        sizes = [(tmp_path / path).stat().st_size for path in names(tmp_path) if "part" in path]
        assert sum(sizes) <= 2 * sizes[0]
        if len(sizes) == 1:
            whole.append(r)
        np.testing.assert_array_equal(run.restored(), run.rows)
    assert whole == [1, 5, 9]


def test_the_same_round_is_written_twice(tmp_path):
    """At the end of a run; the parts of the first checkpoint are not overwritten before the second is
    complete."""
    run = Run(tmp_path)
    run.save()
    run.write(np.zeros(8, dtype=bool))
    assert names(tmp_path) == [part(1), "checkpoint-00000001.h5"]
    run.write(np.ones(8, dtype=bool))
    assert names(tmp_path) == [part(1, 1), "checkpoint-00000001.h5"]
    np.testing.assert_array_equal(run.restored(), run.rows)


def test_damage_of_every_part_is_detected(tmp_path):
    """A checkpoint with a part that is damaged, missing, or another valid part, is skipped."""
    run = Run(tmp_path, clients=200, width=50, keep=3)
    run.save()
    before = run.save(7)
    run.save(9), run.save(9)
    run.keep = 9
    newest = tmp_path / part(4)
    assert checkpoint.newest(tmp_path)[1]["round"] == 4
    for path, r in ((newest, 3), (tmp_path / part(3), 2)):
        valid, other = path.read_bytes(), (tmp_path / part(2)).read_bytes()
        damaged = [valid[:kept] for kept in (0, 10, 600, -1)] + [valid + b"0", other]
        for place in [0, 20, *range(hdf5.USER_BLOCK, len(valid), 97)]:
            damaged.append(valid[:place] + bytes([valid[place] ^ 1 << place % 8]) + valid[place + 1 :])
        for content in damaged:
            path.write_bytes(content)
            _, header, _, errors = checkpoint.newest(tmp_path)
            assert header["round"] == r and f"{path.name}: " in errors[-1], errors
        path.unlink()
        errors = checkpoint.newest(tmp_path)[3]
        assert f"({path.name}: No such file or directory)" in errors[-1], errors
    np.testing.assert_array_equal(run.restored(), before)
    (tmp_path / part(1)).unlink()
    assert checkpoint.newest(tmp_path)[0] is None


def manifest(**changes):
    """Return a change of a checkpoint's list of parts, with a valid digest."""

    def change(path):
        with h5py.File(path, "r+") as file:
            table = json.loads(file["parts"][...].tobytes()) | changes
            del file["parts"]
            file["parts"] = np.frombuffer(json.dumps(table).encode(), dtype=np.uint8)
        hdf5.add_digest(path, CHECKPOINT_MAGIC, checkpoint.FORMAT)

    return change


@pytest.mark.parametrize("change, reason", [
    (manifest(files=[["../../other.h5", 5, ""]]), "expected name, size and digest of a part"),
    (manifest(files=[[part(1), "5", ""]]), "expected name, size and digest of a part"),
    (manifest(files=[[part(1), 5]]), "unexpected content"),
    (manifest(files=3), "unexpected content"),
    (manifest(files=[]), "expected parts of at least one client"),
    (manifest(clients=10**15), "expected rows of one type of 1000000000000000 clients"),
    (manifest(clients=7), "expected rows of one type of 7 clients"),
    (manifest(files=[[part(1), 5, "blocks 0"]]), "expected 5 bytes with the digest blocks 0, found another"),
])  # fmt: skip
def test_harmful_list_of_parts(tmp_path, change, reason):
    Run(tmp_path).save()
    change(tmp_path / "checkpoint-00000001.h5")
    (error,) = checkpoint.newest(tmp_path)[3]
    assert reason in error


def test_parts_must_have_the_rows_of_all_clients(tmp_path):
    run = Run(tmp_path, width=500)
    run.save(), run.save(2, 3)
    newest = tmp_path / "checkpoint-00000002.h5"
    with h5py.File(newest) as file:
        listed = json.loads(file["parts"][...].tobytes())["files"]
    manifest(files=listed[1:])(newest)
    assert "expected rows of one type of 8 clients" in checkpoint.newest(tmp_path)[3][0]
    manifest(files=listed[1:] * 4)(newest)
    assert "expected rows of 8 clients, found 2 in its parts" in checkpoint.newest(tmp_path)[3][0]


def test_a_link_for_a_part_is_not_followed(tmp_path):
    run = Run(tmp_path)
    run.save()
    (tmp_path / part(1)).rename(tmp_path / "elsewhere")
    (tmp_path / part(1)).symlink_to(tmp_path / "elsewhere")
    (error,) = checkpoint.newest(tmp_path)[3]
    assert f"({part(1)}: Too many levels of symbolic links)" in error


@pytest.mark.parametrize("seed", range(20))
def test_changed_rows_restore_the_state_of_a_full_checkpoint(tmp_path, monkeypatch, seed):
    """Random changes, blocks, numbers of kept checkpoints, failed writes and new processes."""
    draw = np.random.default_rng(seed)
    clients, width = (int(n) for n in draw.integers(1, 40, size=2))
    monkeypatch.setattr(client_rows, "MAX_BLOCK", int(draw.integers(1, 2000)))
    run, unsaved, saved = Run(tmp_path, clients, width, keep=int(draw.integers(1, 4))), None, {}
    for r in range(1, 16):
        run.round, changed = r, draw.random(clients) < draw.choice([0.0, 0.1, 0.5, 1.0])
        run.rows[changed] += draw.normal(size=(np.count_nonzero(changed), width))
        unsaved = changed if unsaved is None else unsaved | changed
        if draw.random() < 0.2:
            with monkeypatch.context() as patched, pytest.raises(CollectiveError, match="No space left"):
                patched.setattr(checkpoint, draw.choice(["_write_head", "_write_rows"]), no_space)
                unsaved[:] = True
                run.parts.newest = [] if draw.random() < 0.5 else run.parts.newest
                run.write(unsaved)
            continue
        if draw.random() < 0.2:
            run.parts, unsaved = checkpoint.Parts(SerialComm(), tmp_path), np.ones(clients, dtype=bool)
        run.write(unsaved)
        unsaved, saved[r] = np.zeros(clients, dtype=bool), run.rows.copy()
        for path in sorted(tmp_path.glob("checkpoint-????????.h5")):
            checkpoint.load(path, None)
            read = np.full_like(run.rows, np.nan)
            checkpoint.read_clients(path, stored(read), SerialComm(), Placement(clients, 1))
            np.testing.assert_array_equal(read, saved[int(path.stem[-8:])])
        assert len([*tmp_path.glob("checkpoint-????????.h5")]) == min(run.keep, len(saved))


def test_a_digest_of_blocks_does_not_depend_on_the_order_of_writing(tmp_path, monkeypatch):
    monkeypatch.setattr(hdf5, "BLOCK", 64)
    draw = np.random.default_rng(0)
    for size in (512, 513, 576, 577, 2000):
        digests = hdf5.BlockDigests()
        with hdf5.ErrorDeferringFile(tmp_path / "file", digests) as file:
            for start in [*draw.integers(0, size, size=9), *range(0, size, 100)]:
                file.seek(start)
                file.write(draw.bytes(min(100, size - start)))
            file.truncate(size)
        with open(tmp_path / "file", "rb") as file:
            written = digests.digest(file)
            assert written == hdf5.BlockDigests().digest(file)
        content = (tmp_path / "file").read_bytes()
        for place in range(512, size):
            (tmp_path / "file").write_bytes(
                content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
            )
            with open(tmp_path / "file", "rb") as file:
                assert written != hdf5.BlockDigests().digest(file)


def test_blocks_written_in_order_are_not_read_again(tmp_path, monkeypatch):
    read = []

    class Counted(io.FileIO):
        def read(self, size=-1):
            read.append(size)
            return super().read(size)

    monkeypatch.setattr(hdf5, "open", lambda path, mode: Counted(path, "r+"), raising=False)
    save(tmp_path, 1, clients=1000, size=10_000)
    assert 0 < sum(read) <= 4 * hdf5.BLOCK < 1000 * 10_000 * 8 / 10


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
