#!/usr/bin/env python3
"""The GPU part of the tests and the floor benchmark on 1 to 8 GPUs of a node, as Markdown tables:
python scripts/bench/gpus.py [--json FILE] [-- ARGUMENTS OF floor.py]

On the first GPU 1, 2 and 4 ranks share it, so messages go through pinned host memory; then 2, 4 and 8 ranks
have a GPU each, as far as there are GPUs, and messages go by NCCL. One rank runs again with gradients
compiled, captured as CUDA graphs, and in bfloat16. ``CUDA_VISIBLE_DEVICES`` says which GPUs
those are. With ``--rehearse N`` ranks compute on the CPU as if the node had N GPUs: the same commands and
tables without a device.

Exit code 2 without a GPU that torch can use, 1 where tests or a benchmark fail.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from mpifed.cli.output import quiet_broken_pipe

CHECKOUT = Path(__file__).resolve().parents[2]
#: Ranks that share the first GPU, and ranks with a GPU each.
SHARING, APART = (1, 2, 4), (2, 4, 8)
#: Ways to evaluate gradients, on one rank.
WAYS = ("--compile=default", "--compile=reduce-overhead", "--autocast=bfloat16")
#: Seconds for the tests of one layout.
PATIENCE = 600
COLUMNS = ("GPUs", "ranks", "transport", "workload", "method", "gradients")
COLUMNS += ("package ms", "floor ms", "ratio", "in comm")


def visible() -> list[str]:
    """The GPUs that this process may use, by the names that ``CUDA_VISIBLE_DEVICES`` takes.

    Raises:
        ValueError: torch can use none.
    """
    import torch

    from mpifed.parallel.devices import device_for

    device_for("cuda", None, 0)
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return named or [str(number) for number in range(torch.cuda.device_count())]


def layouts(gpus: int) -> list[tuple[int, int]]:
    """(GPUs, ranks) of every run on a node with ``gpus`` GPUs."""
    return [(1, ranks) for ranks in SHARING] + [(ranks, ranks) for ranks in APART if ranks <= gpus]


def test(ranks: int, environment: dict[str, str]) -> str:
    """The line that says what has passed on each rank."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            "mpirun",
            "-n",
            str(ranks),
            sys.executable,
            "tests/support/mpi_main.py",
            str(ranks),
            folder,
        ]
        done = subprocess.run(
            [*command, "tests/parallel/test_devices.py", "--color=no"],
            cwd=CHECKOUT,
            env=environment,
            timeout=PATIENCE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    passed = [line for line in done.stdout.splitlines() if line.startswith("passed on")]
    if done.returncode or not passed:
        sys.exit(f"gpus: the tests failed with {ranks} ranks:\n{done.stdout}")
    return passed[-1]


def bench(ranks: int, device: str, arguments: list[str], environment: dict[str, str]) -> list[dict]:
    """The rows of ``floor.py`` on ``ranks`` ranks."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "floor.json")
        command = [sys.executable, "scripts/bench/floor.py", "--device", device, "--ranks", str(ranks)]
        done = subprocess.run(
            [*command, "--json", str(file), *arguments], cwd=CHECKOUT, env=environment, stdout=sys.stderr
        )
        if done.returncode:
            sys.exit(f"gpus: the benchmark failed with {ranks} ranks and exit code {done.returncode}")
        return json.loads(file.read_text())["rows"]


def table(columns: tuple[str, ...], rows: list[list]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(str, cells)) + " |" for cells in lines)


def cells(gpus: int, row: dict) -> list:
    """The cells of a row of :data:`COLUMNS`; a workload that was skipped says why."""
    left = f"skipped: {row['skipped'].split(':')[0]}" if "skipped" in row else row["transport"]
    ways = [row[name] for name in ("autocast", "compile") if row[name] != "none"]
    head = [gpus, row["ranks"], left, row["workload"], row["method"], " ".join(ways)]
    if "skipped" in row:
        return [*head, *[""] * 4]
    times = [f"{row['package_ms']:.3f}", f"{row['floor_ms']:.3f}", f"{row['ratio']:.2f}"]
    return [*head, *times, f"{row['communication_share']:.1%}"]


def machine(device: str) -> str:
    """The heading of the tables."""
    import torch

    where = torch.cuda.get_device_name() if device == "cuda" else "a rehearsal on the CPU"
    return f"{where}, torch {torch.__version__}, CUDA {torch.version.cuda}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rehearse", type=int, metavar="N", help="on the CPU, as if there were N GPUs")
    parser.add_argument("--json", type=Path, help="file for the rows")
    parser.add_argument("floor", nargs="*", help="arguments of floor.py, after --")
    options = parser.parse_args()
    try:
        names = [""] * options.rehearse if options.rehearse else visible()
    except ValueError as fault:
        print(f"gpus: {fault}", file=sys.stderr)
        sys.exit(2)
    device = "cpu" if options.rehearse else "cuda"
    passed, rows = [], []
    for gpus, ranks in layouts(len(names)):
        print(f"{ranks} ranks on {gpus} GPUs", file=sys.stderr)
        environment = os.environ | (
            {} if options.rehearse else {"CUDA_VISIBLE_DEVICES": ",".join(names[:gpus])}
        )
        tested = {"MPIFED_TEST_GPUS": environment.get("CUDA_VISIBLE_DEVICES", "")}
        passed.append([gpus, ranks, test(ranks, environment | tested)])
        for way in [[], *([one] for one in WAYS if ranks == 1)]:
            rows += [
                {"gpus": gpus} | row for row in bench(ranks, device, [*way, *options.floor], environment)
            ]
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(device), "rows": rows}, indent=1) + "\n")
    print(machine(device), table(("GPUs", "ranks", "tests"), passed), sep="\n\n", end="\n\n")
    print(table(COLUMNS, [cells(row["gpus"], row) for row in rows]))


if __name__ == "__main__":
    with quiet_broken_pipe():
        main()
