#!/usr/bin/env python3
"""Runs the papers' experiments and tests the papers' claims, with the job files in jobs/papers.

python scripts/evidence/reproduce.py [NAME ...] [options] [KEY=VALUE ...]
python scripts/evidence/reproduce.py --claims [FILE] [NAME ...] [options]

Without NAME, the script lists the experiments. For each NAME (``all`` for all experiments, ``--paper KEY``
for those of a paper) it searches the settings of each method, runs the best settings and the settings stated
in the paper, and writes ``figure.png`` and a report to the output folder of the job. Complete runs are
skipped, so the same command continues after an interruption.

``--claims`` executes missing runs of the claims in FILE (default: jobs/papers/claims.toml, whose folder also
contains the job files), stores their results in the folder ``results`` next to FILE, tests the claims, and
writes docs/experiments, or docs/theory_experiments.md for jobs/theory/claims.toml. NAME restricts the runs to
some experiments or claims, whose verdicts are printed last. With ``--draw``, nothing is run: the claims are
tested with complete runs and with stored results of unchanged job files. With ``--processes N``, N
experiments are executed at a time, or N runs of one experiment.

The job files take some minutes on two cores. ``--full`` uses the job files in the papers' sizes; with
``--store``, the pages show its results, without a verdict, when ``--claims`` writes them again. ``--launch``
submits a Slurm job array per job file instead of running it; when it has ended, repeat the command with
``--draw`` in place of ``--launch``.

python scripts/evidence/reproduce.py wgan_by_regularisation
python scripts/evidence/reproduce.py --paper shen2024
python scripts/evidence/reproduce.py --claims --draw
python scripts/evidence/reproduce.py --claims jobs/theory/claims.toml
python scripts/evidence/reproduce.py fair_classes --full --launch "--ranks-per-node 10 --parts 18 --time 1-0"
python scripts/evidence/reproduce.py fair_classes --full --draw --store
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from claims import page
from claims.entries import Book, read
from claims.execution import commands, execute, launch
from claims.figures import draw
from claims.panels import Panel, output_folder, read_panel
from mpifed.base.errors import ConfigError
from mpifed.base.settings import suggest
from mpifed.config.tables import read_table
from mpifed.report.comparison import Rule
from mpifed.report.report import report

ROOT = Path(__file__).resolve().parents[2]
CLAIMS = ROOT / "jobs/papers/claims.toml"


def options() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="name of a job file in jobs/papers without .toml, or all; KEY=VALUE changes settings",
    )
    parser.add_argument(
        "--claims",
        nargs="?",
        const="",
        metavar="FILE",
        help="test the claims of a file (default jobs/papers/claims.toml) and write the pages of experiments",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "docs",
        help="output folder of the pages and their figures (default docs)",
    )
    parser.add_argument(
        "--paper",
        metavar="KEY",
        help="all experiments of a paper, by the beginning of its key: huang2024, zhang, wang ...",
    )
    parser.add_argument("--full", action="store_true", help="use the papers' sizes, for a cluster")
    parser.add_argument(
        "--store",
        action="store_true",
        help="with --full: store the results in the folder results/full for the pages of experiments",
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=1,
        help="number of runs, or with --claims of experiments, at a time; at most one per core (default 1)",
    )
    parser.add_argument(
        "--launch", metavar="OPTIONS", help="submit Slurm job arrays with these options of `mpifed launch`"
    )
    parser.add_argument("--draw", action="store_true", help="use existing runs and stored results only")
    return parser


def main() -> int:
    parser = options()
    given = parser.parse_intermixed_args()
    judged, file = given.claims is not None, CLAIMS
    if given.claims and given.claims.endswith(".toml"):
        file = Path(given.claims)
    elif given.claims:  # --claims NAME: the argument is the name of an experiment or a claim
        given.names.insert(0, given.claims)
    changes = [one for one in given.names if "=" in one]
    if judged and (changes or given.full or given.launch is not None):
        parser.error("--claims cannot be combined with KEY=VALUE, --full or --launch")
    if given.store and (not given.full or given.launch is not None):
        parser.error("--store needs --full, without --launch")
    if given.processes < 1:
        parser.error(f"--processes: expected 1 or more, got {given.processes}")
    try:
        book = read(file)
        names = chosen(book, [one for one in given.names if "=" not in one], given.paper, judged)
        if judged:
            return claims(book, file, names, given)
        if not names:
            print("\n".join(f"{one.name:28}{one.title}" for one in book.experiments.values()))
        return experiments(book, names, changes, given)
    except (ConfigError, ValueError) as error:
        parser.error(str(error))


def chosen(book: Book, names: Sequence[str], paper: str | None, judged: bool) -> list[str]:
    """Return the selected experiments without duplicates; all if claims are tested and none is selected.

    Raises:
        ConfigError: a name or a paper does not exist.
    """
    jobs = {one.name: one.job for one in book.claims} if judged else {}
    known = {name: name for name in book.experiments} | jobs
    for name in names:
        if name not in (*known, "all"):
            raise ConfigError(f"no experiment {name!r}: {suggest(name, [*known, 'all'])}")
    found = [known[name] for name in names if name != "all"]
    if paper:
        own = [name for name, one in book.experiments.items() if one.source.startswith(paper)]
        if not own:
            keys = dict.fromkeys(one.source for one in book.experiments.values())
            raise ConfigError(f"no experiment of {paper!r}: {suggest(paper, keys)}")
        found += own
    every = "all" in names or (judged and not names and not paper)
    return [*book.experiments] if every else [*dict.fromkeys(found)]


def claims(book: Book, file: Path, names: Sequence[str], given: argparse.Namespace) -> int:
    """Execute missing runs, write the pages and print the verdicts; return an exit code."""
    read: dict[str, list[Panel]] = {}
    if not given.draw:
        at_once = min(given.processes, len(names))
        complete = partial(results, book, processes=given.processes // at_once, quiet=at_once > 1)
        with ThreadPoolExecutor(at_once) as executor:
            for name, (code, panels) in zip(names, executor.map(complete, names)):
                if code:
                    executor.shutdown(cancel_futures=True)
                    return code
                read[name] = panels
    source = "" if file == CLAIMS else f"{file} "
    parts = page.sections(book, read)
    path = page.write(book, parts, source, given.out)
    print("\n".join([*page.summary(parts), str(path)]))
    named = {*given.names} | ({*names} if given.paper else set())
    if own := page.summary(parts, named):
        print("\n".join(["", "The selected claims:", *own]))
    return 0


def results(book: Book, name: str, processes: int, quiet: bool) -> tuple[int, list[Panel]]:
    """Execute the missing runs of an experiment and store its results; return an exit code and its panels."""
    for command in commands(book, name, ()):
        if code := execute(command, processes, quiet):
            return code, []
    panels = page.store(book, book.experiments[name])
    print(f"{name}: {sum(len(one.runs) for panel in panels for one in panel.settings)} runs are finished")
    return 0, panels


def experiments(book: Book, names: Sequence[str], changes: Sequence[str], given: argparse.Namespace) -> int:
    """Run, launch or draw experiments; return an exit code."""
    for name in names:
        if given.launch is not None:
            if code := launch(book, name, changes, given.full, given.launch):
                return code
            continue
        for command in [] if given.draw else commands(book, name, changes, given.full):
            if code := execute(command, given.processes):
                return code
        print(figure(book, name, changes, given.full, given.store))
    return 0


def figure(book: Book, name: str, changes: Sequence[str], full: bool, store: bool) -> Path:
    """Write ``figure.png`` and the report of an experiment to the output folder of its job.

    Args:
        store: whether to store its results in the paper's size.
    """
    one = book.experiments[name]
    file = book.full(name) if full else book.job(name)
    panels = [read_panel(file, one.panels, changes)] if full else page.panels_of(book, one, changes)
    runs = [run.folder for panel in panels for setting in panel.settings for run in setting.runs]
    if not runs:
        raise ConfigError(f"{name} has no finished runs: run it first, without --draw")
    folder = output_folder(read_table(file))
    draw(one, panels, folder / "figure.png")
    report(runs, folder, Rule(one.metric))
    if store:
        page.store_full(book, panels[0], name)
    return folder / "figure.png"


if __name__ == "__main__":
    sys.exit(main())
