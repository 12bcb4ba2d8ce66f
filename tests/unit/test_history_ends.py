"""What counts as the end of a run is its results file, with and without checkpoints."""

import json
import shutil

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from runfiles import edited

import mpifed
from mpifed import resume, run
from mpifed.base.errors import ConfigError
from mpifed.cli.main import cli
from mpifed.config.job import Config
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.running.recorder import Recorder
from mpifed.running.resume import is_done
from mpifed.simulation.simulation import NonFiniteError
from mpifed.storage.folder import Folder
from mpifed.storage.format import End

COMM = SerialComm()


def job(folder, rounds=4, run=None, **settings) -> Config:
    how = {"progress": False, "checkpoint_every": 0, "eval_every": 2, "out": str(folder)} | (run or {})
    table = {
        "rounds": rounds,
        "algorithm": {"name": "LocalSGDA", "q": 2, "eta_x": 0.01, "eta_y": 0.01},
        "problem": {"name": "Saddle", "clients": 3, "d": 2},
        "oracle": {"batch_size": 0},
        "run": how,
    }
    return Config.from_table(table | settings)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("done") / "run"
    return run(job(folder), COMM), folder


@pytest.fixture
def folder(done, tmp_path):
    return shutil.copytree(done[1], tmp_path / "run")


def content(folder) -> dict:
    files = (path for path in folder.iterdir() if path.is_file() and path.name != "run.lock")
    return {path.name: path.read_bytes() for path in files}


def same(one, other) -> None:
    assert one.end == other.end and one.metrics == other.metrics and one.history == other.history
    for block, values in one.point.items():
        assert torch.equal(values, other.point[block]) and values.dtype == other.point[block].dtype
    for name, values in one.costs.items():
        np.testing.assert_array_equal(values, other.costs[name])


WAYS = {
    "run": lambda folder: run(job(folder), COMM),
    "must": lambda folder: run(job(folder), COMM, "must"),
    "resume": lambda folder: resume(folder, [], COMM),
    "free settings": lambda folder: run(job(folder, run={"eval_every": 3, "checkpoint_every": 7}), COMM),
    "resume with free settings": lambda folder: resume(folder, ["run.keep=9"], COMM),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_finished_run_without_checkpoints_is_complete(done, folder, way, capsys, monkeypatch):
    before = content(folder)
    monkeypatch.setattr("mpifed.running.runner.Runner.carry_out", None)  # nothing is set up for it
    same(way(folder), done[0])
    assert f"mpifed: {folder} is complete: all 4 rounds done" in capsys.readouterr().err
    assert content(folder) == before


@pytest.mark.parametrize(
    "start", [lambda folder: run(job(folder, 9), COMM), lambda folder: resume(folder, ["rounds=9"], COMM)]
)
def test_more_rounds_need_a_checkpoint(folder, start):
    before = content(folder)
    with pytest.raises(CollectiveError) as refused:
        start(folder)
    says = (
        "no checkpoint to continue it from; it has ended (all 4 rounds done), and rounds = 9: choose another"
    )
    assert says in str(refused.value) and content(folder) == before


def test_fewer_rounds_lie_behind(folder):
    for start in (lambda: run(job(folder, 3), COMM), lambda: resume(folder, ["rounds=3"], COMM)):
        with pytest.raises(CollectiveError, match="is at round 4 already: rounds = 3 lies behind"):
            start()


def test_another_job_is_refused_with_what_differs(folder):
    before = content(folder)
    for start in (lambda: run(job(folder, seed=1), COMM), lambda: resume(folder, ["seed=1"], COMM)):
        with pytest.raises(CollectiveError, match="a run of another job: seed is 0 there and 1 here: choose"):
            start()
    assert content(folder) == before and not is_done(Folder(folder), job(folder, seed=1))


@pytest.mark.parametrize("kept", [0, 100, 3000, -200])
def test_a_damaged_file_without_a_checkpoint(folder, kept):
    file = folder / "run.h5"
    file.write_bytes(file.read_bytes()[:kept])
    before = content(folder)
    with pytest.raises(
        CollectiveError, match=r"run\.h5 cannot be read, and there is no checkpoint beside it"
    ):
        run(job(folder), COMM)
    with pytest.raises(
        CollectiveError, match=r"no checkpoint in .*, nor a sound run\.h5 of a run that has ended"
    ):
        resume(folder, [], COMM)
    assert content(folder) == before and not is_done(Folder(folder), job(folder))
    assert run(job(folder, run={"overwrite": True}), COMM).end == End("rounds", "all 4 rounds done")


def test_a_damaged_file_beside_a_checkpoint_is_written_again(tmp_path, done):
    settings = job(tmp_path, run={"checkpoint_every": 3})
    run(settings, COMM)
    half = (tmp_path / "run.h5").read_bytes()[:3000]
    (tmp_path / "run.h5").write_bytes(half)
    result = run(settings, COMM)
    assert result.end == mpifed.load(tmp_path).end == End("rounds", "all 4 rounds done")
    assert torch.equal(mpifed.load(tmp_path).point["x"], done[0].point["x"])


def attribute(**values):
    return lambda file: file.attrs.update(values)


def dataset(name, value=None, **attributes):
    def change(file):
        if value is not None or not attributes:
            del file[name]
        if value is not None:
            file[name] = value
        if attributes:
            file[name].attrs.update(attributes)

    return change


def nested(file):
    del file["final/x/x"]
    file["final/x/x/x"] = np.zeros(2)


def settings(**values):
    """Change the stored settings; ``None`` takes one out."""

    def change(file):
        table = json.loads(file.attrs["config"]) | values
        file.attrs["config"] = json.dumps({key: value for key, value in table.items() if value is not None})

    return change


AMISS = {
    "a kind of end that is no text": attribute(end=3),
    "no point": dataset("final"),
    "a point of text": dataset("final/x", np.array([b"a", b"b"])),
    "a flat point of two axes": dataset("final/x", np.zeros((1, 2))),
    "a parameter of text": dataset("final/x/x", np.array([b"a", b"b"])),
    "a group for a parameter": nested,
    "a block without parameters": dataset("final/x/x"),
    "a metric of the point that is text": dataset("final", error="a"),
    "no section for the run": settings(run=5),
    "no stopping rule": settings(stop=None),
    "rounds that are text": settings(rounds="4"),
}


@pytest.mark.parametrize("change", AMISS.values(), ids=AMISS)
def test_a_file_in_which_something_is_amiss_is_no_end(folder, tmp_path, change, done):
    with edited(folder / "run.h5") as file:
        change(file)
    assert not is_done(Folder(folder), job(folder))
    for start in (lambda: run(job(folder), COMM), lambda: resume(folder, [], COMM)):
        with pytest.raises(CollectiveError, match=r"run\.h5 cannot be read|nor a sound run\.h5"):
            start()


def test_a_checkpoint_of_the_end_mends_it(tmp_path, done):
    run(job(tmp_path, run={"checkpoint_every": 4}), COMM)
    for change in AMISS.values():
        with edited(tmp_path / "run.h5") as file:
            change(file)
        assert run(job(tmp_path, run={"checkpoint_every": 4}), COMM).end == End("rounds", "all 4 rounds done")
        mended = mpifed.load(tmp_path)
        assert mended.end == done[0].end and torch.equal(mended.point["x"], done[0].point["x"])


def test_another_folder_is_none_to_resume_in(folder, tmp_path):
    with pytest.raises(
        ConfigError, match="is not the folder to go on in, .*: copy that to another place first"
    ):
        resume(folder, [f"run.out={tmp_path / 'elsewhere'}"], COMM)
    assert resume(folder, [f"run.out={folder}/../run/"], COMM).end == End("rounds", "all 4 rounds done")
    for change in ("run.out=5", "run=5", "run.rounds=5"):
        with pytest.raises(ConfigError, match="run"):
            resume(folder, [change], COMM)


def test_an_older_checkpoint_does_not_undo_the_end(tmp_path, capsys):
    """A signal has left one of round 2; the rest has gone on without."""
    first = job(tmp_path, 2, run={"checkpoint_every": 2})
    run(first, COMM)
    run(job(tmp_path, 6), COMM)
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-00000002.h5"]
    before = content(tmp_path)
    for start in (lambda: run(job(tmp_path, 6), COMM), lambda: resume(tmp_path, [], COMM)):
        capsys.readouterr()
        assert start().costs["round"][-1] == 6 and "is complete: all 6 rounds done" in capsys.readouterr().err
    assert content(tmp_path) == before
    assert run(job(tmp_path, 7), COMM).costs["round"].tolist() == list(range(8)), "from round 2"


def test_a_run_that_was_to_be_longer_goes_on(tmp_path, monkeypatch):
    """A kill between the first checkpoint of the longer run and its results file."""
    run(job(tmp_path, 2, run={"checkpoint_every": 2}), COMM)

    def killed(self, *arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(Recorder, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        run(job(tmp_path, 6, run={"checkpoint_every": 2}), COMM)
    monkeypatch.undo()
    assert resume(tmp_path, [], COMM).stopped == "all 6 rounds done"


def test_a_last_round_that_was_none_before_is_evaluated(tmp_path):
    """A run of 9 rounds, killed after its checkpoint of round 5, asked for 5 in the end."""
    run(job(tmp_path / "whole", 5, run={"checkpoint_every": 1}), COMM)
    run(job(tmp_path / "run", 9, run={"checkpoint_every": 5, "keep": 9}), COMM)
    (tmp_path / "run" / "checkpoint-00000009.h5").unlink()
    (tmp_path / "run" / "run.h5").unlink()
    result = run(job(tmp_path / "run", 5, run={"checkpoint_every": 5}), COMM)
    whole = mpifed.load(tmp_path / "whole")
    assert result.history == whole.history and result.history["round"] == [0, 2, 4, 5]
    assert mpifed.load(tmp_path / "run").end == whole.end


def diverging(folder, every) -> Config:
    method = {"name": "LocalSGDA", "q": 2, "eta_x": 1e30, "eta_y": 1e30}
    return job(folder, 9, run={"checkpoint_every": every}, algorithm=method)


def test_non_finite_values_are_told_again(tmp_path):
    with pytest.raises(NonFiniteError) as first:
        run(diverging(tmp_path, 0), COMM)
    before = content(tmp_path)
    for start in (lambda: run(diverging(tmp_path, 0), COMM), lambda: resume(tmp_path, [], COMM)):
        with pytest.raises(NonFiniteError, match="has ended before: ") as again:
            start()
        assert str(first.value) in str(again.value) and content(tmp_path) == before
    assert is_done(Folder(tmp_path), diverging(tmp_path, 0))


def test_from_before_non_finite_values_other_settings_lead_on(tmp_path):
    run(job(tmp_path, 2, run={"checkpoint_every": 1}), COMM)
    with pytest.raises(NonFiniteError):
        resume(tmp_path, ["rounds=9", "algorithm.eta_x=1e30", "run.checkpoint_every=0"], COMM)
    assert resume(tmp_path, ["rounds=9"], COMM).stopped == "all 9 rounds done"


SWEEP = """
rounds = 3
problem = { name = "Saddle", clients = 3, d = 2 }
oracle.batch_size = 0
run = { progress = false, checkpoint_every = 0, out = "OUT" }
sweep.seed = [0, 1, 2]
algorithm = { name = "LocalSGDA", q = 2, eta_x = 0.01, eta_y = 0.01 }
"""


def test_a_sweep_goes_on_with_the_rest(tmp_path):
    file = tmp_path / "job.toml"
    file.write_text(SWEEP.replace("OUT", str(tmp_path / "runs")))

    def said(*words):
        return CliRunner().invoke(cli, ["sweep", str(file), *words]).output

    assert "2 runs done, 0 of them before" in said("sweep.seed=[0, 1]")
    before = content(tmp_path / "runs" / "seed=0")
    assert "3 runs done, 2 of them before, 0 ended" in said()
    assert "3 runs done, 3 of them before, 0 ended" in said("run.eval_every=2")
    assert content(tmp_path / "runs" / "seed=0") == before


def test_a_sweep_writes_the_end_that_a_kill_has_left_out(tmp_path):
    """The checkpoint of the end is there, the results file is of before."""
    file = tmp_path / "job.toml"
    file.write_text(
        SWEEP.replace("OUT", str(tmp_path / "runs")).replace("checkpoint_every = 0", "checkpoint_every = 2")
    )
    CliRunner().invoke(cli, ["sweep", str(file)])
    with edited(tmp_path / "runs" / "seed=1" / "run.h5") as opened:
        opened.attrs["stopped"] = opened.attrs["end"] = ""
    assert "3 runs done, 2 of them before" in CliRunner().invoke(cli, ["sweep", str(file)]).output
    assert mpifed.load(tmp_path / "runs" / "seed=1").end == End("rounds", "all 3 rounds done")
