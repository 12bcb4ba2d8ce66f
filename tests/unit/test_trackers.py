"""The callbacks of docs/following.md for experiment trackers, in offline mode, if they are installed."""

import re
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

import mpifed
from mpifed.parallel.comm import SerialComm

PAGE = (Path(__file__).parents[2] / "docs" / "following.md").read_text(encoding="utf-8")
ROUNDS = [0, 2, 4]


def callback_in(name: str):
    """Return the class in a file of the page."""
    (text,) = re.findall(rf"^```python\n# {name}\n(.*?)^```", PAGE, re.S | re.M)
    exec(text, names := {})
    return next(value for key, value in names.items() if key in ("WandB", "MLflow"))


@pytest.fixture
def track(tmp_path):
    def run(callback, rounds=4, folder="run", **settings):
        table = {
            "rounds": rounds,
            "algorithm": {"name": "LocalSGDA", "q": 2, "eta_x": 0.01, "eta_y": 0.01},
            "problem": {"name": "Saddle", "clients": 3, "d": 2},
            "run": {"progress": False, "eval_every": 2, "out": str(tmp_path / folder), **settings},
        }
        return mpifed.run(table, SerialComm(), callbacks=[callback])

    return run


def test_weights_and_biases(track, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    for name, value in {"MODE": "offline", "SILENT": "true", "DIR": str(tmp_path)}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    logged, log = [], wandb.Run.log
    monkeypatch.setattr(
        wandb.Run, "log", lambda self, data, step: (logged.append((step, data)), log(self, data, step=step))
    )
    result = track(callback_in("wandb_callback.py")())
    assert [step for step, _ in logged] == ROUNDS
    assert [data["error"] for _, data in logged] == result.history["error"]
    assert logged[-1][1]["bytes_up"] == result.costs["bytes_up"][-1]
    assert list((tmp_path / "run").glob("wandb/offline-run-*-run/*.wandb"))


def test_mlflow(track, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    result = track(callback_in("mlflow_callback.py")())
    client = mlflow.MlflowClient()
    (run,) = client.search_runs(["0"])
    history = sorted(client.get_metric_history(run.info.run_id, "error"), key=lambda logged: logged.step)
    assert [logged.step for logged in history] == ROUNDS
    assert [logged.value for logged in history] == result.history["error"]
    assert run.data.tags["stopped"] == result.stopped and run.info.status == "FINISHED"


def stubbed(monkeypatch, tracker: str) -> tuple[type, list[str]]:
    """Return the callback with a stub of the tracker, and the list of runs that it starts or continues."""
    begun: list[str] = []

    def init(id, resume, **_):
        assert resume == "allow"
        begun.append(id)
        return SimpleNamespace(log=lambda values, step: None, finish=lambda: None)

    def start_run(run_id=None, run_name=None):
        begun.append(run_id or f"made {len(begun)}")
        return SimpleNamespace(info=SimpleNamespace(run_id=begun[-1]))

    names = ("log_dict", "log_metrics", "set_tag", "end_run")
    nothing = {name: lambda *values, **settings: nullcontext() for name in names}
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(start_run=start_run, **nothing))
    return callback_in(f"{tracker}_callback.py"), begun


@pytest.mark.parametrize("tracker", ["wandb", "mlflow"])
def test_runs_of_a_sweep_are_separate_and_resumed_runs_continue(track, monkeypatch, tracker):
    """The last parts of the folders of a sweep are the same."""
    callback, begun = stubbed(monkeypatch, tracker)
    for folder in ("sweep/q=2/seed=0", "sweep/q=3/seed=0"):
        track(callback(), folder=folder)
    track(callback(), rounds=8, folder="sweep/q=2/seed=0")
    track(callback(), folder="sweep/q=3/seed=0", overwrite=True)
    first, second, resumed, replaced = begun
    assert resumed == first and len({first, second, replaced}) == 3
