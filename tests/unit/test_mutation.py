"""scripts/mutate: which faults it knows, and what it leaves alone."""

import ast
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "scripts"))

from mutation.faults import faults

MODULE = '''"""Not a - b."""

__all__ = ["f"]


def f(a: int | None, b: list[float] = None, *, deep=True) -> float | None:
    """At most 1."""
    if a < 2:
        raise ValueError(f"{a - 1} is not > 0")
    b.append(min(a, 3, key=len))
    return a + b[-1] if a and not deep else -a


def g(self, c, d) -> float:
    self.c = c
    c, e = h(c, d), d
    c = c**2
    return c, isinstance(c, d)
'''
EXPECTED = {
    6: {"def f(a: int | None, b: list[float] = None, *, deep=False) -> float | None:"},
    8: {"if (a <= 2):", "if (a > 2):", "if a < 3:", "if a < 1:", "if (not a < 2):", "if False:"},
    10: {
        "pass",
        "b.append(max(a, 3, key=len))",
        "b.append(min(a, 3))",
        "b.append(min(a, 4, key=len))",
        "b.append(min(a, 2, key=len))",
    },
    11: {
        "return None",
        "return (-a if a and (not deep) else a + b[-1])",
        "return (a - b[-1]) if a and not deep else -a",
        "return a + b[0] if a and not deep else -a",
        "return a + b[-1] if (a or not deep) else -a",
        "return a + b[-1] if a and deep else -a",
        "return a + b[-1] if a and not deep else a",
    },
    15: {"pass"},
    16: {"c, e = h(d, c), d"},
    17: {"pass", "c = (c * 2)", "c = c**3", "c = c**1"},
    18: {"return ((isinstance(c, d), c))"},
}


def test_faults_of_a_module_and_nothing_else(tmp_path):
    """Docstrings, messages, annotations and ``__all__`` stay; every fault is on one line and can be read."""
    path = tmp_path / "module.py"
    path.write_text(MODULE)
    found: dict[int, set[str]] = {}
    for fault in faults(path, tmp_path):
        changed = fault.apply(MODULE)
        ast.parse(changed)
        lines = [(now, was) for now, was in zip(changed.splitlines(), MODULE.splitlines()) if now != was]
        assert len(lines) == 1 and fault.path == "module.py"
        found.setdefault(fault.line, set()).add(lines[0][0].strip())
    assert found == EXPECTED


@pytest.mark.parametrize("word", ["description='at most 2'", "help='a < b'"])
def test_words_for_people_are_left_alone(tmp_path, word):
    path = tmp_path / "module.py"
    path.write_text(f"x = Field({word})\n")
    assert not faults(path, tmp_path)
