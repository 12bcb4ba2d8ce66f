"""SCAFFOLD (Karimireddy et al. 2020), option II."""

from dataclasses import dataclass

from mpifed import Algorithm, Record


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """Local steps corrected by the difference of two control variates."""

    K: int
    eta: float
    eta_g: float = 1.0

    steps = "K"
    shared = Record(x="x", c="x")
    client = Record(c="x")
    message = Record(dx="x", dc="x")

    def client_round(self, now, shared, client, message, oracle):
        x = shared.x
        for _ in range(self.K):
            x = x - self.eta * (oracle.grad(x, oracle.sample()) - client.c + shared.c)
        message.dx = x - shared.x
        message.dc = (shared.x - x) / (self.K * self.eta) - shared.c
        client.c += message.dc

    def server_round(self, now, shared, mean):
        shared.x += self.eta_g * mean.dx
        shared.c += now.share * mean.dc
