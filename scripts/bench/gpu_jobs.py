#!/usr/bin/env python3
"""The jobs of the check of GPUs, started by ``gpus.py``: python scripts/bench/gpu_jobs.py JOB ARGUMENTS

Every job prints its rows by ``launching.send``, on rank 0 only. If ``MPIFED_SIMULATED_GPU`` is set, it runs
on a simulated GPU.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import statistics
import sys
import time
from collections import Counter
from pathlib import Path

from launching import MARK, processor, send

CHECKOUT = Path(__file__).resolve().parents[2]
IMPORTED = [str(CHECKOUT / folder) for folder in ("", "tests", "tests/support")]
#: A job of eight clients with a network, whose products a GPU may sum differently for other groups.
NETWORK = {
    "algorithm": {"name": "AdaFGDA", "q": 3, "gamma": 0.01, "lam": 0.01, "matrix": {"name": "adam"}},
    "problem": {"name": "DeepAUC", "clients": 8, "dataset": "digits", "model": "mlp"},
    "oracle": {"batch_size": 32},
}  # fmt: skip


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def machine() -> None:
    """Send the properties of the machine, the names of its GPUs, and whether two ranks can be started."""
    import torch

    from mpifed.base.versions import __version__
    from mpifed.parallel.devices import offered_devices

    if torch.version.hip:
        return send({"unusable": "torch is built for ROCm, which is not supported"})
    try:
        offered_devices("cuda", None, 0)
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


def layouts(transport: str, *groups: str) -> None:
    """Send the digests of points with exact reduction by groups, and a point with a transport."""
    from device_rounds import rounds

    from mpifed.parallel.world import world

    comm = world()
    chosen = [int(group) if group.isdigit() else group for group in groups]
    jobs = [{"reduction": "exact", "group": group} for group in chosen]
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


def kernels(number: str) -> None:
    """Send the number of kernels and waits of a round, and the median time of a number of rounds, with looped
    and vectorised clients."""
    import torch
    from device_rounds import SIMULATED, counted
    from launching import started
    from simulated_gpu import device as simulated
    from torch.profiler import ProfilerActivity, profile

    from mpifed.parallel.comm import SerialComm

    for group in (1, "all"):
        simulation = started(configured({"group": group, "reduction": "fused"}), SerialComm())
        times = []
        for _ in range(int(number)):
            began = time.perf_counter()
            simulation.step()
            torch.cuda.synchronize()
            times.append(1e3 * (time.perf_counter() - began))
        with counted() as waits:
            simulation.step()
        launched = simulated.kernels.total()
        if not SIMULATED:
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
                simulation.step()
                torch.cuda.synchronize()
            on_gpu = [one for one in profiled.events() if one.device_type == torch.autograd.DeviceType.CUDA]
            launched = sum(not one.name.startswith(("Memcpy", "Memset")) for one in on_gpu)
        send({"group": group, "kernels": launched, "waits": waits.total(), "ms": statistics.median(times)})


def floor(*arguments: str) -> None:
    """Send the rows of the floor benchmark on the ranks of this job."""
    import floor as benchmark

    sys.argv = ["floor.py", "--device", "cuda", *arguments, "--worker"]
    benchmark.main()


JOBS = {one.__name__: one for one in (machine, tests, methods, layouts, kernels, floor)}


def main() -> None:
    name, *arguments = sys.argv[1:]
    sys.path[:0] = IMPORTED
    with contextlib.ExitStack() as stack:
        if "MPIFED_SIMULATED_GPU" in os.environ:
            import simulated_gpu  # before torch

            if name != "tests":  # which use it as a plugin
                stack.enter_context(simulated_gpu.simulated())
        JOBS[name](*arguments)


if __name__ == "__main__":
    main()
