"""``exact`` is bitwise identical on every number of ranks, for both locations of the matrices, and resumed
anywhere.

Rank 0 compares each job with a run in one process.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from fields import Chain
from games import Game, configuration
from networks import Attention, Net, Recurrent, convolutional
from resumed import bits
from torch import nn

from mpifed import load, resume, run
from mpifed.algorithms import FGDA, MFCGD, AdaFGDA, LocalSGDA
from mpifed.config.job import Config
from mpifed.parallel.comm import SerialComm, broadcast_text
from mpifed.problems import DeepAUC, Saddle

pytestmark = pytest.mark.mpi
groups = pytest.mark.parametrize("group", [1, 2, "all"])

METHODS = {
    "adam": AdaFGDA(q=3, gamma=0.02, lam=0.02, matrix="adam"),
    "mean_after": AdaFGDA(q=2, gamma=0.02, lam=0.02, matrix="norm", sync_estimator="mean_after"),
    "fgda": FGDA(q=3, gamma=0.02, lam=0.02, sync_estimator="local"),
    "local": LocalSGDA(q=3, eta_x=0.02, eta_y=0.02),
    "mfcgd": MFCGD(q=3),
}


def serial_copy(config: Config, out: str) -> Config:
    return config.model_copy(update={"run": config.run.model_copy(update={"out": out})})


def assert_layout_does_not_matter(config, comm, out):
    result = run(config, comm)
    if comm.rank == 0:
        alone = run(serial_copy(config, f"{out}/serial"), SerialComm())
        np.testing.assert_array_equal(bits(result), bits(alone))
        for name, values in alone.history.items():
            np.testing.assert_array_equal(result.history[name], values, err_msg=name)
        for name in ("oracle_calls", "bytes_up", "bytes_down", "phases"):
            np.testing.assert_array_equal(result.costs[name], alone.costs[name], err_msg=name)


def job(method, problem, out, **settings) -> Config:
    return configuration(METHODS[method], problem, out, reduction="exact", **settings)


@pytest.mark.dealt
@groups
@pytest.mark.parametrize("matrices", ["coordinator", "replicated"])
@pytest.mark.parametrize("method", ["adam", "mean_after", "fgda", "local"])
def test_bitwise_identical_to_one_process(comm, out, method, matrices, group):
    settings = dict(matrices=matrices, group=group, dtype="float32", eval_every=1)
    assert_layout_does_not_matter(job(method, Game(clients=5), out, **settings), comm, out)


@pytest.mark.dealt
@groups
def test_network_and_held_out_metric(comm, out, group):
    partition = {"name": "dirichlet", "alpha": 0.5}
    problem = DeepAUC(dataset="digits", model={"name": "mlp"}, clients=8, partition=partition)
    settings = dict(batch_size=8, noise=None, group=group, dtype="float32", eval_every=1)
    assert_layout_does_not_matter(job("adam", problem, out, **settings), comm, out)


@pytest.mark.dealt
@groups
@pytest.mark.parametrize("cohort, weights", [(1, "uniform"), (3, "samples"), (5, "samples")])
def test_cohorts_and_weights(comm, out, cohort, weights, group):
    settings = dict(rounds=6, cohort=cohort, weights=weights, group=group, dtype="float32")
    assert_layout_does_not_matter(job("local", Game(clients=5), out, **settings), comm, out)


@pytest.mark.dealt
@groups
def test_clipped_gradients(comm, out, group):
    """The norms of some gradients are above the threshold, and their share is the same, too."""
    settings = dict(batch_size=1, group=group, dtype="float32", eval_every=1)
    config = job("local", Saddle(clients=9, d=37), out, **settings)
    oracle = config.oracle.model_copy(update={"clip": 30.0, "clip_over": "all"})
    config = config.model_copy(update={"oracle": oracle})
    assert_layout_does_not_matter(config, comm, out)
    if comm.rank == 0:
        assert 0 < np.nanmin(load(out).history["clipped"]) < 1


CASES = {
    "network": ("adam", DeepAUC(dataset="digits", model="mlp", clients=7), dict(batch_size=8)),
    "cohort of a network": ("local", DeepAUC(dataset="digits", model="mlp", clients=9), dict(cohort=4)),
    "convolutions": ("local", DeepAUC(dataset="digits", model="cnn", clients=5), dict(batch_size=4)),
    "analytic": ("fgda", Saddle(clients=9, d=37), dict(batch_size=1)),
    "cohort, analytic": ("local", Saddle(clients=9, d=37), dict(batch_size=1, cohort=5)),
    "composition": ("mfcgd", Chain(clients=7), dict(batch_size=3)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_groups_of_any_size_are_bitwise_identical(comm, out, case):
    """Including a single client, vectorised with a copy, that is alone on a rank or left over from an odd
    number."""
    method, problem, settings = CASES[case]

    def final(group: int | str, comm, folder: str) -> np.ndarray:
        options = dict(weights="samples", dtype="float32", noise=None, group=group) | settings
        options["sections"] = {"record": ()}
        return bits(run(job(method, problem, f"{out}/{folder}{group}", **options), comm))

    results = [final(group, comm, "ranks") for group in (2, 3, "all")]
    if comm.rank == 0:
        loop, four = (final(group, SerialComm(), "alone") for group in (1, 4))
        for result in results:
            np.testing.assert_array_equal(result, four)
            # The loop's kernels add in another order: some 1e-7, which three rounds do not amplify.
            np.testing.assert_allclose(result, loop, rtol=1e-4, atol=1e-5)


ODD = {
    "relu": lambda: Net(nn.ReLU(), width=13),
    "gelu": lambda: Net(nn.GELU(), width=13),
    "sigmoid": lambda: Net(nn.Sigmoid(), width=9),
    "softplus": lambda: Net(nn.Softplus(), width=13),
    "silu": lambda: Net(nn.SiLU(), width=7),
    "layer norm": lambda: Net(nn.LayerNorm(13), width=13),
    "group norm": lambda: Net(nn.GroupNorm(3, 9), width=9),
    "attention": Attention,
    "gru": Recurrent,
    "convolution": convolutional,
}


@pytest.mark.dealt
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("network", ODD)
def test_networks_of_odd_sizes_in_groups_of_any_size(comm, out, network, dtype):
    """User-defined modules with widths and batch sizes that are not multiples of a vector register."""
    torch.manual_seed(0)  # equal modules on all ranks
    problem = DeepAUC(dataset="digits", model=ODD[network](), clients=8, score="sigmoid")

    def final(group: int | str, comm, folder: str) -> np.ndarray:
        settings = dict(rounds=2, batch_size=7, noise=None, dtype=dtype, group=group)
        return bits(
            run(job("local", problem, f"{out}/{folder}{group}", sections={"record": ()}, **settings), comm)
        )

    results = [final(group, comm, "ranks") for group in (2, 3, "all")]
    if comm.rank == 0:
        results += [final(group, SerialComm(), "alone") for group in (5, 7)]
        alone = final("all", SerialComm(), "alone")
        for result in results:
            np.testing.assert_array_equal(result, alone)


def test_fewer_clients_than_ranks(comm, out):
    assert_layout_does_not_matter(job("adam", Game(clients=1), out), comm, out)


@pytest.mark.parametrize("matrices", ["coordinator", "replicated"])
@pytest.mark.parametrize("method", ["adam", "mean_after"])
def test_resumed_at_every_round_on_other_rank_counts(comm, out, method, matrices):
    settings = dict(rounds=4, batch_size=1, matrices=matrices, checkpoint_every=1, keep=9)
    whole = run(job(method, Saddle(clients=5, d=4), out, **settings), comm)
    for r in (1, 2, 3):
        parts = [broadcast_text(comm, f"{out}/{name}{r}") for name in ("parallel", "serial")]
        if comm.rank == 0:
            for part in parts:
                Path(part).mkdir()
                for name in (f"checkpoint-{r:08d}.h5", "history.bin"):
                    shutil.copy(f"{out}/{name}", part)
        comm.barrier()
        again = resume(parts[0], comm=comm)
        np.testing.assert_array_equal(bits(again), bits(whole))
        if comm.rank == 0:
            alone = resume(parts[1], comm=SerialComm())
            np.testing.assert_array_equal(bits(alone), bits(whole))
            for result in (again, alone):
                np.testing.assert_array_equal(result.costs["round"], whole.costs["round"])
                np.testing.assert_array_equal(result.costs["oracle_calls"], whole.costs["oracle_calls"])
                assert result.history == whole.history


def test_fused_agrees_to_rounding(comm, out):
    """1e-5 in float32: sums in another order differ by some 1e-7, and the game amplifies that a little."""
    job = dict(dtype="float32", group=1)
    fused = run(configuration(METHODS["adam"], Game(clients=5), f"{out}/fused", **job), comm)
    exact = run(
        configuration(METHODS["adam"], Game(clients=5), f"{out}/exact", reduction="exact", **job), comm
    )
    np.testing.assert_allclose(bits(fused), bits(exact), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_rank_gets_the_stored_result_of_a_complete_run(comm, out, dtype, monkeypatch):
    """Without a checkpoint and without set-up."""
    config = configuration(METHODS["local"], Game(clients=3), out, dtype=dtype, overwrite=False)
    whole = run(config, comm)
    monkeypatch.setattr("mpifed.running.loop._Run", None)
    again = run(config, comm)
    np.testing.assert_array_equal(bits(again), bits(whole))
    assert bits(again).dtype == dtype and again.end == whole.end and again.config == whole.config
    for block, named in whole.parameters.items():
        for name, values in named.items():
            assert torch.equal(again.parameters[block][name], values)
    assert comm.rank or (again.history == whole.history and again.metrics == whole.metrics)


def test_stages_of_a_regularised_problem(comm, out):
    """The centres are part of the state of every rank and of checkpoints."""
    sections = {"regularize": {"x": 0.5, "y": 0.2, "stage": 2}}
    config = configuration(METHODS["local"], Game(clients=5), out, rounds=5, sections=sections)
    assert_layout_does_not_matter(config, comm, out)
