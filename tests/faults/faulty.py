"""A method that fails on request: where, how and when are its settings."""

import os
import signal
import sys
import time
from dataclasses import dataclass

from mpifed import Algorithm, Record


@dataclass(frozen=True)
class Faulty(Algorithm):
    """Plain averaging of local gradient steps with a fault in the client function of one rank."""

    fault: str = "none"
    victim: int = 2  # a client of the rank that fails
    when: int = 5  # the round

    shared = Record(x="x", y="y")
    message = Record(x="x", y="y")

    def client_round(self, r, shared, client, message, oracle):
        if r == self.when and self.victim in oracle.sampler.clients:
            self.fail()
        gx, gy = oracle.grad(shared.x, shared.y, oracle.sample(0))
        if self.fault == "nan" and r == self.when and self.victim in oracle.sampler.clients:
            gy = gy / 0
        message.x, message.y = shared.x - 0.01 * gx, shared.y + 0.01 * gy

    def server_round(self, r, shared, mean, sets):
        shared.x, shared.y = mean.x, mean.y
        if self.fault == "server" and r == self.when:
            shared.y = shared.y * float("inf")

    def fail(self):
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.fault == "raise":
            raise RuntimeError("the dog ate my gradient")
        elif self.fault.startswith("exit"):
            sys.exit(int(self.fault[4:]))
        elif self.fault == "hang":
            time.sleep(1000)
