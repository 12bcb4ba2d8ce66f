"""Compressions of vectors: kept entries, unbiased rounding, contraction, bytes, and invalid settings."""

from __future__ import annotations

import math

import pytest
import torch
from baselines import Half
from everything import METHODS, method
from games import Game, configuration, started
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import compressed

from mpifed import Config
from mpifed.algorithms import ALGORITHMS, LocalAdaSEG, LocalSGDA
from mpifed.config.job import ConfigError
from mpifed.core.algorithm import communicated_fields
from mpifed.core.compression import COMPRESSIONS, QSGD, Message, RandK, TopK
from mpifed.core.streams import generator

NONE = torch.empty(0)
EACH = [TopK(ratio=0.3), RandK(ratio=0.3), QSGD(levels=4)]
#: Numbers whose squares neither vanish nor overflow, many of them equal, some 0.
numbers = st.one_of(st.integers(-3, 3).map(float), st.floats(-100, 100).filter(lambda v: abs(v) > 1e-3))
vectors = st.lists(numbers, min_size=1, max_size=40)


def rows_of(values, dtype=torch.float64) -> torch.Tensor:
    return torch.tensor([values], dtype=dtype)


def draws_of(shape, seed=0) -> torch.Tensor:
    return torch.from_numpy(generator(seed, "rounding").random(shape))


@settings(deadline=None, max_examples=150)
@given(values=vectors, ratio=st.floats(0.001, 1))
def test_top_k_keeps_the_largest_and_first_entries(values, ratio):
    compression = TopK(ratio=ratio)
    kept = max(1, round(ratio * len(values)))
    order = sorted(range(len(values)), key=lambda place: (-abs(values[place]), place))
    expected = [v if place in order[:kept] else 0 for place, v in enumerate(values)]
    for error_feedback in (False, True):
        assert compression(rows_of(values), NONE, error_feedback)[0].tolist() == expected


@settings(deadline=None, max_examples=100)
@given(values=vectors.filter(any), levels=st.integers(1, 300), seed=st.integers(0, 99))
def test_qsgd_agrees_with_the_reference(values, levels, seed):
    """With error feedback divided by 1 + ω, which makes it a contraction."""
    rows, compression = rows_of(values), QSGD(levels=levels)
    draws = draws_of(rows.shape, seed)
    expected, size = compressed.qsgd(rows[0], levels, draws[0].numpy()), len(values)
    omega = min(size / levels**2, math.sqrt(size) / levels)
    # Some operations on numbers of up to 100.
    for error_feedback, scale in ((False, 1), (True, 1 + omega)):
        found = compression(rows, draws, error_feedback)[0]
        torch.testing.assert_close(found, expected / scale, rtol=1e-12, atol=0)


def test_rand_k_keeps_k_entries_and_is_unbiased_or_a_contraction():
    values, count = torch.from_numpy(generator(1, "values").standard_normal(10)), 20_000
    rows, draws, compression = values.expand(count, -1), draws_of((count, 10)), RandK(ratio=0.3)
    sent = compression(rows, draws, False)
    assert ((sent != 0).sum(1) == 3).all()
    torch.testing.assert_close(sent[sent != 0], (rows * (10 / 3))[sent != 0])
    # An entry is kept with probability 0.3; a mean is left by five deviations once in a million seeds.
    deviation = values.abs() * (10 / 3) * math.sqrt(0.3 * 0.7 / count)
    assert (abs(sent.mean(0) - values) <= 5 * deviation).all()
    assert torch.equal(compression(rows, draws, True), torch.where(sent != 0, rows, 0.0))


@pytest.mark.parametrize("levels", [1, 3, 16])
def test_qsgd_is_unbiased_and_of_the_stated_variance(levels):
    values = torch.from_numpy(generator(1, "values").standard_normal(25))
    count, compression = 20_000, QSGD(levels=levels)
    sent = compression(values.expand(count, -1), draws_of((count, 25)), False)
    # A coordinate lies between two levels ‖v‖/s apart, so its standard deviation is at most half of that. Of
    # these 75 means a right one is left by five deviations once in twenty thousand seeds.
    bound = 5 * values.norm() / (2 * levels) / math.sqrt(count)
    assert (abs(sent.mean(0) - values) <= bound).all()
    omega = min(25 / levels**2, 5 / levels)
    assert ((sent - values) ** 2).sum(1).mean() <= omega * (values**2).sum()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("compression", EACH, ids=lambda one: one.choice_name)
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_compressed_rows_do_not_depend_on_other_rows(compression, size, dtype):
    rows = torch.from_numpy(generator(2, "rows").standard_normal((9, size))).to(dtype)
    rows[3] = rows[3].round()  # ties
    draws = draws_of(rows.shape)
    together = compression(rows, draws, True)
    wide = torch.zeros(9, size + 3, dtype=dtype)  # a field of a longer message
    wide[:, 2:-1] = rows
    assert torch.equal(compression(wide[:, 2:-1], draws, True), together)
    for row, draw, wanted in zip(rows, draws, together):
        assert torch.equal(compression(row[None], draw[None], True)[0], wanted)


@pytest.mark.parametrize("compression", EACH, ids=lambda one: one.choice_name)
def test_zero_vectors_stay_zero(compression):
    rows = torch.zeros(2, 5, dtype=torch.float32)
    assert torch.equal(compression(rows, draws_of((2, 5)), True), rows)


@pytest.mark.parametrize("exponent", [-100, -70, 70, 110])
def test_qsgd_of_vectors_whose_squares_overflow_or_underflow(exponent):
    """A power of two is a factor of the result."""
    rows = torch.from_numpy(generator(3, "values").standard_normal((2, 7))).float()
    draws = draws_of(rows.shape)
    expected = torch.ldexp(QSGD(levels=4)(rows, draws, False), torch.tensor(exponent))
    found = QSGD(levels=4)(torch.ldexp(rows, torch.tensor(exponent)), draws, False)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("compression", [TopK(ratio=0.25), TopK(ratio=0.5), QSGD(levels=4)])
def test_nan_is_not_hidden(compression):
    """A method that compresses its message would otherwise send 0 for NaN, and the run would not end."""
    values = torch.tensor([[1.0, math.nan, 3.0, 4.0], [math.nan] * 4], dtype=torch.float64)
    assert compression(values, draws_of(values.shape), False).isnan().any(1).all()


def test_float32_draws_do_not_round_up_what_is_zero():
    rows = torch.tensor([[3.0, 0.0, 4.0]])
    draws = torch.full((1, 3), 1 - 2.0**-53, dtype=torch.float64)  # 1 in float32
    assert QSGD(levels=5)(rows, draws, False).tolist() == [[3.0, 0.0, 4.0]]
    assert QSGD(levels=5)(rows, 1 - draws, False).tolist() == [[3.0, 0.0, 4.0]]


def test_compressed_sizes():
    # 1 in 100 of 5000 float64: 50 values of 8 bytes, 50 places of 4.
    assert TopK(ratio=0.01).bytes(5000, 8) == 50 * 12
    assert TopK(ratio=0.01).bytes(10, 4) == 8  # one at least
    assert TopK(ratio=0.9).bytes(1000, 8) == 8000  # fewer than 900 values with places
    assert TopK(ratio=1).bytes(7, 4) == 28
    assert TopK(ratio=0.1).kept(30) == 3  # 0.1 * 30 is above 3 in floating point
    # 1000 numbers: sign and one of 17 levels in 5 bits each, and the norm.
    assert QSGD(levels=16).bytes(1000, 8) == 8 + 6 * 1000 // 8
    assert QSGD(levels=15).bytes(1000, 4) == 4 + 5 * 1000 // 8
    assert QSGD(levels=1).bytes(3, 4) == 4 + 1
    assert QSGD(levels=16).bytes(1, 8) == 8


#: Methods for problems without y.
WITHOUT_Y = [
    name
    for name in METHODS
    if ALGORITHMS[name].family in ("minimax", "minimisation") and not ALGORITHMS[name].mixture
]
SMALL = {
    "top-k": {"name": "top-k", "ratio": 0.3},
    "rand-k": {"name": "rand-k", "ratio": 0.3},
    "qsgd": {"name": "qsgd", "levels": 2},
}


@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("name", WITHOUT_Y)
def test_every_compression_with_every_method_on_a_problem_without_y(tmp_path, name, compression, feedback):
    """The fields of a message that are of the size of y have no numbers, and cost no bytes."""
    message = Message(compression=SMALL[compression], error_feedback=feedback)
    config = configuration(method(name), Half(clients=3), tmp_path, sections={"message": message})
    simulation = started(config)
    before = simulation.rounds.costs.bytes_up
    simulation.step()
    assert torch.isfinite(simulation.point()).all()
    layouts = [stage.messages.layout for stage in simulation.rounds._stages]
    spans = [layout.span(field) for layout in layouts for field in communicated_fields(layout.record)]
    wanted = 3 * sum(message.compression.bytes(stop - start, 8) for start, stop in spans if stop > start)
    assert simulation.rounds.costs.bytes_up - before == wanted


def job(**message):
    return Config(algorithm=LocalSGDA(q=1, eta_x=0.1, eta_y=0.1), problem=Game(clients=2), message=message)


@pytest.mark.parametrize("settings, expected", [
    (dict(compression="top-k"), "ratio is missing"),
    (dict(compression={"name": "topk", "ratio": 0.1}), "did you mean 'top-k'"),
    (dict(compression={"name": "top-k", "ratio": 0.0}), "greater than 0"),
    (dict(compression={"name": "top-k", "ratio": 1.1}), "less than or equal to 1"),
    (dict(compression={"name": "qsgd", "levels": 0}), "greater than or equal to 1"),
    (dict(compression={"name": "qsgd", "levels": 2.5}), "valid integer"),
    (dict(compression={"name": "qsgd", "bits": 4}), "has no setting 'bits'"),
    (dict(error_feedback=True), "error_feedback has no effect without compression"),
    (dict(compress="qsgd"), "did you mean 'compression'"),
], ids=str)  # fmt: skip
def test_invalid_settings_are_refused(settings, expected):
    with pytest.raises(ConfigError, match=f"(?s){expected}"):
        job(**settings)


def test_section_round_trips_and_is_omitted_without_compression():
    message = {"compression": {"name": "qsgd", "levels": 4}, "error_feedback": True}
    assert job(**message).table()["message"] == message
    assert "message" not in job().table()


def test_a_point_without_steps_is_not_compressed(tmp_path):
    """LocalAdaSEG averages points with weights 1/η; it sends changes, so that the point remains."""
    settings = dict(noise=0, sections={"message": {"compression": {"name": "top-k", "ratio": 0.25}}})
    method = LocalAdaSEG(K=2, G_0=1.0, D=1e-12)
    simulation = started(configuration(method, Game(clients=3), tmp_path, **settings))
    before = simulation.point().clone()
    simulation.step()
    assert before.norm() > 0.1
    torch.testing.assert_close(simulation.point(), before, rtol=0, atol=1e-9)  # steps of 1e-12
