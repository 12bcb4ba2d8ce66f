"""Starting a job again: start, continue, return the result, or refuse."""

import shutil

import h5py
import numpy as np
import pytest
import torch
from games import configuration
from resumed import assert_same
from runfiles import edited, replaced, rewrite, settings
from saddle_job import config, table

import mpifed
from mpifed import __version__, resume, run
from mpifed.algorithms import ALGORITHMS, SCAFFOLD
from mpifed.base.errors import ConfigError
from mpifed.config.grids import variants
from mpifed.config.job import Config
from mpifed.core.algorithm import Now
from mpifed.core.participation import Participation
from mpifed.core.sets import Euclidean
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.problems import Saddle
from mpifed.running.recorder import Recorder
from mpifed.running.resume import final_results, open_for_run
from mpifed.running.run import SweepOutcome, sweep
from mpifed.simulation import coordinator
from mpifed.simulation.simulation import NonFiniteError
from mpifed.storage import checkpoint
from mpifed.storage.files import parts_of_checkpoints
from mpifed.storage.folder import Folder
from mpifed.storage.results import End, load
from mpifed.tuning.trials import delete_checkpoints

COMM = SerialComm()
DONE = End("rounds", "all 6 rounds done")


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished run of 6 rounds with checkpoints, and its folder."""
    folder = tmp_path_factory.mktemp("done") / "run"
    return run(config(folder, record=["x"]), COMM), folder


def job(folder, rounds=6, **run) -> Config:
    return config(folder, rounds, ["x"], run)


@pytest.fixture
def folder(done, tmp_path):
    """A copy of the run."""
    return shutil.copytree(done[1], tmp_path / "run")


@pytest.fixture
def without_checkpoints(folder):
    for path in folder.glob("checkpoint-*"):
        path.unlink()
    return folder


@pytest.fixture
def without_results(folder):
    (folder / "run.h5").unlink()
    return folder


def opened(place, job: Config, how="auto"):
    folder = Folder(place)
    try:
        return open_for_run(folder, job, how)
    finally:
        folder.close()


def content(folder) -> dict:
    files = (path for path in folder.iterdir() if path.is_file() and path.name != "run.lock")
    return {path.name: path.read_bytes() for path in files}


def starts(folder, **changed):
    """Both ways to start a job again, with the same changes."""
    changes = [f"{key}={value}" for key, value in changed.items()]
    yield lambda: run(config(folder, **{"record": ["x"]} | changed), COMM)
    yield lambda: resume(folder, changes, COMM)


def expect_refusal(folder, message, **changed) -> None:
    """Both ways are refused, and no file is changed."""
    before = content(folder)
    for start in starts(folder, **changed):
        with pytest.raises(CollectiveError, match=message):
            start()
    assert content(folder) == before


def test_empty_folder(tmp_path):
    for how in ("auto", "never"):
        assert opened(tmp_path / "run", job(tmp_path / "run"), how) is None
    with pytest.raises(ValueError, match=r"there is no checkpoint in .* to continue from \(--resume must\)"):
        opened(tmp_path / "run", job(tmp_path / "run"), "must")
    with pytest.raises(CollectiveError, match="does not exist: expected the folder of a run"):
        resume(tmp_path / "run", [], COMM)


def test_options_of_resume(folder):
    for how in ("auto", "must"):
        assert opened(folder, job(folder), how).end == DONE
        assert opened(folder, job(folder, 7), how).round == 6
    with pytest.raises(ValueError, match="already contains a run: continue it with --resume auto"):
        opened(folder, job(folder), "never")
    for how in ("auto", "never"):
        assert opened(folder, job(folder, overwrite=True), how) is None
    assert opened(folder, job(folder, 7, overwrite=True), "must").round == 6
    assert len(list(folder.glob("*.h5"))) == 4, "opening changes nothing"


def test_overwriting(folder):
    result = run(job(folder, 3, overwrite=True), COMM)
    assert list(result.costs["round"]) == [0, 1, 2, 3]
    names = {path.name for path in folder.glob("*.h5")}
    assert names == {"run.h5", "checkpoint-00000002.h5", "checkpoint-00000003.h5"}


@pytest.mark.parametrize("change, difference", [
    ({"seed": 1}, "seed is 0 in the stored run and 1 in this job"),
    ({"problem": {"name": "Saddle", "clients": 4, "d": 4}}, "problem.d is 3 in the stored run and 4 in"),
    ({"algorithm": {"name": "FGDA", "q": 2}}, "algorithm.name is AdaFGDA in the stored run and FGDA in"),
    ({"oracle": {"batch_size": 0}}, "oracle.noise.name is gaussian in the stored run and not set in"),
    ({"participation": {"weights": "samples"}}, "weights is uniform in the stored run and samples in"),
    ({"output": "average"}, "output is "),
])  # fmt: skip
def test_other_job(done, change, difference):
    with pytest.raises(ValueError) as error:
        opened(done[1], Config.from_table(table(done[1], record=["x"]) | change))
    message = str(error.value)
    assert "contains a checkpoint of AdaFGDA on Saddle, another job: " in message and difference in message, (
        message
    )
    assert "rounds is" not in message and "run.out is" not in message, message


def test_message_of_another_job_is_short(done):
    """It lists the names of method and problem and one further setting."""
    other = {"algorithm": {"name": "FGDA", "q": 2}, "problem": {"name": "FiniteMax", "clients": 4}, "seed": 1}
    with pytest.raises(
        ValueError, match=r"algorithm\.name is .*; problem\.name is .*; \w+ is .*; \d+ more dif"
    ):
        opened(done[1], Config.from_table(table(done[1], record=["x"]) | other))


def test_settings_that_may_change(done):
    free = {"eval_every": 3, "checkpoint_every": 1, "keep": 1, "threads": 1, "watchdog": 0}
    assert opened(done[1], job(done[1], 9, matrices="replicated", **free)).header["round"] == 6


def test_fewer_rounds_than_completed(folder, without_checkpoints):
    expect_refusal(folder, "has already completed round 6: expected rounds of at least 6, got 5", rounds=5)


@pytest.mark.parametrize("checkpoints", [True, False])
@pytest.mark.parametrize("start", [
    lambda folder: run(job(folder), COMM),
    lambda folder: run(job(folder), COMM, "must"),
    lambda folder: run(job(folder, eval_every=3, checkpoint_every=7), COMM),
    lambda folder: resume(folder, ["run.keep=9"], COMM),
], ids=["run", "must", "free settings", "resume"])  # fmt: skip
def test_complete_run_is_returned(done, folder, start, checkpoints, capsys, monkeypatch):
    for path in folder.glob("checkpoint-*") if not checkpoints else ():
        path.unlink()
    before = content(folder)
    monkeypatch.setattr("mpifed.running.loop._Run", None)  # nothing is set up
    result, first = start(folder), done[0]
    assert result.end == first.end
    assert_same(result, first)
    assert f"mpifed: {folder} is complete: all 6 rounds done" in capsys.readouterr().err
    assert content(folder) == before and not result.unfinished


@pytest.mark.parametrize("way", [0, 1], ids=["run", "resume"])
def test_more_rounds_reach_the_point_of_an_uninterrupted_run(folder, tmp_path, way):
    longer, whole = [*starts(folder, rounds=9)][way](), run(job(tmp_path / "whole", 9), COMM)
    assert longer.stopped == "all 9 rounds done" and list(longer.costs["round"]) == list(range(10))
    assert all(torch.equal(longer.point[block], whole.point[block]) for block in "xy")


def test_more_rounds_need_a_checkpoint(without_checkpoints):
    folder = without_checkpoints
    expect_refusal(folder, r"has ended \(all 6 rounds done\), and rounds = 9, and no checkpoint", rounds=9)
    with edited(folder / "run.h5") as file:
        file.attrs["stopped"] = ""
    with pytest.raises(ValueError, match="contains a run that has not ended, and no checkpoint"):
        opened(folder, job(folder))


def test_other_job_without_checkpoints(without_checkpoints):
    folder = without_checkpoints
    expect_refusal(folder, "another job: seed is 0 in the stored run and 1 in this job: choose", seed=1)
    assert not final_results(Folder(folder), config(folder, record=["x"], seed=1))


def test_stopping_rule_is_final_until_it_changes(tmp_path):
    stopped = config(tmp_path, run={"eval_every": 3}, stop={"metric": "error", "at_most": 1e9})
    assert run(stopped, COMM).end == End("target", "error is at most 1000000000.0")
    assert list(run(stopped, COMM).costs["round"]) == [0]
    assert list(resume(tmp_path, [], COMM).costs["round"]) == [0]
    assert list(resume(tmp_path, ["stop.at_most=1e-9"], COMM).costs["round"]) == list(range(7))


def test_larger_time_budget_continues_the_run(tmp_path, capsys):
    end = run(config(tmp_path, stop={"seconds": 1e-9}), COMM).end
    assert resume(tmp_path, [], COMM).end == end
    assert "1e-09 s used up; a larger stop.seconds continues the run" in capsys.readouterr().err
    assert list(resume(tmp_path, ["stop.seconds=1e9"], COMM).costs["round"]) == list(range(7))


def test_end_in_old_checkpoints_has_no_keyword(done):
    saved = opened(done[1], job(done[1], 7))
    del saved.header["end"]
    assert saved.end == End("", "all 6 rounds done")


@pytest.mark.parametrize("change, difference", [
    ("problem.d=5", ""), ("algorithm.matrix='identity'", ""),
    ("problem.clients=5", "'clients': [4, "), ("run.dtype='float32'", "'dtype': 'float64'"),
])  # fmt: skip
def test_state_of_another_size(done, change, difference):
    with pytest.raises(CollectiveError, match="checkpoint does not fit these settings") as error:
        resume(done[1], [change], COMM)
    assert difference in str(error.value)


@pytest.mark.parametrize("rule", ["average", "uniform"])
def test_an_output_rule_that_needs_earlier_points_is_refused(folder, rule):
    with pytest.raises(CollectiveError, match=f"'{rule}' needs the points of all rounds, but 6 rounds have"):
        resume(folder, ["rounds=7", f"output={rule}"], COMM)


@pytest.mark.parametrize("method, before, after", [
    ({"name": "LSGD", "K": 2, "eta": 0.1}, "last", "average"),  # the method stores its average
    ({"name": "LocalSGDA", "q": 2, "eta_x": 0.1, "eta_y": 0.1}, "average", "last"),
])  # fmt: skip
def test_an_output_rule_that_needs_no_earlier_points_may_change(tmp_path, method, before, after):
    run(config(tmp_path / "run", 2, algorithm=method, output=before), COMM)
    found = resume(tmp_path / "run", ["rounds=4", f"output={after}"], COMM)
    expected = run(config(tmp_path / "whole", 4, algorithm=method, output=after), COMM)
    assert torch.equal(found.point["x"], expected.point["x"])


def test_other_data_of_a_resumed_run(folder, capsys):
    resume(folder, ["rounds=7", "seed=1"], COMM)
    assert "warning: seed changed: rounds after 6 may have other data" in capsys.readouterr().err


def test_run_out_of_a_resumed_run(without_checkpoints, tmp_path):
    folder = without_checkpoints
    with pytest.raises(ConfigError, match="is not the folder of the resumed run, .*: copy the folder first"):
        resume(folder, [f"run.out={tmp_path / 'elsewhere'}"], COMM)
    assert resume(folder, [f"run.out={folder}/../run/"], COMM).end == DONE
    for change in ("run.out=5", "run=5", "run.rounds=5"):
        with pytest.raises(ConfigError, match="run"):
            resume(folder, [change], COMM)


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


UNEXPECTED = {
    "no round": (without("round"), "its header.round is missing"),
    "no totals": (without("totals"), "its header.totals is missing"),
    "text for a number": (setting(round="6"), "its header.round: "),
    "null": (setting(config=None), "its header.config: "),
    "empty settings": (setting(config={}), "its header.config.rounds is missing"),
    "list of numbers": (setting(unsent=[1]), "its header.unsent.0: "),
    "additional key": (setting(cohorts=[1]), "its header.cohorts: "),
    "no header": (lambda header, file: [5], "its header: "),
    "no shared": (dataset("shared"), "expected float64 [18] as 'shared', found nothing"),
    "no clients": (dataset("clients"), "expected float64 [4, 12] as 'clients', found nothing"),
    "additional array": (dataset("estimators", np.zeros(3)), "expected nothing as 'estimators', found"),
    "a group": (lambda header, file: file.create_group("more") and None, "unexpected content"),
    "shorter": (dataset("shared", np.zeros(2)), "as 'shared', found float64 [2]"),
    "other dtype": (dataset("output", np.zeros(6, "f4")), "expected float64 [6] as 'output', found float32"),
    "fewer costs": (setting(totals=[6.0]), "its header.totals: "),
    "other rounds": (setting(totals=[3.0] * 10), "expected iterates and costs of its own settings and round"),
    "other iterates": (setting(recorded={"y": 3}), "expected iterates and costs of its own settings"),
    "unnamed metrics": (setting(metrics=["a", "b"]), "expected the metrics 'round' and others, found a, b"),
    "no user block": (lambda header, file: None, "its bytes do not match"),
}


@pytest.mark.parametrize("change, reason", UNEXPECTED.values(), ids=UNEXPECTED)
def test_invalid_checkpoint_is_skipped(done, without_results, change, reason, capsys):
    folder = without_results
    path = folder / "checkpoint-00000006.h5"
    rewrite(path, change)
    if reason == "its bytes do not match":
        path.write_bytes(path.read_bytes()[:-10])
    result = run(job(folder), COMM)
    output = capsys.readouterr().err
    assert "warning: checkpoint-00000006.h5 cannot be used (" in output and reason in output, output
    assert "it was written by " in output or "unexpected content" in output or "digest" in output
    assert "from round 4" in output and torch.equal(result.point["x"], done[0].point["x"])


def test_no_valid_checkpoint(without_results):
    folder = without_results
    for r in (2, 4):
        rewrite(folder / f"checkpoint-0000000{r}.h5", without("unsent"))
    (folder / "checkpoint-00000006.h5").write_bytes(b"mpifed checkpoint 9\n")
    for start in starts(folder):
        with pytest.raises(CollectiveError, match="none of the checkpoints in .* can be used") as error:
            start()
        message = str(error.value)
        assert "run.overwrite=true starts over" in message and message.count("cannot be used") == 3
        assert message.count(f"it was written by mpifed {__version__}") == 2
        assert "it is of format 9, expected format 6" in message


@pytest.mark.parametrize(
    "section, key", [("run", "executor"), ("algorithm", "omega"), ("participation", "old")]
)
def test_checkpoint_with_settings_of_another_version(without_results, section, key):
    folder = without_results

    def change(header, file):
        header["config"][section][key] = 7

    for path in folder.glob("checkpoint-*"):
        rewrite(path, change)
    with pytest.raises(ConfigError, match=f"the settings stored in .*, by mpifed {__version__}, .*'{key}'"):
        resume(folder, [], COMM)
    if section != "run":
        with pytest.raises(CollectiveError, match=rf"{section}\.{key} is 7 in the stored run and not set in"):
            run(job(folder), COMM)


def test_invalid_change_is_reported_alone(folder):
    with pytest.raises(ConfigError, match="^algorithm has no setting 'gama': did you mean 'gamma'"):
        resume(folder, ["algorithm.gama=1"], COMM)


def test_results_with_settings_of_another_version(without_checkpoints, done):
    folder = without_checkpoints
    with edited(folder / "run.h5") as file:
        settings(algorithm=done[0].config["algorithm"] | {"omega": 7})(file)
    with pytest.raises(ConfigError, match="algorithm has no setting 'omega'"):
        resume(folder, [], COMM)
    with pytest.raises(CollectiveError, match=r"another job: algorithm\.omega is 7 in the stored run"):
        run(job(folder), COMM)


def nested(file):
    del file["final/x/x"]
    file["final/x/x/x"] = np.zeros(3)


INVALID = {
    "end is no text": replaced(attr_end=3),
    "no point": replaced(final=None),
    "point is text": replaced(final__x=np.array([b"a", b"b"])),
    "flat point has two axes": replaced(final__x=np.zeros((1, 3))),
    "parameter is text": replaced(final__x__x=np.array([b"a", b"b"])),
    "parameter is a group": nested,
    "block has no parameters": replaced(final__x__x=None),
    "metric is text": lambda file: file["final"].attrs.update(error="a"),
    "run is no section": settings(run=5),
    "no stopping rule": settings(stop=None),
    "rounds are text": settings(rounds="6"),
    **{f"{kept} bytes": kept for kept in (0, 100, 3000, -200)},
}


@pytest.mark.parametrize("change", INVALID.values(), ids=INVALID)
def test_invalid_results(done, folder, change):
    """The run is not complete; a checkpoint of the end repairs the results."""
    if isinstance(change, int):
        (folder / "run.h5").write_bytes((folder / "run.h5").read_bytes()[:change])
    else:
        with edited(folder / "run.h5") as file:
            change(file)
    assert not final_results(Folder(folder), job(folder))
    bare = shutil.copytree(folder, folder.with_name("bare"), ignore=shutil.ignore_patterns("checkpoint-*"))
    expect_refusal(bare, r"run\.h5 cannot be read, and there is no checkpoint|nor a valid run\.h5")
    assert run(job(bare, overwrite=True), COMM).end == run(job(folder), COMM).end == DONE
    repaired = mpifed.load(folder)
    assert repaired.end == DONE and torch.equal(repaired.point["x"], done[0].point["x"])


def killed(*_):
    raise KeyboardInterrupt


def test_results_missing_after_a_kill_are_written(done, tmp_path, monkeypatch):
    """The last checkpoint was written, the results file is that of the previous one."""
    write = Recorder.write
    with monkeypatch.context() as patches:
        patches.setattr(Recorder, "write", lambda *given: killed() if given[2] else write(*given))
        with pytest.raises(KeyboardInterrupt):
            run(job(tmp_path), COMM)
    assert checkpoint.newest(tmp_path)[1]["round"] == 6 and mpifed.load(tmp_path).end is None
    assert run(job(tmp_path), COMM).end == mpifed.load(tmp_path).end == DONE
    with h5py.File(tmp_path / "run.h5") as file:
        np.testing.assert_array_equal(file["final/x/x"][...], done[0].point["x"].numpy())
        assert file["costs/round"][-1] == 6 and file["final"].attrs["error"] == done[0].metrics["error"]


def test_older_checkpoint_does_not_undo_the_end(tmp_path, capsys):
    """A signal has left a checkpoint of round 2; later rounds were run without checkpoints."""
    run(job(tmp_path, 2), COMM)
    longer = job(tmp_path, checkpoint_every=0)
    run(longer, COMM)
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-00000002.h5"]
    before = content(tmp_path)
    for start in (lambda: run(longer, COMM), lambda: resume(tmp_path, [], COMM)):
        capsys.readouterr()
        assert start().costs["round"][-1] == 6 and "is complete: all 6 rounds done" in capsys.readouterr().err
    assert content(tmp_path) == before
    assert run(job(tmp_path, 7), COMM).costs["round"].tolist() == list(range(8)), "from round 2"


def test_longer_run_killed_before_its_first_results(tmp_path, monkeypatch):
    run(job(tmp_path, 2), COMM)
    with monkeypatch.context() as patches, pytest.raises(KeyboardInterrupt):
        patches.setattr(Recorder, "write", killed)
        run(job(tmp_path), COMM)
    assert resume(tmp_path, [], COMM).stopped == "all 6 rounds done"


def test_new_last_round_is_evaluated(tmp_path):
    """A run of 9 rounds, killed after its checkpoint of round 5, is resumed with 5 rounds."""
    run(job(tmp_path / "whole", 5, eval_every=2), COMM)
    run(job(tmp_path / "run", 9, eval_every=2, checkpoint_every=5, keep=9), COMM)
    (tmp_path / "run" / "checkpoint-00000009.h5").unlink()
    (tmp_path / "run" / "run.h5").unlink()
    result = run(job(tmp_path / "run", 5, eval_every=2, checkpoint_every=5), COMM)
    whole = mpifed.load(tmp_path / "whole")
    assert result.history == whole.history and result.history["round"] == [0, 2, 4, 5]
    assert mpifed.load(tmp_path / "run").end == whole.end


DIVERGING = {"name": "LocalSGDA", "q": 2, "eta_x": 1e30, "eta_y": 1e30}


def test_non_finite_values_are_reported_again(tmp_path):
    diverging = config(tmp_path, 20, run={"checkpoint_every": 0}, algorithm=DIVERGING)
    with pytest.raises(NonFiniteError) as first:
        run(diverging, COMM)
    before = content(tmp_path)
    for start in (lambda: run(diverging, COMM), lambda: resume(tmp_path, [], COMM)):
        with pytest.raises(NonFiniteError, match="has already ended: ") as error:
            start()
        assert str(first.value) in str(error.value) and content(tmp_path) == before
    assert final_results(Folder(tmp_path), diverging)


def test_other_settings_continue_from_before_non_finite_values(tmp_path):
    stable = DIVERGING | {"eta_x": 0.01, "eta_y": 0.01}
    run(config(tmp_path, 2, run={"checkpoint_every": 1}, algorithm=stable), COMM)
    with pytest.raises(NonFiniteError):
        resume(tmp_path, ["rounds=20", "algorithm.eta_x=1e30", "run.checkpoint_every=0"], COMM)
    assert resume(tmp_path, ["rounds=9"], COMM).stopped == "all 9 rounds done"


def test_recorded_blocks_may_be_added_and_not_removed(without_results):
    folder = without_results
    message = r"record = \['y'\] leaves out x, whose iterates the run has recorded"
    with pytest.raises(CollectiveError, match=message):
        resume(folder, ["rounds=8", 'record=["y"]'], COMM)
    result = resume(folder, ["rounds=8", 'record=["x", "y"]'], COMM)
    for iterates in (result.iterates, mpifed.load(folder).iterates):
        assert iterates["x"].shape == iterates["y"].shape == (8, 3) and np.isfinite(iterates["x"]).all()
        assert np.isnan(iterates["y"][:6]).all() and np.isfinite(iterates["y"][6:]).all()
        assert iterates["x"].dtype == iterates["y"].dtype == np.float64


def test_sweep_executes_missing_runs_only(tmp_path):
    """Also a run with the checkpoint of its end, whose results a kill has left incomplete."""
    file = tmp_path / "job.toml"
    file.write_text(f"""
rounds = 3
problem = {{ name = "Saddle", clients = 3, d = 2 }}
oracle.batch_size = 0
run = {{ progress = false, checkpoint_every = 2, out = "{tmp_path / "runs"}" }}
sweep.seed = [0, 1, 2]
algorithm = {{ name = "LocalSGDA", q = 2, eta_x = 0.01, eta_y = 0.01 }}
""")

    def execute(*overrides):
        return sweep(variants(file, overrides), COMM)

    assert execute("sweep.seed=[0, 1]") == SweepOutcome(done=2, before=0)
    before = content(tmp_path / "runs" / "seed=0")
    assert execute() == SweepOutcome(done=3, before=2)
    assert execute("run.eval_every=2") == SweepOutcome(done=3, before=3)
    assert content(tmp_path / "runs" / "seed=0") == before
    with edited(tmp_path / "runs" / "seed=1" / "run.h5") as opened:
        opened.attrs["stopped"] = opened.attrs["end"] = ""
    assert execute() == SweepOutcome(done=3, before=2)
    assert mpifed.load(tmp_path / "runs" / "seed=1").end == End("rounds", "all 3 rounds done")
    assert execute("rounds=5") == SweepOutcome(done=3, before=0)


def test_steps_are_counted_across_a_change_of_their_number(tmp_path, monkeypatch):
    """Schedules of local steps and of matrices continue at the next step, for more and for fewer steps per
    round."""
    steps, previous, step, refreshed, refresh = {}, {}, Now.step, set(), coordinator.refresh
    method = {"name": "AdaFGDA", "sync_estimator": "local"}

    def recorded(self, k):
        t, previous[self.round] = step(self, k), self.previous_steps
        steps.setdefault(self.round, []).extend([t] if k else [])
        return t

    monkeypatch.setattr(Now, "step", recorded)
    monkeypatch.setattr(coordinator, "refresh", lambda *given: refreshed.add(given[-1]) or refresh(*given))
    run(config(tmp_path / "run", 3, algorithm=method | {"q": 4}), COMM)
    for rounds, q in ((4, 10), (5, 2)):
        resume(tmp_path / "run", [f"rounds={rounds}", f"algorithm.q={q}"], COMM)
    expected = {1: (1, 4), 2: (5, 8), 3: (9, 12), 4: (13, 22), 5: (23, 24)}
    assert {r: (min(numbers), max(numbers)) for r, numbers in steps.items() if r} == expected
    assert [previous[r] for r in (2, 3, 4, 5)] == [4, 4, 4, 10]
    assert sorted(refreshed)[-5:] == [4, 8, 12, 22, 24]


def test_checkpoint_of_an_earlier_version(done, without_results):
    """All its rounds had the stored number of steps; its columns are known by their names."""

    def older(header, file):
        assert header.pop("steps") == [12, 2] and len(header.pop("columns")) == len(header["metrics"]) - 1

    rewrite(without_results / "checkpoint-00000006.h5", older)
    resume(without_results, ["rounds=7", "algorithm.q=5"], COMM)
    assert checkpoint.newest(without_results)[1]["steps"] == [12 + 5, 5]
    before, after = load(done[1]).columns, load(without_results).columns
    assert after == {name: column._replace(split="test") for name, column in before.items()}


@pytest.mark.parametrize("method, total", [
    ({"name": "LSGD"}, "x_sum"),
    ({"name": "LocalAdaSEG", "G_0": 1.0, "D": 0.1}, "x_sum"),
    ({"name": "LocalDualExtrapolation"}, "v_sum"),
    ({"name": "FeDualEx", "shadow": False, "eta_c": 0.05}, "points"),
])  # fmt: skip
def test_averages_over_steps_across_a_change_of_their_number(tmp_path, monkeypatch, method, total):
    sums, averages, function = [], [], ALGORITHMS[method["name"]].server_round

    def recorded(self, now, shared, mean):
        sums.append(getattr(mean, total).clone())
        function(self, now, shared, mean)
        averages.append(shared.average.clone())

    monkeypatch.setattr(ALGORITHMS[method["name"]], "server_round", recorded)
    rates = {} if {"G_0", "eta_c"} & {*method} else {"eta": 0.05}
    run(config(tmp_path / "run", 2, algorithm=method | rates | {"K": 2}), COMM)
    resume(tmp_path / "run", ["rounds=3", "algorithm.K=6"], COMM)
    # Only rounding of the running average in float64.
    torch.testing.assert_close(averages[-1], sum(sums) / 10, rtol=1e-13, atol=1e-13)


def test_weights_of_dual_averages_across_a_change_of_the_number_of_steps(tmp_path, monkeypatch):
    """φ has the weight of all steps."""
    weights, mirror = [], Euclidean.__call__

    def recorded(self, dual, weight, phi):
        weights.append(weight)
        return mirror(self, dual, weight, phi)

    monkeypatch.setattr(Euclidean, "__call__", recorded)
    run(config(tmp_path / "run", 2, algorithm={"name": "FedDualAvg", "eta_c": 0.05, "K": 2}), COMM)
    resume(tmp_path / "run", ["rounds=3", "algorithm.K=6"], COMM)
    assert max(weights) == pytest.approx(10 * 0.05, rel=1e-12)


def test_parts_of_checkpoints_are_removed_with_them(tmp_path):
    """By a run that replaces another one, and when the checkpoints of a trial are deleted."""
    job = configuration(
        SCAFFOLD(K=2, eta_l=0.05), Saddle(clients=9, d=4), tmp_path, cohort=2, checkpoint_every=1
    )
    run(job, COMM)
    parts = {*parts_of_checkpoints(tmp_path)}
    assert {path.name[:19] for path in parts} == {f"checkpoint-0000000{r}" for r in (1, 2, 3)}
    full = job.model_copy(update={"participation": Participation()})
    run(full, COMM)
    assert parts_of_checkpoints(tmp_path) == [] and len(Folder(tmp_path).checkpoints()) == 3
    run(job, COMM)
    delete_checkpoints(tmp_path)
    assert parts_of_checkpoints(tmp_path) == [] and Folder(tmp_path).checkpoints() == []
