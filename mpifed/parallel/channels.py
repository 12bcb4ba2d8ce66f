"""Channels: one tensor of a rank and the collectives on it, for each way of travelling.

``sum_`` replaces the tensor by its sum over the ranks, with a control value in its last element, and
``bcast_`` replaces it by that of rank 0. :mod:`mpifed.parallel.transport` says which channel
serves which device.
"""

from __future__ import annotations

import time

import torch

from mpifed.parallel.devices import wait_for

__all__ = [
    "Channel",
    "LoneChannel",
    "HostChannel",
    "SharedChannel",
    "StagedChannel",
    "DirectChannel",
    "CudaCopies",
]

#: Bytes above which a staged message goes in chunks, and the bytes of a chunk.
CHUNKED, CHUNK = 8 * 2**20, 4 * 2**20


class Channel:
    """One tensor and its two collectives.

    Args:
        transport: the :class:`mpifed.parallel.transport.Transport` that counts what the channel sends.
        tensor: ``[size]``, contiguous; it must not move.
    """

    def __init__(self, transport, tensor: torch.Tensor):
        self.transport, self.comm, self.tensor = transport, transport.comm, tensor
        size, rank, nbytes = self.comm.size, self.comm.rank, tensor.numel() * tensor.element_size()
        self._summed = 2 * nbytes if size > 1 else 0
        self._broadcast = nbytes * (1 if rank else size - 1)

    def sum_(self, control: float) -> float:
        """Replace the tensor by its sum over the ranks.

        Its last element carries ``control``, whose sum is returned.
        """
        raise NotImplementedError

    @property
    def mean(self) -> torch.Tensor:
        """Where :meth:`average` puts the average, ``[size]`` with the control value."""
        return self.tensor

    def average(self, total: float, control: float) -> float:
        """Make ``mean`` the sum over the ranks, divided by ``total``; the tensor may change. As ``sum_``."""
        controls = self.sum_(control)
        self.tensor /= total
        return controls

    def bcast_(self) -> None:
        """Replace the tensor by that of rank 0."""
        raise NotImplementedError


class LoneChannel(Channel):
    """A tensor of one rank, which is its own sum."""

    def sum_(self, control):
        return control

    def bcast_(self):
        pass


class HostChannel(Channel):
    """A CPU tensor, reduced where it lies."""

    def __init__(self, transport, tensor):
        super().__init__(transport, tensor)
        self._array = tensor.numpy()  # the persistent view that MPI works on

    def sum_(self, control):
        self._array[-1] = control
        start = time.perf_counter()
        self.comm.allreduce_(self._array)
        self.transport.count(start, self._summed)
        return float(self._array[-1])

    def bcast_(self):
        start = time.perf_counter()
        self.comm.bcast_(self._array)
        self.transport.count(start, self._broadcast)


class SharedChannel(Channel):
    """A tensor in memory that the ranks of a node share, averaged there.

    Args:
        exchange: the memory, one partial sum a rank; ``sums``: how they are added.
    """

    def __init__(self, transport, exchange, sums):
        super().__init__(transport, torch.from_numpy(exchange.slots[0]))
        self._exchange, self._sums = exchange, sums

    @property
    def mean(self):
        return torch.from_numpy(self._exchange.result)

    def average(self, total, control):
        return self._exchange.finish(self._sums, total, control)


class StagedChannel(Channel):
    """A tensor that goes through a host buffer, in chunks."""

    def __init__(self, transport, tensor, copies):
        super().__init__(transport, tensor)
        self._copies = copies
        self._host = torch.empty(len(tensor), dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
        self._array = self._host.numpy()
        nbytes = tensor.numel() * tensor.element_size()
        step = max(1, (CHUNK if nbytes > CHUNKED else nbytes) // tensor.element_size())
        self._chunks = [slice(first, min(first + step, len(tensor))) for first in range(0, len(tensor), step)]

    def sum_(self, control):
        self._travel(self.comm.allreduce_, True, True, control, self._summed)
        return float(self._array[-1])

    def bcast_(self):
        root = self.comm.rank == 0
        self._travel(self.comm.bcast_, root, not root, None, self._broadcast)

    def _travel(self, collective, send: bool, receive: bool, control: float | None, wire_bytes: int) -> None:
        """Copy to the host if ``send``, run the collective, copy back if ``receive``, chunk by chunk."""
        self._copies.begin()
        start = time.perf_counter()
        landed = [
            self._copies.to_host(self._host[chunk], self.tensor[chunk]) for chunk in self._chunks if send
        ]
        for number, chunk in enumerate(self._chunks):
            if send:
                landed[number].synchronize()  # MPI must not read what is still being written
            if control is not None and chunk.stop == len(self._array):
                self._array[-1] = control
            collective(self._array[chunk])
            if receive:
                self._copies.to_device(self.tensor[chunk], self._host[chunk])
        self._copies.end()
        self.transport.count(start, wire_bytes)


class CudaCopies:
    """Copies between a GPU and pinned memory that run beside each other, each direction in its order."""

    def __init__(self, device: torch.device):
        self._device = device
        self._down, self._up = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def begin(self) -> None:
        """Wait for the kernels that have written the tensors, and for the copies before."""
        wait_for(self._device)

    def to_host(self, target: torch.Tensor, source: torch.Tensor) -> torch.cuda.Event:
        """Start a copy; the event tells when ``target`` may be read."""
        with torch.cuda.stream(self._down):
            target.copy_(source, non_blocking=True)
        return self._down.record_event()

    def to_device(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Start a copy; kernels that are launched after :meth:`end` see it."""
        with torch.cuda.stream(self._up):
            target.copy_(source, non_blocking=True)

    def end(self) -> None:
        """Let the kernels to come wait for the copies to the GPU."""
        torch.cuda.current_stream(self._device).wait_stream(self._up)


class DirectChannel(Channel):
    """A tensor that is handed over where it lies: ``allreduce(tensor)``, ``bcast(tensor)``."""

    def __init__(self, transport, tensor, allreduce, bcast):
        super().__init__(transport, tensor)
        self._allreduce, self._bcast = allreduce, bcast

    def sum_(self, control):
        self.tensor[-1] = control
        wait_for(self.transport.device)  # MPI does not know of streams, and waiting is not communication
        start, self.comm.calling = time.perf_counter(), f"{self.transport.name} Allreduce"
        self._allreduce(self.tensor)
        controls = float(self.tensor[-1])  # waits for the device
        self.comm.calling = ""
        self.transport.count(start, self._summed)
        return controls

    def bcast_(self):
        wait_for(self.transport.device)
        start, self.comm.calling = time.perf_counter(), f"{self.transport.name} Bcast"
        self._bcast(self.tensor)
        wait_for(self.transport.device)
        self.comm.calling = ""
        self.transport.count(start, self._broadcast)
