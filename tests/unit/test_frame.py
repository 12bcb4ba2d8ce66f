"""The data frame of evaluations, compared with the files of the runs."""

from __future__ import annotations

import math
from pathlib import Path

import h5py
from runfiles import write
from small_job import job

import mpifed
from mpifed.parallel.comm import SerialComm
from mpifed.storage.results import COSTS


def test_row_per_round_and_metric_with_costs(tmp_path):
    write(tmp_path / "a", rounds=10, auc=[0.5, 0.7, 0.9], error=[3, 2, 1])
    found = mpifed.frame(tmp_path)
    columns = ["run", "method", "setting", "seed", "round", "metric", "value", *COSTS[1:], "diverged"]
    assert list(found.columns) == columns
    assert found["metric"].tolist() == ["auc", "error"] * 3
    assert found["round"].tolist() == [0, 0, 5, 5, 10, 10]
    assert found["value"].tolist() == [0.5, 3, 0.7, 2, 0.9, 1]
    assert found["bytes_down"].tolist() == [0, 0, 15_000, 15_000, 30_000, 30_000]
    assert found["seconds"].tolist() == [0, 0, 2.5, 2.5, 5, 5]
    assert found.index.tolist() == [*range(6)]


def test_values_and_types_of_a_run(tmp_path):
    result = mpifed.run(job(tmp_path), SerialComm())
    found = mpifed.frame(tmp_path)
    kinds = found.dtypes.astype(str)
    kinds = kinds[[name for name in found if not name.startswith("algorithm.")]]
    assert {*kinds[kinds == "category"].index} == {"run", "method", "setting", "metric"}
    whole = {"seed", "round", "oracle_calls", "phases", "bytes_up", "bytes_down", "wire_bytes"}
    assert {*kinds[kinds == "int64"].index} == whole
    assert {*kinds[kinds == "float64"].index} == {"value", *(name for name in COSTS if "seconds" in name)}
    with h5py.File(tmp_path / "run" / "run.h5") as file:
        for metric in file["metrics"]:
            rows = found[found["metric"] == metric]
            assert metric == "round" or rows["value"].tolist() == file[f"metrics/{metric}"][:].tolist()
        last = found.iloc[-1]
        assert [last[name] for name in COSTS] == [file[f"costs/{name}"][-1] for name in COSTS]
    assert mpifed.frame([tmp_path / "run" / "run.h5"]).equals(found) and mpifed.frame(result).equals(found)


def test_names_of_runs_and_settings(tmp_path, monkeypatch):
    for gamma in (0.1, 0.2):
        for seed in (0, 1):
            config = {"seed": seed, "algorithm": {"gamma": gamma}}
            write(tmp_path / "grid" / f"{gamma}-{seed}", config=config, rounds=5, error=[2, 1])
    write(tmp_path / "other", "LocalSGDA", rounds=5, auc=[0.5, 0.6])
    found = mpifed.frame([tmp_path / "grid", tmp_path / "other", tmp_path / "other"])
    assert len(found) == 10, "a folder given twice is read once"
    runs = found.drop_duplicates("run")
    assert runs["setting"].tolist() == ["FGDA, gamma=0.1"] * 2 + ["FGDA, gamma=0.2"] * 2 + ["LocalSGDA"]
    assert runs["method"].tolist() == ["FGDA"] * 4 + ["LocalSGDA"]
    assert runs["seed"].tolist() == [0, 1, 0, 1, 0]
    assert runs["run"].iloc[0] == str(tmp_path / "grid" / "0.1-0")
    monkeypatch.chdir(tmp_path)
    assert mpifed.frame("grid")["run"].iloc[0] == str(Path("grid") / "0.1-0")
    assert mpifed.frame("other")["metric"].cat.categories.tolist() == ["auc"]


def test_hyperparameters_and_other_settings_that_differ_are_columns(tmp_path):
    for number, (method, algorithm) in enumerate({
        "FGDA": {"q": 4, "eta": {"name": "constant", "value": 0.5}},
        "CDMA": {"q": 4, "matrix": {"name": "adam", "rho": 0.1}},
    }.items()):  # fmt: skip
        problem = {"name": "Saddle", "clients": 2 + number, "d": 3}
        config = {"algorithm": algorithm, "problem": problem}
        write(tmp_path / method, method, rounds=0, error=[1], config=config)
    found = mpifed.frame([tmp_path / "FGDA", tmp_path / "CDMA"]).set_index("method")
    names = [name for name in found if "." in name]
    assert "problem.clients" in names and "problem.d" not in names and "algorithm.name" not in names
    assert found["problem.clients"].to_dict() == {"FGDA": 2, "CDMA": 3}
    assert found["algorithm.q"].dtype == "int64" and found["algorithm.q"].tolist() == [4, 4]
    assert found.loc["FGDA", "algorithm.eta"] == 0.5
    assert found["algorithm.eta"].isna().to_dict() == {"FGDA": False, "CDMA": True}
    assert found.loc["CDMA", ["algorithm.matrix.name", "algorithm.matrix.rho"]].tolist() == ["adam", 0.1]


def test_repeated_job_is_two_settings(tmp_path):
    for folder in ("a/s", "b/s"):
        write(tmp_path / folder, rounds=5, error=[2, 1])
    assert mpifed.frame(tmp_path)["setting"].cat.categories.tolist() == ["FGDA (a/s)", "FGDA (b/s)"]


def test_unfinished_and_diverged_runs(tmp_path):
    write(tmp_path / "going", rounds=5, stopped="", error=[3, 2], config={"rounds": 100})
    lost = "non-finite value in round 9"
    write(tmp_path / "lost", "CDMA", rounds=10, stopped=lost, error=[3, math.inf, math.nan])
    write(tmp_path / "begun", "FedAvg", rounds=0, stopped="")
    found = mpifed.frame(tmp_path).groupby("method", observed=True)["value"].apply(list)
    assert found["FGDA"] == [3, 2] and found["CDMA"][:2] == [3, math.inf] and math.isnan(found["CDMA"][2])
    assert "FedAvg" not in found
    assert mpifed.frame(tmp_path / "begun").shape == (0, 7 + len(COSTS))
