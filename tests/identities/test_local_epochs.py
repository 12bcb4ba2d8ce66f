"""FedAvg with local epochs on clients of different sizes is the usual training loop of torch."""

import drawn
import numpy as np
import torch
from games import configuration, trace
from oracles import prepared
from torch import nn

from mpifed.algorithms import FedAvg
from mpifed.core.streams import generator
from mpifed.problems import Classification

SEED, CLIENTS, COHORT, ROUNDS, EPOCHS, BATCH = 1, 12, 6, 2, 5, 10
ETA, DECAY, MOMENTUM = 0.1, 0.9, 0.9


def digits():
    return Classification(
        dataset="digits", model="linear", clients=CLIENTS, partition={"name": "dirichlet", "alpha": 0.3}
    )


def test_five_epochs_on_dirichlet_clients(tmp_path):
    """E = 5, batches of 10, momentum, a decay per round, a cohort of half of the clients, weights by samples.

    1e-9: a few hundred local steps have sums in another order, whose errors of 1e-16 hardly grow.
    """
    oracle = {"batch_size": BATCH, "sampling": "without_replacement"}
    participation = {"cohort": COHORT, "weights": "samples"}
    eta = {"name": "exponential", "value": ETA, "factor": DECAY, "per": "round"}
    method = FedAvg(K={"epochs": EPOCHS}, eta=eta, local={"name": "sgd", "momentum": MOMENTUM})
    config = configuration(
        method, digits(), tmp_path, rounds=ROUNDS, seed=SEED,
        sections={"oracle": oracle, "participation": participation, "record": ("x",)},
    )  # fmt: skip
    path, _ = trace(config)

    problem = prepared(digits(), SEED)
    data = [problem.client_data(k) for k in range(CLIENTS)]
    sizes = [len(labels) for _, labels in data]
    assert any(size % BATCH for size in sizes) and len({*sizes}) > CLIENTS // 2
    x = problem.initial(generator(SEED, "initial"))["x"].double()
    for r in range(1, ROUNDS + 1):
        cohort, total = drawn.cohort(SEED, r, CLIENTS, COHORT).tolist(), torch.zeros_like(x)
        for k in cohort:
            images, labels = (torch.as_tensor(column) for column in data[k])
            network = nn.Linear(64, 10).double()
            nn.utils.vector_to_parameters(x.clone(), network.parameters())
            rate = ETA * DECAY ** (r - 1)
            optimizer = torch.optim.SGD(network.parameters(), lr=rate, momentum=MOMENTUM)
            for epoch in range(EPOCHS):
                order = torch.from_numpy(drawn.permutation(SEED, k, r, epoch, sizes[k]))
                for batch in order.split(BATCH):
                    optimizer.zero_grad()
                    scores = network(images[batch].double().flatten(1))
                    nn.functional.cross_entropy(scores, labels[batch].long()).backward()
                    optimizer.step()
            total += sizes[k] * nn.utils.parameters_to_vector(network.parameters()).detach()
        x = total / sum(sizes[k] for k in cohort)
        np.testing.assert_allclose(path[r - 1], x.numpy(), rtol=1e-9, atol=1e-9)
