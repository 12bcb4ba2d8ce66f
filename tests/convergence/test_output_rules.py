"""The output of a run: the last iterate, the mean over all rounds, or the iterate of a random round."""

from collections import Counter

import h5py
import numpy as np
import pytest
from games import configuration

from mpifed import run
from mpifed.algorithms import LocalSGDA
from mpifed.parallel.comm import SerialComm
from mpifed.problems import Saddle

METHOD = LocalSGDA(q=2, eta_x=0.005, eta_y=0.05)


def output(out, rule, rounds=5, seed=1):
    """Return the output point and the iterates of all rounds."""
    settings = dict(batch_size=0, noise=0.1, seed=seed, rounds=rounds, eval_every=10**6, watchdog=0)
    config = configuration(METHOD, Saddle(d=2, clients=2), out, **settings).model_copy(
        update={"output": rule}
    )
    result = run(config, SerialComm())
    with h5py.File(result.path) as file:
        final = np.concatenate([file["final/x/x"][...], file["final/y/y"][...]])
        iterates = np.concatenate([file["iterates/x"][...], file["iterates/y"][...]], axis=1)
        assert result.metrics == dict(file["final"].attrs)
    point = np.concatenate([result.point["x"].numpy(), result.point["y"].numpy()])
    assert np.array_equal(point, final)
    assert result.metrics["error"] == pytest.approx(np.linalg.norm(point), rel=1e-14)  # the saddle point is 0
    return point, iterates


def test_last(tmp_path):
    point, iterates = output(tmp_path, "last")
    assert np.array_equal(point, iterates[-1])


def test_average_is_the_mean_of_all_rounds(tmp_path):
    point, iterates = output(tmp_path, "average", rounds=30)
    # A running mean of numbers of about 1.
    np.testing.assert_allclose(point, iterates.mean(axis=0), rtol=0, atol=1e-15)
    assert np.abs(point - iterates[-1]).max() > 0.1  # the start is not averaged
    assert len(iterates) == 30


def test_uniform_is_one_of_the_rounds_and_each_is_as_likely(tmp_path):
    rounds, seeds, chosen = 4, 40, Counter()
    for seed in range(seeds):
        point, iterates = output(tmp_path, "uniform", rounds, seed)
        (match,) = np.flatnonzero((iterates == point).all(axis=1))
        chosen[int(match)] += 1
    # 10 expected, with a standard deviation of (40 * 1/4 * 3/4)^(1/2) = 2.7
    assert sorted(chosen) == list(range(rounds))
    assert max(abs(count - seeds / rounds) for count in chosen.values()) < 4 * 2.7, chosen
