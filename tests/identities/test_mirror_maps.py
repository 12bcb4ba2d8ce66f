"""The entropic mirror map of the dual methods compared with multiplicative weights in closed form."""

import numpy as np
import pytest
from games import configuration, simulated
from identity_games import ROUNDING, distance

from mpifed.algorithms import FeDualEx, LocalDualExtrapolation
from mpifed.core.streams import generator
from mpifed.problems import MatrixGame

SEED, ETA, ROUNDS = 1, 0.3, 12


@pytest.mark.parametrize("cls", [LocalDualExtrapolation, FeDualEx])
def test_entropy_with_one_client_and_step_is_multiplicative_weights(cls):
    """Mirror-prox in closed form: x_i ∝ x_i exp(-η (Ay)_i), y_j ∝ y_j exp(η (Aᵀx)_j), first to a trial point,
    then from the same weights by the payoffs at the trial. The point of dual extrapolation is the trial."""
    game, dual = MatrixGame(dx=4, dy=3, clients=1, start="random"), cls is LocalDualExtrapolation
    method = cls(K=1, mirror="entropy", **({"eta": ETA} if dual else {"eta_c": ETA}))
    config = configuration(method, game, "unused", rounds=ROUNDS, seed=SEED, noise=None, batch_size=0)
    _, *found = (
        [simulation.shared.z.numpy().copy(), simulation.output.buffer.numpy().copy()]
        for simulation in simulated(config)
    )
    A = game.client_data(0)[0][0].numpy()
    z, trials, expected = game.initial(generator(SEED, "initial"))["z"].numpy(), [], []

    def reweighted(z, at):
        x, y = z[:4] * np.exp(-ETA * (A @ at[4:])), z[4:] * np.exp(ETA * (A.T @ at[:4]))
        return np.concatenate([x / x.sum(), y / y.sum()])

    for _ in range(ROUNDS):
        trials.append(reweighted(z, z))
        z = reweighted(z, trials[-1])
        expected.append([trials[-1] if dual else z, np.mean(trials, axis=0)])
    assert distance(np.array(found), np.array(expected)) < ROUNDING
