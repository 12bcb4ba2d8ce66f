"""`mpifed tune`: budgets, selection metrics, interruptions, parts and files."""

import csv
import json
import shutil
from functools import partial

import numpy as np
import pytest
from commands import error_of, invoke, output_of
from oracles import prepared

from mpifed.algorithms import FGDA
from mpifed.base.errors import ConfigError
from mpifed.config.grids import variants
from mpifed.config.job import Config
from mpifed.config.tuning import tuning
from mpifed.core.metrics import Column
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.problems import Saddle
from mpifed.simulation.problem_metrics import ScoredProblem
from mpifed.simulation.simulation import NonFiniteError, Simulation
from mpifed.storage.results import find_runs, load
from mpifed.tuning import trials, tuner
from mpifed.tuning.results import SEED_OFFSET
from mpifed.tuning.trials import Preview

JOB = """
# Two methods on a saddle; a round of the first costs twice as much.
rounds = 6
[problem]
name = "Saddle"
clients = 2
d = 3
[oracle]
batch_size = 0
noise = { name = "gaussian", scale = 0.1 }
[run]
dtype = "float64"
out = "FOLDER/out"
[tune]
runs = 3
seeds = 2
[tune.tasks]
"problem.clients" = [2, 3]
[[tune.methods]]
name = "FGDA"
q = 2
alpha = [0.1, 0.5]
beta = 0.5
gamma = 0.05
lam = { low = 1e-3, high = 0.5 }
[[tune.methods]]
name = "LocalSGDA"
q = 2
eta_x = { low = 1e-3, high = 0.5 }
eta_y = 0.05
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder and the results of an uninterrupted search."""
    folder = tmp_path_factory.mktemp("whole")
    path = folder / "job.toml"
    path.write_text(JOB.replace("FOLDER", str(folder)))
    results = tuner.tune(tuning(path), SerialComm())
    return folder, results


@pytest.fixture
def finished(whole, job, tmp_path):
    """A job whose search has finished: a copy of the search ``whole``."""
    shutil.copytree(whole[0] / "out", tmp_path / "out")
    return job


def best(folder) -> str:
    return (folder / "out/best.toml").read_text()


def test_all_methods_of_a_task_have_the_same_budget(whole):
    folder, results = whole
    job = tuning(folder / "job.toml")
    spent = {}
    for path in find_runs([folder / "out/trials"]):
        _, task, method, *_ = path.relative_to(folder / "out").parts
        spent[task, method] = spent.get((task, method), 0) + int(load(path).costs["oracle_calls"][-1])
    for study, result in zip(job.studies, results):
        assert spent[study.task, study.method] == result.spent <= result.budget
        assert result.spent > 0.6 * result.budget  # a bracket of two seeds costs at least two full runs
    # 6 rounds of 2 steps of FGDA, with 2 calls each except for the first.
    budgets = {(study.task, result.budget) for study, result in zip(job.studies, results)}
    assert budgets == {("clients=2", 3 * 2 * 24), ("clients=3", 3 * 3 * 24)}
    tried = [len(result.tried) for result in results]
    assert tried[1] > tried[0] and tried[3] > tried[2]


def test_budgets_proportional_to_the_open_settings(job):
    change = ["tune.budget='proportional'"]
    plans = tuner.plan(tuning(job, change), SerialComm())
    assert [plan.budget for plan in plans] == [2 * 3 * 2 * 24, 3 * 2 * 24, 2 * 3 * 3 * 24, 3 * 3 * 24]
    printed = output_of("tune", job, "--list", *change, "tune.min_rounds=3")
    words = "times its number of searched settings / the least number; runs of 3 / 6 rounds"
    assert words in " ".join(printed.split())


def test_best_toml_is_a_sweep_of_the_best_settings_with_new_seeds(whole, tmp_path):
    folder, results = whole
    text = best(folder)
    assert text.count("[[sweep]]") == 4 and "Unfinished" not in text and "oracle calls spent" in text
    runs = variants(folder / "out/best.toml", [f"run.out={tmp_path / 'best'}"])
    assert len(runs) == 4 * 2 and {run.config.seed for run in runs} == {SEED_OFFSET, SEED_OFFSET + 1}
    methods = [run.config for run in runs if run.config.seed == SEED_OFFSET]
    assert [config.problem.clients for config in methods] == [2, 2, 3, 3]
    for config, result in zip(methods, results):
        for key, value in result.settings.items():
            assert getattr(getattr(config.algorithm, key), "value", getattr(config.algorithm, key)) == value
        assert config.rounds == 6 and config.oracle.noise.scale == 0.1 and config.run.dtype == "float64"
    with open(folder / "out/tried.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(len(result.tried) for result in results)
    final = [row for row in rows if row["rounds"] == "6" and row["seeds"] == "2"]
    values = [float(row["value"]) for row in final if (row["task"], row["method"]) == ("clients=2", "FGDA")]
    assert min(values) == results[0].value
    assert not list((folder / "out/trials").rglob("checkpoint-*.h5"))


def test_report_and_status_of_the_folder(whole, tmp_path):
    folder, _ = whole
    assert "FGDA" in output_of("report", folder / "out", "--out", tmp_path / "report")
    methods, trials = output_of("status", folder / "out"), output_of("status", folder / "out", "--trials")
    assert methods.count(" trials: ") == 4 and methods.endswith("4 runs: 4 finished\n")
    assert f"error {whole[1][0].value:.4g}" in methods and "seed=" not in methods
    assert trials.count("seed=") == len(list(folder.rglob("trials/**/run.h5")))
    assert "has a [tune]" in error_of("status", folder / "job.toml")
    assert "`mpifed tune JOB` continues it" in error_of("resume", folder / "out")


def dies_after(count, monkeypatch):
    """Interrupt a search after ``count`` runs."""
    carried, begun = tuner.run_trial, []

    def interrupted(*arguments):
        begun.append(arguments)
        if len(begun) > count:
            raise KeyboardInterrupt
        return carried(*arguments)

    monkeypatch.setattr(tuner, "run_trial", interrupted)


def dies_within_a_later_rung(monkeypatch):
    """Interrupt a run that has more rounds than the first rung requests."""
    usual = Simulation.step

    def dies(self, control=0.0):
        if (self.config.rounds, self.round) == (6, 5):
            raise KeyboardInterrupt
        return usual(self, control)

    monkeypatch.setattr(Simulation, "step", dies)


def test_interrupted_parts_make_the_whole(whole, job, tmp_path, monkeypatch):
    """Each of three parts is interrupted at another point and started again; the files are the same."""
    interruptions = [
        (partial(dies_after, 1), [], "4 of 4"),
        (partial(dies_after, 7), [], "2 of 4"),
        (dies_within_a_later_rung, ["run.checkpoint_every=1"], "1 of 4"),
    ]
    for part, (interrupt, changes, unfinished) in enumerate(interruptions):
        words = "tune", "-q", job, "--part", f"{part}/3", *changes
        with monkeypatch.context() as patch:
            interrupt(patch)
            assert invoke(*words).exit_code == 85
        left = [load(path) for path in find_runs([tmp_path / "out"])]
        assert left and f"Unfinished: {unfinished}" in best(tmp_path)
        output_of(*words)
    assert any(run.end is None and run.costs["round"][-1] == 5 for run in left)
    text = output_of("tune", job)
    assert "LocalSGDA" in text and "best.toml" in text
    assert best(tmp_path) == best(whole[0]).replace(str(whole[0]), str(tmp_path))
    assert (whole[0] / "out/tried.csv").read_text() == (tmp_path / "out/tried.csv").read_text()


def test_a_finished_search_is_not_repeated(whole, finished, monkeypatch):
    monkeypatch.setattr(tuner, "run_trial", lambda *_: pytest.fail("a run of a search that is done"))
    printed = output_of("tune", finished)
    assert "not done yet" not in printed and f"{whole[1][0].value:.5g}" in printed
    assert "--part: expected I/N" in error_of("tune", finished, "--part", "3/3")
    with pytest.raises(pytest.fail.Exception, match="a run of a search that is done"):
        tuner.tune(tuning(finished, ["run.overwrite=true"]), SerialComm())


def test_a_changed_job_is_searched_again(whole, finished):
    config = tuning(finished, ["oracle.noise.scale=0.2"])
    with pytest.raises(CollectiveError, match="oracle.noise.scale is 0.1 in the stored run and 0.2 in this"):
        tuner.tune(config, SerialComm(), "0/4")
    changed = tuning(finished, ["oracle.noise.scale=0.2", "run.overwrite=true"])
    results = tuner.tune(changed, SerialComm(), "0/4")
    assert results[0] != whole[1][0] and results[1:] == [None] * 3


def test_a_search_with_a_larger_budget_restarts_runs_without_checkpoints(finished, tmp_path):
    """The files are the same as in a new folder."""
    more = ["--part", "0/4", "tune.runs=8"]
    assert output_of("tune", finished, *more).count("not done yet") == 3
    output_of("tune", "-q", finished, *more, f"run.out={tmp_path / 'alone'}")
    assert (tmp_path / "out/tried.csv").read_bytes() == (tmp_path / "alone/tried.csv").read_bytes()


def test_the_option_list_runs_nothing(job, tmp_path):
    text = output_of("tune", job, "--list")
    assert "0.001 to 0.5" in text and "one of 0.1, 0.5" in text and "3 runs" in text and "clients=3" in text
    assert "metric: error" in text and not (tmp_path / "out").exists()


def test_run_and_sweep_refer_to_tune(job):
    with pytest.raises(ConfigError, match="start it with `mpifed tune`"):
        Config.load(job)
    assert "start it with `mpifed tune`" in error_of("sweep", job)
    assert "[[tune.methods]]" in error_of("tune", "jobs/saddle.toml")


PLANTED = """
import copy
from mpifed.problems import Saddle

class Planted(Saddle):
    "A saddle whose metric is of data: small y steps are best on the test data, large ones for validation."
    held = "test"

    def tested_on(self, split):
        if split != "validation":
            return None
        other = copy.copy(self)
        other.held = split
        return other

    def metrics(self, x, y, predictions):
        size = float((y["y"] ** 2).sum())
        return {"loss": size if self.held == "test" else -size}
"""


def test_a_metric_to_maximise_is_of_test_data_unless_the_problem_says_otherwise():
    class Own(Saddle):
        maximised = frozenset({"accuracy", "gain"})
        of_training = frozenset({"gain"})

    scored, names = ScoredProblem(prepared(Own(clients=2)), [], {}), ("error", "accuracy", "gain")
    assert [scored.column(name, "test").split for name in names] == ["", "test", ""]


def test_metrics_whose_names_begin_like_a_split_are_metrics_of_test_data():
    class Own(Saddle):
        maximised = frozenset({"train_score"})

        def metrics(self, x, y, predictions):
            return {"loss": 0.0, "validation_loss": 1.0, "train_score": 2.0}

    with Simulation(Own(clients=2), FGDA(q=1, gamma=0.1, lam=0.1)) as simulation:
        simulation.start()
        simulation.evaluate()
        preview = Preview(1, 1, simulation.columns)
    assert preview.selection_metric(None) == "loss", "it has no validation split"
    with pytest.raises(ConfigError, match="train_score is a metric of the test data"):
        preview.selection_metric("train_score")


def test_settings_are_selected_by_the_validation_metric(job, tmp_path):
    (tmp_path / "planted.py").write_text(PLANTED)
    text = job.read_text().replace("Saddle", f"{tmp_path}/planted.py:Planted")
    job.write_text(text.replace('[tune.tasks]\n"problem.clients" = [2, 3]\n', ""))
    results = tuner.tune(tuning(job, ["tune.runs=9"]), SerialComm())
    assert [result.metric for result in results] == ["validation_loss"] * 2
    ended = {}
    for path in find_runs([tmp_path / "out/trials/FGDA"]):
        run = load(path)
        if run.costs["round"][-1] == 6:
            ended.setdefault(path.parent.parent.name, []).append(run.metrics["loss"][-1])
    means = {name: np.mean(values) for name, values in ended.items() if len(values) == 2}
    assert len(means) > 1 and results[0].value == pytest.approx(-max(means.values()), abs=0)


def test_a_metric_of_test_data_is_refused(tmp_path):
    job = tmp_path / "job.toml"
    job.write_text(
        f"""
        rounds = 2
        [problem]
        name = "DeepAUC"
        dataset = "digits"
        model = "mlp"
        clients = 2
        [run]
        out = {json.dumps(str(tmp_path / "out"))}
        [[tune.methods]]
        name = "LocalSGDA"
        q = 2
        """
    )
    text = error_of("tune", job)
    assert text == error_of("tune", job, "--list")
    assert "auc is a metric of the test data" in text and "set problem.validation" in text
    assert not (tmp_path / "out").exists()
    text = error_of("tune", job, "problem.validation=0.2", "tune.metric=acu")
    assert "no metric 'acu': did you mean 'auc'" in text
    columns = (Column("auc", "test"), Column("auc", "validation"), Column("stationarity"))
    known = Preview(1, 1, {column.name: column for column in columns})
    assert known.selection_metric(None) == "validation_auc"
    assert known.selection_metric("stationarity") == "stationarity"


def test_a_method_that_diverges_at_its_smallest_values_is_tried_at_others(job, monkeypatch):
    """The smallest floor of an adaptive matrix makes the steps largest."""
    seen, study, whole = [], tuning(job).studies[0], trials._preview

    def diverges_once(study, settings, comm):
        seen.append(settings["lam"])
        if len(seen) == 1:
            raise NonFiniteError("in round 1")
        return whole(study, settings, comm)

    monkeypatch.setattr(trials, "_preview", diverges_once)
    assert trials.preview(study, SerialComm()).columns and seen == [1e-3, 0.5]


def test_a_method_that_diverges_at_all_values_is_refused(job):
    wild = tuning(job, ["tune.methods=[{name='LocalSGDA', q=2, eta_x={low=1e250, high=1e260}, eta_y=0.1}]"])
    with pytest.raises(NonFiniteError, match="non-finite"):
        trials.preview(wild.studies[0], SerialComm())


TRAINED = """
rounds = 9
problem = {{ {problem}, clients = 2 }}
run = {{ out = "{out}" }}
[tune]
methods = [{{ {method} }}]
"""
ROBUST = 'name = "DistributionallyRobust", dataset = "digits"'
SINUSOIDS = 'name = "SinusoidMAML", tests = 3, model = { name = "mlp", hidden = [2] }'
MIXTURE = 'name = "ClientMixture", dataset = "digits"'
COMPOSITION, GAME = 'name = "ComFedL", q = 1', 'name = "ExtraSGD", b = 1, eta = 0.1'


@pytest.mark.parametrize("problem, method, trained, tested", [
    (ROBUST, COMPOSITION, ("objective", "grad_norm", "robust_loss", "mean_loss", "worst_loss"),
     ("accuracy",)),
    (SINUSOIDS, COMPOSITION, ("objective", "grad_norm"), ("test_error", "adapted_error")),
    (MIXTURE, GAME, ("worst_loss", "mean_loss", "loss_spread"), ("accuracy",)),
])  # fmt: skip
def test_metrics_of_training_data_may_select_settings(problem, method, trained, tested, tmp_path):
    job = TRAINED.format(problem=problem, method=method, out=tmp_path / "out")
    (tmp_path / "job.toml").write_text(job)
    (study,) = tuning(tmp_path / "job.toml").studies
    preview = trials.preview(study, SerialComm())
    assert {*trained, *tested} == {*preview.columns}
    assert [preview.selection_metric(name) for name in trained] == [*trained]
    for name in tested:
        with pytest.raises(ConfigError, match=f"{name} is a metric of the test data"):
            preview.selection_metric(name)
