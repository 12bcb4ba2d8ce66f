"""Fair learning by groups: readers of groups, objectives against their definitions, and best responses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracles import oracle_of, prepared
from realdata import real

from mpifed.base.errors import ConfigError
from mpifed.base.settings import build
from mpifed.core.metrics import group_metric_name
from mpifed.data import DATASETS, USER_DATASETS, DataError
from mpifed.problems import FairClassification, GroupParity
from mpifed.simulation.problem_metrics import expect_metrics

TWO = dict(dataset="two-groups", groups="group", clients=3)


def point(problem, scale=1.0, seed=4):
    """Return x and y at a random point, as named parameters."""
    rng, blocks = np.random.default_rng(seed), problem.variables()
    flat = {b: torch.from_numpy(scale * rng.standard_normal(size)) for b, size in blocks.sizes.items()}
    return [blocks.unflatten(block, flat[block]) for block in blocks]


def pooled(problem, x):
    """Return outputs, labels and groups of all training samples of the data set in float64."""
    data = problem._images
    outputs = problem.model(x, data.train.double())
    return outputs, data.train_labels, torch.from_numpy(data.groups["group"].numbers["train"])


def mean_loss(problem, x, y) -> float:
    """Return the mean over clients of equal size of their losses on all data."""
    losses = []
    for client in range(problem.clients):
        batch = [c.double() if c.is_floating_point() else c for c in problem.client_data(client)]
        losses.append(problem.loss(x, y, batch))
    return float(torch.stack(losses).mean())


def test_worst_group_is_the_weighted_sum_of_the_groups_losses():
    problem = prepared(FairClassification(**TWO))
    assert len({problem.client_size(n) for n in range(3)}) == 1
    x, y = point(problem)
    outputs, labels, groups = pooled(problem, x)
    losses = torch.nn.functional.cross_entropy(outputs, labels, reduction="none")
    expected = sum(y["y"][g] * losses[groups == g].mean() for g in range(2))
    assert mean_loss(problem, x, y) == pytest.approx(float(expected), rel=1e-12)  # sums of 1200 numbers


@pytest.mark.parametrize("criterion", ["demographic_parity", "equal_opportunity"])
def test_parity_is_the_loss_and_the_gaps(criterion):
    problem = prepared(GroupParity(**TWO, criterion=criterion, mu=0.2))
    x, y = point(problem)
    outputs, labels, groups = pooled(problem, x)
    p, counted = outputs.softmax(1)[:, 1], torch.ones(len(labels), dtype=torch.bool)
    if criterion == "equal_opportunity":
        counted = labels == 1
    gaps = torch.stack([p[counted & (groups == g)].mean() for g in range(2)]) - p[counted].mean()
    loss = torch.nn.functional.cross_entropy(outputs, labels)
    expected = loss + (y["y"] * gaps).sum() - 0.1 * (y["y"] ** 2).sum()
    assert mean_loss(problem, x, y) == pytest.approx(float(expected), rel=1e-12)
    best = problem.best_response(x)
    # σ of a difference and softmax differ by some ulps.
    torch.testing.assert_close(best, (gaps / 0.2).clamp(-5, 5), rtol=1e-12, atol=1e-14)
    gy = oracle_of(problem).grad(*(torch.cat([v.flatten() for v in b.values()]) for b in (x, {"y": best})),
                                 oracle_of(problem).full_batch)[1].mean(0)  # fmt: skip
    assert gy.abs().max() < 1e-12 and best.abs().min() > 1e-3
    close = prepared(GroupParity(**TWO, criterion=criterion, mu=0.2, bound=0.01))
    assert sorted(close.best_response(x).abs().tolist()) == [0.01, 0.01]


def test_metrics_of_groups():
    problem = prepared(FairClassification(**TWO))
    scores = torch.zeros(problem.test_rows, 2)
    scores[:, 0] = 3.0  # all negative
    found = problem.metrics(*point(problem), scores)
    data = DATASETS["two-groups"]()
    rates = [data.test_labels.numpy()[data.groups["group"].numbers["test"] == g].mean() for g in range(2)]
    assert [found["error_large"], found["error_small"]] == pytest.approx(rates)
    assert found["accuracy_gap"] == pytest.approx(rates[0] - rates[1])
    low, high = np.log1p(np.exp(-3.0)), 3 + np.log1p(np.exp(-3.0))
    expected = [low + rate * (high - low) for rate in rates]
    # The losses are computed in float32.
    assert [found["loss_large"], found["loss_small"]] == pytest.approx(expected, rel=1e-6)
    assert found["loss_gap"] == pytest.approx(abs(expected[0] - expected[1]), rel=1e-6)
    scores[0, 0] = torch.nan
    assert np.isnan(problem.metrics(*point(problem), scores)["worst_accuracy"])
    parity = prepared(GroupParity(**TWO, criterion="equal_opportunity"))
    exact = torch.nn.functional.one_hot(data.test_labels, 2) * 9.0
    found = parity.metrics(*point(parity), exact)
    assert found["accuracy"] == 1 and found["rate_gap"] == 0 and found["score_gap"] < 1e-12
    assert found["objective"] == pytest.approx(np.log1p(np.exp(-9.0)), rel=1e-6)  # float32 outputs
    found = parity.metrics(*point(parity), scores := torch.randn(600, 2, dtype=torch.float64))
    p, positive = scores.softmax(1)[:, 1].numpy(), data.test_labels.numpy() == 1
    groups = data.groups["group"].numbers["test"]
    gaps = [p[positive & (groups == g)].mean() - p[positive].mean() for g in range(2)]
    assert found["score_gap"] == pytest.approx(abs(gaps[0] - gaps[1]), rel=1e-12)
    penalty = sum(gap**2 / (2 * 0.1) for gap in gaps)  # no multiplier is at its bound
    loss = torch.nn.functional.cross_entropy(scores, data.test_labels)
    assert found["objective"] == pytest.approx(float(loss) + penalty, rel=1e-12)


def test_metrics_of_equal_opportunity_without_positive_samples():
    problem = prepared(GroupParity(**TWO, criterion="equal_opportunity"))
    negative = problem._held_out.labels == 0
    problem._held_out = problem._held_out.select(problem._held_out.rows[negative])
    metrics = problem.metrics({}, {}, torch.zeros(negative.sum(), 2))
    assert metrics["accuracy"] == 1 and metrics["error_small"] == 0
    assert np.isnan([metrics[name] for name in ("objective", "score_gap", "rate_gap")]).all()


def test_held_out_groups_are_those_of_the_split():
    problem = prepared(FairClassification(**TWO, validation=0.25))
    held = problem.tested_on("validation")
    groups = problem._images.groups["group"].numbers["train"]
    assert held.test_groups().tolist() == groups[held._held_out.rows].tolist()
    assert problem.tested_on(1).test_groups().tolist() == groups[problem._rows[1]].tolist()
    assert len(problem.test_groups()) == problem.test_rows == 600


CSV = "age,sex,city,label\n" + "".join(
    f"{k},{'fm'[k % 3 == 0]},{'ab'[k % 2]},{k // 2 % 2}\n" for k in range(24)
)


def table(tmp_path, monkeypatch, text=CSV, **settings):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "people.csv").write_text(text)
    settings = {"file": "people.csv", "target": "label", "test": 0.25, **settings}
    return build(USER_DATASETS["table"], settings, "data set 'table'")


def test_groups_of_a_table_are_no_features(tmp_path, monkeypatch):
    data = table(tmp_path, monkeypatch, groups=["sex", "city"])()
    assert data.shape == (1,) and list(data.groups) == ["sex", "city"]
    for part in ("train", "test"):
        ages = getattr(data, part)[:, 0].numpy()
        assert data.groups["sex"].numbers[part].tolist() == (ages % 3 == 0).astype(int).tolist()
    assert data.groups["sex"].names == ("f", "m")
    kept = table(tmp_path, monkeypatch, groups=["sex"], group_features=True)()
    assert kept.shape == (5,)
    assert kept.train[:, 2].tolist() == kept.groups["sex"].numbers["train"].tolist()


def test_groups_of_an_archive(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = np.arange(24)
    np.savez("people.npz", x=rows[:, None] / 1.0, label=rows // 2 % 2, sex=rows % 3)
    given = {"file": "people.npz", "target": "label", "test": 0.25, "groups": ["sex"]}
    data = build(USER_DATASETS["table"], given, "data set 'table'")()
    assert data.groups["sex"].numbers["test"].tolist() == (data.test[:, 0].numpy() % 3).tolist()


def test_wrong_groups_are_reported(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="people.csv has no column 'sexx': did you mean 'sex'"):
        table(tmp_path, monkeypatch, groups=["sexx"])()
    with pytest.raises(ConfigError, match="LIBSVM text, whose columns have no names.*groups"):
        table(tmp_path, monkeypatch, file="mine", target="label", groups=["sex"])
    with pytest.raises(ValueError, match="groups = 'race': the data set has the groups group"):
        prepared(FairClassification(dataset="two-groups", groups="race"))
    with pytest.raises(ValueError, match="groups = 'sex': the data set has no groups; a table has them"):
        prepared(FairClassification(dataset="digits", groups="sex"))
    with pytest.raises(ValueError, match="GroupParity: expected two classes, digits has 10"):
        prepared(GroupParity(dataset="digits", groups="sex"))
    split = "age,sex,label,part\n1,f,0,train\n2,f,1,train\n3,m,1,test\n"
    rare = table(tmp_path, monkeypatch, split, groups=["sex"], test=None, split="part")
    with pytest.raises(ValueError, match="training samples of every group, found none of 'm'"):
        prepared(FairClassification(dataset=rare, groups="sex", clients=1))


def test_official_files_of_adult():
    """Numbers of rows, incomes and sexes as in the documentation of the data set."""
    data = DATASETS["adult"](real("adult"))
    assert [np.bincount(one).tolist() for one in (data.train_labels, data.test_labels)] == [
        [24_720, 7_841], [12_435, 3_846]
    ]  # fmt: skip
    sex = data.groups["sex"]
    assert sex.names == ("Female", "Male") and np.bincount(sex.numbers["train"]).tolist() == [10_771, 21_790]
    assert len(data.groups["race"].names) == 5 and len(sex.numbers["test"]) == 16_281
    # Five numbers are standardised; each of the five words is one column of ones.
    np.testing.assert_allclose(data.train[:, :5].mean(0), 0, atol=1e-4)
    assert (data.train[:, 5:].sum(1) == 5).all() and (data.test[:, 5:].sum(1) == 5).all()


@pytest.mark.parametrize("damage, found", [
    (lambda s: s[: len(s) // 2], "found 1 lines of 15 cells"),
    (lambda s: s.replace(b"39", b"3x", 1), "found 3x, State-gov"),
    (lambda s: s.replace(b", White", b"", 1), "found 2 lines of 14 or 15 cells"),
])  # fmt: skip
def test_damaged_files_of_adult(tmp_path, damage, found):
    row = b"39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, "
    lines = row + b"2174, 0, 40, United-States, <=50K\n"
    (tmp_path / "adult.data").write_bytes(damage(2 * lines))
    (tmp_path / "adult.test").write_bytes(b"|1x3 Cross validator\n" + lines.replace(b"K\n", b"K.\n"))
    reader = type(DATASETS["adult"])(train=2, test=1)
    with pytest.raises(DataError, match=f"adult.data: expected .*, {found}"):
        reader(tmp_path)
    (tmp_path / "adult.data").write_bytes(2 * lines)
    assert reader(tmp_path).test.shape == (1, 10)


def test_metrics_of_groups_have_different_names():
    """The names are those of the groups where these can be names of metrics."""
    names = [
        "a/b",
        "a-b",
        "a%2Fb",
        "Male",
        "Male ",
        " Male",
        "",
        " ",
        "\n",
        "é",
        "\udce9",
        "x" * 500,
        "x" * 501,
        ".",
    ]
    found = [group_metric_name("error", name) for name in names]
    assert len({*found}) == len(names) and [*expect_metrics(dict.fromkeys(found, 0.0))] == found
    assert found[1] == "error_a-b" and found[9] == "error_é" and found[4] == "error_Male%20"


def test_a_group_whose_metric_would_have_a_taken_name_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{i},{'gap' if i % 2 else 'b'},{i // 2 % 2}" for i in range(16)]
    (tmp_path / "mine.csv").write_text("\n".join(["a,g,kind", *rows, ""]))
    data = {"name": "table", "file": "mine.csv", "target": "kind", "test": 0.5, "groups": ["g"]}
    problem = build(FairClassification, {"dataset": data, "groups": "g", "clients": 1}, "problem")
    with pytest.raises(ValueError, match="found the group 'gap', as loss_gap is the difference"):
        problem.prepare(0)
