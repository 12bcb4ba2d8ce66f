"""Configurations made in Python: wrong ones are refused in the words of a job file, one line a fault."""

import copy
from dataclasses import dataclass

import pytest
from pydantic import Field

from mpifed import Algorithm, Config, ConfigError
from mpifed.algorithms import AdaFGDA, LocalSGDA
from mpifed.base.settings import Preset, build, problem_settings
from mpifed.config.sections import Run
from mpifed.problems import AffineGame, Saddle

METHOD = LocalSGDA(q=2, eta_x=0.01, eta_y=0.01)


def refusal(**settings) -> str:
    with pytest.raises(ConfigError) as fault:
        Config(**({"algorithm": METHOD, "problem": Saddle(clients=4)} | settings))
    assert "pydantic" not in str(fault.value)
    return str(fault.value)


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"rounds": -1}, "rounds: Input should be greater than or equal to 1, got -1"),
        ({"run": {"thread": 1}}, "[run] has no setting 'thread': did you mean 'threads'?"),
        ({"rnds": 3}, "a job file has no setting 'rnds': did you mean 'rounds'?"),
        ({"plugins": {}}, "a job file has no setting 'plugins'"),
        ({"run": {"dtype": "float16"}}, "run.dtype: Input should be 'float32' or 'float64', got 'float16'"),
        ({"stop": {"metric": "error"}}, "stop: a target needs metric and exactly one of at_least, at_most"),
        ({"oracle": {"noise": "gausian"}}, "unknown noise 'gausian': did you mean 'gaussian'?"),
        ({"algorithm": LocalSGDA}, "algorithm: Input should be an instance of Algorithm, got <class"),
        ({"problem": "Saddle"}, "problem: Input should be an instance of Problem, got 'Saddle'"),
        ({"participation": {"cohort": 5}}, "participation.cohort = 5 is more than problem.clients = 4"),
        (
            {"algorithm": AdaFGDA(q=2), "participation": {"cohort": 3}},
            "AdaFGDA needs every client in every round",
        ),
        (
            {"problem": AffineGame(clients=2)},
            "LocalSGDA solves minimax problems, AffineGame is an operator problem",
        ),
    ],
)
def test_refused(settings, says):
    said = refusal(**settings)
    assert says in said and "\n" not in said


def test_every_fault_has_its_line():
    said = refusal(rounds=0, rnds=1, run={"thread": 1, "keep": 0}).splitlines()
    assert len(said) == 4 and sum("has no setting" in line for line in said) == 2
    with pytest.raises(ConfigError, match="algorithm is missing: it has no default"):
        Config(problem=Saddle())


def test_tables_are_refused_alike():
    table = Config(algorithm=METHOD, problem=Saddle()).table()
    with pytest.raises(ConfigError, match=r"rounds: Input should be .* got -1"):
        Config.from_table(table | {"rounds": -1})
    with pytest.raises(
        ConfigError, match="run: Input should be a valid dictionary or instance of Run, got 5"
    ):
        Config.from_table(table | {"run": 5})


@pytest.mark.parametrize(
    "make, says",
    [
        (
            lambda: LocalSGDA(q=0, eta_x=1, eta_y=1),
            "LocalSGDA.q: Input should be greater than or equal to 1, got 0",
        ),
        (lambda: LocalSGDA(q=1, eta_x=1), "LocalSGDA.eta_y is missing: it has no default"),
        (
            lambda: LocalSGDA(q=1, eta_x=1, eta_y=1, eta=2),
            "LocalSGDA has no setting 'eta': did you mean 'eta_y'?",
        ),
        (lambda: LocalSGDA(1, 1, 1, 7), "LocalSGDA got one value too many, 7: (options: eta_x, eta_y, q)"),
        (lambda: AdaFGDA(q=1, matrix="adm"), "AdaFGDA.matrix: unknown matrix 'adm': did you mean 'adam'?"),
        (lambda: Saddle(client=3), "Saddle has no setting 'client': did you mean 'clients'?"),
    ],
)
def test_methods_and_problems_made_wrongly(make, says):
    for _ in range(2):  # pydantic completes a class when it is first made
        with pytest.raises(ConfigError) as fault:
            make()
        assert str(fault.value).startswith(says)


def test_words_are_the_same_after_a_table_has_made_the_class():
    """Pydantic completes a class then, and sets its own ``__init__``."""

    @problem_settings
    class Mine(Saddle):
        c: float = Field(default=1.0, ge=0)

    assert build(Mine, {"c": 2}, "problem").c == 2
    with pytest.raises(ConfigError, match="Mine.c: Input should be greater than or equal to 0, got -1"):
        Mine(c=-1)


def test_settings_of_a_users_own_type():
    class Law:
        pass

    @problem_settings
    class Mine(Saddle):
        law: Law = Field(default=Law())

    own = Law()
    assert Mine(law=own).law is own
    with pytest.raises(ConfigError, match="Mine.law: Input should be an instance of .*Law, got 3"):
        Mine(law=3)


def test_settings_that_have_no_value():
    """A plain dataclass over a class of the package takes the package's descriptions for values."""

    @dataclass
    class Mine(Saddle):
        c: float = 1.0

    assert "Mine.d has no value: decorate the class with mpifed.base.settings.problem_settings" in refusal(
        problem=Mine()
    )

    class Bare(Algorithm):
        pass

    assert "Bare must be a dataclass" in refusal(algorithm=Bare())


def test_sections_are_taken_as_objects_too():
    assert Config(algorithm=METHOD, problem=Saddle(), run=Run(keep=7)).run.keep == 7


PLAIN = Preset("Plain", AdaFGDA, "AdaFGDA with one matrix.", matrix="identity", first_matrix="identity")


def test_a_preset_makes_its_class_with_some_settings_fixed():
    method = PLAIN(q=3, gamma=0.5)
    assert type(method) is AdaFGDA and method.first_matrix == "identity" and method.gamma == 0.5
    assert PLAIN.matches(method) and not PLAIN.matches(AdaFGDA(q=3)) and not PLAIN.matches(METHOD)
    assert PLAIN.matches(AdaFGDA(q=1, sync_estimator="local", matrix="identity", first_matrix="identity"))
    assert (PLAIN.__name__, PLAIN.__doc__, PLAIN.family) == ("Plain", "AdaFGDA with one matrix.", "minimax")
    assert copy.deepcopy(PLAIN).matches(method)
    with pytest.raises(AttributeError):
        PLAIN.nothing  # noqa: B018


def test_a_preset_takes_the_settings_that_are_left():
    from dataclasses import fields

    free = {field.name for field in fields(PLAIN)}
    assert free == {field.name for field in fields(AdaFGDA)} - {"matrix", "first_matrix"}
    for settings, says in (
        ({"q": 2, "matrix": "adam"}, "Plain has no setting 'matrix': "),
        ({"q": 0}, "Plain.q: Input should be greater than or equal to 1, got 0"),
        ({}, "Plain.q is missing"),
    ):
        with pytest.raises(ConfigError) as fault:
            PLAIN(**settings)
        assert str(fault.value).startswith(says)
