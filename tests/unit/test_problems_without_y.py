"""Methods on problems without y, and CDMA's full gradients."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from baselines import Beside, Half
from everything import METHODS, method
from games import configuration, trace

from mpifed import Blocks, Minimax
from mpifed.algorithms import ALGORITHMS, CDMAADA, CDMANC, CDMAONE
from mpifed.parallel.comm import CollectiveError

#: Only rounding: about a hundred operations per round on numbers of about 1, and no amplification by rounds.
ROUNDING = 1e-12


#: SLIPPAX's smoothing radius and the entries that MASHA keeps depend on all variables, LocalAdaSEG's step
#: size on y; DRFA is for mixtures.
COUPLED = ("SLIPPAX", "LocalAdaSEG", "MASHA1", "MASHA2", "DRFA")
ALONE = [
    name for name in METHODS if ALGORITHMS[name].family in ("minimax", "operator") and name not in COUPLED
]


@pytest.mark.parametrize("name, group", zip(ALONE, itertools.cycle([1, 2, "all"])))
def test_x_without_y_is_x_with_an_independent_y(tmp_path, name, group):
    """The noise of x is the same, because it precedes the noise of y."""
    settings = dict(rounds=4, group=group)
    alone, beside = (
        trace(configuration(method(name), problem(clients=4), tmp_path, **settings))[0]
        for problem in (Half, Beside)
    )
    assert alone.shape == (4, 3) and np.abs(np.diff(alone, axis=0)).max() > 1e-4
    np.testing.assert_allclose(alone, beside[:, :3], rtol=ROUNDING, atol=ROUNDING)


CDMA = dict(K=2, eta_x=0.01, eta_y=0.01)


@dataclass
class Generated(Minimax):
    """A game with generated samples, which has no exact gradients."""

    clients: int = 3

    def variables(self):
        return Blocks(x={"x": (2,)}, y={"y": (2,)})

    def draw(self, stream, size):
        return (stream.normal(size),)

    def loss(self, x, y, batch):
        return ((x["x"] - y["y"]) * batch[0].mean()).sum() + (x["x"] * y["y"]).sum()


@pytest.mark.parametrize("cls", [CDMAONE, CDMAADA], ids=lambda cls: cls.__name__)
def test_full_gradients_of_generated_samples_need_a_large_batch(tmp_path, cls):
    error = f"Generated: {cls.__name__} needs gradients on all data of a client, .* set algorithm.large_batch"
    with pytest.raises(CollectiveError, match=error):
        trace(configuration(cls(**CDMA), Generated(), tmp_path))
    for algorithm in (cls(**CDMA, large_batch=7), CDMANC(**CDMA)):
        path, _ = trace(configuration(algorithm, Generated(), tmp_path, noise=0))
        assert path.shape == (3, 4)
