"""Partial areas under the ROC curve and average precision, compared with scikit-learn and with pairs."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

import mpifed
from mpifed.core.ranking import AveragePrecision, PartialAUC, TwoWayPartialAUC
from mpifed.parallel.comm import SerialComm
from mpifed.storage.results import load

#: Both sides sum at most 200 terms up to 1 in another order.
CLOSE = 1e-12


@pytest.fixture(params=[10, 2], ids=["distinct", "ties"])
def samples(request):
    """Scores with and without ties, and labels."""
    rng = np.random.default_rng(0)
    labels = np.arange(200) % 2
    return np.round(rng.normal(size=200) + labels, request.param), labels


def test_the_values_are_those_of_scikit_learn(samples):
    scores, labels = samples
    tensors = torch.from_numpy(scores), torch.from_numpy(labels)
    for rate in (0.03, 0.3, 1.0):
        expected = roc_auc_score(labels, scores, max_fpr=rate)
        assert PartialAUC(max_fpr=rate).given(*tensors) == pytest.approx(expected, abs=CLOSE)
    precision = AveragePrecision().given(*tensors)
    assert precision == pytest.approx(average_precision_score(labels, scores), abs=CLOSE)
    whole = TwoWayPartialAUC(max_fpr=1.0, min_tpr=0.0).given(*tensors)
    assert whole == pytest.approx(roc_auc_score(labels, scores), abs=CLOSE)


def test_the_two_way_area_is_the_auc_of_the_hardest_samples():
    labels = torch.arange(200) % 2
    scores = torch.from_numpy(np.random.default_rng(1).normal(size=200)) + labels
    positive, negative = scores[labels == 1].sort()[0][:40], scores[labels == 0].sort()[0][-30:]
    expected = (positive[:, None] > negative).double().mean().item()
    found = TwoWayPartialAUC(max_fpr=0.3, min_tpr=0.6)  # 40 of 100 positive and 30 of 100 negative samples
    assert 0.05 < expected < 0.95
    assert found.given(scores, labels) == pytest.approx(expected, abs=CLOSE)
    assert found.given(-labels.double(), labels) == 0
    assert found.given(labels.double(), labels) == pytest.approx(1, abs=CLOSE)


def test_scores_of_several_classes():
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 3, 100)
    scores = torch.from_numpy(rng.normal(size=(100, 4)) + np.eye(4)[labels])  # no sample of class 3
    chances = scores.softmax(dim=1).numpy()
    expected = np.mean([average_precision_score(labels == k, chances[:, k]) for k in range(3)])
    found = AveragePrecision().given(scores, torch.from_numpy(labels))
    assert found == pytest.approx(expected, abs=CLOSE)
    binary = torch.from_numpy(labels == 1).long()
    difference = (scores[:, 1] - scores[:, 0]).numpy()
    expected = average_precision_score(binary, difference)
    assert AveragePrecision().given(scores[:, :2], binary) == pytest.approx(expected, abs=CLOSE)


def test_probabilities_that_are_1_in_single_precision_have_different_ranks():
    rng = np.random.default_rng(1)
    scores, labels = torch.from_numpy(10 * rng.standard_normal((60, 3))).float(), rng.integers(3, size=60)
    probabilities = scores.double().softmax(dim=1).numpy()
    expected = [average_precision_score(labels == k, probabilities[:, k]) for k in range(3)]
    found = AveragePrecision().given(scores, torch.from_numpy(labels))
    assert found == pytest.approx(np.mean(expected), abs=CLOSE)


def test_undefined_values_are_nan():
    ones, scores = torch.ones(3, dtype=torch.int64), torch.arange(3.0)
    assert np.isnan(AveragePrecision().given(scores, ones))
    assert np.isnan(AveragePrecision().given(scores * torch.inf, torch.tensor([0, 1, 1])))


@pytest.mark.parametrize("problem", ["DeepAUC", "Classification"])
def test_a_job_names_the_metrics(tmp_path, problem):
    steps = {"name": "LocalSGDA", "q": 1, "eta_x": 0.1, "eta_y": 0.1}
    metrics = [{"name": "average_precision"}, {"name": "partial_auc", "max_fpr": 0.1}]
    table = {
        "rounds": 1,
        "algorithm": steps if problem == "DeepAUC" else {"name": "FedAvg", "K": 1, "eta": 0.1},
        "problem": {"name": problem, "dataset": "digits", "model": "linear", "clients": 3},
        "metrics": ["average_precision", metrics[1]],
        "run": {"progress": False, "out": str(tmp_path / "run")},
    }
    result = mpifed.run(table, SerialComm())
    assert {"average_precision", "partial_auc_0.1"} <= result.metrics.keys()
    assert result.config["metrics"] == metrics
    assert mpifed.Config.from_table(result.config).table() == result.config
    assert all(map(load(tmp_path / "run").maximises, ("average_precision", "partial_auc_0.1")))
    with pytest.raises(mpifed.ConfigError, match="max_fpr"):
        mpifed.Config.from_table(table | {"metrics": [{"name": "partial_auc", "max_fpr": 2.0}]})
