#!/usr/bin/env python3
"""Creates the gallery: for each problem, a page that compares all methods that can solve it.

python scripts/evidence/gallery.py [PROBLEM ...] [options]

For each PROBLEM, a job file in jobs/gallery (default: all), `mpifed tune` searches the best settings of every
method with the same budget, and `mpifed sweep` runs them with new seeds. Then docs/gallery/PROBLEM.md and its
figures are written, and docs/gallery/index.md is updated. Complete runs are skipped, so the same command
continues after an interruption.

python scripts/evidence/gallery.py Saddle
python scripts/evidence/gallery.py --draw
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from claims.execution import execute as run
from gallery_figure import picture, thumbnail
from gallery_pages import OPTIONAL, index, page
from gallery_standings import standings
from mpifed.algorithms import ALGORITHMS
from mpifed.base.settings import suggest
from mpifed.config.tuning import tuning
from mpifed.tuning.results import BEST

ROOT = Path(__file__).resolve().parents[2]


def run_job(job: Path) -> int:
    """Run the search and the best settings; return the first exit code that is not 0."""
    best = tuning(job).out / BEST
    return run(["tune", str(job)], 1) or run(["sweep", str(best)], 1)


def publish(job: Path, pages: Path) -> Path:
    """Write the page of a problem and its figures; return the path of the page."""
    found = standings(job)
    pages.mkdir(parents=True, exist_ok=True)
    picture(found, pages / f"{job.stem}.png")
    thumbnail(found, pages / f"{job.stem}_small.png")
    path = pages / f"{job.stem}.md"
    path.write_text(page(found, job), encoding="utf-8")
    return path


def unlisted(jobs: Iterable[Path]) -> list[str]:
    """Return the methods that no job compares, in order."""
    text = "".join(job.read_text(encoding="utf-8") for job in jobs)
    return [name for name in ALGORITHMS if f'"{name}"' not in text]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="PROBLEM", help="name of a job file without .toml")
    parser.add_argument("--draw", action="store_true", help="write the pages from existing runs")
    parser.add_argument("--jobs", type=Path, default=ROOT / "jobs/gallery", help="folder of job files")
    parser.add_argument("--pages", type=Path, default=ROOT / "docs/gallery", help="output folder")
    given = parser.parse_args()
    known = sorted(path.stem for path in given.jobs.glob("*.toml"))
    for name in given.names:
        if name not in known:
            parser.error(f"no job {name!r} in {given.jobs}: {suggest(name, known)}")
    if new := [name for name in unlisted(given.jobs.glob("*.toml")) if name not in OPTIONAL]:
        print(f"{given.jobs}: add {', '.join(new)} to each job whose problem the method solves")
    for name in given.names or known:
        job = given.jobs / f"{name}.toml"
        if not given.draw and (code := run_job(job)):
            return code
        print(publish(job, given.pages))
    (given.pages / "index.md").write_text(index(given.pages), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
