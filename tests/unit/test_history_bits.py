"""The same bits and the same bytes, interrupted or not; what they depend on is held to the job."""

import json
import shutil

import h5py
import numpy as np
import pytest
import torch
from runfiles import edited
from threadpoolctl import threadpool_info, threadpool_limits

import mpifed
from mpifed import resume, run
from mpifed.config.job import Config
from mpifed.parallel import devices
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.running.runner import Runner
from mpifed.simulation.simulation import Simulation

COMM = SerialComm()
#: What a clock or a meter has measured.
MEASURED = (
    "costs/seconds", "costs/compute_seconds", "costs/communication_seconds", "ranks/peak_host_bytes",
)  # fmt: skip


def job(folder, rounds=6, **settings) -> Config:
    how = {
        "progress": False,
        "checkpoint_every": 2,
        "eval_every": 2,
        "reduction": "exact",
        "out": str(folder),
    }
    return Config.from_table(
        {
            "rounds": rounds,
            "record": ["x", "y"],
            "algorithm": {"name": "AdaFGDA", "q": 2, "sync_estimator": "local"},
            "problem": {"name": "Saddle", "clients": 4, "d": 3},
            "oracle": {"batch_size": 0, "noise": {"name": "gaussian", "scale": 0.1}},
            "clock": {"bandwidth_up": 1e6, "bandwidth_down": 1e6, "gradients_per_second": 9.0, "jitter": 0.3},
            "run": how | settings,
        }
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run in one go. All of this module lie in one folder by turns, since files name it."""
    folder = tmp_path_factory.mktemp("bits") / "run"
    result = run(job(folder), COMM)
    shutil.move(folder, folder.with_name("whole"))
    return result, folder


@pytest.fixture
def folder(whole):
    yield whole[1]
    shutil.rmtree(whole[1], ignore_errors=True)


def interrupt(monkeypatch, after: int) -> None:
    """Let a run die in the round after ``after``."""
    step = Runner._round

    def fatal(self, bar):
        if self.simulation.round == after:
            raise KeyboardInterrupt
        return step(self, bar)

    monkeypatch.setattr(Runner, "_round", fatal)


def unmeasured(file) -> bytes:
    """A results file whose measured columns are 0."""
    with edited(file) as opened:
        for name in MEASURED:
            opened[name][...] = 0
    return file.read_bytes()


def described(file) -> dict:
    """Order, types, shapes, attributes and values of all that is in a file."""
    found = {}

    def note(name, node):
        attributes = [(key, np.asarray(value).tolist()) for key, value in node.attrs.items()]
        found[name] = [
            type(node).__name__,
            attributes,
            *([str(node.dtype), node.shape] if hasattr(node, "dtype") else []),
        ]
        if isinstance(node, h5py.Dataset) and name not in MEASURED:
            found[name].append(node[...].tolist())

    with h5py.File(file) as opened:
        found["/"] = [(key, value) for key, value in opened.attrs.items()]
        opened.visititems(note)
    return found


@pytest.mark.parametrize("after", [1, 2, 3, 5])
def test_a_results_file_is_the_same_bytes_with_and_without_interruption(whole, folder, after, monkeypatch):
    with monkeypatch.context() as patches, pytest.raises(KeyboardInterrupt):
        interrupt(patches, after)
        run(job(folder), COMM)
    again = run(job(folder), COMM)
    ours, theirs = folder / "run.h5", folder.with_name("whole") / "run.h5"
    for name, (one, other) in {
        key: (described(ours)[key], value) for key, value in described(theirs).items()
    }.items():
        assert one == other, name
    assert unmeasured(ours) == unmeasured(theirs)
    assert again.history == whole[0].history and all(type(r) is int for r in again.history["round"])


def kinds(folder) -> dict:
    """Type and number of axes of every dataset."""
    found = {}
    with h5py.File(folder / "run.h5") as file:
        file.visititems(
            lambda name, node: (
                found.update({name: (str(node.dtype), node.ndim)}) if hasattr(node, "ndim") else None
            )
        )
    return found


def test_a_results_file_of_a_longer_run_has_the_same_types(whole, folder):
    """It has one more evaluation, of the round that was the last."""
    run(job(folder, rounds=4, eval_every=3), COMM)
    run(job(folder, eval_every=3), COMM)
    assert mpifed.load(folder).history["round"] == [0, 3, 4, 6]
    assert kinds(folder) == kinds(folder.with_name("whole"))


def test_the_iterate_of_a_round_is_recorded_as_that_rounds(folder, monkeypatch):
    """With and without an interruption, against the simulation step by step."""
    simulation = Simulation.from_settings(job(folder), COMM)
    simulation.start()
    points = []
    for _ in range(6):
        simulation.step()
        points.append({block: getattr(simulation.shared, block).numpy().copy() for block in "xy"})
    with monkeypatch.context() as patches, pytest.raises(KeyboardInterrupt):
        interrupt(patches, 3)
        run(job(folder), COMM)
    for result in (run(job(folder), COMM), mpifed.load(folder)):
        for block in "xy":
            np.testing.assert_array_equal(result.iterates[block], [point[block] for point in points])
            assert not np.array_equal(result.iterates[block][:-1], result.iterates[block][1:])
    with h5py.File(folder / "run.h5") as file:
        assert file["iterates/round"][...].tolist() == [1, 2, 3, 4, 5, 6]


def test_a_run_that_ends_before_its_first_round_keeps_its_files(folder):
    settings = job(folder).model_copy(
        update={
            "stop": mpifed.Config.model_fields["stop"].default.model_copy(
                update={"metric": "error", "at_most": 1e9}
            )
        }
    )
    result = run(settings, COMM)
    assert (
        result.end.kind == "target"
        and result.iterates["x"].shape == (0, 3) == mpifed.load(folder).iterates["x"].shape
    )
    assert run(settings, COMM).end == resume(folder, [], COMM).end == result.end
    (folder / "run.h5").unlink()
    assert run(settings, COMM).end == result.end


@pytest.fixture
def half(folder, monkeypatch):
    """A run under ``exact`` that was interrupted; the settings that bits depend on are the defaults."""
    with monkeypatch.context() as patches, pytest.raises(KeyboardInterrupt):
        interrupt(patches, 3)
        run(job(folder), COMM)
    return folder


CHANGES = {
    "group": ({"group": "all"}, "run.group", "1", "all"),
    "threads": ({"threads": 2}, "run.threads", "1", "2"),
    "reduction": ({"reduction": "fused"}, "run.reduction", "exact", "fused"),
    "dtype": ({"dtype": "float64"}, "run.dtype", "float32", "float64"),
}


@pytest.mark.parametrize("change, name, old, new", CHANGES.values(), ids=CHANGES)
def test_what_bits_depend_on_is_the_jobs(half, change, name, old, new):
    with pytest.raises(CollectiveError, match=f"another job: {name} is {old} there and {new} here"):
        run(job(half, **change), COMM)
    if name in ("run.group", "run.threads"):
        with pytest.raises(
            CollectiveError, match=rf"depend on {name} \({old} there, {new} here\): leave it as"
        ):
            resume(half, [f"{name}={new}"], COMM)


@pytest.mark.parametrize("change, name, old, new", CHANGES.values(), ids=CHANGES)
def test_nor_is_a_complete_run_that_of_another_job(folder, change, name, old, new):
    run(job(folder, checkpoint_every=0), COMM)
    with pytest.raises(CollectiveError, match=f"another job: {name} is {old} there and {new} here"):
        run(job(folder, **change), COMM)


def test_numpy_takes_one_thread_whatever_the_environment_says():
    """The bits of its decompositions and solutions depend on that."""

    def threads():
        return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    with threadpool_limits(2, "blas"):
        with devices.deterministic(True):
            assert threads() == {1}
        assert threads() == {2}


def test_what_says_the_same_is_the_same(half, whole):
    """One thread, a device that ``auto`` had chosen, the matrices everywhere."""
    result = run(job(half, threads=1, device="cpu", matrices="replicated", placement="balanced"), COMM)
    assert torch.equal(result.point["x"], whole[0].point["x"])


def test_the_promise_can_be_given_up_and_not_be_got_back(half, capsys):
    resume(half, ["run.reduction=fused", "run.threads=2", "run.group=all", "rounds=7"], COMM)
    assert "run.reduction = 'fused' from here on" in capsys.readouterr().err
    with pytest.raises(
        CollectiveError, match=r"run.reduction \(fused there, exact here\).*: go on with run.reduction=fused"
    ):
        resume(half, ["run.reduction=exact", "rounds=9"], COMM)
    with pytest.raises(CollectiveError, match="run.reduction is fused there and exact here"):
        run(job(half, rounds=9), COMM)
    assert resume(half, ["rounds=9", "run.threads=1", "run.group=1"], COMM).costs["round"][-1] == 9


def test_another_kind_of_device_is_refused_under_exact_alone(half, monkeypatch):
    kind = type("Cuda", (), {"type": "cuda", "index": 0})
    monkeypatch.setattr(devices, "machine", lambda device: {})
    with monkeypatch.context() as patches:
        set_up = Simulation._set_up

        def elsewhere(self, *arguments, **options):
            set_up(self, *arguments, **options)
            self.device = kind()

        patches.setattr(Simulation, "_set_up", elsewhere)
        patches.setattr("mpifed.running.runner.expect_alike", lambda *_: None)
        with pytest.raises(CollectiveError, match="began on run.device = 'cpu' and would continue on 'cuda'"):
            run(job(half), COMM)


def test_machines_are_compared_under_exact_alone(folder, monkeypatch):
    seen = []
    monkeypatch.setattr("mpifed.running.runner.expect_alike", lambda *_: seen.append(1))
    run(job(folder, reduction="fused", overwrite=True), COMM)
    assert not seen
    run(job(folder, overwrite=True), COMM)
    assert seen == [1]


def test_another_machine_and_other_versions_are_told(half, monkeypatch, capsys):
    here = devices.machine(torch.device("cpu"))
    assert {"torch", "numpy", "scipy", "processor", "instructions", "MKL_CBWR"} == {*here} and all(
        here.values()
    )
    run(job(half, rounds=4), COMM)
    assert "warning" not in capsys.readouterr().err
    monkeypatch.setattr(
        "mpifed.running.checkpointing.machine", lambda device: here | {"torch": "9.9", "processor": "another"}
    )
    run(job(half, rounds=5), COMM)
    said = capsys.readouterr().err
    assert f"warning: torch is {torch.__version__} before and 9.9 now; processor is " in said, said
    assert "the results may no longer be bitwise identical (run.reduction = 'exact')" in said
    resume(half, ["run.reduction=fused", "rounds=6"], COMM)
    assert "may no longer be bitwise identical" not in capsys.readouterr().err


def test_the_results_file_says_what_bits_depend_on(whole):
    with h5py.File(whole[1].with_name("whole") / "run.h5") as file:
        layout, versions = json.loads(file.attrs["layout"]), json.loads(file.attrs["versions"])
    assert layout["threads"] == 1 and layout["device"] == "cpu" and layout["machine"]["processor"]
    assert versions["torch"] == layout["machine"]["torch"] == torch.__version__
