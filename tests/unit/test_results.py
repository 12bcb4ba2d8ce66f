"""Results files: reading, damaged files, and files that were made to harm the reader."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from commands import error_of
from runfiles import decay, edited, replaced, rewrite, settings, write
from saddle_job import config

from mpifed import resume, run
from mpifed.core.metrics import Column
from mpifed.parallel.comm import SerialComm
from mpifed.storage import checkpoint
from mpifed.storage.results import columns_of_names, find_runs, load, read
from mpifed.storage.status import find_statuses, status

COMM = SerialComm()


@pytest.fixture
def planted(tmp_path):
    return write(tmp_path / "run", auc=[0.5] * 5)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("done") / "run"
    problem = {"name": "DeepAUC", "clients": 3, "dataset": "digits", "model": "mlp"}
    how = {"checkpoint_every": 3, "eval_every": 2}
    sections = {"algorithm": {"name": "FGDA", "q": 2}, "oracle": {"batch_size": 4}}
    run(config(out, record=["x"], run=how, problem=problem, **sections), COMM)
    return out


@pytest.fixture
def folder(done, tmp_path):
    return shutil.copytree(done, tmp_path / "run")


@pytest.mark.parametrize("by_file", [False, True], ids=["folder", "file"])
def test_load(tmp_path, by_file):
    folder = write(tmp_path / "a", "./my_alg.py:MyMethod", x_error=decay(0.1), stopped="")
    run = load(folder / "run.h5" if by_file else str(folder))
    assert run.name == "MyMethod" and run.folder == folder and run.config["rounds"] == 20
    assert run.versions == {"torch": "2.0"} and run.stopped == "" and not run.diverged
    assert (
        run.columns == {"x_error": Column("x_error", "test")} and run.class_counts is None and run.ranks == {}
    )
    assert run.costs["bytes_down"].tolist() == [3000 * r for r in range(21)]
    assert run.metric_rounds.tolist() == [0, 5, 10, 15, 20] and list(run.metrics) == ["x_error"]
    np.testing.assert_array_equal(run.metrics["x_error"], decay(0.1)(run.metric_rounds))


def test_the_columns_of_files_with_names_only():
    names = ("auc", "validation_auc", "train_auc", "client_auc_q10", "personal_auc_worst", "client_auc", "b")
    columns = columns_of_names([*names, "validation_b"], {"auc", "validation_b"})
    assert columns == [
        *(Column("auc", split, "", True) for split in ("test", "validation", "train")),
        Column("auc", "client", "q10", True), Column("auc", "personal", "worst", True),
        Column("client_auc", "test"), Column("b", "test"), Column("b", "validation", "", True),
    ]  # fmt: skip
    assert [column.name for column in columns] == [*names, "validation_b"]


def test_runs_are_found_behind_links(tmp_path):
    write(tmp_path / "disk/a")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/a").symlink_to(tmp_path / "disk/a")
    (tmp_path / "runs/up").symlink_to(tmp_path / "runs")
    assert find_runs([tmp_path / "runs"]) == [(tmp_path / "disk/a/run.h5").resolve()]
    assert [run.folder for run in find_statuses([tmp_path / "runs"])] == [tmp_path / "runs/a"]


def test_folders_that_cannot_be_read_cause_a_warning(tmp_path, monkeypatch, capsys):
    def listed(path):
        if Path(path).name == "b":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listdir(path)

    write(tmp_path / "a"), write(tmp_path / "b")
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", listed)
    assert find_runs([tmp_path]) == [(tmp_path / "a/run.h5").resolve()]
    said = " ".join(capsys.readouterr().err.split())
    assert f"{tmp_path / 'b'} cannot be read: Permission denied; its runs are left out" in said


def test_runs_are_found_at_any_depth_and_once(tmp_path):
    for place in ("b", "a/deep/er", "a/s=1"):
        write(tmp_path / place)
    (tmp_path / "empty").mkdir()
    files = find_runs([tmp_path, tmp_path / "a" / ".." / "b" / "run.h5", tmp_path / "a"])
    assert [file.parent.relative_to(tmp_path).as_posix() for file in files] == ["a/deep/er", "a/s=1", "b"]
    with pytest.raises(ValueError, match="expected a run file run.h5 in .*empty or below, found none"):
        find_runs([tmp_path, tmp_path / "empty"])


def test_progress_from_results(tmp_path):
    """Two rounds per second until round 300, then ten."""
    folder = write(tmp_path / "a", rounds=400, every=10, stopped="", auc=decay(0.1), error=decay(0.2))
    with edited(folder / "run.h5") as file:
        file["costs/seconds"][:] = np.r_[np.arange(301) / 2, 150 + np.arange(1, 101) / 10]
    (folder / "run.lock").write_text("process 7 on mars, since noon\n")
    seen = status(folder)
    assert (seen.round, seen.metric, seen.pace) == (400, ("auc", decay(0.1)(400)), pytest.approx(10))
    first = status(write(tmp_path / "b", rounds=0, stopped=""))
    assert (first.round, first.pace, first.metric) == (0, None, None)


def holdings(classes, problem=None, dtype=int):
    def change(file):
        file["holdings"] = np.ones((3, 2), dtype)
        file["holdings"].attrs["classes"] = json.dumps(classes)
        settings(**({"problem": problem} if problem else {}))(file)

    return change


DEEP: list = []
for _ in range(500):
    DEEP = [DEEP]
A_PLUGIN = {"problem": {"name": "a", "digest": 3}}


@pytest.mark.parametrize("change, words", [
    (replaced(attr_config=None), ["JSON table", "'config'", "None"]),
    (replaced(attr_versions="{"), ["JSON table", "'versions'", "'{'"]),
    (replaced(attr_maximised=None), ["JSON list", "'maximised'", "None"]),
    (replaced(attr_stopped=3), ["'stopped'", "3"]),
    (replaced(costs=None), ["group 'costs'", "final, metrics"]),
    (replaced(metrics=np.zeros(3)), ["group 'metrics'"]),
    (replaced(costs__wire_bytes=None), ["wire_bytes", "'costs'", "bytes_up, communication_seconds"]),
    (replaced(metrics__round=None), ["round", "'metrics'", "auc"]),
    (replaced(costs__seconds=np.zeros(3)), ["one length", "'costs'", "'seconds': 3"]),
    (replaced(costs__seconds=np.full(21, np.nan)), ["finite", "'costs'"]),
    (replaced(costs__round=np.zeros(21)), ["growing", "'costs/round'", "0.0, 0.0"]),
    (replaced(metrics__auc=np.zeros((5, 2))), ["numbers", "'metrics/auc'", "(5, 2)"]),
    (replaced(metrics__auc=["a"] * 5), ["numbers", "'metrics/auc'"]),
    (replaced(metrics__round=[0, 5, 10, 15, 99]), ["'costs/round'", "99"]),
    (holdings(["a", "b", "c"]), ["3 columns in 'holdings'", "(3, 2)"]),
    (holdings(["a", "b"], dtype=float), ["whole numbers [2 axes] in 'holdings'", "<f8"]),
    (holdings(["a", "b"], {"name": "DeepAUC"}), ["'problem.clients' and 'seed'"]),
    (settings(algorithm="FGDA"), ["a table as 'algorithm'", "'FGDA'"]),
    (settings(seed=[1]), ["a whole number as 'seed'"]),
    (settings(seed=True), ["a whole number as 'seed'"]),
    (settings(rounds="many"), ["a whole number as 'rounds'"]),
    (settings(algorithm={"name": 3}), ["a text as 'algorithm.name'"]),
    (settings(problem=3), ["a table as 'problem'"]),
    (settings(problem={"name": "A", "dataset": {}}), ["a text as 'problem.dataset.name'"]),
    (settings(problem={"name": "A", "partition": {}}), ["a text as 'problem.partition.name'"]),
    (settings(problem={"name": "A", "clients": "many"}), ["a whole number as 'problem.clients'"]),
    (settings(run=[]), ["a table as 'run'"]),
    (settings(stop=5), ["a table as 'stop'"]),
    (settings(theory=5), ["a table as 'theory'"]),
    (settings(theory={"times": {"eta": 1}}), ["a text as 'theory.of'"]),
    (settings(theory={"of": "a", "times": {"eta": "b"}}), ["numbers as 'theory.times'"]),
    (settings(plugins={"problem": "a"}), ["the texts name and digest as plugins.problem"]),
    (settings(plugins=A_PLUGIN), ["the texts name and digest"]),
    (settings(**{"algorithm.name": []}), ["names have no dot"]),
    (settings(algorithm={"name": "a", "name.value": []}), ["names have no dot"]),
    (settings(deep=DEEP), ["a JSON table in the attribute 'config'"]),
    (replaced(attr_data=json.dumps({"a": "b"})), ["the texts path and digest as 'a'"]),
    (replaced(attr_data=json.dumps({"a": {"path": 1, "digest": "b"}})), ["the texts path and digest"]),
    (replaced(attr_maximised=json.dumps([[]])), ["texts in the attribute 'maximised'"]),
    (replaced(attr_columns=json.dumps({})), ["a JSON list in the attribute 'columns'"]),
    (replaced(attr_columns=json.dumps([["auc", "test", ""]])), ["three texts and a truth value"]),
    (replaced(attr_columns=json.dumps([["auc", "test", "", 1]])), ["three texts and a truth value"]),
    (replaced(attr_columns=json.dumps([["b", "train", "", True]])), ["the columns auc", "train_b"]),
    (replaced(attr_splits=json.dumps({"test": "a"})), ["whole numbers in 'splits'"]),
    (replaced(attr_splits=json.dumps([])), ["a JSON table in the attribute 'splits'"]),
    (replaced(clients=np.zeros(3)), ["a group 'clients'"]),
    (replaced(final=None), ["a group 'final', found costs, metrics"]),
    (replaced(iterates__x=3.0), ["numbers with a dtype of kind f [2 axes] in 'iterates/x'"]),
])  # fmt: skip
def test_unexpected_content_is_described(planted, change, words):
    with edited(planted / "run.h5") as file:
        change(file)
    with pytest.raises(ValueError, match=r"run\.h5 is not a readable run file: expected .* found ") as error:
        read(planted)
    assert all(word in str(error.value) for word in words), error.value


def test_missing_and_foreign_files(tmp_path):
    missing = r"nowhere is not a readable .* expected a run file, found no such file"
    with pytest.raises(ValueError, match=missing):
        load(tmp_path / "nowhere")
    (tmp_path / "run.h5").write_text("round,auc\n0,0.5\n")
    with pytest.raises(ValueError, match=r"run\.h5 is not a readable run file: it is no run file"):
        load(tmp_path)


@pytest.mark.parametrize("kept", [0.02, 0.3, 0.6, 0.95])
def test_truncated_file_without_digest(planted, kept):
    content = (planted / "run.h5").read_bytes()
    (planted / "run.h5").write_bytes(content[: int(kept * len(content))])
    with pytest.raises(ValueError, match=r"run\.h5 is not a readable run file"):
        load(planted)


@pytest.mark.parametrize("place, size", [("costs/round", 64), ("metrics", 16), ("/", 64)])
def test_damaged_object_in_file_without_digest(planted, place, size):
    """HDF5 raises many types of errors, among them KeyError."""
    with h5py.File(planted / "run.h5") as source:
        at = h5py.h5o.get_info(source[place].id).addr
    content = bytearray((planted / "run.h5").read_bytes())
    content[at + 4 : at + 4 + size] = b"\xff" * size
    (planted / "run.h5").write_bytes(content)
    with pytest.raises(ValueError, match=r"run\.h5 is not a readable run file: "):
        load(planted)


def all_content(folder) -> str:
    """Everything that is read from a results file, as text."""

    def plain(value):
        if isinstance(value, np.ndarray):
            return [str(value.dtype), value.shape, value.tobytes().hex()]
        if isinstance(value, frozenset):
            return sorted(value)
        return str(value) if isinstance(value, Path) else vars(value)

    return json.dumps(read(folder), default=plain)


def test_damage_is_reported_by_all_commands_and_repaired_by_resume(folder):
    file = folder / "run.h5"
    expected, valid = all_content(folder), file.read_bytes()
    place = valid.index(b"all 6 rounds done")
    file.write_bytes(valid[:place] + b"A" + valid[place + 1 :])
    for words in (("report", folder), ("export", folder, "--to", folder / "m.safetensors")):
        output = " ".join(error_of(*words).split())
        assert "its bytes do not match their digest" in output, output
        assert f"`mpifed resume {folder}` writes it again" in output, output
    seen = status(folder)
    assert seen.state == "stopped" and "run.h5 cannot be read: its bytes do not match" in seen.reason
    resume(folder, [], COMM)
    assert json.loads(all_content(folder))[1] == json.loads(expected)[1]
    assert status(folder).state == "finished"
    for path in folder.glob("checkpoint-*"):
        path.unlink()
    file.write_bytes(valid[:-1])
    with pytest.raises(ValueError, match="its bytes do not match their digest$"):
        load(folder)


def external(file, name, place):
    old = file["old"]
    file.create_dataset(name, old.shape, old.dtype, external=[(str(place / "secret"), 0, h5py.h5f.UNLIMITED)])


def virtual(file, name, place):
    layout = h5py.VirtualLayout(file["old"].shape, file["old"].dtype)
    layout[...] = h5py.VirtualSource(str(place / "other.h5"), "values", file["old"].shape)
    file.create_virtual_dataset(name, layout)


def twice(file, name, place):
    file[name] = file["old"][...]
    file["more"] = file[name]


def circle(file, name, place):
    file[name] = file["old"][...]
    group = file.create_group("circle")
    group["circle"] = group


ZEROS = np.zeros(2**18)
HARMFUL = {
    "link": (lambda f, n, at: f.__setitem__(n, h5py.ExternalLink(at / "other.h5", "values")), "no links"),
    "soft link": (lambda f, n, at: f.__setitem__(n, h5py.SoftLink("/metrics/round")), "no links"),
    "external storage": (external, "in one piece"),
    "virtual data set": (virtual, "in one piece"),
    "64 GiB": (lambda f, n, at: f.create_dataset(n, (2**33,), float), "expected 68719476736 bytes of"),
    "compressed": (lambda f, n, at: f.create_dataset(n, data=ZEROS, compression="gzip"), "not compressed"),
    "texts": (lambda f, n, at: f.create_dataset(n, data=["a" * 1000] * 5), "expected numbers in"),
    "one object twice": (twice, "found something else"),
    "circle": (circle, "found something else"),
}


def plant(file, name, make, place):
    """Replace an object of a file by what ``make`` creates."""
    file.move(name, "old")
    make(file, name, place)
    del file["old"]


@pytest.fixture
def crafted(planted):
    (planted.parent / "secret").write_bytes(np.arange(500.0).tobytes())
    with h5py.File(planted.parent / "other.h5", "w") as file:
        file["values"] = np.arange(5.0)
    with edited(planted / "run.h5") as file:
        file["clients/auc"] = [1.0]
    return planted


@pytest.mark.parametrize("make, reason", HARMFUL.values(), ids=HARMFUL)
def test_harmful_results_file(crafted, make, reason):
    """No other file is read, and no more memory is used than the file has bytes."""
    with edited(crafted / "run.h5") as file:
        plant(file, "final/x", make, crafted.parent)
    with pytest.raises(ValueError, match=r"run\.h5 is not a readable run file: expected") as error:
        load(crafted)
    assert reason in str(error.value) and status(crafted).state == "damaged"


def test_harmful_checkpoint(folder):
    (folder.parent / "secret").write_bytes(bytes(10**5))
    path = folder / "checkpoint-00000006.h5"
    rewrite(path, lambda header, file: plant(file, "clients", external, folder.parent))
    newest, _, _, errors = checkpoint.newest(folder)
    assert newest.name == "checkpoint-00000003.h5" and "in one piece" in errors[0], errors


def test_data_sets_with_the_same_bytes(crafted):
    """Many of them in a small file would fill the memory."""
    with h5py.File(crafted / "run.h5", "a") as file:
        file["ranks/peak_host_bytes"] = np.zeros(10_000)
        address = file["ranks/peak_host_bytes"].id.get_offset()
        for k in range(5):
            file.create_dataset(f"final/more{k}", (10_000,), float)
    content, size = (crafted / "run.h5").read_bytes(), (80_000).to_bytes(8, "little")
    assert content.count(b"\xff" * 8 + size) == 5, "no address is assigned yet"
    content = content.replace(b"\xff" * 8 + size, address.to_bytes(8, "little") + size)
    (crafted / "run.h5").write_bytes(content)
    with h5py.File(crafted / "run.h5") as file:
        assert file["final/more4"][:].tolist() == [0.0] * 10_000, "HDF5 reads it"
    with pytest.raises(ValueError, match=f"expected at most {len(content)} bytes of data"):
        load(crafted)


def test_attributes_are_one_text_or_number(crafted):
    with edited(crafted / "run.h5") as file:
        file.attrs["splits"] = np.array(["{}"] * 3, dtype=h5py.string_dtype())
    with pytest.raises(ValueError, match="expected one text or number in the attribute 'splits' of '/'"):
        load(crafted)
