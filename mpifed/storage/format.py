"""The results of a run: one HDF5 file, ``run.h5``, sealed with a digest of its bytes
(:mod:`mpifed.storage.sealed`).

==============  =======================================================================================
attributes      ``config``, ``versions``, ``layout``, ``data`` (the files read: path and SHA-256 of
                each; JSON texts), ``maximised`` (JSON list of the metrics of which more is better),
                ``splits`` (JSON table: "test", "validation" ... → samples that metrics are taken on),
                ``end`` and ``stopped`` (why the run ended, as a kind and as a sentence, :class:`End`;
                both "" while it runs), ``infeasible`` (how far the first evaluated point that was
                not in the problem's sets lay outside, a sentence; "" where there was none)
``costs/``      cumulative, one value a round, the first for the starting point: ``round``,
                ``oracle_calls``, ``phases``, ``bytes_up`` and ``bytes_down`` (what federated clients
                would send and be sent), ``wire_bytes`` (what this run moved between its ranks),
                ``compute_seconds`` and ``communication_seconds`` (mean over the ranks), ``seconds``,
                ``federated_seconds`` (what federated clients would take by the clock, 0 without one)
``ranks/``      one value a rank: ``gpu`` (its number, -1 for the CPU), ``peak_host_bytes``,
                ``peak_gpu_bytes``
``metrics/``    ``round`` and one dataset a metric, one value an evaluation
``holdings``    samples by client and class, with the classes' names in the attribute ``classes``; only
                where samples have them
``confusion``   of the output point: test samples by class (rows) and by the class that they are taken
                for, with the classes' names in the attribute ``classes``; only for classification
``clients/``    with ``run.evaluate_on = ["clients"]``: one dataset a metric, its value on the samples of
                each client at the output point
``final/``      the output point, one group a block with a dataset a parameter, in its name and shape and in
                the order of the flat vector; the parameters of the problem's network carry their names
                there as the attribute ``network``; metrics of the point as attributes of the group
``iterates/``   with ``record``: ``round`` and the averaged iterate of every round, one dataset a block
==============  =======================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["FORMAT", "RUN_FILE", "COSTS", "End", "entries"]

RUN_FILE = "run.h5"
#: Version of the file's layout.
FORMAT = 2
#: Columns of the cost history.
COSTS = (
    "round",
    "oracle_calls",
    "phases",
    "bytes_up",
    "bytes_down",
    "wire_bytes",
    "compute_seconds",
    "communication_seconds",
    "seconds",
    "federated_seconds",
)


@dataclass(frozen=True)
class End:
    """Why a run has ended.

    Attributes:
        kind: "rounds" (all are done), "target" (a metric has reached its value), "time" (the budget is used
            up), "diverged" (non-finite values), or "signal" (asked to stop; started again, the run continues
            from its checkpoint). "" in files of versions that wrote the sentence alone.
        sentence: the same in words.
    """

    kind: str
    sentence: str

    @classmethod
    def read(cls, table: Mapping[str, str]) -> End | None:
        """The end that the :func:`entries` of a file name, ``None`` if the run has not ended."""
        return cls(table.get("end", ""), table["stopped"]) if table["stopped"] else None


def entries(end: End | None) -> dict[str, str]:
    """The entries of a file for a run's end. A run that a signal has interrupted has not ended."""
    over = end is not None and end.kind != "signal"
    return {"end": end.kind if over else "", "stopped": end.sentence if over else ""}
