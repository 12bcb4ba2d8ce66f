"""Mutated job files yield a short error message or a valid configuration, and no other errors."""

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
from mpifed.config.tables import apply_override

BASES = tables()
SOURCES = [path.read_bytes() for path in JOBS]
#: Maximum length of a line of a message (a value, a name and the available options), and number of lines.
LINE, LINES = 1500, 60


def within_budget(share: int):
    """Return hypothesis settings with ``BUDGET // share`` examples."""
    return settings(max_examples=max(1, BUDGET // share), suppress_health_check=list(HealthCheck))


def outcome(work):
    """Return the result of ``work``; ``None`` after a ConfigError of bounded length."""
    began = time.perf_counter()
    try:
        result = work()
    except ConfigError as error:
        lines = str(error).splitlines()
        assert lines and len(lines) <= LINES and max(map(len, lines)) <= LINE, str(error)[:5000]
        result = None
    assert time.perf_counter() - began < 20  # an error takes milliseconds; the machine may be busy
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
@given(overrides=changes(BASES))
def test_changes(overrides):
    def changed():
        table = copy.deepcopy(BASES[0])
        for text in overrides:
            apply_override(table, text)
        return Config.from_table(table)

    outcome(changed)


def execute(*words: str) -> tuple[int, str]:
    """Return the exit code and the output of a command in this process."""
    # Scripts are written as bytes.
    output = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(output):
        patch.setattr(sys, "argv", ["mpifed", *words])
        patch.setattr(errors.signal, "signal", lambda *_: None)  # a command ends by ignoring signals
        with contextlib.redirect_stdout(output):
            try:
                main.main()
                code = 0
            except SystemExit as leaving:
                code = leaving.code or 0
    return code, output.buffer.getvalue().decode()


def light(path: Path, overrides: list[str]) -> bool:
    """Return whether the job is invalid or short."""
    try:
        config = Config.load(path, overrides)
    except ConfigError:
        return True
    counts = [value for value in vars(config.algorithm).values() if isinstance(value, int)]
    of = config.problem
    nbytes = of.footprint() + of.clients * of.client_footprint()
    synthetic = nbytes < 2**24 and not hasattr(of, "dataset")
    return synthetic and max(counts, default=0) < 50 and not config.run.tensorboard


@within_budget(8)
@given(command=st.sampled_from(["run", "sweep", "resume", "launch", "info"]), data=st.data())
def test_commands(tmp_path_factory, command, data):
    """On a mutated job file, with mutated changes, or both: exit code 2 with a message, or 0."""
    inner = tmp_path_factory.mktemp("fuzz") / "a" / "b" / "c"  # so that ../.. is a temporary folder, too
    inner.mkdir(parents=True)
    source = data.draw(st.one_of(st.sampled_from(SOURCES), texts(SOURCES)))
    overrides = data.draw(st.one_of(st.just([]), changes(BASES[:1])))
    path = inner / "job.toml"
    path.write_bytes(source)
    if command in ("sweep", "launch"):
        words = [command, str(path), "--list" if command == "sweep" else "--dry-run"]
    else:
        words = [command, str(path)]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(inner)
        overrides = [*overrides, "rounds=1", "run.progress=false", "run.device=cpu"]
        if command == "run" and not light(path, overrides):
            return
        code, text = execute(*words, "--", *overrides)
    assert code in (0, 2, 3) and "Traceback" not in text, text[:3000]
    assert code != 2 or max(map(len, text.splitlines())) <= LINE, text[:3000]
