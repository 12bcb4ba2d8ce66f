"""Where a value that is not finite began: a client's phase once more, with an eye on its evaluations.

Nobody watches evaluations while a run is sound. Samples have addresses, so a phase can be repeated exactly
where its inputs are still there. ``shared`` is; of a client's record, what the phase has not written to. So a
replay counts only if it needs nothing else and ends in the very message that was found, or if a client's
function is not finite at a point of ``shared``.
"""

from __future__ import annotations

from functools import partial

import torch

from mpifed.core.algorithm import Now
from mpifed.core.finite import all_finite, first_bad
from mpifed.core.records import Observed, State
from mpifed.simulation.executor import Executor, Stage
from mpifed.simulation.finite import GROWN, SMALLER, Bad

__all__ = ["origin"]

#: What to ask where values have not grown.
_PROBLEM = "is the problem's function right there?"
_METHOD = "are the step sizes and the client function right?"
#: Function of an oracle → what its points and its answers are called.
_WORDS = {
    "grad": (("x", "y"), ("∂f/∂x", "∂f/∂y")),
    "operator": (("z",), ("V",)),
    "g": (("x",), ("g",)),
    "g_and_jacobian": (("x",), ("g", "the Jacobian of g")),
    "grad_f": (("u",), ("∇f",)),
}


class _Record(State):
    """A client's record that notes whether the phase needs a field that it has written to."""

    __slots__ = ("_lost", "_read", "_written")

    def __init__(self, state: State):
        super().__init__(state.layout, state.buffer)
        self._views.update(state._views)
        for name in self.__slots__:
            object.__setattr__(self, name, set())

    def __getattr__(self, name: str):
        if name not in self._written:
            self._read.add(name)
        return super().__getattr__(name)

    def __setattr__(self, name: str, value) -> None:
        if name in self._read:
            self._lost.add(name)
        self._written.add(name)
        super().__setattr__(name, value)

    @property
    def exact(self) -> bool:
        """Whether what was read is what the phase began with."""
        return not self._lost


class _Watch:
    """An oracle that notes the first evaluation of the client ``row`` with a value that is not finite."""

    def __init__(self, shared: State, oracle, row: int):
        self._oracle, self._row, self._shared = oracle, row, shared
        self.number, self.largest, self.found, self.certain = 0, 0.0, "", False

    def __getattr__(self, name: str):
        asked = getattr(self._oracle, name)
        if name not in _WORDS:
            return asked

        def evaluate(*arguments):
            answers = asked(*arguments)
            if not self.found:
                self.number += 1
                self.found = self._look(*_WORDS[name], arguments, answers)
            return answers

        return evaluate

    def _look(self, blocks: tuple[str, ...], names: tuple[str, ...], arguments: tuple, answers) -> str:
        """What an evaluation shows, "" if all of it is finite."""
        when = f"in the client's evaluation {self.number} of the phase"
        points = {name: self._own(one) for name, one in zip(blocks, arguments[:-1])}
        found = [self._own(one) for one in (answers if isinstance(answers, tuple | list) else (answers,))]
        sample = arguments[-1]
        held = (*(sample.batch or ()), *([] if sample.noise is None else [sample.noise]))
        if any(first_bad(column[self._row]) for column in held):
            return f"it begins with the sample {when}, which is not finite: look at the data"
        if bad := [name for name, point in points.items() if not all_finite(point)]:
            return f"it begins with the point {' and '.join(bad)} {when}, {self._grown(_METHOD)}"
        self._note(points.values())
        for name, answer in zip(names, found):
            if not all_finite(answer):
                value = float(answer[~torch.isfinite(answer)][0])
                self.certain = all(map(self._is_shared, points.values()))
                return f"it begins with {name}, {value} at a finite point {when}, {self._grown(_PROBLEM)}"
        self._note(found)
        return ""

    def _own(self, values: torch.Tensor) -> torch.Tensor:
        """The client's part, of a point that clients may share."""
        return values[self._row] if values.dim() > 1 else values

    def _is_shared(self, point: torch.Tensor) -> bool:
        fields = (getattr(self._shared, name) for name in self._shared.layout.slots)
        return any(isinstance(one, torch.Tensor) and torch.equal(point, one) for one in fields)

    def _note(self, values) -> None:
        self.largest = max(self.largest, *(float(one.abs().max()) for one in values if one.numel()))

    def _grown(self, question: str) -> str:
        """How large values were until then, and what that means."""
        hint = SMALLER if self.largest >= GROWN else question
        return f"after values of up to {self.largest:.2g}: {hint}"

    def verdict(self) -> str:
        """In words, where it began."""
        return self.found or f"all evaluations of the client are finite, {self._grown(_METHOD)}"


def origin(executor: Executor, stage: Stage, now: Now, shared: Observed, bad: Bad) -> str:
    """Where a client's value that is not finite began, "" where a replay cannot tell."""
    watching = partial(_Watch, shared)
    try:
        message, watch, record = executor.again(stage, now, shared, bad.row, watching, _Record)
    except Exception:  # what fails now has not failed before: this is no replay
        return ""
    same = (message == bad.message) | ~(torch.isfinite(message) | torch.isfinite(bad.message))
    return watch.verdict() if watch.certain or (record.exact and same.all()) else ""
