"""Averages that undo unequal chances of taking part: stored variates, expectations over all cohorts."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from games import completed, configuration, simulated, started

from mpifed import Algorithm, Blocks, Config, Record
from mpifed.algorithms import (
    CODASCA,
    FLRA,
    MIFA,
    SAGDA,
    SCAFFOLD,
    Bi2Clip,
    FedExP,
    FedNormSGDA,
    FedNova,
    FedVARP,
    LocalSGDA,
)
from mpifed.config.job import ConfigError
from mpifed.core.participation import systematic_sample
from mpifed.core.problem import Minimisation
from mpifed.problems import AffineShift

CLIENTS = 4
STEEP = torch.tensor([1.0, 3.0, 0.5, 2.0], dtype=torch.float64)
CENTRES = torch.tensor([[2.0, -1.0], [0.0, 3.0], [-4.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
ROWS = torch.tensor([1.0, 4.0, 2.0, 3.0], dtype=torch.float64)


@dataclass
class Quadratic(Minimisation):
    """f_k(x) = ½ h_k ‖x - a_k‖²; the number of rows of client k is its weight."""

    clients: int = CLIENTS

    def variables(self):
        return Blocks(x={"x": (2,)})

    def client_data(self, k):
        rows = int(ROWS[k])
        return STEEP[k].expand(rows), CENTRES[k].expand(rows, 2)

    def loss(self, x, batch):
        steep, centre = batch
        return steep[0] * ((x["x"] - centre[0]) ** 2).sum() / 2


def solution(weights: str) -> torch.Tensor:
    """The minimiser of the clients' weighted mean."""
    shares = STEEP * (ROWS if weights == "samples" else 1)
    return (shares[:, None] * CENTRES).sum(0) / shares.sum()


def job(method, rounds=1, **participation) -> Config:
    settings = dict(noise=0, batch_size=0, rounds=rounds, sections={"participation": participation})
    return configuration(method, Quadratic(), "unused", **settings)


#: Chances of taking part that differ.
WEIGHTED = {"name": "weighted", "weights": [1, 5, 2, 9], "unbiased": True}
BERNOULLI = {"name": "bernoulli", "probability": [0.3, 0.9, 0.5, 0.7], "unbiased": True}
UNEQUAL = {
    "weighted": {"availability": WEIGHTED, "cohort": 2},
    "bernoulli": {"availability": BERNOULLI},
    "bernoulli, equal": {"availability": BERNOULLI | {"probability": 0.5}},
}
STORED = {
    "SCAFFOLD II": SCAFFOLD(K=2, eta_l=0.15, eta_g=0.5),
    "SCAFFOLD I": SCAFFOLD(K=2, eta_l=0.15, eta_g=0.5, option="I"),
    "SAGDA": SAGDA(K=2, eta_xl=0.15, eta_yl=0.15, eta_xg=0.5, variates="stored"),
    "CODASCA": CODASCA(K=2, eta=0.15, T=10**6, prox=0.0, eta_g=0.5),
}


@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("law", UNEQUAL)
@pytest.mark.parametrize("name", STORED)
def test_stored_variates_converge_to_the_solution(name, law, weights):
    """The server's variate stays the mean of the clients', so that the solution is the fixed point: what is
    left after 200 rounds is rounding."""
    shares = (ROWS if weights == "samples" else torch.ones(CLIENTS, dtype=torch.float64))[:, None]
    config = job(STORED[name], 200, **UNEQUAL[law], weights=weights)
    for r, run in enumerate(simulated(config)):
        if r <= 20:
            mean = (shares * run.clients.cx).sum(0) / shares.sum()
            torch.testing.assert_close(run.shared.cx, mean, rtol=1e-12, atol=1e-12)  # 20 sums of four
    assert (run.shared.x - solution(weights)).norm() < 1e-10


def chances_of_cohorts(chances: np.ndarray) -> dict[tuple[int, ...], float]:
    """Every weighted cohort that can be drawn, with its probability; written out, not estimated."""
    found: dict[tuple[int, ...], float] = {}
    orders = [np.array(order) for order in itertools.permutations(range(CLIENTS))]
    for order in orders:  # the cohort changes where a point crosses the end of an interval
        edges = sorted({0.0, 1.0, *(np.cumsum(chances[order]) % 1)})
        for left, right in itertools.pairwise(edges):
            members = tuple(systematic_sample(chances, order, (left + right) / 2).tolist())
            found[members] = found.get(members, 0.0) + (right - left) / len(orders)
    return found


NORMED = dict(tau=(1, 3, 2, 2), a=0.5, eta_x=0.1, eta_y=0.1, gamma_x=0.05, gamma_y=0.05)
#: Methods with settings for which the step is linear in the average.
LINEAR = {
    "FedNormSGDA": FedNormSGDA(**NORMED),
    "LocalSGDA": LocalSGDA(q=2, eta_x=0.1, eta_y=0.1),
    "Bi2Clip": Bi2Clip(K=2, eta=0.1, u=0.5, d=0.1, u_g=math.inf),
    "FedNova": FedNova(tau=(1, 3, 2, 2), eta=0.1, rho=0.5, tau_eff=2.0),
    "SCAFFOLD II": STORED["SCAFFOLD II"],
}


@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("name", LINEAR)
def test_expected_step_of_weighted_cohorts_equals_full_participation(monkeypatch, name, weights):
    """The mean over all cohorts of the first round; ``tests/identities`` has cohorts of Bernoulli's."""
    law = UNEQUAL["weighted"]

    def after_a_round(members=None, **settings):
        run = started(job(LINEAR[name], **settings, weights=weights))
        drawn = run.rounds.coordinator.participants
        if members is not None:
            monkeypatch.setattr(drawn, "selected", lambda r, number: np.array(members, dtype=int))
        run.step()
        return run.shared.x.clone()

    chances = started(job(LINEAR[name], **law)).rounds.coordinator.participants.probabilities
    cohorts = chances_of_cohorts(np.array(chances))
    assert sum(cohorts.values()) == pytest.approx(1, rel=1e-12)
    expected = sum(chance * after_a_round(one, **law) for one, chance in cohorts.items())
    # A sum of 16 products at most.
    torch.testing.assert_close(expected, after_a_round(), rtol=1e-12, atol=1e-12)


def test_averages_of_one_cohort_in_two_phases_are_refused():
    """SAGDA's variate of a round is an average over the cohort that it corrects."""
    fresh = SAGDA(K=1, eta_xl=0.05, eta_yl=0.05)
    for law in UNEQUAL.values():
        with pytest.raises(ConfigError, match="SAGDA averages over one cohort in several phases .* out, or"):
            Config(algorithm=fresh, problem=Quadratic(), participation=law)
    Config(algorithm=fresh, problem=Quadratic(), participation={"cohort": 2})


@pytest.mark.parametrize("nonlinear, linear, remedy", [
    (dict(u_g=0.1), {}, "set u_g = inf and leave d_g out"),
    (dict(u_g=9.0, d_g=0.1), {}, "set u_g = inf and leave d_g out"),
    ({}, dict(u=0.5), ""),
])  # fmt: skip
def test_bounds_of_the_servers_step_are_refused(nonlinear, linear, remedy):
    """Bounds of gradients act before the average."""
    settings = dict(K=2, eta=0.1, u=math.inf, u_g=math.inf)
    for law in UNEQUAL.values():
        if nonlinear:
            with pytest.raises(ConfigError, match=f"step of Bi2Clip is not unbiased .*: {remedy}, or leave"):
                Config(algorithm=Bi2Clip(**settings | nonlinear), problem=Quadratic(), participation=law)
        Config(algorithm=Bi2Clip(**settings | linear), problem=Quadratic(), participation=law)


@pytest.mark.parametrize("method, reason", [
    (FedNova(tau=(1, 3, 2, 2), eta=0.1), "FedNova is not unbiased .* product of two .* algorithm.tau_eff"),
    (FedExP(K=2, eta=0.1), "FedExP is not unbiased .* product of dependent averages: use another method, or"),
])  # fmt: skip
def test_products_of_averages_are_refused(method, reason):
    for law in UNEQUAL.values():
        with pytest.raises(ConfigError, match=reason):
            Config(algorithm=method, problem=Quadratic(), participation=law)
    Config(algorithm=method, problem=Quadratic(), participation={"cohort": 2})


def test_clients_with_blocks_of_their_own_are_accepted():
    """FLRA's clients store a block of the problem, y."""
    problem = AffineShift(clients=4, dataset="digits", model="mlp")
    for law in UNEQUAL.values():
        Config(algorithm=FLRA(tau=2, eta_1=0.01, eta_2=0.01), problem=problem, participation=law)


def test_stored_fields_without_declared_changes_are_refused(tmp_path):
    """For a user-defined method that stores a variate, unbiased averages would weight its change by 1/π."""

    @dataclass(frozen=True)
    class Stores(Algorithm):
        shared = Record(x="x", c="x")
        client = Record(c="x")
        message = Record(x="x", dc="x")

        def client_round(self, now, shared, client, message, oracle):
            message.x, message.dc = shared.x, -client.c

        def server_round(self, now, shared, mean):
            shared.x = mean.x

    for law in UNEQUAL.values():
        with pytest.raises(ConfigError, match=r"clients of Stores store c, and.*dc = mpifed.stored\(\"x\"\)"):
            Config(algorithm=Stores(), problem=Quadratic(), participation=law)
    Config(algorithm=Stores(), problem=Quadratic(), participation={"cohort": 2})
    everyone = {"availability": BERNOULLI | {"probability": 1}}
    Config(algorithm=Stores(), problem=Quadratic(), participation=everyone)


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_memories_of_all_clients(weights):
    """Unbiased averages do not change MIFA's mean of all memories; FedVARP also averages over the cohort."""
    law, points = {**UNEQUAL["weighted"], "weights": weights}, []
    for unbiased in (True, False):
        law["availability"] = {**law["availability"], "unbiased": unbiased}
        points.append(completed(job(MIFA(K=2, eta=0.05), 5, **law)).point())
    torch.testing.assert_close(*points, rtol=1e-13, atol=0)  # rounding of the factors
    with pytest.raises(ConfigError, match="clients of FedVARP store memory"):
        Config(algorithm=FedVARP(K=2, eta=0.05), problem=Quadratic(), participation=UNEQUAL["weighted"])
