"""A client's results do not depend on its position in a group, for functions of torch and networks."""

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from launch import launch
from torch import nn

from mpifed import Blocks, Config, Minimisation, resume, run
from mpifed.algorithms import FedAvg
from mpifed.core.autodiff import ELEMENTWISE, Gradients, position_independent, vectorised
from mpifed.parallel import reproducibility
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.simulation.client_batching import POSITION
from mpifed.simulation.simulation import Simulation

COMM = SerialComm()
CLIENTS = 8
#: Parts of eight clients that are evaluated separately.
PARTS = [(0, 2), (0, 3), (0, 5), (0, 7), (1, 3), (3, 8), (5, 8), (6, 8)]
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def different_parts(function, *arguments):
    """Return the parts whose values or gradients differ from those of the same clients among all eight."""

    def evaluated(first, last):
        rows = [argument[first:last].clone() for argument in arguments]
        leaves = [row.requires_grad_() for row in rows if row.is_floating_point()]
        value = function(*rows)
        gradients = torch.autograd.grad(value.sum(), leaves, allow_unused=True)
        return [value.detach(), *(gradient for gradient in gradients if gradient is not None)]

    whole = evaluated(0, CLIENTS)
    return [
        (first, last)
        for first, last in PARTS
        if not all(map(torch.equal, evaluated(first, last), (rows[first:last] for rows in whole)))
    ]


def numbers(*shape, dtype):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(1))


# Functions of two arguments.
TWO = {"atan2", "arctan2", "logaddexp", "logaddexp2", "hypot", "ldexp", "float_power"}
FUNCTIONS = {
    name: next(getattr(place, name) for place in (torch, F, torch.special) if hasattr(place, name))
    for name in ELEMENTWISE
} | {
    "x^1.5": lambda x: x**1.5,
    "1.5^x": lambda x: 1.5**x,
    "pow": lambda x: torch.pow(x, 0.3),
    "glu": lambda x: F.glu(torch.cat([x, 2 * x])),
    "in place": lambda x: F.elu(x * 1, 1.0, True),
    "method in place": lambda x: (x * 1).sigmoid_(),
    "bce": lambda x: F.binary_cross_entropy_with_logits(x, x.detach()),
    "weighted bce": lambda x: F.binary_cross_entropy_with_logits(
        x, x.detach(), weight=x.detach(), pos_weight=x.detach()[:1], reduction="sum"
    ),
    "transposed": lambda x: torch.sigmoid(x.reshape(-1, 1).expand(-1, 3).T).sum(),
}


@DTYPES
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_do_not_depend_on_the_position(name, dtype):
    """37 elements per client, so that scalar code would compute some elements of a group's last client."""
    function, values = FUNCTIONS[name], (numbers(CLIENTS, 37, dtype=dtype).abs() / 4 + 0.1).clamp(max=0.9)
    arguments = (values, values.flip(0)) if name in TWO else (values,)

    def total(*one):
        return function(*one).double().sum()

    assert different_parts(vectorised(total), *arguments) == []
    analytic = position_independent(lambda *rows: function(*rows))  # with the client axis
    if name not in ("glu", "bce", "weighted bce", "transposed"):
        assert different_parts(analytic, *arguments) == []


@pytest.mark.parametrize("name", [*ELEMENTWISE[2:], "x^1.5", "1.5^x", "in place", "method in place"])
def test_padding_changes_no_value(name):
    """64 elements of float32 need no scalar code, so torch's own result is vectorised."""
    values = (numbers(64, dtype=torch.float32).abs() / 4 + 0.1).clamp(max=0.9)
    arguments = (values, values.flip(0)) if name in TWO else (values,)
    expected = FUNCTIONS[name](*arguments)
    padded = position_independent(FUNCTIONS[name])(*(argument[:37] for argument in arguments))
    assert torch.equal(padded, expected[:37])


@DTYPES
def test_the_sigmoid_equals_that_of_torch(dtype):
    """To |v| + 1 units in the last place: log σ(v) is about v, and its rounding error that of σ(v)."""
    values = torch.linspace(-80, 80, 4001, dtype=dtype)
    values.requires_grad_()
    ours, theirs = position_independent(torch.sigmoid)(values), torch.sigmoid(values)
    allowed = (values.abs() + 1) * torch.finfo(dtype).eps
    assert ((ours - theirs).abs() <= allowed * theirs).all()
    slopes = [torch.autograd.grad(value.sum(), values, retain_graph=True)[0] for value in (ours, theirs)]
    # 1 - σ(v) of torch loses all digits if σ(v) is almost 1.
    assert ((slopes[0] - slopes[1]).abs() <= 2 * allowed * theirs).all()
    forward = torch.func.jacfwd(position_independent(torch.sigmoid))(values.detach()).diag()
    torch.testing.assert_close(forward, slopes[0].detach())


def test_in_place_functions_write_in_place():
    values = numbers(5, dtype=torch.float32)
    expected = F.elu(values)
    kept = values.clone()
    assert position_independent(lambda x: F.elu(x, inplace=True))(kept) is kept
    torch.testing.assert_close(kept, expected)
    torch.testing.assert_close(position_independent(lambda x: x.sigmoid_())(values.clone()), values.sigmoid())


ACTIVATIONS = {
    name: getattr(nn, name)
    for name in nn.modules.activation.__all__
    # Attention is tested below; vmap does not support RReLU; the others need arguments.
    if name
    not in ("MultiheadAttention", "RReLU", "Threshold", "Softmax2d", "Softmax", "Softmin", "LogSoftmax")
} | {
    "Threshold": lambda: nn.Threshold(0.1, 20.0),
    "Softmax": lambda: nn.Softmax(1),
    "Softmin": lambda: nn.Softmin(1),
    "LogSoftmax": lambda: nn.LogSoftmax(1),
    "GELU(tanh)": lambda: nn.GELU("tanh"),
    "ELU in place": lambda: nn.ELU(inplace=True),
}


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads, self.out = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 5)
        self.into = nn.Linear(1, 4)

    def forward(self, x):
        h = self.into(x.unsqueeze(-1))
        return self.out(self.heads(h, h, h, need_weights=False)[0].mean(1))


def network_with(make):
    """A network of odd widths with a layer between its linear layers."""
    width = 18 if make is nn.GLU else 9
    return nn.Sequential(nn.Linear(13, width), make(), nn.Linear(9, 5))


NETWORKS = {name: (lambda make=make: network_with(make)) for name, make in ACTIVATIONS.items()} | {
    "layer norm": lambda: network_with(lambda: nn.LayerNorm(9)),
    "group norm": lambda: network_with(lambda: nn.GroupNorm(3, 9)),
    "attention": Attention,
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 13)), nn.Conv1d(1, 3, 3), nn.SiLU(), nn.Flatten(), nn.Linear(33, 5)
    ),
}  # fmt: skip
LOSSES = {
    "cross entropy": lambda out, labels: F.cross_entropy(out, labels),
    "logistic": lambda out, labels: F.binary_cross_entropy_with_logits(out[:, 0], (labels > 2).to(out.dtype)),
    "auc": lambda out, labels: ((torch.sigmoid(out[:, 0]) - (labels > 2).to(out.dtype)) ** 2).mean(),
    "log exp": lambda out, labels: torch.log1p(torch.exp(-out[:, 0])).mean() + out.logsumexp(1).mean(),
}


@DTYPES
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_networks_of_odd_sizes_do_not_depend_on_the_position(name, dtype):
    torch.manual_seed(1)
    network = NETWORKS[name]().to(dtype)
    names = [name for name, _ in network.named_parameters()]
    points = [
        torch.stack([p.detach() + 0.01 * torch.randn_like(p) for _ in range(CLIENTS)])
        for p in network.parameters()
    ]
    for loss in LOSSES.values():
        for batch in (5, 7):
            samples = numbers(CLIENTS, batch, 13, dtype=dtype)
            labels = torch.arange(CLIENTS * batch).reshape(CLIENTS, batch) % 5

            def evaluated(*arguments, loss=loss):
                *weights, x, y = arguments
                return loss(torch.func.functional_call(network, dict(zip(names, weights)), (x,)), y)

            assert different_parts(vectorised(evaluated), *points, samples, labels) == []


@pytest.mark.parametrize("capability", ["avx2", "default"])
def test_other_instruction_sets(capability, monkeypatch, tmp_path):
    """Torch reads the instruction set when it is imported."""
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", capability)
    tests = ["-k", "test_functions or test_networks", __file__, f"--basetemp={tmp_path / 'files'}"]
    code, output = launch(0, ["-m", "pytest", *tests], limit=300)
    assert code == 0 and " passed" in output, output


@pytest.mark.parametrize("before", ["import torch, mpifed", "import mpifed, torch"])
def test_products_do_not_depend_on_alignment_for_either_order_of_imports(before, monkeypatch):
    monkeypatch.delenv("MKL_CBWR", raising=False)
    program = f"{before}\nfrom mpifed.parallel.reproducibility import _products_depend_on_alignment as depend"
    program += "\nprint(depend())"
    assert launch(0, ["-c", program]) == (0, "False\n")


def test_products_that_depend_on_alignment_are_rejected_for_exact(monkeypatch):
    monkeypatch.setattr(reproducibility, "_products_depend_on_alignment", lambda: True)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    with pytest.raises(CollectiveError, match="MKL_CBWR.*import mpifed before .*or set run.reduction"):
        Simulation.from_settings(job(Logistic()), COMM)
    Simulation.from_settings(job(Logistic(), reduction="fused"), COMM)


def _hidden_sigmoid(x):
    """A sigmoid called as by torch's C++ code, which Python's modes do not intercept."""
    with torch._C.DisableTorchFunction():
        return torch.sigmoid(x)


@dataclass
class Logistic(Minimisation):
    """Logistic regression with 7 rows per client; ``hidden`` uses a sigmoid that cannot be replaced."""

    clients: int = 40
    hidden: bool = True
    analytic: bool = False

    def variables(self):
        return Blocks(x={"w": (13,)})

    def client_data(self, k):
        rows = numbers(7, 13, dtype=torch.float64) + 0.1 * k
        return rows, (rows[:, 0] > 0.1 * k).double()

    def _probabilities(self, scores):
        return (_hidden_sigmoid if self.hidden else torch.sigmoid)(scores)

    def loss(self, x, batch):
        return ((self._probabilities(batch[0] @ x["w"]) - batch[1]) ** 2).mean()

    @property
    def gradients(self):
        return self._gradients if self.analytic else None

    def _gradients(self, x, batch):
        rows, labels = batch
        errors = self._probabilities((rows @ x.unsqueeze(-1)).squeeze(-1)) - labels
        return (errors.unsqueeze(-2) @ rows).squeeze(-2)


def job(problem, method=None, folder="unused", **settings):
    return Config(
        algorithm=method or FedAvg(K=2, eta=0.5),
        problem=problem,
        rounds=2,
        oracle={"batch_size": 7},
        run={"progress": False, "out": str(folder), "dtype": "float32", "reduction": "exact", **settings},
    )


@pytest.mark.parametrize("group", ["auto", 8, "all"])
@pytest.mark.parametrize("analytic", [False, True])
@pytest.mark.parametrize("hidden", [False, True])
def test_clients_are_looped_over_if_results_depend_on_the_position(hidden, analytic, group):
    depends = hidden and torch.backends.cpu.get_cpu_capability() != "DEFAULT"
    problem = Logistic(hidden=hidden, analytic=analytic)
    choice = Simulation.from_settings(job(problem, group=group), COMM).rounds.choice
    assert (choice.group == 1) == depends and (POSITION in choice.note) == depends
    fused = job(problem, group=4, reduction="fused")
    assert Simulation.from_settings(fused, COMM).rounds.choice.group == 4


def test_a_run_that_loops_over_clients_instead_of_groups_is_continued(tmp_path):
    """The group of the job is compared with the stored run and its checkpoints, not the loop."""
    settings = job(Logistic(), folder=tmp_path / "run", group="all", checkpoint_every=1)
    ended = run(settings, COMM)
    assert torch.equal(run(settings, COMM).point["x"], ended.point["x"])
    assert run(settings.model_copy(update={"rounds": 3}), COMM).costs["round"][-1] == 3
    assert resume(tmp_path / "run", ["rounds=4"], COMM).costs["round"][-1] == 4


@DTYPES
@pytest.mark.parametrize("function", [torch.sigmoid, F.logsigmoid, F.softplus, torch.tanh])
def test_products_with_second_derivatives(dtype, function):
    """Torch computes second derivatives of some functions with the sigmoid."""
    size, clients = 5, 37  # 5 elements per client leave parts of a register
    blocks = Blocks(x={"x": (size,)}, y={"y": (size,)})
    products = Gradients(lambda x, y, batch: function(y["y"] * x["x"]).sum(), blocks)
    x, y, v = numbers(3, clients, size, dtype=dtype)
    whole = products.products((x, y), v, (), clients)
    for n in range(clients):
        rows = slice(n, n + 1)
        assert torch.equal(products.products((x[rows], y[rows]), v[rows], (), 1), whole[rows])
