"""The gallery: jobs with every applicable method, pages that match the jobs, and the command that makes a
page."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from everything import METHODS
from PIL import Image
from runfiles import write

import gallery_figure
import mpifed
from gallery import main, unlisted
from gallery_figure import picture
from gallery_pages import ABSENT, OPTIONAL, index, page
from gallery_standings import PAID, _lead, _level, standings
from mpifed.algorithms import ALGORITHMS
from mpifed.base.errors import ConfigError
from mpifed.config.job import Config
from mpifed.config.tuning import tuning
from mpifed.parallel.comm import SerialComm
from mpifed.problems import PROBLEMS
from mpifed.tuning.trials import preview

ROOT = Path(__file__).parent.parent
JOBS = {path.stem: path for path in sorted((ROOT / "jobs/gallery").glob("*.toml"))}
PAGES = ROOT / "docs/gallery"
SHOWN = sorted(path.stem for path in PAGES.glob("*.md") if path.stem != "index")
TWO = """# Two methods.
rounds = 9
[problem]
name = "Saddle"
clients = 2
d = 3
[oracle]
noise = { name = "gaussian", scale = 0.1 }
[run]
group = "all"
eval_every = 3
out = "runs/Saddle"
[tune]
runs = 2
seeds = 1
fresh = 3
methods = [{ name = "LocalSGDA", q = 2 }, { name = "SmoothedGDA", eta_x = 0.1, eta_y = 0.1, p = [0.1, 1.0] }]
"""


@pytest.fixture
def two(tmp_path, monkeypatch) -> Path:
    """Write the job of two methods into an empty working directory."""
    monkeypatch.chdir(tmp_path)
    Path("Saddle.toml").write_text(TWO)
    return Path("Saddle.toml")


def solves(method: str, table: dict) -> bool:
    """Return whether the package accepts the method for the problem of a job."""
    try:
        config = Config.from_table(table | {"algorithm": {"name": method, **METHODS[method][0]}})
    except ConfigError:
        return False
    return config.algorithm.constrained or not list(config.problem.sets)


@pytest.mark.parametrize("problem", JOBS)
def test_a_job_lists_every_method_that_solves_its_problem(problem):
    """Methods that no job lists have been added since the pages were made."""
    search, compared = tuning(JOBS[problem]), {*ALGORITHMS} - {*unlisted(JOBS.values())}
    table = search.table
    listed = [study.space.name for study in search.studies]
    fitting = {method for method in compared if solves(method, table)} - (OPTIONAL - {*listed})
    assert set(listed) == fitting and len(listed) == len(fitting), (
        f"jobs/gallery/{problem}.toml lacks {sorted(fitting - set(listed))} and has methods that cannot "
        f"solve its problem: {sorted(set(listed) - fitting)}"
    )
    assert table["problem"]["name"] == problem and search.out == Path("runs/gallery", problem)


@pytest.mark.parametrize("problem", JOBS)
def test_a_job_has_a_metric_for_selection(problem):
    """One method of each family is tried, since a minimax problem is another object as a game."""
    search = tuning(JOBS[problem])
    for study in {ALGORITHMS[study.space.name].family: study for study in search.studies}.values():
        assert preview(study, SerialComm()).selection_metric(search.tune.metric)


def test_every_problem_has_a_job_or_a_reason():
    assert set(JOBS) | set(ABSENT) == set(PROBLEMS) and not set(JOBS) & set(ABSENT)


@pytest.mark.parametrize("problem", SHOWN)
def test_a_page_matches_its_job(problem):
    """Its runs are not stored, so only the methods are compared: those of the job, each once."""
    lines = (PAGES / f"{problem}.md").read_text(encoding="utf-8").splitlines()
    rows = [line.split(" | ") for line in lines if line[:2] == "| " and line[2].isdigit()]
    listed = [study.space.name for study in tuning(JOBS[problem]).studies]
    assert sorted(row[1] for row in rows) == sorted(listed)
    path = PAGES / f"{problem}.png"
    assert Image.open(path).width == 1200 and path.stat().st_size < 150_000  # some 40 curves
    assert (PAGES / f"{problem}_small.png").stat().st_size < 12_000


def test_the_index_matches_the_pages():
    assert (PAGES / "index.md").read_text(encoding="utf-8") == index(PAGES)
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert re.findall(r"gallery/(\w+)\.md", nav) == ["index", *SHOWN]


def test_one_command_makes_a_page(two, monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", ["gallery.py", "--jobs", ".", "--pages", "docs", "Saddle"])
    assert main() == 0, capfd.readouterr().err
    text = Path("docs/Saddle.md").read_text(encoding="utf-8")
    assert "| 2 | " in text and "| 3 | " not in text and "p = " in text and "rounds = 9" in text
    assert Image.open("docs/Saddle.png").width == 1200
    assert "[Saddle](Saddle.md)" in Path("docs/index.md").read_text(encoding="utf-8")


def test_a_name_without_a_job_is_reported(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gallery.py", "Sadle"])
    with pytest.raises(SystemExit) as end:
        main()
    error = capsys.readouterr().err
    assert end.value.code == 2 and "no job 'Sadle'" in error and "'Saddle'" in error


def test_leads_are_reported_as_ratio_and_interval():
    ahead, next_, lost, level = (SimpleNamespace(name=name) for name in ("ahead", "next", "lost", "level"))
    lead = _lead(
        [
            (ahead, {1: 1.0, 2: 1.1, 3: 0.9}),
            (level, {1: 1.2, 2: 0.9, 3: 1.1}),
            (next_, {1: 2.0, 2: 2.1, 3: 1.9}),
            (lost, {1: 3.0, 2: np.nan, 3: 3.0}),
        ],
        True,
    )
    assert (lead.first, lead.second, lead.rivals, lead.behind, lead.lost) == (ahead, level, 3, 2, 1)
    assert lead.ahead == pytest.approx(10 ** (0.2 / 3)) and lead.low < 1 < lead.high
    huge = _lead([(ahead, {1: 0.0, 2: 0.1, 3: 0.0}), (lost, {1: 300.0, 2: 9.0, 3: 1.0})], True)
    assert huge.high == np.inf and huge.low < 1e-300  # the logarithms are out of the range of floats


def test_the_level_is_reached_by_the_median_method():
    assert _level([0.7, 0.012, 0.0345], maximised=False) == 0.035
    assert _level([0.3, 0.9449, 0.958, 0.2], maximised=True) == 0.3
    assert _level([0.3, 0.9449, 0.958], maximised=True) == 0.94
    assert _level([0.0, 0.0, 0.4], maximised=True) == 0


def test_costs_are_those_of_the_first_evaluation_at_the_level(two):
    """Compared with values computed from the runs."""
    search = tuning(two)
    for study in search.studies:
        for seed in (100, 101):
            settings = study.space.costliest
            table = study.config(settings, seed).table()
            table["run"]["out"] = f"runs/Saddle/best/{study.method}-{seed}"
            mpifed.run(Config.from_table(table))
    found = standings(two)
    first = found.entries[0]
    assert len(first.paid) == len(PAID) == 3
    for run in first.setting.runs:
        values = run.metrics["error"]
        at = int(run.metric_rounds[np.flatnonzero(values <= found.level)[0]])
        paid = {axis: cost[run.config["seed"]] for axis, cost in first.paid.items()}
        row = np.searchsorted(run.costs["round"], at)
        sent = run.costs["bytes_up"][row] + run.costs["bytes_down"][row]
        assert paid == {"rounds": at, "oracle calls": run.costs["oracle_calls"][row], "bytes": sent}
    finals = [np.mean([*one.finals.values()]) for one in found.entries]
    assert finals == sorted(finals) and found.ratios
    worst = [max(min(run.metrics["error"]) for run in one.setting.runs) for one in found.entries]
    assert 1 <= found.level / max(worst) <= 1.1  # the second of two methods, rounded up
    assert page(found, two).count("\n| ") == 2 + 1


def test_a_page_counts_the_seeds_that_diverge(two, tmp_path, monkeypatch):
    """Synthetic runs: one of three seeds of the method with the better final value diverges at once."""
    ends = {"LocalSGDA": [0.5, 0.6, 0.7], "SmoothedGDA": [0.1, 0.3, None]}
    for method, own in ends.items():
        for seed, last in zip((100, 101, 102), own):
            config = {"seed": seed, "rounds": 9, "problem": {"name": "Saddle", "clients": 2}}
            lost = dict(rounds=2, stopped="non-finite value in round 3", error=[60.0])
            how = dict(rounds=9, error=[60.0, 5.0, 1.0 + last, last]) if last else lost
            write(Path(f"runs/Saddle/best/{method}-{seed}"), method, every=3, config=config, **how)
    found = standings(two)
    text = page(found, two)
    rows = [line.split(" | ") for line in text.splitlines() if line[:2] == "| " and line[2].isdigit()]
    assert [row[1] for row in rows] == ["LocalSGDA", "SmoothedGDA"], "a lost seed ranks behind"
    assert rows[0][3] == "0.6 ± 0.1" and rows[1][3] == "median 0.2 (0.1 to 0.3), 2 of 3 finite"
    assert "not finite" not in text and "nan" not in text
    assert "The next method, SmoothedGDA: median 0.2 (0.1 to 0.3), 2 of 3 finite. 1 of 1 other" in text
    assert "some seeds of 1 diverge" in text and "ranked first by the number of diverged seeds" in text
    assert "Lines: median over the seeds; bands: 10 % to 90 % quantile." in text
    figures = []
    monkeypatch.setattr(gallery_figure, "_save", lambda figure, path: figures.append(figure))
    picture(found, tmp_path / "a.png")
    own = {line.get_label(): [*line.get_ydata()] for line in figures[0].axes[0].lines}
    assert own["SmoothedGDA (2 of 3 finite)"] == pytest.approx([60, 5, 1.2, 0.2])


def test_missing_runs_are_reported(two):
    with pytest.raises(ValueError, match="expected a run file"):
        standings(two)
