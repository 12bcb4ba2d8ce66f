"""Detection of functions that write to tensors in place, such as ``relu(x, inplace=True)`` or ``x -= 1``.

Functions of a user get stored data and parameters without a copy. They are tested before the run
(:mod:`mpifed.core.validation`, :mod:`mpifed.models.modules`), so that a run does not pay for copies that are
not needed.

``TorchDispatchMode`` is in no public module, but is documented in "Extending PyTorch". The schema of an
operation, which says what it writes to, has no public name.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mpifed.base.nested import leaves

__all__ = ["Writes", "same_values", "share_memory", "tensors_of"]


class Writes(TorchDispatchMode):
    """A context that records which tensors are written to, also if their values remain the same.

    Args:
        tensors: contiguous tensors, or views of contiguous tensors, by name.
    """

    def __init__(self, tensors: Mapping[Any, torch.Tensor]):
        super().__init__()
        self._tensors = {name: tensor for name, tensor in tensors.items() if tensor.numel()}
        self._before = {name: tensor.detach().clone() for name, tensor in self._tensors.items()}
        dense = {name: tensor for name, tensor in self._tensors.items() if tensor.layout == torch.strided}
        self._first = {name: tensor.data_ptr() for name, tensor in dense.items()}
        self._written: set[Hashable] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        values = kwargs or {}
        for place, argument in enumerate(func._schema.arguments if func._schema.is_mutable else ()):
            if argument.alias_info is not None and argument.alias_info.is_write:
                given = args[place] if place < len(args) else values.get(argument.name)
                self._written.update(*map(self._names_at, tensors_of(given)))
        return func(*args, **values)

    def _names_at(self, tensor: torch.Tensor) -> list[Hashable]:
        """Return the names of the tensors in whose memory a tensor begins."""
        if not _has_elements(tensor):
            return []
        address = tensor.data_ptr()
        sizes = {name: tensor.nbytes for name, tensor in self._before.items()}
        return [name for name, first in self._first.items() if first <= address < first + sizes[name]]

    @property
    def names(self) -> list[Any]:
        """The names of the tensors that have been written to, in the given order.

        Values are compared, too, because the mode does not see writes by NumPy or an assignment of ``.data``.
        """
        return [
            name
            for name, tensor in self._tensors.items()
            if name in self._written
            or (name in self._first and tensor.data_ptr() != self._first[name])
            or not same_values(tensor, self._before[name])
        ]


def tensors_of(values: Any) -> list[torch.Tensor]:
    """Return the tensors in nested tuples, lists and dictionaries."""
    return [value for value in leaves(values) if isinstance(value, torch.Tensor)]


def same_values(values: torch.Tensor, others: torch.Tensor) -> bool:
    """Return whether two tensors are equal, with NaN equal to NaN. They may be sparse."""
    if values.shape != others.shape or values.dtype != others.dtype:
        return False
    values, others = values.to_dense(), others.to_dense()
    return bool(((values == others) | ((values != values) & (others != others))).all())


def share_memory(values: Any, others: Any) -> bool:
    """Return whether a tensor in ``values`` and a tensor in ``others`` are views of the same memory."""
    storages, of_others = (
        {tensor.untyped_storage().data_ptr() for tensor in tensors_of(given) if _has_elements(tensor)}
        for given in (values, others)
    )
    return not storages.isdisjoint(of_others)


def _has_elements(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and tensor.numel() > 0
