"""A method for tests of batch jobs: its rounds wait while a file exists, and its ranks record their
environment."""

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from mpifed import Algorithm, Record


@dataclass(frozen=True)
class Held(Algorithm):
    """Averaging of local gradient steps; from the third round on, a round takes two seconds while a file
    exists."""

    hold: str = ""
    witness: str = ""

    shared = Record(x="x", y="y")
    message = Record(x="x", y="y")

    def client_round(self, now, shared, client, message, oracle):
        gx, gy = oracle.grad(shared.x, shared.y, oracle.sample())
        message.x, message.y = shared.x - 0.01 * gx, shared.y + 0.01 * gy

    def server_round(self, now, shared, mean):
        shared.x, shared.y = mean.x, mean.y
        if self.witness and now.round == 1:
            file = Path(self.witness) / f"{socket.gethostname()}.{os.getpid()}"
            file.write_text(f"{os.environ.get('CUDA_VISIBLE_DEVICES')} {os.environ.get('OMP_NUM_THREADS')}")
        if self.hold and now.round > 2 and os.path.exists(self.hold):
            time.sleep(2)
