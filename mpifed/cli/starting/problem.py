"""A user-defined problem: `mpifed check ./FILE:MyProblem` tests its contract."""

from dataclasses import dataclass

import torch

from mpifed import Ball, Blocks, Minimax, Sets, generator


@dataclass
class MyProblem(Minimax):
    """Regression with an adversarial shift y of the inputs: replace it with your problem.

    Minimax problems have the blocks x and y. For Minimisation, leave y out everywhere.
    """

    # The settings in a job file.
    clients: int = 4
    features: int = 5
    rows: int = 40
    radius: float = 1.0

    def prepare(self, seed, data_dir=None):
        """Read or generate the data. Called first, once on every rank, with the same result."""
        self.sets = Sets(y=Ball(self.radius))  # y stays in a ball; leave out if y is unconstrained
        self.data = []
        for client in range(self.clients):
            rng = generator(seed, "MyProblem", client)  # the same numbers on every rank
            inputs = rng.standard_normal((self.rows, self.features))
            targets = inputs.sum(1) + client + rng.standard_normal(self.rows)
            self.data.append((torch.from_numpy(inputs), torch.from_numpy(targets)))
        self.tests = torch.from_numpy(generator(seed, "tests").standard_normal((20, self.features)))
        self.test_rows = len(self.tests)  # leave out, with predict(), if there are no test samples

    def variables(self):
        """Return the names and shapes of the parameters of each block."""
        return Blocks(x={"weight": (self.features,), "bias": (1,)}, y={"shift": (self.features,)})

    def client_data(self, client):
        """Return tensors with one row per sample, from which minibatches are drawn."""
        return self.data[client]

    def loss(self, x, y, batch):
        """Compute the mean loss of a client's minibatch [b, ...], a scalar for autograd."""
        inputs, targets = batch
        errors = (inputs + y["shift"]) @ x["weight"] + x["bias"] - targets
        return (errors**2).mean() / 2 - (y["shift"] ** 2).sum()

    def predict(self, x, y, rows):
        """Compute the scores of the test samples in the slice `rows`; the ranks share the samples."""
        return self.tests[rows].to(x["weight"]) @ x["weight"] + x["bias"]

    def metrics(self, x, y, predictions):
        """Compute metrics of the averaged point, at every evaluation, from the scores of all test samples."""
        error = (predictions - self.tests.sum(1)) ** 2
        return {"test_error": float(error.mean()), "shift": float(y["shift"].norm())}

    of_training = frozenset({"shift"})  # metrics that use no test samples
    # `mpifed tune` selects settings by a validation metric: define tested_on(split), which returns a copy of
    # the problem with other test samples for split == "validation", and None for other splits.
