#!/usr/bin/env python3
"""Compares mpifed with other implementations, and writes docs/agreement.json and docs/agreement.md:

    python scripts/peers/agreement.py [--only fluke pfl] [--environments FOLDER]
    python scripts/peers/agreement.py --page

Each program ``peer_NAME.py`` drives one published package and mpifed with the same data, start, cohorts and
minibatches. It prints one line of JSON per comparison::

    {"method": "SCAFFOLD", "package": "fluke-fl", "version": "0.8.1", "problem": "...", "rounds": 6,
     "deviation": [largest |difference| of each round], "scale": largest |value|,
     "differs": null or the reason and a change that removes it, "proof": null or |difference| after it}

It runs in an environment of its own, in which ``requirements/NAME.txt`` is installed without further
dependencies. Other packages, such as torch, are those of the environment of this script.

``--only`` replaces the results of these programs only; ``--page`` writes the page from the stored results.
The exit code is 1 if a program fails, or if a difference has no reason or remains after the change.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import numpy as np

PROGRAMS = Path(__file__).resolve().parent
ROOT = PROGRAMS.parents[1]
STORED, PAGE = ROOT / "docs/agreement.json", ROOT / "docs/agreement.md"

#: Largest difference relative to the largest value that sums in another order explain, in float64 ...
FLOAT64 = 1e-10
#: ... and in float32, which some packages compute in.
FLOAT32 = 1e-5

TEXT = """# Agreement with other implementations

Programs in `scripts/peers` compute methods, losses and metrics with packages that others have published and
with mpifed. The iterates of a method are compared after every round, from the same start, on the same data,
with the same cohorts and minibatches, in float64 where the package allows it. *Network* is the training of a
network with one hidden layer on random samples that differ between clients. A deviation is the largest
difference of two values, divided by the largest value. Losses and metrics are compared for several inputs,
whose number is in the column *rounds*.

The packages are not required by mpifed, and the programs are not part of the tests:

```
python scripts/peers/agreement.py                   # installs each package into an environment of its own
python scripts/peers/agreement.py --only fluke      # one program
```
"""
SAME = """
## Same results

| method | package | problem | rounds | deviation |
|---|---|---|---|---|
"""
DIFFERENT = """
## Different results

mpifed follows the papers and the readings that its [methods](methods.md) list. The reason ends with a change
of the package or of mpifed, and the last column is the deviation with this change.

| method | package | problem | deviation | reason | with the change |
|---|---|---|---|---|---|
"""


def programs() -> dict[str, Path]:
    """Return the programs by name."""
    return {path.stem.removeprefix("peer_"): path for path in sorted(PROGRAMS.glob("peer_*.py"))}


def requirements(name: str) -> Path:
    return PROGRAMS / "requirements" / f"{name}.txt"


def environment(name: str, folder: Path) -> Path:
    """Install a program's requirements into an environment in ``folder`` and return its interpreter."""
    place = folder / name
    venv.create(place, with_pip=True, clear=True)
    python = place / "bin/python"
    where = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip())
    paths = [str(ROOT), *(path for path in sys.path if path.endswith("-packages"))]
    (packages / "mpifed.pth").write_text("\n".join(paths) + "\n")
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([python, *install, "-r", requirements(name)], check=True)
    return python


def run(name: str, folder: Path) -> dict:
    """Run a program.

    Returns:
        ``results``, the objects that it has printed; ``error``, the last line of its error output if it
        failed, else ``None``; ``machine``, properties of this machine that affect rounding.
    """
    import torch

    from mpifed.base.versions import __version__
    from mpifed.parallel.reproducibility import machine

    entry = {"machine": {"mpifed": __version__} | machine(torch.device("cpu")), "results": [], "error": None}
    entry["machine"]["Python"] = platform.python_version()
    try:
        python = environment(name, folder)
    except subprocess.CalledProcessError as error:
        return entry | {"error": f"the environment was not installed, exit code {error.returncode}"}
    job = subprocess.run([python, programs()[name]], capture_output=True, text=True)
    lines = [line for line in job.stdout.splitlines() if line.startswith("{")]
    entry["results"] = [json.loads(line) for line in lines]
    if job.returncode:
        sys.stderr.write(job.stderr)
        entry["error"] = (job.stderr.strip().splitlines() or [f"exit code {job.returncode}"])[-1]
    return entry


def relative(result: dict) -> float:
    """Return the largest difference of any round, relative to the largest value."""
    return float(np.max(result["deviation"])) / (result["scale"] or 1)


def remaining(result: dict) -> float | None:
    """Return the same with the change that removes the reason; ``None`` if this was not computed."""
    return None if result["proof"] is None else result["proof"] / (result["scale"] or 1)


def is_explained(result: dict) -> bool:
    """Return whether the results are the same, or have a reason that the deviation after it confirms."""
    tolerance = FLOAT32 if "float32" in result["problem"] else FLOAT64
    deviation = remaining(result) if result["differs"] else relative(result)
    return deviation is None or deviation <= tolerance


def page(stored: dict) -> str:
    """Return the page of the stored results."""
    entries = [stored[name] for name in sorted(stored)]
    results = [result for entry in entries for result in entry["results"]]
    parts = [TEXT, SAME]
    for one in results:
        if not one["differs"]:
            what = one["method"], package(one), one["problem"], one["rounds"]
            parts.append(row(*what, number(relative(one))))
    parts.append(DIFFERENT)
    for one in results:
        if one["differs"]:
            what = one["method"], package(one), one["problem"]
            parts.append(row(*what, number(relative(one)), one["differs"], number(remaining(one))))
    parts += [
        f"\nThe program `peer_{name}.py` failed: {entry['error']}\n"
        for name, entry in sorted(stored.items())
        if entry["error"]
    ]
    parts += [
        f"\n{one['method']} in {package(one)}: the difference is not explained.\n"
        for one in results
        if not is_explained(one)
    ]
    machines = (", ".join(f"{key} {value}" for key, value in entry["machine"].items()) for entry in entries)
    return "".join([*parts, "\n## Machines\n\n", *(f"- {machine}\n" for machine in dict.fromkeys(machines))])


def dumps(stored: dict) -> str:
    """Return the results as JSON, with one line per comparison."""
    lines = []
    for name, entry in sorted(stored.items()):
        results = ",\n  ".join(json.dumps(one, ensure_ascii=False) for one in entry["results"])
        rest = {key: value for key, value in entry.items() if key != "results"}
        lines.append(f' {json.dumps(name)}: {json.dumps(rest)[:-1]}, "results": [\n  {results}\n ]}}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def package(result: dict) -> str:
    return f"{result['package']} {result['version']}"


def number(value: float | None) -> str:
    return "not computed" if value is None else f"{value:.1e}"


def row(*cells) -> str:
    return f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=programs(), metavar="NAME", help="run these programs")
    parser.add_argument("--environments", type=Path, help="folder of the environments (default: temporary)")
    parser.add_argument("--page", action="store_true", help="only write the page from the stored results")
    options = parser.parse_args()
    stored = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {}
    if not options.page:
        with tempfile.TemporaryDirectory() as temporary:
            for name in options.only or programs():
                stored[name] = run(name, options.environments or Path(temporary))
                STORED.write_text(dumps(stored), encoding="utf-8")
                print(f"{name}: {stored[name]['error'] or len(stored[name]['results'])}", flush=True)
    PAGE.write_text(page(stored), encoding="utf-8")
    explained = (is_explained(result) for entry in stored.values() for result in entry["results"])
    return int(any(entry["error"] for entry in stored.values()) or not all(explained))


if __name__ == "__main__":
    sys.exit(main())
