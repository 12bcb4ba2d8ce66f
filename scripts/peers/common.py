"""Functions shared by the programs that compare mpifed with other implementations.

mpifed goes first and records its minibatches; the other implementation gets the same data, start, cohorts and
minibatches. The programs drive it round by round through its public interface.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parameters_to_vector

import mpifed
from mpifed import Blocks, Minimisation, generator

ROUNDS = 6
BATCH = 4
FEATURES, CLASSES = 6, 3

#: Minibatches of a round by client: rows ``[steps, b]``.
Minibatches = dict[int, torch.Tensor]


def network() -> nn.Sequential:
    """Return the network of all comparisons."""
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES)).double()


#: The network as a function; its parameters are not used.
NETWORK = network()
#: Client and rows ``[b]`` of each minibatch since the list was last cleared, in the order of the gradients.
DRAWN: list[tuple[int, torch.Tensor]] = []


@dataclass
class RecordedTraining(Minimisation):
    """Mean cross-entropy of the network on random samples. Minibatches are recorded in ``DRAWN``.

    Args:
        sizes: number of rows of each client.
    """

    sizes: tuple[int, ...]

    @property
    def clients(self) -> int:
        return len(self.sizes)

    def variables(self) -> Blocks:
        return Blocks(x={name: tuple(value.shape) for name, value in NETWORK.named_parameters()})

    def initial(self, rng) -> dict[str, torch.Tensor]:
        return {"x": torch.from_numpy(0.3 * rng.standard_normal(len(flat(NETWORK))))}

    def client_data(self, client: int) -> tuple[torch.Tensor, ...]:
        rng, rows = generator(0, "peers", client), self.sizes[client]
        samples = torch.from_numpy(rng.standard_normal((rows, FEATURES)) + client / 4)
        labels = torch.from_numpy(rng.integers(CLASSES, size=rows))
        return samples, labels, torch.full((rows,), client), torch.arange(rows)

    def loss(self, x, batch) -> torch.Tensor:
        samples, labels, client, rows = batch
        DRAWN.append((int(client[0]), rows.clone()))
        return F.cross_entropy(functional_call(NETWORK, x, (samples,)), labels)


def flat(module: nn.Module) -> torch.Tensor:
    """Return the parameters of a network as one vector ``[d]``, in mpifed's order."""
    return parameters_to_vector(module.parameters()).detach().clone()


@dataclass
class Path:
    """The rounds of a method in mpifed.

    Attributes:
        problem: a short description of the problem and the cohorts.
        start: starting point ``[d]``.
        data: samples and labels of each client.
        counts: what the weights of the clients are proportional to: number of rows, or 1.
        minibatches: of each round, for the members of its cohort.
        points: point after each round, ``[d]``.
    """

    problem: str
    start: torch.Tensor
    data: list[tuple[torch.Tensor, torch.Tensor]]
    counts: list[int]
    minibatches: list[Minibatches]
    points: list[torch.Tensor]

    def network(self) -> nn.Sequential:
        """Return the network with the parameters of the starting point."""
        module = network()
        nn.utils.vector_to_parameters(self.start.clone(), module.parameters())
        return module


def run_mpifed(
    algorithm,
    *,
    sizes: Sequence[int] = (8, 12, 16, 20, 24),
    cohort: int | None = None,
    weights: str = "uniform",
    **oracle,
) -> Path:
    """Run a method in mpifed and record its minibatches.

    Args:
        sizes: number of rows of each client, more than a minibatch has.
        cohort: clients per round; default: all.
        weights: of the clients, "uniform" or "samples" (proportional to the rows).
        oracle: further settings of the oracle.
    """
    simulation = mpifed.Simulation(
        RecordedTraining(tuple(sizes)),
        algorithm,
        seed=1,
        oracle={"batch_size": BATCH, **oracle},
        participation={"weights": weights} | ({} if cohort is None else {"cohort": cohort}),
        run={"dtype": "float64", "device": "cpu", "group": 1},  # minibatches are recorded client by client
    )
    simulation.start()
    data = [tuple(simulation.problem.client_data(client)[:2]) for client in range(len(sizes))]
    name = f"network, {cohort or len(sizes)} of {len(sizes)} clients, weights {weights}"
    counts = [len(labels) if weights == "samples" else 1 for _, labels in data]
    path = Path(name, simulation.point().clone(), data, counts, [], [])
    for _ in range(ROUNDS):
        DRAWN.clear()
        simulation.step()
        drawn = [(client, rows) for client, rows in DRAWN if len(rows) == BATCH]  # without full batches
        members = sorted({client for client, _ in drawn})
        path.minibatches.append(
            {one: torch.stack([rows for client, rows in drawn if client == one]) for one in members}
        )
        path.points.append(simulation.point().clone())
    return path


def deviations(expected: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> list[float]:
    """Return the largest difference of two points after each round."""
    return [float((a.double() - b.double()).abs().max()) for a, b in zip(expected, found, strict=True)]


def report(
    method: str,
    package: str,
    path: Path,
    found: Sequence[torch.Tensor],
    differs: str | None = None,
    corrected: Sequence[torch.Tensor] | None = None,
) -> None:
    """Print the result of a comparison as one line of JSON.

    Args:
        package: name of the distribution.
        found: the other implementation's point after each round.
        differs: the reason of a difference, one sentence.
        corrected: the points after the change that the sentence names.
    """
    deviation = deviations(path.points, found)
    print(
        json.dumps({
            "method": method, "package": package, "version": version(package), "problem": path.problem,
            "rounds": len(deviation), "deviation": deviation,
            "scale": max(float(point.abs().max()) for point in path.points),
            "differs": differs,
            "proof": None if corrected is None else float(np.max(deviations(path.points, corrected))),
        }),
        flush=True,
    )  # fmt: skip


def local_sgd(path: Path, r: int, client: int, point: torch.Tensor, eta: float) -> torch.Tensor:
    """Return the point of a client after plain SGD steps on its minibatches of round index ``r``."""
    module = path.network()
    nn.utils.vector_to_parameters(point.clone(), module.parameters())
    optimizer = torch.optim.SGD(module.parameters(), lr=eta)
    samples, labels = path.data[client]
    for rows in path.minibatches[r][client]:
        optimizer.zero_grad()
        F.cross_entropy(module(samples[rows]), labels[rows]).backward()
        optimizer.step()
    return flat(module)
