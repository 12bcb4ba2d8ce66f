"""Values that are not finite end a run on all ranks together; round, client and field are named."""

from __future__ import annotations

import numpy as np
import torch

from mpifed.core.records import State
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.parallel.placement import Cohort
from mpifed.simulation.executor import Stage

__all__ = ["NonFiniteError", "check_mean", "check_shared", "first_bad"]

#: How the message of a NonFiniteError begins.
_NON_FINITE = "non-finite value"
#: What :func:`first_bad` returns where all is finite.
_NONE = np.iinfo(np.int64).max


class NonFiniteError(CollectiveError):
    """An infinite or undefined value; raised on all ranks together."""


def _finite(buffer: torch.Tensor) -> bool:
    """One sum is finite unless a value is not, or the sum overflows, which the second look sorts out."""
    return not buffer.numel() or bool(torch.isfinite(buffer.sum())) or bool(torch.isfinite(buffer).all())


def first_bad(stage: Stage, cohort: Cohort, clients: np.ndarray) -> int:
    """``client * size + element`` of this rank's first message value that is not finite.

    The rows may be overwritten by the reduction, so they are looked at before it.

    Args:
        clients: the numbers of this rank's clients.
    """
    rows = stage.messages.buffer[: len(cohort.local)]
    if _finite(rows):
        return _NONE
    row, element = (~torch.isfinite(rows)).nonzero()[0].tolist()
    return int(clients[cohort.local[row]]) * rows.shape[1] + element


def check_mean(comm: SerialComm, round: int, stage: Stage, culprit: int) -> None:
    """Raise on all ranks if an average is not finite. Collective where it is not.

    Args:
        culprit: what :func:`first_bad` returned on this rank.
    """
    if _finite(stage.mean.buffer):
        return
    first = np.array([culprit], dtype=np.int64)
    comm.allreduce_(first, "min")
    if first[0] == _NONE:
        raise NonFiniteError(
            f"{_NON_FINITE} in round {round}: the sum of finite messages overflows, "
            f"phase {stage.phase.name!r}"
        )
    client, element = divmod(int(first[0]), stage.mean.layout.size)
    raise NonFiniteError(
        f"{_NON_FINITE} in round {round}: client {client}, field {stage.mean.layout.field_at(element)!r} "
        f"of `message` (phase {stage.phase.name!r}): smaller step sizes?"
    )


def check_shared(round: int, shared: State) -> None:
    """Raise on all ranks if the server step, the same on all, has made a value that is not finite."""
    if _finite(shared.buffer):
        return
    element = int((~torch.isfinite(shared.buffer)).nonzero()[0])
    raise NonFiniteError(
        f"{_NON_FINITE} in round {round}: field {shared.layout.field_at(element)!r} of `shared`, made by the "
        "server step from finite averages: smaller step sizes?"
    )
