#!/usr/bin/env python3
"""The papers' figures, from the job files in jobs/papers.

python scripts/reproduce.py [NAME ...] [options] [KEY=VALUE ...]

Without a NAME it lists them. With some, with ``all``, or with ``--paper`` and the key of a paper, it carries
out the sweeps, draws ``figure.png`` with the best setting of every method in each panel, and writes the
report beside it. What is done already is passed over, so the same command goes on after an interruption.

The job files are small enough for two cores and some minutes; ``--full`` takes the sizes of the papers.
``--launch`` makes a job array for Slurm of each instead; draw with the same command and ``--draw`` when it
has ended.

python scripts/reproduce.py wgan_by_regularisation
python scripts/reproduce.py --paper shen2024
python scripts/reproduce.py fair_classes --full --launch "--ranks-per-node 10 --parts 18 --time 1-0"
python scripts/reproduce.py fair_classes --full --draw
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from mpifed.config.tables import read_table
from mpifed.core.settings import near_miss
from mpifed.report.comparison import Rule, Setting, best, settings_of
from mpifed.report.figures import STYLES
from mpifed.report.report import report
from mpifed.storage.results import find_runs, load
from mpifed.theory import Prescription
from mpifed.theory.wang_kale import theorem_2, theorem_6

JOBS = Path(__file__).resolve().parent.parent / "jobs/papers"
SEEDS = "sweep.seed=[0, 1, 2, 3, 4]"


@dataclass(frozen=True)
class Experiment:
    """What a figure shows.

    Attributes:
        source: the paper's key in references.bib.
        metric: decides which setting is best, and is drawn.
        panels: settings of which every value has its own panel; ``a|b`` where methods name it differently.
        full: changes to the job file that take it to the paper's size.
        also: further metrics, a row of panels each.
        bound: what a theorem says of the metric at the end, drawn as a level.
    """

    source: str
    metric: str
    panels: tuple[str, ...] = ()
    full: tuple[str, ...] = (SEEDS,)
    also: tuple[str, ...] = ()
    bound: Callable[[Setting], float] | None = None


def theorem_of(setting: Setting) -> Prescription:
    """The step and the bound of Wang & Kale n.d.: Theorem 2 for LESGD, Theorem 6 for LSGD."""
    settings = setting.settings
    L, sigma = (
        settings["problem.smooth"] + settings["problem.skew"],
        settings["oracle.noise.scale"] * math.sqrt(settings["problem.d"]),
    )
    rest = (
        settings["algorithm.K"],
        settings["rounds"],
        settings["problem.clients"],
        settings["problem.radius"],
    )
    return (theorem_2 if setting.name == "LESGD" else theorem_6)(L, sigma, *rest)


# The papers, by their keys in references.bib.
ADAFGDA = "huang2024adafgda"
FEDNSGDAM = "zhang_nd_fednsgdam"
SLIPPAX = "wang_nd_slippax"
MFCGD = "huang_nd_mfcgd"
FESSGDA = "shen2024fessgda"

AUC = (SEEDS, "rounds=1000", "oracle.batch_size=64")
RESNET_AUC = (*AUC, "algorithm.q=20", 'problem.model={name="resnet50"}')
TEXT = (SEEDS, 'problem.model={name="rnn", hidden=4096}', "problem.length=40", "rounds=2000")
EXPERIMENTS = {
    "saddle_by_heterogeneity": Experiment(ADAFGDA, "error", ("problem.s",)),
    "auc_mnist": Experiment(ADAFGDA, "auc", full=AUC),
    "auc_cifar10": Experiment(ADAFGDA, "auc", full=(*AUC, 'problem.model="cnn7"')),
    "auc_cifar100": Experiment(ADAFGDA, "auc", full=(*RESNET_AUC, 'problem.dataset="cifar100"')),
    "auc_tiny_imagenet": Experiment(ADAFGDA, "auc", full=RESNET_AUC),
    "auc_pneumonia": Experiment(ADAFGDA, "auc", full=RESNET_AUC),
    "universal_perturbation": Experiment(
        ADAFGDA, "perturbed_accuracy", ("problem.dataset", "algorithm.q"), AUC, also=("accuracy",)
    ),
    "auc_texts": Experiment(FEDNSGDAM, "auc", ("problem.dataset", "algorithm.q|algorithm.p"), TEXT),
    "auc_texts_unequal_ratios": Experiment(FEDNSGDAM, "auc", ("problem.dataset",), TEXT),
    "heavy_tails_on_a_saddle": Experiment(FEDNSGDAM, "error"),
    "affine_games": Experiment(SLIPPAX, "err_D", ("problem.smooth", "oracle.noise.name")),
    "bounds_of_the_theorems": Experiment(
        SLIPPAX, "err_D", ("rounds",), (), bound=lambda setting: theorem_of(setting).bound
    ),
    "composite_game": Experiment(SLIPPAX, "err_c"),
    "worst_client": Experiment(
        MFCGD, "objective", full=(SEEDS, "rounds=1000", 'problem.model="mlp"'), also=("worst_loss",)
    ),
    "maml_sinusoids": Experiment(MFCGD, "adapted_error", full=(SEEDS, "rounds=5000", 'problem.model="mlp"')),
    "maml_omniglot": Experiment(
        MFCGD,
        "accuracy",
        (),
        (SEEDS, "rounds=5000", 'problem.model="conv4"', "problem.size=28", "problem.tests=200"),
        also=("objective",),
    ),
    "wgan_by_regularisation": Experiment(FESSGDA, "squared_distance", ("problem.lam",)),
    "fair_classes": Experiment(
        FESSGDA,
        "worst_accuracy",
        ("algorithm.K",),
        (SEEDS, "rounds=2000", "oracle.batch_size=100", 'problem.model="cnn"'),
        also=("mean_accuracy",),
    ),
}


def place(name: str, full: bool) -> Path:
    """The folder of a sweep's runs."""
    return Path(f"{read_table(JOBS / f'{name}.toml')['run']['out']}{'-full' if full else ''}")


def arguments(name: str, full: bool, changes: Sequence[str]) -> list[str]:
    """The job file and the changes to it."""
    sizes = EXPERIMENTS[name].full if full else ()
    return [str(JOBS / f"{name}.toml"), f"run.out={place(name, full)}", *sizes, *changes]


def panel_of(setting: Setting, keys: Sequence[str]) -> tuple:
    """The panel that a setting belongs to: its values of the experiment's ``panels``."""
    names = (key.split("|") for key in keys)
    return tuple(next(setting.settings[name] for name in own if name in setting.settings) for own in names)


def title_of(panel: tuple, keys: Sequence[str]) -> str:
    """A panel's values; numbers with their setting's name."""
    names = (key.partition("|")[0].rpartition(".")[2] for key in keys)
    return ", ".join(
        value if isinstance(value, str) else f"{name} = {value}" for name, value in zip(names, panel)
    )


def label_of(setting: Setting, rivals: Sequence[Setting]) -> str:
    """The method with the settings that were tuned."""
    own = [one for one in rivals if one.name == setting.name]
    tuned = [
        key
        for key in setting.settings
        if key.startswith("algorithm.") and len({json.dumps(one.settings.get(key)) for one in own}) > 1
    ]
    return " ".join(
        [setting.name, *(f"{key.removeprefix('algorithm.')}={setting.settings[key]}" for key in tuned)]
    )


def draw(name: str, folder: Path) -> Path:
    """``figure.png``: for each metric a panel for each value of the experiment's settings."""
    what = EXPERIMENTS[name]
    settings = settings_of([load(path) for path in find_runs([folder])])
    each = tuple(
        key.removeprefix("algorithm.")
        for names in what.panels
        for key in names.split("|")
        if key.startswith("algorithm.")
    )
    rule, groups = Rule(what.metric, each=each), {}
    for one in settings:
        groups.setdefault(panel_of(one, what.panels), []).append(one)
    metrics = (what.metric, *what.also)
    columns = 2 if len(groups) == 4 else min(3, len(groups))
    rows = -(-len(groups) // columns)
    figure = Figure(
        figsize=(0.8 + 3.4 * columns, 0.4 + 3 * rows * len(metrics)), dpi=100, layout="constrained"
    )
    grid = figure.subplots(rows * len(metrics), columns, squeeze=False).reshape(len(metrics), -1)
    for number, (panel, rivals) in enumerate(sorted(groups.items())):
        chosen = best(rivals, rule)
        for cell, metric in zip(grid[:, number], metrics):
            _draw(cell, metric, {label_of(one, rivals): one for one in chosen}, what.bound)
            cell.set_title(title_of(panel, what.panels), fontsize=10)
    for cell in grid[:, len(groups) :].flat:
        cell.remove()
    path = folder / "figure.png"
    figure.savefig(path)
    report([folder], folder, rule)
    return path


def _draw(cell, metric: str, settings: dict[str, Setting], bound: Callable[[Setting], float] | None) -> None:
    """Curves with the seeds' deviation.

    The axis is logarithmic where less is better; the band then ends at a tenth of the mean.
    """
    for (label, one), style in zip(settings.items(), STYLES):
        curve, more = one.curve(metric), one.maximises(metric)
        lower = (
            curve.mean - curve.deviation
            if more
            else np.maximum(curve.mean - curve.deviation, curve.mean / 10)
        )
        cell.plot(curve.rounds, curve.mean, label=label, **style)
        cell.fill_between(curve.rounds, lower, curve.mean + curve.deviation, color=style["color"], alpha=0.16)
        if bound:
            cell.axhline(bound(one), color=style["color"], linestyle=":", label=f"bound of {one.name}")
        cell.set_yscale("linear" if more else "log")
    cell.set_ylabel(metric)
    cell.set_xlabel("rounds", fontsize=8)
    cell.legend(fontsize=6, frameon=False)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="a file of jobs/papers without its ending, or all; KEY=VALUE changes settings",
    )
    parser.add_argument(
        "--paper",
        metavar="KEY",
        help="all of one paper's, by the beginning of its key: huang2024, zhang, wang ...",
    )
    parser.add_argument("--full", action="store_true", help="the papers' sizes, for a cluster")
    parser.add_argument("--ranks", type=int, default=2, help="MPI ranks (default 2)")
    parser.add_argument(
        "--launch", metavar="OPTIONS", help="a Slurm job array of each, with these options of `mpifed launch`"
    )
    parser.add_argument("--draw", action="store_true", help="draw what is there, run nothing")
    given = parser.parse_args()
    names, changes = (
        [one for one in given.names if "=" not in one],
        [one for one in given.names if "=" in one],
    )
    for name in names:
        if name not in (*EXPERIMENTS, "all"):
            parser.error(f"no experiment {name!r}: {near_miss(name, [*EXPERIMENTS, 'all'])}")
    if given.paper:
        own = [name for name, one in EXPERIMENTS.items() if one.source.startswith(given.paper)]
        if not own:
            keys = dict.fromkeys(one.source for one in EXPERIMENTS.values())
            parser.error(f"no experiment of {given.paper!r}: {near_miss(given.paper, keys)}")
        names += [name for name in own if name not in names]
    if not names:
        print(
            "\n".join(
                (JOBS / f"{name}.toml")
                .read_text()
                .splitlines()[0]
                .removeprefix("# ")
                .join([f"{name:26}", ""])
                for name in EXPERIMENTS
            )
        )
    for name in EXPERIMENTS if "all" in names else names:
        job, folder = arguments(name, given.full, changes), place(name, given.full)
        if given.launch is not None:
            command = ["mpifed", "launch", *shlex.split(given.launch), *job]
        else:
            command = ["mpirun", "-n", str(given.ranks), sys.executable, "-m", "mpifed", "sweep", *job]
        if not given.draw and (code := subprocess.run(command).returncode):
            return code
        if given.launch is None:
            print(draw(name, folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
