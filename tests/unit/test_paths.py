"""Paths that users give: the home folder, ``pathlib.Path``, and folders that are not for output."""

from pathlib import Path

import click
import pytest
from saddle_job import table

from mpifed import Config, ConfigError, frame, load, resume, run
from mpifed.base.paths import expand_home
from mpifed.base.plugins import load_file
from mpifed.base.settings import UserPath
from mpifed.cli.export import export
from mpifed.cli.main import cli
from mpifed.cli.options import HomePath
from mpifed.config.grids import variant_tables
from mpifed.config.job import summarise
from mpifed.config.tables import read_job, read_table
from mpifed.core.participation import Trace
from mpifed.data.image_folder import UserFolder
from mpifed.data.leaf import Leaf
from mpifed.data.sources import opened
from mpifed.data.user_tables import UserTable, UserTexts
from mpifed.parallel.comm import CollectiveError
from mpifed.report.report import report
from mpifed.storage.status import find_statuses


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The home folder; the current folder is another one, which must stay empty."""
    (tmp_path / "home").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    yield tmp_path / "home"
    assert not list((tmp_path / "here").iterdir())


@pytest.mark.parametrize("path", ["~/a", Path("~/a"), "~"])
def test_the_home_folder(home, path):
    assert expand_home(path) == str(home / Path(*Path(path).parts[1:]))


@pytest.mark.parametrize("path", ["a~", "$HOME/a", "a/~/b", ""])
def test_nothing_else_is_expanded(home, path):
    assert expand_home(path) == path


def test_an_unknown_home_folder(home):
    with pytest.raises(ConfigError, match="there is no home folder '~nobody-here'; .* is './~nobody-here/a'"):
        expand_home("~nobody-here/a")


def _config(**run) -> Config:
    return Config.from_table(table("") | {"run": {"out": "runs/a"} | run})


#: Setting → a function that returns its value if "~/x.csv" (or another suffix) was given.
SETTINGS = {
    "run.out": lambda path: _config(out=path("x")).run.out,
    "run.data_dir": lambda path: _config(data_dir=path("x")).run.data_dir,
    "initial": lambda path: Config.from_table(table("a") | {"initial": path("x.safetensors")}).initial,
    "table.file": lambda path: UserTable(file=path("x.csv"), test=0.2).file,
    "table.test": lambda path: UserTable(file="a.csv", test=path("x.csv")).test,
    "table.validation": lambda path: UserTable(file="a.csv", test=0.2, validation=path("x.csv")).validation,
    "texts.file": lambda path: UserTexts(file=path("x.csv"), test=0.2).file,
    "folder.path": lambda path: UserFolder(path=path("x")).path,
    "leaf.path": lambda path: Leaf(path=path("x")).path,
    "trace.file": lambda path: Trace(file=path("x.csv")).file,
    "summary of a job": lambda path: summarise(table(str(path("x")))).out,
}


@pytest.mark.parametrize("kind", [str, Path])
@pytest.mark.parametrize("name", SETTINGS)
def test_settings(home, name, kind):
    value = SETTINGS[name](lambda end: kind(f"~/{end}"))
    assert type(value) is str and Path(value).parent == home


def test_every_setting_that_is_a_path_is_declared_as_such():
    """Fields called file, path, folder, out or data_dir; a new one is added to SETTINGS."""
    from mpifed.base.settings import FolderPath, OutputFolder, settings_of
    from mpifed.config.job import SECTIONS
    from mpifed.core.participation import AVAILABILITY_MODELS
    from mpifed.data.registry import USER_DATASETS, USER_TEXTS
    from mpifed.problems import PROBLEMS

    classes = [*SECTIONS.values(), *AVAILABILITY_MODELS.values(), *USER_DATASETS.values()]
    classes += [*USER_TEXTS.values(), *PROBLEMS.values()]
    fields = {
        name: field
        for cls in classes
        for name, field in settings_of(cls).items()
        if name in ("file", "path", "folder", "out", "data_dir")
    }
    assert fields.keys() == {"file", "path", "out", "data_dir"}
    validators = {part for kind in (UserPath, FolderPath, OutputFolder) for part in kind.__metadata__}
    for name, field in fields.items():
        assert validators & {*field.metadata} or "Validator" in str(field.annotation), name


def test_calls_in_python(home):
    """A run, its continuation and its results; a job file; a report; the folder of all data sets."""
    first = run(table(Path("~/runs/a"), rounds=2))
    assert first.path.parent == home / "runs/a"
    assert resume("~/runs/a", ["rounds=3"]).round == load("~/runs/a").round == 3
    assert len(frame(Path("~/runs")))
    assert all(file.parent == home / "report" for file in report(["~/runs/a"], "~/report"))
    (home / "job.toml").write_text("rounds = 7\n", encoding="utf-8")
    assert read_table("~/job.toml") == {"rounds": 7}
    (home / "own.py").write_text("value = 3\n", encoding="utf-8")
    assert load_file("~/own.py").value == 3
    with opened("a", "", "~/data") as source:
        assert home / "data" in source.folders


def test_the_environment_variable(home, monkeypatch):
    monkeypatch.setenv("MPIFED_DATA", "~/data")
    with opened("a", "", None) as source:
        assert source.folders[0] == home / "data/a"


def _commands(group, prefix=()):
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _commands(command, (*prefix, name))
        else:
            yield " ".join((*prefix, name)), command


def test_paths_on_the_command_line(home):
    """A shell does not expand --to=~/x."""
    kinds = {(name, param.name): param.type for name, command in _commands(cli) for param in command.params}
    paths = {place for place, kind in kinds.items() if isinstance(kind, click.Path)}
    assert len(paths) > 10 and all(isinstance(kinds[place], HomePath) for place in paths)
    places = ("out", "to", "figure", "latex", "labels", "path", "places", "folder", "run", "file", "job")
    assert {place for place in kinds if place[1] in places} <= paths
    arguments = export.make_context("export", ["~/runs/a", "--to=~/a.safetensors"]).params
    assert (arguments["run"], arguments["to"]) == (str(home / "runs/a"), str(home / "a.safetensors"))


@pytest.mark.parametrize(
    "out, name", [("/", "root"), ("/tmp/..", "root"), ("~", "home"), ("../home/.", "home")]
)
@pytest.mark.parametrize("kind", ["run", "sweep", "report"])
def test_folders_that_are_not_for_output(home, tmp_path, out, name, kind):
    job = tmp_path / "job.toml"
    job.write_text('rounds = 1\nalgorithm = "FGDA"\nproblem = "Saddle"\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=f"expected a folder .*, got .*, which is the {name} folder"):
        if kind == "run":
            Config.from_table(table(out))
        elif kind == "sweep":
            variant_tables(job, [f"run.out={out}", "sweep.seed=[0, 1]"])
        else:
            report([run(table(tmp_path / "runs", rounds=1)).path], out)


def test_a_change_of_a_job(home, tmp_path):
    (tmp_path / "job.toml").write_text("", encoding="utf-8")
    table = read_job(tmp_path / "job.toml", ["run.out=~/a"])
    assert table == {"run": {"out": "~/a"}}, "as stored in a script"


def test_a_folder_with_the_name_of_the_home_folder(tmp_path, monkeypatch):
    """Earlier versions created it. Only what users write is expanded."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert expand_home("./~") == str(tmp_path / "~")
    assert run(table("./~/a", rounds=2)).path == tmp_path / "~/a/run.h5"
    assert resume("./~/a", ["rounds=3"]).round == load("./~/a").round == 3
    assert [(str(run.folder), run.state) for run in find_statuses(["."])] == [("~/a", "finished")]
    assert len(frame(".")) == len(frame("./~"))


def test_a_file_of_a_run_is_not_its_folder(tmp_path):
    file = run(table(tmp_path / "a", rounds=2)).path
    with pytest.raises(CollectiveError, match="run.h5 is not a folder: expected the folder of a run"):
        resume(file)
