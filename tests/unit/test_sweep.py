"""Sweeps: combinations, names of runs, finished runs and diverged runs."""

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from mpifed.base.errors import ConfigError
from mpifed.cli.main import cli
from mpifed.config.grids import LONGEST, expand, folder_names, taken, variants
from mpifed.config.job import Config
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.running.run import sweep
from mpifed.storage.results import load

JOB = """
rounds = 3
[problem]
name = "Saddle"
clients = 3
d = 4
[oracle]
batch_size = 0
[run]
progress = false
out = "OUT"
[sweep]
seed = [0, 1]
algorithm = [
    {{ name = "FGDA", q = 2, gamma = [0.01, {large}], lam = 0.01 }},
    {{ name = "LocalSGDA", q = 2, eta_x = 0.01, eta_y = [0.01, 0.02] }},
]
"""


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(JOB.format(large=0.02).replace("OUT", str(tmp_path / "runs")))
    return path


def test_combinations_are_listed_in_order():
    assert expand({"a": [1, 2], "b": 3, "c": [{"d": [4, 5]}, 6]}) == [
        {"a": a, "b": 3, **c} for a in (1, 2) for c in ({"c.d": 4}, {"c.d": 5}, {"c": 6})
    ]
    assert expand({"record": [["x"], ["x", "y"]]}) == [{"record": ["x"]}, {"record": ["x", "y"]}]


@given(st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(), min_size=1, max_size=3), max_size=4))
def test_the_number_of_runs_is_the_product(choices):
    size = 1
    for values in choices.values():
        size *= len(values)
    runs = expand(choices)
    assert len(runs) == size and all(set(run) == set(choices) for run in runs)
    assert all(run[key] in choices[key] for run in runs for key in choices)


def test_several_tables_have_separate_combinations(job):
    job.write_text(
        job.read_text().split("[sweep]")[0]
        + """
        [[sweep]]
        rounds = 3
        seed = [0, 1]
        algorithm = { name = "FGDA", q = 2, gamma = 0.01 }
        [[sweep]]
        rounds = [6, 9]
        algorithm = { name = "FGDA", q = 2, gamma = 0.02 }
    """
    )
    runs = variants(job)
    assert [(run.config.rounds, run.config.seed, run.config.algorithm.gamma) for run in runs] == [
        (3, 0, 0.01),
        (3, 1, 0.01),
        (6, 0, 0.02),
        (9, 0, 0.02),
    ]
    assert len({run.name for run in runs}) == 4


def test_runs_of_a_job(job, tmp_path):
    runs = variants(job)
    assert len(runs) == 8 and len({run.name for run in runs}) == 8
    assert runs[0].name == "seed=0,FGDA,gamma=0.01" and runs[-1].name == "seed=1,LocalSGDA,eta_y=0.02"
    assert runs[1].config.run.out == str(tmp_path / "runs" / "seed=0,FGDA,gamma=0.02")
    assert runs[1].config.algorithm.gamma == 0.02 and runs[-1].config.seed == 1 and runs[0].config.rounds == 3
    assert {run.name for part in range(3) for run in taken(runs, f"{part}/3")} == {run.name for run in runs}
    assert [run.config.rounds for run in variants(job, ["rounds=7", "sweep.seed=5"])] == [7] * 4


def test_names_distinguish_settings_and_fit_a_file_system(job):
    method = "name='FGDA', gamma=0.01, lam=0.01"
    clash = variants(job, [f"sweep={{algorithm={{{method}, q=[1, 2]}}, problem={{d=[3, 4]}}}}"])
    assert [run.name for run in clash] == ["q=1,d=3", "q=1,d=4", "q=2,d=3", "q=2,d=4"]
    alike = variants(job, [f"sweep={{algorithm={{{method}, q=1}}, 'problem.name'=['Saddle', 'TwoSidedPL']}}"])
    assert [run.name for run in alike] == ["Saddle", "TwoSidedPL"]
    one_more = variants(job, [f"sweep={{algorithm=[{{{method}, q=1}}, {{{method}, q=1, alpha=0.5}}]}}"])
    assert [run.name for run in one_more] == [
        "FGDA,gamma=0.01,lam=0.01,q=1",
        "FGDA,gamma=0.01,lam=0.01,q=1,alpha=0.5",
    ]
    long = variants(
        job, [f"sweep={{'run.data_dir'=['{'a' * 200}', '{'a' * 201}'], 'algorithm'={{{method}, q=1}}}}"]
    )
    assert len({run.name for run in long}) == 2 and all(len(run.name) <= LONGEST for run in long)
    words = [f"sweep={{'run.data_dir'=['{'猫' * 90}', '{'猫' * 89}犬'], 'algorithm'={{{method}, q=1}}}}"]
    wide = [run.name for run in variants(job, words)]
    assert len({*wide}) == 2 and all(len(name.encode()) < 255 for name in wide), "a file system counts bytes"


def named(*methods, key="algorithm.name", **choices):
    return folder_names([one for method in methods for one in expand({key: method, **choices})])


def test_a_plugin_is_named_by_its_class():
    for plugin in ("./methods/mine.py:Mine", "/home/me/mine.py:Mine", "package.module:Mine"):
        assert named(plugin, seed=[0]) == ["run"]
        assert named(plugin, "FGDA", seed=[0, 1]) == [
            "Mine,seed=0",
            "Mine,seed=1",
            "FGDA,seed=0",
            "FGDA,seed=1",
        ]
        assert named(plugin, "FGDA", key="algorithm") == ["algorithm=Mine", "algorithm=FGDA"]
    assert named("FGDA", **{"run.data_dir": ["a:b", "c"]}) == ["data_dir=a_b", "data_dir=c"]


def test_plugins_with_the_same_class_name_are_distinguished():
    assert named("a.py:Mine", "b.py:Mine", "FGDA") == ["Mine-a", "Mine-b", "FGDA"]
    assert named("pack.a:Mine", "FGDA", "own.py:FGDA") == ["Mine", "FGDA", "FGDA-own"]
    alike = named("x/a.py:Mine", "y/a.py:Mine")
    assert len({*alike}) == 2 and all(name.startswith("Mine-") and "a.py" not in name for name in alike)
    assert alike[::-1] == named("y/a.py:Mine", "x/a.py:Mine")


def test_a_plugin_in_a_sweep(job, tmp_path):
    """The name of the run is short; the configuration has the full name."""
    for folder in ("a", "b"):
        (tmp_path / f"{folder}.py").write_text(
            "from mpifed.problems import Saddle\n\nclass Mine(Saddle):\n    pass\n"
        )
    runs = variants(
        job,
        [
            f"sweep={{'problem.name'=['{tmp_path}/a.py:Mine', '{tmp_path}/b.py:Mine'], seed=[0, 1]}}",
            "algorithm={name='FGDA', q=2}",
        ],
    )
    assert [run.name for run in runs] == ["Mine-a,seed=0", "Mine-a,seed=1", "Mine-b,seed=0", "Mine-b,seed=1"]
    assert runs[-1].config.table()["problem"]["name"] == f"{tmp_path}/b.py:Mine"


def test_a_run_with_a_changed_plugin_is_refused(job, tmp_path):
    plugin = tmp_path / "a.py"
    plugin.write_text("from mpifed.problems import Saddle\n\nclass Mine(Saddle):\n    pass\n")
    changes = ["sweep={seed=[0, 1]}", "algorithm={name='FGDA', q=2}", f"problem.name={plugin}:Mine"]
    assert sweep(variants(job, changes), SerialComm()).before == 0
    assert sweep(variants(job, changes), SerialComm()).before == 2
    plugin.write_text(plugin.read_text() + "# edited\n")
    with pytest.raises(CollectiveError, match="the source of problem .*a.py:Mine has changed"):
        sweep(variants(job, changes), SerialComm())
    assert sweep(variants(job, [*changes, "run.overwrite=true"]), SerialComm()).done == 2


@pytest.mark.parametrize(
    "overrides, says",
    [
        (["sweep.seed=[]"], "leaves no run"),
        (["sweep=5"], "has no \\[sweep\\]"),
        (
            ["sweep.algorithm={name='FGDA', q=2, gama=1}"],
            "seed=0: algorithm has no setting 'gama': did you mean 'gamma'",
        ),
        (["sweep.rounds=[1, 0]"], "rounds=0: rounds: Input should be"),
        (["sweep.seed=[1, 1]"], "lists the run .* more than once"),
    ],
)
def test_errors_are_reported_before_any_run(job, tmp_path, overrides, says):
    with pytest.raises(ConfigError, match=says):
        variants(job, overrides)
    assert not (tmp_path / "runs").exists()


def test_run_and_sweep_refer_to_each_other(job, tmp_path):
    with pytest.raises(ConfigError, match="start it with `mpifed sweep`"):
        Config.load(job)
    plain = tmp_path / "plain.toml"
    plain.write_text(job.read_text().split("[sweep]")[0])
    with pytest.raises(ConfigError, match="a single run is started with `mpifed run`"):
        variants(plain)
    for part in ("3/3", "1", "a/b", "-1/2"):
        with pytest.raises(ConfigError, match="--part is I/N"):
            taken([], part)


def test_a_sweep_skips_finished_runs(job, tmp_path):
    runs = variants(job)
    first = sweep(runs[:3], SerialComm())
    assert (first.done, first.before, first.diverged) == (3, 0, 0)
    done = load(tmp_path / "runs" / runs[0].name)
    assert done.stopped == "all 3 rounds done"
    again = sweep(runs, SerialComm())
    assert (again.done, again.before) == (8, 3)
    longer = sweep(variants(job, ["rounds=5"]), SerialComm())
    assert (longer.done, longer.before) == (8, 0)
    assert load(tmp_path / "runs" / runs[0].name).costs["round"][-1] == 5


def test_a_diverged_run_is_finished(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(JOB.format(large=1e30).replace("OUT", str(tmp_path / "runs")))
    outcome = CliRunner().invoke(cli, ["sweep", str(path)])
    assert (
        "8 runs are finished, 0 of them before this command; 2 ended in non-finite values" in outcome.output
    ), outcome.output
    outcome = CliRunner().invoke(cli, ["sweep", str(path)])
    assert "8 runs are finished, 8 of them before this command; 0 ended" in outcome.output, outcome.output
    assert "non-finite value" in load(tmp_path / "runs" / "seed=0,FGDA,gamma=1e+30").stopped
    listed = CliRunner().invoke(cli, ["sweep", str(path), "--list", "--part", "1/4"]).output.split()
    assert listed == ["seed=0,FGDA,gamma=1e+30", "seed=1,FGDA,gamma=1e+30"]
