"""Mirror maps of the dual methods: closed forms and combinations of maps."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from fields import Field
from games import configuration, simulated
from identity_games import NOISE, ROUNDING, VISIBLE, distance

from mpifed.algorithms import (
    FedDualAvg,
    FeDualEx,
    LocalDualExtrapolation,
)
from mpifed.core.sets import (
    Blockwise,
    Entropy,
    Euclidean,
    Indicator,
    Separable,
    Simplex,
)
from mpifed.core.streams import generator
from mpifed.problems import MatrixGame

SEED = 1


def simulate(method, problem, *, noise=NOISE, rounds=4, **settings):
    """Return the iterates and the outputs after every round, two arrays ``[rounds, d]``."""
    config = configuration(method, problem, "unused", rounds=rounds, seed=SEED, noise=noise, **settings)
    path = [(one.shared.z.clone(), one.output.buffer.clone()) for one in simulated(config)]
    points, outputs = (torch.stack(parts).numpy() for parts in zip(*path[1:]))
    return points, outputs


def gap(left, right) -> float:
    """Return the largest difference of two results of ``simulate``, iterates and outputs together."""
    return max(distance(*pair) for pair in zip(left, right))


@dataclass
class Inside(Field):
    """The field, started inside a simplex of total 3."""

    def initial(self, rng):
        return {"z": torch.tensor([0.3, 0.7, 0.5, 1.5], dtype=torch.float64)}


TWO = Separable({"x": Indicator(Simplex(1.0)), "y": Indicator(Simplex(2.0))}, (2, 2))


@pytest.mark.parametrize(
    "make",
    [
        lambda mirror: LocalDualExtrapolation(K=3, eta=0.2, mirror=mirror),
        lambda mirror: FedDualAvg(K=3, eta_c=0.2, eta_s=0.7, mirror=mirror),
        lambda mirror: FeDualEx(K=3, eta_c=0.2, eta_s=0.7, mirror=mirror),
    ],
    ids=["LDE", "FedDualAvg", "FeDualEx"],
)
@pytest.mark.parametrize("whole", [Euclidean(), Entropy()], ids=["euclidean", "entropy"])
def test_mirror_maps_of_blocks(make, whole):
    """One map in both blocks is that map, bitwise. Entropy stays inside the simplex, projections reach its
    faces."""
    both = Blockwise(x=whole.choice_name, y=whole.choice_name)
    left, right, other = (
        simulate(make(mirror), Inside(phi=TWO), rounds=8) for mirror in (whole, both, Blockwise(y="entropy"))
    )
    assert gap(left, right) == 0 and gap(left, other) > VISIBLE
    np.testing.assert_allclose(left[0][:, :2].sum(1), 1.0, rtol=0, atol=ROUNDING)
    np.testing.assert_allclose(left[0][:, 2:].sum(1), 2.0, rtol=0, atol=ROUNDING)
    assert left[0].min() > 0 if isinstance(whole, Entropy) else left[0].min() == 0


def test_entropy_with_one_client_and_step_is_multiplicative_weights():
    """Mirror-prox in closed form: x_i ∝ x_i exp(-η (Ay)_i), y_j ∝ y_j exp(η (Aᵀx)_j), first to a trial point,
    then from the same weights by the payoffs at the trial."""
    game, eta, rounds = MatrixGame(dx=4, dy=3, clients=1, start="random"), 0.3, 12
    dual, fed = (
        simulate(one, game, noise=None, batch_size=0, rounds=rounds)
        for one in (
            LocalDualExtrapolation(K=1, eta=eta, mirror="entropy"),
            FeDualEx(K=1, eta_c=eta, mirror="entropy"),
        )
    )
    A = game.client_data(0)[0][0].numpy()
    z, trials, ends = game.initial(generator(SEED, "initial"))["z"].numpy(), [], []

    def reweighted(z, at):
        x, y = z[:4] * np.exp(-eta * (A @ at[4:])), z[4:] * np.exp(eta * (A.T @ at[:4]))
        return np.concatenate([x / x.sum(), y / y.sum()])

    for _ in range(rounds):
        trials.append(reweighted(z, z))
        z = reweighted(z, trials[-1])
        ends.append(z)
    averages = np.cumsum(trials, axis=0) / np.arange(1, rounds + 1)[:, None]
    assert gap(fed, (np.array(ends), averages)) < ROUNDING
    assert gap(dual, (np.array(trials), averages)) < ROUNDING
