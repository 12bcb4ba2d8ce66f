"""Imports between rooms and of libraries, read from the sources."""

import ast
import graphlib
import re
from pathlib import Path

import pytest
import torch

import mpifed

PACKAGE = Path(mpifed.__file__).parent
SOURCES = {
    path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")
}
#: Room → the other rooms that it may import from.
RULES = {
    "base": "",
    "core": "base",
    "theory": "core base",
    "models": "core base",
    "data": "core base",
    "algorithms": "core base",
    "parallel": "core base",
    "problems": "core data models base",
    "simulation": "parallel algorithms core base",
    "storage": "parallel core base",
    "config": "storage simulation algorithms problems theory core base",
    "running": "storage simulation config parallel core base",
    "report": "storage config theory core base",
    "tuning": "report running storage simulation config parallel core base",
    "diagnostics": "simulation storage config parallel core base",
}
#: Library → the only files and rooms that import it.
USERS = {
    "mpi4py": ("parallel/comm.py",),
    "h5py": ("storage/",),
    "matplotlib": ("report/", "diagnostics/"),
    "rich": ("base/console.py", "report/", "diagnostics/", "cli/"),
    "click": ("cli/",),
    "optuna": ("tuning/proposals.py",),
    "safetensors": ("simulation/initial_weights.py", "cli/export.py"),
}
#: File → its private names of libraries; the reasons are beside their uses.
PRIVATE = {
    "core/writes.py": {"torch.utils._python_dispatch", "_schema"},
    "models/modules.py": {"torch.utils._python_dispatch"},
    "parallel/reproducibility.py": {"torch._inductor"},
}
#: Names of Python that begin with an underscore, but are documented.
DOCUMENTED = {"_asdict", "_fields", "_replace", "_exit", "_current_frames"}
#: What the rooms that use a simulation, see below, use of it.
SIMULATION = {
    "from_settings", "start", "step", "evaluate", "point", "block", "output", "round", "costs", "describe",
    "arrays", "client_rows", "changed_clients", "state_dict", "load_state_dict", "federated_seconds",
    "full_data", "config", "comm", "device", "dtype", "blocks", "placement", "hosted", "files", "note",
    "infeasible", "columns", "scored_rows", "details",
}  # fmt: skip
#: Attributes of a simulation that are plain values, whose own attributes may be used.
PLAIN = {"config", "costs", "columns", "device", "dtype", "blocks"}


def imports(tree: ast.Module):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module
            if node.module == "mpifed":
                yield from (f"mpifed.{alias.name}" for alias in node.names)


def imported(tree: ast.Module) -> set[str]:
    """Return the imported modules, and the names imported from packages, which may be modules."""
    names = set(imports(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("room, allowed", RULES.items(), ids=RULES)
def test_rooms_import_what_they_may(room, allowed):
    for file in (file for file in SOURCES if file.startswith(f"{room}/")):
        entered = {name.split(".")[1] for name in imports(SOURCES[file]) if name.startswith("mpifed.")} - {
            room
        }
        assert entered <= set(allowed.split()), file


def test_no_circle_between_files():
    """Imports inside of functions and for type checkers count."""
    modules = {
        f"mpifed.{file.removesuffix('.py').removesuffix('/__init__').replace('/', '.')}": file
        for file in SOURCES
    }
    modules["mpifed"] = modules.pop("mpifed.__init__")
    order = graphlib.TopologicalSorter()
    for module, file in modules.items():
        order.add(module, *(name for name in imported(SOURCES[file]) & modules.keys() if name != module))
    order.prepare()  # raises a CycleError


def is_simulation(node: ast.expr) -> bool:
    """Whether an expression is ``simulation``, ``self.simulation`` or ``simulation_of(...)``."""
    node = node.func if isinstance(node, ast.Call) else node
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name.lstrip("_") in ("simulation", "simulation_of", "Simulation")


def reaches_into_a_simulation(node: ast.AST) -> bool:
    """Whether an expression uses a part of a simulation that is not in :data:`SIMULATION`, or an attribute of
    a part that is no plain value; or whether an argument of a function hides a simulation by its name."""
    if isinstance(node, ast.arg):
        is_annotated = node.annotation is not None and ast.unparse(node.annotation) == "Simulation"
        return is_annotated and node.arg != "simulation"
    if not isinstance(node, ast.Attribute):
        return False
    if is_simulation(node.value):
        return node.attr not in SIMULATION
    inner = node.value
    return isinstance(inner, ast.Attribute) and is_simulation(inner.value) and inner.attr not in PLAIN


@pytest.mark.parametrize("room", ["running", "report", "tuning", "diagnostics", "cli"])
def test_a_simulation_is_closed(room):
    for file in (file for file in SOURCES if file.startswith(f"{room}/")):
        inside = [ast.unparse(node) for node in ast.walk(SOURCES[file]) if reaches_into_a_simulation(node)]
        assert not inside, file


@pytest.mark.parametrize(
    "expression, expected",
    [
        ("simulation.rounds", True),
        ("self.simulation.output.buffer", True),
        ("simulation_of(case).rounds.choice", True),
        ("self._simulation.config.run.dtype", False),
        ("simulation.client_rows().shape", False),
    ],
)
def test_reaching_into_a_simulation_is_found(expression, expected):
    assert any(map(reaches_into_a_simulation, ast.walk(ast.parse(expression)))) == expected


def test_every_folder_is_a_room():
    assert {path.parent.name for path in PACKAGE.glob("*/*.py")} == {*RULES, "cli"}
    assert {file for file in SOURCES if "/" not in file} == {"__init__.py", "__main__.py"}


@pytest.mark.parametrize("library, users", USERS.items(), ids=USERS)
def test_one_place_for_a_library(library, users):
    files = {
        file for file, tree in SOURCES.items() if any(name.split(".")[0] == library for name in imports(tree))
    }
    assert files and all(file.startswith(users) for file in files), files


def defined(tree: ast.Module) -> set[str]:
    """Return the names of functions, and those that are assigned to, also as attributes of an object."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "object.__setattr__":
            names.add(ast.literal_eval(node.args[1]))
    return names


#: Names that the package defines, without those that objects of torch have, too.
OWN = set[str]().union(*map(defined, SOURCES.values())) - {
    name for of in (torch.Tensor, torch.nn.Module(), torch.ops.aten.add.Tensor) for name in dir(of)
}


def private_names(tree: ast.Module) -> set[str]:
    """Return the private names of libraries that a source uses: modules, also as text, and attributes that
    neither the source nor, unless torch has them, another one of the package defines."""
    own, names = OWN | defined(tree) | DOCUMENTED, imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            is_own = node.attr in own and not ast.unparse(node).startswith(("torch.", "nn.", "F."))
            names |= set() if is_own else {node.attr}
        elif isinstance(node, ast.Constant) and str(node.value).startswith("torch."):
            names.add(node.value)
    found = (re.match(r"(\w+\.)*?_(?!_)\w+", name) for name in names if not name.startswith("mpifed."))
    return {name.group() for name in found if name}


def test_private_names_of_libraries_are_listed():
    found = {file: private_names(tree) for file, tree in SOURCES.items()}
    assert {file: names for file, names in found.items() if names} == PRIVATE


@pytest.mark.parametrize(
    "source",
    [
        "from torch._dynamo import reset",
        "import torch; torch._C.get()",
        "from torch import nn; nn._reduction",
        "class M(Module):\n def f(self): return self._buffers",
        "tensor._version",
        "sys.modules['torch._dynamo']",
    ],
)
def test_private_names_are_found(source):
    assert len(private_names(ast.parse(source))) == 1


def test_output_is_printed_by_functions_that_escape_control_characters():
    """All others print with :mod:`mpifed.base.log`, :mod:`mpifed.base.console` or ``cli/output.py``, except
    for commands that move the cursor or whose output is read by a program."""
    raw = {"cli/launch.py", "cli/output.py", "cli/status.py", "base/log.py"}
    for file in set(SOURCES) - raw:
        calls = {ast.unparse(node.func) for node in ast.walk(SOURCES[file]) if isinstance(node, ast.Call)}
        assert not calls & {"print", "click.echo", "tqdm.write", "traceback.print_exc"}, file
        assert file == "base/console.py" or "rich.console" not in imports(SOURCES[file]), file


def test_no_collective_under_a_rank_test():
    """No collective is called inside ``if ... rank ...``, except in the communicators."""
    collectives = {"allreduce_", "bcast_", "alltoallv", "allgatherv", "barrier"}
    collectives |= {"broadcast_text", "raise_if_any", "collective_errors", "first_text", "texts_of_ranks"}
    collectives |= {"gather_rows", "reduce_number"}
    for file in set(SOURCES) - {"parallel/comm.py"}:
        for node in ast.walk(SOURCES[file]):
            if isinstance(node, ast.If) and "rank" in ast.unparse(node.test):
                inside = [inner for branch in node.body + node.orelse for inner in ast.walk(branch)]
                calls = {ast.unparse(call.func) for call in inside if isinstance(call, ast.Call)}
                assert not collectives & {call.rpartition(".")[2] for call in calls}, (file, node.lineno)
