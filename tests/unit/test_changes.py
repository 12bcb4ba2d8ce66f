"""Changes to a job: dotted keys, the command line's own, and that a job stays as it was checked."""

import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from mpifed.cli.main import cli
from mpifed.config.job import SECTIONS, Config, ConfigError
from mpifed.config.tables import override


@pytest.mark.parametrize(
    "table, change, changed",
    [
        ({}, "a.b.c=1", {"a": {"b": {"c": 1}}}),
        ({"a": {"b": 1, "c": 2}}, "a.b=3", {"a": {"b": 3, "c": 2}}),
        # A name is short for a table with that name, before and after.
        ({"noise": "gaussian"}, "noise.scale=0.5", {"noise": {"name": "gaussian", "scale": 0.5}}),
        ({"noise": {"name": "gaussian", "scale": 1}}, "noise=stable", {"noise": {"name": "stable"}}),
        ({"noise": "gaussian"}, "noise=stable", {"noise": "stable"}),
        ({"o": {"noise": "gaussian"}}, "o.noise.scale=1", {"o": {"noise": {"name": "gaussian", "scale": 1}}}),
    ],
)
def test_dotted_keys(table, change, changed):
    override(table, change)
    assert table == changed


def test_a_key_through_a_number_is_refused():
    with pytest.raises(ConfigError, match="cannot set rounds.more: rounds is not a table"):
        override({"rounds": 5}, "rounds.more=1")


@pytest.mark.parametrize("given", [None, "/else where"])
def test_a_data_folder_on_the_command_line_is_a_change_like_the_others(monkeypatch, given):
    seen = []

    def load(cls, file, overrides):
        seen.extend(overrides)
        raise ConfigError("seen")

    monkeypatch.setattr(Config, "load", classmethod(load))
    option = ["--data-dir", given] if given else []
    CliRunner().invoke(cli, ["run", "job.toml", "rounds=3", *option])
    assert seen == ["rounds=3", *([f"run.data_dir={given}"] if given else [])]


def test_nothing_of_a_checked_job_can_be_changed():
    config = Config.from_table(
        {"algorithm": {"name": "FGDA", "q": 2}, "problem": {"name": "Saddle", "d": 3, "clients": 2}}
    )
    with pytest.raises(ValidationError, match="frozen"):
        config.rounds = 7
    for name in SECTIONS:
        section = getattr(config, name)
        for field in type(section).model_fields if section is not None else ():
            with pytest.raises(ValidationError, match="frozen"):
                setattr(section, field, None)
