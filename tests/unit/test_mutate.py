"""scripts/mutate: the draw of mutants, and the tests that are chosen for one."""

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "mutate"
mutate = module_from_spec(spec_from_loader("mutate", SourceFileLoader("mutate", str(SCRIPT))))
mutate.__spec__.loader.exec_module(mutate)


def items(*places):
    """Work items as cosmic-ray's, each a path, a line and an operator."""

    def item(path, line, operator):
        place = dict(module_path=Path(path), start_pos=(line, 4), operator_name=operator, occurrence=0)
        return SimpleNamespace(mutations=[SimpleNamespace(**place)])

    return [item(*place) for place in places]


def test_a_draw_has_one_mutant_per_line_and_depends_on_the_seed_alone():
    every = items(*((f"mpifed/{name}.py", line, op) for name in "ab" for line in range(9) for op in "xyz"))
    drawn = mutate.sample(every, 10, 3)
    lines = {(one.mutations[0].module_path, one.mutations[0].start_pos) for one in drawn}
    assert len(drawn) == len(lines) == 10
    assert mutate.sample(every[::-1], 10, 3) == drawn != mutate.sample(every, 10, 4)
    assert len(mutate.sample(every, 99, 0)) == 18


def test_the_quickest_tests_that_reach_the_line_within_the_budget():
    contexts = {1: ["", "a|run", "b|run", "b|setup", "c|run"], 2: ["d|run"]}
    seconds = {"a": 50.0, "b": 20.0, "c": 1.0, "d": 100.0}
    assert mutate.select(contexts, {1}, seconds) == ["c", "b"]
    assert mutate.select(contexts, {2}, seconds) == ["d"], "one at least"
    assert mutate.select(contexts, {9}, seconds) == [mutate.DECLARATIONS, "c", "b"], "runs at import"
    assert mutate.select({1: [""]}, {1}, seconds) == [mutate.DECLARATIONS]


def test_the_test_of_the_declarations_exists():
    path, _, name = mutate.DECLARATIONS.partition("::")
    assert f"def {name}(" in (ROOT / path).read_text()
