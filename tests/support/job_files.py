"""Two rounds of jobs.

Usage: python job_files.py JOBS RESULT DATA

JOBS is a JSON table {FILE: {METHOD: job}}. RESULT gets the metrics before and after, {FILE: {METHOD: [{...},
{...}]}}, or null for a file whose data set is missing. Data sets are read once and subsampled.
"""

import dataclasses
import functools
import json
import sys
import warnings
from pathlib import Path

from mpifed.base.settings import title
from mpifed.config.grids import variants
from mpifed.config.job import Config
from mpifed.config.space import Range
from mpifed.config.tables import read_table
from mpifed.config.tuning import Study, tuning
from mpifed.data import DATASETS, TEXTS
from mpifed.parallel.comm import CollectiveError
from mpifed.parallel.world import world
from mpifed.simulation.simulation import Simulation

NETWORKS = {
    "resnet50": {"blocks": [1, 1, 1, 1], "width": 8, "groups": 4},
    "cnn": {"stages": [[4], [4], [4]], "hidden": [8]},
    "cnn7": {"stages": [[4, 4], [4, 4]], "hidden": [8, 8]},
    "conv4": {"filters": 2},
    "rnn": {"hidden": 8},
    "mlp": {"hidden": [8]},
}


#: Number of samples used of a data set.
SAMPLES = {"train": 2000, "test": 200, "validation": 200}


def thinned(read):
    """Return a reader that reads a data set once and subsamples it."""

    @functools.cache
    def part(data_dir):
        data = read(data_dir)
        if data.owners is not None or getattr(data, "groups", None):
            return data
        taken = {}
        for name, most in SAMPLES.items():
            samples, labels = getattr(data, name), getattr(data, f"{name}_labels")
            if samples is not None:
                step = slice(None, None, max(len(samples) // most, 1))
                taken |= {name: samples[step], f"{name}_labels": labels[step]}
        return dataclasses.replace(data, **taken)

    return part


def one_each(file: Path) -> dict[str, Config]:
    """Return one job per method of a file, of a search with the smallest settings and of a sweep the first.
    All combinations are validated."""
    if "tune" in read_table(file):
        listed = [_least(study) for study in reversed(tuning(file, []).studies)]
    else:
        listed = [one.config for one in reversed(variants(file))]
    return {title(config.algorithm): config for config in listed}


def _least(study: Study) -> Config:
    return study.config(
        {
            key: one.value(one.low) if isinstance(one, Range) else one.values[0]
            for key, one in study.space.open.items()
        }
    )


def cut(config: Config) -> dict:
    """Return the job with small batches, numbers of local steps, networks and samples."""
    table = config.table()
    for key, value in table["algorithm"].items():
        if isinstance(value, int) and not isinstance(value, bool):
            table["algorithm"][key] = min(value, 2)
    table["oracle"]["batch_size"] = min(table["oracle"]["batch_size"], 4)
    if "tail" in (table.get("measures") or {"of": ()})["of"]:
        table["measures"]["samples"] = min(table["measures"]["samples"], 20)
    model = table["problem"].get("model")
    if isinstance(model, dict) and model["name"] in NETWORKS:
        table["problem"]["model"] = model | NETWORKS[model["name"]]
    if config.problem.family == "composition":  # the Jacobian of the inner function takes longest
        table["problem"] |= {key: 2 for key in ("clients", "tests") if key in table["problem"]}
    return table


def two_rounds(table: dict, data: str) -> list[dict[str, float]]:
    """Return the metrics at the start and after two rounds."""
    table["run"] |= {"data_dir": data, "eval_every": 2}
    simulation = Simulation.from_settings(Config.from_table(table | {"rounds": 2}), world())
    with simulation:
        simulation.start()
        before = simulation.evaluate()
        simulation.step()
        simulation.step()
        return [before, simulation.evaluate(simulation.output)]


def metrics_of(jobs: dict[str, dict], data: str) -> dict[str, list] | None:
    """Return the metrics of a file's jobs by method."""
    try:
        return {name: two_rounds(table, data) for name, table in jobs.items()}
    except CollectiveError as error:
        if "lacks a file" not in str(error):
            raise
        return None


def main() -> None:
    warnings.filterwarnings("ignore", ".* are absent")  # some of CIFAR-10's files are sufficient
    jobs, result, data = sys.argv[1:]
    for sets in (DATASETS, TEXTS):
        sets.update({name: thinned(one) for name, one in sets.items()})
    found = {file: metrics_of(own, data) for file, own in json.loads(Path(jobs).read_text()).items()}
    if world().rank == 0:
        Path(result).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
