"""The output point in a results file: a group a block, with a dataset a parameter in its shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import h5py
import numpy as np

from mpifed.core.records import Blocks, State

__all__ = ["Point", "read_point", "write_point"]

#: The attribute of a dataset that says what the network of the problem calls the parameter.
_NETWORK = "network"


class Point(NamedTuple):
    """An output point: ``flat`` by block; the ``shapes`` of its parameters by block and name, in order;
    ``network``, where the parameters of the problem's network are, name → block and name there.

    Files of version 0.1 have flat blocks alone.
    """

    flat: dict[str, np.ndarray]
    shapes: dict[str, dict[str, tuple[int, ...]]]
    network: dict[str, tuple[str, str]]


def write_point(
    file: h5py.File, blocks: Blocks, point: State, network: Mapping[str, tuple[str, str]]
) -> h5py.Group:
    """Write a point, with the network's names of its parameters; the group ``final``."""
    final = file.create_group("final")
    for block in blocks:
        group = final.create_group(block, track_order=True)
        for name, values in blocks.unflatten(block, getattr(point, block).cpu()).items():
            group[name] = values.numpy()
    for name, (block, own) in network.items():
        final[block][own].attrs[_NETWORK] = name
    return final


def read_point(final: h5py.Group) -> Point:
    """Read the point of a group ``final``.

    Raises:
        ValueError: something in it is no numbers.
    """
    point = Point({}, {}, {})
    for block, node in final.items():
        if not isinstance(node, h5py.Group):  # of version 0.1
            point.flat[block] = _numbers(node, 1)
            continue
        values = {name: _numbers(data) for name, data in node.items()}
        point.flat[block] = np.concatenate([one.reshape(-1) for one in values.values()])
        point.shapes[block] = {name: one.shape for name, one in values.items()}
        named = {name: data.attrs.get(_NETWORK) for name, data in node.items()}
        point.network.update({own: (block, name) for name, own in named.items() if own is not None})
    return point


def _numbers(data, axes: int | None = None) -> np.ndarray:
    """The floating-point numbers of a dataset.

    Raises:
        ValueError: it has none, or another number of axes than expected.
    """
    numbers = isinstance(data, h5py.Dataset) and data.dtype.kind == "f"
    if not numbers or axes not in (None, data.ndim):
        raise ValueError(f"expected floating-point numbers of a point, found {data}")
    return data[...]
