"""The trained network out of a run: its parameters by name, a torch module, a file of weights."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from everything import PROBLEMS, SETTINGS, method
from runfiles import edited
from safetensors import safe_open
from safetensors.torch import load_file

import mpifed
from mpifed.base.errors import ConfigError
from mpifed.base.settings import build
from mpifed.cli.main import cli
from mpifed.data import DATASETS
from mpifed.data.samples import Images
from mpifed.models import CNN, MLP, MODELS, RNN, Conv4, LeNet5, Linear, ResNet
from mpifed.parallel.comm import SerialComm

COMM = SerialComm()
IMAGE = (3, 32, 32)
NETWORKS = {
    "linear": (Linear(), IMAGE),
    "mlp": (MLP(hidden=(4, 3)), IMAGE),
    "lenet5": (LeNet5(), IMAGE),
    "cnn": (CNN(stages=((2,), (3,)), hidden=(4,)), IMAGE),
    "conv4": (Conv4(), IMAGE),
    "resnet50": (ResNet(blocks=(1, 2), width=4, groups=2, stem="small"), IMAGE),
    "rnn": (RNN(hidden=3, cell="lstm"), (5, 2)),
}
#: The families' methods, and the block that has the network's parameters.
METHODS = {"minimax": ("LocalSGDA", "x"), "operator": ("LSGD", "z"), "composition": ("MFCGD", "x")}


def trained(folder, problem, name=None, every=0, **changes):
    """The result of two rounds of a method, by default one of the problem's family."""
    cls = PROBLEMS[problem]
    config = mpifed.Config(
        algorithm=method(name or METHODS[cls.family][0]),
        problem=build(cls, SETTINGS[problem] | changes, problem),
        rounds=2,
        oracle={"batch_size": 4},
        run={"out": str(folder / "run"), "progress": False, "checkpoint_every": every},
    )
    return mpifed.run(config, COMM)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "cnn7"])  # which is a cnn
def test_a_module_computes_what_the_network_does(name):
    network, shape = NETWORKS[name]
    params = network.initial(network.shapes(shape, 2), np.random.default_rng(0))
    module, samples = (
        network.module(params),
        torch.from_numpy(np.random.default_rng(1).uniform(size=(3, *shape))),
    )
    inputs = (samples, torch.tensor([5, 1, 3])) if name == "rnn" else (samples,)
    state = module.state_dict()
    assert list(state) == list(params) and all(torch.equal(state[key], params[key]) for key in params)
    assert not module.training and all(value.requires_grad for value in module.parameters())
    module.requires_grad_(False)  # torch folds the axes of a product by whether gradients are wanted
    assert torch.equal(module(*inputs), network(params, *inputs))
    module.load_state_dict({key: torch.zeros_like(value) for key, value in params.items()})
    assert any(value.any() for value in params.values()), "the module has copies"


@pytest.mark.parametrize("problem", SETTINGS)
def test_every_problem_with_a_network_gives_it_and_no_other(tmp_path, problem):
    result = trained(
        tmp_path, problem, "LocalDualExtrapolation" if problem in ("L1BoxBilinear", "MatrixGame") else None
    )
    loaded = mpifed.load(tmp_path / "run")
    assert loaded.network == result.network
    if "model" not in PROBLEMS[problem].__dataclass_fields__:
        for one in (result, loaded):
            with pytest.raises(
                ConfigError,
                match=rf"^{problem} has no network whose weights .* in result.parameters, {{'[xz]",
            ):
                one.state_dict()
            with pytest.raises(ConfigError, match="has no network"):
                one.model()
        return
    state, module = result.state_dict(), loaded.model()
    others = {"DeepAUC": ["a", "b"], "TextAUC": ["a", "b"]}.get(problem, [])
    assert [*state, *others] == list(result.parameters["x"])
    assert all(torch.equal(values, result.parameters["x"][name]) for name, values in state.items())
    assert module.state_dict().keys() == state.keys()
    assert all(torch.equal(values, state[name]) for name, values in module.state_dict().items())


def padded(data_dir=None) -> Images:
    """The digits in the middle of 28 x 28 pixels."""
    digits = DATASETS["digits"]()
    train, test = (F.pad(part, (10, 10, 10, 10)) for part in (digits.train, digits.test))
    return Images(train, digits.train_labels, test, digits.test_labels)


@pytest.mark.parametrize("name", ["LocalSGDA", "LSGD"])
def test_lenet_predicts_as_the_problem_does(tmp_path, monkeypatch, name):
    monkeypatch.setitem(DATASETS, "padded", padded)
    result = trained(tmp_path, "DeepAUC", name, dataset="padded", model=LeNet5())
    assert (
        CliRunner()
        .invoke(cli, ["export", str(tmp_path / "run"), "--to", str(tmp_path / "m.safetensors")])
        .exit_code
        == 0
    )
    problem = mpifed.problems.DeepAUC(dataset="padded", model=LeNet5(), clients=3)
    problem.prepare(0)
    block, prefix = ("z", "x.") if name == "LSGD" else ("x", "")
    x = {key: result.parameters[block][prefix + key] for key in problem.variables()["x"]}
    expected = problem.predict(x, {}, slice(0, problem.test_rows))
    module = mpifed.load(tmp_path / "run").model()
    module.load_state_dict(load_file(tmp_path / "m.safetensors"))
    with torch.no_grad():
        found = torch.cat([module(part) for part in problem._images.test.split(100)]).squeeze(1)
    # Batches of 100 take other sums of float32 (6e-8 each, of terms below 1) than one of all images.
    assert (found - expected).abs().max() < 1e-6 and expected.std() > 1e-4


def export(*words):
    done = CliRunner().invoke(cli, ["export", *map(str, words)])
    return done.exit_code, done.output + str(done.exception or "")


def test_a_file_of_weights_says_where_they_are_from(tmp_path):
    result, to = trained(tmp_path, "DeepAUC"), tmp_path / "model.safetensors"
    assert export(tmp_path / "run", "--to", to) == (0, f"{to}\n")
    with safe_open(to, "pt") as file:
        said = json.loads(file.metadata()["mpifed"])
        assert {*file.keys()} == {*result.network}
    assert said["run"] == str(tmp_path / "run") and (said["method"], said["problem"]) == (
        "LocalSGDA",
        "DeepAUC",
    )
    assert said["metrics"] == result.metrics and said["round"] == 2 and len(said["config"]) == 64
    assert said["versions"]["mpifed"] == mpifed.__version__ and said["versions"]["torch"]
    before = to.read_bytes()
    assert export(tmp_path / "run", "--to", to, "--overwrite")[0] == 0 and to.read_bytes() == before
    assert not list(tmp_path.glob("*.tmp.*"))


def test_what_is_there_stays(tmp_path):
    trained(tmp_path, "DeepAUC")
    to, mine = tmp_path / "model.safetensors", tmp_path / "mine.safetensors"
    export(tmp_path / "run", "--to", to)
    mine.write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    for place, words in ((to, "--overwrite replaces it"), (mine, "has not written and would be replaced")):
        before = place.read_bytes()
        code, said = export(tmp_path / "run", "--to", place)
        assert code and words in said and place.read_bytes() == before
    code, said = export(tmp_path / "run", "--to", mine, "--overwrite")
    assert code and "would be replaced: move it away" in said


def test_places_and_names_that_are_wrong(tmp_path):
    trained(tmp_path, "Saddle")
    for words, says in (
        (
            (tmp_path / "run", "--to", tmp_path / "m.pt"),
            "ends in .safetensors; for another format, torch.save(",
        ),
        ((tmp_path / "run", "--to", tmp_path / "none" / "m.safetensors"), "there is no folder"),
        ((tmp_path / "run", "--to", tmp_path / "m.safetensors"), "Saddle has no network"),
        (
            (tmp_path, "--to", tmp_path / "m.safetensors"),
            f"name one of the 1 runs in it, e.g. {tmp_path / 'run'}",
        ),
        ((tmp_path / "no", "--to", tmp_path / "m.safetensors"), "expected a run's folder"),
    ):
        code, said = export(*words)
        assert code and says in said and not list(tmp_path.glob("*.safetensors")), said


def change(folder, **attributes):
    with edited(folder / "run.h5") as file:
        file.attrs.update(attributes)


def test_a_run_that_has_not_ended(tmp_path):
    result, to = trained(tmp_path, "DeepAUC", every=1), tmp_path / "model.safetensors"
    change(tmp_path / "run", stopped="", end="")
    code, said = export(tmp_path / "run", "--to", to)
    assert code == 0 and "has not ended: these are its weights after round 2 of 2" in said
    assert torch.equal(load_file(to)["fc1.weight"], result.state_dict()["fc1.weight"])
    (tmp_path / "run" / "run.h5").unlink()
    code, said = export(tmp_path / "run", "--to", to, "--overwrite")
    assert code == 2 and f"has checkpoints and no run.h5: `mpifed resume {tmp_path / 'run'}`" in said


def test_weights_that_are_not_finite_stay_inside(tmp_path):
    trained(tmp_path, "DeepAUC")
    with edited(tmp_path / "run" / "run.h5") as file:
        file["final/x/fc1.bias"][...] = np.nan
    code, said = export(tmp_path / "run", "--to", tmp_path / "model.safetensors")
    assert code and "after round 2 are not finite (fc1.bias): all 2 rounds done" in said
    assert not (tmp_path / "model.safetensors").exists()
