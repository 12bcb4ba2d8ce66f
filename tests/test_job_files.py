"""The job files of jobs/papers and jobs/theory and their claims: all combinations are valid, every method of
every file runs two rounds, and claims refer to existing metrics and methods."""

from __future__ import annotations

import functools
import json
import lzma
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from job_files import cut, one_each
from launch import environment, launch
from realdata import ROOT as DATA
from realdata import real

from claims.entries import read
from mpifed.config.grids import variants
from mpifed.config.job import Config
from mpifed.config.tables import read_table
from mpifed.storage.results import find_runs, load

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scripts/evidence/reproduce.py"
JOBS = ROOT / "jobs"
BOOKS = {name: read(JOBS / name / "claims.toml") for name in ("papers", "theory")}
CLAIMS = {one.name: one for book in BOOKS.values() for one in book.claims}
EXPERIMENTS = {name: one for book in BOOKS.values() for name, one in book.experiments.items()}
FILES = {
    path.relative_to(JOBS).with_suffix("").as_posix(): path
    for name in BOOKS
    for path in sorted((JOBS / name).rglob("*.toml"))
    if path.stem != "claims"
}
PATHS = {path.stem: path for path in FILES.values() if path.parent.name in BOOKS}


def unpacked(folder: Path) -> None:
    """Return the folder of the data sets, with CIFAR-10 unpacked once, since unpacking it in every run
    would take longest."""
    for place in DATA.iterdir():
        if place.name != "cifar10":
            (folder / place.name).symlink_to(place)
    for path in (DATA / "cifar10").rglob("*.xz"):
        plain = folder / path.relative_to(DATA).with_suffix("")
        plain.parent.mkdir(parents=True, exist_ok=True)
        plain.write_bytes(lzma.decompress(path.read_bytes()))


@functools.cache
def jobs(path: Path) -> dict[str, Config]:
    """Return one job per method of a file."""
    return one_each(path)


@pytest.fixture(scope="module")
def metrics(tmp_path_factory):
    """Return metrics at the start and after two rounds, by file and method, from one process, since
    starting Python takes longest. Without the data sets, only files that need none are run."""
    folder, data = tmp_path_factory.mktemp("papers"), tmp_path_factory.mktemp("data")
    files = [path for path in FILES.values() if DATA.exists() or "dataset" not in path.read_text()]
    if DATA.exists():
        unpacked(data)
    tables = {str(path): {name: cut(one) for name, one in jobs(path).items()} for path in files}
    listed, result = folder / "jobs.json", folder / "metrics.json"
    listed.write_text(json.dumps(tables))
    code, output = launch(0, [str(ROOT / "tests/support/job_files.py"), listed, result, data], 600)
    assert code == 0, output
    return json.loads(result.read_text())


@pytest.mark.parametrize("name", FILES)
def test_every_method_of_a_file_runs_two_rounds(name, metrics):
    if "dataset" in FILES[name].read_text():
        real("mnist")
    found, shown = metrics[str(FILES[name])], EXPERIMENTS[FILES[name].stem]
    if found is None:
        pytest.skip("its data set is not there")
    assert set(found) == set(jobs(FILES[name]))
    known = {shown.metric, *shown.also, *(one.metric for one in CLAIMS.values() if one.job == shown.name)}
    for method, values in found.items():
        for point in values:
            own = known & set(point)
            assert own and all(np.isfinite(point[name]) for name in own), (method, values)
    assert any({shown.metric, *shown.also} <= set(point) for values in found.values() for point in values)


@pytest.mark.parametrize("name", FILES)
def test_a_file_has_an_output_folder_and_a_description(name):
    assert read_table(FILES[name])["run"]["out"] == f"runs/{name}"
    first = FILES[name].read_text().splitlines()[0]
    assert first.startswith("# ") and first.endswith(".")


@pytest.mark.parametrize("name", [name for name in FILES if "/full/" in name])
def test_five_seeds_at_the_size_of_the_paper(name):
    assert {one.config.seed for one in variants(FILES[name])} >= {0, 1, 2, 3, 4}


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_names_metrics_and_methods_of_its_job(name, metrics):
    claim = CLAIMS[name]
    path = PATHS[claim.job]
    named = {method.partition(",")[0] for method in (*claim.subjects, *claim.than)} or set(jobs(path))
    assert named <= set(jobs(path)), claim
    if found := metrics.get(str(path)):
        assert all(claim.metric in point for method in named for point in found[method])


def test_every_experiment_has_its_claim_and_its_file():
    assert {Path(name).stem for name in FILES} == set(EXPERIMENTS)
    assert {claim.job for claim in CLAIMS.values()} == set(EXPERIMENTS)
    assert len(CLAIMS) == sum(len(book.claims) for book in BOOKS.values())
    assert len(EXPERIMENTS) == sum(len(book.experiments) for book in BOOKS.values())
    headings = [one.title for one in EXPERIMENTS.values()]
    assert len(set(headings)) == len(headings)


@pytest.mark.parametrize(
    "name, metric", [("auc", "auc"), ("classification", "accuracy"), ("affine_shift", "accuracy"),
                     ("composition", "objective"), ("mixture", "worst_loss"), ("bilevel", "f1")],
)  # fmt: skip
def test_every_baseline_improves_on_real_data(name, metric, tmp_path):
    """All runs of a file of jobs/baselines improve within ten rounds."""
    file, settings = ROOT / f"jobs/baselines/{name}.toml", ["rounds=10", f"run.out={tmp_path}"]
    code, output = launch(0, ["-m", "mpifed", "sweep", file, "run.progress=false", *settings], limit=200)
    assert code == 0, output
    runs = [load(path) for path in find_runs([tmp_path])]
    assert len(runs) == len(variants(file))
    for run in runs:
        before, *_, after = run.metrics[metric]
        assert (after > before) if metric in ("auc", "accuracy", "f1") else (after < before), (
            run.path,
            before,
            after,
        )


def test_reproduce_runs_draws_and_resumes(tmp_path):
    changes = ["rounds=2", "tune.runs=2", "tune.seeds=1", "tune.fresh=3", "run.progress=false"]
    command = [sys.executable, str(SCRIPT), "composite_game", *changes]
    for more in (["--processes", "2"], []):
        done = subprocess.run(
            [*command, *more], cwd=tmp_path, env=environment(), timeout=200, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        sweeps = re.findall(r"(\d+) runs are finished, (\d+) of them before", done.stdout)
        assert sweeps and all(before == ("0" if more else runs) for runs, before in sweeps)
    folder = tmp_path / "runs/papers/composite_game"
    assert (folder / "figure.png").read_bytes()[:4] == b"\x89PNG" and (folder / "report.html").exists()
