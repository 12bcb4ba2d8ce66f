"""Repeated phases, new cohorts, fields within a round; analytic operators and compositions."""

from __future__ import annotations

from dataclasses import dataclass, field

import drawn
import numpy as np
import pytest
import torch
from baselines import gradient_at
from fields import DX as WIDTH
from fields import Chain, P
from games import DX, DY, Game, configuration, sizes, start_of, started, trace

from mpifed import Algorithm, Blocks, Composition, Operator, Phase, Record
from mpifed.algorithms import LESGD, LSGD, MFCGD, AdaMFCGD, LocalDualExtrapolation
from mpifed.core.noise import Gaussian
from mpifed.core.records import within_round

#: Only rounding: about a hundred operations per round on numbers of about 1, and no amplification by rounds.
ROUNDING = 1e-12
CLIENTS = 5

groups = pytest.mark.parametrize("group", [1, 2, "all"])
cohorts = pytest.mark.parametrize("cohort", [None, 2])


@dataclass(frozen=True)
class Repeated(Algorithm):
    """T descent steps in x per round, all by the same phase, then one ascent step in y."""

    T: int

    shared = Record(x="x", y="y")

    @property
    def phases(self):
        return (Phase(self.descend, Record(x="x")),) * self.T + (Phase(self.ascend, Record(y="y")),)

    def descend(self, now, shared, client, message, oracle):
        message.x = shared.x - 0.1 * oracle.grad(shared.x, shared.y, oracle.sample())[0]

    def ascend(self, now, shared, client, message, oracle):
        message.y = shared.y + 0.1 * oracle.grad(shared.x, shared.y, oracle.sample())[1]


@groups
@cohorts
@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("T", [1, 2, 3])
def test_a_repeated_phase(tmp_path, T, weights, cohort, group):
    game = Game(clients=CLIENTS)
    config = configuration(Repeated(T), game, tmp_path, cohort=cohort, weights=weights, group=group)
    path, _ = trace(config)
    grad = gradient_at(game, 1, 2, Gaussian(scale=0.3))
    (x, y), expected = start_of(game, 1), []
    weight = sizes(game) if weights == "samples" else np.ones(CLIENTS)
    for r in (1, 2, 3):
        members = drawn.cohort(1, r, CLIENTS, cohort or CLIENTS)
        share = weight[members] / weight[members].sum()
        for j in range(T):
            x = x - 0.1 * sum(w * grad(k, x, y, (r, j))[0] for w, k in zip(share, members))
        y = y + 0.1 * sum(w * grad(k, x, y, (r, T))[1] for w, k in zip(share, members))
        expected.append(torch.cat([x, y]).numpy())
    np.testing.assert_allclose(path, expected, rtol=ROUNDING, atol=ROUNDING)


@dataclass(frozen=True)
class Recording(Algorithm):
    """Records the values that clients find in a field within a round, in phases of two cohorts."""

    seen: list = field(default_factory=list)

    shared = Record(x="x", y="y")
    client = Record(note=within_round("x"), rounds="scalar")

    @property
    def phases(self):
        message = Record(x="x")
        return (
            Phase(self.look("first"), message),
            Phase(self.look("later"), message),
            Phase(self.look("fresh"), message, new_cohort=True),
            Phase(self.look("after"), message),
        )

    def look(self, where):
        def client(now, shared, client, message, oracle):
            for k, note in zip(oracle.client.tolist(), client.note):
                self.seen.append((now.round, where, k, note.tolist()))
            client.note = client.note + 1 + torch.from_numpy(oracle.client)[:, None].double()
            client.rounds += 1
            message.x = shared.x.expand_as(client.note)

        return client


@groups
@pytest.mark.parametrize("cohort", [None, 3, 1])
def test_fields_within_a_round_start_at_zero_for_every_cohort(tmp_path, cohort, group):
    """Also for a new cohort of all clients, and for clients of the previous cohort."""
    config = configuration(Recording(), Game(clients=CLIENTS), tmp_path, cohort=cohort, group=group)
    simulation = started(config, 3)
    assert "note" not in simulation.clients and "rounds" in simulation.clients
    seen = {where: set() for where in ("first", "later", "fresh", "after")}
    for r, where, k, note in simulation.config.algorithm.seen:
        seen[where].add((r, k))
        assert note == [k + 1.0 if where in ("later", "after") else 0.0] * DX
    assert seen["first"] == seen["later"] and seen["fresh"] == seen["after"]
    assert len(seen["first"]) == 3 * (cohort or CLIENTS)
    if cohort == 3:
        assert seen["first"] != seen["fresh"] and seen["first"] & seen["fresh"]
    visits = 4 * 3 * (cohort or CLIENTS)
    assert simulation.clients.rounds.sum() == visits  # both cohorts' other fields persist


@dataclass
class Analytic(Composition):
    """The composition with analytic Jacobian and outer gradient, without ``outer``."""

    clients: int = 3

    inner_size = P
    prepare, variables, initial = Chain.prepare, Chain.variables, Chain.initial
    client_data, inner, metrics = Chain.client_data, Chain.inner, Chain.metrics

    def jacobian(self, x, batch):
        B, c = batch
        value = torch.tanh((B @ x.expand(len(B), WIDTH)[:, None, :, None]).squeeze(-1) + c)
        return value.mean(1), ((1 - value**2)[..., None] * B).mean(1)

    def outer_gradient(self, u, batch):
        u = u.expand(len(batch[1]), P)
        return u - batch[1].mean(1) - torch.sin(u) / 2


@dataclass(frozen=True)
class Exact(Algorithm):
    """Gradient descent along ∇g(x)ᵀ∇f(g(x)) on all data of every client."""

    family = "composition"
    shared = Record(x="x")
    message = Record(x="x")

    def client_round(self, now, shared, client, message, oracle):
        value, J = oracle.g_and_jacobian(shared.x, oracle.full_batch)
        torch.testing.assert_close(value, oracle.g(shared.x, oracle.full_batch), rtol=0, atol=1e-14)
        slope = oracle.grad_f(value, oracle.full_batch)
        message.x = shared.x - (slope[:, None] @ J).squeeze(1)


STORM = dict(q=3, gamma=0.05, alpha=0.4, beta=0.3, varrho=0.6)


@pytest.mark.parametrize("method, cohort", [(MFCGD(**STORM), None), (AdaMFCGD(**STORM), None), (Exact(), 2)])
@groups
def test_an_analytic_composition(tmp_path, method, cohort, group):
    settings = dict(cohort=cohort, group=group)
    analytic, automatic = (
        trace(configuration(method, problem(clients=CLIENTS), tmp_path, **settings))[0]
        for problem in (Analytic, Chain)
    )
    np.testing.assert_allclose(analytic, automatic, rtol=ROUNDING, atol=ROUNDING)
    assert np.abs(np.diff(automatic, axis=0)).max() > 1e-2


@dataclass
class Turned(Operator):
    """The operator (∂_x f, -∂_y f) of the game, analytic."""

    clients: int = 3

    def prepare(self, seed, data_dir=None):
        self.game = Game(clients=self.clients)
        self.game.prepare(seed)

    def variables(self):
        return Blocks(z={"z": (DX + DY,)})

    def initial(self, rng):
        point = self.game.initial(rng)
        return {"z": torch.cat([point["x"], point["y"]])}

    def client_data(self, k):
        return self.game.client_data(k)

    def operator(self, z, batch):
        a, c, h, C = batch
        z = z.expand(len(a), DX + DY)
        x, y, h, C = z[:, :DX], z[:, DX:], h[:, :1], C[:, 0]
        ax, cy = torch.einsum("cbd,cd->cb", a, x), torch.einsum("cbd,cd->cb", c, y)
        gx = (
            h * x
            + torch.einsum("cij,cj->ci", C, y)
            + ((ax.tanh() + cy * ax.cos() / 4)[..., None] * a).mean(1)
        )
        gy = torch.einsum("cij,ci->cj", C, x) - y + ((1 + ax.sin() / 4)[..., None] * c).mean(1)
        return torch.cat([gx, -gy], dim=1)


@groups
@pytest.mark.parametrize("method", [LSGD, LESGD, LocalDualExtrapolation])
def test_an_analytic_operator(tmp_path, method, group):
    """Without noise, whose sign in y would differ."""
    analytic, automatic = (
        trace(configuration(method(K=3, eta=0.05), problem, tmp_path, noise=0, group=group))
        for problem in (Turned(clients=CLIENTS), Game(clients=CLIENTS))
    )
    for points, expected in zip(analytic, automatic):  # points and output points
        np.testing.assert_allclose(points, expected, rtol=ROUNDING, atol=ROUNDING)
    assert np.abs(np.diff(automatic[0], axis=0)).max() > 1e-2


def test_records_are_compared_by_their_fields():
    assert Record(x="x", u="y") == Record(x="x", u="y")
    for other in (Record(x="x"), Record(x="x", u="x"), {"x": "x", "u": "y"}, None):
        assert Record(x="x", u="y") != other
