"""Search spaces: ranges, lists, default ranges of omitted floats, proposals, and invalid [tune] tables."""

import dataclasses
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpifed.algorithms import ALGORITHMS
from mpifed.base.errors import ConfigError
from mpifed.config.plugins import create
from mpifed.config.space import Choice, Range, space_of
from mpifed.config.tuning import tuning
from mpifed.tuning.proposals import settings_at, sobol_points, tpe_points

JOB = """
rounds = 9
[problem]
name = "Saddle"
clients = 3
[run]
out = "FOLDER/out"
[tune]
runs = 6
seeds = 2
[[tune.methods]]
name = "FGDA"
q = 2
"""


def whole_numbers(cls) -> dict:
    """Return values for the required settings that are not floats."""
    needed = {"L": 1.0, "delta": 0.1} if "PPAX" in cls.__name__ else {}
    return {key: value for key, value in needed.items() if key in cls.__dataclass_fields__} | {
        field.name: 4
        for field in dataclasses.fields(cls)
        if re.search("int|LocalSteps", str(field.type))
        and getattr(field.default, "is_required", lambda: False)()
    }


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_can_be_created_from_its_default_ranges(name):
    space = space_of({"name": name, **whole_numbers(ALGORITHMS[name])})
    assert space.open, name
    points = sobol_points(space.open, 8, 0, ())
    points += tpe_points(space.open, 2, 0, points)
    assert len({*points}) == 10
    for point in [*points, tuple(domain.low for domain in space.open.values())]:
        table = space.table(settings_at(space.open, point))
        del table["name"]
        create(ALGORITHMS[name], table, "algorithm", {})


def test_open_and_fixed_settings():
    space = space_of({"name": "AdaFGDA", "q": 10, "gamma": 0.1, "alpha": [0.1, 0.9], "beta": [0.5]})
    assert space.fixed == {"q": 10, "gamma": 0.1, "beta": 0.5, "matrix": {"name": "adam"}}
    assert space.open == {
        "alpha": Choice((0.1, 0.9)),
        "lam": Range(1e-4, 1.0),
        "matrix.varrho": Range(1e-3, 1.0, complement=True, most=1.0),
        "matrix.rho": Range(1e-4, 1.0),
    }  # not eta, whose default is 1, because it multiplies the steps
    table = space.table({"alpha": 0.9, "lam": 0.01, "matrix.varrho": 0.99, "matrix.rho": 0.1})
    assert table["matrix"] == {"name": "adam", "varrho": 0.99, "rho": 0.1} and table["alpha"] == 0.9
    assert space_of({"name": "FGDA", "q": 10}).open["alpha"] == Range(0.01, 1.0, most=1.0)
    given = {"name": "FGDA", "q": {"low": 2, "high": 8}, "alpha": 0.1, "beta": 0.1, "lam": 0.1, "gamma": 0.1}
    assert space_of(given).open == {"q": Range(2, 8, integer=True, least=1)} and space_of(given).size == 7
    matrix = {"name": "adam", "varrho": 0.9, "rho": {"low": 0.1, "high": 1}}
    assert space_of({"name": "AdaFGDA", "q": 2, "matrix": matrix}).open["matrix.rho"] == Range(0.1, 1.0)
    assert space_of({"name": "FedMuonDA", "p": 4, "orthogonalize": "svd"}).fixed["orthogonalize"] == "svd"
    decay = space_of({"name": "LocalAMSGrad", "K": 2, "beta_1": {"low": 0.5, "high": 0.99}}).open["beta_1"]
    assert decay.complement and str(decay) == "0.5 to 0.99" and decay.value(decay.at_fraction(0)) == 0.99


numbers = st.floats(1e-6, 1e6)


def test_values_of_an_omitted_decay_are_above_a_strict_bound(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "from mpifed import Algorithm, hyperparameters\nfrom pydantic import Field\n\n"
        "@hyperparameters\nclass Own(Algorithm):\n"
        "    b: float = Field(default=0.9, gt=0, lt=1)\n    c: float = Field(default=0.9, ge=0, lt=1)\n"
    )
    space = space_of({"name": f"{file}:Own"})
    ends = {key: [domain.value(domain.low), domain.value(domain.high)] for key, domain in space.open.items()}
    assert ends["b"] == pytest.approx([0.999, 0.01]) and ends["c"] == pytest.approx([0.999, 0.0])


@given(numbers, st.floats(1.5, 1e4), st.floats(0, 1), st.booleans())
def test_ranges_are_logarithmic_and_extended_past_their_ends(low, times, share, complement):
    span = Range(low, low * times, complement=complement)
    number = span.at_fraction(share)
    assert span.low <= number <= span.high and number == span.rounded(number)
    reached = math.log(number / span.low) / math.log(times)
    assert abs(reached - share) < 0.01 / math.log(times) or number in (span.low, span.high)
    more = span.extension(number)
    assert (more is None) == (0.1 < reached < 0.9)  # the tenths at the ends
    if more:
        assert more.low == span.high or more.high == span.low
        assert span.union(more).high / span.union(more).low > 9 * times
    assert Range(low, low * times, least=low, most=low * times).extension(number) is None


def test_proposals_exhaust_lists():
    open = {"a": Choice((1, 2, 3)), "b": Choice(("x", "y"))}
    points = sobol_points(open, 10, 0, ())
    assert sobol_points(open, 3, 0, points) == [] and tpe_points(open, 3, 0, points) == []
    values = [tuple(settings_at(open, point).values()) for point in points]
    assert sorted(values) == [(a, b) for a in (1, 2, 3) for b in "xy"]


def test_proposals_depend_on_the_points_and_the_seed_alone():
    open = {"a": Range(1e-3, 1.0), "b": Choice((1, 5, 9)), "c": Choice(("x", "y"))}
    open["d"] = Range(1, 9, integer=True)
    points = sobol_points(open, 12, 3, ())
    ranked = sorted(points, key=lambda point: abs(math.log(point[0] / 0.1)))
    assert points == sobol_points(open, 12, 3, ()) != sobol_points(open, 12, 4, ())
    new = tpe_points(open, 12, 5, ranked)
    assert new == tpe_points(open, 12, 5, ranked) and not {*new} & {*points}

    def far(some):
        return sum(abs(math.log10(point[0] / 0.1)) for point in some) / len(some)

    assert far(new) < far(points)


@pytest.mark.parametrize("change, says", [
    ("gama = 0.1", "FGDA: .* has no setting 'gama': did you mean 'gamma'"),
    ("gamma = []", r"gamma: expected at least one value, got \[\]"),
    ("gamma = [0.1, 0.1]", "expected distinct values"),
    ("gamma = { low = 1.0, high = 0.1 }", "expected 0 < low < high"),
    ("gamma = { low = 0, high = 0.1 }", "0 can be in a list"),
    ("gamma = { low = 0.1 }", "expected a range { low = NUMBER, high = NUMBER }"),
    ("gamma = { low = 0.1, high = 1.0, log = true }", "expected a range"),
    ("alpha = { low = 0.1, high = 2.0 }", "expected a range from 0 to 1"),
    ("gamma = [{ low = 0.1, high = 1.0 }, 2.0]", "a list with a range"),
    ("gamma = -0.1", "algorithm.gamma: expected a finite number >= 0 or a schedule, got -0.1"),
])  # fmt: skip
def test_errors_in_a_method_are_reported_before_any_work(job, tmp_path, change, says):
    job.write_text(job.read_text() + change)
    with pytest.raises(ConfigError, match=says):
        tuning(job)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("overrides, says", [
    (["tune=5"], r"has no \[tune\].*\[\[tune.methods\]\]"),
    (["tune.run=4"], r"\[tune\] has no setting 'run': did you mean 'runs'"),
    (["tune.runs=2"], "tune.runs = 2 with tune.seeds = 2: expected at least 3"),
    (["tune.runs=0"], "tune.runs: Input should be greater"),
    (["tune.methods=[]"], "tune.methods: .* at least 1"),
    (["tune.methods=[{q=1}]"], "number 1: expected a table with a name"),
    (["tune.methods=[{name='FGAD', q=1}]"], "FGAD: unknown algorithm 'FGAD': did you mean 'FGDA'"),
    (["tune.methods=[{name='FGDA', q={low=1.5, high=3}}]"], "q is an integer"),
    (["tune.methods=[{name='FGDA'}]"], "q is missing"),
    (["tune.tasks={'problem.clients'=[]}"], "per setting in .tune.tasks., got an empty list"),
    (["tune.tasks={'problem.cleints'=[1]}"], "did you mean 'clients'"),
    (["sweep={seed=[0]}"], "exclude each other"),
    (["stop.seconds=5"], "must not have stop.seconds"),
])  # fmt: skip
def test_errors_in_the_table_are_reported_before_any_work(job, overrides, says):
    with pytest.raises(ConfigError, match=f"(?s){says}"):
        tuning(job, overrides)


def test_tasks_and_settings_that_all_methods_share(job):
    tasks = "tune.tasks={'problem.clients'=[3, 4], 'algorithm.beta'=[0.5, 0.9]}"
    studies = tuning(job, [tasks, "algorithm.eta=0.5"]).studies
    names = [f"clients={n},beta={b}" for n in (3, 4) for b in (0.5, 0.9)]
    assert [study.task for study in studies] == names
    config = studies[-1].config(studies[-1].space.costliest)
    assert config.problem.clients == 4
    assert (config.algorithm.beta.value, config.algorithm.eta.value) == (0.9, 0.5)
    twice = tuning(job, ["tune.methods=[{name='FGDA', q=2}, {name='FGDA', q=4}, {name='LocalSGDA', q=2}]"])
    assert [study.method for study in twice.studies] == ["FGDA,q=2", "FGDA,q=4", "LocalSGDA,q=2"]


def test_a_plugin_is_named_by_its_class(tmp_path):
    """Names of methods are names of folders below run.out."""
    file, job = tmp_path / "mine.py", tmp_path / "job.toml"
    file.write_text("from mpifed.algorithms import LocalSGDA\n\nclass Mine(LocalSGDA):\n    pass\n")
    mine = JOB.replace('name = "FGDA"', f'name = "{file}:Mine"')
    job.write_text(mine)
    assert [study.method for study in tuning(job).studies] == ["Mine"]
    job.write_text(mine + '[[tune.methods]]\nname = "LocalSGDA"\nq = 2\n')
    assert [study.method for study in tuning(job).studies] == ["Mine", "LocalSGDA"]
