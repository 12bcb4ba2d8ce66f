"""Formulas of theorems in the settings of a run, with which the trend of a claim is compared."""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping

from claims.entries import Claim
from mpifed.base.errors import ConfigError
from mpifed.base.settings import suggest
from mpifed.report.comparison import Setting

BOUND = "bound"
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def formula(setting: Setting, claim: Claim) -> float:
    """Return the claim's formula in the settings of a run.

    The formula is ``"bound"``, the bound of the theorem in the job, or an expression such as ``"(clients - m)
    / (m * (clients - 1))"``, whose variables are the last components of dotted settings.

    Raises:
        ConfigError: the job has no bound on the metric, or the expression is invalid.
    """
    text = claim.trend["formula"]
    if text == BOUND:
        return bound(setting, claim)
    numbers = {
        key.rpartition(".")[2]: value
        for key, value in setting.settings.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    try:
        return _value(ast.parse(text, mode="eval").body, numbers)
    except (SyntaxError, TypeError, ZeroDivisionError) as error:
        raise ConfigError(f"claim {claim.name!r}: formula {text!r}: {error}") from None


def bound(setting: Setting, claim: Claim) -> float:
    """Return the bound on the claim's metric of the theorem in the job of a setting.

    Raises:
        ConfigError: the job has no bound on the metric.
    """
    found = setting.bound(claim.metric)
    if found is None:
        raise ConfigError(
            f"claim {claim.name!r}: the job of {setting.name} names no theorem that bounds {claim.metric}"
        )
    return found


def _value(node: ast.expr, numbers: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.Name(id=name) if name in numbers:
            return numbers[name]
        case ast.Name(id=name):
            raise ConfigError(f"formula: no run has the setting {name!r}: {suggest(name, numbers)}")
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, numbers), _value(right, numbers))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, numbers)
    raise TypeError(f"expected numbers, settings and + - * / **, got {ast.unparse(node)}")
