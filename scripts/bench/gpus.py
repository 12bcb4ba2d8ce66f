#!/usr/bin/env python3
"""GPU tests and the floor benchmark on 1 to 8 GPUs of a node, as Markdown tables:
python scripts/bench/gpus.py [--json FILE] [-- ARGUMENTS OF floor.py]

First, 1, 2 and 4 ranks share the first GPU and send messages through pinned host memory. Then 2, 4 and 8
ranks have one GPU each, if there are enough, and use NCCL. One rank is repeated with compiled gradients, CUDA
graphs and bfloat16. ``CUDA_VISIBLE_DEVICES`` selects the GPUs. With ``--rehearse N``, the same commands run
on the CPU as if the node had N GPUs.

Exit code 2 without a GPU that torch can use, 1 if tests or a benchmark fail.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
#: Numbers of ranks that share the first GPU, and of ranks with one GPU each.
SHARED, SEPARATE = (1, 2, 4), (2, 4, 8)
#: Options of gradients, for one rank.
GRADIENTS = ("--compile=default", "--compile=reduce-overhead", "--autocast=bfloat16")
#: Time limit of the tests of one layout, in seconds.
TIMEOUT = 600
COLUMNS = ("GPUs", "ranks", "transport", "workload", "method", "gradients")
COLUMNS += ("package ms", "floor ms", "ratio", "in comm")


def visible() -> list[str]:
    """Return the GPUs available to this process, by their names in ``CUDA_VISIBLE_DEVICES``.

    Raises:
        ValueError: torch can use no GPU.
    """
    import torch

    from mpifed.parallel.devices import offered_devices

    offered_devices("cuda", None, 0)
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return named or [str(number) for number in range(torch.cuda.device_count())]


def layouts(gpus: int) -> list[tuple[int, int]]:
    """Return (GPUs, ranks) of each run on a node with ``gpus`` GPUs."""
    return [(1, ranks) for ranks in SHARED] + [(ranks, ranks) for ranks in SEPARATE if ranks <= gpus]


def test(ranks: int, environment: dict[str, str]) -> str:
    """Run the tests and return the line with the number of passed tests per rank."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["mpirun", "-n", str(ranks), sys.executable, "tests/support/mpi_main.py", str(ranks)]
        done = subprocess.run(
            [*command, folder, "tests/parallel/test_devices.py", "--color=no"],
            cwd=CHECKOUT,
            env=environment,
            timeout=TIMEOUT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    passed = [line for line in done.stdout.splitlines() if line.startswith("passed on")]
    if done.returncode or not passed:
        sys.exit(f"gpus: the tests failed with {ranks} ranks:\n{done.stdout}")
    return passed[-1]


def bench(ranks: int, device: str, arguments: list[str], environment: dict[str, str]) -> list[dict]:
    """Return the rows of ``floor.py`` with ``ranks`` ranks."""
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
    """Format a Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(str, cells)) + " |" for cells in lines)


def cells(gpus: int, row: dict) -> list:
    """Return the cells of a row of :data:`COLUMNS`, with the reason if a workload was skipped."""
    transport = f"skipped: {row['skipped'].split(':')[0]}" if "skipped" in row else row["transport"]
    gradients = [row[name] for name in ("autocast", "compile") if row[name] != "none"]
    head = [gpus, row["ranks"], transport, row["workload"], row["method"], " ".join(gradients)]
    if "skipped" in row:
        return [*head, *[""] * 4]
    times = [f"{row['package_ms']:.3f}", f"{row['floor_ms']:.3f}", f"{row['ratio']:.2f}"]
    return [*head, *times, f"{row['communication_share']:.1%}"]


def machine(device: str) -> str:
    """Return the heading of the tables."""
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" else "rehearsal on the CPU"
    return f"{name}, torch {torch.__version__}, CUDA {torch.version.cuda}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rehearse", type=int, metavar="N", help="run on the CPU as if there were N GPUs")
    parser.add_argument("--json", type=Path, help="output file of the rows and the machine")
    parser.add_argument("floor", nargs="*", help="arguments of floor.py, after --")
    options = parser.parse_args()
    try:
        names = [""] * options.rehearse if options.rehearse else visible()
    except ValueError as error:
        print(f"gpus: {error}", file=sys.stderr)
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
        for option in ("", *(GRADIENTS if ranks == 1 else ())):
            arguments = [*filter(None, [option]), *options.floor]
            rows += [{"gpus": gpus} | row for row in bench(ranks, device, arguments, environment)]
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(device), "rows": rows}, indent=1) + "\n")
    print(machine(device), table(("GPUs", "ranks", "tests"), passed), sep="\n\n", end="\n\n")
    print(table(COLUMNS, [cells(row["gpus"], row) for row in rows]))


if __name__ == "__main__":
    main()
