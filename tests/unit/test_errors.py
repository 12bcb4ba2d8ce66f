"""Common errors of users: each is reported once, on one screen, with exit code 2 and without a traceback."""

import re
from types import SimpleNamespace

import pytest
import torch
from launch import launch
from runfiles import decay, write

from mpifed.algorithms import CDMAADA, LIPPAX, AdaFGDA, LocalAdaSEG
from mpifed.base.errors import PluginError, hint, user_code_errors
from mpifed.cli.main import _warn_idle, main
from mpifed.core.schedules import SCHEDULES, Constant, Cosine
from mpifed.simulation.not_finite import smaller_steps

#: Number of lines of a screen.
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
FILES |= {"sweep.toml": JOB + "[sweep]\nseed = [0, 1]\n"}

#: Command, then parts of the message.
# fmt: off
COMMANDS = [
    ("run jbo.toml", "cannot read the job file jbo.toml", "did you mean 'job.toml'?"),
    ("run sub/job.toml", "cannot read the job file", "no job file (.toml) in"),
    ("run broken.toml", "broken.toml is not TOML", "at line 2"),
    ("run job.toml paticipation.cohort=2", "did you mean 'participation'?"),
    ("run job.toml device=cpu", "has no setting 'device'", "'run.device'?"),
    ("run job.toml lr=0.1", "has no setting 'lr'", "'algorithm.gamma' or 'algorithm.lam'?"),
    ("run job.toml algorithm.lr=0.1", "algorithm has no setting 'lr'", "'algorithm.gamma'"),
    ("run job.toml problem.batch_size=2", "problem has no setting 'batch_size'", "'oracle.batch_size'?"),
    ("run job.toml run.rounds=2", "[run] has no setting 'rounds'", "'rounds', outside the sections?"),
    ("run auc.toml problem.alpha=2", 'problem.partition={ name = "dirichlet", alpha = ... }'),
    ("run job.toml algorithm.alpha=0.5 algorithm.name=LocalSGDA", "algorithm has no setting 'alpha'",
     "all settings of the algorithm: algorithm=LocalSGDA algorithm.q=... algorithm.eta_x=..."),
    ("run job.toml q=5", "did you mean 'algorithm.q'?"),
    ("run job.toml algorithm.name=FGAD", "unknown algorithm 'FGAD'", "did you mean 'FGDA'?", "mpifed list"),
    ("run auc.toml problem.dataset=cifar", "unknown data set 'cifar'", "'cifar10' or 'cifar100'"),
    ('run own.toml algorithm={name="FedAvg"}', "algorithm.eta is missing", "mpifed info FedAvg"),
    ("run auc.toml problem.partition=dirichlet", "alpha is missing", "mpifed info dirichlet"),
    ("run job.toml --ressume must", "Did you mean '--resume'?"),
    ("job.toml rounds=5", "expected a command, got a job file: mpifed run job.toml rounds=5"),
    ("run --rounds 5 job.toml", "No such option '--rounds'", " run job.toml rounds=5"),
    ("run job.toml --batch-size=5", " run job.toml oracle.batch_size=5"),
    ("run job.toml -n 2 rounds=5", "option of the launcher: mpirun -n 2 ", "mpifed run job.toml rounds=5"),
    ("launch job.toml --mem 64", "expected a size with a unit, e.g. 64G, or 0 for all memory, got '64'"),
    # What bash makes of algorithm={name="FedAvg",K=1} and of sweep.seed={0,1}:
    ("run job.toml algorithm=name=FedAvg algorithm=K=1", "algorithm is given 2 times",
     "quote the argument: 'algorithm={ name = \"FedAvg\", K = 1 }'"),
    ("sweep job.toml sweep.seed=0 sweep.seed=1", "quote the argument: 'sweep.seed=[0, 1]'"),
    ("run job.toml personalize.step=0.1", "did you mean 'step_size' or 'steps'?"),
    ("launch job.toml --nodelist n1", "--extra --nodelist=VALUE"),
    ("run job.toml seed=1,2", "expected one value of seed, got 1,2", "`mpifed sweep JOB 'sweep.seed=[1,2]'`"),
    ("ran job.toml", "Did you mean 'run'?"),
    ('run auc.toml algorithm={name="FedAvg",K=1,eta=0.1}', "DeepAUC is a minimax problem", "FGDA"),
    ("run auc.toml problem.dataset=mnist --data-dir nowhere", "mnist lacks a file",
     "--data-dir or $MPIFED_DATA"),
    ("run auc.toml problem.clients=5000", "one sample per client", "1438 samples for 5000 clients"),
    ("run job.toml run.device=cuda", "requires a GPU", "set run.device = 'auto' or 'cpu'"),
    ('run job.toml record=["w"]', "there is no block 'w' (options: x, y)"),
    ("run sweep.toml", "start it with `mpifed sweep`"),
    ("resume nowhere", "nowhere does not exist", "`mpifed run`"),
    ("resume job.toml", "job.toml is not a folder", "`mpifed run`"),
    ("run job.toml algorithm.name=./method.py:Mine", "/method.py:Mine algorithm.eta=..."),
    ("sweep job.toml sweep.seed=1,2", "'sweep.seed=[1,2]'"),
    ("resume sub", "there is no checkpoint in sub", "`mpifed run`"),
    ("run auc.toml problem.model=./net.py:Net", "net.py:Net", "expected"),
    ("run auc.toml 'problem.dataset={name=\"table\", file=\"my.csv\", target=\"y\", test=0.2}'", "my.csv",
     "expected"),
    ("check Sadle", "unknown method or problem 'Sadle'", "did you mean 'Saddle'?"),
    ("check job.toml", "expected a method or problem, got the job file 'job.toml'", "`mpifed info job.toml`"),
    ("info oracel", "did you mean 'oracle'?"),
    ("info batch_size", "'batch_size' is a setting: see `mpifed info oracle.batch_size`"),
    ("info partition.alpha", "'partition.alpha' is a setting: see `mpifed info AdaFGDA`"),
    ("info xyzzy", "unknown name 'xyzzy': see `mpifed list`"),
    ("list xyzzy", "no object contains 'xyzzy'"),
    ("info job.toml --cite", "mpifed report RUN --cite"),
    ("info run.grup", "[run] has no setting 'grup'", "did you mean 'group'?"),
    ("run job.toml oracle.noise.scale=1", "a noise or a table with a name, got {'scale': 1}"),
]
#: Job file, a text in its plugin, the replacement, then parts of the message.
PLUGINS = [
    ("method", "client_round", "client_rond", "'Mine' object has no attribute 'client_round'"),
    ("method", "* gx", "* gx.double()", "expected float32, got float64", "message.x ="),
    ("own", "(0, 3, 20)", "(0, 9, 20)", "out of bounds", "labels must be integers"),
    ("own", 'x["w"], labels)', 'x["w"], labels).detach()', "does not depend on the parameters"),
    ("own", 'x["w"], labels)', 'x["w"].T, labels)', "shapes cannot be multiplied", "rows of one client"),
    ("own", "rng = np", 'open(f"{client}.npz")\n        rng = np', "FileNotFoundError", "0.npz"),
]
# fmt: on


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def message(folder, monkeypatch, capsys):
    """``message(words, code)``: what the command prints on standard error, on one screen."""

    def run(words: list[str], code: int = 2) -> str:
        monkeypatch.setattr("sys.argv", ["mpifed", *words])
        with pytest.raises(SystemExit) as end:
            main()
        text = capsys.readouterr().err
        assert end.value.code == code, text
        assert text.startswith("mpifed: ") and text.count("mpifed: ") == 1 and "Traceback" not in text, text
        assert sum(1 + len(line) // 110 for line in text.splitlines()) <= SCREEN, text
        return text

    return run


@pytest.mark.parametrize("command, parts", [(command, parts) for command, *parts in COMMANDS])
def test_commands(command, parts, message):
    text = message([word.strip("'") for word in re.findall(r"'[^']*'(?=\s|$)|\S+", command)])
    assert all(part in text for part in parts), text


@pytest.mark.parametrize("words", [[], ["new"]])
def test_a_group_without_a_command_prints_its_help(words, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["mpifed", *words])
    with pytest.raises(SystemExit):
        main()
    assert "".join(capsys.readouterr()).startswith("Usage: ")


@pytest.mark.parametrize(
    "job, old, new, parts", [(job, old, new, parts) for job, old, new, *parts in PLUGINS]
)
def test_plugins(job, old, new, parts, folder, message):
    file = folder / f"{job}.py"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    text = message(["run", f"{job}.toml"])
    assert all(part in text for part in parts), text


def test_step_sizes_that_are_too_large(message):
    text = message(["run", "job.toml", "algorithm.gamma=1e30", "algorithm.lam=1e30"], code=3)
    assert "non-finite value in round 1" in text
    assert "reduce the step sizes (gamma = 1e+30, lam = 1e+30, eta = 1)" in text


def test_step_sizes_by_name():
    """Schedules by their largest value, plain numbers by their description; not weights, not unset ones."""
    method = AdaFGDA(
        q=2, eta={"name": "power", "scale": 8.0, "offset": 7.0}, matrix={"name": "norm", "rho": 0.2}
    )
    assert smaller_steps(method) == (
        "reduce the step sizes (gamma = 0.01, lam = 0.01, eta up to 4) or increase matrix.rho = 0.2"
    )
    assert smaller_steps(LIPPAX(K=2, eta=0.1, H=1, L=1.0)) == "reduce the step sizes (eta = 0.1)"
    assert smaller_steps(CDMAADA(K=1, eta_x=0.2, eta_y=3)) == "reduce the step sizes (eta_x = 0.2, eta_y = 3)"
    assert smaller_steps(LocalAdaSEG(K=1, G_0=1.0, D=1.0)) == "reduce the step sizes"


def test_folders_of_other_jobs_and_other_files(folder, message, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["mpifed", "run", "job.toml", "--no-report"])
    main()
    capsys.readouterr()
    text = message(["run", "job.toml", "algorithm.gamma=0.3"])
    assert "algorithm.gamma is 0.1 in the stored run and 0.3 in this job" in text
    assert "another run.out" in text
    (folder / "theirs").mkdir()
    (folder / "theirs/run.h5").write_text("mine")
    text = message(["run", "job.toml", "run.out=theirs"])
    assert "mpifed has not written" in text and "choose another place" in text


@pytest.mark.parametrize(
    "override", ["algorithm.gama=0.1", "problem={name='DeepAUC', dataset='mnist'}", "run.out=/proc/no"]
)
def test_several_ranks(override, folder):
    """Invalid settings, missing data and folders: exit code 2, one message from rank 0, and no deadlock."""
    command = ["-m", "mpifed", "run", folder / "job.toml", override, "--data-dir", folder]
    code, output = launch(2, command, limit=60)
    assert code == 2, output
    assert output.count("mpifed: ") == 1 and "Traceback" not in output, output


def test_folders_of_several_runs(folder, message):
    for seed in (0, 1):
        write(folder / f"swept/seed={seed}", error=decay(0.1))
    text = message(["resume", "swept"])
    assert "contains 2 runs" in text and "`mpifed resume swept/seed=0`" in text and "mpifed sweep" in text
    assert "cannot write to job.toml" in (text := message(["report", "swept", "--out", "job.toml"]))
    assert "--out names another folder" in text


def test_ranks_without_clients(capsys):
    _warn_idle(SimpleNamespace(rank=0, size=3), 2)
    assert "3 ranks for 2 clients: 1 of the ranks will be idle" in capsys.readouterr().err
    _warn_idle(SimpleNamespace(rank=0, size=2), 2)
    assert not capsys.readouterr().err


LONG = "n" * 300
METHOD = '{ name = "LocalSGDA", q = 2, eta_x = 0.01, eta_y = 0.01 }'
SMALL = """
rounds = 1
problem = { name = "Saddle", d = 2, clients = 2 }
run = { out = "runs", progress = false }
"""
#: Job files with the settings that a command needs to get to the name.
LONG_FILES = {
    "run": f"{SMALL}algorithm = {METHOD}",
    "sweep": f"{SMALL}algorithm = {METHOD}\nsweep = {{ seed = [0, 1] }}",
    "tune": f"{SMALL}tune = {{ runs = 3, methods = [{METHOD.replace('= 0.01', '= [0.1, 0.2]')}] }}",
}


@pytest.mark.parametrize("words", [
    *([name, LONG] for name in ("resume", "status", "report", "estimate", "tune", "sweep", "info")),
    *(["status", f"a/{LONG}/b"], ["status", f"{LONG}.toml"], ["export", LONG, "--to", "w.safetensors"]),
    *(["new", kind, LONG] for kind in ("job", "method", "problem")),
    *([name, f"{name}.toml", f"run.out={LONG}"] for name in ("run", "sweep", "tune")),
    *(["status", "sweep.toml", f"run.out={LONG}"], ["info", "run.toml", "--out", f"{LONG}.png"]),
    *(["report", "done", "--out", LONG], ["report", "done", "--figure", f"{LONG}.pdf"]),
    *(["export", "done", "--to", f"{LONG}.safetensors"], ["launch", "run.toml", "--script", LONG]),
    ["check", f"./{LONG}.py:Mine"],
], ids=lambda words: "-".join(words).replace(LONG, "LONG"))  # fmt: skip
def test_names_that_are_too_long(folder, message, words):
    """Long names are truncated."""
    for name, text in LONG_FILES.items():
        (folder / f"{name}.toml").write_text(text)
    write(folder / "done", config={"problem": {"name": "Saddle", "clients": 2}}, error=decay(0.1))
    assert len(message(words)) < 1500


@pytest.mark.parametrize("clients, named", [([2], " 2"), ([2, 3, 4], "s 2 to 4"), ([0, 3, 9], "s 0, 3, 9")])
def test_the_clients_of_an_error(clients, named):
    message = f"^f failed in round 1 for client{named}: "
    with pytest.raises(PluginError, match=message), user_code_errors("f", 1, "round", clients):
        raise ZeroDivisionError


def test_a_schedule_used_as_a_number_is_named():
    class Pull:
        K, eta, mu = 3, Constant(0.1), Cosine(0.1, 10)

        def step(self, x):
            return self.K * x - self.eta(1) * x - self.mu * x

    message = r"\(self.mu is a schedule: call self.mu\(t\), with t = now"
    with pytest.raises(PluginError, match=message), user_code_errors("Pull.step"):
        Pull().step(torch.ones(2))


@pytest.mark.parametrize("schedule", SCHEDULES.values())
def test_the_hint_knows_every_schedule(schedule):
    with pytest.raises(TypeError) as caught:
        object.__new__(schedule) * 2
    assert "is a schedule: call self.eta(t)" in hint(caught.value)
