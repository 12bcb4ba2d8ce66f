"""The bibliography: complete entries, valid keys, and an entry for every source."""

import re
from importlib import resources

import pytest

from mpifed.algorithms import ALGORITHMS
from mpifed.base.bibliography import bibliography, bibtex, cites_of, format_reference
from mpifed.core.adaptive import MATRICES
from mpifed.data import DATASETS, TEXTS
from mpifed.problems import PROBLEMS
from mpifed.report.citations import references

CLASSES = {**ALGORITHMS, **PROBLEMS, **MATRICES}


def test_every_entry_is_read():
    text = resources.files("mpifed").joinpath("references.bib").read_text(encoding="utf-8")
    entries = re.findall(r"^@\w+\{(\w+),", text, re.M)
    assert list(bibliography()) == entries and len(set(entries)) == len(entries)
    comments = re.sub(r"^%.*\n", "", text, flags=re.M)
    assert "\n\n".join(bibliography().values()).split() == comments.split()


@pytest.mark.parametrize("key", bibliography())
def test_an_entry_has_author_title_and_year(key):
    entry = bibliography()[key]
    assert entry.count("{") == entry.count("}")
    assert all(re.search(rf"^ *{field} *= \{{", entry, re.M) for field in ("author", "title")), entry
    undated = "states neither year nor venue" in entry
    assert undated != bool(re.search(r"^ *year *= \{\d{4}\}", entry, re.M)) and undated == ("_nd_" in key)
    assert format_reference(key).endswith(".") and "{" not in format_reference(key)


@pytest.mark.parametrize("name", CLASSES)
def test_citations_of_classes_have_entries(name):
    cls = CLASSES[name]
    assert all(key in bibliography() for key in getattr(cls, "cites", ()))
    assert bool(cites_of(name, cls)) == bool(getattr(cls, "source", ""))


def test_keywords_are_names_of_data_sets():
    words = re.findall(r"keywords *= \{(.*)\}", "\n".join(bibliography().values()))
    assert words and {name for word in words for name in word.split(", ")} <= {*DATASETS, *TEXTS}
    assert cites_of("sst2", TEXTS["sst2"]) == ("socher2013sst",)


def test_an_unknown_key_is_reported_with_a_suggestion():
    with pytest.raises(ValueError, match="no entry 'shen2024fesgda'.*shen2024fessgda"):
        bibtex(["shen2024fesgda"])


def test_references_of_runs():
    config = {
        "algorithm": {"name": "./mine.py:Own", "matrix": {"name": "adam"}},
        "problem": {"name": "L1BoxBilinear", "dataset": "cifar10"},
    }
    found = references([config, config])
    assert len(found) == len(set(found)) and not references([{"algorithm": {"name": "gone"}}])
    for author in ("Wang, Guanghui", "Bai, Site", "Krizhevsky"):
        assert any(author in line for line in found), found
