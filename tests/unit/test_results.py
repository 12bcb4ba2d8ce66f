"""Reading run files: what was written, and what is refused in words."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest
from runfiles import decay, write

from mpifed.storage.results import find_runs, head, load


@pytest.mark.parametrize("by_file", [False, True], ids=["folder", "file"])
def test_load_reads_what_was_written(tmp_path, by_file):
    folder = write(tmp_path / "a", "./my_alg.py:MyMethod", x_error=decay(0.1), stopped="", maximised=["auc"])
    run = load(folder / "run.h5" if by_file else str(folder))
    assert run.name == "MyMethod" and run.folder == folder
    assert (
        run.config["rounds"] == 20
        and run.versions == {"torch": "2.0"}
        and run.stopped == ""
        and not run.diverged
    )
    assert run.maximised == {"auc"} and run.class_counts is None and run.ranks == {}
    assert run.costs["bytes_down"].tolist() == [3000 * r for r in range(21)]
    assert run.metric_rounds.tolist() == [0, 5, 10, 15, 20]
    assert list(run.metrics) == ["x_error"] and np.all(
        run.metrics["x_error"] == decay(0.1)(run.metric_rounds)
    )


def test_runs_are_found_at_any_depth_and_once(tmp_path):
    for place in ("b", "a/deep/er", "a/s=1"):
        write(tmp_path / place)
    (tmp_path / "empty").mkdir()
    found = find_runs([tmp_path, tmp_path / "a" / ".." / "b" / "run.h5", tmp_path / "a"])
    assert [file.parent.relative_to(tmp_path).as_posix() for file in found] == ["a/deep/er", "a/s=1", "b"]
    with pytest.raises(ValueError, match="expected a run file run.h5 in .*empty or below, found none"):
        find_runs([tmp_path, tmp_path / "empty"])


def damage(**changes):
    """A function that replaces entries of a run file; ``None`` deletes."""

    def apply(file):
        for name, value in changes.items():
            place, key = (
                (file.attrs, name[5:]) if name.startswith("attr_") else (file, name.replace("__", "/"))
            )
            if key in place:
                del place[key]
            if value is not None:
                place[key] = value

    return apply


def holdings(file):
    file["holdings"] = np.ones((3, 2), int)
    file["holdings"].attrs["classes"] = json.dumps(["a", "b", "c"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (damage(attr_config=None), ["JSON table", "'config'", "None"]),
        (damage(attr_versions="{"), ["JSON table", "'versions'", "'{'"]),
        (damage(attr_config=json.dumps({"algorithm": "FGDA"})), ["algorithm's name", "'FGDA'"]),
        (damage(attr_maximised=None), ["JSON list", "'maximised'", "None"]),
        (damage(attr_stopped=3), ["'stopped'", "3"]),
        (damage(costs=None), ["group 'costs'", "final, metrics"]),
        (damage(metrics=np.zeros(3)), ["group 'metrics'"]),
        (damage(costs__wire_bytes=None), ["wire_bytes", "'costs'", "bytes_up, communication_seconds"]),
        (damage(metrics__round=None), ["round", "'metrics'", "auc"]),
        (damage(costs__seconds=np.zeros(3)), ["one length", "'costs'", "'seconds': 3"]),
        (damage(costs__seconds=np.full(21, np.nan)), ["finite", "'costs'"]),
        (damage(costs__round=np.zeros(21)), ["growing", "'costs/round'", "0.0, 0.0"]),
        (damage(metrics__auc=np.zeros((5, 2))), ["numbers", "'metrics/auc'", "(5, 2)"]),
        (damage(metrics__auc=["a"] * 5), ["numbers", "'metrics/auc'"]),
        (damage(metrics__round=[0, 5, 10, 15, 99]), ["'costs/round'", "99"]),
        (holdings, ["[clients, 3]", "(3, 2)"]),
    ],
)  # fmt: skip
def test_foreign_files_are_refused_in_words(tmp_path, change, words):
    file = write(tmp_path / "a", auc=[0.5] * 5) / "run.h5"
    with h5py.File(file, "a") as opened:
        change(opened)
    with pytest.raises(ValueError, match="expected .* found ") as error:
        load(file)
    assert all(word in str(error.value) for word in [str(file), *words]), str(error.value)


def test_missing_and_broken_files_are_refused_in_words(tmp_path):
    with pytest.raises(
        ValueError, match=r"nowhere is not a readable .* expected a run file, found no such file"
    ):
        load(tmp_path / "nowhere")
    (tmp_path / "run.h5").write_text("round,auc\n0,0.5\n")
    with pytest.raises(ValueError, match=r"run\.h5 is not a readable run file: .*signature"):
        load(tmp_path)


@pytest.mark.parametrize("kept", [0.02, 0.3, 0.6, 0.95])
def test_a_truncated_file_is_refused(tmp_path, kept):
    file = write(tmp_path / "a", auc=[0.5] * 5) / "run.h5"
    content = file.read_bytes()
    file.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(ValueError, match=r"run\.h5 is not a readable run file"):
        load(file)


@pytest.mark.parametrize("read", [load, head])
@pytest.mark.parametrize("place, size", [("costs/round", 64), ("metrics", 16), ("/", 64)])
def test_an_object_that_is_damaged_is_refused(tmp_path, read, place, size):
    """HDF5 has many errors for these, KeyError among them."""
    file = write(tmp_path / "a", auc=[0.5] * 5) / "run.h5"
    with h5py.File(file) as source:
        at = h5py.h5o.get_info(source[place].id).addr
    content = bytearray(file.read_bytes())
    content[at + 4 : at + 4 + size] = b"\xff" * size
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"run\.h5 is not a readable run file: "):
        read(file)


def test_the_head_of_a_run(tmp_path):
    """Two rounds a second until round 300, ten from there on."""
    file = write(tmp_path / "a", rounds=400, every=10, auc=decay(0.1), error=decay(0.2)) / "run.h5"
    with h5py.File(file, "a") as opened:
        seconds = np.r_[np.arange(301) / 2, 150 + np.arange(1, 101) / 10]
        opened["costs/seconds"][:] = seconds
    found = head(file)
    assert (found.round, found.seconds, found.metric) == (400, 160.0, ("auc", decay(0.1)(400)))
    assert (
        found.pace == pytest.approx(10) and found.config == load(file).config and found.end == load(file).end
    )
    first = head(write(tmp_path / "b", rounds=0, stopped=""))
    assert (first.round, first.pace, first.metric, first.end) == (0, None, None, None)
