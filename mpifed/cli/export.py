"""``mpifed export``: writes a trained network to a safetensors file."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mpifed.base.errors import ConfigError
from mpifed.cli.options import HomePath
from mpifed.cli.output import echo
from mpifed.storage.files import RUN_FILE, checkpoints, expect_writable, is_weights, round_of, writing

if TYPE_CHECKING:
    import torch

    from mpifed.running.result import Result
    from mpifed.storage.results import OutputPoint, RunData

__all__ = ["export"]


@click.command()
@click.argument("run", type=HomePath())
@click.option(
    "--to",
    required=True,
    type=HomePath(dir_okay=False),
    metavar="FILE.safetensors",
    help="Path of the file.",
)
@click.option("--best", is_flag=True, help="Export the best evaluated point (run.keep_best).")
@click.option(
    "--round",
    "number",
    type=click.IntRange(0),
    metavar="R",
    help="Export the point after round R, if it is kept.",
)
@click.option("--overwrite", is_flag=True, help="Replace FILE if it was written by this command.")
def export(run, to, best, number, overwrite):
    """Write the weights of the network in the folder RUN to a safetensors file, by parameter name.

    \b
    mpifed export runs/digits --to model.safetensors
    mpifed export runs/digits --best --to best.safetensors       # run.keep_best
    mpifed export runs/digits --round 20 --to r20.safetensors    # run.keep
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
    if best and number is not None:
        raise click.UsageError("expected --best or --round, got both")
    _expect_results(Path(run))
    _write(run, to, best, number)
    echo(to)


def _expect_results(run: Path) -> None:
    """Raise a UsageError if the folder contains no results; the message names a folder or command instead."""
    if run.is_file() or (run / RUN_FILE).is_file():
        return
    if checkpoints(run):
        raise click.UsageError(
            f"{run} has checkpoints but no {RUN_FILE}: continue the run with `mpifed resume {run}`"
        )
    from mpifed.storage.results import files_below

    below = [path.parent for path in files_below(run)]
    hint = f"expected one of the {len(below)} runs below it, e.g. {below[0]}" if below else "expected a run"
    raise click.UsageError(f"there is no {RUN_FILE} in {run}: {hint}")


def _weights(data: RunData, point: OutputPoint, result: Result) -> dict[str, torch.Tensor]:
    """Return the stored parameters, buffers and frozen parameters of the network, without executing code.

    Raises:
        ConfigError: the problem has no network.
    """
    import torch

    from mpifed.storage.results import class_name

    if not result.network:
        raise ConfigError(
            f"{class_name(data.config, 'problem')} has no neural network to export: its variables are in the "
            f"group `final` of {data.path}"
        )
    named = {name: result.parameters[block][key] for name, (block, key) in result.network.items()}
    named |= {name: named[first] for name, first in point.tied.items()}
    named |= {name: torch.from_numpy(values) for name, values in point.fixed.items()}
    return {name: values.clone() for name, values in named.items()}


def _selected(data: RunData, result: Result, best: bool, number: int | None) -> Result:
    """Return the result at its best point, after round ``number``, or by default at its output point.

    Raises:
        UsageError: this point is not kept.
    """
    import torch

    from mpifed.running.checkpointing import expect_state
    from mpifed.storage import checkpoint

    if best and result.best is None:
        raise click.UsageError(f"{data.folder} has no best point: set run.keep_best = METRIC in the job")
    if best or (number is not None and result.best and result.best.round == number):
        return result.best
    if number is None or number == result.round:
        return result
    kept = {round_of(path): path for path in checkpoints(data.folder)} if data.folder.is_dir() else {}
    if number not in kept:
        rounds = sorted({*kept, result.round, *([result.best.round] if result.best else [])})
        raise click.UsageError(
            f"the point after round {number} is not kept in {data.folder}: expected one of "
            f"{', '.join(map(str, rounds))} (run.keep is the number of checkpoints to keep)"
        )
    try:
        header, arrays = checkpoint.load(kept[number], expect_state)
    except ValueError as error:
        raise click.UsageError(f"{kept[number]} cannot be used: {error}") from None
    sizes = [len(values) for values in result.point.values()]
    if header["sizes"]["output"] != sum(sizes):
        raise click.UsageError(f"{kept[number]} is a checkpoint of another run than {data.path}")
    blocks = torch.from_numpy(arrays["output"]).split(sizes)
    kept_result = result.at(dict(zip(result.point, blocks)), number)
    # The metrics of a run that returns the point of a random round are those of its last iterate.
    return replace(kept_result, metrics={}) if data.config.get("output") == "uniform" else kept_result


def _origin(run: RunData, result: Result) -> dict:
    """Return the metadata of the file; ``config`` is the digest of the settings as JSON with sorted keys."""
    from mpifed.storage.results import class_name

    settings = json.dumps(run.config, sort_keys=True)
    return {
        "run": str(run.folder),
        "method": run.name,
        "problem": class_name(run.config, "problem"),
        "round": result.round,
        "metrics": result.metrics,
        "versions": run.versions,
        "config": hashlib.sha256(settings.encode()).hexdigest(),
    }


def _write(run: str, to: str, best: bool, number: int | None) -> None:
    from safetensors.torch import save

    from mpifed.running.result import from_files
    from mpifed.storage import results

    try:
        data, outcome = results.read(run)
        result = from_files(data, outcome)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    result = _selected(data, result, best, number)
    weights = _weights(data, outcome.point, result)
    non_finite = [name for name, values in weights.items() if not values.isfinite().all()]
    if non_finite:
        raise ConfigError(
            f"the weights of {run} after round {result.round} are not finite ({', '.join(non_finite[:3])}): "
            f"{result.stopped or 'the run has not ended'}"
        )
    # One entry, because safetensors writes several in arbitrary order: the same content gives the same bytes.
    content = save(weights, {"mpifed": json.dumps(_origin(data, result))})
    with writing(to, is_weights) as temporary:
        temporary.write_bytes(content)
    if result.end is None:
        rounds = f"{result.round} of {data.config['rounds']}"
        echo(f"mpifed: {run} has not ended: exporting its weights after round {rounds}", err=True)
