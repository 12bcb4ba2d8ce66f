"""A user's own thing in a setting that is a choice: how it is found, what it is known by, what is said of a
wrong one."""

from dataclasses import dataclass

import pytest

from mpifed.base.errors import ConfigError
from mpifed.base.plugins import UserObject
from mpifed.base.settings import build, choice, problem_settings

SOURCE = """
import math

class Shape:
    def __init__(self, sides, *, size=1.0):
        self.sides, self.size = sides, size

def square(size=2.0):
    return Shape(4, size=size)

def broken():
    raise RuntimeError("no shape today")

number = 3
"""


@dataclass(frozen=True)
class Circle:
    radius: float = 1.0


class Shape(UserObject):
    kind = "a class or a function that makes a shape"

    @classmethod
    def fingerprint(cls, value):
        return f"polygon of {value}" if isinstance(value, complex) else None


@problem_settings
class Drawing:
    shape: choice("shape", {"circle": Circle}, Shape) = Circle()


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "shapes.py"
    path.write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return path


def refusal(value) -> str:
    with pytest.raises(ConfigError) as fault:
        build(Drawing, {"shape": value}, "problem")
    return str(fault.value)


def test_a_class_or_function_of_a_file_with_its_settings(file):
    made = build(Drawing, {"shape": {"name": "./shapes.py:Shape", "sides": 3}}, "problem").shape
    assert made.name == f"{file}:Shape" and made.settings == {"sides": 3} and str(made) == "shapes.py:Shape"
    assert (made.make().sides, made.make(size=5.0).size) == (3, 5.0)
    assert made.table() == {"name": f"{file}:Shape", "sides": 3}
    assert build(Drawing, {"shape": made.table()}, "problem").shape == made
    assert build(Drawing, {"shape": f"{file}:square"}, "problem").shape.make().sides == 4
    assert build(Drawing, {"shape": "circle"}, "problem").shape == Circle()


def test_a_name_of_a_package(file, monkeypatch):
    monkeypatch.syspath_prepend(file.parent)
    assert build(Drawing, {"shape": "shapes:square"}, "problem").shape.name == "shapes:square"


def test_the_digest_is_that_of_the_source_that_was_read(file):
    before = Drawing(shape="./shapes.py:square").shape
    file.write_text(SOURCE + "# another\n")
    after = Drawing(shape="./shapes.py:square").shape
    assert before.name == after.name and before.digest != after.digest and before != after


def test_an_object_is_known_by_what_it_holds():
    one, other = (Drawing(shape=value).shape for value in (3j, 4j))
    assert one.given == 3j and one.is_instance and one.name != other.name and one != other
    assert Drawing(shape=3j).shape == one and Drawing(shape=one).shape is one
    assert "was passed as an object" in refusal(one.name) and "continue with mpifed.run" in refusal(
        one.table()
    )


@pytest.mark.parametrize(
    "value, said",
    [
        ("./nowhere.py:Shape", "problem.shape: there is no file ./nowhere.py (looked in "),
        (
            "./shapes.py:Shap",
            "./shapes.py has no 'Shap': did you mean 'Shape'? (options: Shape, broken, square)",
        ),
        ("./shapes.py", "./shapes.py is a file, expected ./shapes.py:Name: (options: Shape, broken, square)"),
        (
            "./shapes.py:number",
            "./shapes.py:number: expected a class or a function that makes a shape, got 3",
        ),
        ({"name": "./shapes.py:Shape"}, "shape Shape: sides is missing: it has no default"),
        (
            {"name": "./shapes.py:square", "sise": 1},
            "shape square has no setting 'sise': did you mean 'size'? (options: size)",
        ),
        ({"name": "./shapes.py:square", "size": 1j}, "expected settings that a job file can hold"),
        ("no.module:Shape", "cannot import 'no.module'"),
        ("circel", "unknown shape 'circel': did you mean 'circle'? (options: circle); user-defined: "),
        (5, "expected the name of a shape or a table with one, got 5"),
    ],
)
def test_wrong_names_are_refused(file, value, said):
    assert said in refusal(value)


def test_a_file_that_raises_shows_the_users_lines(file):
    file.write_text("import math\nmath.sqrt(-1)\n")
    told = refusal("./shapes.py:Shape")
    assert "./shapes.py cannot be loaded: ValueError" in told and f'"{file}", line 2' in told


def test_a_function_that_raises_shows_the_users_lines(file):
    with pytest.raises(
        ConfigError, match="shapes.py:broken cannot be made: RuntimeError: no shape today"
    ) as fault:
        Drawing(shape="./shapes.py:broken").shape.make()
    assert "line 12" in str(fault.value)
