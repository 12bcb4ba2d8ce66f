"""Samples and gradients of groups: the same values however many are drawn, gathered and stepped together."""

from __future__ import annotations

import os
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mpifed import Blocks, Minimisation
from mpifed.base.errors import ContractError
from mpifed.core import autodiff, client_data, sampling
from mpifed.core.client_data import ClientData, load_client_data
from mpifed.core.noise import Gaussian
from mpifed.core.oracle import ORACLES
from mpifed.core.sampling import Sampler
from mpifed.core.streams import Stream, generator
from mpifed.models import CNN, MLP, RNN, Conv4, LeNet5, Linear

CLIENTS, BATCH, WIDTH = 7, 3, 4


class Rows(Minimisation):
    """Clients of 5 to 11 rows."""

    clients = CLIENTS

    def variables(self):
        return Blocks(x={"w": (WIDTH,)})

    def client_data(self, client):
        rows = generator(0, "rows", client).standard_normal((5 + client, WIDTH))
        return torch.from_numpy(rows), torch.arange(5 + client)

    def loss(self, x, batch):
        return (batch[0] @ x["w"]).square().mean()


class Own(Rows):
    """Generates its samples."""

    def client_data(self, client):
        return ()

    def draw(self, stream, size):
        return (stream.normal(size, WIDTH),)


def sampler_of(problem=None, **settings):
    """A sampler in round 3 in which all clients participate."""
    problem = problem or Rows()
    settings = dict(batch_size=BATCH, noise=None, noise_width=WIDTH, dtype=torch.float64) | settings
    made = Sampler(problem, range(problem.clients), 0, device="cpu", **settings)
    made.begin_round(3)
    made.select_members(np.arange(problem.clients))
    made.expect_selection("counted")
    return made


def ask(sampler, k, rows):
    return sampler.samples(k, rows)[0]


@pytest.fixture(params=["all at once", "one by one"])
def limits(request, monkeypatch):
    if request.param == "one by one":
        monkeypatch.setattr(sampling, "MAX_DRAWN", 1)
        monkeypatch.setattr(sampling, "MAX_GATHERED", {"cpu": 1})
        monkeypatch.setattr(sampling, "MAX_BLOCKS", 1)


def test_the_number_of_cached_blocks_is_limited():
    sampler = sampler_of()
    for size in range(1, 2 * sampling.MAX_BLOCKS):
        sampler.samples(0, slice(0, 2), size=size)
    assert len(sampler._cache._blocks) == sampling.MAX_BLOCKS


@pytest.mark.parametrize("group", [1, 2, 3, CLIENTS])
def test_samples_depend_only_on_their_addresses(limits, group):
    """Also where clients come back to the first sample after the last, as a repeated phase does."""
    sampler = sampler_of(noise=Gaussian(scale=1.0))
    for first in [*range(0, CLIENTS, group), 0]:
        rows = slice(first, min(first + group, CLIENTS))
        for k in (0, 1, 2, 3, 0):
            sample = ask(sampler, k, rows)
            for place, client in enumerate(range(rows.start, rows.stop)):
                chosen = Stream(0, "sample", [client], 3, 1, k).integers(5 + client, BATCH)[0, 0]
                assert sample.batch[1][place].tolist() == chosen.tolist()
                assert torch.equal(sample.batch[0][place], Rows().client_data(client)[0][chosen])
                noise = Stream(0, "noise", [client], 3, 1, k).normal(WIDTH)[0, 0]
                np.testing.assert_array_equal(sample.noise[place].numpy(), noise)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("group", [1, 3, CLIENTS])
def test_samples_without_replacement(limits, group, drop_last):
    """Each epoch passes through the rows in the order of its permutation, in batches, the last one short."""
    sampler = sampler_of(sampling="without_replacement", drop_last=drop_last)
    for first in [*range(0, CLIENTS, group), 0]:
        rows = slice(first, min(first + group, CLIENTS))
        found = {client: [] for client in range(rows.start, rows.stop)}
        for sample in (ask(sampler, k, rows) for k in range(10)):
            for place, client in enumerate(found):
                length = sample.rows[place] if sample.rows is not None else len(sample.single[1])
                found[client].append([column[place, :length].tolist() for column in sample.batch])
        for client, batches in found.items():
            n = 5 + client
            orders = [Stream(0, "permutation", [client], 3, first=e).permutation(n)[0, 0] for e in range(10)]
            assert all(sorted(order) == [*range(n)] for order in orders) and len({*map(bytes, orders)}) > 1
            stops = range(BATCH, n + 1, BATCH) if drop_last else range(BATCH, n + BATCH, BATCH)
            expected = [order[stop - BATCH : stop] for order in orders for stop in stops]
            data = Rows().client_data(client)
            assert batches == [[column[chosen].tolist() for column in data] for chosen in expected[:10]]


def test_a_client_of_fewer_rows_than_the_batch_size_has_one_batch():
    sampler = sampler_of(batch_size=8, sampling="without_replacement", drop_last=True)
    assert sampler.batches_per_epoch(np.arange(CLIENTS)).tolist() == [1] * CLIENTS
    assert ask(sampler, 4, slice(0, CLIENTS)).rows.tolist() == [5, 6, 7, 8, 8, 8, 8]


@pytest.mark.parametrize("batch_size, large", [(0, 4), (BATCH, 4), (1, 1)])
def test_the_only_row_of_a_client_is_not_repeated(batch_size, large):
    class Single(Rows):
        single_row = True

        def client_data(self, client):
            return tuple(column[:1] for column in super().client_data(client))

    made, all_clients = sampler_of(Single(), batch_size=batch_size), slice(0, CLIENTS)
    full = made.full_sample(all_clients).batch
    for sample in (made.samples(0, all_clients)[0], made.samples(1, all_clients, size=large)[0]):
        assert all(map(torch.equal, sample.batch, full))


def test_samples_without_replacement_of_rounds_drawn_ahead(monkeypatch):
    """Also of different numbers per client, as when some have finished a phase."""
    sampler, numbers = sampler_of(sampling="without_replacement"), np.array([0, 3, 1, 2, 5, 4, 1])
    for r in (3, 4, 5, 4):
        sampler.begin_round(r)
        sample = ask(sampler, numbers, slice(0, CLIENTS))
        for client, k in enumerate(numbers):
            alone = sampler.samples(int(k), slice(client, client + 1), round=r)[0].single[1]
            assert sample.batch[1][client, : sample.rows[client]].tolist() == alone.tolist()
            e, j = divmod(k, -(-(5 + client) // BATCH))
            order = Stream(0, "permutation", [client], r, first=e).permutation(5 + client)[0, 0]
            assert alone.tolist() == order[j * BATCH : (j + 1) * BATCH].tolist()


def test_generated_samples_depend_only_on_their_addresses(limits):
    sampler = sampler_of(Own())
    for first in range(0, CLIENTS, 2):
        rows = slice(first, min(first + 2, CLIENTS))
        clients = range(rows.start, rows.stop)
        for k in (0, 1, 4):
            own = Stream(0, "sample", clients, 3, 1, k).normal(BATCH, WIDTH)[:, 0]
            np.testing.assert_array_equal(ask(sampler, k, rows).batch[0].numpy(), own)
            normal = Stream(0, "normal", clients, 3, 1, k).normal(6)[:, 0]
            np.testing.assert_array_equal(sampler.normal(k, rows, 6).numpy(), normal)


def test_generated_samples_are_finite():
    class Broken(Own):
        def draw(self, stream, size):
            (values,) = super().draw(stream, size)
            values[2, 0, 1, 0] = np.inf
            return (values,)

    with pytest.raises(
        ContractError, match=r"draw\(\) has inf in array 0 for client 2, at \[1, 0\]: expected"
    ):
        sampler_of(Broken())


@pytest.mark.parametrize("few", [1, 100, sampling.MIN_DRAWN])
def test_samples_of_rounds_drawn_ahead(monkeypatch, few):
    """For any cohort, and after a return to an earlier round."""
    monkeypatch.setattr(sampling, "MIN_DRAWN", few)
    everyone, some = np.arange(CLIENTS), np.array([1, 4, 5])
    sampler = sampler_of(noise=Gaussian(0.5))
    rounds = [(r, members) for r, members in zip(range(1, 9), [everyone, everyone, some, some] * 2)]
    for r, members in [*rounds, (2, everyone), (10**6, everyone)]:
        sampler.begin_round(r)
        sampler.select_members(members)
        for k in range(3):
            found = ask(sampler, k, slice(0, len(members)))
            rows = Stream(0, "sample", members, r, 1, k).integers(5 + members, BATCH)[:, 0]
            noise = Stream(0, "noise", members, r, 1, k).normal(WIDTH)[:, 0]
            np.testing.assert_array_equal(found.batch[1].numpy(), rows)  # the second column counts rows
            np.testing.assert_array_equal(found.noise.numpy(), 0.5 * noise)


class Decaying(Gaussian):
    def __call__(self, stream, size):
        return super().__call__(stream, size) / int(stream.round)


@pytest.mark.parametrize("noise, first, members, draws", [
    (None, 3, CLIENTS, 1), (Gaussian(0.5), 3, CLIENTS, 2),
    (Decaying(0.5), 3, CLIENTS, 38),  # a user's distribution is called with one round at a time
    (Gaussian(0.5), 0, CLIENTS, 6),  # rounds 0 and 1 do not know the number of samples per round
    (Gaussian(0.5), 3, CLIENTS - 1, 74),  # the next cohort has other members
])  # fmt: skip
def test_few_numbers_are_drawn_for_many_rounds_at_once(monkeypatch, noise, first, members, draws):
    asked, plain, sampler = [], sampling.Stream, sampler_of(noise=noise)
    monkeypatch.setattr(sampling, "Stream", lambda *address: asked.append(address) or plain(*address))
    for r in range(first, 40):
        sampler.begin_round(r)
        sampler.select_members(np.arange(members))
        ask(sampler, 0, slice(0, members))
    assert len(asked) == draws


def test_clients_at_different_sample_numbers(limits):
    sampler, rows = sampler_of(noise=Gaussian(scale=1.0)), slice(2, 5)
    mixed = ask(sampler, np.array([4, 1, 2]), rows)
    for place, k in enumerate((4, 1, 2)):
        alone = ask(sampler, k, slice(2 + place, 3 + place))
        for one, other in zip((*mixed.batch, mixed.noise), (*alone.batch, alone.noise)):
            assert torch.equal(one[place], other[0])


def test_as_many_samples_are_drawn_as_the_last_round_had(monkeypatch):
    sampler, counts = sampler_of(), []
    sampler.numbers[:] = 5
    sampler.begin_round(4)
    sampler.select_members(np.arange(CLIENTS))
    monkeypatch.setattr(sampling, "Stream", lambda *address: counts.append(address[4]) or Stream(*address))
    for first in range(CLIENTS):
        for k in range(5):
            ask(sampler, k, slice(first, first + 1))
    assert counts == [5]


def test_full_batches_are_the_data():
    """For clients with equal numbers of rows, also a client that is selected twice; one group is kept."""
    problem, groups = Rows(), []
    problem.client_data = lambda client: (torch.full((2, 1), float(client)),)
    sampler = sampler_of(problem, batch_size=0)
    for members in ([0, 1, 2, 3], [5, 5], [4, 2]):
        sampler.select_members(np.array(members))
        (batch,) = ask(sampler, 0, slice(0, len(members))).batch
        assert batch[:, :, 0].tolist() == [[float(member)] * 2 for member in members]
        assert [earlier() for earlier in groups] == [None] * len(groups)
        groups.append(weakref.ref(batch))


class Network(Minimisation):
    """Clients that train the same network from different points."""

    def __init__(self, model, shape, clients):
        self.model, self.shape, self.clients = model, shape, clients

    def variables(self):
        return Blocks(x=self.model.shapes(self.shape, 3))

    def client_data(self, client):
        rng = generator(0, "network", client)
        inputs = torch.from_numpy(rng.standard_normal((6, *self.shape)))
        lengths = (torch.full((6,), self.shape[0]),) if isinstance(self.model, RNN) else ()
        return inputs, torch.from_numpy(rng.integers(3, size=6)), *lengths

    def loss(self, x, batch):
        samples, labels, *lengths = batch
        return F.cross_entropy(self.model(x, samples, *lengths), labels)


def gradients_of(problem, dtype, group, rows):
    """Return the gradients of the first ``rows`` clients, each at its own point."""
    sampler = sampler_of(problem, noise_width=0, dtype=dtype)
    oracle, size = ORACLES["minimax"](problem, sampler, group > 1), problem.variables().sizes["x"]
    points = np.stack([generator(0, "x", k).standard_normal(size) for k in range(rows)])
    points = torch.from_numpy(points).to(dtype)
    found = []
    for first in range(0, rows, group):
        oracle.select_clients(slice(first, first + group))
        found.append(oracle.grad(points[first : first + group] / 10, oracle.sample()))
    return torch.cat(found)


NETWORKS = {
    "linear": (Linear(), (20,)),
    "mlp": (MLP(hidden=(33, 17)), (50,)),
    "lenet5": (LeNet5(), (1, 28, 28)),
    "cnn": (CNN(stages=((4,), (8,)), hidden=(16,)), (3, 8, 8)),
    "conv4": (Conv4(filters=4), (1, 12, 12)),
    "rnn": (RNN(hidden=16), (5, 12)),
    "lstm": (RNN(hidden=8, cell="lstm"), (5, 12)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NETWORKS)
def test_bits_do_not_depend_on_the_group_size(name, dtype):
    problem = Network(*NETWORKS[name], 64)
    whole = gradients_of(problem, dtype, 64, 64)
    for group, rows in ((2, 6), (3, 6), (7, 14), (16, 16)):
        assert torch.equal(gradients_of(problem, dtype, group, rows), whole[:rows]), group


@pytest.mark.parametrize("name", ["mlp", "lenet5", "rnn"])
def test_bits_of_a_single_client_copied_and_viewed(monkeypatch, name):
    problem = Network(*NETWORKS[name], 2)
    monkeypatch.setattr(autodiff, "LARGE", 2**40)
    copied = gradients_of(problem, torch.float32, 1, 2)
    monkeypatch.setattr(autodiff, "LARGE", 0)
    assert torch.equal(gradients_of(problem, torch.float32, 1, 2), copied)


@pytest.mark.parametrize("large, batched", [(0, False), (2**40, False), (0, True)])
def test_gradients_are_not_overwritten(monkeypatch, large, batched):
    """A method may store a gradient and a point while it computes the next gradient."""
    monkeypatch.setattr(autodiff, "LARGE", large)
    sampler = sampler_of()
    oracle = ORACLES["minimax"](Rows(), sampler, batched)
    oracle.select_clients(slice(0, 2 if batched else 1))
    xi, x = oracle.sample(), torch.ones(WIDTH, dtype=torch.float64)
    old = oracle.grad(x, xi)
    kept, batch = old.clone(), xi.batch[0].clone()
    for _ in range(3):
        oracle.grad(2 * x, oracle.sample())
    assert torch.equal(old, kept) and torch.equal(xi.batch[0], batch)
    assert torch.equal(oracle.grad(x, xi), kept)
    assert not old.requires_grad and not x.requires_grad and not torch.equal(oracle.grad(2 * x, xi), kept)


def test_unused_parameter_has_zero_gradient(monkeypatch):
    problem = Rows()
    problem.variables = lambda: Blocks(x={"w": (WIDTH,), "unused": (2,)})
    x = torch.ones(WIDTH + 2, dtype=torch.float64)
    for large, batched in ((0, False), (2**40, False), (0, True)):
        monkeypatch.setattr(autodiff, "LARGE", large)
        oracle = ORACLES["minimax"](problem, sampler_of(problem), batched)
        oracle.select_clients(slice(0, 1 + batched))
        gradient = oracle.grad(x, oracle.sample())
        assert gradient[0, :WIDTH].all() and gradient[:, WIDTH:].tolist() == [[0.0, 0.0]] * (1 + batched)


PROBE = """
import ctypes
calls = []
class Library:
    def __init__(self, name): pass
    def mallopt(self, parameter, value): calls.append(parameter)
from mpifed.parallel.devices import keep_freed_memory
ctypes.CDLL = Library
assert not calls
keep_freed_memory()
print(len(calls))
"""


@pytest.mark.parametrize("own, calls", [({}, 3), ({"MALLOC_ARENA_MAX": "1"}, 0)])
def test_allocator_settings_respect_the_environment(own, calls):
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "GLIBC_"))}
    ran = subprocess.run(
        [sys.executable, "-c", PROBE], env=clean | own, capture_output=True, text=True, check=True
    )
    assert int(ran.stdout) == calls


class Counted(Rows):
    """Counts its calls and the bytes of returned data that are still referenced."""

    def __init__(self, sizes, told=None, dtypes=(torch.float32,)):
        self.rows, self.told, self.dtypes = sizes, told, dtypes
        self.clients, self.held, self.most, self.calls = len(sizes), 0, 0, 0

    def client_data(self, client):
        made = (torch.arange(self.rows[client]) + 100 * client).to(self.dtypes[client % len(self.dtypes)])
        self.calls, self.held = self.calls + 1, self.held + made.nbytes
        self.most = max(self.most, self.held)
        weakref.finalize(made, self._gone, made.nbytes)
        return (made,)

    def _gone(self, size):
        self.held -= size


class Telling(Counted):
    """Declares the number of rows, not always correctly."""

    def client_size(self, client):
        return (self.told or self.rows)[client]


SIZES = (5, 11, 2, 40, 1, 7)


TYPES = [(torch.float32,), (torch.int32, torch.int64), (torch.uint8, torch.float32)]


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize(
    "kind, told", [(Counted, None), (Telling, None), (Telling, (1,) * 6), (Telling, (99,) * 6)]
)
@pytest.mark.parametrize("size", [1, 50, 2**23])
def test_data_are_contiguous_and_loaded_once(kind, told, types, size, monkeypatch):
    """In blocks of one, some or all clients."""
    monkeypatch.setattr(client_data, "BLOCK_BYTES", size)
    problem = kind(SIZES, told, types)
    data, sizes = load_client_data(problem, np.arange(6), torch.as_tensor)
    expected = torch.cat([problem.client_data(client)[0] for client in range(6)])
    assert problem.calls == 12 and sizes.tolist() == list(SIZES)
    assert data[0].dtype == expected.dtype and torch.equal(data[0], expected)


@pytest.mark.parametrize("at_start, calls", [(2**20, 6), (1, 1)])
def test_the_first_client_is_loaded_once(at_start, calls, monkeypatch):
    """It decides whether the data of all clients are loaded at the start."""
    monkeypatch.setattr(client_data, "AT_START", at_start)
    problem = Counted(SIZES)
    data = ClientData(problem, np.arange(6), torch.as_tensor, slice(None), kept=2**20)
    assert problem.calls == calls == data.is_loaded.sum() and data.is_complete == (calls == 6)
    data.require(np.arange(6))
    assert problem.calls == 6 and data.sizes.tolist() == list(SIZES)
    assert data.columns[0].tolist() == load_client_data(problem, np.arange(6), torch.as_tensor)[0][0].tolist()


@pytest.mark.parametrize("kind", [Counted, Telling])
def test_loading_does_not_copy_all_data(kind, monkeypatch):
    """In addition to the result and a block, at most the data of two clients are in memory."""
    monkeypatch.setattr(client_data, "BLOCK_BYTES", 1)
    problem = kind((1000,) * 50)
    (data,), _ = load_client_data(problem, np.arange(50), torch.as_tensor)
    assert problem.most <= 2 * 4000 and data.untyped_storage().nbytes() == 50 * 4000


def test_data_that_are_filled_again_are_copied():
    class Refilled(Rows):
        array = np.zeros((2, 3))

        def client_data(self, client):
            self.array[:] = client
            return (self.array,)

    (data,), _ = load_client_data(Refilled(), np.arange(CLIENTS), torch.as_tensor)
    assert data[:, 0].tolist() == np.repeat(np.arange(CLIENTS), 2).tolist()


@pytest.mark.parametrize("size", [1, 2**23])
def test_the_first_value_that_is_not_finite_is_named(size, monkeypatch):
    class Infinite(Rows):
        def client_data(self, client):
            first, second = torch.ones(4, 2), torch.ones(4)
            if client == 2:
                second[3] = torch.nan
            if client == 1:
                second[2], first[3, 1] = torch.inf, torch.nan
            return first, second

    monkeypatch.setattr(client_data, "BLOCK_BYTES", size)
    words = r"client_data\(1\) has inf in row 2 of column 1: expected finite numbers"
    with pytest.raises(ContractError, match=words):
        load_client_data(Infinite(), np.arange(CLIENTS), torch.as_tensor)


def test_clients_with_different_columns_are_refused():
    class Odd(Rows):
        def client_data(self, client):
            return super().client_data(client) if client != 3 else (torch.zeros(5, 2), torch.arange(5))

    with pytest.raises(ContractError, match=r"Odd: client_data\(3\) has columns with rows of shape"):
        load_client_data(Odd(), np.arange(CLIENTS), torch.as_tensor)


class Reused(Own):
    """Returns one array for all samples, which it fills again for each call."""

    kept = np.zeros(0)

    def draw(self, stream, size):
        values = stream.normal(size, WIDTH)
        if self.kept.shape != values.shape:
            self.kept = np.empty_like(values)
        self.kept[...] = values
        return (self.kept,)


def test_arrays_that_a_problem_fills_again_are_copied():
    own, reused = (sampler_of(made) for made in (Own(), Reused()))
    first = [made.samples(0, slice(0, 2), round=3)[0].batch[0] for made in (own, reused)]
    for made in (own, reused):
        made.samples(0, slice(0, 2), round=4)
    assert torch.equal(*first)


def test_noise_that_is_filled_again_is_copied():
    kept = np.zeros((CLIENTS, 1, WIDTH))

    def noise(stream, size):
        values = stream.normal(size)
        kept[: len(values)] = values
        return kept[: len(values)]

    made = sampler_of(noise=noise)
    first = made.samples(0, slice(0, CLIENTS), round=3)[0].noise
    before = first.clone()
    made.samples(0, slice(0, CLIENTS), round=4)
    assert torch.equal(first, before)
