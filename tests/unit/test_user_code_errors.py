"""Exceptions in user-defined functions under ``mpifed run``: exit code 2, a short message, no deadlock."""

import sys

import pytest
from launch import launch

from mpifed.cli.main import main

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


@pytest.fixture
def job(tmp_path):
    """``job(fault, ranks)``: a job whose function ``fault`` raises an exception on these ranks."""

    def make(fault: str, ranks: str = "01", plugin: str = PLUGIN):
        (tmp_path / "faulty.py").write_text(plugin.format(fault=fault, ranks=ranks))
        path = tmp_path / "job.toml"
        path.write_text(JOB.format(folder=tmp_path))
        return path

    return make


@pytest.fixture
def run(monkeypatch, capsys):
    """``run(job, *words)``: exit code and standard error of one process."""

    def carry_out(path, *words: str) -> tuple[int, str]:
        monkeypatch.setattr("mpifed.cli.errors.signal.signal", lambda *arguments: None)
        monkeypatch.setattr(sys, "argv", ["mpifed", *words, "run", str(path), "--no-report"])
        try:
            main()
        except SystemExit as end:
            return end.code, capsys.readouterr().err
        return 0, capsys.readouterr().err

    return carry_out


def test_without_an_exception(job, run):
    code, screen = run(job("none"))
    assert code == 0, screen


PLACES = {
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


def is_reported(screen: str, words: str) -> bool:
    """Return whether the message is printed once, with the line of the user."""
    sentence = f"mpifed: {words}ZeroDivisionError: on purpose"
    return screen.count(sentence) == 1 and screen.count("# in the user's file") == 1 and "faulty.py" in screen


@pytest.mark.parametrize("fault, words", PLACES.items(), ids=PLACES)
def test_every_function(fault, words, job, run):
    path = job(fault)
    code, screen = run(path)
    assert code == 2 and is_reported(screen, words), screen
    assert "Traceback" not in screen and len(screen.splitlines()) < 15, screen
    code, whole = run(path, "--traceback")
    assert code == 2 and whole.endswith(screen), whole
    assert "Traceback" in whole and "mpifed/cli/main.py" in whole, whole


@pytest.mark.parametrize(
    "fault, ranks", [("client", "1"), ("server", "01"), ("prepare", "1"),
                     ("client_data of 3", "1"), ("initialize", "1"), ("matrix", "0"), ("metrics", "0"),
                     ("predict", "1")]
)  # fmt: skip
def test_some_ranks(fault, ranks, job):
    """The other ranks wait in a collective, but the job ends, and the first rank that fails reports it."""
    code, output = launch(2, ["-m", "mpifed", "run", job(fault, ranks), "--no-report"], limit=120)
    words = PLACES[fault] if "0" in ranks else PLACES[fault].replace("client 0", "client 2")
    assert code == 2, output
    assert f"{words}ZeroDivisionError: on purpose" in output and "Traceback" not in output, output
    assert output.count("# in the user's file") == 1, output


def test_an_error_in_a_later_round_keeps_earlier_checkpoints(job, run):
    path = job("late loss")
    code, screen = run(path)
    assert code == 2 and is_reported(screen, "Method.client_round failed in round 2 for client 0: "), screen
    assert "in round 2, client 0, phase 'round'" in screen
    assert (path.parent / "run" / "checkpoint-00000001.h5").exists()


def test_an_invalid_class(job, run):
    """The message has the line of the file."""
    plugin = PLUGIN.replace("    shared = Record", "    shared: Record = Record")
    code, screen = run(job("none", plugin=plugin))
    assert code == 2 and "a hyperparameter cannot be called 'shared'" in screen, screen
    assert "class Method(Algorithm)" in screen and "Traceback" not in screen, screen
