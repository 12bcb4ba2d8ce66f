"""The commands ``mpifed list``, ``mpifed info`` and ``mpifed schema``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mpifed.base.paths import expand_home
from mpifed.cli.options import HomePath, allow_code_option, complete_name
from mpifed.cli.output import echo
from mpifed.storage.files import expect_writable, is_figure

if TYPE_CHECKING:
    from mpifed.config.job import Config

__all__ = ["info", "list_", "schema"]


@click.command("list")
@click.argument("word", default="", metavar="[FILTER]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(word, as_json):
    """List all methods, problems, data sets, models and other objects that a job file can name.

    FILTER is a text in the type, the name or the description of an object, such as `compositional`.
    """
    from mpifed.cli.catalogue import catalogue, print_catalogue

    groups = catalogue(word)
    if not groups:
        raise click.UsageError(f"no object contains {word!r}: `mpifed list` lists all objects")
    echo(json.dumps(groups, indent=2)) if as_json else print_catalogue(groups)


@click.command()
@click.argument("name", shell_complete=complete_name)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--out", type=HomePath(), help="For a job file: path of the figure.  [default: JOB.clients.png]"
)
@click.option("--ranks", type=click.IntRange(1), help="For a job file: number of MPI ranks.  [default: 1]")
@click.option("--nodes", type=click.IntRange(1), help="For a job file: number of nodes.  [default: 1]")
@click.option("--cite", is_flag=True, help="Print the BibTeX entries of NAME's sources instead.")
@allow_code_option(lambda settings: settings["name"].endswith(".toml"))
def info(name, overrides, out, ranks, nodes, cite):
    """Explain NAME: its settings with values, defaults and effects, its source, and the cost of a method.

    NAME is a name that `mpifed list` prints, a group of names (partition, model, noise, ...), a user-defined
    class ./file.py:Class, a section of a job file (run, oracle, ...; `job` for the settings outside the
    sections), a setting (run.group), or `settings` for a page with all settings.

    For a job file, show which client has how many samples of each class, as a table and a figure, and the
    memory, the communication and the checkpoints of a run on --ranks ranks of --nodes nodes: one client
    executes the first rounds. KEY=VALUE changes settings of the job. Of a [sweep], this is the first run; of
    a [tune], the run of the first method with its costliest settings.
    """
    if name.endswith(".toml"):
        if cite:
            raise click.UsageError("--cite is for names; for the sources of a run: mpifed report RUN --cite")
        _show_job(name, overrides, out, ranks or 1, nodes or 1)
        return
    if overrides or out or ranks or nodes:
        raise click.UsageError(f"KEY=VALUE, --out, --ranks and --nodes are for job files (.toml), got {name}")
    from mpifed.cli.catalogue import print_citation, print_info

    print_citation(name) if cite else print_info(name)


def _show_job(job: str, overrides: Sequence[str], out: str | None, ranks: int, nodes: int) -> None:
    """Show the samples of each client, and the expected costs of a run."""
    from mpifed.cli.expected_costs import print_costs
    from mpifed.report.client_samples import prepared_class_counts, print_counts, write_figure
    from mpifed.simulation.state import expect_constants

    if nodes > ranks:
        raise click.UsageError(f"expected at most --nodes = --ranks = {ranks}, got --nodes {nodes}")
    job = expand_home(job)
    figure = Path(out) if out else Path(job).with_suffix(".clients.png")
    expect_writable(figure, is_figure)
    config, which = _config_of(job, list(overrides))
    echo(which) if which else None
    expect_constants(config.problem)
    print_costs(config, ranks, nodes)  # prepares the problem; later, its memory would include the figure
    if samples := prepared_class_counts(config):
        echo()
        print_counts(samples)
        write_figure(samples, figure)
        echo(figure)


def _config_of(job: str, overrides: list[str]) -> tuple[Config, str]:
    """Return the configuration of a job, and "", or that of one of several runs, and a sentence about it.

    Raises:
        ConfigError: the file cannot be read, or a setting is wrong.
    """
    from mpifed.config.grids import variant_tables
    from mpifed.config.job import Config
    from mpifed.config.tables import read_job
    from mpifed.config.tuning import tuning

    table = read_job(job, overrides)
    if "tune" in table:
        search = tuning(job, overrides)
        number, title = len(search.studies), search.studies[0].title
        searches = "1 search" if number == 1 else f"{number} searches"
        return search.config, f"[tune] has {searches}; the costliest settings of the first, {title}:\n"
    if "sweep" in table:
        tables = variant_tables(job, overrides)
        name, first = next(iter(tables.items()))
        return Config.from_table(first), f"[sweep] has {len(tables)} runs; the first, {name}:\n"
    return Config.load(job, overrides), ""


@click.command()
def schema():
    """Print the JSON schema of job files: mpifed schema > mpifed.schema.json.

    Editors use it to complete, explain and check the settings of a job file: begin the file with the line
    `#:schema mpifed.schema.json` (in VS Code with the extension Even Better TOML).
    """
    from mpifed.cli.schema import job_schema

    echo(json.dumps(job_schema(), indent=1, ensure_ascii=False))
