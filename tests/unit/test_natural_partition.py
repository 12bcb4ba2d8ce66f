"""Clients that a data set names: who holds what, and what does not go together."""

import numpy as np
import pytest

from mpifed.problems import Classification, DeepAUC, TextAUC

SITES = np.array(["south", "north", "east"] * 10)


def load():
    samples = np.arange(60.0).reshape(30, 2)
    labels = np.arange(30) % 4 // 2
    return {"train": (samples, labels), "test": (samples, labels), "clients": SITES}


def said():
    texts = [f"word{i}" for i in range(30)], np.arange(30) % 4 // 2
    return {"train": texts, "test": texts, "clients": SITES}


PROBLEMS = {
    "Classification": Classification(dataset=load, clients=3, partition="natural"),
    "validation": Classification(dataset=load, clients=3, partition="natural", validation=0.2),
    "DeepAUC": DeepAUC(dataset=load, model="linear", clients=3, partition="natural"),
    "TextAUC": TextAUC(dataset=said, vectors="random", dimension=4, clients=3, partition="natural"),
}


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_every_client_holds_its_own_rows(problem):
    problem.prepare(0)
    for client, name in enumerate(("east", "north", "south")):
        assert (SITES[problem._rows[client]] == name).all()
    held_out = 6 if problem.validation else 0
    assert sum(problem.client_size(client) for client in range(3)) == 30 - held_out


@pytest.mark.parametrize(
    "settings, says",
    [
        (dict(clients=3), "which partition = 'iid' would ignore: set problem.partition = \"natural\""),
        (
            dict(clients=5, partition="natural"),
            r"names 3 clients \(east, north, south\), .*: set problem.clients = 3",
        ),
        (
            dict(clients=3, partition="natural", dataset="digits"),
            "'natural' is for data sets that name their",
        ),
    ],
)
def test_what_does_not_go_together(settings, says):
    with pytest.raises(ValueError, match=says):
        Classification(**{"dataset": load} | settings).prepare(0)


def test_a_client_whose_rows_all_go():
    def lonely():
        data = load()
        return data | {"clients": np.where(np.arange(30) == 0, "alone", SITES)}

    problem = Classification(dataset=lonely, clients=4, partition="natural", validation=0.9)
    with pytest.raises(ValueError, match="no samples to train on are left for the client "):
        problem.prepare(0)


def test_classes_count_as_positive_by_their_names():
    problem = DeepAUC(dataset=lambda: load() | {"classes": ["up", "down"]}, model="linear", clients=3,
                      partition="natural", positive_classes=["up"])  # fmt: skip
    problem.prepare(0)
    assert problem.class_names() == ["up+", "down-"]
    assert problem.test_labels().tolist() == (np.arange(30) % 4 // 2 == 0).tolist()
