"""The data of several clients at once agree with those of each client, and are used only where they do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from everything import SETTINGS, problem

from mpifed.base.errors import ContractError
from mpifed.base.settings import build
from mpifed.core import client_data
from mpifed.core.client_data import load_client_data
from mpifed.core.problem import Minimisation, as_family, has_sizes, rows_of, sizes_of
from mpifed.core.records import Blocks
from mpifed.core.streams import Stream
from mpifed.core.validation import check_problem
from mpifed.problems import Classification, DeepAUC, Saddle, SinusoidMAML, saddle

PARTITIONS = {
    "iid": {},
    "dirichlet": {"alpha": 0.5},
    "quantity": {"alpha": 0.5},
    "by_class": {"groups": 1},
    "positive_ratios": {"ratios": (0.1, 0.2, 0.3)},
}


def expect_rows_of_each(of, clients) -> None:
    """Compare the rows and sizes of several clients with those of one client at a time, bit for bit."""
    (columns, sizes), each = rows_of(of, clients), [of.client_data(client) for client in clients.tolist()]
    assert sizes.tolist() == sizes_of(of, clients).tolist() == [len(rows[0]) for rows in each]
    assert sizes.tolist() == [of.client_size(client) for client in clients.tolist()]
    for column, parts in zip(columns, zip(*each), strict=True):
        assert column.dtype == parts[0].dtype and torch.equal(column, torch.cat(parts))


@pytest.mark.parametrize("name", SETTINGS)
def test_rows_of_several_clients_are_those_of_each(name):
    of = problem(name)
    of.prepare(1)
    clients = np.array([of.clients - 1, 0, of.clients // 2])
    if of.client_data(0):
        expect_rows_of_each(of, clients)
    else:
        assert rows_of(of, clients) is None


@pytest.mark.parametrize("name", PARTITIONS)
@pytest.mark.parametrize("local_test", [None, 0.3])
def test_rows_of_every_partition(name, local_test):
    settings = {"dataset": "digits", "model": "linear", "clients": 3, "p": "client", "local_test": local_test}
    if name == "by_class":  # one positive and one negative class
        settings |= {"positive_classes": [7], "negative_classes": [2]}
    of = build(DeepAUC, settings | {"partition": {"name": name, **PARTITIONS[name]}}, "problem")
    of.prepare(1)
    expect_rows_of_each(of, np.array([2, 0]))


def test_samples_of_named_clients():
    of = build(Classification, SETTINGS["Classification"] | {"clients": 3}, "problem")
    of.prepare(0)
    rows = [np.array([4, 9]), np.array([1]), np.array([5, 7, 8])]
    of._rows = type(of._rows).of(rows)
    assert of._rows.of_clients(np.array([2, 0])).tolist() == [5, 7, 8, 4, 9]
    assert of._rows.of_clients(np.array([], dtype=np.int64)).tolist() == []


class Doubled(Classification):
    """Changes the data of one client at a time, and the weights."""

    def client_data(self, client):
        samples, labels = super().client_data(client)
        return 2 * samples, labels

    def client_size(self, client):
        return 10 + client


class Again(Doubled):
    """Inherits the changed data."""


def test_data_of_a_class_that_overrides_client_data_are_used():
    settings = SETTINGS["Classification"]
    plain, *changed = (build(cls, settings, "problem") for cls in (Classification, Doubled, Again))
    plain.prepare(0)
    clients = np.arange(plain.clients)
    (expected, _), _ = load_client_data(plain, clients, torch.as_tensor)
    for of in changed:
        of.prepare(0)
        (samples, _), sizes = load_client_data(of, clients, torch.as_tensor)
        assert torch.equal(samples, 2 * expected) and sizes.sum() == len(expected)
        assert rows_of(of, clients) is None and sizes_of(of, clients).tolist() == (10 + clients).tolist()


@dataclass
class Slices(Minimisation):
    """Defines the rows of several clients only; client k has k + 1 rows."""

    clients: int = 6
    calls: int = 0

    def variables(self):
        return Blocks(x={"w": (2,)})

    def client_rows(self, clients):
        self.calls += 1
        rows = np.concatenate([np.arange(k * (k + 1) // 2, (k + 1) * (k + 2) // 2) for k in clients])
        values = torch.from_numpy(rows).double()
        return (torch.stack([values, -values], 1),), clients + 1

    def loss(self, x, batch):
        return ((batch[0] - x["w"]) ** 2).sum(1).mean()


class Sized(Slices):
    def client_sizes(self, clients):
        return clients + 1


@pytest.mark.parametrize("kind", [Slices, Sized])
@pytest.mark.parametrize("nbytes", [1, 70, 2**23])
def test_rows_are_loaded_in_blocks(kind, nbytes, monkeypatch):
    monkeypatch.setattr(client_data, "BLOCK_BYTES", nbytes)
    of = kind()
    for clients in (np.arange(6), np.array([5, 2]), np.array([3]), np.array([], dtype=np.int64)):
        columns, sizes = load_client_data(of, clients, torch.as_tensor)
        assert sizes.tolist() == (clients + 1).tolist()
        if len(clients):
            expected = np.concatenate([np.arange(k * (k + 1) // 2, (k + 1) * (k + 2) // 2) for k in clients])
            assert columns[0][:, 0].tolist() == expected.tolist()
    of.calls = 0
    load_client_data(of, np.arange(6), torch.as_tensor)
    assert of.calls == {1: 6, 2**23: 2}.get(nbytes, of.calls) and 2 <= of.calls <= 6
    assert has_sizes(of) == (kind is Sized) and sizes_of(of, np.arange(3)).tolist() == [1, 2, 3]
    assert rows_of(as_family(of, "operator"), np.array([1]))[1].tolist() == [2]


def returning(columns, sizes):
    return lambda self, clients: (columns(len(clients)), sizes(len(clients)))


WRONG = [
    (returning(lambda C: (torch.ones(2 * C, 2),), lambda C: np.full(C, 3)), "sizes of shape [1]"),
    (returning(lambda C: (torch.ones(C, 2 + (C > 1)),), np.ones), "shapes [[5, 3]]"),
    (returning(lambda C: (torch.ones(C, 2),), lambda C: np.ones(C + 1)), "sizes of shape [2]"),
]


@pytest.mark.parametrize("client_rows, message", WRONG)
def test_columns_that_do_not_fit_are_refused(client_rows, message):
    of = type("Wrong", (Slices,), {"client_rows": client_rows})()
    with pytest.raises(ContractError) as raised:
        load_client_data(of, np.arange(6), torch.as_tensor)
    assert message in str(raised.value) and "Wrong: client_rows()" in str(raised.value)


def test_values_that_are_not_finite_are_named():
    class Infinite(Slices):
        def client_rows(self, clients):
            (values,), sizes = super().client_rows(clients)
            values[values == 4] = torch.inf  # the second row of client 2
            return (values,), sizes

    with pytest.raises(ContractError, match=r"client_data\(2\) has inf in row 1 of column 0"):
        load_client_data(Infinite(), np.arange(6), torch.as_tensor)


def scaled(self, clients):
    (values,), sizes = Slices.client_rows(self, clients)
    return (values + clients[0],), sizes  # depends on the other clients


CONTRADICTIONS = [
    ({"client_rows": scaled}, "client_rows([1, 0]) returns other rows than client_data"),
    ({"client_rows": lambda self, clients: torch.ones(2, 2)}, "client_rows() must return the columns and"),
    ({"client_sizes": lambda self, clients: np.arange(len(clients))}, "client_sizes([1, 0]) returns [0, 1]"),
    (
        {
            "client_data": lambda self, k: (2 * Slices.client_rows(self, np.array([k]))[0][0],),
            "client_rows": Slices.client_rows,
        },
        "client_rows([1, 0]) returns other rows than client_data",
    ),
]


@pytest.mark.parametrize("functions, message", CONTRADICTIONS)
def test_functions_of_several_clients_that_contradict_those_of_one_are_refused(functions, message):
    check_problem(Slices())
    check_problem(Sized())
    with pytest.raises(ContractError) as raised:
        check_problem(type("Wrong", (Slices,), functions)())
    assert message in str(raised.value)


@pytest.mark.parametrize("d", [1, 2, 7])
@pytest.mark.parametrize("centred", [True, False])
def test_means_of_the_saddle_do_not_depend_on_the_blocks(d, centred, monkeypatch):
    """They are those of all clients' numbers, bit for bit."""
    monkeypatch.setattr(saddle, "MAX_DRAWN", 50)
    of = Saddle(d=d, clients=301, s=2.0, centred=centred)
    of.prepare(3)
    stream = Stream(3, "saddle", np.arange(301))
    t, b = 0.1 * stream.uniform()[:, 0], 2.0 * stream.normal(d)[:, 0]
    b = b - b.mean(axis=0) if centred else b
    columns, _ = of.client_rows(np.arange(301))
    np.testing.assert_array_equal(columns[0].numpy(), t)
    np.testing.assert_array_equal(columns[1].numpy(), b)
    best = of.best_response({"x": torch.zeros(d)}).numpy()
    np.testing.assert_array_equal(best, b.mean(axis=0) - t.mean() * np.zeros(d))


def test_tasks_do_not_depend_on_the_clients_that_are_drawn_together():
    of = SinusoidMAML(clients=100, samples=13)
    of.prepare(2)
    expect_rows_of_each(of, np.arange(100))
