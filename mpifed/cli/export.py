"""``mpifed export``: the trained network as a safetensors file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mpifed.base.errors import ConfigError
from mpifed.cli.output import echo
from mpifed.storage.atomic import expect_place
from mpifed.storage.ownership import checkpoints, is_weights

if TYPE_CHECKING:
    import torch

    from mpifed.running.result import Result
    from mpifed.storage.results import Point, RunData

__all__ = ["export"]


@click.command()
@click.argument("run", type=click.Path())
@click.option(
    "--to",
    required=True,
    type=click.Path(dir_okay=False),
    metavar="FILE.safetensors",
    help="The file of weights.",
)
@click.option("--overwrite", is_flag=True, help="Replace FILE if it is an earlier export.")
def export(run, to, overwrite):
    """Write the weights of RUN's network to a safetensors file, by the parameters' names.

    \b
    mpifed export runs/digits --to model.safetensors
    mpifed run JOB initial=model.safetensors                          # a run that starts from them
    python -c 'import mpifed; print(mpifed.load("runs/digits").model())'   # the same as a torch module

    In plain torch: net.load_state_dict(safetensors.torch.load_file("model.safetensors")). RUN is a run's
    folder; if the run has not ended, its latest results are exported. None of the code that the run names is
    executed. The metadata of the file record the run, method, problem, round, metrics, versions and the
    digest of the settings. Variables outside the network, such as a, b and alpha of DeepAUC, stay in
    RUN/run.h5.
    """
    if Path(to).suffix != ".safetensors":
        raise click.UsageError(
            f"--to {to}: expected a name that ends in .safetensors; for another format, "
            f"torch.save(mpifed.load({run!r}).state_dict(), FILE)"
        )
    expect_place(to, is_weights)
    if os.path.lexists(to) and not overwrite:
        raise click.UsageError(f"{to} exists already: --overwrite replaces it")
    _expect_results(Path(run))
    echo(_write(run, to))


def _expect_results(run: Path) -> None:
    """Raises:
    UsageError: the folder contains no results; names folders that do, or how to create them.
    """
    from mpifed.storage.format import RUN_FILE

    if run.is_file() or (run / RUN_FILE).is_file():
        return
    if checkpoints(run):
        raise click.UsageError(
            f"{run} has checkpoints and no {RUN_FILE}: `mpifed resume {run}` continues and writes it"
        )
    below = sorted(path.parent for path in run.rglob(RUN_FILE))
    hint = f"name one of the {len(below)} runs in it, e.g. {below[0]}" if below else "expected a run's folder"
    raise click.UsageError(f"there is no {RUN_FILE} in {run}: {hint}")


def _weights(data: RunData, point: Point, result: Result) -> dict[str, torch.Tensor]:
    """The network's stored parameters, buffers and frozen parameters; no code is executed.

    Raises:
        ConfigError: the problem has no network.
    """
    import torch

    if not result.network:
        raise ConfigError(
            f"{data.config['problem']['name'].rpartition(':')[2]} has no network whose weights could be "
            f"exported: its variables are in {data.path}, in the group final"
        )
    named = {name: result.parameters[block][key] for name, (block, key) in result.network.items()}
    named |= {name: named[first] for name, first in point.tied.items()}
    named |= {name: torch.from_numpy(values) for name, values in point.fixed.items()}
    return {name: values.clone() for name, values in named.items()}


def _write(run: str, to: str) -> str:
    """Write the file and return its name."""
    from mpifed.running.result import of_files
    from mpifed.storage import results
    from mpifed.storage.export import about, write_weights

    try:
        data, outcome = results.read(run)
        result = of_files(data, outcome)
    except ValueError as fault:
        raise click.UsageError(str(fault)) from None
    weights = _weights(data, outcome.point, result)
    broken = [name for name, values in weights.items() if not values.isfinite().all()]
    metadata = about(data, result.metrics)
    if broken:
        raise ConfigError(
            f"the weights of {run} after round {metadata['round']} are not finite ({', '.join(broken[:3])}): "
            f"{result.stopped or 'the run has not ended'}"
        )
    write_weights(to, weights, metadata)
    if result.end is None:
        text = f"mpifed: {run} has not ended: these are its weights after round {metadata['round']}"
        echo(f"{text} of {data.config['rounds']}", err=True)
    return to
