"""What ranks tell each other before a run, what user code is told while it runs, in what order it is kept."""

from dataclasses import dataclass, field

import h5py
import numpy as np
import pytest
import torch
from games import DX, DY, Game, configuration

from mpifed import run
from mpifed.algorithms import FSGDA, LSGD
from mpifed.parallel import transport
from mpifed.parallel.comm import SerialComm
from mpifed.parallel.devices import identity
from mpifed.problems.games import Bilinear
from mpifed.simulation.evaluation import Evaluator
from mpifed.simulation.simulation import Simulation


class Told(SerialComm):
    """Keeps what this rank tells the others."""

    def __init__(self):
        self.told = []

    def allgatherv(self, send, receive, counts):
        self.told.append(send.tolist())
        super().allgatherv(send, receive, counts)


@pytest.mark.parametrize("available, built, nccl", [(True, True, 1), (True, False, 0), (False, True, 0)])
def test_nccl_needs_torch_distributed_and_a_build_with_it(monkeypatch, available, built, nccl):
    monkeypatch.setattr(transport, "identity", lambda device: 11)
    monkeypatch.setattr(transport.dist, "is_available", lambda: available)
    monkeypatch.setattr(transport.dist, "is_nccl_available", lambda: built)
    comm = Told()
    assert transport.choose_transport(comm, torch.device("cpu"), "auto", False).name == "none"
    assert comm.told == [[11, nccl]]


def test_cpus_are_nobodys_gpu():
    assert identity(torch.device("cpu")) == 0


@dataclass
class Asking(Game):
    """Writes down torch's default dtype wherever the package calls it."""

    seen: dict = field(default_factory=dict)
    test_rows = 3

    def _note(self, where):
        self.seen.setdefault(where, set()).add(torch.get_default_dtype())

    def prepare(self, seed, data_dir=None):
        self._note("prepare")
        super().prepare(seed, data_dir)

    def initial(self, rng):
        self._note("initial")
        return {
            "x": torch.from_numpy(rng.standard_normal(DX)),
            "y": torch.from_numpy(rng.standard_normal(DY)),
        }

    def loss(self, x, y, batch):
        self._note("loss")
        return super().loss(x, y, batch)

    def predict(self, x, y, rows):
        self._note("predict")
        return torch.zeros(rows.stop - rows.start)

    def metrics(self, x, y, predictions):
        self._note("metrics")
        return {"mean": float(np.mean(predictions.numpy()))}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_default_dtype_is_the_runs_while_user_code_runs(tmp_path, dtype):
    name, problem = str(dtype).removeprefix("torch."), Asking()
    method = FSGDA(K=1, eta_xl=0.01, eta_yl=0.01)
    before = torch.float64 if dtype == torch.float32 else torch.float32
    torch.set_default_dtype(before)
    try:
        simulation = Simulation.from_settings(
            configuration(method, problem, tmp_path, dtype=name), SerialComm()
        )
        simulation.start()
        simulation.step()
        assert simulation.evaluate(simulation.shared) == {"mean": 0.0}
        assert torch.get_default_dtype() == before
    finally:
        torch.set_default_dtype(torch.float32)
    assert problem.seen == {part: {dtype} for part in ("prepare", "initial", "loss", "predict", "metrics")}


def test_metrics_keep_the_order_in_which_the_problem_gives_them(tmp_path):
    """The first one is what tables and curves begin with; names alone would say "distance"."""
    problem = Bilinear(dx=2, dy=2, clients=2)
    config = configuration(LSGD(K=1, eta=0.1), problem, tmp_path / "a", rounds=1, noise=0)
    run(config.model_copy(update={"record": ()}), SerialComm())
    with h5py.File(tmp_path / "a" / "run.h5") as file:
        names = [name for name in file["metrics"] if name != "round"]
    assert names == ["err_D", "distance", "residual"]


class OneOfTwo(SerialComm):
    """Of two ranks, of which the second has scored the rows 1, 2 and 3."""

    size = 2

    def __init__(self, rank):
        self.rank = rank

    def allreduce_(self, array, op="sum"):
        if op == "max":  # the width of a score; the other has met no error
            array[:] = 1

    def allgatherv(self, send, receive, counts):
        assert counts == [0, 3] and len(send) == counts[self.rank]
        receive[:] = 1.0, 2.0, 3.0


def test_metrics_are_computed_on_the_first_rank_alone(tmp_path):
    problem = Asking()
    problem.prepare(1)
    point = [torch.zeros(DX), torch.zeros(DY)]
    assert Evaluator(problem, SerialComm())(point, 1) == {"mean": 0.0}
    problem.seen.clear()
    assert Evaluator(problem, OneOfTwo(1))(point, 1) == {} and problem.seen.keys() == {"predict"}
    problem.seen.clear()
    assert Evaluator(problem, OneOfTwo(0))(point, 1) == {"mean": 2.0} and problem.seen.keys() == {"metrics"}
