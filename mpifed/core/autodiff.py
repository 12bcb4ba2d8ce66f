"""Derivatives of a problem's functions, for one client or vectorised over several.

**One client.** The point is copied into leaf tensors that are created once, because creating leaf tensors as
views of the point in every step costs more, for small and for large models. In small models, ``backward``
adds to gradients that are views of one flat vector, which saves calls per parameter. In large models, it
returns the gradients that it computes, which saves passes over memory. Both give the same gradients.

**Several clients.** ``torch.func.vmap`` vectorises the loss over the clients, and the sum of the losses is
differentiated. The gradient of the sum with respect to a client's parameters is the gradient of its own loss.
``vmap`` decomposes ``F.linear`` so that the gradients of weights are computed transposed and copied when they
are concatenated, which takes a third of the time of an MLP 784-128-10, and an eighth with two layers of 200.
:func:`_linear` multiplies in the other order, which avoids the copies.

**Reproducibility.** Two properties of torch's CPU kernels would make the results of a vectorised client
depend on its position in the group and on the size of the group:

* Vectorised elementwise loops process two vector registers at a time and leave the last elements of an array
  to scalar code. For the functions in :data:`ELEMENTWISE`, the scalar code rounds differently: with AVX2 and
  AVX-512, 1 to 40 % of the elements differ in the last bit. Their arguments are padded here to a multiple of
  two registers, so that no element is left to the scalar code; the sigmoid is composed of functions that are
  vectorised to the end of an array.
* The products of MKL depend on the alignment of their operands, unless ``MKL_CBWR`` is set before its first
  call. Importing mpifed sets it (see :mod:`mpifed`).

A function that torch or an extension calls inside C++ code cannot be replaced here. Therefore the job's
functions are compared at several positions before the first round (``simulation.client_batching``).

**Compilation.** ``torch.compile`` receives one function that computes the gradients of all clients of a group
from flat points and minibatches, forward and backward pass together, with the same shapes in every step. On a
GPU the mode "reduce-overhead" captures that function as a CUDA graph: torch warms it up on a side stream,
copies its arguments into fixed memory, and replays it. The method's updates are not part of the graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from mpifed.base.nested import mapped
from mpifed.core.records import Blocks

__all__ = ["ClientAxis", "Evaluation", "Gradients", "PLAIN", "position_independent", "vectorised"]

#: Elementwise functions whose scalar and vectorised code round differently (torch 2.13, AVX2 and AVX-512).
ELEMENTWISE = (
    "sigmoid", "expit", "silu", "mish", "gelu", "elu", "celu", "selu", "softplus", "sinh", "cosh", "exp2",
    "atanh", "arctanh", "atan2", "arctan2", "logaddexp", "logaddexp2", "hypot", "ldexp", "float_power",
)  # fmt: skip
#: Exponents that torch evaluates by arithmetic alone.
_ARITHMETIC = (-2, -1, -0.5, 0, 0.5, 1, 2, 3)
#: Bytes of two of the widest vector registers.
_REGISTERS = 128
#: Padding value, at which all the functions and their derivatives are finite.
_PADDING = 0.5


def vectorised(function: Callable, twice: bool = False) -> Callable:
    """Vectorise ``function`` over clients: arguments and results get a leading axis, ``[C, ...]``.

    Args:
        twice: whether the function is differentiated twice.
    """
    over_clients = torch.func.vmap(function)

    def apply(*arguments):
        with ClientAxis(twice):
            return over_clients(*arguments)

    return apply


def position_independent(function: Callable) -> Callable:
    """Wrap a vectorised ``function`` so that no client's result depends on its position.

    If the first evaluation calls no function that :class:`ClientAxis` replaces, later evaluations do not use
    it, because intercepting the calls of torch takes half the time of a small function.
    """
    intercept = True

    def apply(*arguments):
        nonlocal intercept
        if not intercept:
            return function(*arguments)
        with ClientAxis() as axis:
            result = function(*arguments)
        intercept = axis.replaced
        return result

    return apply


class ClientAxis(TorchFunctionMode):
    """A context that replaces functions of torch whose results depend on the position in an array.

    Attributes:
        replaced: whether any call has been replaced.
    """

    replaced = False

    def __init__(self, twice: bool = False):
        super().__init__()
        self._replacements = _TWICE if twice else _REPLACEMENTS

    def __torch_function__(self, func, types, args=(), kwargs=None):
        replacement = self._replacements.get(func)
        if replacement is None:
            return func(*args) if kwargs is None else func(*args, **kwargs)
        self.replaced = True
        return replacement(func, *args, **(kwargs or {}))


def _linear(
    func: Callable, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Compute ``F.linear`` as (W hᵀ)ᵀ + b."""
    if input.dim() < 2 or weight.dim() < 2:
        return func(input, weight, bias)
    rows = input.flatten(0, -2)
    value = (weight @ rows.mT).mT.unflatten(0, input.shape[:-1])
    return value if bias is None else value + bias


def _padded(func: Callable, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Compute an elementwise function of arguments that are padded to a multiple of two registers."""
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    if not all(map(_on_cpu, tensors)) or "out" in kwargs:
        return func(*args, **kwargs)
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
    number = shape.numel()
    more = -number % (_REGISTERS // min(tensor.element_size() for tensor in tensors))
    if not more:
        return func(*args, **kwargs)

    def padded(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if value.shape != shape:
            value = value.expand(shape)
        return F.pad(value if len(shape) == 1 else value.reshape(-1), (0, more), value=_PADDING)

    result = func(*map(padded, args), **{name: padded(value) for name, value in kwargs.items()})
    result = result.narrow(0, 0, number)
    if len(shape) != 1:
        result = result.reshape(shape)
    name = func.__name__
    in_place = kwargs.get("inplace", False) or any(value is True for value in args)
    in_place = in_place or (name.endswith("_") and not name.endswith("__"))
    return args[0].copy_(result) if in_place else result


def _on_cpu(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.device.type == "cpu"


def _sigmoid(func: Callable, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Compute the sigmoid as exp(log σ(v)), which takes a third of the time of padding.

    The result differs from torch's by at most |v| + 1 units in the last place.
    """
    if len(args) != 1 or kwargs or not _on_cpu(args[0]):
        return _padded(func, *args, **kwargs)
    return F.logsigmoid(args[0]).exp()


def _power(func: Callable, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Compute a power; exponents that torch evaluates by arithmetic need no padding."""
    exponent = args[1] if len(args) > 1 else kwargs.get("exponent")
    if not isinstance(exponent, torch.Tensor) and exponent in _ARITHMETIC:
        return func(*args, **kwargs)
    return _padded(func, *args, **kwargs)


def _functions(names: Sequence[str], ends: Sequence[str] = ("", "_")) -> set[Callable]:
    """Return the functions of torch with these names, by default also those that write in place."""
    namespaces = (torch, F, torch.special, torch.Tensor)
    pairs = [(namespace, name + end) for namespace in namespaces for name in names for end in ends]
    return {getattr(namespace, name) for namespace, name in pairs if hasattr(namespace, name)}


_REPLACEMENTS: dict[Callable, Callable] = {
    **dict.fromkeys(_functions(ELEMENTWISE), _padded),
    **dict.fromkeys(_functions(["sigmoid", "expit"], [""]), _sigmoid),
    **dict.fromkeys(_functions(["pow", "__pow__", "__rpow__"]), _power),
    F.linear: _linear,
}
#: The same for functions that are differentiated twice: the second derivative of ``F.logsigmoid`` in torch
#: contains the sigmoid.
_TWICE = _REPLACEMENTS | dict.fromkeys(_functions(["sigmoid", "expit", "logsigmoid"], [""]), _padded)


#: Number of parameters per client from which passes over memory cost more than calls per parameter.
LARGE = 2**15


class Gradients:
    """Differentiates ``loss(*blocks, batch)`` with respect to all its blocks."""

    def __init__(self, loss: Callable, blocks: Blocks):
        self._loss, self._vectorised, self._blocks = loss, vectorised(loss), blocks
        self._vectorised_twice = vectorised(loss, twice=True)
        self._sizes = [[math.prod(shape) for shape in blocks[block].values()] for block in blocks]
        self._leaves: _Leaves | None = None

    def single(self, point: Sequence[torch.Tensor], batch: tuple) -> torch.Tensor:
        """Return the gradient of one client, all blocks concatenated, ``[1, d]``.

        Args:
            point: the blocks, ``[1, d]`` or ``[d]``.
            batch: its minibatch, without the client axis.
        """
        if self._leaves is None:
            self._leaves = _Leaves(self._blocks, point[0])
        self._leaves.set(point)
        self._evaluate(self._loss, self._leaves.named, batch).backward()
        return self._leaves.gradient()

    def several(self, point: Sequence[torch.Tensor], batch: tuple, count: int) -> torch.Tensor:
        """Return the gradients of ``count`` clients, all blocks concatenated, ``[C, d]``.

        Args:
            point: the blocks, ``[C, d]`` or ``[d]``.
            batch: the minibatches, with the client axis.
        """
        rows = [block if block.dim() > 1 else block.expand(count, -1).contiguous() for block in point]
        named = self._views(rows)
        return self._differentiate(named, self._evaluate(self._vectorised, named, batch), count)

    def products(
        self, point: Sequence[torch.Tensor], v: torch.Tensor, batch: tuple, count: int | None = None
    ) -> torch.Tensor:
        """Return the products of the second derivatives in (x, y) and y with v, ``[C, dx + dy]``.

        The gradient in y is differentiated again, in one reverse pass for both blocks.

        Args:
            point: x and y, ``[C, d]`` or ``[d]``.
            v: vector of the size of y, ``[C, dy]`` or ``[dy]``.
            batch: the minibatches, with the client axis if ``count`` is given.
            count: number of clients C; ``None`` for one client without a client axis.
        """
        if count is None:
            rows, loss = [block.reshape(-1) for block in point], self._loss
        else:
            rows = [block.expand(count, -1).contiguous() for block in point]
            loss, v = self._vectorised_twice, v.expand(count, -1)
        named = self._views(rows)
        value = self._evaluate(loss, named, batch)
        with torch.enable_grad():
            slopes = torch.autograd.grad(
                value,
                list(named[1].values()),
                torch.ones_like(value),
                create_graph=True,
                materialize_grads=True,
            )
            slope = torch.cat([_flat(part, count or 1) for part in slopes], dim=1)
            along = (slope * v).sum()
        leaves = [leaf for block in named for leaf in block.values()]
        if not along.requires_grad:  # the gradient in y is constant
            return torch.cat([torch.zeros_like(leaf).reshape(count or 1, -1) for leaf in leaves], dim=1)
        parts = torch.autograd.grad(along, leaves, materialize_grads=True)
        return torch.cat([_flat(part, count or 1) for part in parts], dim=1)

    def _evaluate(self, loss: Callable, named: list[dict[str, torch.Tensor]], batch: tuple) -> torch.Tensor:
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(True)
        try:
            return loss(*named, batch)
        finally:
            torch.set_grad_enabled(before)

    def _views(self, point: list[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        """Return the named parameters of a point, ``[..., *shape]``, as leaf tensors that are views of it."""
        return [
            {
                name: part.view((*flat.shape[:-1], *shape)).requires_grad_()
                for part, (name, shape) in zip(flat.detach().split(sizes, -1), self._blocks[block].items())
            }
            for block, sizes, flat in zip(self._blocks, self._sizes, point)
        ]

    def _differentiate(
        self, named: list[dict[str, torch.Tensor]], value: torch.Tensor, count: int
    ) -> torch.Tensor:
        """Return the gradients of ``value`` with respect to all parameters, ``[count, d]``."""
        leaves = [leaf for block in named for leaf in block.values()]
        parts = torch.autograd.grad(value, leaves, torch.ones_like(value), materialize_grads=True)
        return torch.cat([_flat(part, count) for part in parts], dim=1)


def _flat(gradient: torch.Tensor, count: int) -> torch.Tensor:
    """Return a gradient ``[C, ...]`` as ``[C, d]``; that of an embedding may be sparse."""
    return (gradient.to_dense() if gradient.is_sparse else gradient).reshape(count, -1)


class _Leaves:
    """Leaf tensors of one client's parameters, which are reused in every step.

    Attributes:
        named: the leaf tensors by block and name, views of flat blocks.
    """

    def __init__(self, blocks: Blocks, like: torch.Tensor):
        split = tuple(blocks.sizes.values())
        self._point = like.new_zeros(1, sum(split)).split(split, dim=1)
        self.named = [
            {name: view.detach().requires_grad_() for name, view in blocks.unflatten(block, flat[0]).items()}
            for block, flat in zip(blocks, self._point)
        ]
        self._leaves = [leaf for named in self.named for leaf in named.values()]
        self._gradient: torch.Tensor | None = None
        if sum(split) < LARGE:
            self._gradient = like.new_zeros(1, sum(split))
            for block, named, flat in zip(blocks, self.named, self._gradient.split(split, dim=1)):
                for leaf, view in zip(named.values(), blocks.unflatten(block, flat[0]).values()):
                    leaf.grad = view

    def set(self, point: Sequence[torch.Tensor]) -> None:
        """Copy a point, ``[1, d]`` or ``[d]`` per block, and remove the gradient of the previous one."""
        for flat, block in zip(self._point, point):
            flat.copy_(block)
        if self._gradient is not None:
            self._gradient.zero_()
            return
        for leaf in self._leaves:
            leaf.grad = None

    def gradient(self) -> torch.Tensor:
        """Return the gradient that ``backward`` has computed, all blocks concatenated ``[1, d]``."""
        if self._gradient is not None:
            return self._gradient.clone()
        parts = [
            leaf.new_zeros(1, leaf.numel()) if leaf.grad is None else _flat(leaf.grad, 1)
            for leaf in self._leaves
        ]
        return torch.cat(parts, dim=1)


#: The backend of ``torch.compile``.
BACKEND = "inductor"


class Evaluation(NamedTuple):
    """Compilation and precision of the losses that autograd differentiates.

    Attributes:
        compile: a mode of ``torch.compile``, or "none".
        autocast: the dtype of ``torch.autocast``, or "none".
    """

    compile: str = "none"
    autocast: str = "none"

    def mixed(self, function: Callable, device: torch.device) -> Callable:
        """Return a problem's function under autocast. Points, batches and values keep their dtypes."""
        if self.autocast == "none":
            return function
        dtype = getattr(torch, self.autocast)

        def cast(*arguments):
            with torch.autocast(device.type, dtype):
                value = function(*arguments)
            return value.to(torch.float32)

        return cast

    def compiled(self, function: Callable, dynamic: bool | None) -> Callable:
        """Compile a function of tensors as one graph if the job requests compilation.

        Code that torch has compiled for earlier runs in this process is discarded, because results would
        depend on it.

        Args:
            dynamic: ``False`` compiles separate code for each shape. ``None`` compiles code for several
                shapes when a second shape occurs, so that results depend on the shapes before.
        """
        if self.compile == "none":
            return function
        torch.compiler.reset()
        whole = torch.compile(function, mode=self.compile, fullgraph=True, dynamic=dynamic, backend=BACKEND)
        if self.compile == "default":
            return lambda *arguments: whole(*mapped(torch.Tensor.contiguous, arguments))

        def replayed(*arguments):
            torch.compiler.cudagraph_mark_step_begin()
            results = whole(*mapped(torch.Tensor.contiguous, arguments))
            return mapped(torch.clone, results)  # the next replay writes to the same memory

        return replayed


#: Neither compiled nor in mixed precision.
PLAIN = Evaluation()
