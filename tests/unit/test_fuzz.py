"""Job files with faults put in end in a sentence or in a valid configuration, in nothing else, and soon."""

import copy
import json
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from mutations import BUDGET, JOBS, changes, mutated, tables, texts

from mpifed import Config, ConfigError
from mpifed.config.grids import variants
from mpifed.config.tables import override

BASES = tables()
SOURCES = [path.read_bytes() for path in JOBS]
#: Characters of a line of a message: a value, a name, the options that there are. A plugin's own error and
#: a chain of places may make it longer.
LINE, LINES = 1500, 60

within_budget = settings(max_examples=BUDGET, suppress_health_check=list(HealthCheck))


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


@within_budget
@given(mutated(BASES))
def test_tables(table):
    config = outcome(lambda: Config.from_table(copy.deepcopy(table)))
    if config is not None:
        stored = json.loads(json.dumps(config.table()))
        assert Config.from_table(stored).table() == config.table()


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "job.toml"


@within_budget
@given(source=texts(SOURCES))
def test_texts(place, source):
    place.write_bytes(source)
    outcome(lambda: Config.load(place))
    outcome(lambda: variants(place)[:1])


@within_budget
@given(said=changes(BASES))
def test_changes(said):
    def changed():
        table = copy.deepcopy(BASES[0])
        for text in said:
            override(table, text)
        return Config.from_table(table)

    outcome(changed)
