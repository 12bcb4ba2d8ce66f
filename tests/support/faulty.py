"""A method that computes non-finite values at a given place and round."""

from dataclasses import dataclass

from mpifed import Algorithm, Record


@dataclass(frozen=True)
class Faulty(Algorithm):
    """Averaging of local gradient steps; in one round a client's message or the server's result is not
    finite."""

    fault: str = "none"
    victim: int = 3  # a client; all clients of its rank are affected
    when: int = 5  # the round

    shared = Record(x="x", y="y")
    message = Record(x="x", y="y")

    def client_round(self, now, shared, client, message, oracle):
        gx, gy = oracle.grad(shared.x, shared.y, oracle.sample())
        if self.fault == "nan" and now.round == self.when and self.victim in oracle.sampler.clients:
            gy = gy / 0
        message.x, message.y = shared.x - 0.01 * gx, shared.y + 0.01 * gy

    def server_round(self, now, shared, mean):
        shared.x, shared.y = mean.x, mean.y
        if self.fault == "server" and now.round == self.when:
            shared.y = shared.y * float("inf")
