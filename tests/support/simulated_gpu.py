"""A simulated CUDA device for a torch without CUDA; only this module uses private parts of torch.

Tensors of the device wrap tensors in host memory and report the device type "cuda", so all results have the
bits of the CPU. As on a GPU,

* kernels refuse tensors of several devices, except for scalars of the CPU and index tensors;
* operations without a deterministic CUDA kernel are refused under torch's deterministic algorithms;
* a copy to pinned host memory with ``non_blocking=True`` arrives only when the host waits for the device, or
  for an event after the copy: until then the host reads NaN. The buffer of a copy from pinned memory must not
  change before that, and the time of an event cannot be read before it.

:class:`Device` counts kernels, copies and waits of the host for the device. Kernels are executed at once,
because the package uses one stream, the current one, on which they are in order, and the host sees their
results by copies only. Within :func:`rounding_by_shape`, products also round differently for groups of
different sizes, as those of libraries that choose a kernel by the shapes.

The simulation does not show the rounding, speed or memory of real kernels, and has no Triton or CUDA graphs.
NCCL is replaced by gloo, which needs as many processes as ranks; ``tests/unit/test_nccl_of_many_ranks.py``
has one rank of many.

As a pytest plugin (``-p simulated_gpu``) it simulates a device during the whole session. The C++ library must
be loaded before torch: ``build`` compiles it, ``MPIFED_SIMULATED_GPU`` has its path, and
``MPIFED_SIMULATED_GPUS`` the number of devices, 1 by default.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
import time
import traceback
import weakref
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

TORCH = Path(find_spec("torch").origin).parent
CHECKOUT = Path(__file__).parents[2]
OWN = tuple(f"{CHECKOUT}/{folder}/" for folder in ("mpifed", "tests"))


def build(folder: Path) -> tuple[dict[str, str], str]:
    """Compile the library.

    Returns:
        The variables of a process that loads it, and why it cannot be compiled, "" if it can.
    """
    if torch.version.cuda or torch.version.hip:
        return {}, "the simulated GPU needs a torch without CUDA"
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        return {}, "no C++ compiler"
    source, library = Path(__file__).with_suffix(".cpp"), Path(folder, "simulated_gpu.so")
    options = ["-shared", "-fPIC", "-O0", "-std=c++20", f"-I{TORCH}/include", f"-L{TORCH}/lib"]
    done = subprocess.run(
        [compiler, *options, source, "-o", library, "-ltorch_cpu", "-lc10"], capture_output=True, text=True
    )
    if done.returncode:
        return {}, f"the library of the simulated GPU does not compile: {done.stderr[-500:]}"
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"MPIFED_SIMULATED_GPU": str(library), "PYTHONPATH": os.pathsep.join(paths)}, ""


if "MPIFED_SIMULATED_GPU" in os.environ:
    assert "torch" not in sys.modules, "torch looks for an accelerator when it is imported"
    ctypes.CDLL(str(TORCH / "lib" / "libtorch_cpu.so"), ctypes.RTLD_GLOBAL)
    ctypes.CDLL(os.environ["MPIFED_SIMULATED_GPU"])

import torch  # noqa: E402
import torch.distributed as distributed  # noqa: E402
from torch.utils._mode_utils import no_dispatch  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_flatten, tree_map  # noqa: E402

#: Bytes of memory that a simulated GPU reports.
MEMORY = 80 * 2**30
#: Operations that launch no kernel, in addition to views.
NO_KERNEL = {
    "detach", "alias", "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "lift_fresh",
    "view", "_unsafe_view", "_reshape_alias", "set_", "is_same_size", "empty_permuted",
}  # fmt: skip
#: Operations that wait for the device: the size of the result depends on values, or a solver reads a status.
WAITS = {
    "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "repeat_interleave", "equal",
    "is_nonzero", "_linalg_svd", "_linalg_eigh", "linalg_eig", "_linalg_eigvals", "linalg_inv_ex",
    "_linalg_check_errors", "linalg_cholesky_ex", "bincount", "histc", "masked_scatter",
}  # fmt: skip
#: Operations that raise under torch.use_deterministic_algorithms (its documentation), in addition to float
#: cumsum, weighted bincount and median with indices.
NONDETERMINISTIC = {
    "histc", "put_", "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward",
    "adaptive_max_pool2d_backward", "avg_pool3d_backward", "upsample_bilinear2d_backward",
    "upsample_bicubic2d_backward", "upsample_linear1d_backward", "reflection_pad1d_backward",
    "reflection_pad2d_backward", "reflection_pad3d_backward", "nll_loss2d_forward", "nll_loss2d_backward",
    "grid_sampler_2d_backward", "_ctc_loss_backward", "max_unpool2d", "fractional_max_pool2d_backward",
}  # fmt: skip
#: Products, whose kernels libraries choose by the shapes.
PRODUCTS = {
    "mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "convolution", "convolution_backward",
}  # fmt: skip
#: Operations that accept index tensors of the CPU, which are copied to the device.
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
#: Operations that refuse even scalars of the CPU.
NO_SCALARS = {"mm", "addmm", "bmm", "baddbmm", "dot", "cat", "stack", "gather", "index_select", "embedding"}


class Device:
    """Counts of the operations on the simulated GPUs.

    Attributes:
        kernels, waits, copies: numbers by operation; ``copies`` by "to device", "from device", and the same
            with ", waiting", which are waits, too.
        places: numbers of waits by operation and line of the package or the tests.
        queued, done: number of copies, and recorded events, that have been queued in total, and the number of
            the last for which the host has waited.
        rounds_by_shape: whether products round differently for different shapes.
    """

    def __init__(self):
        self.current, self.arriving, self.sources, self.queued, self.done = 0, [], [], 0, 0
        self.rounds_by_shape = False
        self.clear()

    def clear(self) -> None:
        self.kernels, self.waits, self.copies, self.places = Counter(), Counter(), Counter(), Counter()

    def number(self) -> int:
        """Number something that is queued."""
        self.queued += 1
        return self.queued

    def wait(self, operation: str, last: int | None = None) -> None:
        """Count a wait of the host for everything that is queued, or up to a number."""
        self.waits[operation] += 1
        self.places[f"{operation} {_place()}"] += 1
        last = self.queued if last is None else last
        with no_dispatch():
            self.check_sources(last)
            for number, arrive in self.arriving:
                if number <= last:
                    arrive()
        self.arriving = [one for one in self.arriving if one[0] > last]
        self.done = max(self.done, last)

    def check_sources(self, last: int) -> None:
        """Check that pinned buffers have not changed since copies from them, up to a number, were queued."""
        for number, source, before in self.sources:
            equal = torch.equal(*(values.contiguous().view(torch.uint8) for values in (source, before)))
            assert number > last or equal, "a pinned buffer was written to while it was copied to the device"
        self.sources = [one for one in self.sources if one[0] > last]

    def copied(self, way: str, waiting: bool) -> None:
        self.copies[way + ", waiting" * waiting] += 1
        if waiting:
            self.wait(f"copy {way}")


#: The simulated GPUs of this process.
device = Device()
_pinned: set[int] = set()  # addresses of storages


def _place() -> str:
    for frame in reversed(traceback.extract_stack(limit=60)):
        if frame.filename.startswith(OWN) and frame.filename != __file__:
            return f"{Path(frame.filename).relative_to(CHECKOUT)}:{frame.lineno}"
    return "elsewhere"


class OnDevice(torch.Tensor):
    """A tensor of a simulated GPU; ``host`` has its values."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, host: torch.Tensor, index: int):
        made = torch.Tensor._make_wrapper_subclass(
            cls, host.size(), strides=host.stride(), storage_offset=host.storage_offset(), dtype=host.dtype,
            device=torch.device("cuda", index),
        )  # fmt: skip
        made.host, made.number = host, index
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _dispatch(func, args, kwargs or {})

    def __repr__(self):
        return f"OnDevice({self.host!r}, {self.number})"

    def __deepcopy__(self, memo):
        return OnDevice(self.host.clone(), self.number)

    def data_ptr(self):
        return self.host.data_ptr()

    def tolist(self):
        return self.cpu().tolist()


def _host(value):
    return value.host if isinstance(value, OnDevice) else value


def _is_pinned(tensor: torch.Tensor) -> bool:
    return tensor.untyped_storage().data_ptr() in _pinned


def _pin(tensor: torch.Tensor) -> torch.Tensor:
    address = tensor.untyped_storage().data_ptr()
    _pinned.add(address)
    weakref.finalize(tensor.untyped_storage(), _pinned.discard, address)
    return tensor


def _dispatch(func, args, kwargs):
    name = func._schema.name.split("::")[1]
    tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)]
    there = [tensor for tensor in tensors if isinstance(tensor, OnDevice)]
    wanted = kwargs.get("device")
    on_device = torch.device(wanted).type == "cuda" if wanted is not None else bool(there)
    if not there and not on_device:
        return func(*args, **kwargs)
    index = there[0].number if there else device.current
    if wanted is not None and on_device:
        index = device.current if torch.device(wanted).index is None else torch.device(wanted).index
    if name == "_to_copy":
        return _to(args[0], on_device, index, **kwargs)
    if name == "copy_":
        return _copy(*args, **kwargs)
    if name == "is_pinned":
        return False
    _expect_deterministic(name, args)
    _expect_one_device(func, name, args, tensors, there)
    if name == "_local_scalar_dense":
        device.wait("item")
        return func(_host(args[0]))
    masks = name in INDEXING and any(
        one is not None and one.dtype in (torch.bool, torch.uint8) for one in args[1]
    )
    if name in WAITS or masks:
        device.wait(name)
    if not func.is_view and name not in NO_KERNEL and (not tensors or tensors[0].numel()):
        device.kernels[name] += 1
    own = {key: tree_map(_host, value) for key, value in kwargs.items()}
    if wanted is not None:
        own |= {"device": torch.device("cpu")} | ({"pin_memory": False} if "pin_memory" in own else {})
    result = func(*tree_map(_host, args), **own)
    if device.rounds_by_shape and name in PRODUCTS:
        _round_by_shape(result)
    if (written := _written(func, args, kwargs)) is not None:
        return written
    if wanted is not None and not on_device:
        return result
    return tree_map(lambda value: _on_device(value, index), result)


def _on_device(value, index: int):
    is_host = isinstance(value, torch.Tensor) and not isinstance(value, OnDevice)
    return OnDevice(value, index) if is_host else value


def _written(func, args, kwargs):
    """The arguments that an operation has written to and returns, ``None`` if it returns new tensors."""
    written: list = []
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = kwargs.get(argument.name, args[number] if number < len(args) else None)
            written += value if isinstance(value, list | tuple) else [value]
    written = [value for value in written if value is not None]
    for value in written:
        if isinstance(value, OnDevice) and value.shape != value.host.shape:
            with no_dispatch():  # squeeze_ and others: the wrapper gets the shape, too
                func(value, *args[1:], **kwargs)
    returns = func._schema.returns
    if not written or not all(one.alias_info is not None and one.alias_info.is_write for one in returns):
        return None
    return written[0] if len(returns) == 1 else tuple(written)


def _expect_deterministic(name: str, args) -> None:
    refused = (
        name in NONDETERMINISTIC
        or (name in ("cumsum", "cumsum_") and args[0].is_floating_point())
        or (name == "bincount" and len(args) > 1 and args[1] is not None)
        or (name == "median" and len(args) > 1)
    )
    if refused and torch.are_deterministic_algorithms_enabled():
        raise RuntimeError(
            f"{name}_cuda_kernel does not have a deterministic implementation, but you set "
            "'torch.use_deterministic_algorithms(True)'"
        )


def _expect_one_device(func, name: str, args, tensors, there) -> None:
    numbers = {tensor.number for tensor in there}
    if len(numbers) > 1:
        raise RuntimeError(f"{func}: expected tensors on one device, got the GPUs {sorted(numbers)}")
    others = [tensor for tensor in tensors if not isinstance(tensor, OnDevice)]
    if not others or not there:
        return
    if name in INDEXING:
        if not isinstance(args[0], OnDevice):
            raise RuntimeError("indices should be on the same device as the indexed tensor (cpu)")
        for tensor in others:
            if tensor.dim():
                device.copied("to device", waiting=True)
    elif any(tensor.dim() for tensor in others) or name in NO_SCALARS or "convolution" in name:
        shapes = [tuple(tensor.shape) for tensor in others]
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found cuda:{there[0].number} and cpu! (when "
            f"calling {func}; CPU tensors of shapes {shapes})"
        )


def _to(source: torch.Tensor, to_device: bool, index: int, non_blocking: bool = False, **kwargs):
    kwargs.pop("device", None)
    kwargs.pop("pin_memory", None)
    value = torch.ops.aten._to_copy.default(_host(source), **kwargs)
    if isinstance(source, OnDevice) and not to_device:
        device.copied("from device", waiting=True)  # the target is not pinned
        return value
    if isinstance(source, OnDevice):
        device.kernels["copy"] += 1
    else:
        _copied_to_device(source, non_blocking)
    return _on_device(value, index)


def _copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False):
    own, values = _host(target), _host(source)
    if isinstance(target, OnDevice) and isinstance(source, OnDevice):
        device.kernels["copy"] += 1
    elif isinstance(target, OnDevice):
        _copied_to_device(source, non_blocking)
    else:
        late = non_blocking and _is_queued(own)
        device.copied("from device", waiting=not late)
        if late:
            device.check_sources(device.queued)  # earlier copies from this buffer come first
            arriving = values.to(own.dtype, copy=True)
            own.view(torch.uint8).fill_(0xFF)  # NaN, until it arrives
            device.arriving.append((device.number(), lambda: own.copy_(arriving)))
            return target
    own.copy_(values)
    return target


def _is_queued(host: torch.Tensor) -> bool:
    """Whether a copy is queued: torch copies other host memory through pageable memory, and waits."""
    return host.is_contiguous() and _is_pinned(host)


def _copied_to_device(source: torch.Tensor, non_blocking: bool) -> None:
    """Count a copy; the source of one that is still under way must stay as it is."""
    late = non_blocking and _is_queued(source)
    device.copied("to device", waiting=not late)
    if late:
        device.sources.append((device.number(), source, source.clone()))


class _Everything(TorchDispatchMode):
    """Sees operations that create tensors on the device, and pinned memory."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func._schema.name.split("::")[1]
        if name == "is_pinned" and not isinstance(args[0], OnDevice):
            return _is_pinned(args[0])
        if name in ("pin_memory", "_pin_memory"):
            if isinstance(args[0], OnDevice):
                raise RuntimeError("only dense CPU tensors can be pinned")
            return _pin(args[0].clone())
        if kwargs.get("pin_memory") and torch.device(kwargs.get("device") or "cpu").type == "cpu":
            return _pin(func(*args, **{**kwargs, "pin_memory": False}))
        return _dispatch(func, args, kwargs)


class Stream:
    """The only stream."""

    def synchronize(self) -> None:
        device.wait("synchronize")

    def record_event(self, event=None):
        event = event or Event()
        event.record()
        return event


class Event:
    """A point of the stream; its time is that of the host."""

    def __init__(self, **_):
        self.time, self.number = 0.0, 0

    def record(self, stream=None) -> None:
        self.time, self.number = time.perf_counter(), device.number()

    def synchronize(self) -> None:
        device.wait("synchronize", self.number)

    def elapsed_time(self, end: Event) -> float:
        for event in (self, end):
            if not 0 < event.number <= device.done:
                raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return 1000 * (end.time - self.time)


@contextlib.contextmanager
def rounding_by_shape():
    """Within it, products differ in the last bits for different shapes, such as those of groups."""
    device.rounds_by_shape = True
    try:
        yield
    finally:
        device.rounds_by_shape = False


def _round_by_shape(result) -> None:
    """Multiply a product in place by 1 and some rounding errors, as many as the sum of its sizes modulo 7."""
    for value in result if isinstance(result, tuple) else [result]:
        if value is not None:
            value.mul_(1 + sum(value.shape) % 7 * torch.finfo(value.dtype).eps)


@contextlib.contextmanager
def simulated(gpus: int = 1):
    """Simulate this number of GPUs; gives :data:`device`."""
    stream = Stream()

    def set_device(wanted) -> None:
        index = wanted if isinstance(wanted, int) else torch.device(wanted).index or 0
        if index >= gpus:
            raise RuntimeError("CUDA error: invalid device ordinal")
        device.current = index

    def properties(of=None):
        index = torch.device(of).index or 0 if of is not None else device.current
        return SimpleNamespace(uuid=f"GPU-{index}", total_memory=MEMORY, name="simulated")

    functions = {
        "is_available": lambda: gpus > 0, "device_count": lambda: gpus, "_lazy_init": lambda: None,
        "is_initialized": lambda: True, "set_device": set_device, "current_device": lambda: device.current,
        "current_stream": lambda device=None: stream, "Stream": Stream, "Event": Event,
        "synchronize": lambda of=None: device.wait("synchronize"), "empty_cache": lambda: None,
        "max_memory_reserved": lambda device=None: 0, "memory_allocated": lambda device=None: 0,
        "mem_get_info": lambda device=None: (MEMORY, MEMORY), "get_device_properties": properties,
        "get_device_name": lambda device=None: "simulated", "is_bf16_supported": lambda *_, **__: True,
    }  # fmt: skip

    def init_process_group(backend, *, device_id=None, **options):
        start("gloo" if backend == "nccl" else backend, **options)

    start, reduce, broadcast = distributed.init_process_group, distributed.all_reduce, distributed.broadcast
    collectives = {
        "is_nccl_available": lambda: True, "init_process_group": init_process_group,
        "all_reduce": lambda tensor: reduce(_host(tensor)),
        "broadcast": lambda tensor, source: broadcast(_host(tensor), source),
    }  # fmt: skip
    device.__init__()
    with contextlib.ExitStack() as stack:
        for name, function in functions.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, function))
        for name, function in collectives.items():
            stack.enter_context(mock.patch.object(distributed, name, function))
        stack.callback(torch._C._set_only_lift_cpu_tensors, torch._C._only_lift_cpu_tensors())
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device="cuda") is copied to the device
        stack.enter_context(_Everything())
        yield device


def pytest_configure(config):
    """Simulate until the end of the session."""
    session = simulated(int(os.environ.get("MPIFED_SIMULATED_GPUS", "1")))
    session.__enter__()
    config.add_cleanup(lambda: session.__exit__(None, None, None))
