"""Tables and numbers of the pages are those that the package computes.

Other tests of this type: of methods in unit/test_info.py, of the agreement with other packages in
unit/test_peers.py, of the gallery in test_gallery.py, of the experiments of the theory and of bounds in
test_claims.py, of worst cases in convergence/test_worst_case.py, of counts in test_readme.py.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from launch import environment

import measures_tables
import theorem_sizes
from mpifed.problems import TwoSidedPL
from mpifed.theory import prescribe

ROOT = Path(__file__).parent.parent


def page(name: str) -> str:
    """Return a page with its lines joined."""
    return " ".join((ROOT / f"docs/{name}.md").read_text(encoding="utf-8").split())


def tables(name: str) -> list[list[str]]:
    """Return the cells of each row of a page's tables."""
    lines = (ROOT / f"docs/{name}.md").read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]


def numbers(text: str) -> list[float]:
    return [float(one) for one in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", text)]


def command(*words: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment(), timeout=500, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_sizes_of_the_bounds():
    rows = [*theorem_sizes.quadratic(), theorem_sizes.two_sided()]
    shown = (ROOT / "docs/theory.md").read_text(encoding="utf-8").splitlines()
    assert not [row for row in rows if row not in shown]
    problem = TwoSidedPL(clients=8, shift=0.0)
    assert f"κ = {problem.ell / problem.mu_x:.0f} in x" in page("theory")


def test_bounds_of_the_compositions():
    ones = dict.fromkeys(("L_f", "L_g", "C_f", "C_g", "gap"), 1.0)

    def at(q: int, T: int):
        return prescribe("huang-composition-2", **ones, sigma=0.1, delta_f=0.0, delta_g=0.0, q=q, T=T)

    offsets = [f"{at(q, 800).steps['eta']['offset']:.0e}".replace("e+0", "e") for q in (4, 16)]
    assert f"n is {offsets[0]} for q = 4 and {offsets[1]} for q = 16" in page("theory")
    bounds = [f"{at(4, T).bound:.1g}" for T in (800, 1_000_000)]
    text = (
        f"the bound of a gradient of norm 1 is {bounds[0]} after 800 steps, and {bounds[1]} after a million"
    )
    assert text in page("theory")


def test_stationarity_along_two_runs():
    """Other instructions of a processor change gradients by 2 % and the AUC by 0.001 after 50 rounds."""
    found = measures_tables.stationarity()
    shown = [row for row in tables("measures") if row[0] in ("0", "50", "100")]
    assert [row[0] for row in shown] == [row[0] for row in found]
    for ours, theirs in zip(found, shown):
        for k, (value, printed) in enumerate(zip(map(float, ours[1:]), map(float, theirs[1:]))):
            auc = k in (0, 2)
            assert value == pytest.approx(printed, **({"abs": 0.005} if auc else {"rel": 0.1})), (
                ours,
                theirs,
            )


def test_coverage_of_the_intervals_of_the_tail_index():
    """A rounding error may change whether one of 100 intervals contains the index."""
    shown = {row[0]: row[1:] for row in tables("measures")}
    for name, *cells in measures_tables.coverage():
        assert numbers(" ".join(shown[name])) == pytest.approx(numbers(" ".join(cells)), abs=1.01), name
    means = [f"{mean:.0f}" for mean in measures_tables.of_normal_noise()]
    assert (
        "for example {} on average for 1,000 vectors of normal noise with 10 coordinates and {} for".format(
            *means
        )
        in page("measures")
    )


def test_estimates_of_the_constants(tmp_path):
    """The first and the last of the five points of the page, for all clients, up to the digits that another
    processor changes. L is not compared, since it depends on the points between."""
    settings = "run.dtype=float64", f"run.out={tmp_path / 'run'}", "run.progress=false"
    options = "--points", "2"
    output = command("-m", "mpifed", "estimate", "jobs/digits_auc.toml", *options, *settings, folder=ROOT)
    text = (ROOT / "docs/measures.md").read_text(encoding="utf-8")
    for r in (0, 100):
        row = rf"^ +{r}   .*\)"
        ours, theirs = (numbers(re.search(row, own, re.M)[0]) for own in (output, text))
        assert len(ours) == 10 and ours[2:] == pytest.approx(theirs[2:], rel=0.02)


def test_the_budget_that_the_searches_of_the_page_spend(tmp_path):
    """The job is the first of the page."""
    text = (ROOT / "docs/tuning.md").read_text(encoding="utf-8")
    (tmp_path / "tune.toml").write_text(re.search(r"```toml\n(.*?)```", text, re.S)[1], encoding="utf-8")
    output = command("-m", "mpifed", "tune", "tune.toml", folder=tmp_path)
    (first, budget), (second, other) = re.findall(r"([\d,]+) of ([\d,]+) *$", output, re.M)
    assert budget == other
    assert f"{first} and {second} of {budget} calls in the job above" in page("tuning")


@pytest.mark.parametrize(
    "attribute, sets",
    [("run", True), ("load", True), ("Simulation", True), ("Config", False), ("plot", False)],
)
def test_attributes_that_set_an_environment_variable(attribute, sets, monkeypatch, tmp_path):
    monkeypatch.delenv("KMP_DUPLICATE_LIB_OK", raising=False)
    program = f"import os, mpifed; mpifed.{attribute}; print('KMP_DUPLICATE_LIB_OK' in os.environ)"
    assert command("-c", program, folder=tmp_path).split() == [str(sets)]
    named = re.search(r"The first use of (.*?) imports threadpoolctl", page("using"))[1]
    assert (f"`mpifed.{attribute}`" in named) == sets
