"""Bitwise reproducibility: interrupted runs, the settings on which bits depend, and unset reductions."""

import json
import shutil

import h5py
import numpy as np
import pytest
import torch
from games import Game, configuration
from runfiles import edited
from saddle_job import config
from threadpoolctl import threadpool_info, threadpool_limits

import mpifed
from mpifed import resume, run
from mpifed.algorithms import LocalSGDA
from mpifed.parallel import reproducibility
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.problems import Saddle
from mpifed.simulation import setup
from mpifed.simulation.simulation import Simulation

COMM = SerialComm()
#: Measured columns of a results file.
MEASURED = (
    "costs/seconds", "costs/compute_seconds", "costs/communication_seconds", "ranks/peak_host_bytes",
)  # fmt: skip
CLOCK = {"bandwidth_up": 1e6, "bandwidth_down": 1e6, "gradients_per_second": 9.0, "jitter": 0.3}


def job(folder, rounds=6, **run):
    run = {"dtype": "float32", "eval_every": 2, "keep_best": "error"} | run
    return config(folder, rounds, ["x", "y"], run, clock=CLOCK)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run. All runs of this module have the same folder, since files contain its name."""
    folder = tmp_path_factory.mktemp("bits") / "run"
    result = run(job(folder), COMM)
    shutil.move(folder, folder.with_name("whole"))
    return result, folder


@pytest.fixture
def folder(whole):
    yield whole[1]
    shutil.rmtree(whole[1], ignore_errors=True)


@pytest.fixture
def interrupt(folder, monkeypatch):
    """``interrupt(after)``: run the job until an interrupt in the round after ``after``."""
    step = Simulation.step

    def run_until(after):
        def fatal(self, control):
            if self.round == after:
                raise KeyboardInterrupt
            return step(self, control)

        with monkeypatch.context() as patches, pytest.raises(KeyboardInterrupt):
            patches.setattr(Simulation, "step", fatal)
            run(job(folder), COMM)
        return folder

    return run_until


@pytest.fixture
def half(interrupt):
    """The folder of a run that was interrupted after round 3."""
    return interrupt(3)


def without_times(file) -> bytes:
    """The bytes of a results file whose measured columns are 0."""
    with edited(file) as opened:
        for name in MEASURED:
            opened[name][...] = 0
    return file.read_bytes()


def described(file) -> dict:
    """Order, types, shapes, attributes and values of everything in a file."""
    content = {}

    def note(name, node):
        attributes = [(key, np.asarray(value).tolist()) for key, value in node.attrs.items()]
        content[name] = [type(node).__name__, attributes]
        if isinstance(node, h5py.Dataset):
            content[name] += [str(node.dtype), node.shape, [] if name in MEASURED else node[...].tolist()]

    with h5py.File(file) as opened:
        content["/"] = [(key, value) for key, value in opened.attrs.items()]
        opened.visititems(note)
    return content


@pytest.mark.parametrize("after", [1, 2, 3, 5])
def test_interrupted_run_writes_the_same_bytes(whole, interrupt, after):
    folder = interrupt(after)
    result = run(job(folder), COMM)
    ours, theirs = folder / "run.h5", folder.with_name("whole") / "run.h5"
    resumed = described(ours)
    for name, expected in described(theirs).items():
        assert resumed[name] == expected, name
    assert without_times(ours) == without_times(theirs)
    assert result.history == whole[0].history and all(type(r) is int for r in result.history["round"])


def types_of(folder) -> dict:
    """The dtype and the number of axes of every dataset."""
    datasets = {name: entry for name, entry in described(folder / "run.h5").items() if entry[0] == "Dataset"}
    return {name: (dtype, len(shape)) for name, (_, _, dtype, shape, _) in datasets.items()}


def test_results_of_a_longer_run_have_the_same_types(folder):
    """There is one more evaluation, of the previous last round."""
    run(job(folder, rounds=4, eval_every=3), COMM)
    run(job(folder, eval_every=3), COMM)
    assert mpifed.load(folder).history["round"] == [0, 3, 4, 6]
    assert types_of(folder) == types_of(folder.with_name("whole"))


def test_run_that_ends_before_its_first_round(folder):
    stop = mpifed.Config.model_fields["stop"].default.model_copy(update={"metric": "error", "at_most": 1e9})
    settings = job(folder).model_copy(update={"stop": stop})
    result = run(settings, COMM)
    assert result.end.kind == "target"
    assert result.iterates["x"].shape == (0, 3) == mpifed.load(folder).iterates["x"].shape
    assert run(settings, COMM).end == resume(folder, [], COMM).end == result.end
    (folder / "run.h5").unlink()
    assert run(settings, COMM).end == result.end


CHANGES = {
    "group": ({"group": "all"}, "run.group", "1", "all"),
    "threads": ({"threads": 2}, "run.threads", "1", "2"),
    "reduction": ({"reduction": "fused"}, "run.reduction", "exact", "fused"),
    "dtype": ({"dtype": "float64"}, "run.dtype", "float32", "float64"),
}


@pytest.mark.parametrize("change, name, old, new", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("complete", [False, True])
def test_settings_that_affect_bits_make_another_job(folder, interrupt, complete, change, name, old, new):
    run(job(folder, checkpoint_every=0), COMM) if complete else interrupt(3)
    with pytest.raises(
        CollectiveError, match=f"another job: {name} is {old} in the stored run and {new} in this job"
    ):
        run(job(folder, **change), COMM)
    if not complete and name in ("run.group", "run.threads"):
        message = rf"depends on {name} \(stored {old}, now {new}\): keep the stored value"
        with pytest.raises(CollectiveError, match=message):
            resume(folder, [f"{name}={new}"], COMM)


def test_equivalent_settings_continue(half, whole):
    result = run(job(half, threads=1, device="cpu", matrices="replicated", placement="balanced"), COMM)
    assert torch.equal(result.point["x"], whole[0].point["x"])


def test_numpy_uses_one_thread_under_exact():
    """The bits of its decompositions and solutions depend on the number of threads."""

    def threads():
        return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    with threadpool_limits(2, "blas"):
        with reproducibility.deterministic(True):
            assert threads() == {1}
        assert threads() == {2}


def test_guarantee_can_be_given_up_and_not_regained(half, capsys):
    resume(half, ["run.reduction=fused", "run.threads=2", "run.group=all", "rounds=7"], COMM)
    assert "run.reduction = 'fused' from here on" in capsys.readouterr().err
    message = r"run.reduction \(stored fused, now exact\).*: continue with run.reduction=fused"
    with pytest.raises(CollectiveError, match=message):
        resume(half, ["run.reduction=exact", "rounds=9"], COMM)
    with pytest.raises(
        CollectiveError, match="run.reduction is fused in the stored run and exact in this job"
    ):
        run(job(half, rounds=9), COMM)
    assert resume(half, ["rounds=9", "run.threads=1", "run.group=1"], COMM).costs["round"][-1] == 9


def test_other_type_of_device_is_refused(half, monkeypatch):
    set_up = Simulation._set_up

    def elsewhere(self, *arguments, **options):
        set_up(self, *arguments, **options)
        self.device = type("Cuda", (), {"type": "cuda", "index": 0})()

    monkeypatch.setattr(reproducibility, "machine", lambda device: {})
    monkeypatch.setattr(Simulation, "_set_up", elsewhere)
    monkeypatch.setattr("mpifed.running.loop.warn_if_machines_differ", lambda *_: None)
    with pytest.raises(CollectiveError, match="began on run.device = 'cpu' and would continue on 'cuda'"):
        run(job(half), COMM)


def test_other_machine_causes_a_warning(half, monkeypatch, capsys):
    here = reproducibility.machine(torch.device("cpu"))
    assert {"torch", "numpy", "scipy", "processor", "instructions", "MKL_CBWR"} == {*here}
    assert all(here.values())
    run(job(half, rounds=4), COMM)
    assert "warning" not in capsys.readouterr().err
    other = here | {"torch": "9.9", "processor": "another"}
    monkeypatch.setattr("mpifed.running.checkpointing.machine", lambda device: other)
    run(job(half, rounds=5), COMM)
    output = capsys.readouterr().err
    assert f"warning: torch is {torch.__version__} before and 9.9 now; processor is " in output, output
    assert "the results may no longer be bitwise identical (run.reduction = 'exact')" in output
    resume(half, ["run.reduction=fused", "rounds=6"], COMM)
    assert "may no longer be bitwise identical" not in capsys.readouterr().err


def test_results_contain_what_bits_depend_on(whole):
    with h5py.File(whole[1].with_name("whole") / "run.h5") as file:
        assert file["iterates/round"][...].tolist() == [1, 2, 3, 4, 5, 6]
        layout, versions = json.loads(file.attrs["layout"]), json.loads(file.attrs["versions"])
    assert layout["threads"] == 1 and layout["device"] == "cpu" and layout["machine"]["processor"]
    assert versions["torch"] == layout["machine"]["torch"] == torch.__version__


METHOD, PROBLEM = LocalSGDA(q=2, eta_x=0.1, eta_y=0.1), Saddle(clients=3)


@pytest.mark.parametrize("device, default", [("cpu", "exact"), ("cuda", "fused")])
@pytest.mark.parametrize("given", [None, "exact", "fused"])
def test_default_reduction_depends_on_the_device(monkeypatch, device, default, given):
    monkeypatch.setattr(setup, "device_type", lambda *_: device)
    resolved = setup.resolve_reduction(configuration(METHOD, PROBLEM, "runs/none", reduction=given), COMM)
    assert resolved.run.reduction == resolved.table()["run"]["reduction"] == (given or default)
    assert setup.resolve_reduction(resolved, COMM) == resolved


@pytest.mark.parametrize("group, reduction", [(1, "exact"), (2, "fused"), ("auto", "fused")])
def test_compiled_groups_are_not_exact(group, reduction):
    given = configuration(METHOD, Game(), "runs/none", compile="default", group=group)
    assert setup.resolve_reduction(given, COMM).run.reduction == reduction


def test_default_reduction_is_stored(tmp_path):
    run(configuration(METHOD, PROBLEM, tmp_path))
    assert mpifed.load(tmp_path).config["run"]["reduction"] == "exact"
