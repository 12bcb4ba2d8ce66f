"""Records: named fields in one contiguous buffer.

A :class:`Record` declares fields, :meth:`Record.layout` computes their offsets for a problem, and a
:class:`State` is a buffer with that layout. Reading a field returns a view, and assigning copies into it. A
whole record is reduced, broadcast or written to disk without reference to its fields.

The *type* of a field determines its size. It is the name of a block of the problem's variables (``"x"``,
``"y"``, ``"z"``), ``"scalar"``, a name in :meth:`Problem.field_sizes` (``"u"`` and ``"jacobian"`` of a
composition), or a tuple of such names; a tuple is read as a tuple of views. ``not_sent``, ``within_round``,
``stored``, ``compressed`` and ``adaptive`` qualify a type.

``client`` and ``message`` have a leading client axis, ``[C, d]``; ``shared`` is ``[d]``. Since arithmetic
broadcasts over this axis, the same code of a method works for one client and for several.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch

from mpifed.base.errors import ContractError

__all__ = [
    "Blocks", "Record", "Layout", "State", "Observed", "NotSent", "WithinRound", "Stored", "Adaptive",
    "Compressed", "adaptive", "compressed", "not_sent", "within_round", "stored",
]  # fmt: skip

Shape = tuple[int, ...]
QualifierType = TypeVar("QualifierType")
#: A type without a qualifier: a name that determines a size, or a tuple of such names.
BaseType = str | tuple[str, ...]


@dataclass(frozen=True)
class NotSent:
    """The type of a field that does not count as communicated, declared by ``not_sent``.

    Examples are fields that clients recompute, and running sums that only the output needs.
    """

    type: BaseType


@dataclass(frozen=True)
class WithinRound:
    """The type of a field of ``client`` that one phase stores for a later phase of the same round.

    Declared by ``within_round``. It is 0 at the start of the round and for a new cohort. It exists only for
    members of the cohort and is not part of checkpoints.
    """

    type: BaseType


@dataclass(frozen=True)
class Stored:
    """The type of a field of ``message`` that is the change of a stored field, such as a control variate.

    Declared by ``stored``. For the participating clients S with weights w_n and the total weight W,
    ``now.cohort_weight * mean`` is Σ_S w_n change_n / W. This is the change of the mean over all clients,
    because the fields of other clients do not change. It also holds for ``availability.unbiased``, where
    other fields are divided by the probabilities of participation.
    """

    type: BaseType


@dataclass(frozen=True)
class Compressed:
    """The type of a field that the method compresses, so that fewer bytes are communicated.

    Declared by ``compressed``. The method calls :func:`mpifed.core.compression.compress` itself; the
    declaration determines the counted bytes, except in start phases. A field of ``shared`` may contain the
    point that clients compute from its compressed change.

    Attributes:
        by: name of the hyperparameter with the compression; its value ``None`` means no compression.
    """

    type: BaseType
    by: str


@dataclass(frozen=True)
class Adaptive:
    """The type of the adaptive matrix of ``block`` in ``shared``, computed by ``method.matrix``.

    Declared by ``adaptive``. Rank 0 updates it once per round, after the first phase whose messages contain
    the field ``of``, from the average of that field and the averaged ``block``, or the ``block`` of
    ``shared`` if the messages do not contain it. If a start phase contains ``of``, ``first_matrix`` selects
    the matrices before the first round.
    """

    block: str
    of: str


FieldType = BaseType | NotSent | WithinRound | Stored | Compressed | Adaptive

#: The names by which methods declare the types of fields.
not_sent, within_round, stored, compressed, adaptive = NotSent, WithinRound, Stored, Compressed, Adaptive


def _unqualified(field_type):
    """Return a field type without its qualifier."""
    qualifiers = NotSent | WithinRound | Stored | Compressed
    return field_type.type if isinstance(field_type, qualifiers) else field_type


def _is_field_type(value) -> bool:
    """Return whether a value is a :data:`FieldType`."""
    if isinstance(value, Adaptive):
        return True
    names = _unqualified(value)
    return all(isinstance(name, str) for name in (names if isinstance(names, tuple) else (names,)))


class Blocks(Mapping):
    """The variables of a problem, by block: ``Blocks(x={"w": (3, 2), "b": (2,)}, y={"v": (3,)})``.

    A block is one flat vector; its named parameters are views of it, in the order given.
    """

    def __init__(self, **blocks: Mapping[str, Shape]):
        self._shapes = {
            name: {key: tuple(shape) for key, shape in shapes.items()} for name, shapes in blocks.items()
        }

    def __getitem__(self, block: str) -> dict[str, Shape]:
        return self._shapes[block]

    def __iter__(self):
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    @property
    def sizes(self) -> dict[str, int]:
        """Number of elements of each block."""
        return {
            block: sum(math.prod(shape) for shape in shapes.values())
            for block, shapes in self._shapes.items()
        }

    def unflatten(self, block: str, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the named parameters of a block as views of ``flat``, ``[..., d]`` → ``[..., *shape]``."""
        views, start = {}, 0
        for name, shape in self._shapes[block].items():
            stop = start + math.prod(shape)
            views[name] = flat[..., start:stop].view((*flat.shape[:-1], *shape))
            start = stop
        return views


class Record:
    """The names and types of the fields of a method's record: ``Record(x="x", a=("x", "scalar"))``."""

    def __init__(self, **fields: FieldType):
        for name in fields:
            if name.startswith("_") or hasattr(Observed, name):
                raise ContractError(
                    f"a record's field cannot be named {name!r}, which is reserved: expected another name"
                )
            if not _is_field_type(fields[name]):
                raise ContractError(
                    f"field {name!r} of a record: expected the name of a block or a size, a tuple of such "
                    "names, not_sent(...), within_round(...), stored(...), compressed(...) or adaptive(...), "
                    f"got {fields[name]!r}"
                )
        self.fields: dict[str, FieldType] = fields

    def __or__(self, other: Record) -> Record:
        return Record(**self.fields, **other.fields)

    def __eq__(self, other) -> bool:
        return isinstance(other, Record) and self.fields == other.fields

    def __hash__(self) -> int:
        return hash(tuple(self.fields.items()))

    def __repr__(self) -> str:
        return (
            "Record(" + ", ".join(f"{name}={field_type!r}" for name, field_type in self.fields.items()) + ")"
        )

    def fields_of_type(self, qualifier: type[QualifierType]) -> dict[str, QualifierType]:
        """Return the fields with a qualifier, such as ``record.fields_of_type(NotSent)``."""
        return {name: value for name, value in self.fields.items() if isinstance(value, qualifier)}

    def layout(self, blocks: Blocks, field_sizes: Mapping[str, int] | None = None, matrix=None) -> Layout:
        """Compute the offsets of the fields for a problem.

        Args:
            blocks: variables of the problem.
            field_sizes: sizes of further types by name.
            matrix: rule of the method's adaptive matrices, which determines their shapes.

        Raises:
            ContractError: the problem does not define the type of a field.
        """
        sizes = blocks.sizes | dict(field_sizes or {}) | {"scalar": 1}
        slots, start = {}, 0
        for name, field_type in self.fields.items():
            if isinstance(field_type, Adaptive):
                base_type = matrix.shape(field_type.block)
            else:
                base_type = _unqualified(field_type)
            spans = []
            for part in (base_type,) if isinstance(base_type, str) else base_type:
                if part not in sizes:
                    options = ", ".join(sorted(sizes))
                    raise ContractError(f"field {name!r} has the type {part!r}: expected one of {options}")
                spans.append((start, start + sizes[part]))
                start += sizes[part]
            slots[name] = tuple(spans)
        return Layout(self, slots, start)


@dataclass(frozen=True)
class Layout:
    """The offsets of a record's fields in a buffer.

    Attributes:
        slots: field → start and stop of its parts, of which only a tuple has several.
        size: number of elements of one row.
    """

    record: Record
    slots: dict[str, tuple[tuple[int, int], ...]]
    size: int

    def state(self, lead: Shape = (), dtype=torch.float64, device="cpu") -> State:
        """Return a state of zeros with leading axes ``lead``."""
        return State(self, torch.zeros(*lead, self.size, dtype=dtype, device=device))

    def span(self, name: str) -> tuple[int, int]:
        """Return the start and stop of a field."""
        return self.slots[name][0][0], self.slots[name][-1][1]

    def field_at(self, element: int) -> str:
        """Return the name of the field that contains ``element`` of a row."""
        for name, parts in self.slots.items():
            if any(start <= element < stop for start, stop in parts):
                return name
        raise IndexError(f"expected an element below {self.size}, got {element}")


class State:
    """The values of a record: a buffer ``[..., size]`` with a layout.

    ``state.x`` is a view of the field, and ``state.x = v`` copies into it.
    """

    __slots__ = ("buffer", "_layout", "_views")

    def __init__(self, layout: Layout, buffer: torch.Tensor):
        views = {}
        for name, field_type in layout.record.fields.items():
            parts = tuple(buffer[..., start:stop] for start, stop in layout.slots[name])
            views[name] = parts if isinstance(_unqualified(field_type), tuple) else parts[0]
        object.__setattr__(self, "buffer", buffer)
        object.__setattr__(self, "_layout", layout)
        object.__setattr__(self, "_views", views)

    def __getattr__(self, name: str):
        try:
            return self._views[name]
        except KeyError:
            raise AttributeError(self._missing(name)) from None

    def __setattr__(self, name: str, value) -> None:
        view = self._views.get(name)
        if view is None:
            raise AttributeError(self._missing(name))
        if isinstance(view, tuple):
            if not isinstance(value, tuple | list) or len(value) != len(view):
                raise ContractError(
                    f"field {name!r}: expected a tuple of {len(view)} values, got {_described(value)}"
                )
            for part, part_value in zip(view, value):
                _assign(name, part, part_value)
        else:
            _assign(name, view, value)

    def _missing(self, name: str) -> str:
        return f"this record has no field {name!r}; it has {', '.join(self._views) or 'no fields'}"

    def __contains__(self, name: str) -> bool:
        return name in self._views

    @property
    def layout(self) -> Layout:
        return self._layout

    def rows(self, start: int, stop: int) -> State:
        """Return a view of the clients ``start:stop``."""
        return State(self._layout, self.buffer[start:stop])

    def joined(self, other: State) -> State:
        """Return a state with the fields of both states, and the ``buffer`` and ``layout`` of this one."""
        both = State(self._layout, self.buffer)
        both._views.update(other._views)
        return both


class Observed(State):
    """A state that records which fields are read and which are written."""

    __slots__ = ("_reads", "_writes")

    def __init__(self, layout: Layout, buffer: torch.Tensor):
        super().__init__(layout, buffer)
        object.__setattr__(self, "_reads", set())
        object.__setattr__(self, "_writes", set())

    def __getattr__(self, name: str):
        self._reads.add(name)
        return super().__getattr__(name)

    def __setattr__(self, name: str, value) -> None:
        self._writes.add(name)
        super().__setattr__(name, value)

    def pop_accesses(self) -> tuple[set[str], set[str]]:
        """Return the fields that were read and written since the previous call."""
        accesses = set(self._reads), set(self._writes)
        self._reads.clear()
        self._writes.clear()
        return accesses


def _assign(name: str, view: torch.Tensor, value) -> None:
    if not isinstance(value, torch.Tensor):
        try:
            view.fill_(value)
        except (TypeError, RuntimeError, ValueError):
            raise ContractError(
                f"field {name!r}: expected a tensor or a number, got {_described(value)}"
            ) from None
        return
    if _is_same_view(value, view):
        return
    if value.is_floating_point() and value.dtype != view.dtype:
        raise ContractError(f"field {name!r}: expected {_dtype(view)}, got {_dtype(value)}")
    try:
        view.copy_(value)
    except RuntimeError:
        expected, got = list(view.shape), list(value.shape)
        raise ContractError(f"field {name!r}: expected the shape {expected}, got {got}") from None


def _described(value) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _is_same_view(value: torch.Tensor, view: torch.Tensor) -> bool:
    """Return whether the value is the view itself, as in ``state.x += dx``, which has changed it already."""
    if value.data_ptr() != view.data_ptr() or value.shape != view.shape:
        return False
    return value.stride() == view.stride() or (value.is_contiguous() and view.is_contiguous())
