#!/usr/bin/env python3
"""Prints the tables of docs/measures.md: stationarity along two runs, and the coverage of Hill's interval.

python scripts/evidence/measures_tables.py

`mpifed estimate` prints the other tables of the page.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import mpifed
from mpifed.core.estimates import Tail, hill
from mpifed.core.noise import AlphaStable, Gaussian, Noise, Pareto, StudentT
from mpifed.core.streams import Stream

JOB = Path(__file__).resolve().parents[2] / "jobs/digits_auc.toml"
LOCAL_SGDA = 'algorithm={name = "LocalSGDA", q = 12, eta_x = 0.3, eta_y = 0.3}'
#: Name, distribution and tail index.
LAWS = [
    ("Pareto, 1.5", Pareto(tail=1.5), 1.5),
    ("α-stable, 1.5", AlphaStable(alpha=1.5), 1.5),
    ("α-stable, 1.2", AlphaStable(alpha=1.2), 1.2),
    ("Student's t, 2", StudentT(nu=2.0), 2.0),
    ("Student's t, 3", StudentT(nu=3.0), 3.0),
]
SIZES, REPETITIONS = (1_000, 10_000), 100


def stationarity() -> list[list[str]]:
    """Return the rows of the table of AdaFGDA and Local-SGDA."""
    settings = "run.eval_every=50", 'measures={of = ["phi", "stationarity"]}', "run.progress=false"
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for number, algorithm in enumerate(([], [LOCAL_SGDA])):
            out = f"run.out={folder}/{number}"
            runs.append(mpifed.run(JOB, overrides=[*settings, out, *algorithm]).history)
    ada, local = runs
    columns = ada["auc"], ada["phi_gradient"], local["auc"], local["phi_gradient"], local["gradient_x"]
    digits = (3, 4, 3, 4, 4)
    return [
        [str(r), *(f"{value:.{places}f}" for value, places in zip(values, digits))]
        for r, *values in zip((0, 50, 100), *columns)
    ]


def tails(law: Noise, n: int, coordinates: int) -> list[Tail]:
    """Return Hill's estimates from n vectors, for each repetition."""
    draws = (law(Stream(number, "noise"), n * coordinates) for number in range(REPETITIONS))
    return [hill(np.linalg.norm(one.reshape(n, coordinates), axis=1)) for one in draws]


def coverage() -> list[list[str]]:
    """Return the rows of the table of intervals that contain the index, with 2 and with 20 coordinates."""
    rows = []
    for name, law, index in LAWS:
        cells = []
        for n in SIZES:
            found = [tails(law, n, coordinates) for coordinates in (2, 20)]
            parts = [np.mean([tail.low <= index <= tail.high for tail in own]) for own in found]
            cells.append(", ".join(f"{100 * part:.0f} %" for part in parts))
        rows.append([name, *cells])
    return rows


def of_normal_noise() -> list[float]:
    """Return the mean estimate for normal noise with 10 coordinates, by the number of vectors."""
    return [float(np.mean([tail.estimate for tail in tails(Gaussian(scale=1.0), n, 10)])) for n in SIZES]


def main() -> None:
    for heads, rows in (
        ("round | AUC, AdaFGDA | ‖∇Φ‖ | AUC, Local-SGDA | ‖∇Φ‖ | ‖∇_x f‖", stationarity()),
        ("distribution, index | n = 1,000 | n = 10,000", coverage()),
    ):
        print(f"| {heads} |\n|{'---|' * (heads.count('|') + 1)}")
        print(*("| " + " | ".join(row) + " |" for row in rows), sep="\n", end="\n\n")
    print("normal noise:", of_normal_noise())


if __name__ == "__main__":
    main()
