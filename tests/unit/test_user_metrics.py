"""User-defined metrics, metrics of clients and the confusion matrix, compared with direct computations."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from oracles import prepared
from runfiles import edited

import mpifed
from mpifed import Config
from mpifed.algorithms import FedAvg
from mpifed.base.errors import ConfigError
from mpifed.core.metrics import Column
from mpifed.core.problem import as_family, named_point
from mpifed.core.user_metrics import Metric
from mpifed.data import DATASETS
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.problems import Classification, DeepAUC, RobustRegression, Saddle
from mpifed.report.comparison import Rule, metrics_of, settings_of
from mpifed.report.page import page
from mpifed.report.tables import client_rows, confusion_rows
from mpifed.simulation import problem_metrics
from mpifed.simulation.problem_metrics import client_summary, evaluation_details
from mpifed.storage import results
from mpifed.storage.status import status

SOURCE = """
import torch

def confidence(scores, labels):
    assert scores.dtype == torch.float64 and labels.dtype == torch.int64
    return scores.softmax(1).max(1).values.mean()

def top(scores, labels, count=2):
    best = scores.topk(count, dim=1).indices
    return {"top2": (best == labels[:, None]).any(1).double().mean(), "wrong": 0.5}

top.maximise = {"top2"}

def norm(point):
    total = sum(float((value ** 2).sum()) for block in point.values() for value in block.values())
    for block in point.values():
        for value in block.values():
            value.zero_()  # the point is a copy
    return total ** 0.5

norm.maximise = True

def three(one, two, more):
    return 0.0

class Kind:
    pass

def number(point):
    return 0.0

number.maximise = 1
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(SOURCE)
    return tmp_path / "own.py"


def table(out="run", problem=None, **settings):
    digits = {"name": "Classification", "dataset": "digits", "clients": 4, "partition": "iid"}
    table = {
        "rounds": 2,
        "algorithm": {"name": "FedAvg", "K": 2, "eta": 0.1},
        "problem": digits | (problem or {}),
        "run": {"progress": False, "out": str(out), "eval_every": 2, "evaluate_on": ["clients"]},
    }
    return table | settings


def test_values_and_names_of_user_metrics(file):
    job = table(metrics=["./own.py:confidence", "./own.py:top", "./own.py:norm"], problem={"validation": 0.2})
    result = mpifed.run(job, SerialComm())
    images, network = DATASETS["digits"](), result.parameters["x"]
    scores = images.test.flatten(1) @ network["fc1.weight"].T + network["fc1.bias"]
    best = scores.argsort(dim=1, descending=True)[:, :2]
    right = [(label in pair) for label, pair in zip(images.test_labels.tolist(), best.tolist())]
    # Outputs of order 1 in single precision, computed in blocks and as a whole.
    assert result.metrics["confidence"] == pytest.approx(scores.softmax(1).amax(1).mean().item(), abs=1e-5)
    assert result.metrics["top2"] == pytest.approx(np.mean(right), abs=1e-12)
    assert result.metrics["wrong"] == 0.5
    norm = np.sqrt(sum(float((value.double() ** 2).sum()) for value in network.values()))
    assert result.metrics["norm"] == pytest.approx(norm, rel=1e-6)  # single precision
    assert {"validation_confidence", "client_top2_q50"} <= result.metrics.keys()
    assert not {"validation_norm", "client_norm_q50"} & result.metrics.keys()
    run = results.load("run")
    assert all(map(run.maximises, ("top2", "norm", "validation_top2", "client_top2_worst")))
    assert not any(map(run.maximises, ("wrong", "confidence", "client_confidence_worst")))


def test_metrics_are_stored_with_their_source(file):
    job = table(metrics=["./own.py:norm"])
    stored = mpifed.run(job, SerialComm()).config
    assert stored["metrics"] == [f"{file}:norm"] and stored["plugins"]["metrics.0"]["name"] == f"{file}:norm"
    assert len(mpifed.resume("run", ["rounds=4"], SerialComm()).history["norm"]) == 3
    file.write_text(file.read_text() + "# edited\n")
    with pytest.raises(ConfigError, match=f"the source of metrics.0 {file}:norm has changed"):
        mpifed.resume("run", ["rounds=6"], SerialComm())


def test_metrics_as_python_functions():
    def largest(point):
        return max(value.abs().max() for value in point["x"].values())

    config = Config.from_table(table() | {"metrics": [largest]})
    assert [one.title for one in config.metrics] == ["largest"] and not config.metrics[0].of_scores
    assert Config(**dict(config)).metrics == config.metrics


def test_metrics_get_copies_of_scores_and_labels(monkeypatch):
    def writes(scores, labels):
        scores.zero_(), labels.zero_()
        return 0.0

    def largest(scores, labels):
        return float(scores.max()) + float(labels.max())

    def metrics_that_write(self, x, predictions):
        values = metrics(self, x, predictions)
        predictions.zero_()
        return values

    def evaluated(**settings):
        problem = Classification(dataset="digits", model="mlp", clients=2)
        simulation = mpifed.Simulation(problem, FedAvg(K=1, eta=0.1), **settings)
        simulation.start()
        return simulation.evaluate(), simulation.details.confusion.tolist()

    metrics, (expected, confusion) = Classification.metrics, evaluated(metrics=[largest])
    monkeypatch.setattr(Classification, "metrics", metrics_that_write)
    assert evaluated(metrics=[writes, largest]) == (expected | {"writes": 0.0}, confusion)


@pytest.mark.parametrize(("named", "words"), [

    ("./own.py:three", r"own.py:three: expected a function of \(scores, labels\) or of \(point\), got"),
    ("./own.py:Kind", r"own.py:Kind: expected a function of \(scores, labels\) or of \(point\), got"),
    ("accuracy", r'unknown metric \'accuracy\': .*average_precision.*"./file.py:Name", a function of'),
    ("./own.py:number", "the metric number: expected number.maximise to be True, or a set .*, got 1"),
    ({"name": "./own.py:top", "count": 3}, "metric top has no settings, got {'count': 3}"),
])  # fmt: skip
def test_invalid_metrics_are_rejected(file, named, words):
    with pytest.raises(ConfigError, match=words):
        Config.from_table(table(metrics=[named]))


def two(scores, labels):
    return [1.0, 2.0]


def text(point):
    return {"a": "1"}


def accuracy(point):
    return 1.0


def clipped(point):
    return 1.0


def pair(point):
    return {"a": 1.0, "b": 2.0}


pair.maximise = True


def broken(scores, labels):
    return scores[:, 100].mean()


@pytest.mark.parametrize(("function", "words"), [
    (two, r"the metric two after round 0: the metric 'two' is \[1.0, 2.0\], expected a number"),
    (text, "the metric text after round 0: the metric 'a' is '1', expected a number"),
    (accuracy, "the metric accuracy after round 0: Classification.metrics has a metric 'accuracy' already"),
    (clipped, "the metric clipped after round 0: oracle.clip has a metric 'clipped' already: choose another"),
    (pair, "pair.maximise refers to the metric 'pair': expected one of 'a', 'b'"),
    (broken, r"the metric broken failed: IndexError(.|\n)*in broken"),
])  # fmt: skip
def test_errors_in_metrics_name_the_metric(tmp_path, function, words):
    with pytest.raises(CollectiveError, match=words):
        mpifed.run(table(tmp_path / "run", metrics=[function], oracle={"clip": 1.0}), SerialComm())


def test_metrics_that_need_labelled_data_or_clients_are_rejected(tmp_path):
    saddle = {
        "rounds": 1, "algorithm": {"name": "FGDA", "q": 1, "gamma": 0.1, "lam": 0.1},
        "problem": {"name": "Saddle", "clients": 2}, "run": {"out": str(tmp_path / "run"), "progress": False},
    }  # fmt: skip
    with pytest.raises(CollectiveError, match="the metric two is a function of .* Saddle has no labelled"):
        mpifed.run(saddle | {"metrics": [two]}, SerialComm())
    with pytest.raises(CollectiveError, match=r"evaluate_on = \['clients'\]: Saddle does not define"):
        mpifed.run(saddle | {"run": saddle["run"] | {"evaluate_on": ["clients"]}}, SerialComm())


def test_the_point_has_the_problems_blocks_under_operator_methods():
    problem = prepared(Saddle(clients=2, d=2))
    game = as_family(problem, "operator")
    sizes = game.variables()
    found = named_point(game, [sizes.unflatten("z", torch.arange(4.0))])
    assert {name: value.tolist() for name, value in found["x"].items()} == {"x": [0.0, 1.0]}
    assert {name: value.tolist() for name, value in found["y"].items()} == {"y": [2.0, 3.0]}


def test_quantiles_and_the_worst_client():
    shares = np.array([0.5, 0.9, np.nan, 0.1, 0.7, 0.3])
    share, loss = Column("share", "client", maximised=True), Column("loss", "client")
    found = client_summary({share: shares, loss: shares})
    # The 10 % quantile of 0.1, 0.3, 0.5, 0.7, 0.9 is 0.4 of the way from the first to the second.
    parts = ("mean", "q10", "q50", "q90", "worst")
    names = [f"client_{name}_{part}" for name in ("share", "loss") for part in parts]
    assert [column.name for column in found] == names
    values = [0.5, 0.18, 0.5, 0.82]
    assert [*found.values()] == pytest.approx([*values, 0.1, *values, 0.9], abs=1e-15)
    assert all(np.isnan([*client_summary({share: np.full(3, np.nan)}).values()]))


def test_metrics_of_clients_and_confusion_matrix(tmp_path):
    result = mpifed.run(table(tmp_path / "run"), SerialComm())
    problem, network = Classification(dataset="digits", clients=4), result.parameters["x"]
    problem.prepare(0)

    def predicted(images):
        return (images.flatten(1) @ network["fc1.weight"].T + network["fc1.bias"]).argmax(1).numpy()

    clients = map(problem.client_data, range(4))
    shares = [float((predicted(images) == labels.numpy()).mean()) for images, labels in clients]
    assert result.clients["accuracy"].tolist() == pytest.approx(shares, abs=1e-12)
    assert result.clients.index.name == "client" and result.metrics["client_accuracy_worst"] == min(shares)
    images = DATASETS["digits"]()
    expected = np.zeros((10, 10), dtype=int)
    np.add.at(expected, (images.test_labels.numpy(), predicted(images.test)), 1)
    assert result.confusion.to_numpy().tolist() == expected.tolist()
    assert np.trace(expected) / 359 == pytest.approx(result.metrics["accuracy"], abs=1e-12)
    again = mpifed.load(tmp_path / "run")
    assert again.confusion.equals(result.confusion) and again.clients.equals(result.clients)
    with edited(tmp_path / "run" / "run.h5") as file:
        assert json.loads(file["confusion"].attrs["classes"]) == [str(k) for k in range(10)]
        assert file["clients/accuracy"][:].tolist() == result.clients["accuracy"].tolist()
        file["confusion"].attrs["classes"] = json.dumps(["a"])
    with pytest.raises(ValueError, match=r"expected 1 columns in 'confusion', found \(10, 10\)"):
        mpifed.load(tmp_path / "run")


def test_only_finite_scores_of_a_few_classes_have_a_confusion_matrix(monkeypatch, capfd):
    """It is computed on clean images if perturbed images are scored, too."""
    robust = prepared(RobustRegression(dataset="digits", clients=2))
    labels = torch.from_numpy(robust.test_labels())
    scores = torch.nn.functional.one_hot(labels, 10).double()
    details = evaluation_details(robust, torch.cat([scores, 2 * scores.flip(1)], dim=1), 0)
    assert details.confusion.tolist() == np.diag(np.bincount(labels)).tolist()
    assert evaluation_details(robust, torch.full((359, 20), torch.nan), 0).confusion is None
    auc = prepared(DeepAUC(dataset="digits", model="linear", clients=2))
    assert evaluation_details(auc, torch.zeros(359), 0).confusion is None
    monkeypatch.setattr(problem_metrics, "MAX_CLASSES", 9)  # K² elements can be more than the model has
    assert evaluation_details(robust, torch.cat([scores, scores], dim=1), 0).confusion is None
    assert "expected at most 9 classes, found 10" in capfd.readouterr().err


def test_tables_of_clients_and_of_the_confusion_matrix(tmp_path):
    """Statistics over clients are averaged over the seeds; counts are summed."""
    runs = []
    for seed in (0, 1):
        mpifed.run(table(tmp_path / str(seed), seed=seed), SerialComm())
        runs.append(results.load(tmp_path / str(seed)))
    (setting,) = settings_of(runs)
    first, second = client_rows([setting])
    shares = [run.details.clients["accuracy"] for run in runs]
    assert first["metric"] == "accuracy" and second["metric"] == "worst_accuracy" and first["clients"] == 4
    assert first["50 %"].mean == pytest.approx(np.mean([np.median(values) for values in shares]), abs=1e-15)
    assert first["worst"].mean == pytest.approx(np.mean([values.min() for values in shares]), abs=1e-15)
    assert first["worst client"] == ", ".join(str(values.argmin()) for values in shares)
    rows = confusion_rows(setting)
    assert [row["class"] for row in rows] == [str(k) for k in range(10)]
    counts = sum(run.details.confusion for run in runs)
    assert [[*row.values()][1:] for row in rows] == counts.tolist()
    text = page([setting], [setting], Rule())
    assert "<h2>Clients</h2>" in text and "<h2>Confusion matrices</h2>" in text
    assert "client_accuracy_q10" not in text
    assert "the training data" in Rule("client_accuracy_worst").describe([setting])
    Rule("client_accuracy_worst").check([setting])


def validation_error(point):
    return 1.0


def client_x(point):
    return 2.0


def test_metrics_whose_names_begin_like_a_split(tmp_path):
    """They are reported like other metrics, and do not select settings by ``error``, the problem's metric."""
    problem = {"name": "Saddle", "clients": 2}
    algorithm = {"name": "FGDA", "q": 1, "gamma": 0.1, "lam": 0.1}
    own = {"problem": problem, "algorithm": algorithm, "run": {"progress": False, "out": str(tmp_path)}}
    mpifed.run({"rounds": 1, "metrics": [validation_error, client_x]} | own, SerialComm())
    run = results.load(tmp_path)
    (setting,) = settings_of([run])
    assert metrics_of([setting])[0] == "error" and {"validation_error", "client_x"} <= {
        *metrics_of([setting])
    }
    assert Rule().selection_metric(setting) == "error"
    for name in ("error", "validation_error", "client_x"):
        assert "chosen on" not in Rule(name).describe([setting])
    assert status(tmp_path).validation is None


def test_two_metrics_of_one_column_are_refused(tmp_path):
    def validation_accuracy(point):
        return 0.0

    job = table(tmp_path / "run", {"validation": 0.2}, metrics=[validation_accuracy])
    words = "'validation_accuracy' is the column of the metric 'accuracy' on the validation split: choose"
    with pytest.raises(CollectiveError, match=words):
        mpifed.run(job, SerialComm())


def test_the_metric_to_maximise_may_be_one_name():
    def both(scores, labels):
        return {"right": 1.0, "wrong": 0.0}

    both.maximise = "right"
    assert Metric.from_value(both, "metric").maximised == ["right"]
