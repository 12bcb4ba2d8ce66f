"""A user-defined ``torch.nn.Module`` as a network: its class, a function that creates one, or an object.

A module is called with a point's parameters in place of its own (``torch.func.functional_call``), so that it
is a pure function like the built-in networks and can be vectorised over clients. It is tried on samples
before the run.

* Parameters are variables. A parameter that several layers share counts once, under its first name. A frozen
  parameter (``requires_grad = False``) is not a variable: like a buffer it keeps its initial value.
* Buffers are constants: a table of positions, a mask. A random buffer is refused, because it would depend on
  no seed of the run, and so is a ``forward`` that writes to a buffer.
* Batch normalisation is refused: it couples the samples of a batch, so that the batch's loss estimates no
  client's loss without bias, and its running averages are neither variables nor equal among heterogeneous
  clients (Hsieh et al., 2020).
* Dropout draws by address (``core.sampling``) in gradients and is off in evaluations. Any other random
  operation in ``forward`` is refused, and so is a module that differs in training for any other reason.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils._python_dispatch import TorchDispatchMode

from mpifed.base.errors import ConfigError, user_frames
from mpifed.base.plugins import UserObject
from mpifed.core.sampling import Dropping, Words, held
from mpifed.models.base import Network, Params, Shapes

__all__ = ["Module", "SequenceModule"]

Tensors = dict[str, torch.Tensor]
#: Number of samples in a trial batch.
BATCH = 3
#: Most groups that are suggested in place of batch normalisation.
GROUPS = 32
#: Relative difference of the same function by two kernels, in float32, with a margin.
ROUNDING = 1e-3
_BATCH_NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm
_INSTANCE_NORMS = nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d


class Module(UserObject, Network):
    """The network of a user-defined module.

    Parameters have the module's names, so that the network's part of a point is the module's ``state_dict``
    without buffers and frozen parameters; :meth:`module` converts it back.

    Attributes:
        drops: whether it uses dropout in training; known after :meth:`shapes`.
    """

    kind = "an nn.Module class, or a function that returns one"
    drops = False

    @classmethod
    def fits(cls, value: Any) -> bool:
        """Whether a value creates modules: a class of modules, or a function."""
        if isinstance(value, type):
            return issubclass(value, nn.Module)
        return callable(value) and not isinstance(value, nn.Module)

    @classmethod
    def fingerprint(cls, value: Any) -> str | None:
        """A digest of the layers and the tensors of a module."""
        if not isinstance(value, nn.Module):
            return None
        digest = hashlib.sha256(repr(value).encode())
        for name, tensor in [*value.named_parameters(), *value.named_buffers()]:
            digest.update(f"{name} {tensor.dtype} {tensor.requires_grad}".encode())
            if not _is_lazy(tensor):
                digest.update(
                    tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
                )
        return digest.hexdigest()

    def shapes(self, sample_shape: tuple[int, ...], outputs: int) -> Shapes:
        """Shapes of the parameters, in the module's order, for samples of shape ``(c, h, w)`` or ``(d,)``.

        Raises:
            ConfigError: the module cannot be created, does not take such samples, has outputs of another
                shape, or has a property that a network cannot have.
        """
        generator = torch.Generator().manual_seed(0)
        self._samples = torch.rand(BATCH, *sample_shape, dtype=torch.float64, generator=generator)
        self._placed = {}
        with self._explained():
            made, again = self._made(0), self._made(0)
            _expect_same(
                _state(made), _state(again), "differs when the module is created again from one seed"
            )
            self._held = _constants(made)
            _expect_same(
                self._held,
                _constants(self._made(1)),
                "is random and not a parameter to train: expected a constant",
            )
            made = _cast_module(made, torch.get_default_dtype())
            self.drops = _expect_network(made, self._inputs(), outputs)
        self._train, self._eval = made.train(), copy.deepcopy(made).eval()
        self._names = _first_names(made)
        self.place(torch.device("cpu"), torch.get_default_dtype())
        own = dict(made.named_parameters())
        return {name: tuple(own[name].shape) for name in dict.fromkeys(self._names.values())}

    def initial(self, shapes: Shapes, rng: np.random.Generator) -> Tensors:  # type: ignore[override]
        """The parameters of an object, or of the module that a class or function creates with torch's
        generator seeded from ``rng``; float64."""
        own = dict(self._made(int(rng.integers(2**63))).named_parameters())
        return {name: own[name].detach().double() for name in shapes}

    def place(self, device: torch.device, dtype: torch.dtype) -> None:
        """Store buffers and frozen parameters on a device, in a precision."""
        device = torch.empty(0, device=device).device  # "cuda" becomes the current device
        self._placed[device.type, device.index, dtype] = self._held_on(device, dtype)

    def _held_on(self, device: torch.device, dtype: torch.dtype) -> Tensors:
        return {name: _cast(tensor, device, dtype) for name, tensor in self._held.items()}

    def __call__(self, params: Params, *inputs: torch.Tensor) -> torch.Tensor:
        """Outputs ``[b, outputs]`` for samples ``[b, ...]``, with dropout where a sample's address is set."""
        like = params[next(iter(self._names.values()))]
        place = like.device.type, like.device.index, like.dtype
        # Tensors created inside a derivative must not be stored.
        fixed = self._placed[place] if place in self._placed else self._held_on(like.device, like.dtype)
        values = fixed | {name: params[first] for name, first in self._names.items()}
        words = held() if self.drops else None
        if words is None:
            return torch.func.functional_call(self._eval, values, inputs, tie_weights=False)
        with Dropping(words):
            return torch.func.functional_call(self._train, values, inputs, tie_weights=False)

    def fixed(self) -> tuple[Tensors, dict[str, str]]:
        """Buffers and frozen parameters, and further names of shared ones; known after :meth:`shapes`."""
        names = self._eval.state_dict()
        tied = {name: first for name, first in self._names.items() if name != first and name in names}
        return {name: tensor for name, tensor in self._held.items() if name in names}, tied

    def module(self, params: Params) -> torch.nn.Module:
        """The user's module on the CPU, in evaluation mode and the precision of ``params``, with these
        parameters; other names are ignored. Does not need :meth:`shapes`.

        Raises:
            ConfigError: the module cannot be created, or ``params`` lacks one of its parameters.
        """
        with self._explained():
            made = self._bare(0)
            names = _first_names(made)
            if lacking := sorted(name for name, first in names.items() if first not in params):
                raise Fault(f"has the parameter {lacking[0]!r}, which is not among the weights")
        values = {name: params[first].detach().cpu() for name, first in names.items()}
        _cast_module(made, next(iter(values.values())).dtype).load_state_dict(values, strict=False)
        return made.eval()

    def _inputs(self) -> tuple[torch.Tensor, ...]:
        return (self._samples.to(torch.get_default_dtype()),)

    def _bare(self, seed: int) -> torch.nn.Module:
        """The module as the user creates it; a class or function draws its parameters in float64."""
        if self.is_instance:
            return copy.deepcopy(self.given).cpu()
        with _drawn_from(seed):
            made = self.make()
        if not isinstance(made, nn.Module):
            raise Fault(f"returns a {type(made).__name__}: expected an nn.Module")
        return made.cpu()

    def _made(self, seed: int) -> torch.nn.Module:
        """The module, with the parameters of lazy layers."""
        made = self._bare(seed)
        if any(map(_is_lazy, (*made.parameters(), *made.buffers()))):
            if self.is_instance:
                raise Fault("has lazy layers: call it once on samples before, or name its class")
            with _drawn_from(seed), torch.no_grad():
                _call(made, self._inputs())
        return made

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except Fault as fault:
            raise ConfigError(f"the network {self} {fault}") from fault.__cause__


class SequenceModule(Module):
    """A module that reads sequences of vectors: ``forward(vectors, lengths)`` with ``[b, length, d]`` and
    int64 ``[b]``, the number of valid vectors of each sequence, from the first on."""

    def _inputs(self) -> tuple[torch.Tensor, ...]:
        length = self._samples.shape[1]
        return *super()._inputs(), torch.arange(BATCH) % length + 1


@contextlib.contextmanager
def _drawn_from(seed: int) -> Iterator[None]:
    """Seed torch's generator and make float64 the default type."""
    dtype = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)


def _state(module: nn.Module) -> Tensors:
    return {name: tensor.detach() for name, tensor in (*module.named_parameters(), *module.named_buffers())}


class Fault(ValueError):
    """A property of a module that a network cannot have; the message continues the module's name."""


class _Draws(Exception):
    """An operation draws random numbers."""


class _NoDraws(TorchDispatchMode):
    """Refuses operations that draw from torch's generator."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        values = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and _rate(func, args, values) != 0:
            raise _Draws(str(func))
        return func(*args, **values)


def _rate(func, args, kwargs) -> float | None:
    """The dropout rate of a fused attention, which torch marks as random even at rate 0."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            return args[place] if place < len(args) else kwargs.get("dropout_p", 0.0)
    return None


def _expect_network(module: nn.Module, inputs: tuple[torch.Tensor, ...], outputs: int) -> bool:
    """Whether a module uses dropout, found by calling it on inputs: samples ``[b, ...]`` and further
    arguments.

    Raises:
        Fault: it cannot be a network.
    """
    _expect_layers(module)
    before = {name: tensor.clone() for name, tensor in module.named_buffers()}
    with _NoDraws():
        value, again = (_call(module.eval(), inputs) for _ in range(2))
    _expect_shape(value, [len(inputs[0]), outputs], inputs)
    if not _close(again, value):
        raise Fault("gives another output when called again: expected a function of samples alone")
    words = Words((0, 0), torch.zeros(3, dtype=torch.int64))
    with Dropping(words) as dropping, _NoDraws():
        trained = _call(module.train(), inputs)
    if not dropping.used and not _close(trained, value):
        raise Fault(
            "gives another output in training than in evaluation, and has no dropout: expected the same "
            "function"
        )
    after = dict(module.named_buffers())
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after or not _same(before[name], after[name]):
            raise Fault(f"writes to its buffer {name!r} in forward: expected buffers that stay as they are")
    return dropping.used


def _expect_layers(module: nn.Module) -> None:
    """Raises:
    Fault: there are no parameters to train, or a layer keeps batch statistics.
    """
    for name, layer in module.named_modules():
        where = f"has {type(layer).__name__} at {name!r}" if name else f"is a {type(layer).__name__}"
        if isinstance(layer, _BATCH_NORMS):
            width = layer.num_features
            groups = max(count for count in range(1, GROUPS + 1) if width % count == 0)
            raise Fault(
                f"{where}: it normalises by the batch, so that a batch's loss estimates no client's loss "
                "without bias, and its running averages are no variables and differ between clients: use "
                f"GroupNorm, nn.GroupNorm({groups}, {width})"
            )
        if isinstance(layer, _INSTANCE_NORMS) and layer.track_running_stats:
            raise Fault(
                f"{where}, which keeps running averages of batches: expected track_running_stats=False, or "
                "GroupNorm"
            )
    trained = {name: tensor for name, tensor in module.named_parameters() if tensor.requires_grad}
    if not trained:
        raise Fault("has no parameters to train")
    for name, tensor in trained.items():
        if not tensor.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise Fault(f"has the parameter {name!r} of type {kind}: expected real numbers")


def _call(module: nn.Module, inputs: tuple[torch.Tensor, ...]):
    """The output of a module.

    Raises:
        Fault: it raises an error, or draws from torch's generator under :class:`_NoDraws`.
    """
    try:
        return module(*inputs)
    except _Draws as error:
        text = (
            f"draws in forward ({error}): expected no other draws than those of torch.nn's Dropout layers "
            "and attention, and of torch.nn.functional.dropout"
        )
        raise Fault(f"{text}\n{user_frames(error)}".rstrip()) from None
    except Exception as error:  # a user's code may raise anything
        text = f"does not take {_described(inputs)}: {type(error).__name__}: {error}"
        raise Fault(f"{text}\n{user_frames(error)}".rstrip()) from error


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
        raise Fault(f"has outputs of shape {list(value.shape)} {expected}")
    if not value.is_floating_point():
        raise Fault(f"has outputs of type {str(value.dtype).removeprefix('torch.')} {expected} of numbers")


def _close(one, other) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, ROUNDING, ROUNDING, equal_nan=True)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are equal, with NaN equal to NaN."""
    return (
        one.shape == other.shape
        and one.dtype == other.dtype
        and bool(((one == other) | ((one != one) & (other != other))).all())
    )


def _expect_same(one: Tensors, other: Tensors, fault: str) -> None:
    """Raises:
    Fault: a tensor differs.
    """
    for name in sorted(one.keys() | other.keys()):
        if name not in one or name not in other or not _same(one[name], other[name]):
            raise Fault(f"has {name!r}, which {fault}")


def _first_names(module: nn.Module) -> dict[str, str]:
    """Each name of a trained parameter → its first name."""
    first: dict[int, str] = {}
    named = module.named_parameters(remove_duplicate=False)
    return {name: first.setdefault(id(tensor), name) for name, tensor in named if tensor.requires_grad}


def _constants(module: nn.Module) -> Tensors:
    """Buffers and frozen parameters."""
    parameters = module.named_parameters(remove_duplicate=False)
    frozen = [pair for pair in parameters if not pair[1].requires_grad]
    pairs = [*module.named_buffers(remove_duplicate=False), *frozen]
    return {name: tensor.detach() for name, tensor in pairs}


def _cast(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """A tensor on a device, real and complex numbers in a precision."""
    if tensor.is_complex():
        return tensor.to(device, dtype.to_complex())
    return tensor.to(device, dtype if tensor.is_floating_point() else None)


def _cast_module(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module with its real and complex numbers in a precision, on the CPU."""
    for parameter in module.parameters():
        parameter.data = _cast(parameter.data, torch.device("cpu"), dtype)
    for name, buffer in module.named_buffers(remove_duplicate=False):
        owner, _, last = name.rpartition(".")
        setattr(module.get_submodule(owner), last, _cast(buffer, torch.device("cpu"), dtype))
    return module


def _is_lazy(tensor: torch.Tensor) -> bool:
    """Whether a tensor is created with the first samples."""
    return isinstance(tensor, UninitializedParameter | UninitializedBuffer)
