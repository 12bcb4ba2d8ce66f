"""What a second start finds and does: start, continue, be done, refuse."""

import shutil

import h5py
import numpy as np
import pytest
import torch
from runfiles import edited

from mpifed import resume, run
from mpifed.config.job import Config
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.running.recorder import Recorder
from mpifed.running.resume import choose, complete
from mpifed.storage import checkpoint
from mpifed.storage.folder import Folder
from mpifed.storage.format import End
from mpifed.storage.results import load

COMM = SerialComm()


def table(folder, rounds=6, **settings) -> dict:
    base = {
        "progress": False,
        "dtype": "float64",
        "reduction": "exact",
        "checkpoint_every": 2,
        "out": str(folder),
    }
    return {
        "rounds": rounds,
        "algorithm": {"name": "AdaFGDA", "q": 2, "sync_estimator": "local"},
        "problem": {"name": "Saddle", "clients": 4, "d": 3},
        "oracle": {"batch_size": 0, "noise": {"name": "gaussian", "scale": 0.1}},
        "run": base | settings,
    }


def config(folder, rounds=6, **settings) -> Config:
    return Config.from_table(table(folder, rounds, **settings))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished run of 6 rounds."""
    folder = tmp_path_factory.mktemp("done") / "run"
    return run(config(folder), COMM), folder


@pytest.fixture
def folder(done, tmp_path):
    """A copy of it that may be changed."""
    return shutil.copytree(done[1], tmp_path / "run")


def chosen(place, settings: Config, how="auto"):
    folder = Folder(place)
    try:
        return choose(folder, settings, how)
    finally:
        folder.close()


def break_checkpoints(folder, *rounds):
    for r in rounds:
        path = folder / f"checkpoint-{r:08d}.h5"
        path.write_bytes(path.read_bytes()[:-10])


def test_nothing_there(tmp_path):
    for how in ("auto", "never"):
        assert chosen(tmp_path / "run", config(tmp_path / "run"), how) is None
    with pytest.raises(ValueError, match=r"there is no checkpoint in .* to continue from \(--resume must\)"):
        chosen(tmp_path / "run", config(tmp_path / "run"), "must")
    with pytest.raises(
        CollectiveError, match="there is no checkpoint in .*run: start the job with `mpifed run`"
    ):
        resume(tmp_path / "run", [], COMM)


def test_a_checkpoint_there(folder):
    for how in ("auto", "must"):
        assert chosen(folder, config(folder), how).end == End("rounds", "all 6 rounds done")
        assert chosen(folder, config(folder, rounds=7), how).round == 6
    with pytest.raises(ValueError, match="holds a run already: continue it with --resume auto"):
        chosen(folder, config(folder), "never")
    for how in ("auto", "never"):
        assert chosen(folder, config(folder, overwrite=True), how) is None
    assert chosen(folder, config(folder, rounds=7, overwrite=True), "must").round == 6
    assert len(list(folder.glob("*.h5"))) == 4, "looking changes nothing"


def test_results_without_a_checkpoint_are_not_started_over(folder):
    for path in folder.glob("checkpoint-*"):
        path.unlink()
    with pytest.raises(
        ValueError, match="holds a run already, and no checkpoint to continue it from; it has"
    ):
        chosen(folder, config(folder, rounds=7))
    with edited(folder / "run.h5") as file:
        file.attrs["stopped"] = ""
    with pytest.raises(ValueError, match="no checkpoint to continue it from; it has not ended"):
        chosen(folder, config(folder))


def test_overwriting_starts_over(folder, done):
    result = run(config(folder, rounds=3, overwrite=True), COMM)
    assert list(result.costs["round"]) == [0, 1, 2, 3]
    assert {path.name for path in folder.glob("*.h5")} == {
        "run.h5",
        "checkpoint-00000002.h5",
        "checkpoint-00000003.h5",
    }


@pytest.mark.parametrize(
    "change, says",
    [
        ({"seed": 1}, "seed is 0 there and 1 here"),
        ({"problem": {"name": "Saddle", "clients": 4, "d": 4}}, "problem.d is 3 there and 4 here"),
        ({"algorithm": {"name": "FGDA", "q": 2}}, "algorithm.name is AdaFGDA there and FGDA here"),
        ({"oracle": {"batch_size": 0}}, "oracle.noise.name is gaussian there and not set here"),
        (
            {"participation": {"weights": "samples"}},
            "participation.weights is uniform there and samples here",
        ),
        ({"output": "average"}, "output is "),
    ],
)
def test_another_job_is_refused_with_what_differs(done, change, says):
    other = Config.from_table(table(done[1]) | change)
    with pytest.raises(ValueError) as refused:
        chosen(done[1], other)
    message = str(refused.value)
    assert "holds a checkpoint of another job: " in message and says in message, message
    assert "rounds is" not in message and "run.out is" not in message, message


def test_how_it_runs_may_change_but_not_its_precision(done):
    free = config(
        done[1],
        9,
        eval_every=3,
        checkpoint_every=1,
        keep=1,
        threads=1,
        watchdog=0,
        matrices="replicated",
    )
    assert chosen(done[1], free).header["round"] == 6
    with pytest.raises(ValueError, match="another job: run.dtype is float64 there and float32 here"):
        chosen(done[1], config(done[1], dtype="float32"))


def test_fewer_rounds_than_done_are_refused(done):
    with pytest.raises(ValueError, match="is at round 6 already: rounds = 5 lies behind"):
        chosen(done[1], config(done[1], 5))
    with pytest.raises(CollectiveError, match="is at round 6 already: rounds = 5 lies behind"):
        resume(done[1], ["rounds=5"], COMM)


def test_a_complete_run_is_left_alone(done, folder, capsys):
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in folder.glob("*.h5")}
    again = run(config(folder), COMM)
    assert "is complete: all 6 rounds done" in capsys.readouterr().err
    assert before == {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in folder.glob("*.h5")}
    assert (
        torch.equal(again.point["x"], done[0].point["x"])
        and again.metrics == done[0].metrics
        and not again.unfinished
    )
    assert list(again.costs["round"]) == list(range(7)) and again.history == done[0].history


@pytest.mark.parametrize(
    "go_on", [lambda folder: run(config(folder, 9), COMM), lambda folder: resume(folder, ["rounds=9"], COMM)]
)
def test_more_rounds_go_on_to_the_same_point_as_in_one_go(folder, tmp_path, go_on):
    longer, whole = go_on(folder), run(config(tmp_path / "whole", 9), COMM)
    assert longer.stopped == "all 9 rounds done" and list(longer.costs["round"]) == list(range(10))
    assert torch.equal(longer.point["x"], whole.point["x"]) and torch.equal(
        longer.point["y"], whole.point["y"]
    )


def test_a_stopping_rule_ends_a_run_for_good_until_it_is_another(tmp_path):
    stop = {"stop": {"metric": "error", "at_most": 1e9}}
    stopped = Config.from_table(table(tmp_path, eval_every=3) | stop)
    assert run(stopped, COMM).end == End("target", "error is at most 1000000000.0")
    assert list(run(stopped, COMM).costs["round"]) == [0]
    assert list(resume(tmp_path, [], COMM).costs["round"]) == [0]
    assert list(resume(tmp_path, ["stop.at_most=1e-9"], COMM).costs["round"]) == list(range(7))


def test_when_a_saved_run_is_complete(done):
    end, old = End("rounds", "all 6 rounds done"), done[0].config
    assert complete(end, 6, old, config(done[1])) == end
    assert complete(end, 6, old, config(done[1], 7)) is None
    assert complete(None, 4, old, config(done[1])) is None


def test_an_end_without_a_kind_is_one_all_the_same(done):
    """As checkpoints of versions before have it."""
    saved = chosen(done[1], config(done[1], 7))
    del saved.header["end"]
    assert saved.end == End("", "all 6 rounds done")


def test_a_state_of_another_size_is_refused_before_it_travels(done):
    for change, says in (
        ("problem.d=5", "does not fit these settings"),
        ("problem.clients=5", "'clients': [4, "),
        ("run.dtype='float32'", "'dtype': 'float64'"),
        ("algorithm.matrix='identity'", "does not fit"),
    ):
        with pytest.raises(CollectiveError, match="checkpoint does not fit these settings") as refused:
            resume(done[1], [change], COMM)
        assert says in str(refused.value)


def test_damaged_checkpoints_fall_back(done, folder, capsys):
    break_checkpoints(folder, 6)
    (folder / "run.h5").unlink()
    result = run(config(folder), COMM)
    said = capsys.readouterr().err
    assert "warning: checkpoint-00000006.h5 cannot be used (" in said and "from round 4" in said, said
    assert torch.equal(result.point["x"], done[0].point["x"])


def test_all_checkpoints_damaged_is_not_started_over(folder):
    break_checkpoints(folder, 2, 4)
    (folder / "run.h5").unlink()
    (folder / "checkpoint-00000006.h5").write_bytes(b"mpifed checkpoint 9\n")
    for start in (lambda: run(config(folder), COMM), lambda: resume(folder, [], COMM)):
        with pytest.raises(CollectiveError) as refused:
            start()
        message = str(refused.value)
        assert "none of the checkpoints in" in message and "run.overwrite=true starts over" in message, (
            message
        )
        assert "it is of format 9, expected format 3" in message and message.count("cannot be used") == 3, (
            message
        )


def test_results_that_a_kill_left_behind_the_checkpoint_are_written(done, tmp_path, monkeypatch):
    """The last checkpoint is there, the results file is of the one before."""
    write = Recorder.write

    def killed(self, folder, end, final):
        if end:
            raise KeyboardInterrupt
        write(self, folder, end, final)

    monkeypatch.setattr(Recorder, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        run(config(tmp_path), COMM)
    assert newest_round(tmp_path) == 6 and load(tmp_path).end is None
    monkeypatch.undo()
    assert run(config(tmp_path), COMM).end == load(tmp_path).end == End("rounds", "all 6 rounds done")
    with h5py.File(tmp_path / "run.h5") as file:
        np.testing.assert_array_equal(file["final/x/x"][...], done[0].point["x"].numpy())
        assert file["costs/round"][-1] == 6 and file["final"].attrs["error"] == done[0].metrics["error"]


def newest_round(folder) -> int:
    return checkpoint.newest(folder)[1]["round"]
