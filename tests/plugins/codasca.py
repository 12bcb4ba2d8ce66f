"""CODASCA (Yuan et al. 2021): SCAFFOLD in x and y, with a pull of x to a reference point."""

from dataclasses import dataclass

from mpifed import Algorithm, Record


@dataclass(frozen=True)
class Codasca(Algorithm):
    K: int
    eta: float
    pull: float  # 1 / γ
    stage: int  # rounds after which the reference point becomes the current x; the variates are carried on
    eta_g: float = 1.0

    steps = "K"
    shared = Record(x="x", y="y", ref="x", c=("x", "y"))
    client = Record(c=("x", "y"))
    message = Record(d=("x", "y"), dc=("x", "y"))

    def initialize(self, shared):
        shared.ref = shared.x

    def client_round(self, now, shared, client, message, oracle):
        x, y, ref, (cx, cy) = shared.x, shared.y, shared.ref, shared.c
        for _ in range(self.K):
            gx, gy = oracle.grad(x, y, oracle.sample())
            x = x - self.eta * (gx + self.pull * (x - ref) - client.c[0] + cx)
            y = y + self.eta * (gy - client.c[1] + cy)
        dx, dy, scale = x - shared.x, y - shared.y, self.K * self.eta
        message.d, message.dc = (dx, dy), (-dx / scale - cx, dy / scale - cy)
        client.c = [c + dc for c, dc in zip(client.c, message.dc)]

    def server_round(self, now, shared, mean):
        shared.x, shared.y = shared.x + self.eta_g * mean.d[0], shared.y + self.eta_g * mean.d[1]
        shared.c = [c + now.share * dc for c, dc in zip(shared.c, mean.dc)]
        if now.round % self.stage == 0:
            shared.ref = shared.x
