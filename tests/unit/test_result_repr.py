"""Representations of a result as text and HTML, for finished and unfinished runs, on every rank."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import pytest
from runfiles import decay, write

import mpifed


def tree(result) -> ET.Element:
    """Parse the HTML as XML, which requires closed tags and escaped text."""
    return ET.fromstring(f"<div>{result._repr_html_()}</div>")


def test_the_lines_of_a_result(tmp_path):
    config = {"problem": {"name": "./my.py:Mine"}}
    result = mpifed.load(write(tmp_path / "a", config=config, error=decay(0.1), gap=[1, 2, 3, 4, 5.25]))
    first, *lines = repr(result).splitlines()
    assert first == "FGDA on Mine: all rounds done"
    assert [line.split(maxsplit=1)[0] for line in lines] == ["metrics", "costs", "point", "file"]
    assert "error 1.353, gap 5.25" in lines[0]
    assert "round 20, oracle calls 1,920, bytes up 20,000, bytes down 60,000, seconds 10" in lines[1]
    assert "x [3]" in lines[2] and lines[3].endswith(str(result.path))
    cells = [[cell.text for cell in row] for row in tree(result).iter("tr")]
    assert [[name, text] for name, text in cells] == [line.strip().split(maxsplit=1) for line in lines]


def test_the_curve_is_the_first_metric_against_the_rounds(tmp_path):
    result = mpifed.load(write(tmp_path / "a", rounds=20, error=[8, math.nan, 0, 4, math.inf]))
    points = tree(result).find(".//polyline").get("points")
    # Rounds 0, 10 and 15 over 320 pixels; the value 8 is at the top, y = 0, and 0 at the bottom, y = 80.
    assert points == "0.0,0.0 213.3,80.0 320.0,40.0"
    assert "error: 0 to 8, rounds 0 to 15" in result._repr_html_()


@pytest.mark.parametrize(
    "values", [[], [1.0], [math.nan] * 5, [3, 3, 3, 3, 3], [-1.7e308, 1.7e308, 0, 1e-320, 1]], ids=str
)
def test_unusual_histories(tmp_path, values):
    every = 20 // max(len(values) - 1, 1)
    folder = write(tmp_path / "<a>&", rounds=20 if len(values) > 1 else 0, every=every, stopped="",
                   **({"a<b": values} if values else {}))  # fmt: skip
    result = mpifed.load(folder)
    assert "not finished" in repr(result) and tree(result).find("p/b").text.endswith("not finished")
    for point in tree(result).findall(".//polyline"):
        assert all(0 <= float(number) <= 320 for number in re.findall(r"[^ ,]+", point.get("points")))


def test_the_result_of_a_rank_that_has_only_the_point(tmp_path):
    result = mpifed.load(write(tmp_path / "a", error=decay(0.1)))
    part = {name: getattr(result, name) for name in result.__dataclass_fields__}
    other = mpifed.Result(**part | {"metrics": {}, "history": {}, "costs": {}, "iterates": {}})
    assert [line.split()[0] for line in repr(other).splitlines()[1:]] == ["point", "file"]
    assert tree(other).find(".//svg") is None


def test_many_metrics_are_truncated(tmp_path):
    result = mpifed.load(write(tmp_path / "a", **{f"accuracy_{client}": decay(0.1) for client in range(500)}))
    assert "accuracy_11 1.353, and 488 more" in repr(result) and len(repr(result)) < 2000
