"""Networks that are user-defined ``torch.nn.Module`` classes, functions that create modules, or modules.

A module is called with ``torch.func.functional_call``, so that it is a pure function of its parameters like
the built-in networks and can be vectorised over clients. It is tested on random samples before the run.

* Parameters are variables. A parameter that layers share is one variable with its first name. A frozen
  parameter (``requires_grad = False``) is not a variable; like a buffer, it keeps its initial value.
* Buffers are constants, and so are tensors in plain attributes that ``forward`` only reads. Random constants
  are refused, because they do not depend on the seed of the run, and so is a ``forward`` that writes to a
  buffer or a parameter. A tensor that ``forward`` keeps in a plain attribute is no part of the function.
* A ``forward`` that writes to its samples in place, as ``nn.ReLU(inplace=True)`` in the first layer, is
  called on copies of them.
* Functions that couple the samples of a batch are refused, because the loss of a batch would be a biased
  estimate of a client's loss. Batch normalisation is one of them; its running averages are not variables and
  differ between heterogeneous clients (Hsieh et al. 2020).
* Dropout uses random numbers with addresses (:mod:`mpifed.core.sample_words`) in gradients, and is off in
  evaluations. Other random operations in ``forward`` and other differences between training and evaluation
  are refused.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils._python_dispatch import TorchDispatchMode  # without a public module, see core.writes

from mpifed.base.errors import ConfigError, user_frames
from mpifed.base.nested import leaves
from mpifed.base.plugins import UserObject
from mpifed.core.sample_words import DropoutMode, SampleWords, current_words
from mpifed.core.streams import global_states, seeded_globals
from mpifed.core.writes import Writes, same_values
from mpifed.models.base import Network, Params, Shapes

__all__ = ["Module", "SequenceModule"]

Tensors = dict[str, torch.Tensor]
#: Number of samples in the batch of the test.
BATCH = 3
#: Maximum number of groups that is suggested instead of batch normalisation.
GROUPS = 32
#: Tolerance, well above the difference of two kernels for the same function in float32.
ROUNDING = 1e-3
#: Mean sizes of samples of the test whether samples of a batch are coupled.
SCALES = (-100.0, -1.0, -0.01, 0.01, 1.0, 100.0)
_NONE = torch.empty(0)
_BATCH_NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm
_INSTANCE_NORMS = nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d
#: Modules that distribute a batch over devices, around the module of the user.
_WRAPPERS = nn.DataParallel, nn.parallel.DistributedDataParallel
#: Attributes that every module has.
_OF_TORCH = frozenset(vars(nn.Module()))
_DRAWS = "only torch.nn's Dropout layers and attention, and torch.nn.functional.dropout may do so"
#: Remedy for an axis of samples that is missing in the output for one sample.
SQUEEZED = (
    "(.squeeze() without an axis also removes the axis of the samples: use .squeeze(-1) or .flatten(1))"
)


class Module(UserObject, Network):
    """The network of a user-defined module.

    Parameters have the names in the module's ``state_dict``; :meth:`module` converts them back to a module.

    Attributes:
        has_dropout: whether the module uses dropout in training, set by :meth:`shapes`.
    """

    expected = "an nn.Module class, or a function that returns one"
    has_dropout = _writes_samples = False

    @classmethod
    def fits(cls, value: Any) -> bool:
        """Return whether a value creates modules: a subclass of ``nn.Module``, or a function."""
        if isinstance(value, type):
            return issubclass(value, nn.Module)
        return callable(value) and not isinstance(value, nn.Module)

    @classmethod
    def fingerprint(cls, value: Any) -> str | None:
        """Return a digest of the layers and tensors of a module, ``None`` for other values."""
        if not isinstance(value, nn.Module):
            return None
        digest = hashlib.sha256(repr(value).encode())
        for name, tensor in [*value.named_parameters(), *value.named_buffers()]:
            digest.update(f"{name} {tensor.dtype} {tensor.requires_grad}".encode())
            if not (_is_lazy(tensor) or tensor.is_meta):
                values = tensor.detach().cpu().to_dense().reshape(-1).contiguous()
                digest.update(values.view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    @classmethod
    def _from_instance(cls, value: Any) -> UserObject | None:
        if inspect.isfunction(value) or (isinstance(value, type) and issubclass(value, nn.Module)):
            return cls._from_function(value)
        return super()._from_instance(value)

    def shapes(self, sample_shape: tuple[int, ...], outputs: int) -> Shapes:
        """Return the shapes of the parameters, in order, for samples of shape ``(c, h, w)`` or ``(d,)``.

        Raises:
            ConfigError: the module cannot be created, does not accept such samples, has outputs of another
                shape, or is not supported.
        """
        generator = torch.Generator().manual_seed(0)
        self._samples = torch.rand(BATCH, *sample_shape, dtype=torch.float64, generator=generator)
        self._placed = {}
        with self._config_errors():
            # Two modules, because one in which forward has kept a tensor cannot be copied.
            module, again, other = self._initialised(0), self._initialised(0), self._initialised(1)
            _expect_same(
                _state(module),
                _state(again),
                "differs between two modules that are created with the same seed",
            )
            varies = (
                "is random, but not a trained parameter: expected a constant, or a module object instead of "
                "its class"
            )
            _expect_same(_constants(again), _constants(other), varies)
            _expect_registered(module)
            views = _views_of_parameters(_unwrapped(self.given) if self.is_instance else module)
            for created in (module, again):
                _use_dense_gradients(created)
            module = _cast_module(module, torch.get_default_dtype())
            before = {name: (tensor, tensor.clone()) for name, tensor in _plain_tensors(module).items()}
            self.has_dropout = _expect_network(module, self._inputs(), outputs)
            after = _plain_tensors(module)
            unchanged = [
                name for name, (tensor, value) in before.items()
                if after.get(name) is tensor and same_values(tensor, value)
            ]  # fmt: skip
            _expect_separate({name: views[name] for name in views.keys() - (before.keys() - {*unchanged})})
            for created in (module, again, other):
                _register_buffers(created, unchanged)
            self._constants = _constants(again)
            _expect_same(self._constants, _constants(other), varies)
            _expect_no_history(module, _cast_module(other, torch.get_default_dtype()), self._inputs())
            self._writes_samples = _writes_samples(module, self._inputs())
        again = _cast_module(again, torch.get_default_dtype())
        self._train, self._eval = module.train(), again.eval()
        self._names = _first_names(again)
        self.place(torch.device("cpu"), torch.get_default_dtype())
        parameters = dict(again.named_parameters())
        return {name: tuple(parameters[name].shape) for name in dict.fromkeys(self._names.values())}

    def initial(self, shapes: Shapes, rng: np.random.Generator) -> Tensors:  # type: ignore[override]
        """Return the initial parameters, float64; the global generators are seeded from ``rng``."""
        parameters = dict(self._initialised(int(rng.integers(2**63))).named_parameters())
        return {name: parameters[name].detach().double() for name in shapes}

    def place(self, device: torch.device, dtype: torch.dtype) -> None:
        """Store buffers and frozen parameters on a device with a dtype."""
        device = torch.empty(0, device=device).device  # "cuda" becomes the current device
        self._placed[device.type, device.index, dtype] = self._constants_on(device, dtype)

    def _constants_on(self, device: torch.device, dtype: torch.dtype) -> Tensors:
        return {name: _cast(tensor, device, dtype) for name, tensor in self._constants.items()}

    def __call__(self, params: Params, *inputs: torch.Tensor) -> torch.Tensor:
        """Return outputs ``[b, outputs]`` for samples ``[b, ...]``, with dropout if an address is set."""
        like = params[next(iter(self._names.values()))]
        place = like.device.type, like.device.index, like.dtype
        # Tensors created inside a derivative must not be stored.
        fixed = self._placed[place] if place in self._placed else self._constants_on(like.device, like.dtype)
        values = fixed | {name: params[first] for name, first in self._names.items()}
        words = current_words() if self.has_dropout else None
        if self._writes_samples:
            inputs = tuple(map(torch.clone, inputs))
        if words is None:
            return torch.func.functional_call(self._eval, values, inputs, tie_weights=False)
        with DropoutMode(words):
            return torch.func.functional_call(self._train, values, inputs, tie_weights=False)

    def fixed(self) -> tuple[Tensors, dict[str, str]]:
        """Return buffers and frozen parameters, and further names of shared ones, set by :meth:`shapes`."""
        names = self._eval.state_dict()
        tied = {name: first for name, first in self._names.items() if name != first and name in names}
        return {name: tensor for name, tensor in self._constants.items() if name in names}, tied

    def module(self, params: Params) -> torch.nn.Module:
        """Return the user's module with parameters ``params`` on the CPU, in evaluation mode.

        It has the dtype of ``params``; unknown names are ignored. :meth:`shapes` need not have been called.

        Raises:
            ConfigError: the module cannot be created, or a parameter is missing in ``params``.
        """
        with self._config_errors():
            module = self._create(0)
            names = _first_names(module)
            if missing := sorted(name for name, first in names.items() if first not in params):
                raise Unsupported(f"has the parameter {missing[0]!r}, which is not among the weights")
        values = {name: params[first].detach().cpu() for name, first in names.items()}
        _cast_module(module, next(iter(values.values())).dtype).load_state_dict(values, strict=False)
        return module.eval()

    def _inputs(self) -> tuple[torch.Tensor, ...]:
        return (self._samples.to(torch.get_default_dtype()),)

    def _create(self, seed: int) -> torch.nn.Module:
        """Return a new module, or a copy of a given one; new parameters are created in float64."""
        if self.is_instance:
            module = _copied(self.given)
        else:
            with _seeded(seed), torch.no_grad():
                module = self.make()
            if not isinstance(module, nn.Module):
                raise Unsupported(f"returns a {type(module).__name__}: expected an nn.Module")
        module = _unwrapped(module)
        _expect_stored(module)
        return module.cpu()

    def _initialised(self, seed: int) -> torch.nn.Module:
        """Return a module as :meth:`_create`, in which lazy layers are initialised."""
        module = self._create(seed)
        if any(map(_is_lazy, (*module.parameters(), *module.buffers()))):
            if self.is_instance:
                raise Unsupported("has lazy layers: call it once on samples first, or pass its class")
            with _seeded(seed), torch.no_grad():
                _call(module, self._inputs())
        return module

    @contextlib.contextmanager
    def _config_errors(self) -> Iterator[None]:
        """A context that raises errors as ConfigErrors with the name of the network."""
        try:
            yield
        except Unsupported as error:
            raise ConfigError(f"the network {self} {error}") from error.__cause__


class SequenceModule(Module):
    """The network of a module for sequences of vectors, with ``forward(vectors, lengths)``.

    ``vectors`` is ``[b, length, d]``. ``lengths`` is the number of valid vectors per sequence, int64 ``[b]``.
    """

    def _inputs(self) -> tuple[torch.Tensor, ...]:
        length = self._samples.shape[1]
        return *super()._inputs(), torch.arange(BATCH) % length + 1


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """A context in which the global random generators are seeded and the default dtype is float64."""
    dtype = torch.get_default_dtype()
    with seeded_globals(seed):
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)


def _unwrapped(module: nn.Module) -> nn.Module:
    while isinstance(module, _WRAPPERS):
        module = module.module
    return module


def _copied(module: nn.Module) -> nn.Module:
    """Return a copy of a module, without the history of tensors that its ``forward`` has kept.

    Raises:
        Unsupported: the module cannot be copied.
    """
    kept = [
        value
        for layer in module.modules()
        for value in leaves(_own_attributes(layer))
        if isinstance(value, torch.Tensor) and not value.is_leaf
    ]
    try:
        return copy.deepcopy(module, {id(value): value.detach().clone() for value in kept})
    except Exception as error:  # a user's object may raise anything
        raise Unsupported(
            f"is a module object that cannot be copied ({type(error).__name__}: {error}): pass its class, or "
            "a function that creates it"
        ) from error


def _use_dense_gradients(module: nn.Module) -> None:
    """Make the gradients of embeddings dense, because torch does not vectorise operations on sparse ones."""
    for layer in module.modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            layer.sparse = False


def _own_attributes(layer: nn.Module) -> dict[str, Any]:
    """Return the attributes of a layer that are not parameters, buffers or layers, by name."""
    return {name: value for name, value in vars(layer).items() if name not in _OF_TORCH}


def _plain_tensors(module: nn.Module) -> Tensors:
    """Return the tensors in attributes of all layers that are neither parameters nor buffers, by name."""
    return {
        f"{path}.{name}" if path else name: value
        for path, layer in module.named_modules()
        for name, value in _own_attributes(layer).items()
        if isinstance(value, torch.Tensor)
    }


def _register_buffers(module: nn.Module, names: list[str]) -> None:
    """Make plain tensors buffers that are not in the ``state_dict``."""
    for name in names:
        path, _, last = name.rpartition(".")
        owner = module.get_submodule(path)
        tensor = getattr(owner, last)
        delattr(owner, last)
        owner.register_buffer(last, tensor, persistent=False)


def _state(module: nn.Module) -> Tensors:
    return {name: tensor.detach() for name, tensor in (*module.named_parameters(), *module.named_buffers())}


class Unsupported(ValueError):
    """A module is not supported. The message follows the name of the module."""


class _RandomOperation(Exception):
    """An operation has used torch's generator."""


class _NoRandomness(TorchDispatchMode):
    """A context that raises :class:`_RandomOperation` for operations that use torch's generator.

    Args:
        dropping: a mode that may seed the generator for an operation.

    Raises:
        Unsupported: at the end, if numbers were drawn from the global generators of Python or NumPy.
    """

    def __init__(self, dropping: DropoutMode | None = None):
        super().__init__()
        self._dropping = dropping

    def __enter__(self):
        self._before = global_states()
        return super().__enter__()

    def __exit__(self, kind, error, traceback):
        super().__exit__(kind, error, traceback)
        if kind is None and global_states() != self._before:
            raise Unsupported(
                f"draws random numbers in forward from Python's random or numpy.random: {_DRAWS}, which draw "
                "them by sample"
            )

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        # Fused attention is marked as random, but on the CPU torch uses it without dropout only.
        draws = torch.Tag.nondeterministic_seeded in func.tags and "attention" not in str(func)
        if draws and not (self._dropping and self._dropping.seeds):
            raise _RandomOperation(str(func))
        return func(*args, **(kwargs or {}))


def _expect_network(module: nn.Module, inputs: tuple[torch.Tensor, ...], outputs: int) -> bool:
    """Call a module on inputs and return whether it uses dropout.

    Raises:
        Unsupported: the module is not supported.
    """
    _expect_layers(module)
    _expect_signature(module, inputs)
    before = dict((*module.named_parameters(), *module.named_buffers()))
    fewer = tuple(
        column[1:] for column in inputs
    )  # recurrent layers over the batch depend on the first sample
    words = SampleWords((0, 0), torch.zeros(3, dtype=torch.int64))
    with Writes(before) as writes:
        with _NoRandomness(), torch.enable_grad():
            value, part = (_call(module.eval(), given) for given in (inputs, fewer))
            with torch.no_grad():  # as in evaluations
                again = _call(module, inputs)
        with DropoutMode(words) as dropping, _NoRandomness(dropping):
            trained = _call(module.train(), inputs)
    if created := sorted({name for name, _ in module.named_parameters()} - before.keys()):
        raise Unsupported(
            f"creates the parameter {created[0]!r} in forward: expected in __init__, or by a lazy layer"
        )
    _expect_constant(module, before, writes.names)
    _expect_shape(value, [len(inputs[0]), outputs], inputs)
    if not _close(again, value):
        raise Unsupported("returns another output when called again: expected a function of the samples")
    if not value.requires_grad:
        raise Unsupported(
            "has outputs without gradients: expected no torch.no_grad, .detach() and .numpy() in forward"
        )
    if not (_close(part, value[1:]) and _same_rows_at_another_point(module, inputs)):
        raise Unsupported(
            "couples the samples of a batch: outputs change if another sample is left out (recurrent layers "
            "and attention need batch_first=True; a branch must not depend on statistics of the batch)"
        )
    _expect_one_sample(module.eval(), inputs, outputs)
    with DropoutMode(words) as mode, _NoRandomness(mode):
        _expect_one_sample(module.train(), inputs, outputs)
    if not dropping.used and not _close(trained, value):
        raise Unsupported(
            "returns another output in training than in evaluation, without dropout: expected the same output"
        )
    _expect_gradients(module.eval(), inputs, drops=False)
    if dropping.used:
        _expect_gradients(module.train(), inputs, drops=True)
    return dropping.used


def _expect_constant(module: nn.Module, before: Tensors, written: list[str]) -> None:
    """Raise an error if calls have written to parameters or buffers, or have replaced them by other values.

    Args:
        before: parameters and buffers before the calls.
        written: names of those that have been written to.
    """
    after = dict((*module.named_parameters(), *module.named_buffers()))
    for name in sorted(before.keys() | after.keys()):
        if name in written or name not in after or not same_values(before.get(name, _NONE), after[name]):
            if isinstance(before.get(name, after.get(name)), nn.Parameter):
                raise Unsupported(
                    f"changes its parameter {name!r} in forward: expected parameters that only the method "
                    "changes, and a new tensor in forward, such as F.linear(x, torch.renorm(w, 2, 0, 1.0))"
                )
            raise Unsupported(f"writes to its buffer {name!r} in forward: expected constant buffers")


def _writes_samples(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> bool:
    """Return whether a module writes to its samples in place, in training or in evaluation."""
    words = SampleWords((0, 0), torch.zeros(3, dtype=torch.int64))
    written: list[int] = []
    for training in (True, False):
        given = tuple(map(torch.clone, inputs))
        with DropoutMode(words), Writes(dict(enumerate(given))) as writes:
            module.train(training)(*given)
        written += writes.names
    return bool(written)


def _same_rows_at_another_point(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> bool:
    """Return whether outputs do not depend on the other samples after a move of the parameters.

    At the start, outputs are constant if the weights of the last layer are 0. A branch on a statistic of the
    batch, such as its mean, shows on samples of different signs and sizes. An error is no disagreement.
    """
    moved = _replaced(module.eval(), _moved_parameters(module))
    with _NoRandomness():
        return _agree(moved, inputs, [range(1, BATCH)], torch.ones(BATCH)) and _agree(
            moved, *_scaled(inputs), torch.tensor(SCALES).abs()
        )


def _moved_parameters(module: nn.Module) -> Tensors:
    """Return the parameters of a module with noise of their size, by name."""
    generator, values = torch.Generator().manual_seed(0), {}
    for name, tensor in module.named_parameters():
        if tensor.is_floating_point():
            noise = torch.randn(tensor.shape, generator=generator).to(tensor)
            values[name] = tensor.detach() + (tensor.detach().abs().mean().nan_to_num() or 0.1) * noise
    return values


def _expect_no_history(module: nn.Module, new: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    """Compare a module that has been called with one that is called for the first time, on other samples.

    Both have the same parameters and buffers, but may have other attributes.
    """
    values, fewer = _moved_parameters(module), tuple(column[1:] for column in inputs)
    try:
        outputs = [_call(_replaced(called.eval(), values), fewer) for called in (new, module)]
    except Unsupported:  # an error at the moved point is no disagreement
        return
    if not _close(*outputs):
        raise Unsupported(
            "has outputs that depend on more than its parameters, buffers and samples: expected no random "
            "constants, and no values that are kept from earlier calls, such as the mean of the first batch"
        )


def _scaled(inputs: tuple[torch.Tensor, ...]) -> tuple[tuple[torch.Tensor, ...], list[list[int]]]:
    """Return samples with means of the sizes SCALES, and parts of them that differ in sign or size."""
    samples, *lengths = (column[torch.arange(len(SCALES)) % BATCH] for column in inputs)
    factors = torch.tensor(SCALES).to(samples).view(-1, *[1] * (samples.dim() - 1))
    order = sorted(range(len(SCALES)), key=lambda row: abs(SCALES[row]))
    parts = [[row for row in order if SCALES[row] < 0], [row for row in order if SCALES[row] > 0]]
    return (factors * (0.5 + samples), *lengths), [*parts, order[:2], order[-2:]]


def _agree(
    module: Callable[..., Any],
    inputs: tuple[torch.Tensor, ...],
    parts: Sequence[Sequence[int]],
    sizes: torch.Tensor,
) -> bool:
    """Return whether outputs for parts of the samples agree with those for all, up to rounding.

    Args:
        parts: numbers of the samples of each part.
        sizes: sizes of the samples, to which rounding errors are relative.
    """
    for part in map(list, parts):
        try:
            whole = _call(module, inputs)[part]
            alone = _call(module, tuple(column[part] for column in inputs))
        except Unsupported:
            continue
        scale = whole.abs().amax(1, keepdim=True).maximum(sizes[part, None].clamp(min=1).to(whole))
        if whole.shape != alone.shape or not _close(alone / scale, whole / scale):
            return False
    return True


def _replaced(module: nn.Module, values: Tensors) -> Callable[..., Any]:
    """Return a module as a function of its inputs, with other values of its parameters.

    A parameter that layers share is replaced in each of them, but once in a layer with several names:
    ``functional_call`` would leave a parameter replaced that it has replaced twice.
    """
    first: dict[int, str] = {}
    every = {}
    for path, layer in module.named_modules():
        for name, tensor in layer.named_parameters(recurse=False):
            place = f"{path}.{name}" if path else name
            if (known := first.setdefault(id(tensor), place)) in values:
                every[place] = values[known]
    return lambda *inputs: torch.func.functional_call(module, every, inputs, tie_weights=False)


def _expect_one_sample(module: nn.Module, inputs: tuple[torch.Tensor, ...], outputs: int) -> None:
    """Call a module on one sample: a client may have one row, and an evaluation may end with one row."""
    first = tuple(column[:1] for column in inputs)
    try:
        value = _call(module, first)
        _expect_shape(value, [1, outputs], first)
    except Unsupported as error:
        sentence, *frames = str(error).split("\n")
        raise Unsupported("\n".join([f"{sentence} {SQUEEZED}", *frames])) from error.__cause__


def _expect_gradients(module: nn.Module, inputs: tuple[torch.Tensor, ...], drops: bool) -> None:
    """Compare the gradient of a module with the gradient of the function that is used in its place.

    Before the second backward pass, the module's own parameters are moved, because its function must not use
    them: a part of ``forward`` that is executed again in the backward pass would.

    Args:
        drops: whether dropout is on.
    """
    trained = {name: tensor for name, tensor in module.named_parameters() if tensor.requires_grad}
    copies = {name: tensor.detach().clone().requires_grad_() for name, tensor in trained.items()}
    held, moved = {name: tensor.data for name, tensor in trained.items()}, _moved_parameters(module)
    with torch.enable_grad():
        values = []
        for function in (module, _replaced(module, copies)):
            mode = DropoutMode(SampleWords((0, 0), torch.zeros(3, dtype=torch.int64))) if drops else None
            with mode or contextlib.nullcontext(), _NoRandomness(mode):
                values.append(_call(function, inputs))
        try:
            for value, own in zip(values, (held, moved)):
                for name, tensor in trained.items():
                    tensor.data = own[name]
                value.square().sum().backward()
        except Exception as error:  # a user's autograd function may raise anything
            text = f"has no gradient: {type(error).__name__}: {error}"
            raise Unsupported(f"{text}\n{user_frames(error)}".rstrip()) from error
        finally:
            for name, tensor in trained.items():
                tensor.data = held[name]
    for name, tensor in trained.items():
        expected, gradient = (
            torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.to_dense()
            for leaf in (tensor, copies[name])
        )
        tensor.grad = None
        if not _close(gradient, expected):
            raise Unsupported(
                f"has another gradient of {name!r} when the values of its parameters are passed by "
                "torch.func.functional_call: expected no hooks of parameters, only hooks of modules, and no "
                "torch.utils.checkpoint"
            )


def _expect_stored(module: nn.Module) -> None:
    """Raise an error for modules that torch has compiled to TorchScript, and for tensors without values."""
    for name, layer in module.named_modules():
        if isinstance(layer, torch.jit.ScriptModule):
            where = f"has a TorchScript module at {name!r}" if name else "is a TorchScript module"
            raise Unsupported(
                f"{where}, whose parameters cannot be replaced: expected the original nn.Module"
            )
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_meta:
            raise Unsupported(f"has {name!r} on the meta device: expected a tensor with values")


def _expect_registered(module: nn.Module) -> None:
    """Raise an error for trained tensors of which torch does not know that they are parameters."""
    known = {id(registered) for registered in (*module.modules(), *module.parameters())}
    for path, layer in module.named_modules():
        for name, value in _own_attributes(layer).items():
            for leaf in leaves(value):
                tensors = leaf.parameters() if isinstance(leaf, nn.Module) else [leaf]
                trained = any(
                    isinstance(tensor, torch.Tensor)
                    and tensor.requires_grad
                    and tensor.is_leaf
                    and id(tensor) not in known
                    for tensor in tensors
                )
                if trained:
                    raise Unsupported(
                        f"has tensors that require gradients in {f'{path}.{name}' if path else name!r}, but "
                        "are not its parameters, so they would not be trained: expected nn.Parameter, "
                        "nn.ModuleList, nn.ParameterList or the like, or requires_grad_(False)"
                    )


def _views_of_parameters(module: nn.Module) -> dict[str, str]:
    """Return the names of tensors that share memory with another tensor, a trained parameter, and its name.

    Copies of a module, and modules of another dtype, no longer share it.
    """
    named = [(name, tensor) for name, tensor in module.named_parameters() if _has_memory(tensor)]
    storages: dict[int, list[tuple[str, torch.Tensor]]] = {}
    for name, tensor in named:
        if tensor.requires_grad:
            storages.setdefault(tensor.untyped_storage().data_ptr(), []).append((name, tensor))
    named += [(name, tensor) for name, tensor in module.named_buffers() if _has_memory(tensor)]
    for path, layer in module.named_modules():
        for name, value in _own_attributes(layer).items():
            named += [
                (f"{path}.{name}" if path else name, leaf) for leaf in leaves(value) if _has_memory(leaf)
            ]
    return {
        name: of
        for name, tensor in named
        for of, parameter in storages.get(tensor.untyped_storage().data_ptr(), ())
        if tensor is not parameter
        and 0 <= tensor.data_ptr() - parameter.data_ptr() < parameter.nbytes  # it begins there
    }


def _has_memory(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not (
        _is_lazy(value) or value.is_meta or value.layout is not torch.strided or not value.numel()
    )


def _expect_separate(views: dict[str, str]) -> None:
    """Raise an error for tensors that follow a trained parameter in torch, but are no part of it."""
    for name, parameter in sorted(views.items()):
        raise Unsupported(
            f"has {name!r}, which shares the memory of its parameter {parameter!r} without being the same "
            "parameter: expected the parameter itself (layer.weight = other.weight, without .data), a view "
            "of it that is computed in forward, or a copy (.clone())"
        )


def _expect_signature(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    """Raise an error for a ``forward`` that cannot be called with the inputs alone."""
    signature = inspect.signature(module.forward)
    try:
        signature.bind(*inputs)
    except TypeError as error:
        call = "forward(samples)" if len(inputs) == 1 else "forward(vectors, lengths)"
        raise Unsupported(
            f"has forward{signature}, but is called as {call} ({error}): wrap it in a module whose forward "
            "takes these arguments"
        ) from None


def _expect_layers(module: nn.Module) -> None:
    """Raise an error for modules without trained parameters, and for layers with batch statistics."""
    for name, layer in module.named_modules():
        where = f"has {type(layer).__name__} at {name!r}" if name else f"is a {type(layer).__name__}"
        if isinstance(layer, _WRAPPERS):
            raise Unsupported(f"{where}, which distributes a batch over devices: use its .module")
        if isinstance(layer, _BATCH_NORMS):
            width = layer.num_features
            # On vectors [b, width], width groups would contain one value each and have the constant output 0.
            flat = isinstance(layer, nn.BatchNorm1d)
            groups = 1 if flat else max(count for count in range(1, GROUPS + 1) if width % count == 0)
            raise Unsupported(
                f"{where}: batch normalisation couples the samples of a batch, and its running averages are "
                f"not variables and differ between clients: use nn.GroupNorm({groups}, {width})"
            )
        if isinstance(layer, _INSTANCE_NORMS) and layer.track_running_stats:
            raise Unsupported(
                f"{where}, which stores running averages over batches: expected track_running_stats=False, "
                "or GroupNorm"
            )
    trained = {name: tensor for name, tensor in module.named_parameters() if tensor.requires_grad}
    if not trained:
        raise Unsupported("has no parameters to train")
    for name, tensor in trained.items():
        if tensor.layout is not torch.strided:
            kind = str(tensor.layout).removeprefix("torch.")
            raise Unsupported(f"has the parameter {name!r} of layout {kind}: expected a dense tensor")
        if not tensor.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise Unsupported(
                f"has the parameter {name!r} of dtype {kind}: expected a real floating-point dtype"
            )


def _call(module: Callable[..., Any], inputs: tuple[torch.Tensor, ...]):
    """Return the output of a module.

    Raises:
        Unsupported: it raises an error, or uses torch's generator under :class:`_NoRandomness`.
    """
    try:
        return module(*map(torch.clone, inputs))  # they may be written to
    except _RandomOperation as error:
        text = (
            f"draws random numbers in forward ({error}): {_DRAWS}, and parameters are created in __init__ or "
            "by lazy layers"
        )
        raise Unsupported(f"{text}\n{user_frames(error)}".rstrip()) from None
    except Exception as error:  # a user's code may raise anything
        text = f"does not accept {_described(inputs)}: {type(error).__name__}: {error}"
        if "dtype" in text and "double" in text.lower():
            text += " (constants are created in float64: convert them in forward, constant.to(samples))"
        raise Unsupported(f"{text}\n{user_frames(error)}".rstrip()) from error


def _described(inputs: tuple[torch.Tensor, ...]) -> str:
    samples, *rest = inputs
    axes = {2: "batch, d", 3: "batch, length, d", 4: "batch, c, h, w"}.get(samples.dim(), "batch, ...")
    more = f" with lengths [{len(rest[0])}]" if rest else ""
    return f"samples of shape {list(samples.shape)} ({axes}){more}"


def _expect_shape(value, shape: list[int], inputs: tuple[torch.Tensor, ...]) -> None:
    expected = f"for {_described(inputs)}: expected a tensor {shape} (batch, outputs)"
    if not isinstance(value, torch.Tensor):
        raise Unsupported(
            f"returns a {type(value).__name__} {expected}, so a forward that returns the scores alone"
        )
    if list(value.shape) != shape:
        raise Unsupported(f"has outputs of shape {list(value.shape)} {expected}")
    if not value.is_floating_point():
        raise Unsupported(
            f"has outputs of dtype {str(value.dtype).removeprefix('torch.')} {expected} of floats"
        )


def _close(values: torch.Tensor, expected: torch.Tensor) -> bool:
    return values.shape == expected.shape and torch.allclose(
        values, expected, ROUNDING, ROUNDING, equal_nan=True
    )


def _expect_same(tensors: Tensors, others: Tensors, error: str) -> None:
    for name in sorted(tensors.keys() | others.keys()):
        if name not in tensors or name not in others or not same_values(tensors[name], others[name]):
            raise Unsupported(f"has {name!r}, which {error}")


def _first_names(module: nn.Module) -> dict[str, str]:
    """Return the first name of each trained parameter by all of its names."""
    first: dict[int, str] = {}
    named = module.named_parameters(remove_duplicate=False)
    return {name: first.setdefault(id(tensor), name) for name, tensor in named if tensor.requires_grad}


def _constants(module: nn.Module) -> Tensors:
    """Return buffers and frozen parameters by name."""
    parameters = module.named_parameters(remove_duplicate=False)
    frozen = [pair for pair in parameters if not pair[1].requires_grad]
    pairs = [*module.named_buffers(remove_duplicate=False), *frozen]
    return {name: tensor.detach() for name, tensor in pairs}


def _cast(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Copy a tensor to a device; floating-point and complex tensors get the precision of ``dtype``."""
    if tensor.is_complex():
        return tensor.to(device, dtype.to_complex())
    return tensor.to(device, dtype if tensor.is_floating_point() else None)


def _cast_module(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Move a module and its plain tensors to the CPU and cast them to the precision of ``dtype``."""
    for parameter in module.parameters():
        parameter.data = _cast(parameter.data, torch.device("cpu"), dtype)
    for name, buffer in module.named_buffers(remove_duplicate=False):
        owner, _, last = name.rpartition(".")
        setattr(module.get_submodule(owner), last, _cast(buffer, torch.device("cpu"), dtype))
    for layer in list(module.modules()):
        for name, value in _own_attributes(layer).items():
            inner = leaves(value)
            # Recurrent layers have lists of their parameters, which remain the same objects.
            if any(isinstance(leaf, torch.Tensor) and not isinstance(leaf, nn.Parameter) for leaf in inner):
                cast = {id(leaf): _cast_plain(leaf, dtype) for leaf in inner}
                setattr(layer, name, copy.deepcopy(value, cast))  # copies of the containers alone
            for hidden in (leaf for leaf in inner if isinstance(leaf, nn.Module)):
                if all(hidden is not layer for layer in module.modules()):  # a frozen layer in a list
                    hidden.to(dtype)
    return module


def _cast_plain(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, nn.Parameter) or not isinstance(value, torch.Tensor):
        return value
    return _cast(value.detach(), torch.device("cpu"), dtype)


def _is_lazy(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is initialised by the first samples."""
    return isinstance(tensor, UninitializedParameter | UninitializedBuffer)
