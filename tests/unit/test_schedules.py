"""Schedules of step sizes: their values, and that every step size of every method follows its schedule."""

import math

import pytest
import torch
from everything import METHODS, PROBLEMS, fits, problem
from games import completed, configuration, started

from mpifed import ConfigError, ContractError
from mpifed.algorithms import ALGORITHMS, FGDA, SCAFFOLD, FedAvg, LocalMOML
from mpifed.base.settings import as_table, build, settings_of
from mpifed.core.algorithm import local_steps
from mpifed.core.schedules import (
    Constant,
    Cosine,
    Exponential,
    Listed,
    Polynomial,
    Power,
    Step,
    Steps,
    largest,
)

VALUES = {
    "constant": (Constant(0.3), [0.3, 0.3]),
    "power": (Power(scale=2.0, offset=7.0), [1.0]),  # 2 / 8^(1/3)
    "steps": (Steps(value=1.0, boundaries=(2, 4), factor=0.5), [1.0, 1.0, 0.5, 0.5, 0.25]),
    "warm-up": (Constant(2.0, warmup=4), [0.5, 1.0, 1.5, 2.0, 2.0]),
    "warm-up of a power": (Power(scale=6.0, exponent=1.0, warmup=2), [3.0, 3.0, 2.0, 1.5]),
    "warm-up of steps": (Steps(value=4.0, boundaries=(2,), factor=0.5, warmup=4), [1.0, 2.0, 1.5, 2.0, 2.0]),
    "cosine": (Cosine(value=2.0, length=5), [2.0, 1 + math.sqrt(0.5), 1.0, 1 - math.sqrt(0.5), 0.0, 0.0]),
    "exponential": (Exponential(value=2.0, factor=0.5), [2.0, 1.0, 0.5]),
    "warm-up of an exponential": (Exponential(value=2.0, factor=0.5, warmup=2), [1.0, 2.0, 2.0, 1.0, 0.5]),
    "linear": (Polynomial(value=2.0, length=5), [2.0, 1.5, 1.0, 0.5, 0.0, 0.0]),
    "polynomial": (Polynomial(value=2.0, length=4, final=0.2, power=2.0), [2.0, 1.0, 0.4, 0.2, 0.2]),
    "warm-up of a polynomial": (Polynomial(value=4.0, length=5, warmup=2), [2.0, 4.0, 4.0, 2.0, 0.0]),
    "listed": (Listed(values=(0.5, 2.0, 0.0)), [0.5, 2.0, 0.0, 0.0]),
    "warm-up of a list": (Listed(values=(4.0, 1.0), warmup=4), [1.0, 0.5, 0.75, 1.0, 1.0]),
    "both": (Cosine(value=4.0, length=5, final=1.0, warmup=2), [2.0, 4.0, 4.0, 2.5, 1.0, 1.0]),
}


@pytest.mark.parametrize("schedule, values", VALUES.values(), ids=VALUES)
def test_values(schedule, values):
    assert [schedule(t) for t in range(1, len(values) + 1)] == pytest.approx(values, abs=1e-15)


@pytest.mark.parametrize("schedule", [
    *(schedule for schedule, _ in VALUES.values()),
    Power(scale=1.0, offset=20.0, exponent=3.0, warmup=30),
    Steps(value=1.0, boundaries=(3, 5), factor=1.5),
    Steps(value=1.0, boundaries=(3, 5), factor=0.1, warmup=9),
    Polynomial(value=1.0, length=9, final=3.0, power=0.5, warmup=2, per="round"),
    Listed(values=(1.0, 3.0, 2.0, 4.0, 0.5), warmup=3),
    Listed(values=(1.0, 3.0), warmup=7),
])  # fmt: skip
def test_the_largest_value(schedule):
    assert largest(schedule) == max(schedule(t) for t in range(1, 100))


@pytest.mark.parametrize("make, message", [
    (lambda: Cosine(value=1.0, length=3, warmup=2), "expected length > warmup"),
    (lambda: FGDA(q=2, alpha=1.5), "FGDA.alpha: expected a weight of at most 1 at every step, got 1.5"),
    (lambda: SCAFFOLD(K=2, eta_l=0.0), "eta_l: expected a step size above 0 at every step, got 0.0"),
    (lambda: SCAFFOLD(K=2, eta_l=Cosine(value=0.1, length=9)), "eta_l: expected a step size above 0"),
    (lambda: SCAFFOLD(K=2, eta_l=Polynomial(value=0.1, length=9)), "eta_l: expected a step size above 0"),
    (lambda: SCAFFOLD(K=2, eta_l=Listed(values=(0.1, 0.0, 0.1))), "eta_l: expected a step size above 0"),
    (lambda: FedAvg(K=2, eta={"name": "listed", "values": []}), "values: List should have at least 1 item"),
    (lambda: Listed(values=(0.1, -0.2)), "values: expected numbers of at least 0, got -0.2"),
    (lambda: Exponential(value=0.1, factor=1.1), "factor: Input should be less than or equal to 1"),
    (lambda: Constant(0.1, per="epoch"), "per: Input should be 'step' or 'round', got 'epoch'"),
    (lambda: SCAFFOLD(K=2, eta_l={"name": "squared", "c": 1.0}), "'squared' depends on a step size η"),
    (lambda: FedAvg(K=2, eta={"name": "squared", "c": 1.0}), "FedAvg.eta: 'squared' depends on a step size"),
    (lambda: LocalMOML(H=2, eta=0.1, beta={"name": "squared", "c": 1.0}), "LocalMOML.beta: 'squared'"),

    (lambda: FedAvg(K=2, eta="0.1"), "expected a number or a schedule, got '0.1': write 0.1"),
])  # fmt: skip
def test_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_an_exponential_is_never_0():
    """Although 0.5^2000 is 0 in floating point."""
    assert SCAFFOLD(K=2, eta_l=Exponential(value=0.1, factor=0.5)).eta_l(2000) == 0


def test_a_count_of_rounds():
    by_round = Listed(values=(4.0, 1.0), warmup=2, per="round")
    assert [by_round(Step(t, round)) for t, round in ((1, 1), (3, 1), (4, 2), (7, 3))] == [2.0, 2.0, 1.0, 1.0]
    assert [by_round(round) for round in (1, 2, 3)] == [2.0, 1.0, 1.0]  # settings of a round
    table = as_table(by_round)
    assert table == {"name": "listed", "values": [4.0, 1.0], "warmup": 2, "per": "round"}
    assert as_table(FedAvg(K=2, eta=table).eta) == table


def test_squared_needs_a_step_size():
    weight = FGDA(q=2, beta={"name": "squared", "c": 3.0}).beta
    assert weight(1, 0.5) == 0.75 and weight(1, 5.0) == 1.0
    with pytest.raises(ValueError, match="'squared' depends on a step size η"):
        weight(1)


def test_a_job_has_numbers_for_constants_and_warm_ups_that_are_set():
    assert as_table(FedAvg(K=2, eta=0.5))["eta"] == 0.5
    warm = {"name": "constant", "value": 0.5, "warmup": 3}
    assert as_table(FedAvg(K=2, eta=warm))["eta"] == warm
    power = {"name": "power", "scale": 0.5, "offset": 0.0, "exponent": 1.0}
    assert as_table(FedAvg(K=2, eta=power))["eta"] == power


ROUNDS = 3


def path(name, settings) -> torch.Tensor:
    """The point after some rounds, on the first problem that the method solves."""
    where = next(other for other in PROBLEMS if fits(name, other))
    method = build(ALGORITHMS[name], METHODS[name][0] | settings, name)
    return completed(configuration(method, problem(where), "unused", noise=0.1, rounds=ROUNDS)).point()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_step_size_follows_its_schedule(name):
    """A schedule that stays constant gives the bits of the number; one that changes gives another point."""
    cls = ALGORITHMS[name]
    method = build(cls, METHODS[name][0], name)
    numbers = {
        key: getattr(method, key).value
        for key in settings_of(cls)
        if isinstance(getattr(method, key), Constant)
    }
    expected = path(name, {})
    constant = {key: Power(scale=value, exponent=0.0) for key, value in numbers.items()}
    assert torch.equal(path(name, constant), expected)
    for key, value in numbers.items():
        changing = {key: Steps(value=value, boundaries=(1,), factor=0.5)}
        assert not torch.equal(path(name, changing), expected), key


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_step_size_counts_steps_with_their_rounds_or_rounds(name):
    """A schedule with ``per = "round"`` takes any other number for a round."""
    asked = []

    class Asked(Constant):
        def __call__(self, t, eta=None):
            asked.append(t)
            return super().__call__(t, eta)

    method = build(ALGORITHMS[name], METHODS[name][0], name)
    rates = {key: getattr(method, key) for key in settings_of(type(method))}
    path(name, {key: Asked(rate.value) for key, rate in rates.items() if isinstance(rate, Constant)})
    for t in asked:
        assert (math.ceil(t / local_steps(method)) == t.round) if isinstance(t, Step) else t <= ROUNDS
    assert asked or not any(isinstance(rate, Constant) for rate in rates.values())


class Undeclared(FedAvg):
    """FedAvg without its declaration ``steps = "K"``."""

    steps = ""


def test_the_number_of_local_steps_must_be_declared():
    """Otherwise t would grow by 1 per round instead of K."""
    simulation = started(configuration(Undeclared(K=2, eta=0.1), problem("Classification"), "unused"))
    with pytest.raises(ContractError, match=r"now\.step\(2\), but the number of local steps per round is 1"):
        simulation.step()
