"""Initial weights of a network, read from a safetensors file (the setting ``initial``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from mpifed.base.data_files import digest, expect_regular
from mpifed.base.errors import ConfigError, join_lines, truncate
from mpifed.base.settings import title
from mpifed.core.problem import DataFile, Problem, with_network_weights

__all__ = ["InitialWeights"]

#: Maximum number of parameters named in a message.
NAMED = 5


class InitialWeights:
    """The network weights of the setting ``initial``, read from a safetensors file.

    Args:
        file: path of the file; ``None`` for the problem's own starting point.

    Attributes:
        files: the file and its digest, by name.

    Raises:
        OSError, ValueError: the file cannot be read, or is not a safetensors file.
    """

    def __init__(self, file: str | None):
        self.files: dict[str, DataFile] = {}
        self._file, self._tensors = truncate(file or ""), {}
        if file is None:
            return
        try:
            expect_regular(Path(file))
            content = Path(file).read_bytes()
        except OSError as error:
            raise OSError(f"initial: cannot read {self._file}: {error.strerror}") from None
        self._tensors = _tensors(self._file, content)
        self.files["initial"] = DataFile(file, digest([content]))

    def expect_fit(self, problem: Problem, given: Problem) -> None:
        """Compare the weights with the network of a prepared problem.

        Args:
            given: the problem of the settings, before its conversion to the method's family.

        Raises:
            ConfigError: the problem has no network, or names, shapes, dtypes or values do not fit; one line
                per error.
        """
        if not self._file:
            return
        if not problem.network:
            raise ConfigError(
                f"initial = {self._file!r}: {title(given)} has no network that could start from weights: "
                "leave initial out"
            )
        errors = list(self._errors(problem.network)) or list(self._other_errors(problem.network, given))
        if errors:
            raise ConfigError(join_lines(errors, lambda error: f"initial: {error}"))

    def _errors(self, network: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
        """Yield errors of the network's parameters."""
        tensors = self._tensors
        if missing := [name for name in network if name not in tensors]:
            others = [name for name in tensors if name not in network]
            yield (
                f"{self._file} lacks {_names(missing)} of the network"
                + (f", and has {_names(others)} instead" if others else "")
            )
        for name in (name for name in network if name in tensors):
            if tensors[name].shape != torch.Size(network[name]):
                shape = list(tensors[name].shape)
                yield f"{name!r} has the shape {shape} in {self._file}, expected {list(network[name])}"
            elif not tensors[name].is_floating_point():
                dtype = str(tensors[name].dtype).removeprefix("torch.")
                yield f"{name!r} has the dtype {dtype} in {self._file}, expected floating-point numbers"
            elif not torch.isfinite(tensors[name]).all():
                yield f"{name!r} has values in {self._file} that are not finite"

    def _other_errors(self, network: Mapping[str, tuple[int, ...]], given: Problem) -> Iterator[str]:
        """Yield errors of tensors that are not parameters: they must equal the module's other state."""
        state = given.model.module({name: self._tensors[name] for name in network}).state_dict()
        others = {name: tensor for name, tensor in self._tensors.items() if name not in network}
        if unknown := [name for name in others if name not in state]:
            known = _names([*network])
            yield f"{self._file} has {_names(unknown)}, which the network ({known}) does not have"
        for name in sorted(others.keys() & state.keys()):
            if not torch.equal(state[name].to(others[name]), others[name]):
                yield (
                    f"{name!r} has other values in {self._file} than in the network, where it is a buffer or "
                    "a frozen or shared parameter: construct the network with these values"
                )

    def start(self, problem: Problem, point: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the starting point with these weights."""
        weights = {name: self._tensors[name] for name in problem.network} if self._tensors else {}
        return with_network_weights(problem, point, weights) if weights else point


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(truncate(name) for name in names[:NAMED]) + more


def _tensors(file: str, content: bytes) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file by name, sorted."""
    from safetensors import SafetensorError  # imported only if there is a file
    from safetensors.torch import load

    try:
        return dict(sorted(load(content).items()))
    except (SafetensorError, KeyError, ValueError) as error:  # KeyError: a dtype that torch does not have
        raise ValueError(
            f"initial: {file} is not a safetensors file ({truncate(str(error))}): write one by `mpifed "
            "export` or safetensors.torch.save_file(module.state_dict(), FILE)"
        ) from None
