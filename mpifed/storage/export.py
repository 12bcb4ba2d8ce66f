"""A network's weights in a file that torch and others read without this package: safetensors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch

from mpifed.storage.atomic import writing
from mpifed.storage.results import RunData

__all__ = ["about", "write_weights"]


def about(run: RunData, metrics: Mapping[str, float]) -> dict:
    """What is said of the weights of a run: where they are from and how good they are, JSON-able.

    ``config`` is the SHA-256 of the resolved settings as JSON with sorted keys.
    """
    settings = json.dumps(run.config, sort_keys=True)
    return {
        "run": str(run.folder),
        "method": run.name,
        "problem": run.config["problem"]["name"].rpartition(":")[2],
        "round": int(run.costs["round"][-1]),
        "metrics": dict(metrics),
        "versions": run.versions,
        "config": hashlib.sha256(settings.encode()).hexdigest(),
    }


def write_weights(path: str | Path, tensors: Mapping[str, torch.Tensor], said: Mapping) -> None:
    """Write tensors, each with memory of its own, and as metadata ``mpifed`` a JSON text of what is ``said``.

    The same content makes the same bytes, since there is one entry of metadata: safetensors writes several in
    any order.

    Raises:
        ConfigError: the file cannot be written.
    """
    from safetensors.torch import save  # only exports load it

    content = save(dict(tensors), {"mpifed": json.dumps(said)})
    with writing(path) as temporary:
        temporary.write_bytes(content)
