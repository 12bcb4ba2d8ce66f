"""User-defined classes: how they are found and identified, and how errors in them are reported."""

import hashlib
import json
import math
import os
import subprocess
import sys

import pytest

import mpifed
from mpifed import Config, ConfigError
from mpifed.algorithms import LocalSGDA
from mpifed.base.plugins import data_folder, plugin_of
from mpifed.base.settings import title
from mpifed.cli.main import main
from mpifed.config.plugins import changed_sources, expect_same_sources, find_class, name_of
from mpifed.parallel.comm import SerialComm
from mpifed.problems import Saddle as PackageSaddle
from mpifed.simulation import setup

#: A problem with the name of a problem of the package and another starting point.
PLUGIN = """
from dataclasses import dataclass
from mpifed.problems import Saddle as Base

@dataclass
class Saddle(Base):
    \"\"\"A user-defined saddle.\"\"\"
    c: float = 1.0

    def initial(self, rng):
        return {block: self.c * v for block, v in super().initial(rng).items()}
"""
METHOD = {"name": "LocalSGDA", "q": 2, "eta_x": 0.01, "eta_y": 0.01}
JOB = 'algorithm = { name = "LocalSGDA", q = 2, eta_x = 0.01, eta_y = 0.01 }\n'


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(PLUGIN)
    return path


def table(problem, out="runs/none", **settings) -> dict:
    return {
        "rounds": 4,
        "algorithm": METHOD,
        "problem": {"name": str(problem), "clients": 3, "d": 4},
        "oracle": {"batch_size": 0},
        "run": {"out": str(out), "progress": False, "checkpoint_every": 2, "dtype": "float64"},
        **settings,
    }


def run(problem, out, **settings):
    return mpifed.run(Config.from_table(table(problem, out, **settings)), SerialComm())


def command_line(monkeypatch, capsys, *words) -> str:
    """Run a command that ends with exit code 2; return its standard error."""
    monkeypatch.setattr(sys, "argv", ["mpifed", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        main()
    text = capsys.readouterr().err
    assert end.value.code == 2 and "Traceback" not in text, text
    return text


def test_classes_of_the_package_are_identified_by_name():
    config = Config.from_table(table("Saddle"))
    assert "plugins" not in config.table() and config.table()["problem"]["name"] == "Saddle"
    assert plugin_of(PackageSaddle) is None
    assert title(config.problem) == name_of(config.problem) == "Saddle"


def test_stored_settings_lack_those_that_a_class_fixes():
    stored = Config.from_table(table("Saddle", algorithm={"name": "FGDA", "q": 3})).table()
    assert stored["algorithm"]["q"] == 3 and not {"matrix", "first_matrix"} & set(stored["algorithm"])
    assert Config.from_table(stored).table() == stored and "plugins" not in stored
    with pytest.raises(ConfigError, match="algorithm has no setting 'matrix'"):
        Config.from_table(table("Saddle", algorithm={"name": "FGDA", "q": 3, "matrix": "adam"}))


def test_a_class_of_a_file_is_identified_by_path_and_digest(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    config = Config.from_table(table("./mine.py:Saddle"))
    stored = config.table()
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert stored["problem"]["name"] == f"{file}:Saddle" and title(config.problem) == "Saddle"
    assert stored["plugins"] == {"problem": {"name": f"{file}:Saddle", "digest": digest}}
    assert Config.from_table(json.loads(json.dumps(stored))).table() == stored
    from_objects = Config(algorithm=config.algorithm, problem=config.problem)
    assert from_objects.table()["plugins"] == stored["plugins"]
    file.write_text(PLUGIN + "# edited\n")  # during the run
    assert config.table() == stored
    assert Config.from_table(stored).table()["plugins"] != stored["plugins"]


def test_a_class_of_a_module_is_identified_by_its_name(tmp_path, monkeypatch):
    inner = tmp_path / "some_package" / "inner.py"
    inner.parent.mkdir()
    (inner.parent / "__init__.py").touch()
    inner.write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    stored = Config.from_table(table("some_package.inner:Saddle")).table()
    assert stored["problem"]["name"] == "some_package.inner:Saddle"
    expect_same_sources(stored)
    inner.write_text(PLUGIN + "# edited\n")
    with pytest.raises(ConfigError, match="the source of problem some_package.inner:Saddle has changed"):
        expect_same_sources(stored)


def test_a_nested_class_is_identified_by_its_qualified_name(file):
    file.write_text(PLUGIN + "\nclass Holder:\n    @dataclass\n    class Inner(Saddle):\n        pass\n")
    stored = Config.from_table(table(f"{file}:Holder.Inner")).table()
    assert stored["problem"]["name"] == f"{file}:Holder.Inner"
    assert Config.from_table(stored).table() == stored


def test_entry_points(file, monkeypatch):
    """An installed package may name its class; a run stores the module and the class."""
    package = file.with_name("plugin_package-1.dist-info")
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin-package\nVersion: 1\n")
    (package / "entry_points.txt").write_text(
        "[mpifed.problems]\nOwnSaddle = plugin_module:Saddle\nBroken = plugin_broken:Saddle\n"
    )
    file.with_name("plugin_module.py").write_text(PLUGIN)
    file.with_name("plugin_broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(file.parent)
    assert Config.from_table(table("OwnSaddle")).table()["problem"]["name"] == "plugin_module:Saddle"
    with pytest.raises(ConfigError, match="did you mean 'OwnSaddle'"):
        find_class("OwnSadle", "problem")
    with pytest.raises(ConfigError, match="Broken cannot be loaded: ZeroDivisionError: .*\n.*plugin_broken"):
        find_class("Broken", "problem")


def test_a_file_is_executed_once_for_each_state(file):
    first = find_class(f"{file}:Saddle", "problem")
    assert find_class(f"{file}:Saddle", "problem") is first
    file.write_text(PLUGIN.replace("c: float", "cc: float"))
    assert find_class(f"{file}:Saddle", "problem").__dataclass_fields__.keys() >= {"cc"}
    file.write_text("import nothing_of_this_name\n")
    with pytest.raises(ConfigError):
        find_class(f"{file}:Saddle", "problem")


def test_modules_in_the_same_folder_can_be_imported(tmp_path):
    (tmp_path / "neighbour_of_mine.py").write_text("SCALE = 3.0\n")
    (tmp_path / "late_neighbour.py").write_text("SCALE = 5.0\n")
    file = tmp_path / "mine.py"
    file.write_text(
        "from neighbour_of_mine import SCALE\n"
        + PLUGIN.replace("class Saddle", "class Mine").replace("c: float = 1.0", "c: float = SCALE")
        + "\n    def late(self):\n        import late_neighbour\n        return late_neighbour.SCALE\n"
    )
    problem = Config.from_table(table(f"{file}:Mine")).problem
    assert problem.c == 3.0 and problem.late() == 5.0
    assert sys.path[0] != str(tmp_path), "a neighbour must not hide an installed module later"


def test_files_of_the_same_name_and_their_neighbours(tmp_path):
    """Two neighbours of one name are refused: the second file would import the first file's neighbour."""
    for folder, scale in (("a", 1.0), ("b", 2.0)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(PLUGIN.replace("1.0", str(scale)))
        (tmp_path / folder / "same_neighbour.py").write_text(f"FOLDER = '{folder}'\n")
        (tmp_path / folder / f"{folder}.py").write_text("import same_neighbour\n" + PLUGIN)
    first, second = (find_class(f"{tmp_path / folder}/mine.py:Saddle", "problem") for folder in "ab")
    assert first.__module__ != second.__module__ and (first(clients=2).c, second(clients=2).c) == (1.0, 2.0)
    assert sys.modules[first.__module__].Saddle is first
    find_class(f"{tmp_path}/a/a.py:Saddle", "problem")
    with pytest.raises(ConfigError, match="imports 'same_neighbour': expected .*b/same_.* but .*a/same_"):
        find_class(f"{tmp_path}/b/b.py:Saddle", "problem")


@pytest.mark.parametrize("source, says", [
    ("x = (\n", ["SyntaxError: '(' was never closed", 'mine.py", line 1']),
    ("import no_such_module_at_all\n", ["ModuleNotFoundError: No module named", 'mine.py", line 1']),
    ("import faulty_neighbour\n", ["SyntaxError", 'mine.py", line 1', 'faulty_neighbour.py", line 1']),
    ("def f():\n    return 1 / 0\n\n\nf()\n", ["ZeroDivisionError", "line 2, in f", "return 1 / 0"]),
    ("raise SystemExit(0)\n", ["SystemExit: 0", 'mine.py", line 1']),
    (PLUGIN + "    d = undefined\n", ["NameError: name 'undefined'", "in Saddle", "d = undefined"]),
    (PLUGIN + "    def __post_init__(self):\n        self.nothing\n",
     ["problem Saddle cannot be created: AttributeError", "in __post_init__", "self.nothing"]),
    (PLUGIN + "    def __post_init__(self):\n        int('x')\n",
     ["invalid literal for int()", "in __post_init__", "int('x')"]),
    (PLUGIN.replace("class Saddle", "class Sadle"),
     ["has no 'Saddle': did you mean 'Sadle'? (options: Sadle)"]),
    ("class Saddle:\n    pass\n", ["expected a subclass of mpifed.Problem"]),
])  # fmt: skip
def test_errors_show_the_lines_of_the_plugin_only(file, source, says, monkeypatch, capsys):
    file.write_text(source)
    file.with_name("faulty_neighbour.py").write_text("def f(:\n")
    job = file.with_name("job.toml")
    job.write_text(JOB)
    text = command_line(monkeypatch, capsys, "run", job, f"problem.name={file}:Saddle")
    assert all(words in text for words in says), text
    assert str(mpifed.__path__[0]) not in text and "importlib" not in text, text


def test_a_run_of_a_user_defined_class_can_be_resumed(file, tmp_path):
    """The class has the name of a class of the package, which ends at another point."""
    whole = run(f"{file}:Saddle", tmp_path / "whole", rounds=6)
    run(f"{file}:Saddle", tmp_path / "run")
    resumed = mpifed.resume(tmp_path / "run", ["rounds=6"], SerialComm())
    assert all((resumed.point[block] == whole.point[block]).all() for block in "xy")
    assert type(find_class(f"{file}:Saddle", "problem")(clients=3)).__mro__[1] is PackageSaddle


def test_a_run_cannot_be_resumed_with_another_source(file, tmp_path, monkeypatch, capsys):
    out, job = tmp_path / "run", tmp_path / "job.toml"
    job.write_text(
        f'rounds = 4\nproblem = {{ name = "{file}:Saddle", clients = 3 }}\n{JOB}'
        f'[run]\nout = "{out}"\nprogress = false\n'
    )
    mpifed.run(Config.load(job), SerialComm())
    file.write_text(PLUGIN.replace("self.c *", "2 * self.c *"))
    for words in (("run", job, "rounds=6"), ("resume", out, "rounds=6")):
        text = command_line(monkeypatch, capsys, *words)
        assert f"the source of problem {file}:Saddle has changed" in text, text
        assert "run.overwrite=true" in text and text.count("\n") == 1, text
    mpifed.run(Config.load(job, ["run.overwrite=true"]), SerialComm())
    file.unlink()
    text = command_line(monkeypatch, capsys, "resume", out, "rounds=6")
    assert f"there is no file {file}: restore it" in text, text


def test_a_local_class_is_continued_from_python_only(tmp_path):
    class Saddle(PackageSaddle):
        pass

    def started(rounds):
        settings = {"out": str(tmp_path / "run"), "progress": False}
        method = LocalSGDA(q=2, eta_x=0.01, eta_y=0.01)
        config = Config(algorithm=method, problem=Saddle(clients=3), rounds=rounds, run=settings)
        assert "<locals>.Saddle" in config.table()["problem"]["name"]
        return mpifed.run(config, SerialComm())

    started(4)
    with pytest.raises(ConfigError, match="<locals>.Saddle cannot be imported again: continue with its"):
        mpifed.resume(tmp_path / "run", ["rounds=6"], SerialComm())
    assert started(6).costs["round"][-1] == 6


def test_a_plugin_that_a_change_replaces_is_not_compared(file):
    stored = Config.from_table(table(f"{file}:Saddle")).table()
    file.unlink()
    with pytest.raises(ConfigError) as refused:
        expect_same_sources(stored)
    # The named change is that of `mpifed resume`.
    assert f"there is no file {file}: restore it" in str(refused.value)
    assert str(refused.value).endswith(f" problem.name=FOLDER/{file.name}:Saddle")
    expect_same_sources(stored | {"problem": "Saddle"})


def test_a_users_problem_gets_the_data_folder_of_the_environment(monkeypatch):
    """The readers of the package search it themselves, and other folders if it lacks a data set."""

    folders = []

    @mpifed.problem_settings
    class Own(PackageSaddle):
        def prepare(self, seed, data_dir=None):
            folders.append(data_dir)
            PackageSaddle.prepare(self, seed, data_dir)

    monkeypatch.setenv("MPIFED_DATA", "~/data")
    monkeypatch.setattr(setup, "FAST", math.inf)  # also on a busy machine
    folder = os.path.expanduser("~/data")
    assert data_folder(Own, None) == folder and data_folder(Own, "here") == "here"
    assert data_folder(PackageSaddle, None) is None
    mpifed.Simulation(Own(clients=2), LocalSGDA(q=1, eta_x=0.1, eta_y=0.1), comm=SerialComm())
    assert folders == [folder] * 2  # a fast one is called twice


def test_a_missing_file_of_metrics_is_named_with_the_whole_list():
    metrics = ["auc", {"name": "/gone/mine.py:error"}]
    table = {"plugins": {"metrics.1": {"name": "/gone/mine.py:error", "digest": "0"}}, "metrics": metrics}
    with pytest.raises(ConfigError) as refused:
        expect_same_sources(table)
    assert str(refused.value).endswith("""'metrics=["auc", "FOLDER/mine.py:error"]'""")


def test_classes_without_a_source_are_never_equal():
    old = {"plugins": {"problem": {"name": "__main__:Saddle", "digest": ""}}}
    assert "has no source file" in changed_sources(old, old)[0]
    with pytest.raises(ConfigError, match="cannot be imported again"):
        expect_same_sources(old | {"problem": {"name": "__main__:Saddle"}})


SCRIPT = """
import sys, mpifed
from mpifed.algorithms import LocalSGDA
if __name__ == "__main__":
    run = {"out": sys.argv[1], "progress": False}
    method = LocalSGDA(q=2, eta_x=0.01, eta_y=0.01)
    mpifed.run(mpifed.Config(algorithm=method, problem=Saddle(clients=3), rounds=4, run=run))
    print(mpifed.resume(sys.argv[1], ["rounds=6"]).costs["round"][-1])
"""


def test_a_class_of_the_running_script(tmp_path):
    """The class is identified by the script's file, from which every process can import it."""
    script, out = tmp_path / "script.py", tmp_path / "run"
    own = PLUGIN.replace("@dataclass", "@problem_settings").replace(
        "from dataclasses import dataclass", "from mpifed.base.settings import problem_settings"
    )
    script.write_text(own + SCRIPT)
    done = subprocess.run([sys.executable, script, out], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.strip() == "6", done.stderr
    assert mpifed.resume(out, ["rounds=8"], SerialComm()).costs["round"][-1] == 8
