"""Job files with faults put in end in a sentence or in a valid configuration, in nothing else, and soon."""

import contextlib
import copy
import io
import json
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import BUDGET, JOBS, changes, mutated, tables, texts

from mpifed import Config, ConfigError
from mpifed.cli import errors, main
from mpifed.config.grids import variants
from mpifed.config.tables import override

BASES = tables()
SOURCES = [path.read_bytes() for path in JOBS]
#: Characters of a line of a message: a value, a name, the options that there are. A plugin's own error and
#: a chain of places may make it longer.
LINE, LINES = 1500, 60


def within_budget(share: int):
    """As many examples as there is time for: the budget over what one takes."""
    return settings(max_examples=max(1, BUDGET // share), suppress_health_check=list(HealthCheck))


def outcome(work):
    """What the work returns, ``None`` after a sentence of bounded length."""
    began = time.perf_counter()
    try:
        result = work()
    except ConfigError as error:
        lines = str(error).splitlines()
        assert lines and len(lines) <= LINES and max(map(len, lines)) <= LINE, str(error)[:5000]
        result = None
    assert time.perf_counter() - began < 20  # a sentence takes milliseconds; the machine may be busy
    return result


@within_budget(1)
@given(mutated(BASES))
def test_tables(table):
    config = outcome(lambda: Config.from_table(copy.deepcopy(table)))
    if config is not None:
        stored = json.loads(json.dumps(config.table()))
        assert Config.from_table(stored).table() == config.table()


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "job.toml"


@within_budget(4)
@given(source=texts(SOURCES))
def test_texts(place, source):
    place.write_bytes(source)
    outcome(lambda: Config.load(place))
    outcome(lambda: variants(place)[:1])


@within_budget(1)
@given(said=changes(BASES))
def test_changes(said):
    def changed():
        table = copy.deepcopy(BASES[0])
        for text in said:
            override(table, text)
        return Config.from_table(table)

    outcome(changed)


def commanded(*words: str) -> tuple[int, str]:
    """The exit code of a command in this process, and what it says."""
    said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)  # scripts go as bytes
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(said):
        patch.setattr(sys, "argv", ["mpifed", *words])
        patch.setattr(errors.signal, "signal", lambda *_: None)  # at its end a command turns signals away
        with contextlib.redirect_stdout(said):
            try:
                main.main()
                code = 0
            except SystemExit as leaving:
                code = leaving.code or 0
    return code, said.buffer.getvalue().decode()


def light(path: Path, said: list[str]) -> bool:
    """Whether the job is wrong, or done in a moment."""
    try:
        config = Config.load(path, said)
    except ConfigError:
        return True
    counts = [value for value in vars(config.algorithm).values() if isinstance(value, int)]
    synthetic = config.problem.footprint() < 2**24 and not hasattr(config.problem, "dataset")
    return synthetic and max(counts, default=0) < 50 and not config.run.tensorboard


@within_budget(8)
@given(command=st.sampled_from(["run", "sweep", "resume", "launch", "info"]), data=st.data())
def test_commands(tmp_path_factory, command, data):
    """On a job file with faults, changes with faults, or both: exit code 2 and a sentence, or 0."""
    inner = tmp_path_factory.mktemp("fuzz") / "a" / "b" / "c"  # so that ../.. is a place of its own
    inner.mkdir(parents=True)
    source = data.draw(st.one_of(st.sampled_from(SOURCES), texts(SOURCES)))
    said = data.draw(st.one_of(st.just([]), changes(BASES[:1])))
    path = inner / "job.toml"
    path.write_bytes(source)
    if command in ("sweep", "launch"):
        words = [command, str(path), "--list" if command == "sweep" else "--dry-run"]
    else:
        words = [command, str(path)]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(inner)
        said = [*said, "rounds=1", "run.progress=false", "run.device=cpu"]
        if command == "run" and not light(path, said):
            return
        code, text = commanded(*words, "--", *said)
    assert code in (0, 2, 3) and "Traceback" not in text, text[:3000]
    assert code != 2 or max(map(len, text.splitlines())) <= LINE, text[:3000]
