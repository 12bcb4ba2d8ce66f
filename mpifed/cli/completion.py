"""Completion of names and settings in the shell, read from the sources: to import them takes seconds."""

from __future__ import annotations

import ast
from pathlib import Path

__all__ = ["names", "settings"]

_PACKAGE = Path(__file__).parents[1]
#: File → its table of methods or problems.
_LISTS = {"algorithms/__init__.py": "ALGORITHMS", "problems/__init__.py": "PROBLEMS"}
_SECTIONS = ("config/sections.py", "config/clients.py", "config/objective.py", "config/tuning.py")


def names(ctx, param, incomplete: str) -> list[str]:
    """Methods, problems and sections that begin so."""
    known = [name for file in _LISTS for name in _members(file)]
    return [name for name in (*known, *_sections()) if name.startswith(incomplete)]


def settings(ctx, param, incomplete: str) -> list[str]:
    """``section.key=`` of all sections that begin so."""
    keys = ["seed", "rounds", "output", "algorithm.name", "problem.name", "problem.clients"]
    keys += [f"{section}.{key}" for section, own in _sections().items() for key in own]
    return [f"{key}=" for key in keys if key.startswith(incomplete)]


def _members(file: str) -> list[str]:
    """The classes that a room's table of names lists."""
    for node in ast.parse((_PACKAGE / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == _LISTS[file]:
            classes = node.value.generators[0].iter.elts  # type: ignore[attr-defined]
            return [one.id for one in classes]
    return []


def _sections() -> dict[str, list[str]]:
    """Section of a job file → its settings."""
    found = {}
    for file in _SECTIONS:
        for node in ast.parse((_PACKAGE / file).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and [ast.unparse(base) for base in node.bases] == ["Section"]:
                own = (one.target.id for one in node.body if isinstance(one, ast.AnnAssign))  # type: ignore
                found[node.name.lower()] = list(own)
    return found
