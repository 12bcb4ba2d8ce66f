"""Where the state of clients is stored between rounds (``run.client_store``).

============  ================================================================================================
``device``    On the device of the rank that hosts the client, which steps it.
``memory``    In host memory that the ranks of a node share.
``disk``      In a temporary file that the ranks of a node map into their memory. The system keeps in memory
              what there is space for. The file is in the folder for temporary files (``TMPDIR``) and has no
              name, so nothing remains after the processes have ended.
============  ================================================================================================

Every rank of a node can read and write memory or a file that they share. The members of a cohort that a node
hosts are then divided among its ranks (:class:`mpifed.parallel.placement.Placement`), unless the method
samples several cohorts in a round. A GPU receives copies of the rows of a group, and returns them after its
step.
"""

from __future__ import annotations

import tempfile

import numpy as np
import torch

from mpifed.base.log import warning
from mpifed.base.memory import host_memory
from mpifed.parallel.comm import CollectiveError, SerialComm, reduce_number
from mpifed.parallel.devices import ranks_on, wait_for
from mpifed.parallel.nodes import Nodes
from mpifed.parallel.placement import Placement
from mpifed.parallel.shared_memory import share_memory
from mpifed.simulation.settings import SimulationSettings

__all__ = ["ClientStore", "choose_store", "client_store", "clients_move"]

#: Values of ``run.client_store``; if the defaults of nodes differ, the last one applies to all.
KINDS = ("device", "memory", "disk")
#: Maximum fraction of the memory of a node, and of a GPU, that the state of clients takes by default.
SHARE = 0.5


def choose_store(
    config: SimulationSettings, row_bytes: int, on_node: int, on_device: int, gpu_memory: int
) -> str:
    """Return ``run.client_store``, or its default: on GPUs the device, on CPUs the device if all clients
    participate, otherwise memory. If the memory does not suffice: host memory for GPUs, a file for the host.

    Args:
        row_bytes: size of the state of a client.
        on_node, on_device: number of clients that a node, and a device, hosts.
        gpu_memory: size of the memory of a GPU in bytes; 0 on a CPU.
    """
    if config.run.client_store:
        return config.run.client_store
    in_memory = "memory" if row_bytes * on_node <= SHARE * host_memory() else "disk"
    if gpu_memory:
        return "device" if row_bytes * on_device <= SHARE * gpu_memory else in_memory
    partial = config.participation.partial_setting(config.problem.clients)
    return "device" if in_memory == "memory" and not partial else in_memory


def clients_move(config: SimulationSettings, kind: str) -> bool:
    """Return whether several ranks of a node may step a client, each in other rounds.

    Not with several cohorts in a round: in a later one, a client continues to count the samples that it has
    drawn in the round.
    """
    return kind != "device" and not any(phase.new_cohort for phase in config.algorithm.phases)


def client_store(
    config: SimulationSettings, row_bytes: int, comm: SerialComm, placement: Placement, device: torch.device
) -> ClientStore:
    """Return the store of a run, the same kind on all ranks. Collective."""
    total = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
    hosted = max(placement.counts)
    kind = choose_store(config, row_bytes, hosted * comm.local_size, hosted * ranks_on(comm, device), total)
    kind = KINDS[reduce_number(comm, KINDS.index(kind), "max")]
    return ClientStore(kind, comm, placement, device, clients_move(config, kind))


class ClientStore:
    """Allocates the state of the clients that this rank may step. Collective.

    Args:
        kind: "device", "memory" or "disk".
        placement: of the clients on the ranks.
        moves: whether a client may be stepped by several ranks, each in other rounds.

    Attributes:
        placement: the same, in which ranks that share memory form groups.
        shares: whether ranks share the state of clients.
    """

    def __init__(self, kind: str, comm: SerialComm, placement: Placement, device: torch.device, moves: bool):
        self.kind, self._comm, self._device = kind, comm, device
        self._node, self.placement, self.shares = SerialComm(), placement, False
        nodes = Nodes.from_comm(comm)
        alone = len(nodes.firsts) == comm.size + 1
        if not moves or alone or not nodes.firsts:  # empty if ranks are not numbered node by node
            return
        try:
            share_memory(comm, nodes.node, 1)
        except CollectiveError as refusal:
            if comm.rank == 0:
                warning(f"every rank steps the clients that it hosts: {refusal}")
            return
        self._node, self.placement, self.shares = nodes.node, placement.in_groups(nodes.firsts), True

    def allocate(self, width: int, dtype: torch.dtype) -> torch.Tensor:
        """Return zeros ``[clients, width]`` for the clients that this rank may step. Collective.

        Raises:
            CollectiveError: on all ranks: a rank cannot allocate or share the memory.
        """
        clients = len(self.placement.reach(self._comm.rank))
        if self.kind == "device" or not width:
            return torch.zeros(clients, width, dtype=dtype, device=self._device)
        if self.kind == "memory" and not self.shares:
            return torch.zeros(clients, width, dtype=dtype)
        # The first rank of the node allocates the rows of all.
        nbytes = clients * width * dtype.itemsize if self._node.rank == 0 else 0
        folder = tempfile.gettempdir() if self.kind == "disk" else None
        memory = share_memory(self._comm, self._node, max(1, nbytes), folder)[0]
        numbers = memory.view(torch.empty(0, dtype=dtype).numpy().dtype) if clients else np.empty(0)
        return torch.from_numpy(numbers).to(dtype).view(clients, width)

    def wait_for_ranks(self) -> None:
        """Wait until the ranks of the node have completed what they do between rounds. Collective."""
        if self.shares:
            self._node.barrier()


class GroupRows:
    """Copies rows of a matrix in host memory to a device and back, through pinned memory.

    Args:
        matrix: ``[clients, width]``.
    """

    def __init__(self, matrix: torch.Tensor, device: torch.device):
        self._matrix, self._device = matrix, device
        self._pinned = matrix[:0]

    @classmethod
    def if_needed(cls, matrix: torch.Tensor, device: torch.device) -> GroupRows | None:
        """Return the copies of a matrix in host memory for a GPU; ``None`` if the matrix is on the device."""
        return cls(matrix, device) if device.type == "cuda" and not matrix.is_cuda else None

    def read(self, positions: np.ndarray) -> torch.Tensor:
        """Return the rows at ``positions`` on the device, ``[C, width]``. The copy is queued."""
        if len(self._pinned) < len(positions):
            self._pinned = self._matrix.new_empty(len(positions), self._matrix.shape[1]).pin_memory()
        rows = self._pinned[: len(positions)]
        torch.index_select(self._matrix, 0, torch.from_numpy(positions), out=rows)
        return rows.to(self._device, non_blocking=True)

    def write(self, positions: np.ndarray, rows: torch.Tensor) -> None:
        """Replace the rows at ``positions``, those of the last :meth:`read`. Waits for the device."""
        copied = self._pinned[: len(positions)].copy_(rows, non_blocking=True)
        wait_for(self._device)
        self._matrix[torch.from_numpy(positions)] = copied
