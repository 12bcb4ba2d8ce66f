"""Non-finite values end a run on all ranks together, with an error that names round, client and fields."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from mpifed.core.numerics import all_finite
from mpifed.core.records import Layout, State
from mpifed.parallel.comm import CollectiveError, SerialComm, broadcast_text
from mpifed.parallel.placement import Cohort
from mpifed.simulation.executor import Stage

__all__ = ["Bad", "NonFiniteError", "check_mean", "check_shared", "first_bad"]

#: How the message of a NonFiniteError begins.
_NON_FINITE = "non-finite value"
#: What stands for no client in a minimum over ranks.
_NONE = np.iinfo(np.int64).max
#: Averages of at least this size mean that the iterates diverge.
_LARGE = 1e3


class NonFiniteError(CollectiveError):
    """An infinite or undefined value; raised on all ranks together."""


class Bad(NamedTuple):
    """A client's message with a value that is not finite: the client's number and a copy ``[size]``."""

    client: int
    message: torch.Tensor


def first_bad(stage: Stage, cohort: Cohort, members: slice, clients: np.ndarray) -> Bad | None:
    """A group's first message that is not finite.

    The rows may be overwritten by the reduction, so they are looked at before it.

    Args:
        members: the group, a part of ``cohort.local``.
        clients: the numbers of this rank's clients.
    """
    rows = stage.messages.buffer[: members.stop - members.start]
    if all_finite(rows):
        return None
    row = int((~torch.isfinite(rows)).any(dim=1).nonzero()[0])
    return Bad(int(clients[cohort.local[members.start + row]]), rows[row].clone())


def check_mean(comm: SerialComm, round: int, stage: Stage, bad: Bad | None) -> None:
    """Raise on all ranks if an average is not finite. Collective where it is not.

    Args:
        bad: what :func:`first_bad` returned on this rank.
    """
    if all_finite(stage.mean.buffer):
        return
    first = np.array([bad.client if bad else _NONE], dtype=np.int64)
    comm.allreduce_(first, "min")
    if first[0] == _NONE:
        raise NonFiniteError(
            f"{_NON_FINITE} in round {round}: the sum of finite messages overflows, "
            f"phase {stage.phase.name!r}"
        )
    mine = bad is not None and bad.client == first[0]
    owner = np.array([comm.rank if mine else comm.size], dtype=np.int64)
    comm.allreduce_(owner, "min")
    fields = broadcast_text(
        comm, _fields(stage.mean.layout, bad.message) if bad and mine else "", int(owner[0])
    )
    raise NonFiniteError(
        f"{_NON_FINITE} in round {round}: client {first[0]}, {fields} of `message` (phase "
        f"{stage.phase.name!r}): reduce the step sizes, or check that the problem's functions are finite at "
        "every point"
    )


def check_shared(round: int, stage: Stage, shared: State) -> None:
    """Raise on all ranks if the server step, the same on all, has made a value that is not finite."""
    if all_finite(shared.buffer):
        return
    largest = float(stage.mean.buffer.abs().max()) if stage.mean.buffer.numel() else 0.0
    hint = "" if largest >= _LARGE else ", or check the server function for a division by 0"
    raise NonFiniteError(
        f"{_NON_FINITE} in round {round}: {_fields(shared.layout, shared.buffer)} of `shared`, made by the "
        f"server step from finite averages of up to {largest:.2g}: reduce the step sizes{hint}"
    )


def _fields(layout: Layout, row: torch.Tensor) -> str:
    """The fields of a row that are not finite: ``field 'x'`` or ``fields 'x' and 'y'``."""
    bad = ~torch.isfinite(row)
    names = [
        repr(name)
        for name, parts in layout.slots.items()
        if any(bad[start:stop].any() for start, stop in parts)
    ]
    return f"field {names[0]}" if len(names) == 1 else f"fields {', '.join(names[:-1])} and {names[-1]}"
