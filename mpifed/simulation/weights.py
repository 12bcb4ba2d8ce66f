"""Weights that a problem's network starts from: a safetensors file, held against the network before the
start."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import torch

from mpifed.config.plugins import title
from mpifed.core.errors import ConfigError, cut, listed
from mpifed.core.network import placed
from mpifed.core.problem import DataFile, Problem
from mpifed.core.settings import near_miss

__all__ = ["Weights"]


class Weights:
    """The weights of the setting ``initial``; none where it is left out.

    Attributes:
        files: the file read, with its digest.

    Raises:
        OSError, ValueError: the file cannot be read, or is none of weights.
    """

    def __init__(self, file: str | None):
        self.file, self._tensors = file, {}
        self.files: dict[str, DataFile] = {}
        if file is None:
            return
        try:
            content = Path(file).read_bytes()
        except OSError as error:
            raise OSError(f"initial: cannot read {cut(file)}: {error.strerror}") from None
        self._tensors = _tensors(file, content)
        self.files["initial"] = DataFile(file, hashlib.sha256(content).hexdigest())

    def expect_fit(self, problem: Problem, own: Problem) -> None:
        """Hold the weights against the network of a prepared problem.

        Args:
            own: the problem as the job names it.

        Raises:
            ConfigError: there is no network, or names, shapes, types or values do not fit; one line a fault.
        """
        if self.file is None:
            return
        if not problem.network:
            raise ConfigError(
                f"initial = {cut(self.file)!r}: {title(own)} has no network that could start from weights: "
                "leave initial out"
            )
        if faults := list(self._faults(problem)):
            raise ConfigError(listed(faults, lambda fault: f"initial: {fault}"))

    def _faults(self, problem: Problem) -> Iterator[str]:
        file, network = cut(self.file), problem.network
        for name, shape in network.items():
            tensor = self._tensors.get(name)
            if tensor is None:
                near = near_miss(name, self._tensors.keys() - network.keys())
                yield f"{file} has no {name!r}, which the network has with shape {list(shape)}: {near}"
            elif tensor.shape != torch.Size(shape):
                yield f"{name!r} has the shape {list(tensor.shape)} in {file}, expected {list(shape)}"
            elif not tensor.is_floating_point():
                kind = str(tensor.dtype).removeprefix("torch.")
                yield f"{name!r} is of {kind} in {file}, expected floating-point numbers"
            elif not torch.isfinite(tensor).all():
                yield f"{name!r} has values in {file} that are not finite"
        for name in self._tensors:
            if name not in network:
                yield f"{file} has {cut(name)!r}, which the network has not: {near_miss(name, network)}"

    def start(self, problem: Problem, point: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The starting point with these weights in it."""
        return placed(problem, point, self._tensors) if self._tensors else point


def _tensors(file: str, content: bytes) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file by name.

    Raises:
        ValueError: it is none.
    """
    from safetensors import SafetensorError  # only runs that start from weights load it
    from safetensors.torch import load

    try:
        return load(content)
    except (SafetensorError, KeyError, ValueError) as error:  # of a dtype that torch does not have: KeyError
        raise ValueError(
            f"initial: {cut(file)} is no safetensors file ({cut(str(error))}): `mpifed export` writes one, "
            "and so does safetensors.torch.save_file(module.state_dict(), FILE)"
        ) from None
