"""Fed-Norm-SGDA (Sharma et al. 2023): clients take different numbers of steps and send normalised sums."""

from dataclasses import dataclass

import numpy as np
import torch

from mpifed import Algorithm, Record


@dataclass(frozen=True)
class FedNormSGDA(Algorithm):
    tau: tuple[int, ...]  # local steps of each client
    eta: tuple[float, float]  # step sizes of x and y at the clients
    gamma: tuple[float, float]  # and at the server
    decay: float = 1.0  # step k has the weight a = decay^k

    shared = Record(x="x", y="y")
    message = Record(G=("x", "y"))

    def client_round(self, now, shared, client, message, oracle):
        x, y, a, weight = shared.x, shared.y, 1.0, 0.0
        total = [torch.zeros_like(field) for field in message.G]
        for on in oracle.steps(np.array(self.tau)[oracle.client]):
            gx, gy = oracle.grad(x, y, oracle.sample())
            total = [torch.where(on, sum_ + a * g, sum_) for sum_, g in zip(total, (gx, gy))]
            x = torch.where(on, x - self.eta[0] * a * gx, x)
            y = torch.where(on, y + self.eta[1] * a * gy, y)
            weight, a = weight + a * on, a * self.decay
        message.G = [sum_ / weight for sum_ in total]

    def server_round(self, now, shared, mean):
        # Σ w_i (n / P) G_i over the sample: the mean divides by the sample's weight, which `share` undoes.
        scale = np.mean(self.tau) * now.share * now.clients / now.cohort
        shared.x = shared.x - scale * self.gamma[0] * mean.G[0]
        shared.y = now.sets.y(shared.y + scale * self.gamma[1] * mean.G[1])
