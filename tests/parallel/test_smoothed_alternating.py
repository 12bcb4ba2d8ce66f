"""``SmoothedGDA(alternating=True)`` compared with plain loops: noise, minibatches, sets, weights.

Tolerance 1e-10 in float64 for the reason given in ``test_references``.
"""

import itertools

import numpy as np
import pytest
import torch
from bounded import Bounded
from games import configuration, reference_gradient, sizes, start_of
from reference.smoothed_alternating import smoothed_alternating_gda

from mpifed.algorithms import SmoothedGDA
from mpifed.core.noise import Gaussian
from mpifed.core.sets import Ball, Box
from mpifed.simulation.simulation import Simulation

pytestmark = pytest.mark.mpi

SEED, BATCH, NOISE, ROUNDS = 1, 2, 0.3, 4
RATES = dict(eta_x=0.15, eta_y=0.3)
#: Both sets bind.
SETS = {"x": Box(-0.45, 0.3), "y": Ball(0.1)}


def points(config, comm) -> np.ndarray:
    """Return x, y and z after every round, ``[rounds, 2 dx + dy]``."""
    simulation = Simulation.from_settings(config, comm)
    simulation.start()
    path = []
    for _ in range(config.rounds):
        simulation.step()
        shared = simulation.shared
        path.append(torch.cat([shared.x, shared.y, shared.z]).numpy().copy())
    return np.array(path)


@pytest.mark.parametrize("execution", list(itertools.product([1, "all"], ["fused", "exact"])))
@pytest.mark.parametrize(
    "sets, p, beta, weights",
    [
        ("", 0.0, 0.5, "uniform"),
        ("", 0.7, 0.3, "samples"),
        ("xy", 0.7, 0.3, "uniform"),
        ("x", 2.0, 0.9, "samples"),
    ],
)
def test_alternating(comm, out, execution, sets, p, beta, weights, batch_size=BATCH, noise=NOISE):
    """Without the sets, or with the gradient of y at the old x, the points differ."""
    bound = {block: SETS[block] if block in sets else None for block in "xy"}
    game = Bounded(clients=5, set_x=bound["x"], set_y=bound["y"])
    options = RATES | dict(p=p, beta=beta)
    oracle, run = dict(batch_size=batch_size, noise=noise), dict(zip(("group", "reduction"), execution))
    settings = dict(seed=SEED, rounds=ROUNDS, weights=weights, **oracle, **run)
    path = points(configuration(SmoothedGDA(**options, alternating=True), game, out, **settings), comm)
    simultaneous = points(configuration(SmoothedGDA(**options), game, out, **settings), comm)
    if comm.rank:
        return
    gradient = reference_gradient(game, SEED, 1, batch_size, Gaussian(scale=noise) if noise else None)
    parts = sizes(game).tolist() if weights == "samples" else None

    def expected(project):
        path = smoothed_alternating_gda(
            gradient, 5, *start_of(game, SEED), rounds=ROUNDS, weights=parts, **project, **options
        )
        return np.array([torch.cat(point).numpy() for point in path])

    project = {"project_x": bound["x"], "project_y": bound["y"]}
    np.testing.assert_allclose(path, expected(project), rtol=1e-10, atol=1e-10)
    assert np.abs(path[-1] - simultaneous[-1]).max() > 1e-3
    for block in sets:
        free = expected(project | {f"project_{block}": None})
        assert np.abs(path[-1] - free[-1]).max() > 1e-3, f"the set of {block} does not bind"


@pytest.mark.parametrize("reduction", ["fused", "exact"])
def test_alternating_on_exact_gradients(comm, out, reduction):
    """As in the box, without noise and with all rows; their numbers differ, so clients are looped over."""
    test_alternating(comm, out, (1, reduction), "y", 0.7, 0.3, "uniform", 0, 0)
