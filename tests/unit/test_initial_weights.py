"""A run whose network starts from a file of weights."""

from pathlib import Path

import pytest
import torch
from commands import output_of
from everything import method, problem
from games import started
from safetensors.torch import load_file, save_file

import mpifed
from mpifed.config.grids import variants
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.problems import PROBLEMS

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


def config(folder, name, algorithm=None, **settings):
    run = {"out": str(folder / "run"), "progress": False} | settings.pop("run", {})
    settings |= {"rounds": 2, "oracle": {"batch_size": 4}, "run": run}
    algorithm = method(algorithm or METHODS[PROBLEMS[name].family])
    return mpifed.Config(algorithm=algorithm, problem=problem(name), **settings)


def starting_point(config) -> dict[str, dict[str, torch.Tensor]]:
    """The starting point by block and name."""
    simulation = started(config)
    return {
        block: simulation.blocks.unflatten(block, getattr(simulation.shared, block))
        for block in simulation.blocks
    }


def weights(**changes):
    """Weights of the job's network, with changes; ``None`` removes a tensor."""
    torch.manual_seed(0)
    tensors = {name: torch.rand(shape) for name, shape in SHAPES.items()}
    return {name: tensor for name, tensor in (tensors | changes).items() if tensor is not None}


def export(folder):
    file = folder / "model.safetensors"
    output_of("export", folder / "run", "--to", file)
    return str(file)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", NETWORKS)
def test_exported_weights_are_restored_exactly(tmp_path, name, dtype):
    run = {"dtype": dtype}
    result = mpifed.run(config(tmp_path, name, run=run), COMM)
    own, start = (
        starting_point(config(tmp_path, name, run=run, seed=7, **more))
        for more in ({}, {"initial": export(tmp_path)})
    )
    (block,) = {block for block, _ in result.network.values()}
    for key, values in start[block].items():
        expected = result.parameters[block] if key in result.network else own[block]
        assert values.dtype == getattr(torch, dtype) and torch.equal(values, expected[key]), key
    for other in {*start} - {block}:
        assert all(torch.equal(tensor, own[other][key]) for key, tensor in start[other].items())
    changed = [key for key in result.network if not torch.equal(start[block][key], own[block][key])]
    assert changed, "another seed"


def test_weights_are_exchanged_between_minimax_problem_and_game(tmp_path):
    for first, second in (("LocalSGDA", "LSGD"), ("LSGD", "LocalSGDA")):
        folder = tmp_path / first
        folder.mkdir()
        result = mpifed.run(config(folder, "DeepAUC", first), COMM)
        start = starting_point(config(folder, "DeepAUC", second, initial=export(folder)))
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
    assert {variant.config.initial for variant in variants(job)} == {str(here)}


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


#: Tensors of a file, or its bytes, and the message.
WRONG = {
    "lacking": (weights(**{"fc2.bias": None}), "lacks fc2.bias of the network"),
    "other names": (
        {f"module.{name}": tensor for name, tensor in weights().items()},
        "lacks fc1.weight, .*, fc2.bias of the network, and has module.fc1.bias, .* instead",
    ),
    "more": (
        weights(**{f"other{n}": torch.ones(1) for n in range(9)}),
        r"has other0,.* and 4 more, which the network \(fc1.weight, .*\) does not have",
    ),
    "shape": (
        weights(**{"fc1.weight": torch.rand(64, 3)}),
        r"'fc1.weight' has the shape \[64, 3\] in .*expected \[3, 64\]",
    ),
    "type": (
        weights(**{"fc1.bias": torch.zeros(3, dtype=torch.int32)}),
        "'fc1.bias' has the dtype int32 in .*expected floating-point numbers",
    ),
    "not finite": (weights(**{"fc1.bias": torch.full((3,), torch.nan)}), "'fc1.bias' has values .*finite"),
    "text": (b"not weights", "a.safetensors is not a safetensors file"),
    "cut": (b"\x40\0\0\0\0\0\0\0{", "a.safetensors is not a safetensors file"),
}


@pytest.mark.parametrize("content, says", WRONG.values(), ids=WRONG)
def test_unsuitable_files_are_refused_before_the_run(tmp_path, job, content, says):
    file = tmp_path / "a.safetensors"
    file.write_bytes(content) if isinstance(content, bytes) else save_file(content, file)
    with pytest.raises(CollectiveError, match=f"^initial: .*{says}") as error:
        mpifed.run(job, COMM, overrides=["initial=a.safetensors"])
    assert "\n" not in str(error.value) and not list((tmp_path / "run").glob("*.h5"))


def test_other_formats_are_refused(job):
    Path("a.pt").touch()
    with pytest.raises(mpifed.ConfigError, match="expected a .safetensors file, written by `mpifed export`"):
        mpifed.run(job, COMM, overrides=["initial=a.pt"])


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
    assert all(torch.equal(tensor, module.state_dict()[name]) for name, tensor in state.items())
    again = ['problem.model={name="./net.py:Net", width=4}', "initial=model.safetensors", "run.out=again"]
    start = starting_point(mpifed.Config.load(job, again))
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
