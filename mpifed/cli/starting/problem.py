"""A user-defined problem: `mpifed check ./FILE:MyProblem` tests its contract."""

from dataclasses import dataclass

import torch

from mpifed import Ball, Blocks, Minimax, Sets, generator


@dataclass
class MyProblem(Minimax):
    """Regression against a perturbation y of the inputs: put your problem here.

    Minimax has the blocks x and y. Minimisation has x alone: leave y out everywhere.
    """

    # The settings, as a job file names them.
    clients: int = 4
    features: int = 5
    rows: int = 40
    radius: float = 1.0

    def prepare(self, seed, data_dir=None):
        """Read or draw the data, once, before everything else; the same on all ranks."""
        self.sets = Sets(y=Ball(self.radius))  # y stays in a ball; leave it out where y is free
        self.data = []
        for client in range(self.clients):
            rng = generator(seed, "MyProblem", client)  # the same random numbers wherever the client runs
            inputs = rng.standard_normal((self.rows, self.features))
            targets = inputs.sum(1) + client + rng.standard_normal(self.rows)
            self.data.append((torch.from_numpy(inputs), torch.from_numpy(targets)))

    def variables(self):
        """Names and shapes of the parameters of each block."""
        return Blocks(x={"weight": (self.features,), "bias": (1,)}, y={"shift": (self.features,)})

    def client_data(self, client):
        """A tuple of tensors with one row per sample; minibatches are drawn from it."""
        return self.data[client]

    def loss(self, x, y, batch):
        """The mean over the batch [b, ...] of one client: a scalar, differentiated by torch."""
        inputs, targets = batch
        errors = (inputs + y["shift"]) @ x["weight"] + x["bias"] - targets
        return (errors**2).mean() / 2 - (y["shift"] ** 2).sum()

    def metrics(self, x, y, predictions):
        """Metrics of the averaged point, at every evaluation."""
        return {"shift": float(y["shift"].norm())}
