"""Derivatives of a problem's functions, for one client or vectorised over several.

One client's small parameters are copied into leaves of the autograd graph that are created once and whose
gradients are views of one flat vector, so no Python object is created per parameter. For large parameters the
additional pass over memory costs more than that, and leaves are created as views of the point itself. Both
give bitwise identical gradients. For several clients the loss is mapped over the clients, and the sum of the
losses is differentiated outside of the map, which gives each client's parameters its own gradient.

**vmap.** ``vmap`` splits ``F.linear`` so that every weight's gradient comes out transposed, and is copied
where gradients are concatenated: a third of the time of an MLP 784-128-10, an eighth with two layers of 200.
With the weight on the left of its product, every gradient is stored as it is needed.

**Reproducibility.** Two properties of torch's CPU kernels would make a client's results depend on its
position among the clients that are vectorised, and on their number:

* Vectorised elementwise loops process two vector registers at a time and leave the last elements of an array
  to scalar code. For the functions in :data:`ELEMENTWISE`, the scalar code rounds differently: with AVX2 and
  AVX-512, 1 to 40 % of the elements differ in the last bit. Their arguments are padded here to a multiple of
  two registers, so that no element is left to the scalar code; the sigmoid is composed of functions that are
  vectorised to the end of an array.
* The products of MKL depend on the alignment of their operands, unless ``MKL_CBWR`` is set before its first
  call. Importing mpifed sets it (see :mod:`mpifed`).

A function that torch or an extension calls inside C++ code cannot be replaced here. Therefore the job's
functions are compared at several positions before the first round (``simulation.client_batching``).

**Compilation.** The compiler receives the gradient of all clients that are stepped together as one function
of flat points and minibatches, forward and backward pass in one, whose shapes stay the same from step to
step. On a GPU the mode "reduce-overhead" captures that function as a CUDA graph: torch warms it up on a side
stream, copies its arguments into fixed memory, and replays it. The method's updates stay outside the graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from mpifed.core.records import Blocks

__all__ = ["ClientAxis", "Evaluation", "Gradients", "PLAIN", "mapped", "over_clients"]

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


def mapped(function: Callable) -> Callable:
    """Vectorise ``function`` over clients: arguments and results get a leading axis, ``[C, ...]``."""
    together = torch.func.vmap(function)

    def apply(*arguments):
        with ClientAxis():
            return together(*arguments)

    return apply


def over_clients(function: Callable) -> Callable:
    """Wrap a vectorised ``function`` so that no client's result depends on its position.

    The first evaluation shows whether the function calls one that is replaced. If not, it is evaluated
    without replacements from then on, since intercepting every call of torch costs half the time of a small
    function.
    """
    replaced = True

    def apply(*arguments):
        nonlocal replaced
        if not replaced:
            return function(*arguments)
        with ClientAxis() as axis:
            result = function(*arguments)
        replaced = axis.replaced
        return result

    return apply


class ClientAxis(TorchFunctionMode):
    """Replaces functions of torch whose results for a client depend on its position among others.

    Attributes:
        replaced: whether any call has been replaced.
    """

    replaced = False

    def __torch_function__(self, func, types, args=(), kwargs=None):
        replacement = _REPLACEMENTS.get(func)
        if replacement is None:
            return func(*args) if kwargs is None else func(*args, **kwargs)
        self.replaced = True
        return replacement(func, *args, **(kwargs or {}))


def _linear(
    func: Callable, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """``F.linear`` as (W hᵀ)ᵀ + b."""
    if input.dim() < 2 or weight.dim() < 2:
        return func(input, weight, bias)
    rows = input.flatten(0, -2)
    value = (weight @ rows.mT).mT.unflatten(0, input.shape[:-1])
    return value if bias is None else value + bias


def _padded(func: Callable, *args: Any, **kwargs: Any) -> torch.Tensor:
    """An elementwise function of arguments whose number of elements is a multiple of two registers."""
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
    """The sigmoid as exp(log σ(v)), a third of the cost of padding: torch's values to |v| + 1 units in the
    last place."""
    if len(args) != 1 or kwargs or not _on_cpu(args[0]):
        return _padded(func, *args, **kwargs)
    return F.logsigmoid(args[0]).exp()


def _power(func: Callable, *args: Any, **kwargs: Any) -> torch.Tensor:
    """A power; the exponents of squares and roots need no padding."""
    exponent = args[1] if len(args) > 1 else kwargs.get("exponent")
    if not isinstance(exponent, torch.Tensor) and exponent in _ARITHMETIC:
        return func(*args, **kwargs)
    return _padded(func, *args, **kwargs)


def _functions(names: Sequence[str], ends: Sequence[str] = ("", "_")) -> set[Callable]:
    """The functions of these names, and those that write in place."""
    places = (torch, F, torch.special, torch.Tensor)
    found = [(place, name + end) for place in places for name in names for end in ends]
    return {getattr(place, name) for place, name in found if hasattr(place, name)}


_REPLACEMENTS: dict[Callable, Callable] = {
    **dict.fromkeys(_functions(ELEMENTWISE), _padded),
    **dict.fromkeys(_functions(["sigmoid", "expit"], [""]), _sigmoid),
    **dict.fromkeys(_functions(["pow", "__pow__", "__rpow__"]), _power),
    F.linear: _linear,
}


#: Number of parameters from which a pass over them costs more than creating leaves and joining gradients.
LARGE = 2**16


class Gradients:
    """Differentiates ``loss(*blocks, batch)`` with respect to all its blocks."""

    def __init__(self, loss: Callable, blocks: Blocks):
        self._loss, self._mapped, self._blocks = loss, mapped(loss), blocks
        self._sizes = [[math.prod(shape) for shape in blocks[block].values()] for block in blocks]
        self._large = sum(map(sum, self._sizes)) >= LARGE
        self._leaves: _Leaves | None = None

    def alone(self, point: Sequence[torch.Tensor], batch: tuple) -> torch.Tensor:
        """The gradient of one client, ``[1, d]`` over all blocks.

        Args:
            point: the blocks, ``[1, d]`` or ``[d]``.
            batch: one sample, without the client axis.
        """
        if self._large:
            named = self._views([block.reshape(-1) for block in point])
            return self._joined(named, self._evaluate(self._loss, named, batch), 1)
        if self._leaves is None:
            self._leaves = _Leaves(self._blocks, point[0])
        leaves = self._leaves
        for own, block in zip(leaves.point, point):
            own.copy_(block)
        leaves.gradient.zero_()
        self._evaluate(self._loss, leaves.named, batch).backward()
        return leaves.gradient.clone()

    def together(self, point: Sequence[torch.Tensor], batch: tuple, count: int) -> torch.Tensor:
        """The gradients of ``count`` clients, ``[C, d]`` over all blocks.

        Args:
            point: the blocks, ``[C, d]`` or ``[d]``.
            batch: a sample of each, with the client axis.
        """
        rows = [block if block.dim() > 1 else block.expand(count, -1).contiguous() for block in point]
        named = self._views(rows)
        return self._joined(named, self._evaluate(self._mapped, named, batch), count)

    def _evaluate(self, loss: Callable, named: list[dict[str, torch.Tensor]], batch: tuple) -> torch.Tensor:
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(True)
        try:
            return loss(*named, batch)
        finally:
            torch.set_grad_enabled(before)

    def _views(self, point: list[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        """The named parameters of a point, ``[..., *shape]``, as leaves that share its memory."""
        return [
            {
                name: part.view((*flat.shape[:-1], *shape)).requires_grad_()
                for part, (name, shape) in zip(flat.detach().split(sizes, -1), self._blocks[block].items())
            }
            for block, sizes, flat in zip(self._blocks, self._sizes, point)
        ]

    def _joined(self, named: list[dict[str, torch.Tensor]], value: torch.Tensor, count: int) -> torch.Tensor:
        """The gradients of ``value`` with respect to all parameters, one row per client."""
        leaves = [leaf for block in named for leaf in block.values()]
        parts = torch.autograd.grad(value, leaves, torch.ones_like(value), materialize_grads=True)
        return torch.cat([part.reshape(count, -1) for part in parts], dim=1)


class _Leaves:
    """A flat point whose named parameters are leaves, and a flat gradient that ``backward`` adds to."""

    def __init__(self, blocks: Blocks, like: torch.Tensor):
        split = tuple(blocks.sizes.values())
        point, self.gradient = like.new_zeros(1, sum(split)), like.new_zeros(1, sum(split))
        self.point = point.split(split, dim=1)
        self.named = [
            {name: view.detach().requires_grad_() for name, view in blocks.unflatten(block, flat[0]).items()}
            for block, flat in zip(blocks, self.point)
        ]
        for block, named, gradient in zip(blocks, self.named, self.gradient[0].split(split)):
            for leaf, view in zip(named.values(), blocks.unflatten(block, gradient).values()):
                leaf.grad = view


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
        """A problem's function under autocast; points, batches and values keep their dtypes."""
        if self.autocast == "none":
            return function
        dtype = getattr(torch, self.autocast)

        def cast(*arguments):
            with torch.autocast(device.type, dtype):
                value = function(*arguments)
            return value.to(torch.float32)

        return cast

    def compiled(self, function: Callable, dynamic: bool | None) -> Callable:
        """Compile a function of tensors as a whole graph, or return it as it is.

        Args:
            dynamic: ``None`` for code that serves many shapes from the second on, whose bits then depend on
                the shapes before; ``False`` for separate code for each shape.

        Code that torch has compiled for earlier runs in this process is dropped, as results would depend on
        it.
        """
        if self.compile == "none":
            return function
        torch.compiler.reset()
        whole = torch.compile(function, mode=self.compile, fullgraph=True, dynamic=dynamic, backend=BACKEND)
        if self.compile == "default":
            return lambda *arguments: whole(*tree_map(torch.Tensor.contiguous, arguments))

        def replayed(*arguments):
            torch.compiler.cudagraph_mark_step_begin()
            results = whole(*tree_map(torch.Tensor.contiguous, arguments))
            return tree_map(torch.clone, results)  # the next replay writes to the same memory

        return replayed


#: Neither compiled nor in mixed precision.
PLAIN = Evaluation()
