"""CDMA-ADA (Xie et al. 2021): a recursive estimate of the gradient, then local steps by a fresh cohort."""

from dataclasses import dataclass

from mpifed import Algorithm, Phase, Record


@dataclass(frozen=True)
class CdmaAda(Algorithm):
    K: int
    eta: tuple[float, float]  # η_0 of x and y: η = η_0 / round^a
    alpha: float  # α_0: α = min(1, α_0 / round^2a)
    a: float
    shared = Record(x="x", y="y", old=("x", "y"), u=("x", "y"))

    @property
    def phases(self):
        collect = Phase(self.client_collect, Record(u=("x", "y")), self.server_collect)
        return collect, Phase(self.client_update, Record(x="x", y="y"), fresh=True)

    def client_collect(self, now, shared, client, message, oracle):
        message.u = oracle.grad(shared.x, shared.y, oracle.everything)
        if now.round > 1:
            before = oracle.grad(*shared.old, oracle.everything)
            message.u = [g - self.rest(now) * old for g, old in zip(message.u, before)]

    def server_collect(self, now, shared, mean):
        shared.u = [m + self.rest(now) * u for m, u in zip(mean.u, shared.u)]
        shared.old = shared.x, shared.y

    def client_update(self, now, shared, client, message, oracle):
        x, y, (eta_x, eta_y) = shared.x, shared.y, (eta / now.round**self.a for eta in self.eta)
        for _ in range(self.K):
            xi = oracle.sample()
            (gx, gy), (ox, oy) = oracle.grad(x, y, xi), oracle.grad(shared.x, shared.y, xi)
            x, y = x - eta_x * (gx - ox + shared.u[0]), y + eta_y * (gy - oy + shared.u[1])
        message.x, message.y = x, y

    def rest(self, now):
        return 1 - min(1, self.alpha / now.round ** (2 * self.a))
