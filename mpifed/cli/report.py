"""``mpifed report``: compares runs in tables, figures and a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mpifed.cli.errors import describe
from mpifed.cli.options import HomePath
from mpifed.cli.output import echo

__all__ = ["report"]


#: Options of the figure and the table for a paper → the outputs that they apply to.
_NEEDED = {
    **dict.fromkeys(("width", "x"), ("figure",)),
    **dict.fromkeys(("metrics", "labels"), ("figure", "latex")),
}
_FILE = HomePath(dir_okay=False, path_type=Path)


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


@click.command()
@click.argument("places", nargs=-1, required=True, type=HomePath(), metavar="FOLDER...")
@click.option("--out", type=HomePath(), default="report", help="Folder of the page, figures and tables.")
@click.option(
    "--metric",
    help="Metric that selects the best settings.  [default: that of `mpifed tune`, or the first metric]",
)
@click.option(
    "--best",
    "by",
    type=click.Choice(["final", "best"]),
    default="final",
    help="Compare the last or the best value of each run.",
)
@click.option("--target", type=float, help="Print the number of rounds until the metric reaches this value.")
@click.option(
    "--each",
    multiple=True,
    metavar="SETTING",
    help="Select the best settings separately for each value of this setting of a method, e.g. q.",
)
@click.option(
    "--figure",
    type=_FILE,
    metavar="FILE",
    help="Write a figure for a paper: .pdf, .svg or .eps.",
)
@click.option(
    "--width", help="Width of the figure, e.g. 3.25in, 84mm or 240pt (TeX points).  [default: 3.25in]"
)
@click.option(
    "--x",
    type=_names,
    metavar="TEXT",
    help="Horizontal axes of the figure, one panel each, e.g. rounds,bytes.  [default: rounds]",
)
@click.option("--latex", type=_FILE, metavar="FILE", help="Write a LaTeX table.")
@click.option(
    "--metrics",
    type=_names,
    metavar="TEXT",
    help="Metrics in figure and LaTeX table, e.g. error,auc.  [default: the selecting metric]",
)
@click.option("--labels", type=_FILE, metavar="FILE", help="TOML file of labels in figure and LaTeX table.")
@click.option("--cite", is_flag=True, help="Only print the BibTeX entries of methods, problems and data.")
def report(places, out, metric, by, target, each, cite, **paper):
    """Compare the runs in FOLDER... and below: writes a page for a browser, curves and tables.

    Runs that differ only in the seed are averaged. For every method, the setting is selected that has the
    fewest runs with non-finite values, then the best mean of the metric over the seeds, on the validation
    split if there is one. Problems declare which metrics are maximised.
    """
    from mpifed.report.citations import cite as bibtex
    from mpifed.report.comparison import Rule
    from mpifed.report.report import report as write_report

    if cite and any(paper.values()):
        raise click.UsageError("--cite only prints: leave out the options of figures and tables")
    try:
        if cite:
            text = bibtex(places)
        else:
            written = write_report(places, out, Rule(metric, by, target, each), _paper(paper))
            text = "\n".join(map(str, written))
    except (OSError, ValueError) as error:
        raise click.UsageError(describe(error)) from None
    echo(text)


def _paper(options: dict[str, Any]):
    """Return the figure and the LaTeX table of the command's options.

    Raises:
        UsageError: an option is given without the output that it applies to.
    """
    from mpifed.report.report import Paper

    given = {name: value for name, value in options.items() if value}
    for name, outputs in _NEEDED.items():
        if name in given and not given.keys() & outputs:
            needed = " or ".join(f"--{output} FILE" for output in outputs)
            raise click.UsageError(f"--{name} needs {needed}")
    return Paper(**given)
