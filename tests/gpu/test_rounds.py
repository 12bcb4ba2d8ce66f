"""Rounds on a GPU: the results of the CPU, and how often the host waits for the device."""

from dataclasses import dataclass
from pathlib import Path

import everything
import pytest
import torch
from device_rounds import SIMPLEX, SIMULATED, TOLERANCE, allowed_waits, covering, rounds, settings
from faulty import Faulty
from games import Game, configuration, started
from resumed import resumed
from simulated_gpu import device as gpu

from mpifed import Config, run
from mpifed.algorithms import SAGDA, FedAvg, LocalSGDA
from mpifed.core import sampling
from mpifed.core.compression import QSGD, RandK, TopK
from mpifed.core.noise import AlphaStable, Gaussian, Pareto, StudentT
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.simulation import client_batching
from mpifed.simulation.simulation import NonFiniteError
from mpifed.simulation.state import ClientRows

JOB = Path(__file__).parents[2] / "jobs/digits_auc.toml"
simulated_only = pytest.mark.skipif(not SIMULATED, reason="counts operations of the simulated GPU")


@pytest.mark.parametrize("number, method, problem", [(n, *pair) for n, pair in enumerate(covering())])
def test_every_method_and_problem(number, method, problem):
    """Loop and vectorised clients, fused and exact."""
    run = dict(group=(1, "all")[number % 2], reduction=("fused", "exact")[number // 2 % 2], noise=0)
    points, metrics, _, _ = rounds(settings(method, problem, "cpu", **run))
    found, values, places, simulation = rounds(settings(method, problem, "cuda", **run))
    assert simulation.device.type == "cuda"
    if not SIMULATED:
        torch.testing.assert_close(found, points, rtol=TOLERANCE, atol=TOLERANCE * float(points.abs().max()))
    elif problem in SIMPLEX:  # the sums of up to ten numbers in another order
        torch.testing.assert_close(found, points, rtol=1e-12, atol=1e-12)
    else:
        assert torch.equal(found, points)
    # Metrics of the simplexes' points as above; the others sum in the same order on the simulated GPU.
    loose = problem in SIMPLEX or not SIMULATED
    assert values == pytest.approx(metrics, rel=TOLERANCE if loose else 0, nan_ok=True)
    assert places.total() <= allowed_waits(simulation), places


@pytest.mark.parametrize(
    "noise, compression, group",
    [
        (Gaussian(0.3), QSGD(4), 1),
        (AlphaStable(1.5, 0.1), TopK(0.4), 2),
        (Pareto(2.5, 0.1), QSGD(4), 2),
        (StudentT(3, 0.1), None, 1),
    ],
)
def test_options_of_messages_and_samples(noise, compression, group):
    """1e-9 in float64: normal numbers of torch and of SciPy differ in the last digits."""
    method = LocalSGDA(q=3, eta_x=0.05, eta_y=0.05)
    points = []
    for device in ("cpu", "cuda"):
        settings = dict(noise=noise, group=group, cohort=4, weights="samples", reduction="exact")
        sections = {"message": {"compression": compression, "error_feedback": bool(compression)}}
        config = configuration(
            method, Game(clients=6), "unused", device=device, sections=sections, **settings
        )
        found, _, places, simulation = rounds(config)
        points.append(found)
    torch.testing.assert_close(points[1], points[0], rtol=1e-9, atol=1e-9)
    assert places.total() <= 2, places


@pytest.mark.parametrize("store", ["device", "memory", "disk"])
@pytest.mark.parametrize("group", [1, 2, "all"])
def test_state_of_clients_in_host_memory(store, group):
    """The same bits as on the device; a wait per group for the records, and one for the residuals."""
    method = SAGDA(K=2, eta_xl=0.05, eta_yl=0.05, variates="stored")
    points = []
    for kept in ("device", store):
        run = dict(group=group, cohort=4, noise=0, reduction="exact", client_store=kept)
        sections = {"message": {"compression": TopK(0.4), "error_feedback": True}}
        config = configuration(method, Game(clients=7), "unused", device="cuda", sections=sections, **run)
        found, _, places, _ = rounds(config)
        points.append(found)
    assert torch.equal(*points)
    groups = {1: 1, 2: 2, "all": 1}[group]  # the loop adds up the messages of all of its clients
    assert places.total() <= 2 + (0 if store == "device" else 2 * groups), places


def test_checkpoints_copy_the_rows_of_changed_clients(monkeypatch, tmp_path):
    """All rows after the start, then those of the cohorts; a run that is resumed from them continues."""
    copied = []
    for name in ("read", "read_at"):
        real = getattr(ClientRows, name)

        def counting(self, where, rows, real=real):
            copied.append(len(rows))
            real(self, where, rows)

        monkeypatch.setattr(ClientRows, name, counting)
    method = SAGDA(K=2, eta_xl=0.05, eta_yl=0.05, variates="stored")
    run_on_gpu = dict(device="cuda", client_store="device", cohort=2, checkpoint_every=1, keep=9)
    job = configuration(method, Game(clients=8), tmp_path / "whole", rounds=4, **run_on_gpu)
    whole = run(job, SerialComm())
    assert copied == [8, 2, 2, 2]
    part = resumed(SerialComm(), tmp_path / "whole")
    torch.testing.assert_close(part.point, whole.point, rtol=0, atol=0)


#: Values of messages that are not finite, or whose sum is not.
VALUES = {"infinite": torch.inf, "NaN": torch.nan, "large": 1e308}


@dataclass(frozen=True)
class Failing(Faulty):
    """In one round, the messages of ``victim`` and of the following clients have such values in ``y``, those
    of the following also in ``x``, or the server's result is infinite. The server function refuses NaN."""

    when: int = 2

    def client_round(self, now, shared, client, message, oracle):
        super().client_round(now, shared, client, message, oracle)
        if now.round == self.when and self.fault in VALUES:
            numbers = oracle.client.tolist()
            message.y[[number >= self.victim for number in numbers], 1] = VALUES[self.fault]
            message.x[[number > self.victim for number in numbers], 2] = VALUES[self.fault]

    def server_round(self, now, shared, mean):
        super().server_round(now, shared, mean)
        if mean.y[1].isnan():
            raise ValueError("NaN")


CLIENT = "client {}, field 'y' of `message` (phase 'round'): reduce the step sizes"


@pytest.mark.parametrize("group", [1, 2, "all"])
@pytest.mark.parametrize("fault, victim, compression, text", [
    ("infinite", 3, None, CLIENT.format(3)),
    ("NaN", 3, None, CLIENT.format(3)),
    ("NaN", 5, RandK(0.4), CLIENT.format(5)),  # which leaves out the value
    ("large", 3, None, "the sum of finite messages overflows in phase 'round': reduce the step sizes"),
    ("server", 3, None, "field 'y' of `shared`, written by the server from finite averages"),
], ids=["infinite", "nan", "nan-compressed", "large", "server"])  # fmt: skip
def test_errors_for_values_that_are_not_finite(fault, victim, compression, text, group):
    """The same errors and points as on the CPU, where messages are checked before they are compressed."""
    errors, points = [], []
    for device in ("cpu", "cuda"):
        sections = {"message": {"compression": compression}}
        run = dict(device=device, group=group, reduction="fused", sections=sections)
        simulation = started(configuration(Failing(fault, victim), Game(clients=6), "unused", **run), 1)
        with pytest.raises(NonFiniteError) as caught:
            for _ in range(2):
                simulation.step()
        errors.append(str(caught.value))
        points.append(simulation.point().cpu())
    assert errors[0].startswith(f"non-finite value in round 2: {text}") and errors[1] == errors[0]
    torch.testing.assert_close(*points, rtol=TOLERANCE, atol=0)  # a real GPU rounds differently


def test_row_numbers_drawn_on_the_device_have_the_same_bits(monkeypatch):
    points = []
    for least in (0, 2**62):
        monkeypatch.setattr(sampling, "DRAWN_ON_DEVICE", least)
        config = settings("FedAvg", "Classification", "cuda", reduction="exact", group=1, noise=0)
        points.append(rounds(config)[0])
    assert torch.equal(*points)


def digits(*overrides: str):
    """A round of the main job: its choice of groups, and the number of kernels on the simulated GPU."""
    config = Config.load(str(JOB), ["run.device=cuda", "algorithm.q=3", *overrides])
    _, _, _, simulation = rounds(config, 2)
    return simulation.rounds.choice, gpu.kernels.total()


@simulated_only
def test_vectorised_clients_share_the_launches():
    """Eight clients launch about eight times as many kernels if they are looped over."""
    choice, vectorised = digits()
    assert choice == (8, "clients are vectorised, all of a rank at a time")
    assert 5 * vectorised < digits("run.group=1")[1]


@pytest.mark.parametrize(
    "fitting, group, note",
    [
        (5, 4, "clients are vectorised, 4 at a time"),
        (1, 1, "clients are looped over: two of them exceed the memory of a GPU"),
    ],
)
def test_groups_fit_into_memory(monkeypatch, fitting, group, note):
    evaluate = client_batching._evaluate

    def allocate(oracle, point, rows):
        if rows.stop - rows.start > fitting:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.")
        evaluate(oracle, point, rows)

    monkeypatch.setattr(client_batching, "_evaluate", allocate)
    assert digits()[0] == (group, note)
    if group == 1:
        with pytest.raises(CollectiveError, match="two exceed the memory of a GPU .*: set run.group = 1"):
            digits("run.group=all")


@simulated_only
def test_held_out_samples_are_copied_once():
    method = FedAvg(K=2, eta=0.01, eta_g=0.01)
    simulation = started(configuration(method, everything.problem("Classification"), "unused", device="cuda"))
    copies = []
    for _ in range(2):
        gpu.clear()
        simulation.evaluate(simulation.output)
        copies.append(gpu.copies["to device, waiting"])
    assert copies[0] > 0 and copies[1] == 0
