"""The experiments of jobs/papers: every combination is valid, and the last method of each goes two rounds on
two ranks."""

from __future__ import annotations

import lzma
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from launch import environment, launch
from realdata import ROOT as DATA
from realdata import real

from claims.entries import read
from mpifed.algorithms import ALGORITHMS
from mpifed.config.grids import variants
from mpifed.config.plugins import title
from mpifed.config.tables import read_table
from mpifed.storage.results import find_runs, load

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scripts/reproduce.py"
BOOK = read(ROOT / "jobs/papers/claims.toml")
EXPERIMENTS = BOOK.experiments
FILES = {
    path.stem: path
    for path in sorted((ROOT / "jobs/papers").glob("*.toml"))
    if not path.stem.startswith("claims")
}


def unpacked(folder: Path) -> None:
    """The data sets as they lie, but for CIFAR-10's packed files: unpacking these for every run would take
    longest."""
    for place in DATA.iterdir():
        if place.name != "cifar10":
            (folder / place.name).symlink_to(place)
    for path in (DATA / "cifar10").rglob("*.xz"):
        plain = folder / path.relative_to(DATA).with_suffix("")
        plain.parent.mkdir(parents=True, exist_ok=True)
        plain.write_bytes(lzma.decompress(path.read_bytes()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All files in one job, since starting Python is what takes longest; without the data sets, those that
    need none."""
    folder, data = tmp_path_factory.mktemp("papers"), tmp_path_factory.mktemp("data")
    files = [str(path) for path in FILES.values() if DATA.exists() or "dataset" not in path.read_text()]
    if DATA.exists():
        unpacked(data)
    code, output = launch(2, [str(ROOT / "tests/support/job_files.py"), str(folder), str(data), *files], 300)
    assert code == 0, output
    return folder


@pytest.mark.parametrize("name", FILES)
def test_two_rounds_on_two_ranks(name, folder):
    if "dataset" in FILES[name].read_text():
        real("mnist")
    (run,) = [load(path) for path in find_runs([folder / name])]
    assert run.metric_rounds.tolist() == [0, 2]
    shown = [EXPERIMENTS[name].metric, *EXPERIMENTS[name].also]
    assert all(np.isfinite(run.metrics[metric]).all() for metric in shown), run.metrics
    assert all(
        panel.partition(".")[0] in ("problem", "algorithm", "oracle", "rounds")
        for panel in EXPERIMENTS[name].panels
    )


def test_every_file_has_its_experiment_and_folder():
    assert set(FILES) == set(EXPERIMENTS)
    assert {name: read_table(path)["run"]["out"] for name, path in FILES.items()} == {
        name: f"runs/papers/{name}" for name in FILES
    }


@pytest.mark.parametrize(
    "name, metric", [("auc", "auc"), ("classification", "accuracy"), ("affine_shift", "accuracy"),
                     ("composition", "objective")],
)  # fmt: skip
def test_every_baseline_improves_on_real_data(name, metric, tmp_path):
    """In ten rounds, of all runs of a file of jobs/baselines."""
    file, settings = ROOT / f"jobs/baselines/{name}.toml", ["rounds=10", f"run.out={tmp_path}"]
    code, output = launch(0, ["-m", "mpifed", "sweep", file, "run.progress=false", *settings], limit=200)
    assert code == 0, output
    runs = [load(path) for path in find_runs([tmp_path])]
    assert len(runs) == len(variants(file))
    for run in runs:
        before, *_, after = run.metrics[metric]
        assert (after < before) if metric == "objective" else (after > before), (run.path, before, after)


def test_what_no_figure_shows_has_a_baseline_file():
    """Every method is in some job file."""
    files = [*FILES.values(), *(ROOT / "jobs/baselines").glob("*.toml")]
    shown = {title(run.config.algorithm) for file in files for run in variants(file)}
    assert shown == set(ALGORITHMS)


def test_reproduce_runs_draws_and_goes_on(tmp_path):
    command = [sys.executable, str(SCRIPT), "composite_game", "rounds=4", "sweep.seed=[0, 1]"]
    for before, more in ((0, []), (8, ["--ranks", "1"])):
        done = subprocess.run(
            [*command, *more], cwd=tmp_path, env=environment(), timeout=120, capture_output=True, text=True
        )
        assert done.returncode == 0 and f"8 runs done, {before} of them before" in done.stdout, (
            done.stdout + done.stderr
        )
    folder = tmp_path / "runs/papers/composite_game"
    assert (folder / "figure.png").read_bytes()[:4] == b"\x89PNG" and (folder / "report.html").exists()
    wrong = subprocess.run(
        [sys.executable, str(SCRIPT), "auc_mnits"], cwd=tmp_path, timeout=60, capture_output=True, text=True
    )
    assert (
        wrong.returncode == 2 and "no experiment 'auc_mnits'" in wrong.stderr and "auc_mnist" in wrong.stderr
    )
