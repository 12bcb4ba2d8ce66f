"""``mpifed report``."""

from __future__ import annotations

import click

from mpifed.cli.errors import spelled
from mpifed.cli.output import echo

__all__ = ["report"]


@click.command()
@click.argument("places", nargs=-1, required=True, type=click.Path(), metavar="FOLDER...")
@click.option(
    "--out", default="report", show_default=True, help="Folder for the page, the figures and the tables."
)
@click.option("--metric", help="The metric that decides which setting is best; by default the runs' first.")
@click.option(
    "--best",
    "by",
    type=click.Choice(["final", "best"]),
    default="final",
    show_default=True,
    help="Whether a run counts with its last value or with its best.",
)
@click.option(
    "--target", type=float, help="A value of the metric: tell the rounds that it takes to reach it."
)
@click.option(
    "--each",
    multiple=True,
    metavar="SETTING",
    help="A setting of methods, e.g. q, that is not tuned: choose the best for each of its values.",
)
@click.option(
    "--figure",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="A figure for a paper: .pdf, .svg or .eps.",
)
@click.option("--width", help="Its width, e.g. 3.25in, 84mm or 240pt (TeX's).  [default: 3.25in]")
@click.option("--x", help="Its axes, e.g. bytes or rounds,bytes (a panel each).  [default: rounds]")
@click.option("--latex", type=click.Path(dir_okay=False), metavar="FILE", help="A LaTeX table for a paper.")
@click.option("--metrics", help="What both show, e.g. error or error,auc; by default what decides.")
@click.option(
    "--labels", type=click.Path(dir_okay=False), metavar="FILE", help="New names for both, from a TOML file."
)
@click.option(
    "--cite", is_flag=True, help="Print the BibTeX entries of methods, problems and data, and write nothing."
)
def report(places, out, metric, by, target, each, cite, **paper):
    """Compare the runs in FOLDER... and below: a page for a browser, curves and tables.

    Runs that differ only in the seed are averaged, and of every method the best setting is chosen: fewest
    runs that end in non-finite values, then the best mean of the metric over the seeds. Problems declare
    which metrics are to be maximised.
    """
    from mpifed.report.citations import cite as bibtex
    from mpifed.report.comparison import Rule
    from mpifed.report.report import report as write_report

    if cite and any(paper.values()):
        raise click.UsageError("--cite writes nothing: leave the options of figures and tables out")
    try:
        if cite:
            text = bibtex(places)
        else:
            written = write_report(places, out, Rule(metric, by, target, each), _paper(**paper))
            text = "\n".join(map(str, written))
    except (OSError, ValueError) as fault:
        raise click.UsageError(spelled(fault)) from None
    echo(text)


def _paper(figure, latex, width, x, metrics, labels):
    """What is wanted for a paper; options without what they are of are refused."""
    from pathlib import Path

    from mpifed.report.report import Paper

    for name, value, of in (("width", width, figure), ("x", x, figure), ("metrics", metrics, figure or latex),
                            ("labels", labels, figure or latex)):  # fmt: skip
        if value and not of:
            raise click.UsageError(
                f"--{name} needs --figure FILE" + (" or --latex FILE" if name[0] in "ml" else "")
            )
    lists = {"metrics": metrics, "x": x}
    given = {name: tuple(part.strip() for part in text.split(",")) for name, text in lists.items() if text}
    given |= {"width": width} if width else {}
    files = {"figure": figure, "latex": latex, "labels": labels}
    return Paper(**given, **{name: path and Path(path) for name, path in files.items()})
