"""Whether a user's module can be a network: it is tried on some samples before any work.

A fault is a sentence that goes on after the module's name, with the user's lines where they were in progress.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from mpifed.core.dropout import Dropping, Words
from mpifed.core.errors import user_frames

__all__ = [
    "Fault",
    "Tensors",
    "call",
    "constants",
    "expect_network",
    "expect_same",
    "first_names",
    "is_unfinished",
]

Tensors = dict[str, torch.Tensor]
#: Most groups that are proposed in the place of normalisation by the batch.
GROUPS = 32
#: Relative difference of one function's values by two kernels, in float32, with room.
ROUNDING = 1e-3


class Fault(ValueError):
    """What a module does that a network cannot."""


class _Draws(Exception):
    """Something is drawn."""


class _NoDraws(TorchDispatchMode):
    """Refuses whatever torch draws from its own generator."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        values = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and _rate(func, args, values) != 0:
            raise _Draws(str(func))
        return func(*args, **values)


def _rate(func, args, kwargs) -> float | None:
    """The rate of dropout of a fused attention, which is marked as drawing without any, too."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            return args[place] if place < len(args) else kwargs.get("dropout_p", 0.0)
    return None


def expect_network(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], outputs: int) -> bool:
    """Try a module on samples.

    Args:
        inputs: samples ``[b, ...]``, and what else it is called with.

    Returns:
        Whether it drops units in training.

    Raises:
        Fault: it cannot be a network.
    """
    _expect_layers(module)
    before = {name: tensor.clone() for name, tensor in module.named_buffers()}
    with _NoDraws():
        value, again = (call(module.eval(), inputs) for _ in range(2))
    _expect_shape(value, [len(inputs[0]), outputs], inputs)
    if not _close(again, value):
        raise Fault("puts out something else when it is called again: expected a function of samples alone")
    words = Words((0, 0), torch.zeros(3, dtype=torch.int64))
    with Dropping(words) as dropping, _NoDraws():
        trained = call(module.train(), inputs)
    if not dropping.used and not _close(trained, value):
        raise Fault(
            "puts out something else in training than in evaluation, and has no dropout: expected one "
            "function"
        )
    after = dict(module.named_buffers())
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after or not same(before[name], after[name]):
            raise Fault(f"writes to its buffer {name!r} in forward: expected buffers that stay as they are")
    return dropping.used


def _expect_layers(module: torch.nn.Module) -> None:
    """Raises:
    Fault: there is nothing to train, or a layer keeps statistics of batches.
    """
    for name, layer in module.named_modules():
        where = f"has {type(layer).__name__} at {name!r}" if name else f"is a {type(layer).__name__}"
        if isinstance(layer, _BatchNorm):
            width = layer.num_features
            groups = max(one for one in range(1, GROUPS + 1) if width % one == 0)
            raise Fault(
                f"{where}: it normalises by the batch, so that a batch's loss estimates no client's loss "
                "without bias, and its running averages are no variables and differ between clients: use "
                f"GroupNorm, nn.GroupNorm({groups}, {width})"
            )
        if isinstance(layer, _InstanceNorm) and layer.track_running_stats:
            raise Fault(
                f"{where}, which keeps running averages of batches: expected track_running_stats=False, or "
                "GroupNorm"
            )
    trained = {name: one for name, one in module.named_parameters() if one.requires_grad}
    if not trained:
        raise Fault("has no parameters to train")
    for name, one in trained.items():
        if not one.is_floating_point():
            kind = str(one.dtype).removeprefix("torch.")
            raise Fault(f"has the parameter {name!r} of type {kind}: expected real numbers")


def call(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]):
    """What a module puts out.

    Raises:
        Fault: it raises an error, or draws from torch's generator where :class:`_NoDraws` is on.
    """
    try:
        return module(*inputs)
    except _Draws as error:
        said = (
            f"draws in forward ({error}): expected no other draws than those of torch.nn's Dropout layers "
            "and attention, and of torch.nn.functional.dropout"
        )
        raise Fault(f"{said}\n{user_frames(error)}".rstrip()) from None
    except Exception as error:  # a user's code may raise anything
        said = f"does not take {_described(inputs)}: {type(error).__name__}: {error}"
        raise Fault(f"{said}\n{user_frames(error)}".rstrip()) from error


def _described(inputs: tuple[torch.Tensor, ...]) -> str:
    samples, *rest = inputs
    axes = {2: "batch, d", 3: "batch, length, d", 4: "batch, c, h, w"}.get(samples.dim(), "batch, ...")
    more = f" with lengths [{len(rest[0])}]" if rest else ""
    return f"samples of shape {list(samples.shape)} ({axes}){more}"


def _expect_shape(value, shape: list[int], inputs: tuple[torch.Tensor, ...]) -> None:
    expected = f"for {_described(inputs)}: expected a tensor {shape} (batch, outputs)"
    if not isinstance(value, torch.Tensor):
        raise Fault(f"returns a {type(value).__name__} {expected}")
    if list(value.shape) != shape:
        raise Fault(f"puts out the shape {list(value.shape)} {expected}")
    if not value.is_floating_point():
        raise Fault(f"puts out {str(value.dtype).removeprefix('torch.')} {expected} of numbers")


def _close(one, other) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, ROUNDING, ROUNDING, equal_nan=True)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors hold the same."""
    alike = one.shape == other.shape and one.dtype == other.dtype
    return alike and bool(((one == other) | ((one != one) & (other != other))).all())


def expect_same(one: Tensors, other: Tensors, fault: str) -> None:
    """Raises:
    Fault: a tensor is not the same in both.
    """
    for name in sorted(one.keys() | other.keys()):
        if name not in one or name not in other or not same(one[name], other[name]):
            raise Fault(f"has {name!r}, which {fault}")


def first_names(module: torch.nn.Module) -> dict[str, str]:
    """The name of each trained parameter, and of one with several names the first."""
    first: dict[int, str] = {}
    named = [pair for pair in module.named_parameters(remove_duplicate=False) if pair[1].requires_grad]
    return {name: first.setdefault(id(one), name) for name, one in named}


def constants(module: torch.nn.Module) -> Tensors:
    """Buffers and frozen parameters."""
    frozen = (pair for pair in module.named_parameters(remove_duplicate=False) if not pair[1].requires_grad)
    both: Iterator = (*module.named_buffers(remove_duplicate=False), *frozen)  # type: ignore[assignment]
    return {name: tensor.detach() for name, tensor in both}


def cast(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """A tensor on a device; numbers, real or complex, in a precision."""
    if tensor.is_complex():
        return tensor.to(device, dtype.to_complex())
    return tensor.to(device, dtype if tensor.is_floating_point() else None)


def is_unfinished(module: torch.nn.Module) -> bool:
    """Whether a layer is lazy: its parameters come with the first samples."""
    return any(is_lazy(one) for one in (*module.parameters(), *module.buffers()))
