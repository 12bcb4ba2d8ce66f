"""Every reader against every kind of damage: one sentence that names the file, and the row or member in it,
within seconds and little memory."""

from __future__ import annotations

import pickle
import resource
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from damage import CASES, PACK, READERS, SMALL

from mpifed.core.memory import host_memory
from mpifed.data import DataError, image_folder, images, npz, sources
from mpifed.data.npz import MedMnist

#: Seconds and bytes that a refusal may take: it takes milliseconds and some copies of ``SMALL``.
SECONDS, BYTES = 10, 100 * 2**20


def written(folder: Path, name: str, changes: dict[str, bytes]) -> Path:
    """The files of a reader, some of them changed."""
    for file, content in {**READERS[name][1], **changes}.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)
    return folder


@pytest.fixture
def little(monkeypatch):
    """Small limits, Omniglots of two and one character, and on call ``BYTES`` more than there is in use."""
    assert sources.bound(Path(__file__)) == max(2**26, host_memory() // 16)
    monkeypatch.setattr(sources, "_SMALL", SMALL)
    monkeypatch.setattr(sources, "host_memory", lambda: 0)
    monkeypatch.setattr(image_folder, "_LARGEST", SMALL)
    monkeypatch.setattr(npz, "CHARACTERS", {"background": 2, "evaluation": 1})
    import sklearn.datasets  # noqa: F401  (the reader of LIBSVM imports it)

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    yield lambda: resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, before[1]))
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("suffix", PACK)
def test_what_is_not_damaged_is_read(tmp_path, little, name, suffix):
    packed = {file + suffix: PACK[suffix](content) for file, content in READERS[name][1].items()}
    if name in ("folder", "tiny"):
        packed = READERS[name][1]
    for file, content in packed.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(content)
    little()
    assert READERS[name][0](str(tmp_path)).files


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda case: f"{CASES[case][0]}-{case}")
def test_what_is_damaged_is_told(tmp_path, little, case):
    name, file, change, suffix, says = CASES[case]
    reader, files = READERS[name]
    content = change(files[file]) if callable(change) else change
    written(tmp_path, name, {file + suffix: content})
    if suffix:
        (tmp_path / file).unlink()
    little()
    began = time.monotonic()
    with pytest.raises(DataError) as caught:
        reader(str(tmp_path))
    sentence, *places = str(caught.value).split("\n")
    assert time.monotonic() - began < SECONDS
    assert says in sentence and str(tmp_path / file.split("/")[0]) in sentence, sentence
    assert len(sentence) < 700 and sentence.count(": expected ") == 1 and len(places) == 2, caught.value


def test_a_plain_file_goes_before_a_packed_one(tmp_path):
    """Plain, .gz, .xz: whatever else is there is not looked at."""
    reader, files = READERS["glove"]
    for suffix in reversed(PACK):
        content = files["g.txt"].replace(b"good 1", f"good {len(suffix) + 1}".encode())
        (tmp_path / f"g.txt{suffix}").write_bytes(PACK[suffix](content))
        read = reader(str(tmp_path))
        assert read.files["g.txt"].path == str(tmp_path / f"g.txt{suffix}")
        assert read.table[read.rows["good"]][0] == len(suffix) + 1


@pytest.mark.parametrize("suffix", [".xz", ".gz"])
def test_a_file_that_packs_well_is_read_where_memory_or_a_setting_leaves_room(
    tmp_path, little, monkeypatch, suffix
):
    content = bytes(64 * SMALL)
    (tmp_path / f"table{suffix}").write_bytes(PACK[suffix](content))
    source = sources.Source("d", [tmp_path])

    def refused(says: str) -> int:
        """The most memory that a refusal held."""
        tracemalloc.start()
        try:
            with pytest.raises(DataError, match=says):
                source.read("table", "a table")
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    refused(r"unpacks to more than \d+ bytes.*MPIFED_UNPACKED_BYTES")
    monkeypatch.setenv("MPIFED_UNPACKED_BYTES", str(len(content) - 1))
    # Its length is counted and not kept. A tenth was before; what unpacks .xz takes 8 MiB, twice.
    assert refused(f"unpacks to more than {len(content) - 1} bytes") < len(content) / 2
    monkeypatch.setenv("MPIFED_UNPACKED_BYTES", str(len(content)))
    assert source.read("table", "a table")[1] == content
    monkeypatch.setenv("MPIFED_UNPACKED_BYTES", "2 GB")
    refused("MPIFED_UNPACKED_BYTES: expected a number of bytes, found '2 GB'")
    monkeypatch.delenv("MPIFED_UNPACKED_BYTES")
    monkeypatch.setattr(sources, "host_memory", lambda: 16 * len(content))
    assert source.read("table", "a table")[1] == content


def test_the_names_that_a_pickle_may_have_are_those_that_it_needs():
    """No other names of NumPy: numpy.load, numpy.memmap and numpy.f2py run programs or open files."""
    names = [("numpy", name) for name in (*dir(np), "core.multiarray._reconstruct")]
    names += [("builtins", "eval"), ("os", "system"), ("numpy.core.multiarray", "scalar")]
    needed = [("numpy", "ndarray"), ("numpy", "dtype")]
    needed += [(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")]
    assert [*images._Unpickler.allowed] == needed
    for module, name in names:
        if (module, name) not in needed:
            with pytest.raises(pickle.UnpicklingError, match="which no batch needs"):
                images._unpickled(f"c{module}\n{name}\n.".encode(), "labels")


def test_classes_of_medmnist_are_as_many_as_it_says(tmp_path):
    """An odd number of classes, the largest label used; the upper half of three is one class."""
    images = READERS["medmnist"][0](str(written(tmp_path, "medmnist", {})))
    assert images.classes == 3 and images.train_labels.unique().tolist() == [0, 1, 2]
    with pytest.raises(DataError, match="all 4 classes, found none of class 3"):
        MedMnist("d", 4)(str(tmp_path))
    with pytest.raises(DataError, match="expected labels from 0 to 1, found 2 in row 2"):
        MedMnist("d", 2)(str(tmp_path))
