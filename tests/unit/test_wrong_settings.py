"""Settings of a wrong type, without a bound, too long to be shown: one sentence, before any work."""

import json
import math

import numpy as np
import pytest

from mpifed import Config, ConfigError
from mpifed.algorithms import MFCGD, SLIPPAX, AdaFGDA, LocalSGDA
from mpifed.base.errors import short_repr, truncate
from mpifed.base.settings import build, suggest
from mpifed.config.grids import variants
from mpifed.config.plugins import find
from mpifed.config.tables import override, parse, read_table
from mpifed.core.sets import Ball
from mpifed.problems import Saddle

LONG = "x" * 100_000
JOB = """
algorithm = {name = "LocalSGDA", q = 2, eta_x = 0.01, eta_y = 0.01}
problem = {name = "Saddle", clients = 4}
"""
TABLE = Config(algorithm=LocalSGDA(q=2, eta_x=0.01, eta_y=0.01), problem=Saddle(clients=4)).table()


def refusal(work) -> str:
    with pytest.raises(ConfigError) as fault:
        work()
    assert len(str(fault.value)) < 4000
    return str(fault.value)


def deep(depth: int):
    return [deep(depth - 1)] if depth else 1


@pytest.mark.parametrize(
    "change, says",
    [
        ("rounds = true", "rounds: Input should be a valid integer, got True"),
        ('rounds = "3"', "rounds: Input should be a valid integer, got '3': write 3"),
        ("rounds = 3.0", "rounds: Input should be a valid integer, got 3.0: write 3"),
        ("seed = 0x" + "f" * 5000, "got an integer of 20,000 bits"),
        ('run.overwrite = "yes"', "run.overwrite: Input should be a valid boolean, got 'yes': write true"),
        ("run.progress = 0", "run.progress: Input should be a valid boolean, got 0: write false"),
        ('run.out = ""', "run.out: expected the name of a folder, got '': is a shell variable unset?"),
        ('run.out = "a\\u0000b"', "the name of a folder has no NUL character"),
        ("run.out = 3", "run.out: Input should be a valid string, got 3"),
        ("run.watchdog = inf", "run.watchdog: Input should be a finite number"),
        ("run.watchdog = nan", "run.watchdog: Input should be a finite number, got nan"),
        ("run.gpus = [true]", "run.gpus.0: Input should be a valid integer, got True"),
        ("stop.seconds = inf", "stop.seconds: Input should be a finite number, got inf"),
        ("record = 'x'", "record: Input should be a valid tuple, got 'x'"),
        ("problem.clients = true", "problem.clients: Input should be a valid integer, got True"),
        ("problem.tau = '10'", "problem.tau: Input should be a valid number, got '10': write 10"),
        ("problem.tau = nan", "problem.tau: Input should be a finite number, got nan"),
        ("problem.centred = 1", "problem.centred: Input should be a valid boolean, got 1: write true"),
        ("algorithm.eta_x = 1" + "0" * 400, "algorithm.eta_x: expected a finite number >= 0 or a schedule"),
        ("algorithm.eta_x = {name='power', scale=inf}", "'power'.scale: Input should be a finite number"),
        ("algorithm.eta_x = {name=[]}", "algorithm.eta_x: unknown schedule []: (options: constant"),
        ("oracle.noise = {name='gaussian', scale='1'}", "oracle.noise: noise 'gaussian'.scale: Input"),
        ("oracle.noise = {name={a=1}}", "oracle.noise: unknown noise {'a': 1}: (options: "),
        ("self = 1", "a job file has no setting 'self'"),
        (f"{LONG} = 1", "xxxx ... (100,000 characters) ... xxxx"),
        (f"algorithm.{LONG} = 1", "xxxx ... (100,000 characters) ... xxxx"),
        (f"run.dtype = '{LONG}'", "xxxx ... (100,000 characters) ... xxxx"),
        (f"problem.name = '{LONG}'", "unknown problem 'xxxx"),
        (f"problem.name = '{LONG}.py:Mine'", "there is no file xxxx"),
        ("problem.name = ':b'", "expected ./file.py:Class or package.module:Class, got ':b'"),
        ("problem.name = '..a:b'", "expected ./file.py:Class or package.module:Class, got '..a:b'"),
        ("problem.name = '\\u0000.py:b'", "there is no file"),
        ("problem.name = ['Saddle']", "[problem] needs a name"),
        ("a = " + "[" * 5000, "lists or tables are nested too deep"),
        ("a = " + "[" * 30 + "]" * 30, "lists or tables are nested more than 20 deep"),
        ("rounds = " + "9" * 5000, "is not TOML: Exceeds the limit"),
        ("rounds = 0x" + "f" * 5000, "expected integers of 64 bits, got an integer of 20,000 bits"),
        (
            "sweep.seed = [0x" + "f" * 5000 + "]",
            "expected integers of 64 bits, got an integer of 20,000 bits",
        ),
    ],
)
def test_refused_in_one_sentence(change, says, tmp_path):
    """In the job file or, where the file has a table, as a change of it."""
    change, own = change.replace("'", '"'), change.startswith(("algorithm", "problem"))
    path = _written(tmp_path, JOB if own else f"{change}\n{JOB}")
    assert says in refusal(lambda: Config.load(path, [change] if own else [])).replace('"', "'")


def _written(folder, text: str):
    path = folder / "job.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("value", [math.nan, math.inf, "0.1", True, np.nan, np.float32("inf")])
def test_hyperparameters_of_a_wrong_type(value):
    for made in (lambda: Saddle(tau=value), lambda: Ball(radius=value), lambda: AdaFGDA(q=2, gamma=value)):
        assert "Input should be a" in refusal(made)
    assert "SLIPPAX.delta: Input" in refusal(lambda: SLIPPAX(K=1, eta=0.1, H=1, delta=value))


def test_what_is_as_good_as_the_type():
    problem = Saddle(
        clients=np.int64(3), tau=np.float32(2), s=np.float64(1), t_max=1, centred=np.bool_(False)
    )
    assert (problem.clients, problem.tau, problem.t_max, problem.centred) == (3, 2.0, 1.0, False)
    assert type(problem.clients) is int and type(problem.tau) is float and type(problem.centred) is bool
    again = Config.from_table(json.loads(json.dumps(TABLE | {"record": ["x"], "rounds": 7})))
    assert again.record == ("x",) and Config.from_table(again.table()).table() == again.table()


def test_a_setting_that_is_infinite_by_default_may_be():
    method = MFCGD(q=2)
    assert MFCGD(q=2, C_g=math.inf) == method
    assert "C_g: Input should be greater than 0, got nan" in refusal(lambda: MFCGD(q=2, C_g=math.nan))


def test_files_that_are_no_job_files(tmp_path):
    for name in (LONG, "a\0b", tmp_path):
        assert "cannot read the job file" in refusal(lambda: read_table(name))
    assert "is no job file: it has more than" in refusal(lambda: read_table("/dev/zero"))
    path = tmp_path / "job.toml"
    path.write_bytes(b"\xef\xbb\xbfrounds = 3\r\n")
    assert read_table(path) == {"rounds": 3}
    path.write_bytes(b"rounds = \xff")
    assert "is not TOML" in refusal(lambda: read_table(path))


def test_changes_that_are_none():
    assert parse("[" * 5000) == "[" * 5000 and parse("1\nb = 2") == "1\nb = 2"
    table = {}
    assert "nested more than 20 deep" in refusal(lambda: override(table, "a." * 5000 + "a=1"))
    assert "an override is key=value" in refusal(lambda: override(table, LONG))
    endless = {}
    endless["run"] = endless
    assert "nested more than 20 deep" in refusal(lambda: Config.from_table(endless))


def test_sweeps_that_are_none(tmp_path):
    path = tmp_path / "job.toml"
    digits = list(range(10))
    for text, says in (
        ("\n".join(f"a{k} = {digits}" for k in range(100)), "[sweep] makes more than 10,000 runs"),
        ("rounds = [1979-05-27, 1979-05-28]", "rounds: Input should be a valid integer"),
        ("rounds = [true]", "rounds: Input should be a valid integer, got True"),
    ):
        path.write_text(f"{JOB}[sweep]\n{text}")
        assert says in refusal(lambda: variants(path))
    path.write_text(JOB + "run = 5\n[sweep]\nseed = [1, 2]\n")
    assert "run: Input should be a valid dictionary" in refusal(lambda: variants(path))
    path.write_text(JOB + 'run = {out = ""}\n[sweep]\nseed = [1, 2]\n')
    assert "run.out: expected the name of a folder" in refusal(lambda: variants(path))


def test_messages_show_a_part_of_what_is_long():
    assert (
        truncate("x" * 200) == "x" * 200
        and len(truncate(LONG)) <= 200
        and "100,000 characters" in truncate(LONG)
    )
    for value in (LONG, [LONG] * 1000, {LONG: LONG}, 10**5000, deep(200), b"x" * 100_000):
        assert len(short_repr(value)) <= 200
    assert (short_repr(0.1), short_repr("it's"), short_repr([1, 2])) == ("0.1", '"it\'s"', "[1, 2]")
    assert "did you mean" not in suggest(LONG, ["q"]) and "'gamma'" in suggest("gama", ["gamma", "q"])
    said = refusal(lambda: Config.from_table(TABLE | {f"key{k}": k for k in range(1000)})).splitlines()
    assert len(said) == 21 and said[-1] == "... and 980 more"
    said = refusal(lambda: build(Saddle, {f"key{k}": k for k in range(1000)}, "problem"))
    assert said.endswith("... and 980 more")


def test_names_of_plugins_are_no_paths_to_anything_else():
    for name in ("a..b:c", ".:b", "x y:z", "-m:C"):
        assert "expected ./file.py:Class" in refusal(lambda: find(name, "problem"))


@pytest.mark.parametrize("sweep", ["{seed=[]}", "{seed=[0, 1], 'rounds'=[]}", "[{seed=[0]}, {rounds=[]}]"])
def test_a_sweep_with_an_empty_list(tmp_path, sweep):
    (tmp_path / "job.toml").write_text(JOB)
    says = refusal(lambda: variants(tmp_path / "job.toml", [f"sweep={sweep}"]))
    assert says == "[sweep] has an empty list, which leaves no run"
