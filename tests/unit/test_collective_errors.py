"""Inside a block of ``collective_errors`` no rank communicates: a rank that fails leaves the block, and would
leave the others waiting for it.

Collectives are recognised by name: those of communicators and transports, the functions whose docstring says
"Collective", and the functions that call one of the former themselves.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import mpifed

PACKAGE = Path(mpifed.__path__[0])
#: Collectives of communicators and transports, and functions of ``parallel/comm.py``.
PRIMITIVES = {
    "allreduce_", "bcast_", "alltoallv", "allgatherv", "barrier", "split", "send", "receive", "sum_",
    "broadcast_text", "collective_errors", "first_text", "gather_rows", "raise_if_any", "reduce_number",
    "texts_of_ranks",
}  # fmt: skip
#: Calls with the name of a collective that blocks contain, and why they leave no rank waiting.
ALLOWED = {
    (
        "running/checkpointing.py",
        "checkpoint.read_clients",
    ): "first in its block; all ranks exchange all rows",
    ("running/checkpointing.py", "checkpoint.write"): "first in its block; all ranks exchange all rows",
    ("running/checkpointing.py", "self.folder.clear"): "Folder.clear removes files",
    ("running/checkpointing.py", "self.recorder.restore"): "Recorder.restore copies arrays",
    ("running/checkpointing.py", "self.recorder.write"): "Recorder.write writes a file",
    ("cli/check.py", "run_case"): "each rank runs the case alone",
    ("cli/estimate.py", "write"): "writes files",
    ("parallel/shared_memory.py", "_write"): "writes to memory",
    ("parallel/transport.py", "comm.cuda_aware"): "asks the library",
    ("simulation/not_finite.py", "_evaluate"): "evaluates derivatives",
    ("tuning/tuner.py", "preview"): "each rank runs its studies alone",
    ("tuning/tuner.py", "self._send"): "resumes a generator",
    ("tuning/tuner.py", "self._write"): "writes tables",
}


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text())


def called(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the last name and the whole expression of each called function, except ``text.split(...)``."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name | ast.Attribute):
            whole = ast.unparse(call.func)
            name = whole.rpartition(".")[2]
            if name != "split" or "comm" in whole:
                yield name, whole


def collectives() -> set[str]:
    names = set(PRIMITIVES)
    for _, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                declared = "ollective" in (ast.get_docstring(node) or "")
                if declared or (
                    isinstance(node, ast.FunctionDef) and any(name in PRIMITIVES for name, _ in called(node))
                ):
                    names.add(node.name)
    return names - {"__init__", "SerialComm"}


def blocks(tree: ast.Module) -> Iterator[ast.With]:
    for node in ast.walk(tree):
        if isinstance(node, ast.With) and any(
            name == "collective_errors" for item in node.items for name, _ in called(item)
        ):
            yield node


def test_no_rank_communicates_where_another_may_fail():
    names, found, count = collectives(), {}, 0
    for path, tree in trees():
        for block in blocks(tree):
            count += 1
            others = [
                item.context_expr for item in block.items if "collective_errors" not in ast.unparse(item)
            ]
            for part in (*others, *block.body):
                found |= {(path, whole): part.lineno for name, whole in called(part) if name in names}
    assert count > 50
    unexpected = [f"{path}:{line}: {whole}" for (path, whole), line in found.items()
                  if (path, whole) not in ALLOWED]  # fmt: skip
    assert not unexpected, "a collective in a block of collective_errors: move it out of the block"
    assert not ALLOWED.keys() - found.keys(), "no block contains these calls any more"
