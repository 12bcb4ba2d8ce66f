"""The mistakes that people make: each ends with one screen that names the mistake and the remedy."""

import re

import pytest

from mpifed.cli.main import main

#: Lines of a screen.
SCREEN = 24
JOB = """
rounds = 3
algorithm = { name = "FGDA", q = 2 }
problem = { name = "Saddle", clients = 4, d = 5 }
run = { out = "run", progress = false }
"""
AUC = JOB.replace(
    '"Saddle", clients = 4, d = 5', '"DeepAUC", dataset = "digits", model = "linear", clients = 4'
)
OWN = """
rounds = 2
algorithm = { name = "FedAvg", K = 2, eta = 0.1 }
problem = { name = "./own.py:Own" }
run = { out = "run", progress = false }
"""
METHOD = JOB.replace('"FGDA", q = 2', '"./method.py:Mine", eta = 0.1')
PROBLEM = """
from dataclasses import dataclass
import numpy as np
import torch
from mpifed import Blocks, Minimisation

@dataclass
class Own(Minimisation):
    clients: int = 4
    def variables(self):
        return Blocks(x={"w": (5, 3)})
    def client_data(self, client):
        rng = np.random.default_rng(client)
        inputs, labels = rng.standard_normal((20, 5)), rng.integers(0, 3, 20)
        return torch.from_numpy(inputs), torch.from_numpy(labels)
    def loss(self, x, batch):
        inputs, labels = batch
        return torch.nn.functional.cross_entropy(inputs @ x["w"], labels)
"""
ALGORITHM = """
from dataclasses import dataclass
from mpifed import Algorithm, Record

@dataclass(frozen=True)
class Mine(Algorithm):
    eta: float
    shared = Record(x="x", y="y")
    message = Record(x="x", y="y")
    def client_round(self, now, shared, client, message, oracle):
        gx, gy = oracle.grad(shared.x, shared.y, oracle.sample())
        message.x = shared.x - self.eta * gx
        message.y = shared.y + self.eta * gy
"""
FILES = {"job.toml": JOB, "auc.toml": AUC, "own.toml": OWN, "method.toml": METHOD}
FILES |= {"own.py": PROBLEM, "method.py": ALGORITHM, "broken.toml": "rounds = 3\n[algorithm\n"}
FILES |= {"net.py": "from torch.nn import *\n\nNet = lambda: Sequential(Flatten(), Linear(64, 7))\n"}
FILES |= {"sweep.toml": JOB + '[sweep]\n"algorithm.gama" = [0.1, 0.2]\n'}

#: What was done: the command, changes of a file's text, and words of what is to be said.
MISTAKES = {
    "the job file's name": (
        "run jbo.toml",
        {},
        ["cannot read the job file jbo.toml", "did you mean 'job.toml'?"],
    ),
    "no job file here": ("run sub/job.toml", {}, ["cannot read the job file", "no job file (.toml) lies in"]),
    "TOML": ("run broken.toml", {}, ["broken.toml is not TOML", "at line 2"]),
    "a section": ("run job.toml paticipation.cohort=2", {}, ["did you mean 'participation'?"]),
    "a setting": ("run job.toml algorithm.gama=5", {}, ["has no setting 'gama'", "did you mean 'gamma'?"]),
    "a setting without its section": (
        "run job.toml device=cpu",
        {},
        ["outside its sections", "'run.device'?"],
    ),
    "a hyperparameter without its section": ("run job.toml q=5", {}, ["did you mean 'algorithm.q'?"]),
    "a method": (
        "run job.toml algorithm.name=FGAD",
        {},
        ["unknown algorithm 'FGAD'", "did you mean 'FGDA'?", "mpifed list"],
    ),
    "a problem": ("run job.toml problem=Sadle", {}, ["unknown problem 'Sadle'", "did you mean 'Saddle'?"]),
    "a data set": ("run auc.toml problem.dataset=cifar", {}, ["unknown data set 'cifar'", "'cifar10'?"]),
    "a model": ("run auc.toml problem.model=lenet", {}, ["unknown model 'lenet'", "'lenet5'?"]),
    "no step count": (
        'run own.toml algorithm={name="FedAvg"}',
        {},
        ["algorithm.eta is missing", "mpifed info FedAvg"],
    ),
    "a nested setting left out": (
        "run auc.toml problem.partition=dirichlet",
        {},
        ["alpha is missing", "mpifed info dirichlet"],
    ),
    "text for a number": (
        'run job.toml rounds="10"',
        {},
        ["rounds: Input should be a valid integer", "write 10"],
    ),
    "a negative step": (
        "run job.toml algorithm.gamma=-0.1",
        {},
        ["algorithm.gamma", "greater than or equal to 0"],
    ),
    "a unit": ("run job.toml 'stop.seconds=2 hrz'", {}, ["stop.seconds: expected a time in seconds", '"2h"']),
    "KEY=VALUE": ("run job.toml rounds:5", {}, ["an override is key=value", "got 'rounds:5'"]),
    "an option": ("run job.toml --ressume must", {}, ["Did you mean '--resume'?"]),
    "a command": ("ran job.toml", {}, ["Did you mean 'run'?"]),
    "a family": (
        'run auc.toml algorithm={name="FedAvg",K=1,eta=0.1}',
        {},
        ["DeepAUC is a minimax problem", "FGDA"],
    ),
    "files that are not there": (
        "run auc.toml problem.dataset=mnist --data-dir nowhere",
        {},
        ["mnist lacks a file", "searched: "],
    ),
    "a network for other data": (
        "run auc.toml problem.model=lenet5 problem.dataset=digits",
        {},
        ["lenet5 takes images of 28 x 28"],
    ),
    "clients without samples": (
        "run auc.toml problem.clients=5000",
        {},
        ["5000 clients are to share", "a sample for each"],
    ),
    "a cohort of more than all": (
        "run job.toml participation.cohort=9",
        {},
        ["cohort = 9 is more than problem.clients = 4"],
    ),
    "a GPU": ("run job.toml run.device=cuda", {}, ["asks for a GPU", "(options: run.device = auto, cpu)"]),
    "steps too large": (
        "run job.toml algorithm.gamma=1e30 algorithm.lam=1e30",
        {},
        ["non-finite value in round 1", "reduce the step sizes"],
        3,
    ),
    "a metric": (
        "run job.toml stop.metric=eror stop.at_most=1",
        {},
        ["is no metric of this problem", "error"],
    ),
    "a block": ('run job.toml record=["w"]', {}, ["there is no block 'w' (options: x, y)"]),
    "a key of a sweep": ("sweep sweep.toml", {}, ["[sweep] gama=0.1", "did you mean 'gamma'?"]),
    "a sweep as a run": ("run sweep.toml", {}, ["start it with `mpifed sweep`"]),
    "a run as a sweep": ("sweep job.toml", {}, ["has no [sweep]", "`mpifed run`"]),
    "a theorem without a name": ("run job.toml algorithm.gamma=theorem", {}, ["theory.of", "huang-2024-2"]),
    "nothing to resume": ("resume nowhere", {}, ["there is no checkpoint in nowhere", "`mpifed run`"]),
    "a folder that is a file": ("run job.toml run.out=job.toml", {}, ["cannot write to run.out = job.toml"]),
    "a plugin's file": ("run job.toml algorithm=./nowhere.py:Mine", {}, ["there is no file ./nowhere.py"]),
    "a plugin's class": ("run method.toml algorithm.name=./method.py:Min", {}, ["did you mean 'Mine'?"]),
    "a plugin without its class": ("run job.toml algorithm=./method.py", {}, ["expected ./method.py:Class"]),
    "a plugin's syntax": (
        "run method.toml",
        {"    eta: float": "    eta float"},
        ["SyntaxError", "eta float"],
    ),
    "a plugin's import": (
        "run method.toml",
        {"import dataclass": "import dataclas"},
        ["ImportError", "line 2"],
    ),
    "a plugin without client_round": (
        "run method.toml",
        {"client_round": "client_rond"},
        ["Mine needs client_round("],
    ),
    "a plugin that is no dataclass": (
        "run method.toml",
        {"@dataclass(frozen=True)\n": ""},
        ["must be a dataclass"],
    ),
    "a message of another dtype": (
        "run method.toml",
        {"* gx": "* gx.double()"},
        ["expected float32, got float64", "message.x ="],
    ),
    "a message that is not filled": (
        "run method.toml",
        {"        message.y = shared.y + self.eta * gy\n": ""},
        ["never fills message.y"],
    ),
    "a field that is not declared": (
        "run method.toml",
        {"message.y =": "message.z ="},
        ["no field 'z'; it has x, y"],
    ),
    "writing to what is shared": (
        "run method.toml",
        {"message.x = shared.x -": "shared.x -="},
        ["never write it"],
    ),
    "a call without y": (
        "run method.toml",
        {"shared.x, shared.y, oracle": "shared.x, oracle"},
        ["oracle.grad(x, y, xi)"],
    ),
    "a label out of range": (
        "run own.toml",
        {"(0, 3, 20)": "(0, 9, 20)"},
        ["out of bounds", "labels are whole numbers"],
    ),
    "a loss that is no scalar": (
        "run own.toml",
        {'x["w"], labels)': 'x["w"], labels, reduction="none")'},
        ["loss() has the shape", "expected a scalar"],
    ),
    "a loss that is a number": (
        "run own.toml",
        {'x["w"], labels)': 'x["w"], labels).item()'},
        ["expected a tensor"],
    ),
    "a loss outside torch's view": (
        "run own.toml",
        {'x["w"], labels)': 'x["w"], labels).detach()'},
        ["does not depend on the parameters"],
    ),
    "shapes that do not fit": (
        "run own.toml",
        {'x["w"], labels)': 'x["w"].T, labels)'},
        ["shapes cannot be multiplied", "rows of one client"],
    ),
    "columns of different lengths": (
        "run own.toml",
        {"0, 3, 20": "0, 3, 10"},
        ["columns of different lengths"],
    ),
    "data that are not numbers": (
        "run own.toml",
        {"labels = rng.standard_normal((20, 5))": "labels = np.full((20, 5), np.nan)"},
        ["expected finite numbers"],
    ),
    "a client's data that are not there": (
        "run own.toml",
        {"rng = np": 'open(f"{client}.npz")\n        rng = np'},
        ["FileNotFoundError", "0.npz"],
    ),
    "outputs of one's own network": (
        "run auc.toml problem.model=./net.py:Net",
        {},
        ["net.py:Net", "expected"],
    ),
    "a table that is not there": (
        """run auc.toml 'problem.dataset={name="table", file="mine.csv", target="label", test=0.2}'""",
        {},
        ["mine.csv", "expected"],
    ),
    "a name for info": ("info oracel", {}, ["did you mean 'oracle'?"]),
    "a setting for info": ("info run.grup", {}, ["[run] has no setting 'grup'", "did you mean 'group'?"]),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    return tmp_path


@pytest.mark.parametrize("mistake", MISTAKES)
def test_one_screen_names_the_mistake_and_the_remedy(mistake, folder, monkeypatch, capsys):
    command, changes, says, *code = MISTAKES[mistake]
    for name, text in FILES.items():
        for old, new in changes.items():
            text = text.replace(old, new)
        (folder / name).write_text(text)
    words = [word.strip("'") for word in re.findall(r"'[^']*'|\S+", command)]
    assert said(words, monkeypatch, capsys, says) == (code or [2])[0]


def said(words, monkeypatch, capsys, says) -> int:
    """The exit code; what is said has the words, once, on one screen."""
    monkeypatch.setattr("sys.argv", ["mpifed", *words])
    with pytest.raises(SystemExit) as end:
        main()
    text = capsys.readouterr().err
    assert all(word in text for word in says), text
    assert "Traceback" not in text and text.count("mpifed: ") == 1, text
    assert sum(1 + len(line) // 110 for line in text.splitlines()) <= SCREEN, text
    return end.value.code


def test_folders_of_other_jobs_and_other_files(folder, monkeypatch, capsys):
    (folder / "job.toml").write_text(JOB)
    monkeypatch.setattr("sys.argv", ["mpifed", "run", "job.toml", "--no-report"])
    main()
    other = ["run", "job.toml", "algorithm.gamma=0.3"]
    assert (
        said(other, monkeypatch, capsys, ["algorithm.gamma is 0.1 there and 0.3 here", "another run.out"])
        == 2
    )
    (folder / "theirs").mkdir()
    (folder / "theirs/run.h5").write_text("mine")
    words = ["run", "job.toml", "run.out=theirs"]
    assert said(words, monkeypatch, capsys, ["mpifed has not written", "choose another place"]) == 2


def test_ranks_without_work_are_told(monkeypatch, capsys):
    from types import SimpleNamespace

    from mpifed.cli.main import _note_idle

    _note_idle(SimpleNamespace(rank=0, size=3), 2)
    assert "3 ranks for 2 clients: 1 will have nothing to do" in capsys.readouterr().err
    _note_idle(SimpleNamespace(rank=0, size=2), 2)
    assert not capsys.readouterr().err
