"""Hypothesis strategies of invalid job files: mutated tables, texts and overrides of valid jobs."""

from __future__ import annotations

import copy
import datetime
import json
import math
import os
from pathlib import Path

from everything import PAIRS, method, problem
from hypothesis import strategies as st

from mpifed import Config
from mpifed.config.tables import read_table

#: Examples of the fastest test; for more, MPIFED_FUZZ=10000 pytest tests/unit/test_fuzz.py.
BUDGET = int(os.environ.get("MPIFED_FUZZ", "150"))
JOBS = sorted(path for path in (Path(__file__).parents[2] / "jobs").rglob("*.toml"))


def _nested(depth: int, inside):
    for _ in range(depth):
        inside = [inside] if depth % 2 else {"a": inside}
    return inside


#: Values of a wrong type, too large, too small, too long, too deep, or invalid names.
VALUES = [
    *(True, False, None, 0, -1, 3, 3.0, -0.0, 0.5, 1e308, -1e308, 1e-320, math.inf, -math.inf, math.nan),
    *(10**5000, -(10**400), 2**63, -(2**63), 2**63 - 1, 10**11, 2 * 10**9, 10**19),
    *("", " ", "\0", "x" * 100_000, "ü\u202e\U0001f600", "\ud800", "3", "1e5", "true", "nan", "\n", "../.."),
    *(":b", "a:", ":", "..:b", "a..b:c", "./x.py:C", "\0.py:C", "x" * 100_000 + ".py:C", "os:path"),
    *("mpifed.problems:Saddle", "mpifed.problems:nothing", "mpifed:Problem", "x" * 300 + ":C", "-m:C"),
    *([], {}, [[]], [{}], [1] * 1000, [True], ["x"], {"name": []}, {"name": {}}, {"name": "x" * 100_000}),
    *({"name": "adam", "rho": "1"}, {"name": "box", "low": 1e308}, {"x" * 100_000: 1}, {"": 1}, {"name": 3}),
    *(_nested(50, 1), _nested(51, 1), {f"key{k}": k for k in range(1000)}),
    *(datetime.date(1979, 5, 27), datetime.time(7, 32), datetime.datetime(1979, 5, 27, 7, 32)),
]
#: Names of settings: known, misspelled, invalid.
KEYS = ["name", "rounds", "round", "run", "self", "", "a.b", "x" * 100_000, "ü", "\0", "sweep", "plugins"]


def tables() -> list[dict]:
    """Return valid tables: all shipped jobs, and the complete table of every pair of method and problem."""
    whole = [Config(algorithm=method(one), problem=problem(other)).table() for one, other in PAIRS]
    return [*map(read_table, JOBS), *(json.loads(json.dumps(table)) for table in whole)]


def _places(node, path=()):
    """Yield the paths of all values in a table."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield (*path, key)
        if len(path) < 6:
            yield from _places(value, (*path, key))


@st.composite
def mutated(draw, bases: list[dict]):
    """Generate a table with one to three mutations."""
    table = copy.deepcopy(draw(st.sampled_from(bases)))
    for _ in range(draw(st.integers(1, 3))):
        _mutate(draw, table)
    return table


def _mutate(draw, table: dict) -> None:
    places = list(_places(table))
    *way, last = draw(st.sampled_from(places)) if places else (draw(st.sampled_from(KEYS)),)
    node = table
    for key in way:
        node = node[key]
    value, key = copy.deepcopy(draw(st.sampled_from(VALUES))), draw(st.sampled_from(KEYS))
    match draw(st.sampled_from(["replace", "replace", "replace", "drop", "add", "rename", "list", "table"])):
        case "replace":
            node[last] = value
        case "drop":
            node.pop(last, None) if isinstance(node, dict) else node.pop(last)
        case "add" if isinstance(node, dict):
            node[key] = value
        case "rename" if isinstance(node, dict):
            node[key] = node.pop(last, value)
        case "list":
            node[last] = [node.get(last) if isinstance(node, dict) else node[last], value]
        case _:
            node[last] = {"name": node.get(last) if isinstance(node, dict) else node[last], key: value}


@st.composite
def texts(draw, sources: list[bytes]) -> bytes:
    """Generate the bytes of a job file with one to four replacements."""
    source = bytearray(draw(st.sampled_from(sources)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(source)))
        piece = draw(st.sampled_from(PIECES))
        source[at : at + draw(st.integers(0, 3))] = piece
    return bytes(source)


#: Bytes that are inserted into a job file.
PIECES = [
    *(b"\xff", b"\0", b"\xef\xbb\xbf", b"\r\n", b"\r", b"\xed\xa0\x80", b"\xc3", b"", b'"', b"'", b"\\"),
    *(b"=", b"[", b"]", b"[[", b"]]", b"{", b"}", b",", b".", b"#", b"\n[sweep]\n", b"\n[[sweep]]\n"),
    *(b"\n[run]\n", b"\nrounds = 1\n", b"\nrounds.a = 1\n", b"9" * 5000, b"0x" + b"f" * 5000, b"[" * 5000),
    *(b"a." * 3000, b"\n[" + b"a." * 3000 + b"a]\n", b"nan", b"-inf", b"1979-05-27", b"x" * 100_000),
    *(b"{a=" * 2000, b"\xe2\x80\xae", b"true", b"9999-99-99", b"1979-05-27T00:00:00+99:99", b"1e999999"),
    *(b"\\ud800", b"\\U00110000", b"\x7f", b"_", b"1__0", b"0o", b"''''''"),
]


@st.composite
def changes(draw, bases: list[dict]) -> list[str]:
    """Generate overrides ``key=value`` of valid and invalid keys and values."""
    found = []
    for _ in range(draw(st.integers(1, 3))):
        place = ".".join(map(str, draw(st.sampled_from(list(_places(draw(st.sampled_from(bases))))))))
        key = draw(st.sampled_from([place, place, *KEYS, "a." * 5000 + "a", "run..out", ".", "=="]))
        value = draw(st.sampled_from(TEXTS))
        found.append(draw(st.sampled_from(["{}={}", "{}={}", "{} = {}", "{}", "={}", "{}=="])))
        found[-1] = found[-1].format(key, value)
    return found


def _as_toml(value) -> str:
    if isinstance(value, str):
        return value
    return f"0x{value:x}" if isinstance(value, int) and abs(value) > 2**70 else str(value).replace("'", '"')


#: Values of overrides.
TEXTS = [*map(_as_toml, VALUES), "[" * 5000, "{", '"', "1\nrounds = 3", "9" * 5000, "True", ".5"]
