"""A table that is wider than the console goes on below, with as many columns in each part as fit."""

import io

import pytest
from rich.console import Console

from mpifed.report.tables import print_table

NAMES = ["run", "one", "two", "three", "four"]


@pytest.mark.parametrize(
    "width, parts",
    [
        (200, [["one", "two", "three", "four"]]),
        (34, [["one", "two"], ["three", "four"]]),
        (20, [["one"], ["two"], ["three"], ["four"]]),
    ],
)
def test_parts_hold_what_fits(width, parts):
    rows = [dict(zip(NAMES, ["a" if row else "b", *[10_000_000 + row] * 4])) for row in range(2)]
    text = io.StringIO()
    print_table(rows, Console(file=text, width=width))
    heads = [line.split() for line in text.getvalue().splitlines() if line.split()[:1] == ["run"]]
    assert [head[1:] for head in heads] == parts
