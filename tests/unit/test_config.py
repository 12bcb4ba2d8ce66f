"""Configurations from files, tables and Python: invalid settings are refused in one line per error."""

import copy
import json
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from pydantic import Field, ValidationError
from refusals import refusal

from mpifed import Config
from mpifed.algorithms import AFL, MFCGD, SLIPPAX, STEM, AdaFGDA, FedNormSGDA, LocalSGDA
from mpifed.base.errors import short_repr, truncate
from mpifed.base.settings import (
    affecting,
    as_table,
    build,
    hyperparameters,
    problem_settings,
    settings_of,
    suggest,
    title,
)
from mpifed.config.grids import variants
from mpifed.config.job import SECTIONS, Run
from mpifed.config.tables import apply_override, parse_value, read_table
from mpifed.core.adaptive import FirstMatrix, Identity, Matrix
from mpifed.core.sets import Ball
from mpifed.problems import AffineGame, Saddle

LONG = "x" * 100_000
JOB = """
algorithm = {name = "LocalSGDA", q = 2, eta_x = 0.01, eta_y = 0.01}
problem = {name = "Saddle", clients = 4}
"""
METHOD = LocalSGDA(q=2, eta_x=0.01, eta_y=0.01)
TABLE = Config(algorithm=METHOD, problem=Saddle(clients=4)).table()


def deep(depth: int):
    return [deep(depth - 1)] if depth else 1


@pytest.mark.parametrize("settings, says", [
    ({"rounds": -1}, "rounds: Input should be greater than or equal to 1, got -1"),
    ({"run": {"thread": 1}}, "[run] has no setting 'thread': did you mean 'threads'?"),
    ({"rnds": 3}, "a job file has no setting 'rnds': did you mean 'rounds'?"),
    ({"plugins": {}}, "a job file has no setting 'plugins'"),
    ({"run": {"dtype": "float16"}}, "run.dtype: Input should be 'float32' or 'float64', got 'float16'"),
    ({"run": 5}, "run: Input should be a table, got 5"),
    ({"stop": {"metric": "error"}}, "stop: expected at_least, at_most or patience with metric"),
    ({"stop": {"patience": 2}}, "stop: patience needs a metric: set stop.metric"),
    ({"stop": {"min_delta": 0.1}}, "stop: min_delta has no effect without patience, got min_delta = 0.1"),
    ({"oracle": {"noise": "gausian"}}, "unknown noise 'gausian': did you mean 'gaussian'?"),
    ({"algorithm": LocalSGDA}, "algorithm: Input should be an instance of Algorithm, got <class"),
    ({"problem": "Saddle"}, "problem: Input should be an instance of Problem, got 'Saddle'"),
    ({"problem": AffineGame(clients=2)},
     "LocalSGDA solves minimax problems, but AffineGame is an operator problem"),
])  # fmt: skip
def test_configurations_from_objects_are_validated(settings, says):
    message = refusal(lambda: Config(**({"algorithm": METHOD, "problem": Saddle(clients=4)} | settings)))
    assert says in message and "\n" not in message


def test_each_error_has_a_line():
    wrong = dict(rounds=0, rnds=1, run={"thread": 1, "keep": 0})
    lines = refusal(lambda: Config(algorithm=METHOD, problem=Saddle(), **wrong)).splitlines()
    assert len(lines) == 4 and sum("has no setting" in line for line in lines) == 2
    assert "algorithm is missing: it has no default" in refusal(lambda: Config(problem=Saddle()))
    assert "\n" not in refusal(lambda: Config(algorithm=METHOD, problem=Saddle(), measures={"of": ["phii"]}))
    assert refusal(lambda: Config.from_table(TABLE | {"rounds": "3.5"})).endswith("integer, got '3.5'")
    many = refusal(lambda: Config.from_table(TABLE | {f"key{k}": k for k in range(1000)})).splitlines()
    assert len(many) == 21 and many[-1] == "... and 980 more"


def test_fixed_settings_are_not_suggested():
    message = refusal(
        lambda: Config.from_table(TABLE | {"algorithm": {"name": "STEM", "q": 4, "gamma": 0.1}})
    )
    assert "algorithm has no setting 'gamma': expected one of beta, eta, q" in message
    assert refusal(lambda: build(Saddle, dict.fromkeys(map(str, range(100))), "problem")).endswith("80 more")


@pytest.mark.parametrize(
    "change, says",
    [
        ("rounds = true", "rounds: Input should be a valid integer, got True"),
        ('rounds = "3"', "rounds: Input should be a valid integer, got '3': write 3"),
        ("rounds = 3.0", "rounds: Input should be a valid integer, got 3.0: write 3"),
        ("seed = 0x" + "f" * 5000, "got an integer of 20,000 bits"),
        ('run.overwrite = "yes"', "run.overwrite: Input should be a valid boolean, got 'yes'"),
        ("run.progress = 0", "run.progress: Input should be a valid boolean, got 0"),
        ('run.out = ""', "run.out: expected the name of a folder, got '': is a shell variable unset?"),
        ('run.out = "a\\u0000b"', "expected the name of a folder without NUL characters"),
        ("run.out = 3", "run.out: Input should be a valid string, got 3"),
        ("run.watchdog = nan", "run.watchdog: Input should be a finite number, got nan"),
        ("run.gpus = [true]", "run.gpus.0: Input should be a valid integer, got True"),
        ("stop.seconds = inf", "stop.seconds: Input should be a finite number, got inf"),
        ("record = 'x'", "record: Input should be a list, got 'x': write ['x']"),
        ("problem = {name='ClientMixture', dataset='digits', clients=2, model={name='mlp', hidden='3,4'}}",
         "hidden: Input should be a list, got '3,4': write [3, 4]"),
        ("measures.of = []", "measures.of: List should have at least 1 item, got []"),
        ("problem.clients = true", "problem.clients: Input should be a valid integer, got True"),
        ("problem.tau = '10'", "problem.tau: Input should be a valid number, got '10': write 10"),
        ("problem.centred = 1", "problem.centred: Input should be a valid boolean, got 1"),
        ("algorithm.eta_x = 1" + "0" * 400, "algorithm.eta_x: expected a finite number >= 0 or a schedule"),
        ("algorithm.eta_x = {name='power', scale=inf}", "'power'.scale: Input should be a finite number"),
        ("algorithm.eta_x = {name=[]}", "algorithm.eta_x: unknown schedule []: expected one of constant"),
        ("oracle.noise = {name='gaussian', scale='1'}", "oracle.noise: noise 'gaussian'.scale: Input"),
        ("oracle.noise = {name={a=1}}", "oracle.noise: unknown noise {'a': 1}: expected one of "),
        ("self = 1", "a job file has no setting 'self'"),
        (f"{LONG} = 1", "xxxx ... (100,000 characters) ... xxxx"),
        (f"algorithm.{LONG} = 1", "xxxx ... (100,000 characters) ... xxxx"),
        (f"run.dtype = '{LONG}'", "xxxx ... (100,000 characters) ... xxxx"),
        (f"problem.name = '{LONG}'", "unknown problem 'xxxx"),
        (f"problem.name = '{LONG}.py:Mine'", "there is no file xxxx"),
        *((f"problem.name = '{name}'", f"expected ./file.py:Class or package.module:Class, got '{name}'")
          for name in (":b", "..a:b", "a..b:c", ".:b", "x y:z", "-m:C")),
        ("problem.name = '\\u0000.py:b'", "there is no file"),
        ("problem.name = ['Saddle']", "[problem] has no name: set problem.name"),
        ("a = " + "[" * 5000, "lists or tables are nested too deep"),
        ("a = " + "[" * 30 + "]" * 30, "lists or tables are nested more than 20 deep"),
        ("rounds = " + "9" * 5000, "is not TOML: Exceeds the limit"),
        ("rounds = 0x" + "f" * 5000, "expected integers of at most 64 bits, got an integer of 20,000 bits"),
        ("sweep.seed = [0x" + "f" * 5000 + "]", "got an integer of 20,000 bits"),
    ],
)  # fmt: skip
def test_values_of_job_files_and_changes_are_validated(change, says, tmp_path):
    change, as_override = change.replace("'", '"'), change.startswith(("algorithm", "problem"))
    path = tmp_path / "job.toml"
    path.write_text(JOB if as_override else f"{change}\n{JOB}")
    assert says in refusal(lambda: Config.load(path, [change] if as_override else [])).replace('"', "'")


@pytest.mark.parametrize("value", [math.nan, math.inf, "0.1", True, np.nan, np.float32("inf")])
def test_hyperparameters_are_validated_strictly(value):
    for make in (lambda: Saddle(tau=value), lambda: Ball(radius=value)):
        assert "Input should be a" in refusal(make)
    assert "AdaFGDA.gamma: expected a" in refusal(lambda: AdaFGDA(q=2, gamma=value))
    assert "SLIPPAX.delta: Input" in refusal(lambda: SLIPPAX(K=1, eta=0.1, H=1, delta=value))


def test_numpy_scalars_and_lists_are_accepted():
    problem = Saddle(
        clients=np.int64(3), tau=np.float32(2), s=np.float64(1), t_max=1, centred=np.bool_(False)
    )
    assert (problem.clients, problem.tau, problem.t_max, problem.centred) == (3, 2.0, 1.0, False)
    assert type(problem.clients) is int and type(problem.tau) is float and type(problem.centred) is bool
    again = Config.from_table(json.loads(json.dumps(TABLE | {"record": ["x"], "rounds": 7})))
    assert again.record == ("x",) and Config.from_table(again.table()).table() == again.table()


def test_a_setting_with_an_infinite_default_may_be_infinite():
    assert MFCGD(q=2, C_g=math.inf) == MFCGD(q=2)
    assert "C_g: Input should be greater than 0, got nan" in refusal(lambda: MFCGD(q=2, C_g=math.nan))


def test_files_that_are_not_job_files(tmp_path):
    for name in (LONG, "a\0b", tmp_path):
        assert "cannot read the job file" in refusal(lambda: read_table(name))
    assert "expected a job file of at most" in refusal(lambda: read_table("/dev/zero"))
    path = tmp_path / "job.toml"
    path.write_bytes(b"\xef\xbb\xbfrounds = 3\r\n")
    assert read_table(path) == {"rounds": 3}
    path.write_bytes(b"rounds = \xff")
    assert "is not TOML" in refusal(lambda: read_table(path))


@pytest.mark.parametrize("sweep, says", [
    ("{seed=[]}", "per setting in [sweep], got an empty list"),
    ("{seed=[0, 1], 'rounds'=[]}", "per setting in [sweep], got an empty list"),
    ("[{seed=[0]}, {rounds=[]}]", "per setting in [sweep], got an empty list"),
    ("{" + ", ".join(f"a{k} = {list(range(10))}" for k in range(100)) + "}", "at most 10,000 combinations"),
    ("{rounds = [1979-05-27, 1979-05-28]}", "rounds: Input should be a valid integer"),
    ("{seed=[1, 2]}, run = 5", "run: Input should be a table, got 5"),
    ("{seed=[1, 2]}, run = {out = ''}", "run.out: expected the name of a folder"),
])  # fmt: skip
def test_sweeps_are_validated(job, sweep, says):
    changes = f"sweep={sweep}".replace(", run = ", "\0run=").split("\0")
    assert says in refusal(lambda: variants(job, changes))


def test_abbreviated_names_are_recognised():
    assert "did you mean 'validation_auc'" in suggest("val_auc", ["auc", "train_auc", "validation_auc"])


def test_long_values_are_shortened_in_messages():
    assert truncate("x" * 200) == "x" * 200 and len(truncate(LONG)) <= 200
    assert "100,000 characters" in truncate(LONG)
    for value in (LONG, [LONG] * 1000, {LONG: LONG}, 10**5000, deep(200), b"x" * 100_000):
        assert len(short_repr(value)) <= 200
    assert (short_repr(0.1), short_repr("it's"), short_repr([1, 2])) == ("0.1", '"it\'s"', "[1, 2]")
    assert "did you mean" not in suggest(LONG, ["q"]) and "'gamma'" in suggest("gama", ["gamma", "q"])


@pytest.mark.parametrize("make, says", [
    (lambda: LocalSGDA(q=0, eta_x=1, eta_y=1),
     "LocalSGDA.q: expected an integer >= 1, the number of local steps, or a table such as { epochs = 5 }, "
     "got 0"),
    (lambda: LocalSGDA(q=1, eta_x=1), "LocalSGDA.eta_y is missing: it has no default"),
    (lambda: LocalSGDA(q=1, eta_x=1, eta_y=1, eta=2),
     "LocalSGDA has no setting 'eta': did you mean 'eta_x' or 'eta_y'?"),
    (lambda: LocalSGDA(1, 1, 1, 7),
     "LocalSGDA has 4 settings (q, eta_x, eta_y, alternating), got another value, 7"),
    (lambda: AdaFGDA(q=1, matrix="adm"), "AdaFGDA.matrix: unknown matrix 'adm': did you mean 'adam'?"),
    (lambda: Saddle(client=3), "Saddle has no setting 'client': did you mean 'clients'?"),
])  # fmt: skip
def test_classes_validate_their_settings(make, says):
    assert refusal(make).startswith(says)


def test_user_defined_classes_validate_their_settings():
    class Law:
        pass

    @problem_settings
    class Mine(Saddle):
        c: float = Field(default=1.0, ge=0)
        law: Law = Field(default=Law())

    own = Law()
    assert Mine(law=own).law is own and build(Mine, {"c": 2}, "problem").c == 2
    assert "Mine.c: Input should be greater than or equal to 0, got -1" in refusal(lambda: Mine(c=-1))
    wrong = refusal(lambda: Mine(law=3))
    assert "Mine.law: Input should be an instance of" in wrong and "Law, got 3" in wrong


def test_classes_without_the_right_decorator_are_refused():
    @dataclass
    class Mine(Saddle):  # a plain dataclass uses the Field objects of its base class as values
        c: float = 1.0

    says = "Mine.d has no value: decorate the class with mpifed.base.settings.problem_settings"
    assert says in refusal(lambda: Config(algorithm=METHOD, problem=Mine()))


@hyperparameters
class Plain(AdaFGDA):
    """AdaFGDA with one matrix."""

    matrix: Matrix = Field(default="identity", init=False)
    first_matrix: FirstMatrix = Field(default="identity", init=False)


def test_a_fixed_field_is_not_a_setting():
    method = Plain(q=3, gamma=0.5)
    assert (method.matrix, method.first_matrix, method.gamma(1)) == (Identity(), "identity", 0.5)
    assert {"matrix", "first_matrix"} == settings_of(AdaFGDA).keys() - settings_of(Plain).keys()
    assert as_table(method).keys() == {"name", *settings_of(Plain)} and title(method) == "Plain"
    assert copy.deepcopy(method) == replace(method) == method
    for settings, says in (
        ({"q": 2, "matrix": "adam"}, "Plain has no setting 'matrix': "),
        ({"q": 0}, "Plain.q: Input should be greater than or equal to 1, got 0"),
        ({}, "Plain.q is missing"),
    ):
        assert refusal(lambda: Plain(**settings)).startswith(says)
        assert refusal(lambda: build(Plain, settings, "Plain")).startswith(says)


def test_a_class_with_fixed_settings_has_its_own_name_and_family():
    refused = refusal(lambda: Config(algorithm=STEM(q=2, eta=0.1), problem=Saddle()))
    assert refused.startswith("STEM solves minimisation problems, but Saddle is a minimax problem")
    assert Config(algorithm=AFL(gamma_x=0.1, gamma_y=0.1), problem=Saddle()).output_rule == "average"
    normed = FedNormSGDA(tau=1, eta_x=0.1, eta_y=0.1, gamma_x=0.1, gamma_y=0.1)
    assert Config(algorithm=normed, problem=Saddle()).output_rule == "last"


@pytest.mark.parametrize("table, change, changed", [
    ({}, "a.b.c=1", {"a": {"b": {"c": 1}}}),
    ({"a": {"b": 1, "c": 2}}, "a.b=3", {"a": {"b": 3, "c": 2}}),
    # A name abbreviates a table with that name, before and after the change.
    ({"noise": "gaussian"}, "noise.scale=0.5", {"noise": {"name": "gaussian", "scale": 0.5}}),
    ({"noise": {"name": "gaussian", "scale": 1}}, "noise=stable", {"noise": {"name": "stable"}}),
    ({"noise": "gaussian"}, "noise=stable", {"noise": "stable"}),
    # [sweep] has dotted names, in quotes.
    ({"sweep": {"algorithm.q": [1]}}, """sweep."algorithm.q"=[5, 6]""", {"sweep": {"algorithm.q": [5, 6]}}),
    ({"sweep": {"algorithm.q": [1]}}, "sweep.algorithm.q=[5]", {"sweep": {"algorithm.q": [5]}}),
    ({"o": {"noise": "gaussian"}}, "o.noise.scale=1", {"o": {"noise": {"name": "gaussian", "scale": 1}}}),
])  # fmt: skip
def test_overrides_set_dotted_keys(table, change, changed):
    apply_override(table, change)
    assert table == changed


def test_invalid_overrides_are_refused():
    assert parse_value("[" * 5000) == "[" * 5000 and parse_value("1\nb = 2") == "1\nb = 2"
    message = refusal(lambda: apply_override({"rounds": 5}, "rounds.more=1"))
    assert message == "cannot set rounds.more: expected rounds to be a table or a name"
    assert "nested more than 20 deep" in refusal(lambda: apply_override({}, "a." * 5000 + "a=1"))
    assert "expected KEY=VALUE" in refusal(lambda: apply_override({}, LONG))
    message = refusal(lambda: apply_override({}, "problem={name=Saddle, d=3}"))  # the shell took the quotes
    assert message.startswith("problem: expected a TOML table, got {name=Saddle, d=3}: each key once")
    endless = {}
    endless["run"] = endless
    assert "nested more than 20 deep" in refusal(lambda: Config.from_table(endless))


def test_each_setting_declares_what_it_affects():
    effects = ("results", "digits", "length", "selection", "speed", "files")
    for model, sections in ((Config, ["run"]), (Run, [])):
        declared = [name for effect in effects for name in affecting(model, effect)]
        assert sorted(declared + sections) == sorted(model.model_fields)


def test_configurations_and_their_sections_are_frozen():
    config = Config(algorithm=METHOD, problem=Saddle(), run=Run(keep=7))
    assert config.run.keep == 7
    with pytest.raises(ValidationError, match="frozen"):
        config.rounds = 7
    for name in SECTIONS:
        section = getattr(config, name)
        for field in type(section).model_fields if section is not None else ():
            with pytest.raises(ValidationError, match="frozen"):
                setattr(section, field, None)
