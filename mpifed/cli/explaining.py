"""The commands that explain: ``mpifed list``, ``mpifed info`` and ``mpifed schema``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from mpifed.cli.completion import names
from mpifed.cli.options import looking
from mpifed.cli.output import echo
from mpifed.storage.atomic import expect_place
from mpifed.storage.ownership import is_figure

__all__ = ["info", "list_", "schema"]


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def list_(as_json):
    """List methods, problems, data sets, models, partitions, matrices, schedules, noises and sets."""
    from mpifed.cli.catalogue import catalogue, print_catalogue

    echo(json.dumps(catalogue(), indent=2)) if as_json else print_catalogue()


@click.command()
@click.argument("name", shell_complete=names)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--out", type=click.Path(), help="For a job: the figure's file (else JOB.clients.png beside it)."
)
@click.option("--cite", is_flag=True, help="Print the BibTeX entries of NAME's sources instead.")
@looking(lambda settings: settings["name"].endswith(".toml"))
def info(name, overrides, out, cite):
    """Explain NAME: settings with values, default and effect, records, phases, cost per round, source,
    readings.

    NAME is anything that `mpifed list` shows, a kind of these (partition, model, noise), your own
    ./file.py:Class, a section of a job file (run, oracle, clock, sweep, ...; `job` for what stands outside),
    a setting (run.group), or `settings` for all settings as one page. For a job file, with settings changed
    by KEY=VALUE, show who holds what: the samples of every class on every client, as a table and a figure.
    """
    if name.endswith(".toml"):
        echo(_show_clients(name, overrides, out))
        return
    if overrides or out:
        raise click.UsageError(f"KEY=VALUE and --out are for job files (.toml), not for {name}")
    from mpifed.cli.catalogue import print_citation, print_info

    print_citation(name) if cite else print_info(name)


def _show_clients(job: str, overrides: Sequence[str], out: str | None) -> Path:
    """Show who holds what of a job file; the path of the figure."""
    from mpifed.config.job import Config
    from mpifed.report.client_samples import show
    from mpifed.simulation.memory import expect_constants

    figure = Path(out) if out else Path(job).with_suffix(".clients.png")
    expect_place(figure, is_figure)
    config = Config.load(job, overrides)
    expect_constants(config.problem)
    show(config, figure)
    return figure


@click.command()
def schema():
    """Print the JSON schema of job files, for editors: mpifed schema > mpifed.schema.json.

    With `#:schema mpifed.schema.json` as the first line of a job file, VS Code (Even Better TOML) and others
    complete and explain its settings and mark what is wrong.
    """
    from mpifed.cli.schema import job_schema

    echo(json.dumps(job_schema(), indent=1, ensure_ascii=False))
