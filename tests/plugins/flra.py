"""FLRA (Reisizadeh et al. 2020): every client has its own adversary y, which never leaves it."""

from dataclasses import dataclass

from mpifed import Algorithm, Record


@dataclass(frozen=True)
class Flra(Algorithm):
    K: int
    eta_x: float
    eta_y: float

    steps = "K"
    shared = Record(x="x")
    client = Record(y="y")
    message = Record(x="x")

    def client_round(self, now, shared, client, message, oracle):
        x, y = shared.x, client.y
        for _ in range(self.K):
            gx, gy = oracle.grad(x, y, oracle.sample())
            x, y = x - self.eta_x * gx, y + self.eta_y * gy
        message.x, client.y = x, y
