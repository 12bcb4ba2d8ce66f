"""The device path: ranks share GPUs, messages are staged through pinned host memory."""

import numpy as np
import pytest
import torch
from games import Game, configuration
from mpifed import resume, run
from mpifed.algorithms import AdaFGDA
from mpifed.reduction import ExactReduction, FusedReduction
from mpifed.placement import Cohort, Placement, device_for

pytestmark = pytest.mark.mpi
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is visible")


@gpu
@pytest.mark.parametrize("reduction", ["fused", "exact"])
@pytest.mark.parametrize("executor", ["loop", "batched"])
@pytest.mark.parametrize("matrices", ["coordinator", "replicated"])
def test_device_agrees_with_host(comm, out, reduction, executor, matrices):
    """1e-9 in float64: the same operations, in another order inside the device's sums."""
    settings = dict(reduction=reduction, executor=executor, matrices=matrices, checkpoint_every=2)
    points = []
    for device in ("cpu", "cuda"):
        config = configuration(AdaFGDA(q=3, gamma=0.02, lam=0.02), Game(clients=5), f"{out}/{device}", device=device, **settings)
        result = run(config, comm)
        points.append(torch.cat([block.cpu() for block in result.point.values()]).numpy())
    np.testing.assert_allclose(points[1], points[0], rtol=1e-9, atol=1e-9)
    longer = resume(f"{out}/cuda", ["rounds=4"], comm)
    assert longer.costs["round"][-1] == 4 or comm.rank


def test_a_gpu_that_is_not_there():
    if torch.cuda.is_available():
        assert device_for("cuda", 5).index == 5 % torch.cuda.device_count()
    else:
        with pytest.raises(ValueError, match="no GPU is visible"):
            device_for("cuda", 0)
    assert device_for("cpu", 3).type == "cpu"


@pytest.mark.parametrize("kind", [FusedReduction, ExactReduction])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("staged", [False, True])
def test_average_and_control_value(comm, kind, weighted, staged):
    """A mean known in closed form, with and without the host buffer that device tensors go through."""
    clients, size = 5, 7
    placement = Placement(clients, comm.size)
    weights = np.arange(1.0, clients + 1) if weighted else None
    members = np.array([0, 2, 4])
    cohort = Cohort(members, placement, comm.rank, weights)
    reduction = kind(comm, len(placement.of(comm.rank)), size, torch.float64, "cpu", staged=staged)
    for repetition in range(2):
        for row, client in enumerate(placement.of(comm.rank)[cohort.local]):
            reduction.rows[row] = torch.arange(size) * 10.0 + client
        late = reduction(cohort, float(repetition and comm.rank == comm.size - 1))
        expected = np.arange(size) * 10.0 + np.average(members, weights=None if weights is None else weights[members])
        np.testing.assert_allclose(reduction.mean.numpy(), expected, rtol=1e-14)  # three additions and a division
        assert late == bool(repetition)
    assert (reduction.wire_bytes > 0) == (comm.size > 1)
