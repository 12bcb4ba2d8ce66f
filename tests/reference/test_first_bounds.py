"""MFCGD with bounded initial estimators: ``project_init`` scales u_1 and v_1, hence w_1.

Tolerance 1e-10 in float64: the same few hundred operations of size 1 in another order.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from fields import Chain, reference_chain
from games import configuration, trace

from mpifed.algorithms import MFCGD, AdaMFCGD
from mpifed.core.adaptive import AdaGradNorm
from mpifed.core.noise import Gaussian
from mpifed.core.streams import generator

from . import matrices, mfcgd

SEED, BATCH, NOISE, ROUNDS, CLIENTS = 1, 2, Gaussian(scale=0.3), 3, 3
WEIGHTS = dict(alpha=0.3, beta=0.6, varrho=0.45)


@pytest.mark.parametrize("bounds", [{"C_g": 0.8}, {"C_f": 0.5}, {"C_g": 0.8, "C_f": 0.5}], ids=str)
@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("q", [1, 3])
def test_the_first_estimators_are_bounded_too(tmp_path, monkeypatch, q, adaptive, bounds):
    plain = mfcgd._initial_estimators

    def bounded(*arguments):
        h, u, v = plain(*arguments)
        limits = {"C_g": float("inf"), "C_f": float("inf")} | bounds
        u = [mfcgd._into_ball(value, limits["C_g"]) for value in u]
        return h, u, [mfcgd._into_ball(value, limits["C_f"]) for value in v]

    def expected():
        values = reference_chain(problem, SEED, q, BATCH, NOISE)
        x1 = problem.initial(generator(SEED, "initial"))["x"]
        weights = {name: (lambda t, value=value: value) for name, value in WEIGHTS.items()}
        matrix = (lambda: matrices.AdaGradNorm(0.3)) if adaptive else None
        settings = dict(q=q, rounds=ROUNDS, gamma=0.06, eta=lambda t: 0.9, matrix=matrix)
        path = mfcgd.mfcgd(*values, CLIENTS, x1, **settings, **weights, **bounds)
        return torch.stack(path).numpy()

    common = dict(q=q, gamma=0.06, eta=0.9, project_init=True, **WEIGHTS, **bounds)
    method = AdaMFCGD(**common, matrix=AdaGradNorm(rho=0.3)) if adaptive else MFCGD(**common)
    problem = Chain(clients=CLIENTS)
    config = configuration(method, problem, tmp_path, seed=SEED, rounds=ROUNDS, noise=NOISE.scale)
    path, _ = trace(config)
    free = expected()
    left_alone = config.model_copy(update={"algorithm": replace(method, project_init=False)})
    np.testing.assert_allclose(trace(left_alone)[0], free, rtol=1e-10, atol=1e-10)
    monkeypatch.setattr(mfcgd, "_initial_estimators", bounded)
    np.testing.assert_allclose(path, expected(), rtol=1e-10, atol=1e-10)
    assert np.abs(path - free).max() > 1e-4  # γ times what the bounds cut off
