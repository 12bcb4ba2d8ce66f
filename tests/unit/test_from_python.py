"""mpifed as a library: forms of jobs, stored results, and effects of imports and signals on the process."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import h5py
import numpy as np
import pytest
import saddle_job
import torch
from resumed import assert_same
from runfiles import edited
from small_job import LIMIT, job

import mpifed
from mpifed.core.schedules import Power
from mpifed.parallel.comm import SerialComm
from mpifed.problems import Classification
from mpifed.storage.results import End

COMM = SerialComm()
MLP = {"name": "mlp", "hidden": [3]}


def table(folder) -> dict:
    return saddle_job.table(folder, rounds=4, record=["x"], run={"eval_every": 2})


def same(result: mpifed.Result, other: mpifed.Result) -> None:
    assert_same(result, other)
    assert result.config == other.config and result.end == other.end and result.path.samefile(other.path)
    ours, theirs = (
        {block: [(name, value.tolist()) for name, value in named.items()] for block, named in of.items()}
        for of in (result.parameters, other.parameters)
    )
    assert ours == theirs


def test_tables_files_and_configs_define_the_same_job(tmp_path):
    settings = table(tmp_path / "table")
    first = mpifed.run(settings, COMM)
    assert settings == table(tmp_path / "table"), "the caller's table is unchanged"
    path = tmp_path / "job.toml"
    path.write_text(
        'rounds = 9\nrecord = ["x"]\nproblem = { name = "Saddle", clients = 4, d = 3 }\n'
        'oracle = { batch_size = 0, noise = { name = "gaussian", scale = 0.1 } }\n'
        'algorithm = { name = "AdaFGDA", q = 2, sync_estimator = "local" }\n'
        'run = { progress = false, dtype = "float64", reduction = "exact" }\n'
    )
    changes = ["rounds=4", f"run.out={tmp_path / 'file'}"]
    for form in (path, str(path)):
        second = mpifed.run(form, COMM, "never", [*changes, "run.overwrite=true"])
    config = mpifed.Config.from_table(table(tmp_path / "config"))
    third = mpifed.run(config, COMM)
    fourth = mpifed.run(third.config, COMM, overrides=[f"run.out={tmp_path / 'again'}"])
    for result in (second, third, fourth):
        assert all(torch.equal(result.point[block], first.point[block]) for block in "xy")
    changed = mpifed.run(config, COMM, overrides=["seed=1", f"run.out={tmp_path / 'b'}"])
    assert not torch.equal(changed.point["x"], first.point["x"])


@pytest.mark.parametrize("start, error", [
    (lambda folder: mpifed.run(table(folder) | {"rnds": 3}, COMM),
     "has no setting 'rnds'.* did you mean 'rounds'"),
    (lambda folder: mpifed.run(table(folder), COMM, overrides=["algorithm.K=3"]), "no setting 'K'"),
    (lambda folder: mpifed.run(table(folder), COMM, overrides="rounds=3"), r"expected a list of changes"),
    (lambda folder: mpifed.run(folder / "none.toml", COMM), "cannot read the job file"),
    (lambda folder: mpifed.run(5, COMM), "expected a Config, a table or the path of a job file, got 5"),
])  # fmt: skip
def test_invalid_jobs(tmp_path, start, error):
    with pytest.raises(mpifed.ConfigError, match=error):
        start(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_loaded_result_equals_the_returned_result(tmp_path):
    result = mpifed.run(table(tmp_path / "run"), COMM)
    assert result.end == End("rounds", "all 4 rounds done") and not result.unfinished
    assert result.iterates["x"].shape == (4, 3) and result.costs["oracle_calls"].dtype == np.int64
    same(mpifed.load(tmp_path / "run"), result)
    same(mpifed.load(tmp_path / "run" / "run.h5"), result)
    with h5py.File(tmp_path / "run" / "run.h5") as file:
        assert json.loads(file.attrs["versions"])["mpifed"] == mpifed.__version__
    same(mpifed.run(table(tmp_path / "run"), COMM), result)
    longer = mpifed.resume(tmp_path / "run", ["rounds=6"], COMM)
    same(mpifed.load(tmp_path / "run"), longer)
    assert longer.config["rounds"] == 6 and list(longer.costs["round"]) == list(range(7))


@pytest.mark.parametrize("method", ["LocalSGDA", "LSGD"])
def test_the_blocks_of_a_result_are_those_of_the_problem_for_every_method(tmp_path, method):
    steps = {"eta_x": 0.01, "eta_y": 0.01, "q": 2} if method == "LocalSGDA" else {"eta": 0.01, "K": 2}
    settings = table(tmp_path / "run") | {"record": [], "algorithm": {"name": method, **steps}}
    settings["run"]["keep_best"] = "error"
    result = mpifed.run(settings, COMM)
    loaded = mpifed.load(tmp_path / "run")
    assert all({*stored.best.point} == {"x", "y"} for stored in (result, loaded))
    for stored in (result, loaded):
        assert {block: [*named] for block, named in stored.parameters.items()} == {"x": ["x"], "y": ["y"]}
        assert {block: len(flat) for block, flat in stored.point.items()} == {"x": 3, "y": 3}
        assert all(torch.equal(stored.parameters[block][block], result.point[block]) for block in "xy")


def test_parameters_have_their_names_and_shapes(tmp_path):
    settings = table(tmp_path / "run") | {
        "record": [],
        "oracle": {"batch_size": 4},
        "problem": {"name": "DeepAUC", "dataset": "digits", "clients": 2, "model": MLP},
    }
    result = mpifed.run(settings, COMM)
    loaded = mpifed.load(tmp_path / "run")
    same(loaded, result)
    for block, parameters in loaded.parameters.items():
        flat = torch.cat([value.reshape(-1) for value in parameters.values()])
        assert torch.equal(flat, loaded.point[block])
    shapes = {"fc1.weight": (3, 64), "fc1.bias": (3,), "fc2.weight": (1, 3), "fc2.bias": (1,)}
    shapes |= {"a": (1,), "b": (1,)}
    assert {name: tuple(value.shape) for name, value in loaded.parameters["x"].items()} == shapes
    assert list(loaded.parameters["x"]) == list(shapes), "parameters have the order of the flat vector"
    with h5py.File(tmp_path / "run" / "run.h5") as file:
        for name, shape in shapes.items():
            assert file["final/x"][name].shape == shape
            assert np.array_equal(file["final/x"][name][...], loaded.parameters["x"][name].numpy())


def test_files_of_earlier_versions(tmp_path):
    old = mpifed.run(table(tmp_path / "run"), COMM)
    with edited(tmp_path / "run" / "run.h5") as file:
        del file.attrs["end"]
        for block, values in old.point.items():
            del file["final"][block]
            file["final"][block] = values.numpy()
    old = mpifed.load(tmp_path / "run")
    assert old.end == End("", "all 4 rounds done") and old.parameters == {} and old.point["x"].shape == (3,)


STATE = """
import gc, json, signal, sys, warnings
import numpy, torch, h5py, pydantic, tqdm.std, scipy.stats, sklearn.datasets
def state():
    return dict(
        frozen=gc.get_freeze_count(), collecting=gc.isenabled(), thresholds=gc.get_threshold(),
        handlers=[str(signal.getsignal(number)) for number in signal.valid_signals() if number < 32],
        filters=[str(one) for one in warnings.filters], threads=torch.get_num_threads(),
        dtype=str(torch.get_default_dtype()), hook=str(sys.excepthook), seed=torch.initial_seed(),
    )
before = state()
import mpifed, mpifed.algorithms, mpifed.problems
after = state()
print(json.dumps([[key, before[key], after[key]] for key in before if before[key] != after[key]]))
assert "mpi4py.MPI" not in sys.modules
"""


def test_importing_changes_nothing_in_the_process():
    """Other libraries, which change the process themselves, are imported before."""
    done = subprocess.run([sys.executable, "-c", STATE], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


SCRIPT = """
import sys
import mpifed
from mpifed.parallel.comm import SerialComm
mode, job, out = sys.argv[1:]
for seed in range(3):
    print("run", seed, flush=True)
    try:
        result = mpifed.run(job, overrides=[f"seed={seed}", f"run.out={out}/{seed}", "rounds=1000000"])
    except mpifed.Stopped as stop:
        if mode == "plain":
            raise
        print("caught", stop.result.end.kind, stop.code, flush=True)
        sys.exit(7)
print("the loop continued", flush=True)
"""


@pytest.mark.parametrize(
    "number, mode, code",
    [(signal.SIGTERM, "plain", 85), (signal.SIGUSR1, "caught", 7), (signal.SIGINT, "plain", -signal.SIGINT)],
)
def test_a_signal_also_stops_the_script(tmp_path, number, mode, code):
    """A real signal during the first of three runs."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script), mode, str(job(tmp_path)), str(tmp_path / "runs")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    checkpoints = tmp_path / "runs" / "0"
    end = time.monotonic() + LIMIT
    while not list(checkpoints.glob("checkpoint-*.h5")) and process.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.05)
    os.kill(process.pid, number)
    output, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == code, (process.returncode, output, errors)
    assert "run 1" not in output and "continued" not in output
    assert "caught signal 85" in output or mode == "plain"
    assert f"{number.name} received in round" in errors and "the same command continues from there" in errors
    result = mpifed.load(checkpoints)
    assert result.unfinished and result.end is None and result.costs["round"][-1] > 0
    newest = max(int(path.stem.split("-")[1]) for path in checkpoints.glob("checkpoint-*.h5"))
    assert newest == result.costs["round"][-1], "the last checkpoint has the last round"


def test_public_names_are_imported_from_their_modules():
    assert {"Config", "Rate", "run"} < {*mpifed.__all__} == {*dir(mpifed)}
    assert all(getattr(mpifed, name) is not None for name in mpifed.__all__)
    with pytest.raises(AttributeError, match="No mpifed attribute Confg"):
        mpifed.Confg  # noqa: B018


@dataclass(frozen=True)
class Stepping(mpifed.Algorithm):
    """A user-defined method with a schedule."""

    K: int
    eta: mpifed.Rate
    decay: mpifed.Rate = 1.0

    shared = mpifed.Record(x="x")
    message = mpifed.Record(x="x")
    family = "minimisation"
    steps = "K"

    def client_round(self, now, shared, client, message, oracle):
        x = shared.x
        for k in range(1, self.K + 1):
            gradient = oracle.grad(x, oracle.sample())
            x = x - self.decay(now.round) * self.eta(now.step(k)) * gradient
        message.x = x


def test_numbers_of_a_method_object_are_schedules():
    """As in a job file; a dataclass by itself does not convert them. Schedules remain what they are."""
    falling = Power(scale=0.1, exponent=0.5)
    problem = Classification(clients=2, dataset="digits")
    for eta in (0.1, falling):
        simulation = mpifed.Simulation(problem, Stepping(K=2, eta=eta), oracle={"batch_size": 4})
        simulation.start()
        simulation.step()
        method = simulation.config.algorithm
        assert (method.K, method.decay(3), method.eta(4)) == (2, 1.0, 0.1 if eta == 0.1 else falling(4))
