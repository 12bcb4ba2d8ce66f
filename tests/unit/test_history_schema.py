"""Checkpoints whose digest holds and whose content is another: told, and passed over."""

import json
import shutil

import h5py
import numpy as np
import pytest
import torch
from runfiles import edited

import mpifed
from mpifed import __version__, resume, run
from mpifed.base.errors import ConfigError
from mpifed.config.job import Config
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.storage import checkpoint, sealed

COMM = SerialComm()


def job(folder, rounds=4, record=("x",), **settings) -> Config:
    return Config.from_table(
        {
            "rounds": rounds,
            "record": list(record),
            "algorithm": {"name": "AdaFGDA", "q": 2, "sync_estimator": "local"},
            "problem": {"name": "Saddle", "clients": 3, "d": 2},
            "oracle": {"batch_size": 0},
            "run": {"progress": False, "checkpoint_every": 2, "reduction": "exact", "out": str(folder)}
            | settings,
        }
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("done") / "run"
    return run(job(folder), COMM), folder


@pytest.fixture
def folder(done, tmp_path):
    """A copy without results: what the checkpoints hold decides."""
    copy = shutil.copytree(done[1], tmp_path / "run")
    (copy / "run.h5").unlink()
    return copy


def rewrite(folder, change, r=4) -> None:
    """Change a checkpoint by ``change(header, file)`` and seal it again."""
    path = folder / f"checkpoint-{r:08d}.h5"
    with h5py.File(path, "r+") as file:
        header = json.loads(file.attrs["header"])
        header = change(header, file) or header
        file.attrs["header"] = json.dumps(header)
    sealed.seal(path, checkpoint.MAGIC, checkpoint.FORMAT)


def without(key):
    return lambda header, file: header.pop(key) and None


def setting(**values):
    return lambda header, file: header | values


def dataset(name, value=None):
    def change(header, file):
        if name in file:
            del file[name]
        if value is not None:
            file[name] = value

    return change


SCHEMAS = {
    "no round": (without("round"), "its header.round is missing"),
    "no totals": (without("totals"), "its header.totals is missing"),
    "text for a number": (setting(round="4"), "its header.round: "),
    "null": (setting(config=None), "its header.config: "),
    "empty settings": (setting(config={}), "its header.config.rounds is missing"),
    "list of numbers": (setting(unsent=[1]), "its header.unsent.0: "),
    "a key more": (setting(cohorts=[1]), "its header.cohorts: "),
    "no header": (lambda header, file: [5], "its header: "),
    "no shared": (dataset("shared"), "expected float32 [12] as 'shared', found nothing"),
    "no clients": (dataset("clients"), "expected float32 [3, 8] as 'clients', found nothing"),
    "a dataset more": (dataset("estimators", np.zeros(3)), "expected nothing as 'estimators', found"),
    "a group": (lambda header, file: file.create_group("more") and None, "unexpected content"),
    "shorter": (dataset("shared", np.zeros(2, "float32")), "as 'shared', found float32 [2]"),
    "longer type": (dataset("output", np.zeros(4)), "expected float32 [4] as 'output', found float64 [4]"),
    "fewer costs": (setting(totals=[4.0]), "its header.totals: "),
    "other rounds": (setting(totals=[3.0] * 10), "expected iterates and costs of its own settings and round"),
    "other iterates": (setting(recorded={"y": 2}), "expected iterates and costs of its own settings"),
    "unnamed metrics": (setting(metrics=["a", "b"]), "expected the metrics 'round' and others, found a, b"),
}


@pytest.mark.parametrize("change, says", SCHEMAS.values(), ids=SCHEMAS)
def test_unexpected_content_falls_back_and_names_the_version(done, folder, change, says, capsys):
    rewrite(folder, change)
    result = run(job(folder), COMM)
    said = capsys.readouterr().err
    assert "warning: checkpoint-00000004.h5 cannot be used (" in said and says in said, said
    assert "it was written by " in said or "unexpected content" in said
    assert "from round 2" in said and torch.equal(result.point["x"], done[0].point["x"])


def test_if_none_is_left_all_are_told(folder):
    for r in (2, 4):
        rewrite(folder, without("unsent"), r)
    for start in (lambda: run(job(folder), COMM), lambda: resume(folder, [], COMM)):
        with pytest.raises(CollectiveError) as refused:
            start()
        assert str(refused.value).count(f"it was written by mpifed {__version__}") == 2
        assert "run.overwrite=true starts over" in str(refused.value)


@pytest.mark.parametrize(
    "section, key", [("run", "executor"), ("algorithm", "omega"), ("participation", "old")]
)
def test_settings_that_are_no_more_are_named(folder, section, key):
    def change(header, file):
        header["config"][section][key] = 7

    for r in (2, 4):
        rewrite(folder, change, r)
    with pytest.raises(ConfigError) as refused:
        resume(folder, [], COMM)
    message = str(refused.value)
    assert (
        message.startswith(f"the settings stored in {folder}, by mpifed {__version__}, ")
        and repr(key) in message
    )
    if section != "run":
        with pytest.raises(CollectiveError, match=rf"{section}\.{key} is 7 there and not set here"):
            run(job(folder), COMM)


def test_a_fault_of_a_change_is_told_alone(folder):
    with pytest.raises(ConfigError, match="^algorithm has no setting 'gama': did you mean 'gamma'"):
        resume(folder, ["algorithm.gama=1"], COMM)


def test_a_results_file_with_settings_that_are_no_more(done, tmp_path):
    """Complete as it is; refused with the names where nothing but it is there and more rounds are wanted."""
    folder = shutil.copytree(done[1], tmp_path / "run")
    for path in folder.glob("checkpoint-*"):
        path.unlink()
    with edited(folder / "run.h5") as file:
        config = json.loads(file.attrs["config"])
        config["algorithm"]["omega"] = 7
        file.attrs["config"] = json.dumps(config)
    with pytest.raises(ConfigError, match="algorithm has no setting 'omega'"):
        resume(folder, [], COMM)
    with pytest.raises(CollectiveError, match=r"another job: algorithm\.omega is 7 there and not set here"):
        run(job(folder), COMM)


def test_iterates_are_kept_and_may_come_to_be_recorded(folder):
    with pytest.raises(
        CollectiveError, match=r"record = \['y'\] leaves out x, whose iterates the run has recorded"
    ):
        resume(folder, ["rounds=6", 'record=["y"]'], COMM)
    result = resume(folder, ["rounds=6", 'record=["x", "y"]'], COMM)
    for iterates in (result.iterates, mpifed.load(folder).iterates):
        assert iterates["x"].shape == iterates["y"].shape == (6, 2) and np.isfinite(iterates["x"]).all()
        assert np.isnan(iterates["y"][:4]).all() and np.isfinite(iterates["y"][4:]).all()
        assert iterates["x"].dtype == iterates["y"].dtype == np.float32
