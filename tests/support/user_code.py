"""A user's file in which one function raises an exception, and a job that refers to it."""

#: A method and a problem with one function that raises an exception on some ranks. With two ranks, rank 0
#: hosts clients 0 and 1.
PLUGIN = """
import os
from dataclasses import dataclass

import torch

from mpifed import Algorithm, Blocks, Record, hyperparameters
from mpifed.core.adaptive import Adam, Matrix, adaptive
from mpifed.core.problem import Minimisation

RANK = next((os.environ[name] for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK") if name in os.environ), "0")
FAULT, RANKS = {fault!r}, {ranks!r}


def wrong(function):
    if function == FAULT and RANK in RANKS:
        raise ZeroDivisionError("on purpose")  # in the user's file


class Faulty(Adam):
    def __call__(self, *arguments):
        wrong("matrix")
        return super().__call__(*arguments)


@hyperparameters
class Method(Algorithm):
    K: int = 2
    eta: float = 0.1
    matrix: Matrix = Faulty()

    steps = "K"
    shared = Record(x="x", A=adaptive("x", of="x"))
    message = Record(x="x")

    @property
    def phases(self):
        wrong("phases")
        return super().phases

    def initialize(self, shared):
        wrong("initialize")

    def client_round(self, now, shared, client, message, oracle):
        wrong("client")
        Problem.round, x = now.round, shared.x
        for _ in range(self.K):
            x = x - self.eta * oracle.grad(x, oracle.sample())
        message.x = x

    def server_round(self, now, shared, mean):
        wrong("server")
        shared.x = mean.x


@dataclass
class Problem(Minimisation):
    clients: int = 4
    test_rows: int = 600
    round = 0

    def prepare(self, seed, data_dir=None):
        wrong("prepare")

    def variables(self):
        wrong("variables")
        return Blocks(x={{"w": (3,)}})

    def initial(self, rng):
        wrong("initial")
        return {{}}

    def client_data(self, client):
        wrong(f"client_data of {{client}}")
        return (torch.ones(5, 3) + client,)

    def loss(self, x, batch):
        wrong("late loss" if Problem.round > 1 else "loss")
        return ((batch[0] @ x["w"] - 1) ** 2).mean()

    def predict(self, x, rows):
        wrong("predict")
        return torch.zeros(rows.stop - rows.start)

    def metrics(self, x, predictions):
        wrong("metrics")
        return {{"norm": float(x["w"].norm())}}
"""
JOB = """
rounds = 3
algorithm = "{folder}/faulty.py:Method"
problem = "{folder}/faulty.py:Problem"
run = {{ progress = false, watchdog = 0, checkpoint_every = 1, out = "{folder}/run" }}
"""
#: Function → the beginning of the error message on rank 0.
REPORTED = {
    "phases": "Method.phases failed: ",
    "prepare": "Problem failed: ",
    "variables": "Problem failed: ",
    "initial": "Problem failed: ",
    "loss": "Problem failed: ",
    "client_data of 0": "Problem failed: ",
    "client_data of 3": "Problem failed: ",
    "initialize": "Method.initialize failed in round 0: ",
    "client": "Method.client_round failed in round 1 for client 0: ",
    "server": "Method.server_round failed in round 1: ",
    "matrix": "the matrix of shared.A failed in round 1: ",
    "metrics": "Problem.metrics failed: ",
    "predict": "Problem.predict failed: ",
}
