"""The trained network of a run: its state dict, a torch module, a file of weights."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from commands import error_of, output_of
from everything import PROBLEMS, SETTINGS, method
from runfiles import edited
from safetensors import safe_open
from safetensors.torch import load_file

import mpifed
from mpifed.base.errors import ConfigError
from mpifed.base.settings import build
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
#: For each family, a method and the block of the network's parameters.
METHODS = {
    "minimax": ("FedNormSGDA", "x"), "operator": ("LSGD", "z"), "composition": ("MFCGD", "x"),
    "bilevel": ("SimFBO", "y"),
}  # fmt: skip


def trained(folder, problem, name=None, every=0, rounds=2, run=(), **changes):
    """The result of a method, by default one of the problem's family."""
    cls = PROBLEMS[problem]
    config = mpifed.Config(
        algorithm=method(name or METHODS[cls.family][0]),
        problem=build(cls, SETTINGS[problem] | changes, problem),
        rounds=rounds,
        oracle={"batch_size": 4},
        run={"out": str(folder / "run"), "progress": False, "checkpoint_every": every} | dict(run),
    )
    return mpifed.run(config, COMM)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "cnn7"])  # which is a cnn
def test_a_module_computes_the_same_as_the_network(name):
    network, shape = NETWORKS[name]
    params = network.initial(network.shapes(shape, 2), np.random.default_rng(0))
    module = network.module(params)
    samples = torch.from_numpy(np.random.default_rng(1).uniform(size=(3, *shape)))
    inputs = (samples, torch.tensor([5, 1, 3])) if name == "rnn" else (samples,)
    state = module.state_dict()
    assert list(state) == list(params) and all(torch.equal(state[key], params[key]) for key in params)
    assert not module.training and all(value.requires_grad for value in module.parameters())
    module.requires_grad_(False)  # torch may reshape a product depending on whether gradients are required
    assert torch.equal(module(*inputs), network(params, *inputs))
    module.load_state_dict({key: torch.zeros_like(value) for key, value in params.items()})
    assert any(value.any() for value in params.values()), "the module has copies"


@pytest.mark.parametrize("problem", SETTINGS)
def test_state_dict_and_model_of_every_problem(tmp_path, problem):
    mirror = problem in ("L1BoxBilinear", "MatrixGame")
    result = trained(tmp_path, problem, "LocalDualExtrapolation" if mirror else None)
    loaded = mpifed.load(tmp_path / "run")
    assert loaded.network == result.network
    if "model" not in PROBLEMS[problem].__dataclass_fields__:
        message = f"^{problem} has no neural network, .* in result.parameters: {{'[xz]"
        for method in (result.state_dict, result.model, loaded.state_dict, loaded.model):
            with pytest.raises(ConfigError, match=message):
                method()
        return
    state, module = result.state_dict(), loaded.model()
    pair = ["a", "b"]
    known = {"DeepAUC": pair, "TextAUC": pair, "OneWayPAUC": ["s"], "TwoWayPAUC": ["s", "threshold"]}
    others = known.get(problem, [])
    parameters = result.parameters[METHODS[PROBLEMS[problem].family][1]]
    assert [*state, *others] == list(parameters)
    assert all(torch.equal(values, parameters[name]) for name, values in state.items())
    assert module.state_dict().keys() == state.keys()
    assert all(torch.equal(values, state[name]) for name, values in module.state_dict().items())


def padded(data_dir=None) -> Images:
    """The digits centred in 28 x 28 pixels."""
    digits = DATASETS["digits"]()
    train, test = (F.pad(part, (10, 10, 10, 10)) for part in (digits.train, digits.test))
    return Images(train, digits.train_labels, test, digits.test_labels)


@pytest.mark.parametrize("name", ["LocalSGDA", "LSGD"])
def test_exported_weights_predict_the_same_as_the_problem(tmp_path, monkeypatch, name):
    monkeypatch.setitem(DATASETS, "padded", padded)
    result = trained(tmp_path, "DeepAUC", name, dataset="padded", model=LeNet5())
    export(tmp_path / "run", tmp_path / "m.safetensors")
    problem = mpifed.problems.DeepAUC(dataset="padded", model=LeNet5(), clients=3)
    problem.prepare(0)
    expected = problem.predict(result.parameters["x"], {}, slice(0, problem.test_rows))
    module = mpifed.load(tmp_path / "run").model()
    module.load_state_dict(load_file(tmp_path / "m.safetensors"))
    with torch.no_grad():
        found = torch.cat([module(part) for part in problem._images.test.split(100)]).squeeze(1)
    # Batches of 100 sum in another order than one batch of all images (float32: 6e-8 per term below 1).
    assert (found - expected).abs().max() < 1e-6 and expected.std() > 1e-4


def export(run, to, *words) -> str:
    return output_of("export", run, "--to", to, *words)


def refusal(run, to, *words) -> str:
    return error_of("export", run, "--to", to, *words)


def test_exported_files_and_their_metadata(tmp_path):
    result, run, to = trained(tmp_path, "DeepAUC"), tmp_path / "run", tmp_path / "model.safetensors"
    assert export(run, to) == f"{to}\n"
    with safe_open(to, "pt") as file:
        found = json.loads(file.metadata()["mpifed"])
        assert {*file.keys()} == {*result.network}
    expected = {"run": str(run), "method": "FedNormSGDA", "problem": "DeepAUC", "round": 2}
    assert expected | {"metrics": result.metrics} == {key: found[key] for key in (*expected, "metrics")}
    assert len(found["config"]) == 64 and found["versions"]["torch"]
    assert found["versions"]["mpifed"] == mpifed.__version__
    before = to.read_bytes()
    assert "replace it with --overwrite" in refusal(run, to) and to.read_bytes() == before
    export(run, to, "--overwrite")
    assert to.read_bytes() == before
    assert not list(tmp_path.glob("*.tmp.*"))
    (foreign := tmp_path / "foreign.safetensors").write_bytes(before := b"\x08\0\0\0\0\0\0\0{}      ")
    for options in ((), ("--overwrite",)):
        assert "written" in refusal(run, foreign, *options) and foreign.read_bytes() == before


def test_export_of_points_that_are_kept(tmp_path):
    rounds = {r: trained(tmp_path / str(r), "DeepAUC", rounds=r) for r in (1, 2)}
    trained(tmp_path, "DeepAUC", every=1, rounds=3, run={"keep": 2, "keep_best": "auc", "eval_every": 1})
    run, to = tmp_path / "run", tmp_path / "m.safetensors"
    with edited(run / "run.h5") as file:  # the point of round 1 is the best
        file["best"].attrs["round"] = 1
        for name, values in rounds[1].parameters["x"].items():
            file[f"best/x/{name}"][...] = values
    for options, r in ((["--best"], 1), (["--round", "1"], 1), (["--round", "2"], 2)):
        assert export(run, to, "--overwrite", *options) == f"{to}\n"
        assert all(torch.equal(v, rounds[r].state_dict()[key]) for key, v in load_file(to).items())
        with safe_open(to, "pt") as file:
            found = json.loads(file.metadata()["mpifed"])
        assert (found["round"], found["metrics"]) == (r, rounds[r].metrics)
    for options, message in (
        (["--round", "0"], f"after round 0 is not kept in {run}: expected one of 1, 2, 3 (run.keep is"),
        (["--round", "1", "--best"], "expected --best or --round, got both"),
    ):
        assert message in refusal(run, to, "--overwrite", *options)
    error = refusal(tmp_path / "1" / "run", to, "--overwrite", "--best")
    assert "has no best point: set run.keep_best = METRIC" in error


def test_errors_of_export(tmp_path):
    trained(tmp_path, "Saddle")
    run, to = tmp_path / "run", tmp_path / "m.safetensors"
    for folder, file, message in (
        (run, tmp_path / "m.pt", "ends in .safetensors, got"),
        (run, tmp_path / "none/m.safetensors", "there is no folder"),
        (run, to, "Saddle has no neural network"),
        (tmp_path, to, f"expected one of the 1 runs below it, e.g. {run}"),
        (tmp_path / "no", to, "there is no run.h5"),
    ):
        assert message in refusal(folder, file) and not list(tmp_path.glob("*.safetensors"))


def test_export_of_an_unfinished_run_and_of_weights_that_are_not_finite(tmp_path):
    result, run, to = trained(tmp_path, "DeepAUC", every=1), tmp_path / "run", tmp_path / "m.safetensors"
    with edited(run / "run.h5") as file:
        file.attrs.update(stopped="", end="")
    assert "has not ended: exporting its weights after round 2 of 2" in export(run, to)
    assert torch.equal(load_file(to)["fc1.weight"], result.state_dict()["fc1.weight"])
    before = to.read_bytes()
    with edited(run / "run.h5") as file:
        file["final/x/fc1.bias"][...] = np.nan
    error = refusal(run, to, "--overwrite")
    assert "after round 2 are not finite (fc1.bias): the run has not ended" in error
    (run / "run.h5").unlink()
    error = refusal(run, to, "--overwrite")
    assert f"has checkpoints but no run.h5: continue the run with `mpifed resume {run}`" in error
    assert to.read_bytes() == before
