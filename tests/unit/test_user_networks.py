"""User-defined nn.Modules as networks of problems: values, unsupported modules, and resumption."""

import contextlib
import copy
import functools
import random
import threading

import networks
import numpy as np
import pytest
import torch
from networks import LeNet, Net, Tied
from torch import nn
from torch.utils.checkpoint import checkpoint

import mpifed
from mpifed.algorithms import FedAvg
from mpifed.base.errors import ConfigError
from mpifed.core import autodiff
from mpifed.core.sample_words import DropoutMode, SampleWords
from mpifed.core.streams import generator
from mpifed.data import DATASETS, Images
from mpifed.models import LeNet5
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.problems import Classification, DeepAUC
from mpifed.simulation.simulation import NonFiniteError

FILE = networks.__file__
METHOD = {"name": "LocalSGDA", "q": 2, "eta_x": 0.1, "eta_y": 0.1}


def job(out, model, problem="DeepAUC", dataset="digits", rounds=3, **run) -> dict:
    return {
        "rounds": rounds,
        "algorithm": METHOD,
        "problem": {"name": problem, "dataset": dataset, "clients": 4, "model": model},
        "oracle": {"batch_size": 8},
        "run": {"out": str(out), "progress": False, **run},
    }


def go(*arguments, **settings):
    return mpifed.run(job(*arguments, **settings), SerialComm())


def prepared(model, problem=DeepAUC, **settings):
    made = problem(dataset="digits", clients=2, model=model, **settings)
    made.prepare(0)
    return made


def refusal(model, problem=DeepAUC) -> str:
    with pytest.raises(ConfigError) as fault:
        prepared(model, problem)
    return str(fault.value)


@pytest.fixture
def drawn(monkeypatch):
    """The name of a data set of some images of 28 x 28."""
    rng = np.random.default_rng(0)
    images, labels = rng.random((120, 1, 28, 28), np.float32), rng.integers(0, 10, 120)
    train, test = ((torch.from_numpy(images[part]), torch.from_numpy(labels[part]))
                   for part in (slice(80), slice(80, 120)))  # fmt: skip
    monkeypatch.setitem(DATASETS, "drawn", lambda data_dir=None: Images(*train, *test))
    return "drawn"


@pytest.mark.parametrize("group, dtype", [(1, "float32"), (2, "float64"), ("all", "float32")])
def test_torch_lenet_agrees_with_the_built_in_bitwise(tmp_path, drawn, group, dtype):
    built_in, torchs = LeNet5(), LeNet().double()
    torchs.load_state_dict(built_in.initial(built_in.shapes((1, 28, 28), 1), generator(0, "initial")))
    expected, found = (
        go(tmp_path / type(model).__name__, model, dataset=drawn, group=group, dtype=dtype, reduction="exact")
        for model in (built_in, torchs)
    )
    assert all(torch.equal(expected.point[block], found.point[block]) for block in "xy")
    assert expected.history == found.history and len(expected.history) == 2


def test_a_class_of_a_file_is_stored_with_its_source(tmp_path):
    table = job(tmp_path / "run", {"name": f"{FILE}:Net", "width": 5})
    result = mpifed.run(table, SerialComm())
    assert result.config["problem"]["model"] == {"name": f"{FILE}:Net", "width": 5}
    assert list(result.config["plugins"]) == ["problem.model"]
    assert len(result.point["x"]) == 64 * 5 + 5 + 5 + 1 + 2
    assert mpifed.Config.from_table(result.config).table() == result.config
    assert list(result.parameters["x"])[:4] == ["first.weight", "first.bias", "last.weight", "last.bias"]


@pytest.mark.parametrize("problem", ["Classification", "FairClassification", "RobustRegression"])
def test_modules_in_classification_problems(tmp_path, problem):
    method = "FedAvg" if problem == "Classification" else "LocalSGDA"
    table = job(tmp_path, {"name": f"{FILE}:dropping", "outputs": 10, "p": 0.1}, problem)
    if method == "FedAvg":
        table["algorithm"] = {"name": "FedAvg", "K": 2, "eta": 0.1}
    assert len(mpifed.run(table, SerialComm()).point["x"]) == 64 * 6 + 6 + 60 + 10


@pytest.mark.parametrize("model", [Net, networks.dropping])
def test_a_class_or_function_passed_in_python_is_named_by_its_file(tmp_path, model):
    name = model.__name__
    named, given = (go(tmp_path / str(k), one) for k, one in enumerate((f"{FILE}:{name}", model)))
    assert given.config["problem"]["model"] == {"name": f"networks:{name}"}
    assert torch.equal(named.point["x"], given.point["x"])


def test_partial_functions_are_settings(tmp_path):
    given = go(tmp_path, functools.partial(Net, width=5))
    assert given.config["problem"]["model"] == {"name": "networks:Net", "width": 5}
    for given, said in (
        (functools.partial(Net, None), "expected functools.partial of a class or function with keywords"),
        (functools.partial(Net, size=5), "has no setting 'size'"),
    ):
        with pytest.raises(ConfigError, match=said):
            DeepAUC(dataset="digits", model=given)


def test_initial_parameters_of_classes_and_objects():
    first, again = (prepared(f"{FILE}:Net").initial(generator(seed, "initial"))["x"] for seed in (0, 0))
    other = prepared(f"{FILE}:Net").initial(generator(1, "initial"))["x"]
    assert first.dtype == torch.float64 and torch.equal(first, again) and not torch.equal(first, other)
    state = torch.random.get_rng_state()
    prepared(f"{FILE}:Net").initial(generator(0, "initial"))
    assert torch.equal(state, torch.random.get_rng_state())
    net = Net()
    held = torch.cat([one.detach().flatten().double() for one in net.parameters()])
    problem = prepared(net)
    assert torch.equal(problem.initial(generator(0, "initial"))["x"][:-2], held)
    assert problem.model.given is not net or all(one.grad is None for one in net.parameters())


def test_gradient_of_a_shared_weight():
    problem = prepared(Tied().double())
    assert list(problem.variables()["x"]) == ["inner.weight", "out.weight", "out.bias", "a", "b"]
    x = problem.variables().unflatten("x", problem.initial(generator(0, "initial"))["x"])
    rows = torch.from_numpy(np.random.default_rng(0).standard_normal((5, 64)))

    def score(w, v, c):
        return (torch.tanh(torch.tanh(rows @ w.T) @ w.T) @ v.T + c).sum()

    def of_module(w, v, c):
        return problem.model({"inner.weight": w, "out.weight": v, "out.bias": c}, rows).sum()

    names = ("inner.weight", "out.weight", "out.bias")
    arguments = [x[name].detach().clone().requires_grad_() for name in names]
    expected, found = (torch.autograd.grad(one(*arguments), arguments) for one in (score, of_module))
    w, v, _ = (one.detach() for one in arguments)
    inner = torch.tanh(rows @ w.T)
    outer = (1 - torch.tanh(inner @ w.T) ** 2) * v  # ∂score/∂(inner wᵀ)
    by_hand = outer.T @ inner + ((outer @ w) * (1 - inner**2)).T @ rows
    # Sums of 64 products of numbers of size one in float64, in another order.
    torch.testing.assert_close(found[0], by_hand, rtol=1e-12, atol=1e-12)
    for one, other in zip(expected, found):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


class Odd(Net):
    """A network that is changed by ``build``, and its outputs by ``forward``."""

    def __init__(self, build=None, forward=None):
        super().__init__()
        self.own = forward
        if build:
            build(self)

    def forward(self, images):
        value = super().forward(images)
        return self.own(self, value) if self.own else value


class OverSamples(nn.Module):
    """A recurrent layer whose first axis, time, is that of the samples."""

    def __init__(self):
        super().__init__()
        self.read, self.out = nn.GRU(8, 5), nn.Linear(5, 1)

    def forward(self, images):
        return self.out(self.read(images.squeeze(1))[0][:, -1])


class Squeezes(Net):
    """A network whose output for one sample has no axis of samples."""

    def forward(self, images):
        return super().forward(images).squeeze().unsqueeze(-1)


class Keywords(Net):
    def forward(self, *, images):
        return super().forward(images)


class Overwrites(Net):
    """A network that changes a tensor in place that its gradient needs."""

    def forward(self, images):
        h = torch.sigmoid(self.first(images.flatten(1)))
        h.mul_(2)
        return self.last(h)


class Branching(Net):
    """A network with another sign of the outputs if a function of the samples is true."""

    def __init__(self, chooses):
        super().__init__()
        self.chooses = chooses

    def forward(self, images):
        return super().forward(images) * (-1 if self.chooses(images) else 1)


def renormed(layer):
    """Limit the norm of a layer's weights, as networks for signals do in ``forward``."""
    layer.weight.data = torch.renorm(layer.weight.data, 2, 0, 0.01)
    return layer.weight


def with_attribute(**values):
    return lambda net: vars(net).update(values)


def grows(net, value):
    if not hasattr(net, "grown"):
        net.grown = nn.Parameter(torch.ones(1, dtype=value.dtype))
    return net.grown * value


def writes(net, value):
    net.seen += 1
    return value


def with_buffer(value):
    return lambda net: net.register_buffer("seen", value())


def centred(net, value):
    net.mean = getattr(net, "mean", value.detach().mean())
    return value - net.mean


def with_random_constant():
    factor = random.random()
    return Odd(forward=lambda net, value: factor * value)


class Recomputes(Net):
    """A network that computes a layer again in the backward pass, with dropout in training alone."""

    def __init__(self, drops=False):
        super().__init__(nn.Dropout(0.5) if drops else None)
        self.drops = drops

    def forward(self, images):
        def hidden(rows):
            return torch.tanh(self.first(rows))

        rows = images.flatten(1)
        again = self.training or not self.drops
        return self.last(
            self.middle(checkpoint(hidden, rows, use_reentrant=False) if again else hidden(rows))
        )


def tied_by_data():
    net = Net(nn.Linear(6, 6))
    net.middle.weight.data = net.first.weight.data[:, :6]
    return net


def in_closure():
    constant = torch.ones(1)
    return Odd(forward=lambda net, value: torch.mm(value, constant[:, None]))


REFUSED = [
    (lambda: Odd(forward=centred), "expected no random constants, and no values that are kept from earlier"),
    (lambda: with_random_constant, "depend on more than its parameters, buffers and samples: expected no"),
    (lambda: in_closure, "(constants are created in float64: convert them in forward, constant.to(samples))"),
    (lambda: Odd(forward=lambda net, value: value + 0 * random.randrange(9)),
     "in forward from Python's random or numpy.random: only torch"),
    (lambda: Odd(forward=lambda net, value: value + 0 * np.random.randint(9)),  # noqa: NPY002
     "in forward from Python's random or numpy.random: only torch"),
    (lambda: Net(nn.BatchNorm1d(6)), "has BatchNorm1d at 'middle': batch normalisation couples the samples"),
    (lambda: Net(nn.BatchNorm1d(6)), "use nn.GroupNorm(1, 6)"),  # 6 groups of one value would return 0
    (lambda: Net(nn.SyncBatchNorm(64)), "use nn.GroupNorm(32, 64)"),
    (lambda: Net(nn.InstanceNorm1d(6, track_running_stats=True)), "expected track_running_stats=False"),
    (lambda: Net(nn.RReLU()), "draws random numbers in forward (aten.rrelu_with_noise.default): only torch"),
    (lambda: Odd(forward=lambda net, value: value + torch.randn_like(value)),
     "draws random numbers in forward (aten.randn_like"),
    (lambda: Odd(forward=lambda net, value: value + torch.randn_like(value)), "test_user_networks.py"),
    (lambda: Odd(forward=lambda net, value: nn.functional.scaled_dot_product_attention(
        *[value[:, None]] * 3, dropout_p=0.5)[:, 0]), "draws random numbers in forward (aten.bernoulli_"),
    (lambda: Odd(lambda net: setattr(net, "read", nn.LSTM(1, 1, 2, dropout=0.5)),
                 lambda net, value: net.read(value[None])[0][0]), "draws random numbers in forward (aten"),
    (lambda: Odd(with_buffer(lambda: torch.zeros(1)), writes), "writes to its buffer 'seen' in forward"),
    (lambda: Odd(forward=lambda net, value: value * net.last.weight.data.clamp_(-9, 9).sum()),
     "changes its parameter 'last.weight' in forward"),
    (lambda: Odd(forward=lambda net, value: value + renormed(net.last).sum()), "changes its parameter 'last"),
    (lambda: Odd(lambda net: net.register_forward_pre_hook(lambda net, _: (renormed(net.last), None)[1])),
     "changes its parameter 'last.weight'"),
    (lambda: Odd(with_buffer(lambda: torch.zeros(1)), lambda net, value: value + net.seen.mul_(1)),
     "writes to its buffer 'seen' in forward"),
    (lambda: Branching(lambda rows: rows.mean() > 0), "a branch must not depend on statistics of the batch"),
    (lambda: Branching(lambda rows: rows.std() > 2), "couples the samples of a batch"),
    (lambda: Branching(lambda rows: rows.max() > 5), "couples the samples of a batch"),
    (lambda: Branching(lambda rows: (rows < 0).any()), "couples the samples of a batch"),
    (lambda: Odd(forward=lambda net, value: 2 * value if net.training else value),
     "without dropout: expected the same"),
    (lambda: Odd(forward=lambda net, value: (value, value)),
     "returns a tuple for samples of shape [3, 1, 8, 8]"),
    (lambda: Odd(forward=lambda net, value: value > 0), "has outputs of dtype bool for samples of shape"),
    (lambda: Net(outputs=10),
     "has outputs of shape [3, 10] for samples of shape [3, 1, 8, 8] (batch, c, h, w)"),
    (lambda: Net(outputs=10), "expected a tensor [3, 1] (batch, outputs)"),
    (lambda: LeNet(), "does not accept samples of shape [3, 1, 8, 8] (batch, c, h, w): RuntimeError: "),
    (lambda: Odd(forward=lambda net, value: value - value.mean()), "couples the samples of a batch: outputs"),
    (lambda: torch.manual_seed(0)
     and Odd(lambda net: nn.init.zeros_(net.last.weight), lambda net, value: value - value.mean()),
     "couples the samples of a batch: outputs"),
    (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.TransformerEncoderLayer(6, 2), nn.Linear(6, 1)),
     "attention need batch_first=True"),
    (lambda: OverSamples(), "recurrent layers and attention need batch_first=True"),
    (lambda: Odd(forward=lambda net, value: value.detach()), "has outputs without gradients: expected no"),
    (lambda: nn.Sequential(nn.Flatten()), "has no parameters to train"),
    (lambda: Net().requires_grad_(False), "has no parameters to train"),
    (lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(1)), "has lazy layers: call it once on samples first"),
    (lambda: Squeezes(), "for samples of shape [1, 1, 8, 8]"),
    (lambda: Squeezes(), "use .squeeze(-1) or .flatten(1)"),
    (lambda: Keywords(), "has forward(*, images), but is called as forward(samples)"),
    (lambda: Overwrites(), "has no gradient: RuntimeError: one of the variables"),
    (lambda: Odd(forward=grows), "creates the parameter 'grown' in forward"),
    (lambda: Odd(with_attribute(weight=torch.ones(6, requires_grad=True))), "gradients in 'weight', but are"),
    (lambda: Recomputes(), "when the values of its parameters are passed by torch.func.functional_call: "
     "expected no hooks of parameters, only hooks of modules, and no torch.utils.checkpoint"),
    (lambda: Recomputes(drops=True), "and no torch.utils.checkpoint"),
    (lambda: Odd(lambda net: vars(net).update(kept=net.first.weight[2:].detach())),
     "has 'kept', which shares the memory of its parameter 'first.weight' without being the same parameter"),
    (lambda: tied_by_data(), "has 'first.weight', which shares the memory of its parameter 'middle.weight'"),
    (lambda: tied_by_data, "has 'first.weight', which shares the memory of its parameter 'middle.weight'"),
    (lambda: Odd(with_attribute(layers=[nn.Linear(6, 6)])), "expected nn.Parameter, nn.ModuleList"),
    (lambda: Odd(with_attribute(lock=threading.Lock())), "object that cannot be copied (TypeError: cannot"),
    (lambda: Net().to("meta"), "has 'first.weight' on the meta device"),
    (lambda: torch.jit.trace(Net(), torch.zeros(2, 1, 8, 8)), "is a TorchScript module"),
    (lambda: Net(nn.DataParallel(nn.Identity())), "has DataParallel at 'middle', which distributes"),
]  # fmt: skip


@pytest.mark.parametrize("make, said", REFUSED)
def test_unsupported_modules_are_refused(make, said):
    assert said in refusal(make())


class Keeps(Net):
    """A network that keeps its hidden layer, in an attribute, in a list, or by a hook."""

    def __init__(self, how="attribute"):
        super().__init__(torch.nn.Identity())
        self.how, self.hidden, self.lock = how, torch.zeros(1), threading.Lock()  # a lock cannot be copied
        if how == "hook":
            self.middle.register_forward_hook(lambda layer, inputs, output: setattr(self, "hidden", output))

    def forward(self, images):
        h = self.middle(torch.tanh(self.first(images.flatten(1))))
        if self.how != "hook":
            self.hidden = h if self.how == "attribute" else [h]
        return self.last(h)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("how", ["attribute", "list", "hook"])
def test_a_network_that_keeps_a_tensor_is_the_same_function(tmp_path, how, group):
    plain = go(tmp_path / "plain", Net, group=group).point["x"]
    keeps = {"name": f"{__file__}:Keeps", "how": how}
    assert torch.equal(go(tmp_path / "keeps", keeps, group=group).point["x"], plain)


def test_module_objects_that_keep_a_tensor(tmp_path):
    plain, keeps = Net(), Odd(forward=lambda net, value: setattr(net, "score", value) or value)
    keeps.load_state_dict(plain.state_dict())
    keeps(torch.zeros(2, 1, 8, 8))
    points = [go(tmp_path / type(net).__name__, net).point["x"] for net in (plain, keeps)]
    assert torch.equal(*points)


def test_weight_norm_by_a_hook():
    network = prepared(nn.Sequential(nn.Flatten(), nn.utils.weight_norm(nn.Linear(64, 1)))).network
    assert list(network) == ["1.bias", "1.weight_g", "1.weight_v"]


class Scaled(Net):
    """A network with a constant of three kinds, created in the default precision."""

    def __init__(self, how):
        super().__init__()
        scale = torch.linspace(0, 1, 64)
        if how == "buffer":
            self.register_buffer("scale", scale, persistent=False)
        else:
            self.scale = [scale] if how == "list" else scale
        self.how = how

    def forward(self, images):
        scale = self.scale[0] if self.how == "list" else self.scale
        return super().forward(images.flatten(1) * scale)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("how", ["attribute", "list"])
def test_constants_in_plain_attributes_are_like_buffers(tmp_path, how, dtype):
    first, second = (
        go(tmp_path / one, {"name": f"{__file__}:Scaled", "how": one}, dtype=dtype, rounds=1)
        for one in ("buffer", how)
    )
    assert torch.equal(first.point["x"], second.point["x"])
    module = mpifed.Config.from_table(second.config).problem.model.module(second.parameters["x"])
    assert module(torch.zeros(1, 1, 8, 8, dtype=getattr(torch, dtype))).dtype == getattr(torch, dtype)


def test_hooks_of_parameters_and_wrappers(tmp_path):
    hooked = f"{__file__}:hooked_weight"
    assert "has another gradient of 'first.weight' when the values" in refusal(hooked)
    net = Net()
    wrapped, plain = prepared(nn.DataParallel(net)), prepared(net)
    assert wrapped.network == plain.network


def hooked_weight():
    net = Net()
    net.first.weight.register_hook(lambda gradient: 0 * gradient)
    return net


def test_frozen_integers_are_constants():
    index = nn.Parameter(torch.arange(6), requires_grad=False)
    assert prepared(Odd(lambda net: net.register_parameter("index", index))).network


class Words(nn.Module):
    """A network that reads pixels as words, by a layer with or without a bag, or by a function."""

    def __init__(self, words, sparse, kind, outputs=1):
        super().__init__()
        layer = nn.EmbeddingBag if kind == "bag" else nn.Embedding
        self.words, self.kind, self.sparse = layer(words, 4, sparse=sparse), kind, sparse
        self.head = nn.Linear(4, outputs)

    def forward(self, images):
        words = (images.flatten(1) * 16).long()
        if self.kind == "function":
            h = nn.functional.embedding(words, self.words.weight, sparse=self.sparse)
        else:
            h = self.words(words)
        return self.head(h if self.kind == "bag" else h.mean(1))


@pytest.mark.parametrize("kind, group", [("layer", 1), ("layer", 2), ("bag", 1), ("function", 1)])
@pytest.mark.parametrize("words", [20, autodiff.LARGE // 4])
def test_sparse_gradients_are_those_of_dense_embeddings(tmp_path, words, kind, group):
    sparse, dense = (
        go(tmp_path / str(one), {"name": f"{__file__}:Words", "words": words, "sparse": one, "kind": kind},
           group=group, rounds=1).point["x"]
        for one in (True, False)
    )  # fmt: skip
    # A row of the embedding is a sum of float32 numbers in another order.
    torch.testing.assert_close(sparse, dense, rtol=1e-5, atol=1e-6)


class PerNorm(Net):
    """A network that divides each sample by its norm, which may be 0."""

    def __init__(self, outputs=2):
        super().__init__(outputs=outputs)

    def forward(self, images):
        rows = images.flatten(1)
        return super().forward(rows / rows.norm(dim=1, keepdim=True))


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("batch_size", [0, 4])
def test_a_row_without_a_gradient_at_the_start_is_named(group, batch_size):
    simulation = zeros("train", group, batch_size)
    with pytest.raises(NonFiniteError, match=r"client 1, .* on row 9 of its data is not finite at the start"):
        for _ in range(20):
            simulation.step()


def zeros(split, group=1, batch_size=0, **run):
    """Return a started simulation with images of which one is 0: of client 1, or of the test split."""
    rng = np.random.default_rng(0)
    images, labels = rng.random((60, 1, 8, 8)), np.arange(60) % 2
    images[29 if split == "train" else 45] = 0

    def data():
        parts = {"train": slice(40), "test": slice(40, 60)}
        return {name: (images[part], labels[part]) for name, part in parts.items()} | {
            "clients": ["a"] * 20 + ["b"] * 20
        }

    problem = Classification(dataset=data, clients=2, partition="natural", model=PerNorm)
    simulation = mpifed.Simulation(
        problem, FedAvg(K=2, eta=0.1), comm=SerialComm(), oracle={"batch_size": batch_size},
        run={"group": group, **run},
    )  # fmt: skip
    simulation.start()
    return simulation


@pytest.mark.parametrize(
    "split, row", [("test", "row 5 of the test split"), ("train", "samples of client 1")]
)
def test_a_metric_that_is_nan_is_reported_once(split, row, capsys):
    simulation = zeros(split, evaluate_on=["clients"])
    for _ in range(2):
        simulation.evaluate(simulation.output)
    text = capsys.readouterr().err
    assert text.count("nan after round 0 in ") == 1 and row in text and "at the starting point" in text


class First(nn.Module):
    """A network whose first function may write to the samples in place."""

    def __init__(self, first):
        super().__init__()
        self.first, self.last = first, nn.Linear(65, 1)

    def forward(self, images):
        rows = images.flatten(1)
        return self.last(torch.cat([rows.sum(1, keepdim=True), self.first(self, rows)], 1))


IN_PLACE = {
    "relu": lambda net, rows: nn.functional.relu(rows, inplace=True),
    "method": lambda net, rows: rows.sub_(0.5),
    "operator": lambda net, rows: rows.__imul__(2),
    "item": lambda net, rows: rows.masked_fill_(rows > 0.5, 0.0),
    "dropout": lambda net, rows: nn.functional.dropout(rows, 0.5, net.training, inplace=True),
    "evaluation": lambda net, rows: rows.add_(0) if not net.training else rows,
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_samples_stay_the_same_if_a_network_writes_to_them(name):
    """Also samples on which the values would not change: the second call of a network gets the same."""
    problem = prepared(First(IN_PLACE[name]))
    x, samples = problem.model.initial(problem.network, generator(0, "x")), problem.client_data(0)[0].double()
    words, before = SampleWords((0, 0), torch.zeros(3, dtype=torch.int64)), samples.clone()
    for training in (False, True):
        with DropoutMode(words) if training else contextlib.nullcontext():
            problem.model(x, samples)
            torch.func.vmap(lambda rows: problem.model(x, rows))(samples[None])
        assert torch.equal(samples, before)


def test_networks_that_do_not_write_to_samples_get_no_copies():
    seen = []
    problem = prepared(First(lambda net, rows: seen.append(rows.data_ptr()) or rows))
    x, samples = problem.model.initial(problem.network, generator(0, "x")), torch.rand(2, 1, 8, 8)
    problem.model(x, samples.double().clone())
    problem.model({name: value.float() for name, value in x.items()}, samples)
    assert seen[-1] == samples.data_ptr()


def test_parameter_name_of_the_problem_is_refused():
    net = Odd(lambda net: setattr(net, "a", nn.Parameter(torch.zeros(1))))
    with pytest.raises(ValueError, match="a parameter 'a', which is also a variable of the problem: rename"):
        prepared(net).variables()


#: Classes and functions as a file has them.
SOURCES = """
import numpy as np
import torch
from torch import nn
from networks import Net

class Drawn(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("frequencies", torch.randn(6))

def other_every_time():
    net = Net()
    nn.init.constant_(net.first.weight, np.random.default_rng().normal())
    return net

def nothing():
    return 3

def initialised_by_numpy():
    net = Net()
    net.first.weight.data = torch.from_numpy(np.random.standard_normal((6, 64)))
    return net

class Positions(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.linspace(0, 1, 6))
        self.register_buffer("turns", torch.exp(1j * self.table.double()), persistent=False)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.first.weight.requires_grad_(False).fill_(0.01)
    def forward(self, images):
        h = self.first(images.flatten(1)) + self.table
        turned = h * self.turns
        return self.scale * self.last(turned.real + turned.imag)

def lazy():
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(6), nn.Tanh(), nn.Linear(6, 1))
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "nets.py"
    path.write_text(SOURCES)
    return path


@pytest.mark.parametrize("name, said", [
    ("Drawn", "the network nets.py:Drawn has 'frequencies', which is random, but not a trained parameter"),
    ("other_every_time",
     "has 'first.weight', which differs between two modules that are created with the same seed"),
    ("nothing", "nets.py:nothing returns a int: expected an nn.Module"),

])  # fmt: skip
def test_unsupported_definitions_in_files_are_refused(file, name, said):
    assert said in refusal(f"{file}:{name}")


def test_initial_parameters_from_the_global_generator_of_numpy(file):
    made = prepared(f"{file}:initialised_by_numpy")
    first, again, other = (made.initial(np.random.default_rng(seed))["x"] for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_buffers_and_frozen_parameters_are_constants(file, dtype):
    problem = prepared(f"{file}:Positions")
    assert list(problem.variables()["x"]) == ["scale", "first.bias", "last.weight", "last.bias", "a", "b"]
    x = problem.variables().unflatten("x", problem.initial(generator(0, "initial"))["x"].to(dtype))
    rows = torch.rand(5, 1, 8, 8, dtype=dtype)
    value = problem.model(x, rows)
    table = torch.linspace(0, 1, 6, dtype=torch.float64).to(dtype)
    h = rows.flatten(1) @ torch.full((64, 6), 0.01, dtype=dtype) + x["first.bias"] + table
    expected = 2 * ((h * (torch.cos(table) + torch.sin(table))) @ x["last.weight"].T + x["last.bias"])
    assert value.dtype == dtype
    # Sums of 64 products, rounded to seven digits in float32.
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["Positions", "lazy"])
@pytest.mark.parametrize("group", [1, 2])
def test_run_and_export_of_modules(tmp_path, file, name, group):
    result = go(tmp_path / "run", f"{file}:{name}", group=group)
    model = mpifed.Config.from_table(result.config).problem.model
    module = model.module(result.parameters["x"])
    problem = prepared(f"{file}:{name}")
    assert not module.training
    found = module(problem._images.test[:5]).detach()
    expected = problem.model(result.parameters["x"], problem._images.test[:5])
    torch.testing.assert_close(found, expected.detach(), rtol=1e-6, atol=1e-6)  # float32


def test_weights_of_another_network_are_refused(file):
    shapes = {"1.weight": (6, 64), "1.bias": (6,), "3.weight": (1, 6)}
    with pytest.raises(ConfigError, match="has the parameter '3.bias', which is not among the weights"):
        prepared(f"{file}:lazy").model.module({name: torch.zeros(shape) for name, shape in shapes.items()})


@pytest.mark.parametrize("model", [f"{FILE}:Branches", {"name": f"{FILE}:Attention", "p": 0.5}])
def test_functions_that_cannot_be_vectorised_are_looped(tmp_path, model):
    message = "run.group = 2 vectorises clients, but their functions cannot be mapped.*set run.group = 1"
    with pytest.raises(CollectiveError, match=message):
        go(tmp_path / "two", model, group=2)
    assert go(tmp_path / "auto", model).stopped == "all 3 rounds done"


def test_run_with_a_module_object_is_resumed_with_its_config(tmp_path):
    net = Net()
    whole = go(tmp_path / "whole", copy.deepcopy(net), rounds=6, reduction="exact")
    go(tmp_path / "parts", copy.deepcopy(net), reduction="exact", checkpoint_every=1)
    with pytest.raises(ConfigError, match="cannot be imported again: continue with its Config"):
        mpifed.resume(tmp_path / "parts", ["rounds=6"], SerialComm())
    with pytest.raises(CollectiveError, match="another job: problem.model.name is .*Net .an instance"):
        go(tmp_path / "parts", Net(), rounds=6, reduction="exact")
    parts = go(tmp_path / "parts", copy.deepcopy(net), rounds=6, reduction="exact")
    assert torch.equal(whole.point["x"], parts.point["x"])


def test_given_module_is_not_changed(tmp_path):
    net = Net().train()
    before = copy.deepcopy(net.state_dict())
    go(tmp_path, net)
    assert net.training and all(torch.equal(net.state_dict()[name], one) for name, one in before.items())


def test_compiled(tmp_path, monkeypatch):
    """The traced graph with torch's own kernels."""
    monkeypatch.setattr(autodiff, "BACKEND", "eager")
    settings = {"group": 2, "reduction": "fused"}
    plain, compiled = (
        go(tmp_path / name, f"{FILE}:dropping", compile=mode, **settings).point["x"]
        for name, mode in (("plain", "none"), ("compiled", "default"))
    )
    # Batched kernels add in other orders: some ulps of float32 after six steps.
    torch.testing.assert_close(plain, compiled, rtol=1e-4, atol=1e-5)
