"""Initial weights of a problem's network: a safetensors file, compared with the network before the
start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from mpifed.base.data_files import digest
from mpifed.base.errors import ConfigError, join_lines, truncate
from mpifed.base.settings import title
from mpifed.core.problem import with_network_weights
from mpifed.core.problem import DataFile, Problem

__all__ = ["Weights"]

#: Parameters that a message names at most.
NAMED = 5


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
            raise OSError(f"initial: cannot read {truncate(file)}: {error.strerror}") from None
        self._tensors = _tensors(file, content)
        self.files["initial"] = DataFile(file, digest([content]))

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
                f"initial = {truncate(self.file)!r}: {title(own)} has no network that could start "
                "from weights: "
                "leave initial out"
            )
        faults = list(self._faults(problem.network)) or list(self._faults_of_others(problem.network, own))
        if faults:
            raise ConfigError(join_lines(faults, lambda fault: f"initial: {fault}"))

    def _faults(self, network: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
        """What the file lacks of the network's parameters, or has otherwise."""
        file, here = truncate(self.file), self._tensors
        if lacking := [name for name in network if name not in here]:
            others = [name for name in here if name not in network]
            yield (
                f"{file} lacks {_some(lacking)} of the network"
                + (f", and has {_some(others)} instead" if others else "")
            )
        for name in (name for name in network if name in here):
            if here[name].shape != torch.Size(network[name]):
                found = list(here[name].shape)
                yield f"{name!r} has the shape {found} in {file}, expected {list(network[name])}"
            elif not here[name].is_floating_point():
                kind = str(here[name].dtype).removeprefix("torch.")
                yield f"{name!r} is of {kind} in {file}, expected floating-point numbers"
            elif not torch.isfinite(here[name]).all():
                yield f"{name!r} has values in {file} that are not finite"

    def _faults_of_others(self, network: Mapping[str, tuple[int, ...]], own: Problem) -> Iterator[str]:
        """What the file has beside the network's parameters: of a module's state the values that it holds."""
        held = own.model.module({name: self._tensors[name] for name in network}).state_dict()
        others = {name: one for name, one in self._tensors.items() if name not in network}
        if unknown := [name for name in others if name not in held]:
            yield (
                f"{truncate(self.file)} has {_some(unknown)}, which the network ({_some([*network])}) has not"
            )
        for name in sorted(others.keys() & held.keys()):
            if not torch.equal(held[name].to(others[name]), others[name]):
                yield (
                    f"{name!r} has other values in {truncate(self.file)} than in the network, where it is a "
                    "buffer or a frozen or shared parameter: make the network with these values"
                )

    def start(self, problem: Problem, point: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The starting point with these weights in it."""
        weights = {name: self._tensors[name] for name in problem.network} if self._tensors else {}
        return with_network_weights(problem, point, weights) if weights else point


def _some(names: Sequence[str]) -> str:
    """Names, of many the first ones."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(truncate(name) for name in names[:NAMED]) + more


def _tensors(file: str, content: bytes) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file by name, in the order of the names.

    Raises:
        ValueError: it is none.
    """
    from safetensors import SafetensorError  # only runs that start from weights load it
    from safetensors.torch import load

    try:
        return dict(sorted(load(content).items()))
    except (SafetensorError, KeyError, ValueError) as error:  # of a dtype that torch does not have: KeyError
        raise ValueError(
            f"initial: {truncate(file)} is no safetensors file ({truncate(str(error))}): `mpifed "
            "export` writes one, "
            "and so does safetensors.torch.save_file(module.state_dict(), FILE)"
        ) from None
