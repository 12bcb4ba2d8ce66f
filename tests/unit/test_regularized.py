"""Regularised problems: the terms in the gradients, their centres, stages, checkpoints and errors."""

import re
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from games import Game, configuration, started, trace

from mpifed import Blocks, Config, Minimisation, run
from mpifed.algorithms import FESSGDA, FGDA, LESGD, LSGD, LocalSGDA
from mpifed.base.errors import ConfigError
from mpifed.parallel.comm import CollectiveError
from mpifed.problems import FiniteMax, Saddle

A, B = 0.7, 0.3


class Terms(Game):
    """The game with a‖x - x_0‖² - b‖y - y_0‖² in its loss."""

    def loss(self, x, y, batch):
        start_x, start_y = self.start
        flat = torch.cat([x["u"], x["v"]])
        terms = A * ((flat - start_x) ** 2).sum() - B * ((y["y"] - start_y) ** 2).sum()
        return super().loss(x, y, batch) + terms

    def initial(self, rng):
        start = super().initial(rng)
        self.start = start["x"], start["y"]
        return start


def regularized(config, **settings):
    return Config.model_validate({**dict(config), "regularize": settings})


@pytest.mark.parametrize("group", [1, 2, "all"])
@pytest.mark.parametrize(
    "method",
    [LocalSGDA(q=3, eta_x=0.05, eta_y=0.05), FGDA(q=3), LESGD(K=3, eta=0.05)],
    ids=lambda m: type(m).__name__,
)
def test_the_terms_equal_those_of_a_loss(method, group, tmp_path):
    """With minibatches and noise, also for a minimax problem solved as a VI."""
    plain, written = (
        configuration(method, one, tmp_path, rounds=4, group=group) for one in (Game(), Terms())
    )
    added, expected = (trace(one)[0] for one in (regularized(plain, x=A, y=B), written))
    np.testing.assert_allclose(added, expected, rtol=1e-12, atol=1e-12)  # sums in another order
    assert np.abs(trace(plain)[0] - added).max() > 1e-3


def simulation(problem, rounds, method=None, **settings):
    method = method or LocalSGDA(q=2, eta_x=0.02, eta_y=0.2)
    config = configuration(method, problem, "unused", rounds=rounds, noise=0.0, batch_size=0)
    return started(regularized(config, **settings))


@pytest.mark.parametrize("method", [None, LESGD(K=2, eta=0.03)], ids=["minimax", "game"])
def test_stages_start_from_the_end_of_the_previous_stage(method):
    """x̃ is x_0, then the x of rounds 3, 6, ...; y_0 does not change; the metrics are those of f."""
    made = simulation(Saddle(d=2, clients=2), 7, method, x=1.0, y=0.5, stage=3)
    first, kept = made.point().clone(), None
    for number in range(1, 8):
        made.step()
        x = made.point()[:2].clone()
        kept = x if number % 3 == 0 else kept
        centres = made._regularizer._state
        whole = centres.centre_z if method else torch.cat([centres.centre_x, centres.centre_y])
        assert torch.equal(whole[:2], first[:2] if kept is None else kept)
        assert torch.equal(whole[2:], first[2:])
    plain = {name: made.evaluate()[name] for name in ("x_error", "y_error")}
    x_star, y_star = made.problem.solution() if method is None else made.problem.problem.solution()
    point = made.point()
    assert plain["x_error"] == pytest.approx(float(torch.dist(point[:2], x_star)))
    assert plain["y_error"] == pytest.approx(float(torch.dist(point[2:], y_star)))


def test_a_run_is_resumed_within_a_stage(tmp_path):
    """Checkpoints contain the centres: bitwise identical with and without interruption."""

    def job(name, rounds):
        config = configuration(
            FESSGDA(K=2, eta_xl=0.05, eta_yl=0.05), FiniteMax(d=3, clients=3), tmp_path / name, rounds=rounds,
            checkpoint_every=1, overwrite=False,
        )  # fmt: skip
        return regularized(config, x=1.0, y=0.1, stage=3)

    whole = run(job("whole", 8))
    for rounds in (4, 5, 8):
        parts = run(job("parts", rounds))
    for block, value in whole.point.items():
        assert torch.equal(value, parts.point[block])


def test_regularisation_is_not_communicated(tmp_path):
    totals = []
    for settings in (None, dict(x=1.0, y=0.5, stage=2)):
        config = configuration(LocalSGDA(q=2, eta_x=0.02, eta_y=0.2), Saddle(d=2, clients=2), tmp_path)
        costs = started(regularized(config, **settings) if settings else config, 5).rounds.costs
        totals.append([costs.bytes_up, costs.bytes_down, costs.oracle_calls])
    assert totals[0] == totals[1]


@pytest.mark.parametrize("changes, error", [
    ({"regularize": {}}, "needs x or y, the weight of a term"),
    ({"regularize": {"y": 1.0, "stage": 3}}, "stage updates the centre of x: it needs the weight x"),
    ({"regularize": {"z": 1.0}}, "[regularize] has no setting 'z'"),
    ({"regularize": {"x": -1.0}}, "regularize.x: "),
    ({"regularize": {"x": 1.0}, "problem": "AffineGame", "algorithm": {"name": "LSGD", "K": 2, "eta": 0.1}},
     "[regularize] is for minimax problems, but AffineGame has the family 'operator'"),
])  # fmt: skip
def test_invalid_settings(changes, error):
    table = {
        "algorithm": {"name": "LocalSGDA", "q": 2, "eta_x": 0.1, "eta_y": 0.1},
        "problem": {"name": "Saddle"},
    }
    with pytest.raises(ConfigError, match=re.escape(error)):
        Config.from_table(table | changes)


def test_the_settings_are_stored(tmp_path):
    config = configuration(LocalSGDA(q=2, eta_x=0.1, eta_y=0.1), Saddle(), tmp_path)
    assert "regularize" not in config.table()
    table = regularized(config, x=1.0, stage=2).table()
    assert table["regularize"] == {"x": 1.0, "y": 0.0, "stage": 2}
    assert Config.from_table(table).table() == table


@dataclass
class Bowl(Minimisation):
    """A problem without y."""

    clients: int = 2

    def variables(self):
        return Blocks(x={"x": (2,)})

    def client_data(self, client):
        return (torch.ones(1, dtype=torch.float64),)

    def loss(self, x, batch):
        return (x["x"] ** 2).sum() * batch[0].mean()


@pytest.mark.parametrize("method", [LocalSGDA(q=2, eta_x=0.1, eta_y=0.1), LSGD(K=2, eta=0.1)])
def test_a_term_in_y_needs_a_block_y(method, tmp_path):
    config = configuration(method, Bowl(), tmp_path)
    started(regularized(config, x=1.0))
    with pytest.raises(CollectiveError, match="the problem has no block y"):
        started(regularized(config, y=1.0))
