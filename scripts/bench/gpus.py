#!/usr/bin/env python3
"""Check of the GPUs of this node, as one Markdown report: python scripts/bench/gpus.py [--minutes 10]
[--output FILE] [--rehearse]

``scripts/gpu_check.sh`` starts this script with a suitable Python. Each part is a job of its own with a time
limit, so that a failure, a crash or a hang of one does not stop the others: the tests for GPUs, two rounds of
every method compared with the CPU, the bits of ``run.reduction = "exact"``, transports between two ranks,
kernels of a round, and the floor benchmark. ``CUDA_VISIBLE_DEVICES`` selects the GPUs. With ``--rehearse``,
the same parts run on two simulated GPUs (``tests/support/simulated_gpu.py``), with a part of the tests.

Exit code 2 without a GPU that torch can use, 1 if anything failed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

from launching import LAUNCHER_VARIABLES, MARK, SETTINGS, mpirun, processor, send

CHECKOUT = Path(__file__).resolve().parents[2]
IMPORTED = [str(CHECKOUT / folder) for folder in ("", "tests", "tests/support")]
#: Time limits in seconds: of most parts, of the tests and of compiled gradients.
LIMIT, LONG = 120, 240
#: A job of eight clients with a network, whose products a GPU may sum differently for other groups.
NETWORK = {
    "algorithm": {"name": "AdaFGDA", "q": 3, "gamma": 0.01, "lam": 0.01, "matrix": {"name": "adam"}},
    "problem": {"name": "DeepAUC", "clients": 8, "dataset": "digits", "model": "mlp"},
    "oracle": {"batch_size": 32},
}  # fmt: skip
GROUPS = (1, 2, 4, "all", "auto")
#: The tests of runs on the devices of the ranks, without compiled gradients.
DEVICES = "tests/parallel/test_devices.py"
ON_DEVICES = "(gpu_agrees or bfloat16 or reproducible or large or nccl_or) and not reduce-overhead"
#: Columns of the floor benchmark; gradients: compiled, or in bfloat16.
COLUMNS = ("GPUs", "ranks", "transport", "workload", "method", "gradients")
COLUMNS += ("package ms", "floor ms", "ratio", "in comm")


# The jobs; each prints its rows by launching.send, rank 0 only.


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def machine() -> None:
    """Send the properties of the machine, the names of its GPUs, and whether two ranks can be started."""
    import torch

    from mpifed.base.versions import __version__
    from mpifed.parallel.devices import device_for

    if torch.version.hip:
        return send({"unusable": "torch is built for ROCm, which is not supported"})
    try:
        device_for("cuda", None, 0)
    except ValueError as error:
        return send({"unusable": str(error)})
    count = torch.cuda.device_count()
    names = [torch.cuda.get_device_name(number) for number in range(count)]
    gpus = ", ".join(f"{number} × {name}" for name, number in Counter(names).items())
    memory = torch.cuda.get_device_properties(0).total_memory / 2**30
    driver = Path("/proc/driver/nvidia/version")
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        from mpi4py import MPI

        mpi = MPI.Get_library_version().splitlines()[0].strip("\0 ")
    except (ImportError, RuntimeError) as error:
        mpi = f"none ({first_line(error)})"
    built = torch.distributed.is_available() and torch.version.cuda
    properties = {
        "mpifed": __version__,
        "GPUs": f"{gpus}, {memory:.0f} GiB",
        "driver": driver.read_text().splitlines()[0] if driver.exists() else "unknown",
        "torch": torch.__version__,
        "CUDA": f"{torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}",
        "NCCL": ".".join(map(str, torch.cuda.nccl.version())) if built else "none",
        "MPI": mpi,
        "processor": f"{processor()}, {os.cpu_count()} cores",
        "system": f"{platform.platform()}, Python {platform.python_version()}",
    }
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    send({"machine": properties, "gpus": visible or [str(n) for n in range(count)], "mpi": mpi[:4] != "none"})


def tests(*arguments: str) -> None:
    """Run pytest in this process and send the outcome of every test."""
    import pytest

    class Outcomes:
        def pytest_runtest_logreport(self, report):
            if report.when == "call" or not report.passed:
                self.note(report)

        def pytest_collectreport(self, report):
            if report.failed:
                self.note(report)

        def note(self, report):
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = report.longrepr[2] if report.skipped else crash.message if crash else report.longreprtext
            row = {
                "test": report.nodeid,
                "outcome": report.outcome,
                "reason": (reason.splitlines() or [""])[0],
            }
            print(MARK + json.dumps(row), file=lines, flush=True)

    with os.fdopen(os.dup(1), "w") as lines:  # pytest captures the output
        sys.exit(pytest.main(list(arguments), plugins=[Outcomes()]))


def methods(*names: str) -> None:
    """Compare two rounds of every method, or of those named, with the CPU."""
    from device_rounds import TOLERANCE, allowed_waits, covering, rounds, settings

    for number, (method, problem) in enumerate(covering()):
        if names and method not in names:
            continue
        row = {"method": method, "problem": problem}
        try:
            run = dict(group=(1, "all")[number % 2], reduction="fused", noise=0)
            here = rounds(settings(method, problem, "cpu", **run), 2)[0]
            there, _, waits, simulation = rounds(settings(method, problem, "cuda", **run), 2)
            deviation = float((there - here).abs().max() / here.abs().max())
            row |= {"deviation": deviation, "waits": waits.total(), "allowed": allowed_waits(simulation)}
            if not deviation <= TOLERANCE:
                row["error"] = f"deviates by more than {TOLERANCE}"
        except Exception as error:  # reported in the table
            row["error"] = first_line(error)
        send(row)


def configured(run: dict, **changes):
    from mpifed.config.job import Config

    return Config.from_table(NETWORK | changes | {"run": {"device": "cuda", "progress": False} | run})


def layouts(transport: str) -> None:
    """Send the digests of points with exact reduction by groups, and a point with a transport."""
    from device_rounds import rounds

    from mpifed.parallel.world import world

    comm = world()
    jobs = [{"reduction": "exact", "group": group} for group in (1, *GROUPS)]
    for run in [*jobs, {"reduction": "fused", "dtype": "float64", "group": 1, "transport": transport}]:
        row = {"ranks": comm.size} | run
        try:
            points, _, _, simulation = rounds(configured(run), 3, comm)
            digest = hashlib.sha256(points.numpy().tobytes()).hexdigest()
            row |= {"digest": digest, "used": simulation.rounds.choice.group}
            if run["reduction"] == "fused":
                row |= {"point": points[-1].tolist(), "transport": simulation.rounds.transport.name}
        except Exception as error:
            row["error"] = first_line(error)
        if comm.rank == 0:
            send(row)


def kernels() -> None:
    """Send the number of kernels and waits of a round, with looped and vectorised clients."""
    import torch
    from device_rounds import SIMULATED, counted
    from launching import started
    from simulated_gpu import device as simulated
    from torch.profiler import ProfilerActivity, profile

    from mpifed.parallel.comm import SerialComm

    for group in (1, "all"):
        simulation = started(configured({"group": group, "reduction": "fused"}), SerialComm())
        times = []
        for _ in range(10):
            began = time.perf_counter()
            simulation.step()
            torch.cuda.synchronize()
            times.append(1e3 * (time.perf_counter() - began))
        with counted() as waits:
            simulation.step()
        number = simulated.kernels.total()
        if not SIMULATED:
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
                simulation.step()
                torch.cuda.synchronize()
            on_gpu = [one for one in profiled.events() if one.device_type == torch.autograd.DeviceType.CUDA]
            number = sum(not one.name.startswith(("Memcpy", "Memset")) for one in on_gpu)
        send({"group": group, "kernels": number, "waits": waits.total(), "ms": statistics.median(times)})


def floor(*arguments: str) -> None:
    """Send the rows of the floor benchmark on the ranks of this job."""
    import floor as benchmark

    sys.argv = ["floor.py", "--device", "cuda", *arguments, "--worker"]
    benchmark.main()


JOBS = {one.__name__: one for one in (machine, tests, methods, layouts, kernels, floor)}


def work(name: str, arguments: list[str]) -> None:
    sys.path[:0] = IMPORTED
    with contextlib.ExitStack() as stack:
        if "MPIFED_SIMULATED_GPU" in os.environ:
            import simulated_gpu  # before torch

            if name != "tests":  # which simulate themselves
                number = int(os.environ["MPIFED_SIMULATED_GPUS"])
                stack.enter_context(simulated_gpu.simulated(number))
        JOBS[name](*arguments)


# The report.


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
        paths = [str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.environment = own | SETTINGS | {"PYTHONPATH": os.pathsep.join(paths), "NO_COLOR": "1"} | extra

    def run(self, title: str, arguments: list, gpus: int = 1, ranks: int = 0, limit: float = LIMIT):
        """Return the rows and the output of a job, ``ranks`` = 0: without mpirun; note its failure."""
        now = time.monotonic() - self.began
        print(f"gpu_check: {now:.0f} s: {title}", file=sys.stderr, flush=True)
        left = self.deadline - time.monotonic()
        if left < 1:
            self.failures.append(f"{title}: not run within --minutes {self.minutes:g}")
            return [], ""
        environment = self.environment | {"MPIFED_SIMULATED_GPUS": str(gpus)}
        if self.gpus and not self.rehearsal:
            chosen = ",".join(self.gpus[:gpus])
            environment |= {"CUDA_VISIBLE_DEVICES": chosen, "MPIFED_TEST_GPUS": chosen}
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
        text = "".join(lines)
        if not ended or job.returncode:
            why = f"exit code {job.returncode}" if ended else f"time limit of {min(limit, left):.0f} s"
            self.failures.append(f"{title}: {why}")
            print(text[-5000:], file=sys.stderr)
        return rows, text

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

    def own(self, title: str, name: str, *arguments, **options):
        """Run a job of this script."""
        return self.run(title, [__file__, "--worker", name, *arguments], **options)[0]

    def section(self, title: str, text: str) -> None:
        self.sections.append(f"### {title}\n\n{text}")
        if self.output:
            self.output.write_text(self.report())

    def report(self) -> str:
        minutes = (time.monotonic() - self.began) / 60
        result = f"{len(self.failures)} failures" if self.failures else "no failures"
        head = f"## GPU check: {result} in {minutes:.1f} minutes"
        head += ", rehearsed on simulated GPUs" if self.rehearsal else ""
        failures = "\n".join(f"- {one}" for one in self.failures)
        return "\n\n".join(filter(None, [head, failures, *self.sections])) + "\n"

    def machine(self) -> None:
        found = self.own("machine", "machine", gpus=2)
        if not found or "unusable" in found[0]:
            print(f"gpus: {found[0]['unusable'] if found else self.failures[0]}", file=sys.stderr)
            sys.exit(2)
        self.gpus, self.mpirun = found[0]["gpus"], mpirun() if found[0]["mpi"] else None
        rows = found[0]["machine"] | {"mpirun": self.mpirun or "none: parts with two ranks are skipped"}
        self.section("Machine", table(("", ""), list(map(list, rows.items()))))

    def methods(self, names: list[str]) -> None:
        rows = self.own("methods", "methods", *names, limit=LONG)
        failed = [row["method"] for row in rows if "error" in row]
        self.failures += [f"methods: {', '.join(failed)}"] if failed else []
        columns = (
            "method",
            "problem",
            "largest relative deviation from the CPU",
            "waits (allowed)",
            "result",
        )
        lines = []
        for row in rows:
            numbers = [f"{row['deviation']:.1e}", f"{row['waits']} ({row['allowed']})"]
            lines.append([row["method"], row["problem"], *(numbers if "deviation" in row else ["", ""])])
            lines[-1].append(f"failed: {row['error']}" if "error" in row else "ok")
        self.section("Two rounds of every method compared with the CPU, float64", table(columns, lines))

    def tests(self) -> None:
        if any(find_spec(module) is None for module in ("pytest", "hypothesis")):
            return self.section("Tests", "Skipped: pytest or hypothesis is not installed.")
        rehearsed = ["-p", "simulated_gpu", "-k", "staging or large"] if self.rehearsal else []
        rows, counts = [], []
        marked = ["-m", "mpi", *(["--with-mpi"] if find_spec("pytest_mpi") else [])]
        for suite, options in (("tests/gpu", []), (DEVICES, [*marked, "-k", ON_DEVICES])):
            found = self.own(suite, "tests", suite, *options, *rehearsed, limit=LONG)
            outcomes = Counter(row["outcome"] for row in found)
            counts.append([suite, 1, *(outcomes[name] for name in ("passed", "failed", "skipped"))])
            rows += [row for row in found if row["outcome"] != "passed"]
        if self.mpirun:
            counts.append(self.tests_on_ranks(rehearsed))
        text = table(("tests", "ranks", "passed", "failed", "skipped"), counts)
        reasons = Counter((row["outcome"], row["reason"], row["test"].partition("[")[0]) for row in rows)
        lines = [[*key[:2], f"{key[2]} ({number})"] for key, number in reasons.items()]
        self.section("Tests", text + ("\n\n" + table(("outcome", "reason", "test"), lines) if lines else ""))

    def tests_on_ranks(self, options: list[str]) -> list:
        """Return the counts of the tests on two ranks; a skipped test counts as passed on both ranks."""
        with tempfile.TemporaryDirectory() as folder:
            main = ["tests/support/mpi_main.py", 2, folder, DEVICES, "-k", ON_DEVICES, *options]
            self.run(f"{DEVICES} on two ranks", main, gpus=min(2, len(self.gpus)), ranks=2, limit=LONG)
            done = Path(folder, "done.txt")
            lines = done.read_text().splitlines() if done.exists() else []
            outcomes = Counter(line.split()[0] for line in lines)
        return [DEVICES, 2, outcomes["passed"], outcomes["failed"], "counted as passed"]

    def layouts(self) -> None:
        """The bits of exact reduction, and transports."""
        runs = [(0, 1, "auto")] + ([(2, 1, "host")] if self.mpirun else [])
        runs += [(2, 2, "nccl")] if self.mpirun and len(self.gpus) > 1 else []
        rows = []
        for ranks, gpus, transport in runs:
            title = f"{ranks or 1} ranks on {gpus} GPUs"
            found = self.own(title, "layouts", transport, ranks=ranks, gpus=gpus)
            rows += [row | {"gpus": gpus} for row in found]
        exact = [row for row in rows if row["reduction"] == "exact"]
        first: dict = {}
        lines = []
        for row in exact:
            first.setdefault(row["group"], row.get("digest"))
            digest, wanted = row.get("digest", row.get("error")), first[row["group"]]
            same = [("yes" if digest == one else "no") if one else "" for one in (wanted, first[1])]
            lines.append([row["ranks"], row["gpus"], row["group"], row.get("used", digest), *same])
            # Other groups than that of the first line may round differently, but not on several ranks.
            if same[0] != "yes":
                self.failures.append(f"exact on {row['ranks']} ranks: {row.get('error', 'other bits')}")
        columns = ("ranks", "GPUs", "run.group", "group used", "bits of one rank", "bits of run.group = 1")
        self.section("Exact reduction, float32", table(columns, lines))
        fused, lines = [row for row in rows if row["reduction"] == "fused"], []
        alone = fused[0].get("point") if fused else None
        for row in fused:
            result = row.get("error", "")
            if alone and "point" in row:
                largest = max(map(abs, alone))
                deviation = max(abs(a - b) for a, b in zip(row["point"], alone)) / largest
                result = f"{deviation:.1e}"
            if (
                not alone or "error" in row or not deviation <= 1e-9
            ):  # sums in another order, as in device_rounds
                self.failures.append(f"transport {row['transport']} on {row['ranks']} ranks: {result}")
            lines.append([row["ranks"], row["gpus"], row["transport"], result])
        columns = ("ranks", "GPUs", "transport", "largest relative deviation from one rank")
        self.section("Transports, float64", table(columns, lines) if self.mpirun else "Skipped: no mpirun.")

    def kernels(self) -> None:
        rows = self.own("kernels", "kernels")
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
            runs = [(1, 2, ["--workloads", "saddle", "--methods", "AdaFGDA", "--rounds", "2"])]
        else:
            ways = ("--autocast=bfloat16", "--compile=default", "--compile=reduce-overhead")
            runs += [(1, 1, [*network, way]) for way in ways]  # compiled for up to a minute
        lines = []
        for gpus, ranks, arguments in runs:
            title = f"floor on {ranks} ranks, {gpus} GPUs: {' '.join(arguments)}"
            rows = self.own(title, "floor", *arguments, gpus=gpus, ranks=ranks)
            lines += [cells(gpus, row) for row in rows]
        self.section("Floor benchmark: times of a round and of a bare loop", table(COLUMNS, lines))


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        return work(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10, help="time limit of the whole check")
    parser.add_argument("--output", type=Path, help="file of the report, rewritten after every part")
    parser.add_argument("--rehearse", action="store_true", help="run on simulated GPUs")
    parser.add_argument("--methods", nargs="+", default=[], help="compare only these methods with the CPU")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        extra = {}
        if options.rehearse:
            sys.path[:0] = IMPORTED
            import simulated_gpu

            extra, reason = simulated_gpu.build(Path(folder))
            if not extra:
                print(f"gpus: {reason}", file=sys.stderr)
                sys.exit(2)
        check = Check(options.minutes, options.output, extra)
        check.machine()
        check.methods(options.methods)
        check.layouts()
        check.kernels()
        check.tests()
        check.floor()
    print(check.report(), end="")
    sys.exit(bool(check.failures))


if __name__ == "__main__":
    main()
