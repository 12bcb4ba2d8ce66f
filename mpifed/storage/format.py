"""The results of a run: one HDF5 file, ``run.h5``.

==============  ======================================================================================================
attributes      ``config``, ``versions``, ``layout``, ``data`` (the files read: path and SHA-256 of each; JSON texts),
                ``maximised`` (JSON list of the metrics of which more is better), ``stopped`` (why the run ended, "" while it
                runs)
``costs/``      cumulative, one value a round, the first for the starting point: ``round``, ``oracle_calls``, ``phases``,
                ``bytes_up`` and ``bytes_down`` (what federated clients would send and be sent), ``wire_bytes`` (what this
                run moved between its ranks), ``compute_seconds`` and ``communication_seconds`` (mean over the ranks),
                ``seconds``, ``federated_seconds`` (what federated clients would take by the clock, 0 without one)
``ranks/``      one value a rank: ``gpu`` (its number, -1 for the CPU), ``peak_host_bytes``, ``peak_gpu_bytes``
``metrics/``    ``round`` and one dataset a metric, one value an evaluation
``holdings``    samples by client and class, with the classes' names in the attribute ``classes``; only where samples have them
``final/``      the output point, one flat dataset a block; metrics of it as attributes
``iterates/``   with ``record``: ``round`` and the averaged iterate of every round, one dataset a block
==============  ======================================================================================================
"""

from __future__ import annotations

__all__ = ["RUN_FILE", "COSTS"]

RUN_FILE = "run.h5"
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
