"""A run whose network starts from a file of weights."""

from pathlib import Path

import pytest
import torch
from commands import output_of
from everything import SETTINGS, method
from safetensors.torch import load_file, save_file

import mpifed
from mpifed.base.settings import build
from mpifed.config.grids import variants
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.problems import PROBLEMS
from mpifed.simulation.simulation import Simulation

COMM = SerialComm()
NETWORKS = [name for name, cls in PROBLEMS.items() if "model" in cls.__dataclass_fields__]
METHODS = {"minimax": "FedNormSGDA", "composition": "MFCGD", "bilevel": "SimFBO"}
JOB = """
rounds = 2
algorithm = { name = "LocalSGDA", q = 2, eta_x = 0.1, eta_y = 0.1 }
problem = { name = "DeepAUC", dataset = "digits", clients = 2, model = { name = "mlp", hidden = [3] } }
run = { out = "run", progress = false, checkpoint_every = 1 }
"""
SHAPES = {"fc1.weight": (3, 64), "fc1.bias": (3,), "fc2.weight": (1, 3), "fc2.bias": (1,)}


def config(folder, problem, name=None, **settings):
    cls = PROBLEMS[problem]
    run = {"out": str(folder / "run"), "progress": False} | settings.pop("run", {})
    return mpifed.Config(
        algorithm=method(name or METHODS[cls.family]),
        problem=build(cls, dict(SETTINGS[problem]), problem),
        rounds=2,
        oracle={"batch_size": 4},
        run=run,
        **settings,
    )


def started(config) -> dict[str, dict[str, torch.Tensor]]:
    """The starting point by block and name."""
    simulation = Simulation.from_settings(config, COMM)
    simulation.start()
    return {
        block: simulation.blocks.unflatten(block, getattr(simulation.shared, block))
        for block in simulation.blocks
    }


def weights(**changes):
    """Weights of the job's network, with changes; ``None`` removes a tensor."""
    torch.manual_seed(0)
    tensors = {name: torch.rand(shape) for name, shape in SHAPES.items()}
    return {name: one for name, one in (tensors | changes).items() if one is not None}


def export(folder):
    file = folder / "model.safetensors"
    output_of("export", folder / "run", "--to", file)
    return str(file)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("problem", NETWORKS)
def test_exported_weights_are_restored_exactly(tmp_path, problem, dtype):
    run = {"dtype": dtype}
    result = mpifed.run(config(tmp_path, problem, run=run), COMM)
    own, start = (
        started(config(tmp_path, problem, run=run, seed=7, **more))
        for more in ({}, {"initial": export(tmp_path)})
    )
    (block,) = {block for block, _ in result.network.values()}
    for name, values in start[block].items():
        expected = result.parameters[block] if name in result.network else own[block]
        assert values.dtype == getattr(torch, dtype) and torch.equal(values, expected[name]), name
    for other in {*start} - {block}:
        assert all(torch.equal(one, own[other][name]) for name, one in start[other].items())
    changed = [name for name in result.network if not torch.equal(start[block][name], own[block][name])]
    assert changed, "another seed"


def test_weights_are_exchanged_between_minimax_problem_and_game(tmp_path):
    for first, second in (("LocalSGDA", "LSGD"), ("LSGD", "LocalSGDA")):
        folder = tmp_path / first
        folder.mkdir()
        result = mpifed.run(config(folder, "DeepAUC", first), COMM)
        start = started(config(folder, "DeepAUC", second, initial=export(folder)))
        named = start.get("z") or {f"x.{name}": values for name, values in start["x"].items()}
        for name, values in result.state_dict().items():
            assert torch.equal(named[f"x.{name}"], values)
        assert not named["x.a"].any() and not named["x.b"].any(), "they start where they always do"


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A job file in a folder other than the working folder."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "job.toml").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    return "jobs/job.toml"


def test_file_is_searched_next_to_the_job_file_first(tmp_path, job):
    beside, here = tmp_path / "jobs" / "a.safetensors", tmp_path / "a.safetensors"
    (tmp_path / job).write_text('initial = "a.safetensors"\n' + JOB)
    for file in (here, beside):  # the first one while there is no other
        save_file(weights(), file)
        assert mpifed.Config.load(job).initial == str(file) == mpifed.Config.load(job).table()["initial"]
    assert mpifed.Config.load(job, ["initial=a.safetensors"]).initial == str(here)
    (tmp_path / job).write_text('sweep = { initial = ["a.safetensors"], seed = [0, 1] }\n' + JOB)
    assert {one.config.initial for one in variants(job)} == {str(here)}


def test_initial_is_not_stored_by_default(job):
    assert "initial" not in mpifed.Config.load(job).table()


def test_resumed_run_needs_the_same_file(tmp_path, job, monkeypatch):
    save_file(weights(), "a.safetensors")
    result = mpifed.run(job, COMM, overrides=["initial=a.safetensors"])
    assert result.config["initial"] == str(tmp_path / "a.safetensors")
    monkeypatch.chdir(tmp_path / "jobs")
    longer = mpifed.resume("../run", ["rounds=3"], COMM)
    whole = mpifed.run("job.toml", COMM, overrides=["initial=../a.safetensors", "rounds=3", "run.out=whole"])
    assert torch.equal(longer.point["x"], whole.point["x"])
    save_file(weights(**{"fc1.bias": torch.zeros(3)}), tmp_path / "a.safetensors")
    with pytest.raises(CollectiveError, match="data file initial has changed since the checkpoint"):
        mpifed.resume("../run", ["rounds=4"], COMM)
    (tmp_path / "a.safetensors").unlink()
    with pytest.raises(CollectiveError, match="initial: cannot read .*a.safetensors: No such file"):
        mpifed.resume("../run", ["rounds=4"], COMM)


DIGITS = {f"other{n}": torch.ones(1) for n in range(9)}
WRONG = {
    "lacking": (weights(**{"fc2.bias": None}), ["lacks fc2.bias of the network"]),
    "other names": (
        {f"module.{name}": one for name, one in weights().items()},
        [
            "lacks fc1.weight, fc1.bias, fc2.weight, fc2.bias of the network, and has module.fc1.bias, ",
            " instead",
        ],
    ),
    "more": (
        weights(**DIGITS),
        ["has other0,", "and 4 more, which the network (fc1.weight, ", ") does not have"],
    ),
    "shape": (
        weights(**{"fc1.weight": torch.rand(64, 3)}),
        ["'fc1.weight' has the shape [64, 3] in", "expected [3, 64]"],
    ),
    "type": (
        weights(**{"fc1.bias": torch.zeros(3, dtype=torch.int32)}),
        ["'fc1.bias' has the dtype int32 in", "expected floating-point numbers"],
    ),
    "not finite": (weights(**{"fc1.bias": torch.full((3,), torch.nan)}), ["'fc1.bias' has values", "finite"]),
}


@pytest.mark.parametrize("tensors, says", WRONG.values(), ids=WRONG)
def test_unsuitable_weights_are_refused_before_the_run(tmp_path, job, tensors, says):
    save_file(tensors, "a.safetensors")
    with pytest.raises(CollectiveError) as fault:
        mpifed.run(job, COMM, overrides=["initial=a.safetensors"])
    assert all(words in str(fault.value) for words in says) and str(fault.value).startswith("initial: ")
    assert len(str(fault.value).splitlines()) == 1 and not list((tmp_path / "run").glob("*.h5"))


FILES = {
    "a.pt": (b"", "expected a .safetensors file, written by `mpifed export` or safetensors.torch.save_file"),
    "none.safetensors": (None, "initial: cannot read .*none.safetensors: No such file or directory"),
    "text.safetensors": (b"not weights", "initial: .*text.safetensors is not a safetensors file"),
    "cut.safetensors": (b"\x40\0\0\0\0\0\0\0{", "initial: .*cut.safetensors is not a safetensors file"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_files_without_weights_are_refused(job, name):
    content, says = FILES[name]
    if content is not None:
        Path(name).write_bytes(content)
    with pytest.raises((CollectiveError, mpifed.ConfigError), match=says):
        mpifed.run(job, COMM, overrides=[f"initial={name}"])


def test_a_problem_without_a_network(tmp_path):
    save_file(weights(), tmp_path / "a.safetensors")
    with pytest.raises(CollectiveError, match="Saddle has no network that could start from weights: leave"):
        mpifed.run(config(tmp_path, "Saddle", initial=str(tmp_path / "a.safetensors")), COMM)


OWN = """
import torch

class Net(torch.nn.Module):
    def __init__(self, width=3, shift=1.0):
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, width), torch.nn.Linear(width, width)
        self.again, self.last = self.second, torch.nn.Linear(width, 1)
        self.frozen = torch.nn.Parameter(torch.ones(width), requires_grad=False)
        self.register_buffer("shift", torch.full((width,), shift))

    def forward(self, images):
        h = torch.tanh(self.first(images.flatten(1)) * self.frozen + self.shift)
        return self.last(torch.tanh(self.again(torch.tanh(self.second(h)))))
"""


def test_user_module_is_exported_and_loaded_again(tmp_path, job):
    """With a buffer, a frozen parameter and a shared layer, which ``load_state_dict`` wants as well."""
    Path("net.py").write_text(OWN)
    result = mpifed.run(job, COMM, overrides=['problem.model={name="./net.py:Net", width=4}'])
    module = mpifed.load("run").model()
    assert type(module).__name__ == "Net" and not module.training and module.first.out_features == 4
    export(tmp_path)
    state = load_file("model.safetensors")
    assert {*state} == {*module.state_dict()} and {"shift", "frozen", "again.weight"} < {*state}
    assert all(torch.equal(one, module.state_dict()[name]) for name, one in state.items())
    again = ['problem.model={name="./net.py:Net", width=4}', "initial=model.safetensors", "run.out=again"]
    start = started(mpifed.Config.load(job, again))
    assert all(torch.equal(start["x"][name], result.parameters["x"][name]) for name in result.network)
    again[0] = 'problem.model={name="./net.py:Net", width=4, shift=2.0}'
    with pytest.raises(CollectiveError, match="^initial: 'shift' has other values in .* a buffer or a"):
        mpifed.run(job, COMM, overrides=again)
    Path("net.py").write_text(OWN.replace("tanh", "relu"))
    with pytest.raises(mpifed.ConfigError, match="the source of problem.model .* has changed"):
        mpifed.load("run").model()
    assert torch.equal(result.model().state_dict()["last.bias"], state["last.bias"]), "it is in this process"


def test_module_object_cannot_be_loaded_in_another_process(tmp_path):
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 1))
    settings = mpifed.Config(
        algorithm=method("LocalSGDA"),
        problem=PROBLEMS["DeepAUC"](dataset="digits", clients=2, model=net),
        rounds=2,
        run={"out": str(tmp_path / "run"), "progress": False},
    )
    first, again = (mpifed.run(settings, COMM).model() for _ in range(2))  # the second finds it complete
    assert type(first) is type(again) is torch.nn.Sequential and first is not net
    assert torch.equal(first[1].weight, again[1].weight) and not torch.equal(first[1].weight, net[1].weight)
    with pytest.raises(mpifed.ConfigError, match="cannot be imported again|given as an object"):
        mpifed.load(tmp_path / "run").model()
