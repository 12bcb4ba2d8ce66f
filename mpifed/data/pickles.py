"""Pickles of plain values and arrays of whole numbers from strangers, read without harm.

An unpickler that admits few names is not enough. A few kilobytes can hold a tuple of a tuple of a tuple, each
twice in the next, whose hash takes an hour; a million tuples inside one another, whose hash ends the process;
a table of references of 32 GB; or a state that NumPy's types were never meant to have. So the operations are
looked at before any is carried out: how many there are, and that no container is used twice. And what is
built are stand-ins, which become arrays when all is known.
"""

from __future__ import annotations

import io
import pickle
import pickletools

import numpy as np

__all__ = ["NAMES", "unpickle"]

#: Tuples of a pickle at most; an array has six.
_TUPLES = 60
#: Operations beside those for the values: dictionaries, arrays, keys.
_REST = 1000
#: Operations whose result may be used again: it holds no other value.
_SIMPLE = {
    "GLOBAL", "STACK_GLOBAL", "REDUCE", "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE",
    "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES",
}  # fmt: skip
#: Sets hash what they hold; the others reorder the stack, call, or bring in values from outside.
_REFUSED = {
    "DUP", "POP", "POP_MARK", "EMPTY_SET", "FROZENSET", "ADDITEMS", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX",
    "PERSID", "BINPERSID", "EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "READONLY_BUFFER", "BYTEARRAY8",
}  # fmt: skip


class _Dtype:
    """Stands for ``numpy.dtype``: unsigned bytes, or whole numbers of four or eight bytes."""

    def __init__(self, code, *flags):
        self.code, self.order = code.decode() if isinstance(code, bytes) else code, "|"
        if self.code not in ("u1", "i4", "i8"):
            raise pickle.UnpicklingError("an array of other numbers than bytes and whole numbers")

    def __setstate__(self, state: tuple) -> None:
        order = state[1].decode() if isinstance(state[1], bytes) else state[1]
        if order not in ("|", "<", ">", "="):
            raise pickle.UnpicklingError("an array without an order of bytes")
        self.order = order


class _Stored:
    """Stands for an array that a pickle makes empty and goes on to fill."""

    def __init__(self, *how):
        self._state: tuple = (1, (0,), None, False, b"")

    def __setstate__(self, state: tuple) -> None:
        self._state = state

    def array(self) -> np.ndarray:
        _, shape, dtype, fortran, raw = self._state
        if not isinstance(dtype, _Dtype) or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("an array without its bytes")
        flat = np.frombuffer(raw, dtype.order + dtype.code)
        return flat.reshape(shape, order="F" if fortran else "C")


def _ndarray(*how):
    """Stands for ``numpy.ndarray``, which a pickle names and does not call."""
    raise pickle.UnpicklingError("an array that is not made empty")


class _Name:
    """What stands for a name: it can be called and not be changed."""

    __slots__ = ("_call",)

    def __init__(self, call):
        self._call = call

    def __call__(self, *arguments):
        return self._call(*arguments)

    def __setstate__(self, state) -> None:
        raise pickle.UnpicklingError("a name that is changed")


#: What a batch may name, before and since version 2 of NumPy, and what stands for it.
NAMES = {
    ("numpy", "ndarray"): _Name(_ndarray),
    ("numpy", "dtype"): _Name(_Dtype),
    ("numpy.core.multiarray", "_reconstruct"): _Name(_Stored),
    ("numpy._core.multiarray", "_reconstruct"): _Name(_Stored),
}


class _Unpickler(pickle.Unpickler):
    """Unpickles stand-ins for arrays, and plain values; refuses every other name."""

    def find_class(self, module: str, name: str):
        if (module, name) not in NAMES:
            raise pickle.UnpicklingError(f"a reference to {module}.{name}, which no batch needs")
        return NAMES[module, name]


def unpickle(content: bytes, values: int) -> dict:
    """The dictionary of a pickle, with arrays and plain values.

    Args:
        values: how many values it may hold, beside arrays and keys.

    Raises:
        Exception: of any kind; the bytes are no such pickle.
    """
    _look_through(content, values + _REST)
    value = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    if not isinstance(value, dict):
        raise pickle.UnpicklingError(f"a pickled {type(value).__name__}")
    return {key: one.array() if isinstance(one, _Stored) else one for key, one in value.items()}


def _look_through(content: bytes, values: int) -> None:
    before, shared, tuples, memo = "", set(), 0, 0
    for number, (operation, argument, _) in enumerate(pickletools.genops(content)):
        name = operation.name
        if name in _REFUSED:
            raise pickle.UnpicklingError(f"the operation {name}, which no batch needs")
        if number > 2 * values:  # a value, and the number that it is remembered by
            raise pickle.UnpicklingError(f"more than {values} values")
        tuples += "TUPLE" in name
        if tuples > _TUPLES:
            raise pickle.UnpicklingError(f"more than {_TUPLES} tuples")
        if name == "MEMOIZE" or name.endswith("PUT"):
            index = memo if name == "MEMOIZE" else argument
            memo += 1
            if index > memo:
                raise pickle.UnpicklingError(f"value number {index} after {memo}")
            (shared.discard if before in _SIMPLE else shared.add)(index)
        elif name.endswith("GET") and argument in shared:
            raise pickle.UnpicklingError("a list, tuple or dictionary that is used twice")
        before = name
