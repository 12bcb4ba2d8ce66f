"""Partitions: a reproducible disjoint cover of the samples, distributed as each partition declares."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpifed.base.errors import ConfigError
from mpifed.base.settings import build
from mpifed.core.streams import generator
from mpifed.data.partition import IID, PARTITIONS, ByClass, Dirichlet, PositiveRatios, Quantity, thin
from mpifed.problems import Classification, DeepAUC, TextAUC

seeds = st.integers(0, 2**32)
quick = settings(deadline=None, max_examples=40)  # no deadline: a shared machine may stall any single example


@st.composite
def samples(draw, classes: int = 6, least: int = 8):
    """Labels with at least ``least`` samples per class, in random order; the upper half is positive."""
    counts = draw(st.lists(st.integers(least, 3 * least), min_size=classes, max_size=classes))
    labels = np.repeat(np.arange(classes), counts)
    np.random.default_rng(draw(seeds)).shuffle(labels)
    return labels, labels >= classes // 2


def check(parts: list[np.ndarray], clients: int, n: int) -> None:
    assert len(parts) == clients
    assert all(len(part) and (np.diff(part) > 0).all() for part in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(n))


@quick
@given(
    samples(),
    st.integers(1, 7),
    seeds,
    st.sampled_from([IID(), Dirichlet(0.3), Dirichlet(50.0), ByClass(3), Quantity(0.3)]),
)
def test_a_partition_is_a_reproducible_disjoint_cover_without_empty_parts(data, clients, seed, partition):
    labels, positive = data
    parts = partition(labels, positive, clients, seed)
    check(parts, clients, len(labels))
    sizes = [len(part) for part in parts]
    assert not isinstance(partition, IID) or max(sizes) - min(sizes) <= 1
    for part, again in zip(parts, partition(labels, positive, clients, seed)):
        np.testing.assert_array_equal(part, again)


@pytest.mark.parametrize(
    "partition", [IID(), Dirichlet(1.0), ByClass(3), Quantity(1.0), PositiveRatios([0.1] * 4)]
)
def test_another_seed_gives_another_partition(partition):
    labels = np.arange(120) % 6
    one, other = (partition(labels, labels >= 3, 4, seed) for seed in (0, 1))
    assert any(len(a) != len(b) or (a != b).any() for a, b in zip(one, other))


@quick
@given(samples(), st.integers(1, 9), seeds)
def test_by_class_gives_a_client_only_classes_of_its_groups(data, clients, seed):
    labels, positive = data
    parts = ByClass(groups=3)(labels, positive, clients, seed)
    for k, part in enumerate(parts):
        groups = [k % 3] if clients >= 3 else [g for g in range(3) if g % clients == k]
        assert set(labels[part]) <= set(groups) | {3 + g for g in groups}
    for g in range(3):  # the clients of one group share its samples evenly
        sizes = [len(parts[client]) for client in range(g, clients, 3)]
        assert clients < 3 or max(sizes) - min(sizes) <= 1


def test_by_class_pairs_the_classes_in_order():
    labels = np.repeat([2, 3, 5, 7], 4)
    parts = ByClass(groups=2)(labels, np.isin(labels, [2, 7]), 2, seed=0)
    assert [set(labels[part]) for part in parts] == [{2, 3}, {7, 5}]


def test_by_class_rejects_classes_that_do_not_pair_up():
    labels = np.arange(40) % 4
    with pytest.raises(ValueError, match="expected groups = 2 .* got 1 positive and 3 negative"):
        ByClass(groups=2)(labels, labels == 0, 2, seed=0)


def test_dirichlet_is_more_skewed_for_smaller_alpha():
    labels = np.arange(4000) % 10

    def largest_share(alpha):
        parts = Dirichlet(alpha)(labels, labels >= 5, 5, seed=0)
        return np.mean([np.bincount(labels[part]).max() / len(part) for part in parts])

    # Uniform labels have a share of 0.1; alpha = 1000 changes it by about 0.01; alpha = 0.05 leaves few
    # classes per client.
    assert largest_share(1000.0) < 0.13 and largest_share(0.05) > 0.3


def test_dirichlet_selects_samples_at_random():
    labels = np.zeros(100, dtype=np.int64)
    first = Dirichlet(1000.0)(labels, labels == 1, 2, seed=0)[0]
    assert first[-1] > len(first), "not the first samples of the class"


@pytest.mark.parametrize(
    ("partition", "samples", "clients"), [(Dirichlet(0.3), 20, 4), (Quantity(0.05), 12, 10)]
)
def test_every_client_has_samples(partition, samples, clients):
    labels = np.arange(samples) % 2
    for seed in range(20):  # Dirichlet repeats about every other draw
        check(partition(labels, labels == 1, clients, seed), clients, samples)


@quick
@given(samples(), st.lists(st.floats(0.1, 0.4), min_size=1, max_size=6), seeds)
def test_positive_ratios_are_met_to_the_nearest_sample(data, ratios, seed):
    labels, positive = data
    clients, partition = len(ratios), PositiveRatios(ratios)
    try:
        parts = partition(labels, positive, clients, seed)
    except ValueError:
        parts = None
    negatives = (~positive).sum() / clients
    needed = sum(ratio / (1 - ratio) * negatives for ratio in ratios)
    # Rounding changes a client's share of the negatives by one, and its positives by another half.
    assert (
        parts is not None
        or needed > positive.sum() - 1.5 * clients
        or min(ratios) / (1 - min(ratios)) * (negatives - 1) < 1
    )
    if parts is None:
        return
    everything = np.concatenate(parts)
    assert len(np.unique(everything)) == len(everything) and set(np.flatnonzero(~positive)) <= set(everything)
    for part, ratio in zip(parts, ratios):
        assert (np.diff(part) > 0).all()
        above, below = positive[part].sum(), (~positive[part]).sum()
        assert abs(below - negatives) < 1 and above >= 1
        assert abs(above - ratio / (1 - ratio) * below) <= 0.5 + 1e-9
    for part, again in zip(parts, partition(labels, positive, clients, seed)):
        np.testing.assert_array_equal(part, again)


def test_positive_ratios_keep_all_classes_and_select_at_random():
    labels = np.repeat(np.arange(4), 250)
    parts = PositiveRatios([0.1, 0.3])(labels, labels >= 2, 2, seed=0)
    # 28 and 107 positives for 250 negatives.
    assert [round(float((labels[part] >= 2).mean()), 3) for part in parts] == [0.101, 0.3]
    for part in parts:
        assert len(np.unique(labels[part])) == 4
        above = part[labels[part] >= 2]
        assert above[-1] - above[0] > 250, "not consecutive samples"


@pytest.mark.parametrize(("ratios", "message"), [
    ([0.1, 0.1], "expected one ratio per client, got 2 for 3 clients"),
    ([0.1, 0.1, 0.9], "require .* expected at least 1 per client and at most 50 in total"),
    ([0.1, 0.1, 0.01], "0 for one client"),
])  # fmt: skip
def test_impossible_positive_ratios_are_rejected(ratios, message):
    labels = np.repeat([0, 1], [100, 50])
    with pytest.raises(ValueError, match=message):
        PositiveRatios(ratios)(labels, labels == 1, 3, seed=0)


def test_quantity_skews_sizes_but_not_labels():
    labels = np.arange(20_000) % 2

    def sizes(alpha):
        return np.array([len(part) for part in Quantity(alpha)(labels, labels == 1, 10, seed=3)])

    assert sizes(1000.0).max() < 2_400 and sizes(0.3).max() > 2 * sizes(1000.0).max()
    for part in Quantity(0.5)(labels, labels == 1, 10, seed=3):
        assert part[-1] - part[0] > 10_000 or len(part) < 10  # not consecutive samples
        assert abs(labels[part].mean() - 0.5) < 2.5 / len(part) ** 0.5  # five standard errors of a fair coin


@pytest.mark.parametrize("clients", [4, 10**11])
@pytest.mark.parametrize("partition", [IID(), Dirichlet(1.0), ByClass(1), Quantity(1.0)])
def test_more_clients_than_samples_are_rejected(partition, clients):
    """Immediately: no work grows with the number of clients."""
    with pytest.raises(ValueError, match=f"expected at least one .*, found 3 samples for {clients} clients"):
        partition(np.array([0, 1, 0]), np.array([False, True, False]), clients, seed=0)


def test_quantity_cuts_between_whole_samples():
    """Each client has one sample, and of the others those between two cumulative shares, rounded down."""
    shares = generator(5, "partition").dirichlet(np.full(4, 2.0))
    ends = [int(997 * sum(shares[: k + 1])) + k + 1 for k in range(3)]
    parts = Quantity(2.0)(np.zeros(1001, int), np.zeros(1001, bool), 4, seed=5)
    assert np.cumsum([len(part) for part in parts]).tolist() == [*ends, 1001]


def test_settings_are_validated():
    assert build(PARTITIONS["dirichlet"], {"alpha": 0.3}, "partition") == Dirichlet(alpha=0.3)
    with pytest.raises(ValueError, match="alpha"):
        build(PARTITIONS["dirichlet"], {"alpha": 0.0}, "partition")
    with pytest.raises(ValueError, match="did you mean 'groups'"):
        build(PARTITIONS["by_class"], {"group": 5}, "partition")
    for ratios in ([], [0.1, 1.0], [0.0]):
        with pytest.raises(ValueError, match="ratios"):
            build(PARTITIONS["positive_ratios"], {"ratios": ratios}, "partition")


@quick
@given(samples(), st.floats(0.05, 0.3), seeds)
def test_thin_drops_the_same_fraction_of_each_positive_class(data, ratio, seed):
    labels, positive = data
    kept = thin(labels, positive, ratio, seed)
    np.testing.assert_array_equal(kept, thin(labels, positive, ratio, seed))
    assert (np.diff(kept) > 0).all() and set(np.flatnonzero(~positive)) <= set(kept)
    number = int(positive[kept].sum())
    # The nearest integer, and rounding errors.
    assert abs(number - ratio * len(kept)) <= 0.5 + 1e-9
    fraction = number / positive.sum()
    for label in range(3, 6):
        # Each class lies between two rounded ends, each off by at most a half.
        assert abs((labels[kept] == label).sum() - fraction * (labels == label).sum()) <= 1 + 1e-9


def test_thin_drops_at_random_and_nothing_without_a_ratio():
    labels = np.repeat([0, 1], 50)
    assert set(thin(labels, labels == 1, 0.2, seed=0)) != set(thin(labels, labels == 1, 0.2, seed=1))
    np.testing.assert_array_equal(thin(labels, labels == 1, None, seed=0), np.arange(100))


@pytest.mark.parametrize("ratio", [0.001, 0.5])
def test_thin_rejects_an_impossible_ratio(ratio):
    labels = np.repeat([0, 1], [80, 20])
    with pytest.raises(ValueError, match=r"expected 1 to 20.*ratio of 0.2\)"):
        thin(labels, labels == 1, ratio, seed=0)


SITES = np.array(["south", "north", "east"] * 10)


def load():
    samples = np.arange(60.0).reshape(30, 2)
    labels = np.arange(30) % 4 // 2
    return {"train": (samples, labels), "test": (samples, labels), "clients": SITES}


def load_texts():
    texts = [f"word{i}" for i in range(30)], np.arange(30) % 4 // 2
    return {"train": texts, "test": texts, "clients": SITES}


PROBLEMS = {
    "Classification": Classification(dataset=load, clients=3, partition="natural"),
    "validation": Classification(dataset=load, clients=3, partition="natural", validation=0.2),
    "DeepAUC": DeepAUC(dataset=load, model="linear", clients=3, partition="natural"),
    "TextAUC": TextAUC(dataset=load_texts, vectors="random", dimension=4, clients=3, partition="natural"),
}


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_clients_that_the_data_set_names(problem):
    problem.prepare(0)
    for client, name in enumerate(("east", "north", "south")):
        assert (SITES[problem._rows[client]] == name).all()
    held_out = 6 if problem.validation else 0
    assert sum(problem.client_size(client) for client in range(3)) == 30 - held_out


@pytest.mark.parametrize(("options", "message"), [
    (dict(clients=3), "which partition = 'iid' would ignore: set problem.partition = \"natural\""),
    (dict(clients=5, partition="natural"),
     r"names 3 clients \(east, north, south\), .*: set problem.clients = 3"),
    (dict(clients=3, partition="natural", dataset="digits"), "'natural' requires a data set that names the"),
])  # fmt: skip
def test_named_clients_and_other_settings_that_conflict(options, message):
    with pytest.raises(ValueError, match=message):
        Classification(**{"dataset": load} | options).prepare(0)


def test_a_named_client_without_training_samples_is_rejected():
    def lonely():
        data = load()
        return data | {"clients": np.where(np.arange(30) == 0, "alone", SITES)}

    problem = Classification(dataset=lonely, clients=4, partition="natural", validation=0.9)
    with pytest.raises(ValueError, match="the client .* has no training samples left"):
        problem.prepare(0)


@pytest.mark.parametrize("names", [["up", "down"], ["001", "1"]])
def test_positive_classes_are_given_by_name(names):
    problem = DeepAUC(dataset=lambda: load() | {"classes": names}, model="linear", clients=3,
                      partition="natural", positive_classes=names[:1])  # fmt: skip
    problem.prepare(0)
    assert problem.class_names() == [f"{names[0]}+", f"{names[1]}-"]
    assert problem.test_labels().tolist() == (np.arange(30) % 4 // 2 == 0).tolist()


def test_positive_classes_are_not_booleans():
    with pytest.raises(ConfigError, match='expected names of classes in quotes, such as "True", got true'):
        DeepAUC(dataset="digits", positive_classes=[True])
