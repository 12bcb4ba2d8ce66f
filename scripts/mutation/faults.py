"""Single-line faults of a Python module: what a slip of the hand could have left there.

A fault replaces one expression or one statement. Docstrings, messages, annotations, imports and ``__all__``
are left alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COMPARISONS = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
OPERATIONS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
#: Functions and methods that are mistaken for each other.
PAIRS = (
    ("min", "max"),
    ("any", "all"),
    ("ceil", "floor"),
    ("amin", "amax"),
    ("argmin", "argmax"),
    ("minimum", "maximum"),
    ("zeros", "ones"),
    ("zeros_like", "ones_like"),
    ("add_", "sub_"),
    ("mul_", "div_"),
    ("startswith", "endswith"),
    ("sum", "mean"),
    ("cos", "sin"),
    ("sorted", "list"),
)
NAMES = {**dict(PAIRS), **{second: first for first, second in PAIRS if second != "list"}}
#: Keyword arguments that are words for people.
WORDS = {"description", "help", "title", "label", "msg", "message", "doc", "metavar", "name", "examples"}


#: Functions whose arguments nobody confuses: any test would see it.
ORDERED = {"isinstance", "issubclass", "getattr", "setattr", "hasattr"}


@dataclass(frozen=True)
class Fault:
    """``text`` stands in place of the characters from ``begin`` to ``end`` of the module's source."""

    path: str
    line: int
    begin: int
    end: int
    text: str
    kind: str

    def apply(self, source: str) -> str:
        return source[: self.begin] + self.text + source[self.end :]

    def describe(self, source: str) -> str:
        """``file:line  before → after``, each on one line."""
        changed = self.apply(source)
        start = source.rfind("\n", 0, self.begin) + 1
        before = source[start : _line_end(source, self.end)]
        after = changed[start : _line_end(changed, self.begin + len(self.text))]
        return f"{self.path}:{self.line}  {' '.join(before.split())}  →  {' '.join(after.split())}"


def _line_end(text: str, position: int) -> int:
    found = text.find("\n", position)
    return len(text) if found < 0 else found


def faults(path: Path, root: Path) -> list[Fault]:
    """All faults of one module, in the order of the source."""
    source = path.read_text()
    finder = _Finder(source, path.relative_to(root).as_posix())
    module = ast.parse(source)
    scope = _Scope(module)
    for statement in module.body:
        finder.statement(statement, scope)
    return sorted(set(finder.found), key=lambda fault: (fault.begin, fault.end, fault.text))


class _Scope:
    """What a function or class has assigned so far; that it makes an object, or may return None, decides
    which faults would be seen at once."""

    def __init__(self, node: ast.FunctionDef | ast.ClassDef | ast.Module):
        self.assigned: set[str] = set()
        self.makes = getattr(node, "name", "") == "__init__"
        returns = getattr(node, "returns", None)
        self.optional = returns is not None and "None" in ast.unparse(returns)


class _Finder:
    def __init__(self, source: str, path: str):
        self.path, self.found = path, []
        self.lines = source.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))

    def _at(self, line: int, column: int) -> int:
        """Position in the source; columns of the syntax tree count bytes."""
        text = self.lines[line - 1].encode()[:column].decode()
        return self.starts[line - 1] + len(text)

    def _add(self, node: ast.AST, text: str, kind: str) -> None:
        begin = self._at(node.lineno, node.col_offset)
        end = self._at(node.end_lineno, node.end_col_offset)
        self.found.append(Fault(self.path, node.lineno, begin, end, text, kind))

    def _swap(self, node: ast.expr, new: ast.expr, kind: str) -> None:
        """An expression for another, where it stands on one line."""
        if node.lineno == node.end_lineno:
            text = ast.unparse(new)
            atom = ast.Constant, ast.Name, ast.Attribute, ast.Call, ast.Subscript
            self._add(node, text if isinstance(new, atom) else f"({text})", kind)

    def statement(self, node: ast.stmt, scope: _Scope) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Raise | ast.Assert | ast.Global | ast.Nonlocal):
            return
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return
        if isinstance(node, ast.If) and _is_a_mark(node.test):
            return
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            inside = _Scope(node)
            for item in node.body:
                self.statement(item, inside)
            if isinstance(node, ast.FunctionDef):
                self._inside(node.args, scope)
            return
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            parts = [part for target in targets for part in ast.walk(target)]
            names = {part.id for part in parts if isinstance(part, ast.Name)}
            if "__all__" in names:
                return
            stored = any(isinstance(part, ast.Attribute | ast.Subscript) for part in parts)
            if isinstance(node, ast.AugAssign) or stored and not scope.makes or names & scope.assigned:
                self._add(node, "pass", "statement dropped")
            scope.assigned |= set() if stored else names
        elif isinstance(node, ast.Expr) and not isinstance(node.value, ast.Yield | ast.YieldFrom):
            self._add(node, "pass", "statement dropped")
        elif isinstance(node, ast.If | ast.While):
            self._condition(node)
        elif isinstance(node, ast.Return) and node.value is not None:
            self._returned(node.value, scope.optional)
        for field, value in ast.iter_fields(node):
            if field != "annotation":
                for item in value if isinstance(value, list) else [value]:
                    self._inside(item, scope)

    def _inside(self, item: object, scope: _Scope) -> None:
        if isinstance(item, ast.stmt):
            self.statement(item, scope)
        elif isinstance(item, ast.expr):
            self.expression(item)
        elif isinstance(item, ast.arguments):
            for default in [*item.defaults, *filter(None, item.kw_defaults)]:
                self.expression(default)
        elif isinstance(item, ast.withitem):
            self.expression(item.context_expr)
        elif isinstance(item, ast.ExceptHandler | ast.match_case):
            for statement in item.body:
                self.statement(statement, scope)

    def _condition(self, node: ast.If | ast.While) -> None:
        self._swap(node.test, ast.UnaryOp(ast.Not(), node.test), "condition negated")
        leaves = isinstance(node.body[-1], ast.Raise | ast.Return | ast.Continue | ast.Break)
        if isinstance(node, ast.If) and leaves and not node.orelse:
            self._swap(node.test, ast.Constant(False), "guard deleted")

    def _returned(self, value: ast.expr, optional: bool) -> None:
        if isinstance(value, ast.Tuple) and len(value.elts) > 1:
            self._swap(
                value, ast.Tuple([value.elts[1], value.elts[0], *value.elts[2:]]), "returned otherwise"
            )
        elif optional and not isinstance(value, ast.Constant):
            self._swap(value, ast.Constant(None), "returned otherwise")

    def expression(self, node: ast.expr) -> None:
        if isinstance(node, ast.JoinedStr):
            return
        for new, kind in _changes(node):
            self._swap(node, new, kind)
        if _is_whole_below_zero(node):
            return
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if name in ("cast", "TypeVar", "Literal", "warn", "NewType"):
                return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.keyword):
                if child.arg not in WORDS:
                    self.expression(child.value)
            elif isinstance(child, ast.comprehension):
                for part in (child.iter, *child.ifs):
                    self.expression(part)
            elif isinstance(child, ast.arguments):
                self._inside(child, _Scope(ast.Module()))
            elif isinstance(child, ast.expr):
                self.expression(child)


def _is_a_mark(test: ast.expr) -> bool:
    return any(
        isinstance(part, ast.Name) and part.id in ("TYPE_CHECKING", "__name__") for part in ast.walk(test)
    )


def _is_whole_below_zero(node: ast.expr) -> bool:
    minus = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    return minus and isinstance(node.operand, ast.Constant) and type(node.operand.value) is int


def _is_text(node: ast.expr) -> bool:
    text = isinstance(node, ast.Constant) and isinstance(node.value, str) or isinstance(node, ast.JoinedStr)
    return text or isinstance(node, ast.BinOp) and (_is_text(node.left) or _is_text(node.right))


def _changes(node: ast.expr) -> Iterator[tuple[ast.expr, str]]:
    """What the expression itself can be mistaken for; its parts are looked at by themselves."""
    if isinstance(node, ast.Compare):
        for place, op in enumerate(node.ops):
            for other in COMPARISONS[type(op)]:
                ops = [*node.ops[:place], other(), *node.ops[place + 1 :]]
                yield ast.Compare(node.left, ops, node.comparators), "comparison"
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS and not _is_text(node):
        yield ast.BinOp(node.left, OPERATIONS[type(node.op)](), node.right), "arithmetic"
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield ast.BoolOp(other, node.values), "and, or"
    elif _is_whole_below_zero(node):
        yield ast.Constant(1 - node.operand.value), "constant"  # an axis counted from the end stays one
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node.operand, "sign or not dropped"
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(node.test, node.orelse, node.body), "condition negated"
    elif isinstance(node, ast.Constant):
        yield from _constants(node.value)
    elif isinstance(node, ast.Call):
        yield from _calls(node)


def _constants(value: object) -> Iterator[tuple[ast.expr, str]]:
    if isinstance(value, bool):
        yield ast.Constant(not value), "constant"
    elif isinstance(value, int):
        yield ast.Constant(value + 1), "constant"
        if value > 0:
            yield ast.Constant(value - 1), "constant"
    elif isinstance(value, float):
        yield ast.Constant(value * 2 or 1.0), "constant"


def _calls(node: ast.Call) -> Iterator[tuple[ast.expr, str]]:
    function = node.func
    name = getattr(function, "id", getattr(function, "attr", ""))
    if name in NAMES:
        other = NAMES[name]
        plain = isinstance(function, ast.Name)
        changed = ast.Name(other) if plain else ast.Attribute(function.value, other)
        yield ast.Call(changed, node.args, node.keywords), "another function"
    for place, keyword in enumerate(node.keywords):
        if keyword.arg is not None and keyword.arg not in WORDS:
            kept = node.keywords[:place] + node.keywords[place + 1 :]
            yield ast.Call(function, node.args, kept), "argument dropped"
    if len(node.args) > 1 and name not in ORDERED and all(_is_a_value(item) for item in node.args[:2]):
        swapped = [node.args[1], node.args[0], *node.args[2:]]
        yield ast.Call(function, swapped, node.keywords), "arguments swapped"


def _is_a_value(node: ast.expr) -> bool:
    """It could stand in the place of another argument; texts, lists and functions mostly could not."""
    return isinstance(node, ast.Name | ast.Attribute | ast.BinOp | ast.Subscript) and not _is_text(node)
