"""User-defined values of settings that are choices: how they are loaded, identified and refused."""

from dataclasses import dataclass

import pytest
from refusals import refusal

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
    expected = "a class or a function that creates a shape"

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


def shape(value):
    return build(Drawing, {"shape": value}, "problem").shape


def test_classes_and_functions_are_loaded_with_their_settings(file, monkeypatch):
    made = shape({"name": "./shapes.py:Shape", "sides": 3})
    assert made.name == f"{file}:Shape" and made.settings == {"sides": 3} and str(made) == "shapes.py:Shape"
    assert (made.make().sides, made.make(size=5.0).size) == (3, 5.0)
    assert made.table() == {"name": f"{file}:Shape", "sides": 3} and shape(made.table()) == made
    assert shape(f"{file}:square").make().sides == 4 and shape("circle") == Circle()
    monkeypatch.syspath_prepend(file.parent)
    assert shape("shapes:square").name == "shapes:square"


def test_a_class_is_identified_by_its_source_and_an_object_by_its_contents(file):
    before = Drawing(shape="./shapes.py:square").shape
    file.write_text(SOURCE + "# another\n")
    after = Drawing(shape="./shapes.py:square").shape
    assert before.name == after.name and before.digest != after.digest and before != after
    first, second = (Drawing(shape=value).shape for value in (3j, 4j))
    assert first.given == 3j and first.is_instance and first.name != second.name and first != second
    assert Drawing(shape=3j).shape == first and Drawing(shape=first).shape is first
    for stored in (first.name, first.table()):
        with pytest.raises(ConfigError, match="was passed as an object.* continue with mpifed.run"):
            shape(stored)


NO_SHAPE = "expected one of Shape, broken, square"


@pytest.mark.parametrize("value, says", [
    ("./nowhere.py:Shape", "problem.shape: there is no file ./nowhere.py (working directory: "),
    ("./shapes.py:Shap", "./shapes.py has no 'Shap': did you mean 'Shape'? (options: Shape, broken"),
    ("./shapes.py", f"./shapes.py names no object, expected ./shapes.py:Name: {NO_SHAPE}"),
    ("./shapes.py:number", f"./shapes.py:number: expected {Shape.expected}, got 3"),
    ({"name": "./shapes.py:Shape"}, "shape Shape: sides is missing: it has no default"),
    ({"name": "./shapes.py:square", "sise": 1},
     "shape square has no setting 'sise': did you mean 'size'? (options: size)"),
    ({"name": "./shapes.py:square", "size": 1j}, "expected settings that a job file can contain"),
    ("no.module:Shape", "cannot import 'no.module'"),
    ("circel", "unknown shape 'circel': did you mean 'circle'? (options: circle); user-defined: "),
    (5, "expected the name of a shape or a table with a name, got 5"),
])  # fmt: skip
def test_wrong_values_are_refused(file, value, says):
    assert says in refusal(lambda: shape(value))


def test_errors_of_user_code_show_its_lines(file):
    made = shape("./shapes.py:broken")
    with pytest.raises(ConfigError, match="(?s)broken cannot be created: RuntimeError: no shape.*line 12"):
        made.make()
    file.write_text("import math\nmath.sqrt(-1)\n")
    with pytest.raises(ConfigError, match='(?s)shapes.py cannot be loaded: ValueError.*shapes.py", line 2'):
        shape("./shapes.py:Shape")
