"""Metrics of the clients' fine-tuned points, and the clients' own test samples."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from oracles import prepared
from reference.agnostic import onto_simplex
from torch.nn.functional import cross_entropy

import mpifed
from mpifed import Blocks, Operator
from mpifed.algorithms import LSGD
from mpifed.base.errors import ConfigError
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.problems import Classification, DeepAUC, FairClassification

ETA, STEPS, CLIENTS = 0.3, 3, 3


def table(out, name="Classification", batch=0, **settings):
    method = {"name": "FedAvg", "K": 2, "eta": 0.1}
    if name != "Classification":
        method = {"name": "LocalSGDA", "q": 2, "eta_x": 0.1, "eta_y": 0.1}
    return {
        "rounds": 2,
        "algorithm": method,
        "problem": {"name": name, "dataset": "digits", "model": "linear", "clients": CLIENTS, **settings},
        "oracle": {"batch_size": batch},
        "run": {"progress": False, "out": str(out), "dtype": "float64"},
    }


def personalized(config):
    return config | {"personalize": {"step_size": ETA, "steps": STEPS}}


def fine_tuned(problem, client, weights, y):
    """Steps on the mean over the client's training samples, as formulas of softmax regression."""
    images, labels, *share = problem.client_data(client)
    images, start = images.double(), weights
    weights = {key: value.clone().requires_grad_() for key, value in start.items()}
    y = y.clone()
    for _ in range(STEPS):
        outputs = images.flatten(1) @ weights["fc1.weight"].T + weights["fc1.bias"]
        losses = cross_entropy(outputs, labels, reduction="none")
        loss = (losses * (y[labels] * share[0] if share else 1.0)).mean()
        gradients = torch.autograd.grad(loss, [*weights.values()])
        if share:
            slope = torch.stack([(losses * share[0] * (labels == k)).mean().detach() for k in range(10)])
            y = onto_simplex(y + ETA * slope)
        weights = {
            key: (value - ETA * gradient).detach().requires_grad_()
            for (key, value), gradient in zip(weights.items(), gradients)
        }
    return {key: value.detach() for key, value in weights.items()}, y


@pytest.mark.parametrize("kind", [Classification, FairClassification])
def test_accuracies_of_a_plain_loop(tmp_path, kind):
    """Exact local gradients; accuracies are shares of few samples, so equality needs no tolerance."""
    result = mpifed.run(personalized(table(tmp_path / "run", kind.__name__, local_test=0.2)), SerialComm())
    problem = prepared(kind(dataset="digits", model="linear", clients=CLIENTS, local_test=0.2))
    x = {key: torch.as_tensor(value) for key, value in result.parameters["x"].items()}
    y = torch.as_tensor(result.parameters.get("y", {"y": torch.ones(10)})["y"])
    key = "personal_accuracy" if kind is Classification else "personal_mean_accuracy"
    for client in range(CLIENTS):
        weights, _ = fine_tuned(problem, client, x, y)
        tested = problem.tested_on(client)
        scores = tested.predict(weights, *[{"y": y}] * (kind is FairClassification), slice(None))
        expected = tested.metrics(weights, *[{"y": y}] * (kind is FairClassification), scores)
        assert result.clients[key][client] == expected[key.removeprefix("personal_")]
    assert result.metrics[f"{key}_mean"] == pytest.approx(result.clients[key].mean(), abs=1e-15)
    assert result.metrics[f"{key}_worst"] == result.clients[key].min()


def test_the_run_itself_does_not_change(tmp_path):
    plain = table(tmp_path / "plain", batch=8)
    first, last = (
        mpifed.run(settings, SerialComm())
        for settings in (
            plain,
            personalized(plain | {"run": plain["run"] | {"out": str(tmp_path / "tuned")}}),
        )
    )
    for key, value in first.parameters["x"].items():
        assert np.array_equal(value, last.parameters["x"][key])
    assert first.costs["oracle_calls"].tolist() == last.costs["oracle_calls"].tolist()
    assert first.history["accuracy"] == last.history["accuracy"]


def test_own_test_samples_of_clients():
    """The training and the test samples of a client are disjoint parts of its samples, by class."""
    kept = prepared(DeepAUC(dataset="digits", model="linear", clients=4, local_test=0.25))
    whole = prepared(DeepAUC(dataset="digits", model="linear", clients=4))
    for client in range(4):
        everything = np.bincount(whole.client_labels(client), minlength=10)
        trained = np.bincount(kept.client_labels(client), minlength=10)
        tested = kept.tested_on(client)
        labels = tested._held_out.labels
        assert (trained + np.bincount(labels, minlength=10) == everything).all()
        assert kept.client_size(client) == len(kept.client_data(client)[0]) == trained.sum()
        # Cumulative numbers are rounded, so a class may lose one sample more or less than its share.
        assert (abs(everything * 0.25 - np.bincount(labels, minlength=10)) <= 1).all()
        assert not set(tested._held_out.rows) & set(kept._rows[client])
    assert kept.tested_on("train").test_rows == sum(map(kept.client_size, range(4)))
    with pytest.raises(ValueError, match=r"client 0: local_test = 0.001 of 360 samples holds out 0"):
        prepared(DeepAUC(dataset="digits", model="linear", clients=4, local_test=0.001))


@dataclass
class Rotation(Operator):
    clients: int = 2

    def variables(self):
        return Blocks(z={"z": (2,)})

    def operator(self, z, batch):
        return torch.stack([z[..., 1], -z[..., 0]], dim=-1)


def test_problems_without_samples_of_clients_are_refused(tmp_path):
    saddle = {"name": "Saddle", "clients": 2}
    config = personalized(table(tmp_path / "run", "Saddle")) | {"problem": saddle}
    with pytest.raises(CollectiveError, match=r"\[personalize\]: Saddle does not define its metrics on"):
        mpifed.run(config, SerialComm())
    with pytest.raises(ConfigError, match=r"\[personalize\] is for minimax problems, but Rotation has the"):
        mpifed.Simulation(Rotation(), LSGD(K=1, eta=0.1), personalize={"step_size": 0.1})
