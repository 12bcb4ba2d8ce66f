"""Validation of user-defined methods: the message and the exit code of each error."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from everything import METHODS
from games import Game, completed
from pydantic import Field

from mpifed import Algorithm, Config, ConfigError, Phase, Record, hyperparameters
from mpifed.algorithms import ALGORITHMS, FGDA
from mpifed.base.errors import ContractError, PluginError
from mpifed.base.settings import build
from mpifed.cli import errors
from mpifed.core.adaptive import Adam, Matrix, adaptive
from mpifed.core.records import not_sent, within_round
from mpifed.core.validation import called, check_method


@dataclass(frozen=True)
class Valid(Algorithm):
    """Local SGDA. Each of its variants below has one error."""

    K: int = 2
    eta: float = 0.1

    steps = "K"
    shared = Record(x="x", y="y")
    client = Record(c="x")
    message = Record(x="x", y="y")

    def client_round(self, now, shared, client, message, oracle):
        x, y = shared.x, shared.y
        for _ in range(self.K):
            gx, gy = oracle.grad(x, y, oracle.sample())
            x, y = x - self.eta * gx, y + self.eta * gy
        message.x, message.y = x, y


def bad(base: type = Valid, **changes) -> Algorithm:
    """Return a class ``Bad``, derived from ``base`` with some members changed."""
    return dataclass(frozen=True)(type("Bad", (base,), {"__module__": __name__, **changes}))()


def stepping(body) -> Algorithm:
    """Return a method whose client function also calls ``body(shared, client, message, oracle)``."""

    def client_round(self, now, shared, client, message, oracle):
        message.x, message.y = shared.x, shared.y
        body(shared, client, message, oracle)

    return bad(client_round=client_round)


def configuration(method, problem=None, group=1, **settings) -> Config:
    return Config(
        algorithm=method,
        problem=problem or Game(clients=3),
        rounds=2,
        **{"oracle": {"batch_size": 2}} | settings,
        run={"progress": False, "group": group, "dtype": "float64"},
    )


def run(method, problem=None, group=1, **settings) -> None:
    simulation = completed(configuration(method, problem, group, **settings))
    simulation.evaluate(simulation.output)


@pytest.fixture
def screen(monkeypatch, capsys):
    """``screen(start)``: the printed message of the error of ``start()``, with exit code 2."""
    monkeypatch.setattr(errors.signal, "signal", lambda *arguments: None)

    def message(start) -> str:
        with pytest.raises(Exception) as error:
            start()
        assert errors.is_user_error(error.value), error
        with pytest.raises(SystemExit) as end:
            errors.report_and_exit(error.value)
        text = capsys.readouterr().err
        assert end.value.code == 2 and "Traceback" not in text, text
        return text

    return message


@pytest.mark.parametrize("group", [1, 2, "all"])
def test_valid_methods(group):
    run(Valid(), group=group)
    run(stepping(lambda *records: None), group=group)
    run(bad(Adaptive), group=group)


@dataclass(frozen=True)
class Adaptive(Valid):
    """A method with adaptive matrices."""

    matrix: Matrix = Adam()
    shared = Record(x="x", y="y", A=adaptive("x", of="x"), B=adaptive("y", of="y"))


def nothing(self, now, shared, client, message, oracle):
    message.x = message.y = 0.0


def phases(*made):
    """Return a member ``phases`` with these phases."""
    return dict(phases=property(lambda self: tuple(make(self) for make in made)))


def plain(self, **settings) -> Phase:
    return Phase(self.client_round, self.message, **settings)


def unused_field(self) -> Phase:
    return Phase(self.client_round, Record(x="x", dy="y"))


def adapting(**fields):
    """Return members with fields of adaptive matrices."""
    return dict(matrix=Adam(), shared=Record(x="x", y="y", **fields))


PHASES = "Bad.phases must be a tuple of Phase(client_function, message, ...), got "
DECLARED = [
    # records
    (dict(shared={"x": "x"}), "Bad.shared must be a Record, got {'x': 'x'}"),
    (dict(client=None), "Bad.client must be a Record, got None"),
    (dict(message={"x": "x"}), "phase 'round' needs a message, a Record with at least one field, got {'x'"),
    (dict(message=Record()), "phase 'round' needs a message, a Record with at least one field, got Record()"),
    (dict(client=Record(c=not_sent("x"))), "client.c cannot be NotSent(type='x'), which is for shared and"),
    (dict(client=Record(A=adaptive("x", of="x"))), "client.A cannot be Adaptive(block='x', of='x'), which"),
    (dict(shared=Record(x="x", y="y", c=within_round("x"))), "shared.c cannot be WithinRound(type='x')"),
    (dict(message=Record(x="x", y=within_round("y"))), "message.y cannot be WithinRound(type='y'), which"),
    (dict(message=Record(x="x", y=adaptive("y", of="y"))), "message.y cannot be Adaptive(block='y', of='y')"),
    # names
    (dict(steps="q"), "Bad.steps = 'q' must name the integer hyperparameter that counts local steps"),
    (dict(steps="eta"), "Bad.steps = 'eta' must name the integer hyperparameter that counts local steps"),
    (dict(averages={"x": "s", "y": "y"}), "shared.s with the shape of 'x', but there is no such field"),
    (dict(averages={"x": "y", "y": "y"}), "expected shared.y with the shape of 'x', but it is 'y'"),
    (dict(averages={"x": "x"}), "Bad.averages must name the blocks x, y, got x"),
    # phases
    (dict(phases=property(lambda self: plain(self))), PHASES + "Phase("),
    (dict(phases=lambda self: (plain(self),)), PHASES + "<bound method"),  # without @property
    (dict(phases=()), PHASES + "()"),
    (dict(phases=(nothing,)), PHASES + "(<function nothing"),
    (phases(unused_field, unused_field, unused_field), "there is no 'dy' (it has x, y)"),
    (phases(lambda self: Phase(self.client_round)), "Bad.phases failed: TypeError: Phase.__init__() missing"),
    (dict(shared=property(lambda self: 1 / 0)), "Bad.shared failed: ZeroDivisionError: division by zero"),
    (phases(lambda self: Record(buffer="x")), "a record's field cannot be named 'buffer'"),
    # adaptive matrices
    (adapting(A=adaptive("x", of="w")), "Bad.A is computed from the average of 'w', which no message has: x"),
    (adapting(A=adaptive("x", of="x"), B=adaptive("y", of="v")), "Bad.B is computed from the average of 'v'"),
    (adapting(A=adaptive("z", of="x")), "Bad.A is the matrix of 'z', which is no field of `shared` or that"),
    (adapting(A=adaptive("x", of="x")) | dict(matrix="adam"), "hyperparameter `matrix: Matrix`, got 'adam'"),
    (adapting(A=adaptive("x", of="x")) | dict(matrix=None), "hyperparameter `matrix: Matrix`, got None"),
]


@pytest.mark.parametrize("changes, words", DECLARED, ids=[words[:50] for _, words in DECLARED])
def test_declarations(changes, words, screen):
    """The configuration is refused before the problem is prepared."""
    problem = Game(clients=3)
    problem.prepare = pytest.fail
    line, *lines = screen(lambda: configuration(bad(**changes), problem)).rstrip().splitlines()
    assert words in line and all(line.startswith("  ") for line in lines), (line, lines)


@pytest.mark.parametrize("changes", [dict(shared=3, client=4, steps="q"), dict(start=5, phases=())], ids=str)
def test_one_line_per_error(changes):
    with pytest.raises(ConfigError) as error:
        configuration(bad(**changes))
    assert [line.split()[0] for line in str(error.value).splitlines()] == [f"Bad.{name}" for name in changes]


@pytest.mark.parametrize("name", ["buffer", "layout", "rows", "joined", "pop_accesses", "_x"])
def test_reserved_names_of_fields(name):
    with pytest.raises(ContractError, match=f"a record's field cannot be named '{name}'"):
        Record(**{name: "x"})


@pytest.mark.parametrize("kind", [3, None, ("x", 3), ["x"], not_sent(not_sent("x")), torch.zeros(2)])
def test_shapes_of_fields(kind):
    with pytest.raises(ContractError, match="field 'c' of a record: expected the name of a block or a size"):
        Record(c=kind)


def test_hyperparameters_with_reserved_names():
    """In the class, a base class or a mixin, or because ClassVar is missing."""

    class Mixin:
        steps: int = 3

    def derive(*bases, **kinds):
        return type("Bad", bases, {"__annotations__": kinds, "shared": Record(x="x"), "start": 0.0})

    words = "Bad: a hyperparameter cannot be called '{}', which is an attribute of Algorithm"
    with pytest.raises(ContractError, match=words.format("start")):
        derive(Valid, start=float)
    with pytest.raises(ContractError, match=words.format("shared")):
        derive(Algorithm, shared=Record)
    with pytest.raises(ContractError, match=words.format("steps")):
        derive(Mixin, Algorithm)
    with pytest.raises(ContractError, match=words.format("phases")):
        derive(derive(Valid), phases="int")
    derive(Valid, start=ClassVar[float], shared="ClassVar", rate=float)


def test_undecorated_classes(screen):
    class Plain(Algorithm):
        shared = message = Record(x="x", y="y")
        client_round = nothing

    bare = make_dataclass("Bare", [("rho", float, Field(0.1))], bases=(Valid,), frozen=True)
    extended = type("Extended", (hyperparameters(Valid),), {"rho": Field(0.5)})
    for cls, words in (
        (Plain, "Plain must be a dataclass: its fields are its settings"),
        (bare, "Bare.rho has no value: decorate the class with"),
        (extended, "Extended declares the field `rho` but is not decorated"),
    ):
        assert words in screen(lambda cls=cls: configuration(cls()))


RECORDS = [
    (dict(shared=Record(y="y"), message=Record(y="y")), "Bad has no field 'x' in `shared` or `client`, but"),
    (dict(shared=Record(x="y", y="y"), averages={}), "'x' holds a block of Game, so it must have the type"),
    (dict(shared=Record(y="y"), message=Record(y="y"), client=Record(x=within_round("x"))), "got WithinRou"),
]


@pytest.mark.parametrize("changes, words", RECORDS)
def test_records_that_do_not_fit_the_problem(changes, words, screen):
    assert words in screen(lambda: run(bad(**changes)))


def assign(record: str, name: str, value):
    return lambda *records: setattr(records[("shared", "client", "message").index(record)], name, value)


def endless(n):
    return endless(n + 1)


SAMPLE = torch.zeros(3, dtype=torch.float64)
GRAD = "expected oracle.grad(x, y, xi) for a problem with the blocks x, y, got "
CLIENT_ERRORS = [
    (lambda s, c, m, o: c.q, "AttributeError: this record has no field 'q'; it has c"),
    (assign("message", "x", SAMPLE[:2]), "field 'x': expected the shape [C, 3], got [2]"),
    (assign("message", "x", [SAMPLE]), "field 'x': expected a tensor or a number, got a list of 1"),
    (lambda s, c, m, o: s.x.add_(1), "changed shared.x: a client function reads `shared` and never writes"),
    (lambda s, c, m, o: s.y[:1].mul_(2), "changed shared.y: a client function reads `shared` and never"),
    (assign("shared", "x", 1.0), "changed shared.x: a client function reads `shared` and never writes"),
    (lambda s, c, m, o: (o.sample(), o.sample(number=0)), "the samples of a round are either counted, "),
    (lambda s, c, m, o: o.sample(size=0), "oracle.sample(size=0): expected an integer >= 1"),
    (lambda s, c, m, o: o.sample(size=2.5), "oracle.sample(size=2.5): expected an integer >= 1"),
    (lambda s, c, m, o: o.sample(number=-1), "oracle.sample(number=-1): expected an integer >= 0"),
    (lambda s, c, m, o: o.sample(round=1), "oracle.sample(round=1): expected the number of a sample of that"),
    (lambda s, c, m, o: o.sample(of="h"), "oracle.sample(of='h'): expected 'g' or 'f'"),
    (lambda s, c, m, o: o.grad(s.x, o.sample()), f"{GRAD}oracle.grad(Tensor, Sample)"),
    (lambda s, c, m, o: o.grad(s.x, s.y, o.sample), f"{GRAD}oracle.grad(Tensor, Tensor, method)"),
    (lambda s, c, m, o: next(o.steps(-1)), "oracle.steps(tau): expected integers >= 0, got -1"),
    (lambda s, c, m, o: next(o.steps(2.7)), "oracle.steps(tau): expected integers >= 0, got 2.7"),
    (lambda s, c, m, o: next(o.steps([1] * 7)), "oracle.steps(tau): expected one number or [C], one per"),
    (lambda s, c, m, o: 1 / 0, "ZeroDivisionError: division by zero"),
    (lambda s, c, m, o: endless(0), "RecursionError: maximum recursion depth exceeded"),
    (lambda s, c, m, o: int("q"), "ValueError: invalid literal for int()"),
]


@pytest.mark.parametrize("group, C", [(1, 1), ("all", 3)])
@pytest.mark.parametrize("body, words", CLIENT_ERRORS, ids=[words[:50] for _, words in CLIENT_ERRORS])
def test_errors_of_client_functions(body, words, group, C, screen):
    """The message names the function and the lines of the user."""
    text = screen(lambda: run(stepping(body), group=group))
    assert words.replace("[C", f"[{C}") in text and "Bad.client_round" not in text.split("\n", 1)[1], text
    assert "client_round" in text.split("\n")[0] and len(text.splitlines()) < 20, text
    if "changed shared" not in words:
        assert "test_method_validation.py" in text and "in round 1" in text, text


def client(function) -> Algorithm:
    return bad(client_round=function)


def server(body) -> Algorithm:
    """Return a method whose server function also calls ``body(mean)``."""

    def server_round(self, now, shared, mean):
        shared.x, shared.y = mean.x, mean.y
        body(mean)

    return bad(server_round=server_round)


OTHER_ERRORS = [
    # Ranks of a node share the memory of the average.
    (server(lambda mean: mean.x.add_(1)), "server_round changed mean.x: a server function reads `mean` and"),
    (
        server(lambda mean: mean.y[1:].mul_(2)),
        "server_round changed mean.y: a server function reads `mean` and",
    ),
    (
        server(lambda mean: torch.rand(1)),
        "server_round uses a global random generator of Python, NumPy or torch, whose numbers differ",
    ),
    (
        stepping(lambda s, c, m, o: np.random.rand()),  # noqa: NPY002
        "expected now.stream(purpose).normal(size), now.stream(purpose, oracle.client) or oracle.normal",
    ),
    (server(lambda mean: setattr(mean, "y", 1.0)), "server_round changed mean.y: a server function reads"),
    (bad(server_round=lambda self, now, s, mean: (mean.x,)), "returned a tuple: it writes to `shared` and"),
    (client(lambda self, now, s, c, m, o: (yield m.x)), "returned a generator: it fills `message` and"),
    (client(lambda self, now, s, c, m, o: setattr(m, "x", s.x)), "never fills message.y"),
    (client(lambda self, r, s, c, m, o: setattr(m, "x", s.x / (r + 1))), "the first argument is `now`; the"),
    (client(lambda self, now, s, m, o: None), "TypeError: <lambda>() takes 5 positional arguments but"),
]


@pytest.mark.parametrize("group", [1, 2, "all"])
@pytest.mark.parametrize("method, words", OTHER_ERRORS, ids=[words[:50] for _, words in OTHER_ERRORS])
def test_errors_of_a_round(method, words, group, screen):
    assert words in screen(lambda: run(method, group=group))


def test_full_batches_of_generated_samples(screen):
    class Draws(Game):
        def client_data(self, client):
            return ()

        def draw(self, stream, size):
            return (stream.normal(size, 1),)

        def loss(self, x, y, batch):
            return batch[0].mean() * x["v"].sum() * y["y"].sum()

    method = stepping(lambda s, c, m, o: o.grad(s.x, s.y, o.full_batch))
    text = screen(lambda: run(method, Draws(clients=3)))
    assert "Draws generates samples, so it has no oracle.full_batch" in text


@pytest.mark.parametrize("name", METHODS)
def test_errors_of_built_in_methods_have_their_names_in_job_files(name):
    method = build(ALGORITHMS[name], METHODS[name][0], name)
    functions = [method.initialize, *(phase.client for phase in (*method.start, *method.phases))]
    functions += [phase.server for phase in (*method.start, *method.phases) if phase.server]
    assert {called(function).partition(".")[0] for function in functions} == {name}


def test_errors_of_presets_have_their_names():
    method = FGDA(q=2)
    object.__setattr__(method, "steps", "nothing")
    with pytest.raises(ContractError, match=r"^FGDA\.steps = 'nothing' must name"):
        check_method(method)


def raises(error: Exception):
    raise error


CUDA = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total ...")
#: Failing allocations, and the size in the message.
ALLOCATIONS = {
    "python": (lambda: bytearray(2**62), ""),
    "numpy": (lambda: np.zeros(2**50), " for 8.00 PiB"),
    "torch": (lambda: torch.zeros(2**50, dtype=torch.float32), " for 4,503,599,627,370,496 bytes"),
    "cuda": (lambda: raises(CUDA), " for 20.00 GiB"),
}


@pytest.mark.parametrize("allocate, size", ALLOCATIONS.values(), ids=ALLOCATIONS)
def test_out_of_memory(screen, monkeypatch, allocate, size):
    monkeypatch.setenv(errors.RANK_VARIABLES[0], "3")
    monkeypatch.setattr(errors, "RANK_0_DELAY", 0.0)
    text = screen(allocate)
    assert text.startswith(f"mpifed: rank 3 has not enough memory{size}: use more nodes, fewer ranks per")
    assert "oracle.batch_size" in text and text.count("\n") == 2, text


@pytest.mark.parametrize("allocate", [one for one, _ in ALLOCATIONS.values()], ids=ALLOCATIONS)
def test_out_of_memory_in_functions_of_methods(monkeypatch, allocate):
    """The message has the lines of the user only if a user-defined function allocates."""
    monkeypatch.setattr("mpifed.algorithms.fgda.AdaFGDA.client_start", lambda *_: allocate())
    monkeypatch.setattr("mpifed.base.errors.user_frames", lambda error: "")
    with pytest.raises((MemoryError, RuntimeError)) as raised:
        run(FGDA(q=2))
    assert not isinstance(raised.value, PluginError)
    monkeypatch.undo()
    with pytest.raises(PluginError, match=r"^Bad.client_round failed in round 1 for client 0: "):
        run(stepping(lambda *records: allocate()))


def test_other_errors_are_not_explained():
    assert not any(map(errors.is_user_error, (RuntimeError("the dog ate my gradient"), OSError())))
