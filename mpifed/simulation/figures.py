"""What an evaluation is made of: what metrics are given, what they return, what is found beside them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import torch

from mpifed.core.details import Details
from mpifed.core.errors import ContractError, shown
from mpifed.core.problem import Game, Problem

__all__ = ["details_of", "expect_metrics", "numbers", "scored", "user", "whole"]

#: Characters of the longest name of a metric.
LONGEST = 100


def details_of(problem: Problem, predictions: torch.Tensor | None) -> Details:
    """The confusion of the problem's held-out samples."""
    labels = problem.test_labels()
    if labels is None or predictions is None:
        return Details()
    scores = problem.class_scores(predictions)
    if scores.dim() != 2 or not torch.isfinite(scores).all():
        return Details()
    kinds = scores.shape[1]
    found = np.bincount(labels * kinds + scores.argmax(dim=1).numpy(), minlength=kinds**2)
    names = user(problem).class_names()
    return Details(found.reshape(kinds, kinds), names if len(names) == kinds else [*map(str, range(kinds))])


def user(problem: Problem) -> Problem:
    """The problem as its user has written it."""
    return problem.problem if isinstance(problem, Game) else problem


def whole(problem: Problem, point) -> dict[str, dict[str, torch.Tensor]]:
    """A copy of the point by block and parameter's name, as the problem has them."""
    blocks = problem.blocks_of(*point) if isinstance(problem, Game) else dict(zip(problem.variables(), point))
    return {block: {name: value.clone() for name, value in named.items()} for block, named in blocks.items()}


def scored(problem: Problem, predictions: torch.Tensor) -> list[torch.Tensor]:
    """Scores, float64, and labels, int64, of the held-out samples."""
    return [problem.class_scores(predictions).clone(), torch.from_numpy(problem.test_labels().copy())]


def numbers(values, function: str, r: int, known: Collection[str] = ()) -> dict[str, float]:
    """What ``function`` has returned after round ``r``.

    Raises:
        ContractError: it is no table of numbers, or has a name that is ``known`` already.
    """
    try:
        found = expect_metrics(values)
        if twice := [name for name in found if name in known]:
            raise ContractError(f"there is a metric {twice[0]!r} already: expected another name")
    except ContractError as fault:
        raise ContractError(f"{function} after round {r}: {fault}") from None
    return found


def expect_metrics(values) -> dict[str, float]:
    """What a problem's ``metrics`` has returned, as numbers by name.

    Raises:
        ContractError: it is no table, a name cannot stand in a results file, or a value is no number; one
            sentence, to be preceded by the function's name.
    """
    if not isinstance(values, Mapping):
        raise ContractError(f"expected a dictionary name → number, got {shown(values)}")
    for name in values:
        _expect_name(name)
    return {name: _number(name, value) for name, value in values.items()}


def _expect_name(name) -> None:
    if not isinstance(name, str):
        raise ContractError(f"expected names of metrics that are text, got {shown(name)}")
    wrong = {
        "is empty or has blanks at an end": name != name.strip() or not name,
        f"has {len(name)} characters, more than {LONGEST}": len(name) > LONGEST,
        "is the column of the rounds": name == "round",
        "is a place in the results file": "/" in name or name in (".", ".."),
        "has characters that cannot be printed": not name.isprintable(),
    }
    reason = next((reason for reason, holds in wrong.items() if holds), None)
    if reason:
        raise ContractError(f"the metric {name[:LONGEST]!r} {reason}: expected another name")


def _number(name: str, value) -> float:
    try:
        if isinstance(value, str | bytes):  # of which Python would read some as numbers
            raise TypeError
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # torch's are RuntimeErrors
        raise ContractError(f"the metric {name!r} is {shown(value)}, expected a number") from None
