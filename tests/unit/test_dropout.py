"""Dropout by address: its random words, its effect on values, and calls without dropout."""

import everything  # noqa: F401  (registers the sentences)
import networks
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from oracles import prepared
from torch import nn

import mpifed
from mpifed.algorithms import LocalSGDA
from mpifed.core.sample_words import (
    AddressedBatch,
    DropoutMode,
    SampleWords,
    current_words,
    with_dropout_words,
)
from mpifed.core.streams import Stream, generator, key
from mpifed.parallel.comm import SerialComm
from mpifed.problems import DeepAUC, TextAUC

KEY, STEPS = key(7, "dropout"), LocalSGDA(q=3, eta_x=0.1, eta_y=0.1)


def words(number=3, round=5, client=2) -> SampleWords:
    return SampleWords(KEY, torch.tensor([number, round, client]))


def test_words_agree_with_the_stream():
    own, stream = words(), Stream(7, "dropout", [2], 5, 1, 3)
    for count in (5, 1, 8):
        assert own.take(count).tolist() == stream.words(count)[0, 0].tolist()


def test_words_are_the_same_when_vectorised():
    addresses = torch.tensor([[3, 5, client] for client in range(4)])
    together = torch.func.vmap(lambda address: SampleWords(KEY, address).take(9))(addresses)
    assert torch.equal(together, torch.stack([words(client=client).take(9) for client in range(4)]))


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("layer", [nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d])
def test_units_and_channels_are_dropped_and_the_rest_scaled(layer, p):
    shape = (40, 30, *{nn.Dropout1d: (4,), nn.Dropout2d: (2, 2), nn.Dropout3d: (2, 1, 2)}.get(layer, ()))
    with DropoutMode(words()) as mode:
        value = layer(p)(torch.ones(shape))
    channels = value.reshape(1200, -1)
    assert (channels == channels[:, :1]).all() and mode.used == (p > 0)
    kept = {0.0: {1.0}, 0.3: {0.0, 1 / 0.7}, 1.0: {0.0}}[p]
    assert {round(one, 5) for one in value.unique().tolist()} == {round(one, 5) for one in kept}
    # Of 1200 units a share of 0.3 has a standard deviation of 0.013; this is five of them.
    assert abs(float((channels[:, 0] == 0).double().mean()) - p) < 0.066


def test_dropout2d_of_features_drops_units():
    """torch treats inputs ``[b, features]`` of dropout2d as channels of size 1."""
    with DropoutMode(words()):
        value = F.dropout2d(torch.ones(40, 30), 0.5)
    assert all(0 < row.count_nonzero() < 30 for row in value)


@pytest.mark.parametrize("layer", [nn.AlphaDropout(0.4), nn.FeatureAlphaDropout(0.4)])
def test_alpha_dropout_keeps_mean_and_variance(layer):
    values = torch.from_numpy(generator(0, "values").standard_normal((400, 250)))
    with DropoutMode(words()):
        dropped = layer(values)
    # 100,000 numbers: five standard deviations of their mean and of their variance, of fourth moment about 4.
    assert abs(float(dropped.mean())) < 0.016 and abs(float(dropped.var()) - 1) < 0.03


def test_in_place_and_without_training():
    values = torch.ones(6, 5)
    with DropoutMode(words()) as mode:
        assert F.dropout(values, 0.5, training=False) is values and not mode.used
        assert F.dropout(values, 0.5, True, True) is values and {*values.flatten().tolist()} == {0.0, 2.0}
    for function in (F.alpha_dropout, F.feature_alpha_dropout):
        values = torch.rand(6, 5)
        with DropoutMode(words()):
            expected = function(values, 0.5, True)
        with DropoutMode(words()):
            assert function(values, 0.5, True, True) is values and torch.equal(values, expected)


class Attends(nn.Module):
    """Attention by torch's module or function, with dropout in training."""

    def __init__(self, p, kind):
        super().__init__()
        self.layer = {
            "module": nn.MultiheadAttention(8, 2, dropout=p, batch_first=True),
            "encoder": nn.TransformerEncoderLayer(8, 2, 4, dropout=p, batch_first=True),
            "function": nn.Identity(),
        }[kind]
        self.p, self.kind = p, kind

    def forward(self, x):
        if self.kind == "function":
            return F.scaled_dot_product_attention(x, x, x, dropout_p=self.p if self.training else 0.0)
        return self.layer(x) if self.kind == "encoder" else self.layer(x, x, x)[0]


@pytest.mark.parametrize("kind", ["module", "encoder", "function"])
def test_attention_depends_on_the_address_only(kind):
    layer, x, values = Attends(0.5, kind), torch.rand(3, 4, 8), []
    for seed, one in enumerate((words(), words(), words(client=1))):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        with DropoutMode(one) as mode:
            values.append(layer(x))
        assert mode.used and torch.equal(torch.get_rng_state(), state)
    assert torch.equal(values[0], values[1]) and not torch.equal(values[0], values[2])


@pytest.mark.parametrize("kind", ["module", "function"])
def test_attention_without_dropout_is_that_of_torch(kind):
    x = torch.rand(3, 4, 8)
    for layer, training in ((Attends(0.0, kind), True), (Attends(0.5, kind), False)):
        expected = layer.eval()(x)
        with DropoutMode(words()) as mode:
            assert torch.equal(layer.train(training)(x), expected) and not mode.used
            assert torch.equal(torch.func.vmap(layer)(x[None])[0], expected)


def test_two_attentions_have_different_masks():
    x = torch.rand(3, 4, 8)
    with DropoutMode(words()):
        one, other = (F.scaled_dot_product_attention(x, x, x, dropout_p=0.5) for _ in range(2))
    assert not torch.equal(one, other)


def test_address_is_set_only_during_the_call():
    def function(x, batch):
        assert [column.tolist() for column in batch] == [[1.0]]
        return current_words()

    addressed = with_dropout_words(function, KEY)
    batch = (torch.ones(1),)
    assert addressed(0, batch) is None
    used = addressed(0, AddressedBatch(batch, torch.tensor([3, 5, 2])))
    assert used.take(4).tolist() == words().take(4).tolist()
    assert current_words() is None
    with pytest.raises(AssertionError):
        addressed(0, AddressedBatch((torch.zeros(1),), torch.tensor([3, 5, 2])))
    assert current_words() is None


def three_steps(problem, client: int) -> torch.Tensor:
    """The client's x after the first round in plain torch, with the masks of (number, round 1, client)."""
    start = problem.initial(generator(0, "initial"))["x"].double()
    x, y, blocks = start.clone(), torch.zeros(1, dtype=torch.float64), problem.variables()
    images, positive = (column.double() for column in problem.client_data(client))
    for k in range(3):
        chosen = Stream(0, "sample", [client], 1, 1, k).integers([len(images)], 4)[0, 0]
        keep = Stream(0, "dropout", [client], 1, 1, k).words(24).reshape(4, 6) >= 2**31
        point = [one.detach().clone().requires_grad_() for one in (x, y)]
        named = blocks.unflatten("x", point[0])
        h = torch.tanh(images[chosen].flatten(1) @ named["first.weight"].T + named["first.bias"])
        h = torch.from_numpy(keep) * h * 2
        h = (h @ named["last.weight"].T + named["last.bias"])[:, 0]
        p, one = problem._ratio, positive[chosen]
        slope = 2 * (1 + point[1]) * h
        above = (1 - p) * one * ((h - named["a"]) ** 2 - slope)
        below = p * (1 - one) * ((h - named["b"]) ** 2 + slope)
        gx, gy = torch.autograd.grad((above + below - p * (1 - p) * point[1] ** 2).mean(), point)
        x, y = x - 0.1 * gx, y + 0.1 * gy
    return x


@pytest.mark.parametrize("group", [1, 2], ids=["loop", "pairs"])
def test_a_round_agrees_with_plain_torch(group):
    problem = DeepAUC(dataset="digits", clients=2, model=f"{networks.__file__}:dropping")
    run = {"dtype": "float64", "group": group}
    simulation = mpifed.Simulation(problem, STEPS, oracle={"batch_size": 4}, run=run, comm=SerialComm())
    simulation.start()
    simulation.step()
    expected = (three_steps(problem, 0) + three_steps(problem, 1)) / 2
    # Three steps in float64, with products in another order.
    np.testing.assert_allclose(simulation.shared.x, expected, rtol=1e-10, atol=1e-12)


def test_evaluations_have_no_dropout():
    models = [{"name": f"{networks.__file__}:dropping", "p": p} for p in (0.5, 0.0)]
    problem, none = (prepared(DeepAUC(dataset="digits", clients=2, model=model)) for model in models)
    assert problem.model.has_dropout and not none.model.has_dropout
    x = problem.variables().unflatten("x", problem.initial(generator(0, "initial"))["x"].float())
    y, rows = {"alpha": torch.zeros(1)}, slice(0, 20)
    assert torch.equal(problem.predict(x, y, rows), none.predict(x, y, rows))


def test_dropout_in_a_sequence_model():
    model = {"name": f"{networks.__file__}:Reader", "dimension": 6, "p": 0.3}
    texts = dict(dataset="sentences", clients=3, vectors="random", dimension=6, length=5)
    simulation = mpifed.Simulation(
        TextAUC(model=model, **texts), STEPS, oracle={"batch_size": 4}, comm=SerialComm()
    )
    simulation.start()
    simulation.step()
    assert torch.isfinite(simulation.point()).all()
    with pytest.raises(ValueError, match=r"but is called as forward\(vectors, lengths\)"):
        prepared(TextAUC(model=f"{networks.__file__}:Net", **texts))
    prepared(TextAUC(model=model, **texts | {"length": 1}))  # no length of the trial batch exceeds it
