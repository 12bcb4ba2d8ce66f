"""Who may import whom, read from the sources."""

import ast
from pathlib import Path

import mpifed
import pytest

PACKAGE = Path(mpifed.__file__).parent
SOURCES = {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}
#: Layers from the bottom: a module may import what stands on a lower line, or what its own line allows.
LAYERS = [
    {"options", "files", "records", "streams", "comm", "scalars", "decomposition", "theory"},
    {"schedules", "adaptive", "projections", "noise", "placement", "directions", "devices", "provenance", "signals", "survival", "watchdog"},
    {"proximal", "channels"},
    {"algorithm", "problem", "sections", "transport"},
    {"data", "models", "reduction", "sampling", "traffic"},
    {"oracle", "clock"},
    {"algorithms", "problems"},
    {"config", "coordinator", "executor", "checkpoint", "timing"},
    {"simulation"},
    {"recorder"},
    {"folder"},
    {"restart"},
    {"run", "results", "scaling", "holdings"},
    {"__init__", "catalogue", "check", "bench", "prediction", "sweep", "comparison"},
    {"figures", "tables", "slurm"},
    {"page"},
    {"report"},
    {"commands"},
    {"__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
INSIDE = {"check": {"catalogue"}}


def imports(tree: ast.Module):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module
            if node.module == "mpifed":
                yield from (f"mpifed.{alias.name}" for alias in node.names)


def rooms(tree: ast.Module) -> set[str]:
    return {name.split(".")[1] for name in imports(tree) if name.startswith("mpifed.") and name.split(".")[1] in LEVEL}


@pytest.mark.parametrize("file", SOURCES)
def test_imports_point_downwards(file):
    room = file.split("/")[0].removesuffix(".py")
    for other in rooms(SOURCES[file]) - {room} - INSIDE.get(room, set()):
        assert LEVEL[other] < LEVEL[room], f"{file} imports {other}"


@pytest.mark.parametrize("library, users", [("mpi4py", {"comm.py"}), ("h5py", {"checkpoint.py", "recorder.py", "results.py"})])
def test_one_room_for_a_library(library, users):
    found = {file for file, tree in SOURCES.items() if any(name.split(".")[0] == library for name in imports(tree))}
    assert found == users


def test_algorithms_and_problems_do_not_meet():
    for file, tree in SOURCES.items():
        if file.startswith("algorithms/"):
            assert not rooms(tree) & {"problems", "comm", "executor", "coordinator", "simulation", "oracle"}, file
        if file.startswith("problems/"):
            assert not rooms(tree) & {"algorithms", "comm", "executor", "coordinator", "simulation", "oracle"}, file


def test_no_collective_under_a_rank_test():
    """No call of a collective inside ``if ... rank ...`` of a module other than the communicators themselves."""
    collectives = {"allreduce_", "bcast_", "alltoallv", "allgatherv", "barrier", "agree", "share"}
    for file, tree in SOURCES.items():
        if file == "comm.py":
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and "rank" in ast.unparse(node.test):
                for call in (inner for branch in node.body + node.orelse for inner in ast.walk(branch)):
                    if isinstance(call, ast.Call):
                        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
                        assert name not in collectives, f"{file}:{call.lineno} calls {name} under a test of the rank"


def test_size_of_files_and_functions():
    for path in PACKAGE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 300, path
    for file, tree in SOURCES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 40, f"{file}: {node.name}"
