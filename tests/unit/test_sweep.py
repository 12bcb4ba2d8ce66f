"""Sweeps: combinations, names of runs, finished runs and diverged runs."""

import re

import pytest
from commands import output_of

from mpifed.base.errors import ConfigError
from mpifed.config.grids import MAX_CHARACTERS, expand, folder_names, select_part, settings_name, variants
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
out = "FOLDER/runs"
[sweep]
seed = [0, 1]
algorithm = [
    { name = "FGDA", q = 2, gamma = [0.01, 0.02], lam = 0.01 },
    { name = "LocalSGDA", q = 2, eta_x = 0.01, eta_y = [0.01, 0.02] },
]
"""


def test_combinations_are_listed_in_order():
    assert expand({"a": [1, 2], "b": 3, "c": [{"d": [4, 5]}, 6]}) == [
        {"a": a, "b": 3, **c} for a in (1, 2) for c in ({"c.d": 4}, {"c.d": 5}, {"c": 6})
    ]
    assert expand({"record": [["x"], ["x", "y"]]}) == [{"record": ["x"]}, {"record": ["x", "y"]}]


def test_several_tables_have_separate_combinations(job):
    sweeps = """
        [[sweep]]
        rounds = 3
        seed = [0, 1]
        algorithm = { name = "FGDA", q = 2, gamma = 0.01 }
        [[sweep]]
        rounds = [6, 9]
        algorithm = { name = "FGDA", q = 2, gamma = 0.02 }
    """
    job.write_text(job.read_text().split("[sweep]")[0] + sweeps)
    runs = variants(job)
    chosen = [(run.config.rounds, run.config.seed, run.config.algorithm.gamma(1)) for run in runs]
    assert chosen == [(3, 0, 0.01), (3, 1, 0.01), (6, 0, 0.02), (9, 0, 0.02)]
    assert len({run.name for run in runs}) == 4


def test_runs_of_a_job(job, tmp_path):
    runs = variants(job)
    assert len(runs) == 8 and len({run.name for run in runs}) == 8
    assert runs[0].name == "seed=0,FGDA,gamma=0.01" and runs[-1].name == "seed=1,LocalSGDA,eta_y=0.02"
    assert runs[1].config.run.out == str(tmp_path / "runs" / "seed=0,FGDA,gamma=0.02")
    assert runs[1].config.algorithm.gamma(1) == 0.02 and runs[-1].config.seed == 1
    parts = [run.name for part in range(3) for run in select_part(runs, f"{part}/3")]
    assert sorted(parts) == sorted(run.name for run in runs) and runs[0].config.rounds == 3
    assert [run.config.rounds for run in variants(job, ["rounds=7", "sweep.seed=5"])] == [7] * 4


def test_names_distinguish_settings_and_fit_a_file_system(job):
    method = "name='FGDA', gamma=0.01, lam=0.01"
    clash = variants(job, [f"sweep={{algorithm={{{method}, q=[1, 2]}}, problem={{d=[3, 4]}}}}"])
    assert [run.name for run in clash] == ["q=1,d=3", "q=1,d=4", "q=2,d=3", "q=2,d=4"]
    alike = variants(job, [f"sweep={{algorithm={{{method}, q=1}}, 'problem.name'=['Saddle', 'TwoSidedPL']}}"])
    assert [run.name for run in alike] == ["Saddle", "TwoSidedPL"]
    one_more = variants(job, [f"sweep={{algorithm=[{{{method}, q=1}}, {{{method}, q=1, alpha=0.5}}]}}"])
    first = "FGDA,gamma=0.01,lam=0.01,q=1"
    assert [run.name for run in one_more] == [first, f"{first},alpha=0.5"]
    long = variants(
        job, [f"sweep={{'run.data_dir'=['{'a' * 200}', '{'a' * 201}'], 'algorithm'={{{method}, q=1}}}}"]
    )
    assert len({run.name for run in long}) == 2 and all(len(run.name) <= MAX_CHARACTERS for run in long)
    words = [f"sweep={{'run.data_dir'=['{'猫' * 90}', '{'猫' * 89}犬'], 'algorithm'={{{method}, q=1}}}}"]
    wide = [run.name for run in variants(job, words)]
    assert len({*wide}) == 2 and all(len(name.encode()) < 255 for name in wide), "a file system counts bytes"


@pytest.mark.parametrize("values", [
    ["<30", ">30"], ["a/b.csv", "a_b.csv"], ["a b", "a\tb", "a_b"], ["Male", "male"], [1, "1"],
    [["<30"], [">30"]], ["\u00e9", "\u00c9"], ["x" * 300 + "<", "x" * 300 + ">"], [".", ".."],
])  # fmt: skip
def test_different_values_have_different_names(values):
    """Also on file systems that ignore case, and for the trials of a search, each named alone."""
    tables = [{"problem.value": value, "algorithm.name": "FGDA"} for value in values]
    trials = [settings_name({"value": value}) for value in values]
    for names in (folder_names(tables), trials if values[0] not in ("Male", "\u00e9", 1) else []):
        assert len({name.casefold() for name in names}) == len(names)
        assert all(re.fullmatch(r"[\w.,=+-]+", name) and len(name.encode()) < 255 for name in names)
    assert folder_names(tables[:1] * 2)[0] == folder_names(tables[:1] * 2)[1], "the same run twice"
    assert folder_names([{"name": ".."}, {"name": "."}, {"name": "a"}])[2] == "a"
    assert not {".", ".."} & {*folder_names([{"name": ".."}, {"name": "."}])}


def named(*methods, key="algorithm.name", **choices):
    return folder_names([table for method in methods for table in expand({key: method, **choices})])


def test_a_plugin_is_named_by_its_class():
    for plugin in ("./methods/mine.py:Mine", "/home/me/mine.py:Mine", "package.module:Mine"):
        assert named(plugin, seed=[0]) == ["run"]
        names = ["Mine,seed=0", "Mine,seed=1", "FGDA,seed=0", "FGDA,seed=1"]
        assert named(plugin, "FGDA", seed=[0, 1]) == names
        assert named(plugin, "FGDA", key="algorithm") == ["algorithm=Mine", "algorithm=FGDA"]
    assert named("FGDA", **{"run.data_dir": ["a:b", "c"]}) == ["data_dir=a_b", "data_dir=c"]


def test_plugins_with_the_same_class_name_are_distinguished():
    assert named("a.py:Mine", "b.py:Mine", "FGDA") == ["Mine-a", "Mine-b", "FGDA"]
    assert named("pack.a:Mine", "FGDA", "own.py:FGDA") == ["Mine", "FGDA", "FGDA-own"]
    assert named("x/a.py:Mine", "./y/a.py:Mine") == ["Mine-x.a", "Mine-y.a"]
    assert named("/m/a.py:Mine", "a.py:Mine") == ["Mine-m.a", "Mine-a"]
    forms = named("../a.py:Mine", "./a.py:Mine")  # the paths differ in their form only
    assert len({*forms}) == 2 and all(name.startswith("Mine-") for name in forms)


def test_a_hyperparameter_of_some_runs_of_a_method_is_in_their_names():
    methods = [
        {"name": "FGDA", "gamma": 0.1},
        {"name": "FGDA", "gamma": 0.2, "alpha": 0.5},
        {"name": "CDMA", "K": 5},
    ]
    names = ["FGDA,gamma=0.1", "FGDA,gamma=0.2,alpha=0.5", "CDMA"]
    assert folder_names(expand({"algorithm": methods})) == names


def test_a_file_of_a_setting_is_not_in_a_name():
    choices = expand({"problem.dataset": ["./data.py:mine", "digits"]})
    assert folder_names(choices) == ["dataset=mine", "dataset=digits"]


@pytest.mark.parametrize("overrides, says", [
    (["sweep=5"], "has no \\[sweep\\]"),
    (["sweep.algorithm={name='FGDA', q=2, gama=1}"],
     "seed=0: algorithm has no setting 'gama': did you mean 'gamma'"),
    (["sweep.rounds=[1, 0]"], "rounds=0: rounds: Input should be"),
    (["sweep.seed=[1, 1]"], "lists the run .* more than once"),
])  # fmt: skip
def test_errors_are_reported_before_any_run(job, tmp_path, overrides, says):
    with pytest.raises(ConfigError, match=says):
        variants(job, overrides)
    assert not (tmp_path / "runs").exists()


def test_invalid_parts():
    for part in ("3/3", "1", "a/b", "-1/2"):
        with pytest.raises(ConfigError, match="--part: expected I/N"):
            select_part([], part)


def test_a_diverged_run_is_finished(job, tmp_path):
    job.write_text(job.read_text().replace("gamma = [0.01, 0.02]", "gamma = [0.01, 1e30]"))
    first, second = output_of("sweep", job), output_of("sweep", job)
    assert "8 runs are finished, 0 of them before this command; 2 ended in non-finite values" in first
    assert "8 runs are finished, 8 of them before this command; 0 ended" in second
    assert "non-finite value" in load(tmp_path / "runs" / "seed=0,FGDA,gamma=1e+30").stopped
    listed = output_of("sweep", job, "--list", "--part", "1/4").split()
    assert listed == ["seed=0,FGDA,gamma=1e+30", "seed=1,FGDA,gamma=1e+30"]
