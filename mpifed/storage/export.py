"""Export of a network's weights as safetensors, which torch and other libraries read without this package."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch

from mpifed.storage.files import writing
from mpifed.storage.results import RunData

__all__ = ["metadata_of", "write_weights"]


def metadata_of(run: RunData, round: int, metrics: Mapping[str, float]) -> dict:
    """Return the origin and the metrics of a run's weights after a round, JSON-able.

    ``config`` is the SHA-256 of the resolved settings as JSON with sorted keys.
    """
    settings = json.dumps(run.config, sort_keys=True)
    return {
        "run": str(run.folder),
        "method": run.name,
        "problem": run.config["problem"]["name"].rpartition(":")[2],
        "round": round,
        "metrics": dict(metrics),
        "versions": run.versions,
        "config": hashlib.sha256(settings.encode()).hexdigest(),
    }


def write_weights(path: str | Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping) -> None:
    """Write tensors that share no memory, and ``metadata`` as one JSON text under the key ``mpifed``.

    With a single metadata entry the same content gives the same bytes: safetensors writes several entries in
    arbitrary order.

    Raises:
        ConfigError: the file cannot be written.
    """
    from safetensors.torch import save  # only exports need it

    content = save(dict(tensors), {"mpifed": json.dumps(metadata)})
    with writing(path) as temporary:
        temporary.write_bytes(content)
