"""Where a user's code computes in less precision than the run, with the line that does."""

from __future__ import annotations

import os
import sys

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

__all__ = ["MixedPrecision"]

#: Functions that are asked to change the precision of a tensor, or to copy it into another.
CASTS = {"to", "double", "type", "type_as", "copy_", "__get__", "__set__"}
#: Numbers that are multiples of 1 / EXACT are the same in all precisions: masks, counts, halves.
EXACT = 1024.0


class MixedPrecision(TorchFunctionMode):
    """Notes operations of a user's file that mix float64 with less precise numbers, or that round to them.

    Numbers that are exact in any precision are let pass, such as a mask of zeros and ones.

    Args:
        file: the file that is looked at.
        alone: only operations that the file itself calls, not those of functions that it calls.

    Attributes:
        found: sentences, in the order of finding.
    """

    def __init__(self, file: str, alone: bool = False):
        super().__init__()
        self.file, self.alone, self.found = os.path.abspath(file), alone, []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", str(func))
        given, returned = _floats((args, kwargs)), _floats(result)
        if any(one.dtype == torch.float64 for one in given):
            low = [] if name in CASTS else [one for one in given if one.dtype != torch.float64]
            if any(not _exact(one) for one in low):
                self._note(f"computes with {_names(low)} numbers")
            elif any(one.dtype != torch.float64 and not _exact(one) for one in returned):
                self._note(f"rounds to {_names(returned)}")
        return result

    def _note(self, what: str) -> None:
        line = self._line()
        if line is not None:
            sentence = f"{os.path.basename(self.file)}, line {line}, {what} where the run has float64"
            if sentence not in self.found:
                self.found.append(sentence)

    def _line(self) -> int | None:
        """The line of the file that is being run, ``None`` where another one calls torch."""
        frame = sys._getframe(2)
        while frame is not None:
            file = frame.f_code.co_filename
            if file == self.file:
                return frame.f_lineno
            ours = file == __file__ or os.sep + "torch" + os.sep in file or file.startswith("<")
            if self.alone and not ours:
                return None
            frame = frame.f_back
        return None


def _floats(values) -> list[torch.Tensor]:
    return [one for one in tree_leaves(values) if isinstance(one, torch.Tensor) and one.is_floating_point()]


def _names(tensors: list[torch.Tensor]) -> str:
    names = {str(one.dtype).removeprefix("torch.") for one in tensors} - {"float64"}
    return " and ".join(sorted(names))


def _exact(tensor: torch.Tensor) -> bool:
    """Whether all numbers are multiples of 1 / EXACT; taken for granted where they cannot be read."""
    try:
        return bool((tensor.detach().double() * EXACT % 1 == 0).all())
    except RuntimeError:
        return True
