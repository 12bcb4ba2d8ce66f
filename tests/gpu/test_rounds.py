"""Rounds on the simulated GPU: the bits of the CPU, and how often the host waits for the device."""

from dataclasses import replace
from pathlib import Path

import everything
import pytest
import torch
from games import Game, configuration, started
from simulated_gpu import device as gpu

from mpifed import Config
from mpifed.algorithms import FedAvg, LocalSGDA
from mpifed.core.compression import QSGD, TopK
from mpifed.core.directions import Orthogonalize
from mpifed.core.noise import AlphaStable, Gaussian, Pareto, StudentT
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.parallel.reproducibility import deterministic
from mpifed.simulation import client_batching
from mpifed.simulation.simulation import Simulation

#: Problems with a simplex, whose projection sums in another order on a GPU.
SIMPLEX = {
    "AffineShift", "FairClassification", "DistributionallyRobust", "MatrixGame", "FiniteMax",
    "ClientMixture", "QuadraticMixture",
}  # fmt: skip
#: Waits of a round beyond one per group and two per phase. Two methods store the number of completed rounds,
#: which is read per group and by the server; FLRA averages the clients' own blocks, too.
FURTHER = {"FedDualAvg": 4, "FeDualEx": 3, "FLRA": 1}
CLIENTS = 3
JOB = Path(__file__).parents[2] / "jobs/digits_auc.toml"


def covering() -> list[tuple[str, str]]:
    """Few pairs with every method and every problem."""
    chosen: list[tuple[str, str]] = []
    for name in everything.METHODS:
        fitting = [pair for pair in everything.FITTING if pair[0] == name]
        seen = {problem for _, problem in chosen}
        chosen.append(next((pair for pair in fitting if pair[1] not in seen), fitting[0]))
    left = everything.SETTINGS.keys() - {problem for _, problem in chosen}
    return chosen + [next(pair for pair in everything.FITTING if pair[1] == name) for name in sorted(left)]


def settings(method, problem, device, **run):
    method = everything.method(method)
    if isinstance(getattr(method, "direction", None), Orthogonalize):
        method = replace(method, orthogonalize="newton_schulz")  # as "auto" on a GPU
    return configuration(method, everything.problem(problem), "unused", device=device, **run)


def rounds(config, count=3):
    """The points after each round, the metrics, the waits of the last round by place, and the simulation."""
    points = []
    with deterministic(config.run.reduction == "exact"):
        simulation = Simulation.from_settings(config, SerialComm())
        with simulation:
            simulation.start()
            for _ in range(count):
                gpu.clear()
                simulation.step()
                places = gpu.places.copy()
                points.append(simulation.point())
            metrics = simulation.evaluate(simulation.output)
    return torch.stack([point.cpu() for point in points]), metrics, places, simulation


def aim(simulation) -> int:
    """The largest number of waits in a round: one per group and two per phase."""
    groups = CLIENTS if simulation.rounds.choice.group == 1 else 1
    return len(simulation.config.algorithm.phases) * (groups + 2)


@pytest.mark.parametrize("number, method, problem", [(n, *pair) for n, pair in enumerate(covering())])
def test_every_method_and_problem(number, method, problem):
    """Loop and vectorised clients, fused and exact."""
    run = dict(group=(1, "all")[number % 2], reduction=("fused", "exact")[number // 2 % 2], noise=0)
    points, metrics, _, _ = rounds(settings(method, problem, "cpu", **run))
    found, values, places, simulation = rounds(settings(method, problem, "cuda", **run))
    assert simulation.device.type == "cuda"
    if problem in SIMPLEX:  # the sums of up to ten numbers in another order
        torch.testing.assert_close(found, points, rtol=1e-12, atol=1e-12)
    else:
        assert torch.equal(found, points)
    # Metrics of the simplexes' points as above; the others sum in the same order.
    assert values == pytest.approx(metrics, rel=1e-9 if problem in SIMPLEX else 0, nan_ok=True)
    assert places.total() <= aim(simulation) + FURTHER.get(method, 0), places


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
    assert places.total() <= 4 // group + 2, places


def digits(*overrides: str):
    """A round of the main job: its choice of groups, and the number of kernels."""
    config = Config.load(str(JOB), ["run.device=cuda", "algorithm.q=3", *overrides])
    _, _, _, simulation = rounds(config, 2)
    return simulation.rounds.choice, gpu.kernels.total()


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


def test_held_out_samples_are_copied_once():
    method = FedAvg(K=2, eta=0.01, eta_g=0.01)
    simulation = started(configuration(method, everything.problem("Classification"), "unused", device="cuda"))
    copies = []
    for _ in range(2):
        gpu.clear()
        simulation.evaluate(simulation.output)
        copies.append(gpu.copies["to device, waiting"])
    assert copies[0] > 0 and copies[1] == 0
