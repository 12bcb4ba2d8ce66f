"""Records: named views of one buffer."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mpifed.base.errors import ContractError
from mpifed.core.records import Blocks, Record

KINDS = st.sampled_from(["x", "y", "scalar"])
FIELDS = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=3),
    st.one_of(KINDS, st.lists(KINDS, max_size=3).map(tuple)),
    max_size=6,
)
BLOCKS = Blocks(x={"w": (2, 3), "b": (2,)}, y={"v": (3,)})


def parts(view):
    return view if isinstance(view, tuple) else (view,)


@given(FIELDS, st.sampled_from([(), (1,), (4,)]))
def test_fields_tile_the_buffer(fields, lead):
    """Writing a different number into every part fills every element once, and the buffer sees it."""
    state = Record(**fields).layout(BLOCKS).state(lead)
    number, expected = 0, []
    for name, kind in fields.items():
        for part, one in zip(parts(getattr(state, name)), (kind,) if isinstance(kind, str) else kind):
            number += 1
            part.fill_(number)
            expected += [number] * {"x": 8, "y": 3, "scalar": 1}[one]
    assert state.buffer.shape == (*lead, len(expected))
    assert torch.equal(state.buffer, torch.tensor(expected, dtype=state.buffer.dtype).expand(*lead, -1))
    assert [state.layout.field_at(element) for element in range(len(expected))] == [
        name
        for name, kind in fields.items()
        for one in ((kind,) if isinstance(kind, str) else kind)
        for _ in range({"x": 8, "y": 3, "scalar": 1}[one])
    ]


def test_reading_is_a_view_and_assigning_copies():
    state = Record(x="x", a=("x", "scalar")).layout(BLOCKS).state()
    view, value = state.x, torch.arange(8.0, dtype=torch.float64)
    state.x = value
    assert view.tolist() == value.tolist() and view.data_ptr() == state.buffer.data_ptr()
    value.zero_()
    assert view[1] == 1
    state.a = (torch.ones(8, dtype=torch.float64), 7.0)
    assert state.a[0].sum() == 8 and state.buffer[-1] == 7
    state.x += 1
    assert state.x.tolist() == list(range(1, 9))


def test_assigning_broadcasts_over_clients():
    state = Record(x="x").layout(BLOCKS).state((3,))
    state.x = torch.arange(8.0, dtype=torch.float64)
    assert (state.buffer == torch.arange(8.0)).all()
    assert state.rows(1, 2).x.data_ptr() == state.buffer[1].data_ptr()


def test_named_parameters_are_views():
    flat = torch.arange(16.0).reshape(2, 8)
    views = BLOCKS.unflatten("x", flat)
    assert views["w"].shape == (2, 2, 3) and views["b"].tolist() == [[6, 7], [14, 15]]
    views["b"].zero_()
    assert flat[1, 7] == 0


def test_span_of_a_field():
    layout = Record(x="x", A="x", c=("y", "scalar"), z="x").layout(BLOCKS)
    assert layout.span("A") == (8, 16) and layout.span("c") == (16, 20)


def test_error_messages_list_the_fields():
    state = Record(x="x", y="y").layout(BLOCKS).state()
    with pytest.raises(AttributeError, match="no field 'z'; it has x, y"):
        _ = state.z
    with pytest.raises(AttributeError, match="no field 'z'; it has x, y"):
        state.z = 1
    with pytest.raises(ValueError, match="field 'q' has the type 'u': expected one of scalar, x, y"):
        Record(q="u").layout(BLOCKS)
    with pytest.raises(ContractError, match=r"field 'x': expected the shape \[8\], got \[5\]"):
        state.x = torch.zeros(5, dtype=torch.float64)
    with pytest.raises(ContractError, match="field 'x': expected float64, got float32"):
        state.x = torch.zeros(8)
