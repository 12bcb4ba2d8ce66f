"""Training, validation and test splits, and the metrics on them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import prepared

import mpifed
from mpifed.core.metrics import Column
from mpifed.core.problem import as_family
from mpifed.data import DATASETS, TEXTS, Texts
from mpifed.data.samples import hold_out
from mpifed.parallel.comm import SerialComm
from mpifed.problems import (
    AffineShift,
    Classification,
    ClientMixture,
    DeepAUC,
    DistributionallyRobust,
    FairClassification,
    RobustRegression,
    TextAUC,
)
from mpifed.storage import results

LEARNING = [
    AffineShift, Classification, ClientMixture, DeepAUC, DistributionallyRobust, FairClassification,
    RobustRegression,
]  # fmt: skip


def start(problem):
    flat, blocks = problem.initial(np.random.default_rng(3)), problem.variables()
    zeros = {block: torch.zeros(size, dtype=torch.float64) for block, size in blocks.sizes.items()}
    return [blocks.unflatten(block, flat.get(block, zeros[block]).double()) for block in blocks]


def figures(problem, point):
    scores = torch.cat([problem.predict(*point, slice(k, k + 100)) for k in range(0, problem.test_rows, 100)])
    return problem.metrics(*point, scores)


@given(
    labels=st.lists(st.integers(0, 4), min_size=2, max_size=60).map(np.array),
    share=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**20),
)
def test_held_out_and_remaining_rows_are_a_disjoint_cover(labels, share, seed):
    wanted = round(len(labels) * share)
    if not 0 < wanted < len(labels):
        with pytest.raises(ValueError, match=r"validation = .* holds out \d+: expected at least one"):
            hold_out(labels, share, seed)
        return
    kept, held = hold_out(labels, share, seed)
    assert len(held) == wanted and np.sort([*kept, *held]).tolist() == list(range(len(labels)))
    assert all(np.all(np.diff(part) > 0) for part in (kept, held))
    for label in np.unique(labels):  # rounded once at its start and once at its end
        assert abs((labels[held] == label).sum() - share * (labels == label).sum()) <= 1
    again = hold_out(labels, share, seed)
    assert np.array_equal(again[0], kept) and np.array_equal(again[1], held)


@pytest.mark.parametrize("kind", LEARNING)
def test_validation_samples_are_training_samples(kind):
    plain = prepared(kind(dataset="digits", model="linear", clients=5))
    split = prepared(kind(dataset="digits", model="linear", clients=5, validation=0.2))
    view = split.tested_on("validation")
    train = set(np.concatenate(split._rows).tolist())
    held = set(view._held_out.rows.tolist())
    everything = set(np.concatenate(plain._rows).tolist())
    assert not train & held and train | held == everything and len(held) == round(0.2 * len(everything))
    assert split.test_rows == plain.test_rows and plain.tested_on("validation") is None
    point = start(split)
    assert torch.equal(split.predict(*point, slice(0, 50)), plain.predict(*point, slice(0, 50)))
    other = prepared(kind(dataset="digits", model="linear", clients=5, validation=0.2), seed=1)
    assert set(other.tested_on("validation")._held_out.rows.tolist()) != held


@pytest.mark.parametrize("kind", LEARNING)
def test_metrics_of_a_split_are_those_of_the_split_as_a_test_set(monkeypatch, kind):
    """Compared with the same problem on a data set whose test set is the split."""
    problem = prepared(kind(dataset="digits", model="linear", clients=3, validation=0.3))
    point, images = start(problem), DATASETS["digits"]()
    mine = torch.from_numpy(problem._rows[1])
    held = torch.from_numpy(problem.tested_on("validation")._held_out.rows)
    train = torch.from_numpy(np.sort(np.concatenate(problem._rows)))
    for split, rows in (("validation", held), (1, mine), ("train", train)):
        swapped = dataclasses.replace(images, test=images.train[rows], test_labels=images.train_labels[rows])
        monkeypatch.setitem(DATASETS, "digits", lambda data_dir, swapped=swapped: swapped)
        expected = figures(prepared(kind(dataset="digits", model="linear", clients=3)), point)
        found = figures(problem.tested_on(split), point)
        assert found and found == {name: expected[name] for name in found}, split
        assert set(expected) - set(found) <= {
            "penalty", "objective", "grad_norm", "robust_loss", "mean_loss", "worst_loss",
            "loss_spread",
        }  # fmt: skip
    if kind is not DistributionallyRobust:
        assert as_family(problem, "operator").tested_on(1).test_rows == len(mine)


def test_a_data_set_with_a_validation_split(monkeypatch):
    images = DATASETS["digits"]()
    held = dict(validation=images.test[:100], validation_labels=images.test_labels[:100])
    split = dataclasses.replace(images, **held)
    monkeypatch.setitem(DATASETS, "digits", lambda data_dir: split)
    classes = dict(positive_classes=(3,), negative_classes=(1, 2))
    problem = prepared(DeepAUC(dataset="digits", model="linear", **classes))
    view = problem.tested_on("validation")
    used = np.isin(images.test_labels[:100].numpy(), (1, 2, 3))
    assert view._held_out.rows.tolist() == np.flatnonzero(used).tolist()
    assert len(np.concatenate(problem._rows)) == np.isin(images.train_labels.numpy(), (1, 2, 3)).sum()
    assert view.test_labels().tolist() == (images.test_labels[:100].numpy()[used] == 3).astype(int).tolist()
    with pytest.raises(ValueError, match=r"validation = 0.1: .* already has a validation split of 100"):
        prepared(Classification(dataset="digits", validation=0.1))


def test_splits_of_texts(monkeypatch):
    sentences = Texts(
        train=[f"good film {k}" if k % 2 else f"bad film {k}" for k in range(20)],
        train_labels=np.arange(20) % 2,
        test=["good", "bad", "film"],
        test_labels=np.array([1, 0, 1]),
        validation=["bad", "good"],
        validation_labels=np.array([0, 1]),
    )
    monkeypatch.setitem(TEXTS, "sst2", lambda data_dir: sentences)
    problem = prepared(TextAUC(dataset="sst2", vectors="random", dimension=4, length=3, clients=2))
    view, point = problem.tested_on("validation"), start(problem)
    assert view.test_labels().tolist() == [0, 1] and problem.test_labels().tolist() == [1, 0, 1]
    scores = problem.predict(*point, slice(0, 3))
    assert view.predict(*point, slice(0, 2)).tolist() == [scores[1].item(), scores[0].item()]


def job(out, **settings):
    return {
        "rounds": 4,
        "algorithm": {"name": "LocalSGDA", "q": 2, "eta_x": 0.1, "eta_y": 0.1},
        "problem": {"name": "DeepAUC", "dataset": "digits", "model": "linear", "clients": 4, **settings},
        "run": {"progress": False, "out": str(out), "eval_every": 2, "evaluate_on": ["train"]},
    }


def test_a_run_records_every_split(tmp_path):
    result = mpifed.run(job(tmp_path / "run", validation=0.25), SerialComm())
    assert list(result.history) == ["round", "auc", "validation_auc", "train_auc"]
    problem = prepared(DeepAUC(dataset="digits", model="linear", clients=4, validation=0.25))
    x, y = result.parameters["x"], result.parameters["y"]
    point = [{name: value.double() for name, value in block.items()} for block in (x, y)]
    for split in ("validation", "train"):
        # Single precision can swap pairs whose scores differ in the last digits.
        auc = pytest.approx(result.metrics[f"{split}_auc"], abs=1e-4)
        assert figures(problem.tested_on(split), point)["auc"] == auc
    run = results.load(tmp_path / "run")
    assert run.splits == {"test": 359, "validation": round(0.25 * 1438), "train": 1438 - round(0.25 * 1438)}
    splits = ("test", "validation", "train")
    assert [*run.columns.values()] == [Column("auc", split, maximised=True) for split in splits]
