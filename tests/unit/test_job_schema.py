"""`mpifed schema`: job files are valid, misspelt settings are not."""

import json
from pathlib import Path

import jsonschema
import pytest
from commands import output_of

from mpifed.algorithms import ALGORITHMS
from mpifed.cli.catalogue import EXAMPLES
from mpifed.cli.schema import rows_of
from mpifed.config.tables import loads, read_table
from mpifed.problems import PROBLEMS

#: All but the claims, which are no jobs.
JOBS = sorted(
    path for path in (Path(__file__).parents[2] / "jobs").rglob("*.toml") if "claims" not in path.name
)


@pytest.fixture(scope="module")
def schema():
    return json.loads(output_of("schema"))


@pytest.fixture(scope="module")
def validator(schema):
    jsonschema.Draft4Validator.check_schema(schema)
    return jsonschema.Draft4Validator(schema)


def test_every_job_file_and_example_is_valid(validator):
    tables = {str(path): read_table(path) for path in JOBS} | {
        key: loads(text) for key, text in EXAMPLES.items()
    }
    faults = {
        name: [fault.message[:200] for fault in validator.iter_errors(table)]
        for name, table in tables.items()
    }
    assert len(tables) > 30 and not any(faults.values()), faults


@pytest.mark.parametrize("text", [
    "rouns = 3",
    'rounds = "3"',
    "rounds = 0",
    "run.dtype = 'float16'",
    "run.epochs = 3",
    "stop.seconds = -1",
    "clock.bandwidth_up = 'fast'",
    "algorithm = { name = 'FGDA', gama = 0.1 }",
    "algorithm = { name = 'FGAD' }",
    "algorithm = { name = 'FGDA', gamma = -0.1 }",
    "problem = { name = 'MSPBE', gamma = 1 }",
    "problem = { name = 'DeepAUC', partition = { name = 'dirichlet', alfa = 1 } }",
    "oracle.noise = 'gauss'",
])  # fmt: skip
def test_what_is_wrong_is_marked(validator, text):
    assert list(validator.iter_errors(loads(text)))


@pytest.mark.parametrize("text", [
    "stop.seconds = '2h'",
    "stop.seconds = 7200",
    "algorithm = { name = './mine.py:Mine', eta = 0.1 }",
    "algorithm = './mine.py:Mine'",
    "algorithm = { name = 'FGDA', gamma = 'theorem' }",
    "problem = { name = 'DeepAUC', model = './net.py:Net', dataset = './data.py:load' }",
    "sweep = [{ seed = [0, 1] }]",
])  # fmt: skip
def test_what_is_right_is_not(validator, text):
    assert not list(validator.iter_errors(loads(text)))


def test_every_setting_of_methods_and_problems_is_explained(schema):
    for part, members in (("algorithm", ALGORITHMS), ("problem", PROBLEMS)):
        tables = {
            table["title"]: table for table in schema["properties"][part]["anyOf"] if table.get("title")
        }
        assert tables.keys() == members.keys()
        for name, cls in members.items():
            for row in rows_of(cls):
                assert row.effect in tables[name]["properties"][row.name]["description"]
    assert schema["$defs"]["Run"]["properties"]["keep"]["default"] == 3
