"""FedNest for minimax problems (Tarzanagh et al. 2022): T ascents in y, then a descent in x, in SVRG form."""

from dataclasses import dataclass

from mpifed import Algorithm, Phase, Record


@dataclass(frozen=True)
class FedNest(Algorithm):
    T: int  # ascents a round
    tau: int  # local steps of each
    alpha: float  # step size of x
    beta: float  # step size of y

    shared = Record(x="x", y="y", q="y", h="x")

    @property
    def phases(self):
        ascend = Phase(self.gather_y, Record(q="y")), Phase(self.local_y, Record(y="y"))
        return ascend * self.T + (Phase(self.gather_x, Record(h="x")), Phase(self.local_x, Record(x="x")))

    def gather_y(self, now, shared, client, message, oracle):
        message.q = oracle.grad(shared.x, shared.y, oracle.sample())[1]

    def local_y(self, now, shared, client, message, oracle):
        x, y = shared.x, shared.y
        for _ in range(self.tau):
            xi = oracle.sample()
            y = y + self.beta * (oracle.grad(x, y, xi)[1] - oracle.grad(x, shared.y, xi)[1] + shared.q)
        message.y = y

    def gather_x(self, now, shared, client, message, oracle):
        message.h = oracle.grad(shared.x, shared.y, oracle.sample())[0]

    def local_x(self, now, shared, client, message, oracle):
        x, y = shared.x, shared.y
        for _ in range(self.tau):
            xi = oracle.sample()
            x = x - self.alpha * (oracle.grad(x, y, xi)[0] - oracle.grad(shared.x, y, xi)[0] + shared.h)
        message.x = x
