"""Every reader rejects every type of damage with one sentence that names the file and the row or member,
within seconds and little memory."""

from __future__ import annotations

import pickle
import resource
import time
from pathlib import Path

import numpy as np
import pytest
from damage import CASES, PACK, READERS, SMALL

from mpifed.base.memory import host_memory
from mpifed.data import DataError, image_folder, images, npz, sources

#: Limits of a rejection in seconds and bytes: it takes milliseconds and some copies of ``SMALL``.
SECONDS, BYTES = 10, 100 * 2**20


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for file, content in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)
    return folder


@pytest.fixture
def limited(monkeypatch):
    """Small limits of the readers, two and one characters in Omniglot, and a function that limits the memory
    of the process to ``BYTES`` more than it uses."""
    assert sources.max_unpacked_bytes(Path(__file__)) == max(2**26, host_memory() // 16)
    monkeypatch.setattr(sources, "_SMALL", SMALL)
    monkeypatch.setattr(sources, "host_memory", lambda: 0)
    monkeypatch.setattr(image_folder, "_LARGEST", SMALL)
    monkeypatch.setattr(npz, "CHARACTERS", {"background": 2, "evaluation": 1})
    import sklearn.datasets  # noqa: F401  (imported by the LIBSVM reader)

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    yield lambda: resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, before[1]))
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("suffix", PACK)
def test_valid_files_are_read(tmp_path, limited, name, suffix):
    reader, files = READERS[name]
    suffix = "" if name in ("folder", "tiny") else suffix
    write(tmp_path, {file + suffix: PACK[suffix](content) for file, content in files.items()})
    limited()
    assert reader(str(tmp_path)).files


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda case: f"{CASES[case][0]}-{case}")
def test_damaged_files_are_rejected(tmp_path, limited, case):
    name, file, change, suffix, message = CASES[case]
    reader, files = READERS[name]
    content = change(files[file]) if callable(change) else change
    write(tmp_path, {key: value for key, value in files.items() if key != file} | {file + suffix: content})
    limited()
    began = time.monotonic()
    with pytest.raises(DataError) as caught:
        reader(str(tmp_path))
    sentence, *places = str(caught.value).split("\n")
    assert time.monotonic() - began < SECONDS
    assert message in sentence and str(tmp_path / file.split("/")[0]) in sentence, sentence
    assert len(sentence) < 700 and sentence.count(": expected ") == 1 and len(places) == 2, caught.value


def test_a_plain_file_takes_precedence_over_compressed_ones(tmp_path):
    reader, files = READERS["glove"]
    for suffix in reversed(PACK):
        content = files["g.txt"].replace(b"good 1", f"good {len(suffix) + 1}".encode())
        write(tmp_path, {f"g.txt{suffix}": PACK[suffix](content)})
        read = reader(str(tmp_path))
        assert read.files["g.txt"].path == str(tmp_path / f"g.txt{suffix}")
        assert read.table[read.rows["good"]][0] == len(suffix) + 1


@pytest.mark.parametrize("suffix", [".xz", ".gz"])
def test_a_highly_compressed_file_is_read_if_memory_or_the_environment_allows(
    tmp_path, limited, monkeypatch, suffix
):
    content = bytes(4 * SMALL)
    write(tmp_path, {f"table{suffix}": PACK[suffix](content)})
    source = sources.Source("d", [tmp_path])
    for setting, message in [
        (None, f"unpacks to more than {SMALL} bytes.*MPIFED_UNPACKED_BYTES"),
        (str(len(content) - 1), f"unpacks to more than {len(content) - 1} bytes"),
        ("2 GB", "MPIFED_UNPACKED_BYTES: expected a number of bytes, found '2 GB'"),
    ]:
        if setting:
            monkeypatch.setenv("MPIFED_UNPACKED_BYTES", setting)
        with pytest.raises(DataError, match=message):
            source.read("table", "a table")
    monkeypatch.setenv("MPIFED_UNPACKED_BYTES", str(len(content)))
    assert source.read("table", "a table")[1] == content
    monkeypatch.delenv("MPIFED_UNPACKED_BYTES")
    monkeypatch.setattr(sources, "host_memory", lambda: 16 * len(content))
    assert source.read("table", "a table")[1] == content


def test_a_pickle_can_only_refer_to_the_types_of_arrays():
    """Other names of NumPy can run programs or open files (numpy.load, numpy.memmap, numpy.f2py)."""
    names = [("numpy", name) for name in (*dir(np), "core.multiarray._reconstruct")]
    names += [("builtins", "eval"), ("os", "system"), ("numpy.core.multiarray", "scalar")]
    allowed = [("numpy", "ndarray"), ("numpy", "dtype")]
    allowed += [(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")]
    assert [*images._Unpickler.allowed] == allowed
    for module, name in names:
        if (module, name) not in allowed:
            with pytest.raises(pickle.UnpicklingError, match="which is not allowed"):
                images._unpickled(f"c{module}\n{name}\n.".encode(), "labels")
