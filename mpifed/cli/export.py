"""``mpifed export``: writes a trained network to a safetensors file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mpifed.base.errors import ConfigError
from mpifed.cli.output import echo
from mpifed.storage.files import checkpoints, expect_writable, is_weights

if TYPE_CHECKING:
    import torch

    from mpifed.running.result import Result
    from mpifed.storage.results import OutputPoint, RunData

__all__ = ["export"]


@click.command()
@click.argument("run", type=click.Path())
@click.option(
    "--to",
    required=True,
    type=click.Path(dir_okay=False),
    metavar="FILE.safetensors",
    help="Path of the file.",
)
@click.option("--overwrite", is_flag=True, help="Replace FILE if it was written by this command.")
def export(run, to, overwrite):
    """Write the weights of the network in the folder RUN to a safetensors file, by parameter name.

    \b
    mpifed export runs/digits --to model.safetensors
    mpifed run JOB initial=model.safetensors    # start a run from these weights

    In Python, mpifed.load("runs/digits").model() is the network as a torch module. To load the file with
    torch: net.load_state_dict(safetensors.torch.load_file("model.safetensors")). If the run has not ended,
    its latest results are exported. No code of the run is executed. The metadata of the file contain the
    run, method, problem, round, metrics, versions and a digest of the settings. Variables outside the
    network, such as a, b and alpha of DeepAUC, are only in RUN/run.h5.
    """
    if Path(to).suffix != ".safetensors":
        raise click.UsageError(
            f"--to: expected a name that ends in .safetensors, got {to}; for other formats use "
            f"torch.save(mpifed.load({run!r}).state_dict(), FILE)"
        )
    expect_writable(to, is_weights)
    if os.path.lexists(to) and not overwrite:
        raise click.UsageError(f"{to} exists: replace it with --overwrite, or choose another name")
    _expect_results(Path(run))
    echo(_write(run, to))


def _expect_results(run: Path) -> None:
    """Raise a UsageError if the folder contains no results, with a folder that does or how to create them."""
    from mpifed.storage.files import RUN_FILE

    if run.is_file() or (run / RUN_FILE).is_file():
        return
    if checkpoints(run):
        raise click.UsageError(
            f"{run} has checkpoints but no {RUN_FILE}: continue the run with `mpifed resume {run}`"
        )
    below = sorted(path.parent for path in run.rglob(RUN_FILE))
    hint = f"expected one of the {len(below)} runs below it, e.g. {below[0]}" if below else "expected a run"
    raise click.UsageError(f"there is no {RUN_FILE} in {run}: {hint}")


def _weights(data: RunData, point: OutputPoint, result: Result) -> dict[str, torch.Tensor]:
    """Return the stored parameters, buffers and frozen parameters of the network, without executing code.

    Raises:
        ConfigError: the problem has no network.
    """
    import torch

    if not result.network:
        raise ConfigError(
            f"{data.config['problem']['name'].rpartition(':')[2]} has no neural network to export: its "
            f"variables are in the group `final` of {data.path}"
        )
    named = {name: result.parameters[block][key] for name, (block, key) in result.network.items()}
    named |= {name: named[first] for name, first in point.tied.items()}
    named |= {name: torch.from_numpy(values) for name, values in point.fixed.items()}
    return {name: values.clone() for name, values in named.items()}


def _write(run: str, to: str) -> str:
    """Write the file and return its path."""
    from mpifed.running.result import from_files
    from mpifed.storage import results
    from mpifed.storage.export import metadata_of, write_weights

    try:
        data, outcome = results.read(run)
        result = from_files(data, outcome)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    weights = _weights(data, outcome.point, result)
    non_finite = [name for name, values in weights.items() if not values.isfinite().all()]
    metadata = metadata_of(data, result.metrics)
    if non_finite:
        raise ConfigError(
            f"the weights of {run} after round {metadata['round']} are not finite "
            f"({', '.join(non_finite[:3])}): {result.stopped or 'the run has not ended'}"
        )
    write_weights(to, weights, metadata)
    if result.end is None:
        rounds = f"{metadata['round']} of {data.config['rounds']}"
        echo(f"mpifed: {run} has not ended: exporting its weights after round {rounds}", err=True)
    return to
