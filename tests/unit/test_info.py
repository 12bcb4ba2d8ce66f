"""`mpifed info`: settings of sections and classes, the page of all settings, and citations."""

from __future__ import annotations

import dataclasses
import hashlib
import re

import pytest
import torch
from commands import output_of
from everything import SETTINGS, problem

import methods_table
from mpifed.base.settings import settings_of
from mpifed.cli.catalogue import EXAMPLES, GROUPS, TOP_LEVEL
from mpifed.cli.schema import rows_of
from mpifed.config.grids import expand
from mpifed.config.job import SECTIONS, Config
from mpifed.config.space import space_of
from mpifed.config.tables import loads
from mpifed.config.tuning import Tune
from mpifed.core.problem import starting_point

#: Digest of the names, values and defaults of all settings. Job files of users rely on them.
DECLARED = "0ce62bbeffab8b1f"


def info(*words) -> str:
    return output_of("info", *words)


def test_the_settings_page_has_every_setting_once_with_its_description():
    """A table for each class in its section or group, whose rows also have values and a default."""
    shown, declared = [], set()
    for part in re.split(r"^##+ ", info("settings"), flags=re.M)[1:]:
        heading, *lines = part.splitlines()
        for line in (line for line in lines if line.startswith("| `")):
            name, values, default, effect = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
            assert values and default, (heading, line)
            declared.add(f"{heading}|{name}|{values}|{default}\n")
            shown.append((heading.strip("`[]"), name.strip("`"), effect.replace(r"\|", "|")))
    members = [member for group in GROUPS.values() for member in group.members.items()]
    classes = [
        *SECTIONS.items(),
        ("tune", Tune),
        *((name, cls) for name, cls in members if isinstance(cls, type)),
    ]
    top_level = {name: field for name, field in settings_of(Config).items() if name in TOP_LEVEL}
    fields = [("The run as a whole", top_level), *((name, settings_of(cls)) for name, cls in classes)]
    assert shown == [(place, name, field.description) for place, own in fields for name, field in own.items()]
    digest = hashlib.sha256("".join(sorted(declared)).encode()).hexdigest()[:16]
    change = f"a name, value or default differs: if wanted, add it to CHANGELOG.md, DECLARED = {digest!r}"
    assert digest == DECLARED, change


def test_the_table_of_methods_is_current():
    page = methods_table.PAGE.read_text(encoding="utf-8")
    assert methods_table.table() in page, "run python scripts/evidence/methods_table.py"


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_shows_every_setting(name):
    shown = {line.split()[0] for line in info(name).splitlines() if line.strip()}
    assert set(SECTIONS[name].model_fields) <= shown


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_of_a_section_is_valid(name):
    assert EXAMPLES[name] in info(name)
    base = {
        "algorithm": {"name": "LocalSGDA", "q": 2, "eta_x": 0.1, "eta_y": 0.1},
        "problem": {"name": "Saddle", "clients": 8},
    }
    table = base | loads(EXAMPLES[name])
    if name == "sweep":
        assert len(expand(table["sweep"])) == 6
    elif name == "tune":
        space = space_of(table["tune"]["methods"][0])
        assert {*space.open} == {"alpha", "gamma", "lam", "beta"} and space.fixed == {"q": 10}
    else:
        Config.from_table(table)


@pytest.mark.parametrize("name", ["tune", "theory", "FGDA", "DeepAUC", "mnist", "zhang-gao-76"])
def test_prose_is_wrapped_at_the_width_of_the_terminal(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = info(name).partition("\nFor example:")[0]
    assert max(map(len, text.splitlines())) <= 80


def test_entries_and_blocks_of_a_docstring():
    assert " • train, test: numbers of images." in info("mnist")
    assert "with label ±1 is:" in (text := info("DeepAUC")) and "\n (1-p) [(h - a)²" in text


def test_where_y_is_projected(monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    assert "projection of y: at the clients\n" in info("LocalSGDA")
    assert "projection of y: at the server, so clients may see different coordinates of y" in info("AFL")
    assert "projection" not in info("STEM").split("bytes up and down")[0].rpartition("cost per client")[2]
    line = next(line for line in info("ClientMixture").splitlines() if "different coordinates" in line)
    assert line.startswith("clients see different coordinates of y: for methods that project at the server (")
    assert "AFL" in line and "LocalSGDA" not in line


@pytest.mark.parametrize("name", SETTINGS)
def test_the_names_of_metrics_are_those_that_the_problem_returns(name):
    (made := problem(name)).prepare(0)
    variables = made.variables()
    point = [
        variables.unflatten(block, flat)
        for block, flat in zip(variables, starting_point(made, torch.float64))
    ]
    scores = made.predict(*point, slice(0, made.test_rows)) if made.test_rows else None
    returned = {re.sub("(?<=^error_)(small|large)$", "GROUP", one) for one in made.metrics(*point, scores)}
    of_other_settings = {
        "FairClassification": {"accuracy_gap", "loss_gap", "error_GROUP", "loss_GROUP"},  # with groups
        "AffineGame": {"err_D_slack"},  # with a convex part
        "Bilinear": {"err_D_slack"},
    }
    assert set(made.metric_names) == returned | of_other_settings.get(name, set())
    assert made.maximised <= returned


def test_metrics_of_a_problem(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    text = info("DataCleaning")
    assert "  maximised: accuracy, worst_accuracy, f1\n" in text and "  minimised" not in text
    assert "validation_accuracy; with run.evaluate_on train_accuracy, client_accuracy_mean\n" in text
    assert "the smallest of any class" in text, "the docstring of metrics()"
    text = info("Saddle")
    assert "  minimised: error, x_error, y_error\n" in text
    assert "  maximised" not in text and "validation_" not in text
    (tmp_path / "own.py").write_text(
        "from mpifed.problems import DeepAUC\n\n\n"
        "class Own(DeepAUC):\n"
        "    def metrics(self, x, y, predictions):\n"
        "        return {'auc': 0.5, 'mean': 0.0}\n"
    )
    text = info(f"{tmp_path / 'own.py'}:Own")
    assert "  maximised: auc\n  minimised: all others\n" in text


@pytest.mark.parametrize(
    "name, family",
    [("Classification", "minimisation"), ("DeepAUC", "minimax"), ("FedAvg", "minimisation")],
)
def test_problem_families(name, family):
    assert f"problem family: {family}\n" in info(name)


def test_the_default_output(monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    rules = {
        "FedAvg": "the last iterate",
        "DRFA": "the average of the iterates after each round",
        "AFL": "the average of the iterates after each round",  # a subclass of a method with the last iterate
        "FedExP": "the average in shared.last_two",
        "LSGD": "the average in shared.average",
    }
    for name, rule in rules.items():
        assert f"output, unless the job sets it: {rule}\n" in info(name)


def test_a_subclass_has_its_own_cost(monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    assert "up and down T|y| + |x|; T + 1 phases" in info("LFedNestBilevel")
    assert "2T + J + 3 phases" not in info("LFedNestBilevel")


@pytest.mark.parametrize("plural", GROUPS)
def test_a_group_lists_its_members(plural):
    group = GROUPS[plural]
    for word in filter(None, (plural, group.singular, group.setting)):
        output = info(word)
        assert all(name in output for name in group.members)
        assert "For example: " in output or not group.setting


def test_single_settings_and_choices():
    assert "number of clients that a rank steps" in info("run.group")
    assert "checkpoint_every" not in info("run.group")
    assert "bernoulli" in info("participation.availability")
    assert 'text such as "10MB/s"' in info("clock.bandwidth_up")
    assert "the last iterate, the average" in info("output")
    assert 'problem.partition = { name = "dirichlet", alpha = 0.1 }' in info("dirichlet")
    assert "constants: L, sigma, K, R, M, D" in info("wang-kale-2")
    assert "up D; down D" in info("LocalSGDA") and "partial participation: yes" in info("LocalSGDA")
    assert "Huang et al. 2024, Algorithm 1" in info("AdaFGDA") and "required" in info("AdaFGDA")


def test_a_user_defined_class_with_an_undefined_annotation():
    @dataclasses.dataclass
    class Own:
        K: NotThere  # noqa: F821
        eta: float = 0.1

    assert [(row.name, row.values, row.default) for row in rows_of(Own)] == [
        ("K", "", "required"),
        ("eta", "", "0.1"),
    ]


@pytest.mark.parametrize("name, keys", [
    ("WGAN", ["@inproceedings{shen2024fessgda", "@inproceedings{arjovsky2017wgan"]),
    ("sst2", ["@inproceedings{socher2013sst"]),
    ("digits", ["the bibliography has no source of digits"]),
])  # fmt: skip
def test_citations(name, keys):
    output = info(name, "--cite")
    assert all(key in output for key in keys), output


@pytest.mark.parametrize("base, group", [("Algorithm", "methods"), ("Minimax", "problems")])
def test_a_user_defined_class(base, group, tmp_path):
    file = tmp_path / "own.py"
    fields = 'shared = message = Record(x="x")' if base == "Algorithm" else ""
    file.write_text(
        "from dataclasses import dataclass\n"
        f"from mpifed import {base}, Record\n\n\n"
        "@dataclass(frozen=True)\n"
        f"class Own({base}):\n"
        '    """Says what it is."""\n\n'
        f"    K: int = 3\n    {fields}\n\n"
        "    def client_round(self, *arguments):\n        pass\n\n"
        "    def server_round(self, *arguments):\n        pass\n\n"
        '    maximised = frozenset({"gain"})\n\n'
        "    def metrics(self, *arguments):\n        pass\n"
    )
    output = info(f"{file}:Own")
    assert f"({group})" in output and "Says what it is." in output and "whole number" in output
    goals = "  maximised: gain\n  minimised: all others\n"
    assert (goals in output) == (base == "Minimax")
