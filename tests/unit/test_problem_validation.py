"""Validation of user-defined problems: the message of each error."""

from __future__ import annotations

import inspect
import textwrap
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch

from mpifed.algorithms import LSGD, SCAFFOLD, LocalDualExtrapolation, ProxSkipLSVRGDAFL
from mpifed.base.errors import ContractError
from mpifed.core.device import as_tensor
from mpifed.core.problem import Composition, Minimax, Minimisation, Operator, as_family
from mpifed.core.records import Blocks
from mpifed.core.sampling import Sampler
from mpifed.core.sets import L1, Ball, Sets
from mpifed.core.streams import generator
from mpifed.core.validation import check_problem


class Data:
    """Five rows of four numbers."""

    def client_data(self, client):
        return (torch.arange(20.0, dtype=torch.float64).reshape(5, 4) / 20 + client,)


@dataclass
class Both(Data, Minimax):
    """A valid problem: a loss of x and y."""

    clients: int = 3

    def variables(self):
        return Blocks(x={"w": (2, 2)}, y={"v": (3,)})

    def initial(self, rng):
        return {"y": torch.ones(3)}

    def loss(self, x, y, batch):
        return (batch[0] @ x["w"].flatten()).mean() * y["v"].sum() - (y["v"] ** 2).sum()


@dataclass
class Analytic(Data, Minimax):
    """A valid problem: analytic gradients."""

    clients: int = 3

    def variables(self):
        return Blocks(x={"w": (4,)}, y={"v": (4,)})

    def gradients(self, x, y, batch):
        mean = batch[0].mean(1)
        return mean + x * y, mean - y


@dataclass
class Plain(Data, Minimisation):
    """A valid problem: a loss of x."""

    clients: int = 1

    def variables(self):
        return Blocks(x={"w": (4,)})

    def loss(self, x, batch):
        return ((batch[0] @ x["w"]) ** 2).mean()


@dataclass
class Field(Data, Operator):
    """A valid problem: an operator."""

    clients: int = 2

    def variables(self):
        return Blocks(z={"z": (4,)})

    def operator(self, z, batch):
        return z + batch[0].mean(1)


@dataclass
class Chain(Data, Composition):
    """A valid problem: a composition, differentiated by autograd."""

    clients: int = 2
    inner_size = 2

    def variables(self):
        return Blocks(x={"w": (4,)})

    def inner(self, x, batch):
        return torch.stack([batch[0].mean(0) @ x["w"], x["w"].sum()])

    def outer(self, u, batch):
        return (u**2).sum() * batch[0].mean()


@dataclass
class Drawn(Minimax):
    """Sound: a problem that generates samples."""

    clients: int = 3

    def variables(self):
        return Blocks(x={"w": (1,)}, y={"v": (1,)})

    def draw(self, stream, size):
        return (stream.normal(size),)

    def loss(self, x, y, batch):
        return (x["w"] * y["v"] * batch[0]).sum()


def errors(cls, settings=None, **changes) -> list[str]:
    """Return the messages about a class with some members changed."""
    with pytest.raises(ContractError) as caught:
        check_problem(type(cls.__name__, (cls,), changes)(), **(settings or {}))
    return str(caught.value).splitlines()


@pytest.mark.parametrize("cls", [Both, Analytic, Plain, Field, Chain, Drawn])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_valid_problems(cls, dtype):
    check_problem(cls(), dtype=dtype, batch_size=3)
    if cls is not Drawn:
        check_problem(cls(), dtype=dtype, batch_size=0)


def test_valid_analytic_derivatives():
    def jacobian(self, x, batch):
        rows = batch[0].mean(1)
        J = torch.stack([rows, torch.ones_like(rows)], dim=1)
        return (J @ x.unsqueeze(-1)).squeeze(-1), J

    def outer_gradient(self, u, batch):
        return 2 * u * batch[0].mean((1, 2)).unsqueeze(-1)

    cls = type("Chain", (Chain,), {"jacobian": jacobian, "outer_gradient": outer_gradient})
    check_problem(cls())


MISSING = [
    (Both, dict(loss=Minimax.loss), "must define loss() or gradients()"),
    (Plain, dict(loss=Minimisation.loss), "must define loss() or gradients()"),
    (Field, dict(operator=Operator.operator), "must define operator()"),
    (Chain, dict(inner=Composition.inner), "must define inner()"),
    (Chain, dict(outer=Composition.outer), "must define outer() or outer_gradient()"),
    (Both, dict(test_rows=3), "sets test_rows = 3, so it must define predict()"),
    (Both, dict(variables=Minimax.variables), "must define variables()"),
]


DECLARED = [
    (Both, {"x": (4,)}, "variables() must return Blocks(x=..., y=...) or Blocks(x=...), got {'x': (4,)}"),
    (Both, Blocks(w={"w": (4,)}), "variables() must return Blocks(x=..., y=...) or Blocks(x=...), got"),
    (Both, Blocks(y={"v": (3,)}, x={"w": (4,)}), "must return Blocks(x=..., y=...) or Blocks(x=...), got"),
    (Plain, Blocks(x={"w": (4,)}, y={"v": (1,)}), "variables() must return Blocks(x=...), got"),
    (Field, Blocks(x={"z": (4,)}), "variables() must return Blocks(z=...), got"),
    (Both, Blocks(x={"w": (2, 2)}, y={}), "block 'y' of variables() has no elements"),
    (Plain, Blocks(x={"a/w": (4,)}), "variables() has a parameter 'a/w' in 'x': expected text without /"),
    (Plain, Blocks(x={"": (4,)}), "variables() has a parameter '' in 'x': expected text"),
    (Plain, Blocks(x={3: (4,)}), "variables() has a parameter 3 in 'x': expected text"),
]


STARTS = [
    ({"y": torch.ones(4)}, "initial() returns shape [4] for block 'y', expected 3 elements"),
    ({"y": torch.ones(1)}, "initial() returns shape [1] for block 'y', expected 3 elements"),
    ({"v": torch.ones(3)}, "initial() has 'v', which is not a block"),
    ({"y": torch.full((3,), torch.nan)}, "initial() returns values for block 'y' that are not finite"),
    ({"y": {"v": torch.ones(3)}}, "initial() returns a dictionary for block 'y': expected one flat tensor"),
    ([torch.ones(3)], "initial() must return a dictionary with a flat tensor per block, got list"),
]


LOSSES = [
    (lambda s, x, y, b: b[0] @ x["w"].flatten(), "loss() has the shape [1], expected a scalar"),
    (lambda s, x, y, b: 1.0, "loss() returned a float, expected a tensor"),
]
POINT = "of gradients() for 1 client at a point of shape"
GRADIENTS = [
    (lambda s, x, y, b: (b[0].mean((0, 1)), b[0].mean(1)), f"gx {POINT} [1, 4], [1, 4] has the shape [4], "),
    (lambda s, x, y, b: (b[0].mean(1), y), f"gy {POINT} [4], [4] has the shape [4], expected [1, 4]"),
    (lambda s, x, y, b: (x + b[0].mean(1), (y + b[0].mean(1))[:1]), "the shape [1, 4], expected [2, 4]"),
    (lambda s, x, y, b: b[0].mean(1), "must return 2 tensors, (gx, gy), got one of"),
    (lambda s, x, y, b: (b[0].mean(1).float(), b[0].mean(1)), f"gx {POINT} [1, 4], [1, 4] is torch.float32"),
]
OPERATORS = [
    (lambda s, z, b: b[0].mean((0, 1)), "operator() for 1 client at a point of shape [1, 4]"),
    (lambda s, z, b: (z + b[0].mean(1)).float(), "is torch.float32, expected torch.float64"),
]
COMPOSITIONS = [
    (dict(inner=lambda s, x, b: x["w"]), "inner() has the shape [4], expected [2] (inner_size)"),
    (dict(outer=lambda s, u, b: u), "outer() has the shape [2], expected a scalar"),
    (dict(jacobian=lambda s, x, b: b[0]), "jacobian() must return 2 tensors, (u, J), got one of shape"),
    (dict(jacobian=lambda s, x, b: (b[0].mean(1)[:, :2], b[0][:, :1])), "has the shape [1, 1, 4], expected"),
    (dict(outer_gradient=lambda s, u, b: u[0]), "of shape [1, 2] has the shape [2], expected [1, 2]"),
]


def draw_of_g(self, stream, size):
    """Samples of g as a tuple, and those of f not."""
    return (stream.normal(size, 4),) if stream.of == "g" else stream.normal(size, 4)


OTHERS = [
    (Plain, dict(network={"w": (2, 2)}), "'w' of shape (2, 2), but in block x of variables() it is (4,)"),
    (Plain, dict(network={"W": (2, 2)}), "'W' of shape (2, 2), but in block x of variables() it is None"),
    (Plain, dict(gradients=lambda s, x, b: (x + b[0].mean(1),)), "returned 1 values, expected a tensor"),
    (Both, dict(sets=Sets(z=Ball())), "sets has a set for 'z', which is not a block"),
    (Both, dict(phi=L1()), "a minimax problem has no convex part"),
    (Both, dict(client_data=lambda s, k: (torch.ones(5, 4 + k),)), "client_data(1) has columns with rows of"),
    (Both, dict(full_batch=lambda s, k: (torch.zeros(1),)), "full_batch() without draw()"),
    (Drawn, dict(client_data=Data.client_data), "defines both client_data() and draw()"),
    (Chain, dict(draw=draw_of_g), "defines both client_data() and draw()"),
    (Chain, dict(draw=draw_of_g, client_data=Composition.client_data), "draw() of 'f' must return a tuple"),
]


def returning(value):
    """Return a function that returns ``value`` for all arguments."""
    return lambda *arguments: value


def _in_place(self, x, y, batch):
    y["v"].data.clamp_(-9, 9)  # no value changes
    return batch[0].sum() * x["w"].sum() * y["v"].sum()


def _replaces(self, x, batch):
    x["w"] = 2 * x["w"]
    return (batch[0] @ x["w"]).mean()


def _removes(self, x, batch):
    return (batch[0] @ x.pop("w")).mean()


def _counts(self, x, batch):
    self.calls = getattr(self, "calls", 0) + 1
    return (batch[0] @ x["w"]).mean() + self.calls


def _noisy(self, x, batch):
    return (batch[0] @ x["w"]).mean() * torch.rand(())  # 0 at the start


def _noisy_samples(self, x, batch):
    self.rng = getattr(self, "rng", np.random.default_rng(0))
    return ((batch[0] + torch.from_numpy(self.rng.standard_normal(4))) @ x["w"]).mean()  # 0 at the start


def _clips(self, x, batch):
    values = x["w"].numpy()
    np.clip(values, -0.01, 0.01, out=values)  # no value changes at the start
    return (batch[0] @ x["w"]).mean()


def _scaled(self, x, y, batch):
    self.scale = getattr(self, "scale", batch[0].mean())
    return Both.loss(self, x, y, (batch[0] / self.scale,))


IMPURE = [
    (Plain, dict(loss=_noisy_samples), "loss() draws random numbers or counts its calls"),
    (Plain, dict(loss=_clips), "loss() changes 'w' of x in place"),
    (Both, dict(loss=_scaled), "loss() returns values that depend on more than its arguments: expected no"),
    (Both, dict(loss=_in_place), "loss() changes 'v' of y in place"),
    (Plain, dict(loss=_replaces), "loss() assigns 'w' in the dictionary of the parameters of x"),
    (Plain, dict(loss=_removes), "loss() removes 'w' in the dictionary of the parameters of x"),
    (Plain, dict(loss=_counts), "loss() draws random numbers or counts its calls"),
    (Plain, dict(loss=_noisy), "loss() draws random numbers or counts its calls"),
    (Field, dict(operator=lambda self, z, batch: z.neg_() + batch[0].mean(1)), "operator() changes z in"),
    (Chain, dict(outer=lambda self, u, batch: u.add_(0).sum()), "outer() changes u in place"),
    (Both, dict(sets=Sets(y=lambda v: v.clamp_(0, 9))), "the set of y changes its argument in place"),
    (Field, dict(phi=lambda self, v, weight: v.sub_(0)), "phi changes its argument in place"),
]


def scored(predict):
    """Return members for 40 held-out rows."""
    rows = torch.from_numpy(generator(0, "rows").standard_normal((40, 4)))
    return dict(predict=predict, rows=rows, test_rows=40)


SCORES = [
    (lambda s, x, rows: s.rows[rows].sub_(1) @ x["w"], "other scores when it is called again"),
    (lambda s, x, rows: s.rows[rows] @ x["w"] + s.rows[rows].mean(), "rows 0 and 1 alone"),
    (lambda s, x, rows: s.rows[rows] @ x["w"] * (1 if s.rows[rows].mean() > 0 else -1), "alone"),
    (lambda s, x, rows: s.rows[:4] @ x["w"], "predict(): expected 40 scores, got 4"),
    (lambda s, x, rows: x["w"].sum(), "predict(): expected 40 scores, got one without an axis"),
]
HELD = [
    (torch.ones(5, 4), "client_data(0) must return a tuple of tensors, (rows,) for one, got Tensor"),
    ((torch.ones(5, 4), torch.ones(4)), "at least 1, got shapes [[5, 4], [4]]"),
    ((torch.ones(0, 4),), "client_data(0) must return columns with the same number of rows, at least 1"),
    ((torch.tensor(1.0),), "at least 1, got shapes [[]]"),
]
AUGMENTATIONS = [
    (dict(augment=lambda s, b, words: (b[0][:1],)), "columns of the same shapes, [[5, 4]], got [[1, 4]]"),
    (
        dict(augment=lambda s, b, words: b, gradients=lambda s, x, b: x + b[0].mean(1)),
        "analytic derivatives, which do not use it",
    ),
    (
        dict(augment=lambda s, b, words: (b[0] + 0 * torch.rand(()),)),
        "augment() returns other rows for the same words",
    ),
]
STRATA = [
    (
        dict(strata=lambda s, clients, size: [(np.full(2, 3), 1)]),
        "must divide all rows of each client, [5, 5]",
    ),
    (dict(strata=lambda s, clients, size: [(np.full(2, 5), 3)]), "the rows of a minibatch, 1: got strata of"),
    (dict(strata=lambda s, clients, size: [(np.zeros(2), 1), (np.full(2, 5), 0)]), "from an empty stratum"),
]


INVALID = [
    *MISSING,
    *((cls, dict(variables=returning(blocks)), message) for cls, blocks, message in DECLARED),
    *((Both, dict(initial=returning(start)), message) for start, message in STARTS),
    *((Both, dict(loss=loss), message) for loss, message in LOSSES),
    *((Analytic, dict(gradients=gradients), message) for gradients, message in GRADIENTS),
    *((Field, dict(operator=operator), message) for operator, message in OPERATORS),
    *((Chain, changes, message) for changes, message in COMPOSITIONS),
    *OTHERS,
    *IMPURE,
    *((Plain, scored(predict), message) for predict, message in SCORES),
    *((Both, dict(client_data=returning(columns)), message) for columns, message in HELD),
    *((Plain, changes, message) for changes, message in AUGMENTATIONS),
    *((Plain, changes, message) for changes, message in STRATA),
    (Plain, dict(client_data=lambda s, k: (torch.rand(5, 4),)), "client_data(0) returns other rows when it"),
    (Plain, dict(single_row=True), "single_row is true, but client 0 has 5 rows: expected one"),
]


@pytest.mark.parametrize("cls, changes, message", INVALID, ids=[message[:60] for *_, message in INVALID])
def test_invalid_members(cls, changes, message):
    error, *others = errors(cls, **changes)
    assert error.startswith(cls.__name__) and message in error
    assert all("client_data(1)" in other for other in others)  # each client can have errors


def _at_size(size):
    def loss(self, x, batch):
        rows = batch[0].relu_() if len(batch[0]) == size else batch[0].relu()
        return (rows @ x["w"]).square().mean()

    return loss


def _with_view(self, x, y, batch):
    return batch[0].mean(1), batch[0][:, 0]


def _with_constant(self, z, batch):
    self.constant = getattr(self, "constant", torch.ones(2, 4).to(z))
    return self.constant[: batch[0].shape[0]]


@pytest.mark.parametrize(
    "cls, changes, size, found",
    [
        (Plain, dict(loss=_at_size(3)), 3, {"loss"}),
        (Plain, dict(loss=_at_size(3)), 2, set()),
        (Plain, dict(loss=_at_size(5)), 0, {"loss"}),
        (Plain, dict(augment=lambda self, batch, words: (batch[0].neg_(),)), 3, {"augment"}),
        (Chain, dict(inner=lambda self, x, batch: batch[0].abs_().mean(0)[:2] * x["w"][:2]), 1, {"inner"}),
        (Field, dict(operator=lambda self, z, batch: z + batch[0].neg_().mean(1)), 2, {"operator"}),
        (Analytic, dict(gradients=_with_view), 2, {"gradients"}),
        (Field, dict(operator=_with_constant), 2, {"operator"}),
        (Both, {}, 2, set()),
        (Analytic, {}, 2, set()),
    ],
)
def test_functions_that_are_called_on_copies(cls, changes, size, found):
    """A function gets copies if it writes to a batch of the run's size, or returns stored memory."""
    problem = type(cls.__name__, (cls,), changes)()
    check_problem(problem, batch_size=size)
    assert problem.called_on_copies == found


def test_a_function_is_called_eight_times():
    """Twice on the same samples and once with dropout masks, at two points, and twice on other samples."""
    calls = []

    def loss(self, x, batch):
        calls.append(1)
        return (batch[0] @ x["w"]).mean()

    check_problem(type("Plain", (Plain,), dict(loss=loss))(), batch_size=2)
    assert len(calls) == 8


DRAWS = [
    (lambda self, stream, size: stream.normal(size), "a tuple of arrays, (array,) for one, got ndarray"),
    (lambda self, stream, size: (stream.normal(),), "of shape [2, 3], expected [C, count, size, ...]"),
    (lambda self, stream, size: (stream.normal(size).swapaxes(0, 1),), "of shape [3, 2, 4], expected [C, "),
    (lambda self, stream, size: (np.random.rand(2, 3, size),), "draw all random numbers from `stream`"),  # noqa: NPY002
    (lambda self, stream, size: (stream.normal(size) + len(stream.clients),), "on the other clients or on"),
    (lambda self, stream, size: (stream.normal(size) + stream.count,), "or on the number of samples"),
    (lambda self, stream, size: (stream.normal(size), stream.normal(5)), "array 1 of shape [2, 3, 5]"),
]


@pytest.mark.parametrize("draw, message", DRAWS)
def test_draws(draw, message):
    (error,) = errors(Drawn, settings={"batch_size": 4}, draw=draw)
    assert message in error
    if "expected [C" in message:
        assert "C = 2, count = 3, size = 4" in error


@pytest.mark.parametrize("change", [lambda rows: rows[::-1], lambda rows: rows.astype(">f8")])
def test_arrays_of_strides_and_byte_orders_that_torch_does_not_have(change):
    rows = np.arange(20.0).reshape(5, 4)

    def client_data(self, client):
        return (change(rows),)

    def initial(self, rng):
        return {"x": rows[0, ::-1]}

    problem = type("Plain", (Plain,), dict(client_data=client_data, initial=initial))()
    check_problem(problem, batch_size=2)
    sampler = Sampler(
        problem, [0], 0, batch_size=0, noise=None, noise_width=0, dtype=torch.float64, device="cpu"
    )
    assert sampler.data[0].tolist() == change(rows).tolist()


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
def test_unsigned_integers_with_which_torch_does_not_calculate(dtype):
    assert as_tensor(np.arange(3, dtype=dtype)).index_select(0, torch.tensor([2])).tolist() == [2]


def test_weights_by_samples_of_generated_samples():
    (error,) = errors(Drawn, settings={"weights": "samples"})
    assert 'weights = "samples" needs the number of samples per client' in error
    check_problem(type("Drawn", (Drawn,), {"client_size": lambda self, client: 1})(), weights="samples")
    check_problem(Both(), weights="samples")


def test_a_convex_part_that_the_method_ignores():
    class Late(Field):
        def prepare(self, seed, data_dir=None):
            self.phi = L1(lam=0.5)

    problem = Late()
    plain, composite = LSGD(K=2, eta=0.1), LocalDualExtrapolation(K=2, eta=0.1)
    check_problem(problem, plain)
    problem.prepare(0)
    check_problem(problem, composite)
    with pytest.raises(ContractError, match=r"LSGD would ignore its convex part φ = L1\(lam=0.5\)"):
        check_problem(problem, plain)


def test_sets_that_the_method_ignores():
    loose = type("Loose", (LSGD,), {"constrained": False})(K=2, eta=0.1)
    ball = type("InABall", (Field,), {"sets": Sets(z=Ball())})()
    check_problem(Field(), loose)
    check_problem(ball, LSGD(K=2, eta=0.1))
    with pytest.raises(ContractError, match="Loose would ignore its set of z: it needs a method with constr"):
        check_problem(ball, loose)
    with pytest.raises(ContractError, match=r"takes the set of z as φ: expected phi = Indicator\(set=...\)"):
        check_problem(ball, LocalDualExtrapolation(K=2, eta=0.1))


def test_gradients_without_y_are_one_tensor():
    check_problem(type("Plain", (Plain,), {"gradients": lambda s, x, b: x + b[0].mean(1)})())


def test_values_of_another_precision():
    found = errors(Analytic, settings={"dtype": torch.float32}, gradients=_double)
    assert len(found) == 2 and all("is torch.float64, expected torch.float32" in one for one in found)


def _double(self, x, y, batch):
    return tuple(part.double() + batch[0].mean(1).double() for part in (x, y))


def test_a_game_without_y():
    problem = Plain()
    problem.sets = Sets(x=Ball(1.0))
    game = as_family(problem, "operator")
    assert game.variables()["z"] == {"x.w": (4,)} and game.split == (4, 0)
    assert torch.equal(game.initial(np.random.default_rng(0))["z"], torch.zeros(4))
    assert torch.equal(game.sets.z(torch.tensor([0.0, 3.0, 0.0, 4.0])), torch.tensor([0.0, 0.6, 0.0, 0.8]))
    assert game._point({"x.w": torch.ones(4)})[0].keys() == {"w"}


def test_exact_gradients_of_generated_samples():
    """They need full_batch()."""
    (error,) = errors(Drawn, {"batch_size": 0})
    assert "no rows for oracle.batch_size = 0" in error and "1 or more, or define full_batch(client)" in error
    exact = SCAFFOLD(K=1, eta_l=0.1, option="I")
    (error,) = errors(Drawn, {"algorithm": exact})
    assert "SCAFFOLD needs gradients on all data of a client" in error
    assert "set algorithm.option = 'I_sample', or define full_batch(client)" in error
    check_problem(Drawn(), algorithm=SCAFFOLD(K=1, eta_l=0.1, option="I_sample"))

    def full_batch(self, client):
        return (torch.zeros(1),)

    known = type("Known", (Drawn,), {"full_batch": full_batch})
    refreshed = partial(ProxSkipLSVRGDAFL, gamma=0.1, p=0.5)
    (error,) = errors(known, {"algorithm": refreshed()})  # known values at a reference point, but no rows
    assert "uses the number of rows of a client, but draw() generates samples: set algorithm.q" in error
    check_problem(known(), refreshed(q=0.5))
    check_problem(Both(), refreshed())
    check_problem(known(), exact)
    check_problem(known(), exact, batch_size=0)

    error, *_ = errors(known, full_batch=lambda self, k: (torch.zeros(0),))
    assert "full_batch(0) must return columns with the same number of rows" in error


@pytest.mark.parametrize("family", [Minimax, Minimisation, Operator, Composition])
def test_examples_in_docstrings(family):
    known = dict(torch=torch, dataclass=dataclass, generator=generator, Blocks=Blocks, L1=L1)
    text = textwrap.dedent(inspect.getdoc(family).split("::\n", 1)[1])
    exec(text, known | {family.__name__: family}, made := {})
    (cls,) = made.values()
    assert issubclass(cls, family)
    for dtype in (torch.float32, torch.float64):
        check_problem(cls(), dtype=dtype, batch_size=3)
