#!/usr/bin/env python3
"""Check of the GPUs of this node, as one Markdown report: python scripts/bench/gpus.py [--minutes 10]
[--output FILE] [--rehearse]

``scripts/gpu_check.sh`` starts this script with a suitable Python. Each part is a job of its own with a time
limit, so that a failure, a crash or a hang of one does not stop the others: the tests for GPUs, two rounds of
every method compared with the CPU, the bits of ``run.reduction = "exact"``, transports between two ranks,
kernels of a round, and the floor benchmark. ``CUDA_VISIBLE_DEVICES`` selects the GPUs. With ``--rehearse``,
the same parts run on a simulated GPU (``tests/support/simulated_gpu.py``), with few of the tests.

Exit code 2 without a GPU that torch can use, 1 if anything failed.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

from launching import LAUNCHER_VARIABLES, MARK, SETTINGS, mpirun

CHECKOUT = Path(__file__).resolve().parents[2]
JOBS = "scripts/bench/gpu_jobs.py"
#: Time limits in seconds: of most parts, of the tests and of compiled gradients.
LIMIT, LONG = 120, 240
#: The tests of runs on the devices of the ranks, without and with compiled gradients, which take a minute.
DEVICES = "tests/parallel/test_devices.py"
ON_DEVICES = "(gpu_agrees or bfloat16 or reproducible or large or nccl_or) and not reduce-overhead"
COMPILED = "compiled or reduce-overhead"
#: Columns of the floor benchmark; gradients: compiled, or in bfloat16.
COLUMNS = ("GPUs", "ranks", "transport", "workload", "method", "gradients")
COLUMNS += ("package ms", "floor ms", "ratio", "in comm")


def table(columns: tuple[str, ...], rows: list[list]) -> str:
    """Format a Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |" for cells in lines
    )


def cells(gpus: int, row: dict) -> list:
    """Return the cells of a row of :data:`COLUMNS`, with the reason if a workload was skipped."""
    transport = f"skipped: {row['skipped'].split(':')[0]}" if "skipped" in row else row["transport"]
    gradients = [row[name] for name in ("autocast", "compile") if row[name] != "none"]
    head = [gpus, row["ranks"], transport, row["workload"], row["method"], " ".join(gradients)]
    if "skipped" in row:
        return [*head, *[""] * 4]
    times = [f"{row['package_ms']:.3f}", f"{row['floor_ms']:.3f}", f"{row['ratio']:.2f}"]
    return [*head, *times, f"{row['communication_share']:.1%}"]


class Check:
    """Runs the jobs and collects the report.

    Attributes:
        failures: what failed, one line each.
        sections: the Markdown text of the parts so far.
    """

    def __init__(self, minutes: float, output: Path | None, extra: dict[str, str]):
        self.began, self.deadline = time.monotonic(), time.monotonic() + 60 * minutes
        self.output, self.failures, self.sections, self.gpus = output, [], [], []
        self.rehearsal = bool(extra)
        self.minutes, self.mpirun = minutes, None
        own = {key: value for key, value in os.environ.items() if not key.startswith(LAUNCHER_VARIABLES)}
        self.environment = own | SETTINGS | {"NO_COLOR": "1"} | extra
        self.add_path("PYTHONPATH", CHECKOUT)
        launcher, package = mpirun(), find_spec("mpi4py")
        if launcher and package:  # if pip has installed both into one folder, the library is found there only
            library = Path(launcher).parents[1] / "lib/libmpi.so"
            if library.exists() and library.parents[1] in Path(package.origin).parents:
                self.add_path("LD_LIBRARY_PATH", library.parent)

    def add_path(self, variable: str, folder: Path) -> None:
        paths = [str(folder), *filter(None, [self.environment.get(variable)])]
        self.environment[variable] = os.pathsep.join(paths)

    def run(
        self, title: str, arguments: list, gpus: int = 1, ranks: int = 0, limit: float = LIMIT
    ) -> list[dict]:
        """Run a Python script with a time limit and return its rows; note its failure.

        Args:
            arguments: of Python.
            ranks: number of ranks, 0 without mpirun.
            limit: in seconds.
        """
        now = time.monotonic() - self.began
        print(f"gpu_check: {now:.0f} s: {title}", file=sys.stderr, flush=True)
        left = self.deadline - time.monotonic()
        if left < 1:
            self.failures.append(f"{title}: not run within --minutes {self.minutes:g}")
            return []
        environment, chosen = self.environment, ",".join(self.gpus[:gpus])
        if chosen and not self.rehearsal:
            environment = environment | {"CUDA_VISIBLE_DEVICES": chosen, "MPIFED_TEST_GPUS": chosen}
        command = [*([self.mpirun, "-n", str(ranks)] if ranks else []), sys.executable, *map(str, arguments)]
        with tempfile.TemporaryFile("w+", errors="replace") as file:
            with subprocess.Popen(
                command, cwd=CHECKOUT, env=environment, stdout=file, stderr=file, start_new_session=True
            ) as job:
                ended = self.wait(job, min(limit, left))
            file.seek(0)
            rows, lines = [], []
            for line in file:
                before, mark, row = line.partition(MARK)
                with contextlib.suppress(ValueError):  # the last line of a killed job
                    rows += [json.loads(row)] if mark else []
                lines += [] if mark and not before else [before]
        if not ended or job.returncode:
            why = f"exit code {job.returncode}" if ended else f"time limit of {min(limit, left):.0f} s"
            self.failures.append(f"{title}: {why}")
            print("".join(lines)[-5000:], file=sys.stderr)
        return rows

    @staticmethod
    def wait(job: subprocess.Popen, limit: float) -> bool:
        """Return whether the job ended within the limit; end it otherwise."""
        for number, seconds in ((signal.SIGTERM, limit), (signal.SIGKILL, 5)):
            try:
                job.wait(seconds)
                return number == signal.SIGTERM
            except subprocess.TimeoutExpired:
                os.killpg(job.pid, number)
        job.wait()
        return False

    def job(self, title: str, name: str, *arguments, **options) -> list[dict]:
        """Return the rows of a job of ``gpu_jobs.py``."""
        return self.run(title, [JOBS, name, *arguments], **options)

    def section(self, title: str, text: str) -> None:
        self.sections.append(f"### {title}\n\n{text}")
        if self.output:
            self.output.write_text(self.report())

    def report(self) -> str:
        minutes = (time.monotonic() - self.began) / 60
        result = f"{len(self.failures)} failures" if self.failures else "no failures"
        head = f"## GPU check: {result} in {minutes:.1f} minutes"
        head += ", rehearsed on a simulated GPU" if self.rehearsal else ""
        failures = "\n".join(f"- {one}" for one in self.failures)
        return "\n\n".join(filter(None, [head, failures, *self.sections])) + "\n"

    def machine(self) -> None:
        found = self.job("machine", "machine")
        if not found or "unusable" in found[0]:
            print(f"gpus: {found[0]['unusable'] if found else self.failures[0]}", file=sys.stderr)
            sys.exit(2)
        self.gpus, self.mpirun = found[0]["gpus"], mpirun() if found[0]["mpi"] else None
        rows = found[0]["machine"] | {"mpirun": self.mpirun or "none: parts with two ranks are skipped"}
        self.section("Machine", table(("", ""), list(map(list, rows.items()))))

    def methods(self, names: list[str]) -> None:
        rows = self.job("methods", "methods", *names, limit=LONG)
        failed = [row["method"] for row in rows if "error" in row]
        self.failures += [f"methods: {', '.join(failed)}"] if failed else []
        columns = ("method", "problem", "largest relative deviation", "waits (allowed)", "result")
        lines = []
        for row in rows:
            found = "deviation" in row
            numbers = [f"{row['deviation']:.1e}", f"{row['waits']} ({row['allowed']})"] if found else ["", ""]
            result = f"failed: {row['error']}" if "error" in row else "ok"
            lines.append([row["method"], row["problem"], *numbers, result])
        self.section("Two rounds of every method compared with the CPU, float64", table(columns, lines))

    def tests(self) -> None:
        if any(find_spec(module) is None for module in ("pytest", "hypothesis")):
            return self.section("Tests", "Skipped: pytest or hypothesis is not installed.")
        rehearsed = ["-p", "simulated_gpu", "-k", "staging"] if self.rehearsal else []
        rows, counts = [], []
        marked = ["-m", "mpi", *(["--with-mpi"] if find_spec("pytest_mpi") else [])]
        suites = [("tests/gpu", ["tests/gpu"])]
        if not self.rehearsal:
            suites.append((DEVICES, [DEVICES, *marked, "-k", ON_DEVICES]))
            suites.append(("compiled gradients", [DEVICES, *marked, "-k", COMPILED]))
        for suite, options in suites:
            found = self.job(suite, "tests", *options, *rehearsed, limit=LONG)
            outcomes = Counter(row["outcome"] for row in found)
            counts.append([suite, 1, *(outcomes[name] for name in ("passed", "failed", "skipped"))])
            rows += [row for row in found if row["outcome"] != "passed"]
        if self.mpirun and not self.rehearsal:
            counts.append(self.tests_on_ranks())
        text = table(("tests", "ranks", "passed", "failed", "skipped"), counts)
        reasons = Counter((row["outcome"], row["reason"], row["test"].partition("[")[0]) for row in rows)
        lines = [[*key[:2], f"{key[2]} ({number})"] for key, number in reasons.items()]
        self.section("Tests", text + ("\n\n" + table(("outcome", "reason", "test"), lines) if lines else ""))

    def tests_on_ranks(self) -> list:
        """Return the counts of the tests on two ranks; a skipped test counts as passed on both ranks."""
        with tempfile.TemporaryDirectory() as folder:
            main = ["tests/support/mpi_main.py", 2, folder, DEVICES, "-k", ON_DEVICES]
            self.run(f"{DEVICES} on two ranks", main, gpus=min(2, len(self.gpus)), ranks=2, limit=LONG)
            done = Path(folder, "done.txt")
            lines = done.read_text().splitlines() if done.exists() else []
            outcomes = Counter(line.split()[0] for line in lines)
        return [DEVICES, 2, outcomes["passed"], outcomes["failed"], "counted as passed"]

    def layouts(self) -> None:
        """The bits of exact reduction, and transports."""
        runs = [(0, 1, "auto")] + ([(2, 1, "host")] if self.mpirun else [])
        runs += [(2, 2, "nccl")] if self.mpirun and len(self.gpus) > 1 else []
        groups, rows = (1, "all") if self.rehearsal else (1, 1, 2, 4, "all", "auto"), []
        for ranks, gpus, transport in runs:
            title = f"layout: {ranks or 1} ranks on {gpus} GPUs"
            found = self.job(title, "layouts", transport, *groups, ranks=ranks, gpus=gpus)
            rows += [row | {"gpus": gpus} for row in found]
        exact = [row for row in rows if row["reduction"] == "exact"]
        first: dict = {}
        lines = []
        for row in exact:
            first.setdefault(row["group"], row.get("digest"))
            digest, wanted = row.get("digest", row.get("error")), first[row["group"]]
            same = ("yes" if digest == wanted else "no") if wanted else ""
            lines.append([row["ranks"], row["gpus"], row["group"], row.get("used", ""), same, digest[:8]])
            # Other groups than that of the first line may round differently, but not on several ranks.
            if same != "yes":
                self.failures.append(f"exact on {row['ranks']} ranks: {row.get('error', 'other bits')}")
        columns = ("ranks", "GPUs", "run.group", "group used", "bits of one rank", "digest")
        self.section("Exact reduction, float32", table(columns, lines))
        fused, lines = [row for row in rows if row["reduction"] == "fused"], []
        alone = fused[0].get("point") if fused else None
        for row in fused:
            result, deviation = row.get("error", ""), math.inf
            if alone and "point" in row:
                deviation = max(abs(a - b) for a, b in zip(row["point"], alone)) / max(map(abs, alone))
                result = f"{deviation:.1e}"
            if not deviation <= 1e-9:  # float64, summed in another order: device_rounds.TOLERANCE
                self.failures.append(f"transport {row['transport']} on {row['ranks']} ranks: {result}")
            lines.append([row["ranks"], row["gpus"], row["transport"], result])
        columns = ("ranks", "GPUs", "transport", "largest relative deviation from one rank")
        self.section("Transports, float64", table(columns, lines) if self.mpirun else "Skipped: no mpirun.")

    def kernels(self) -> None:
        rows = self.job("kernels", "kernels", 1 if self.rehearsal else 20)
        lines = [[row["group"], row["kernels"], row["waits"], f"{row['ms']:.2f}"] for row in rows]
        columns = ("run.group", "kernels", "waits", "ms")
        self.section("A round of 8 clients (AdaFGDA, 3 steps, MLP), one rank", table(columns, lines))

    def floor(self) -> None:
        """Few rounds; a part of the workloads with other gradients, which are compiled first."""
        if not self.mpirun:
            return self.section("Floor benchmark", "Skipped: no mpirun.")
        short = ["--workloads", "saddle", "digits-mlp", "--rounds", "40", "--q", "4"]
        network = ["--workloads", "digits-mlp", "--methods", "AdaFGDA", "--rounds", "40"]
        runs = [(1, 1, short), (1, 2, network)] + ([(2, 2, network)] if len(self.gpus) > 1 else [])
        if self.rehearsal:
            runs = [(1, 1, [*network[:-1], "2", "--q", "1"])]
        else:
            ways = ("--autocast=bfloat16", "--compile=default", "--compile=reduce-overhead")
            runs += [(1, 1, [*network, way]) for way in ways]  # compiled for up to a minute
        lines = []
        for gpus, ranks, arguments in runs:
            title = f"floor on {ranks} ranks, {gpus} GPUs: {' '.join(arguments)}"
            rows = self.job(title, "floor", *arguments, gpus=gpus, ranks=ranks)
            lines += [cells(gpus, row) for row in rows]
        self.section("Floor benchmark: times of a round and of a bare loop", table(COLUMNS, lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10, help="time limit of the whole check")
    parser.add_argument("--output", type=Path, help="file of the report, rewritten after every part")
    parser.add_argument("--rehearse", action="store_true", help="run on a simulated GPU")
    parser.add_argument("--methods", nargs="+", default=[], help="compare only these methods with the CPU")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        extra = {}
        if options.rehearse:
            sys.path.append(str(CHECKOUT / "tests/support"))
            import simulated_gpu

            extra, reason = simulated_gpu.build(Path(folder))
            if not extra:
                print(f"gpus: {reason}", file=sys.stderr)
                sys.exit(2)
        check = Check(options.minutes, options.output, extra)
        check.machine()
        parts = (functools.partial(check.methods, options.methods), check.layouts, check.kernels)
        for part in (*parts, check.tests, check.floor):
            try:
                part()
            except Exception:  # the other parts are still wanted
                check.failures.append(traceback.format_exc().splitlines()[-1])
                traceback.print_exc()
    print(check.report(), end="")
    sys.exit(bool(check.failures))


if __name__ == "__main__":
    main()
